/** What a person has chosen for this browser. */

import { effect, signal } from '@preact/signals';

import { keep, recall } from './keep';

function kept<Value extends string>(key: string, otherwise: Value) {
  const value = signal((recall(key) || otherwise) as Value);
  effect(() => keep(key, value.value));
  return value;
}

export const theme = kept<'auto' | 'light' | 'dark'>('theme', 'auto');
export const diffLayout = kept<'unified' | 'split'>('diff', 'unified');
export const notifications = kept<'on' | 'off'>('notifications', 'off');
export const showReasoning = kept<'folded' | 'open'>('reasoning', 'folded');
export const chosenModel = kept<string>('model', '');
export const chosenAgent = kept<string>('agent', '');

effect(() => {
  document.documentElement.dataset.theme = theme.value;
});
