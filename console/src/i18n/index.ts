/** The words of the console. English is always there; other languages are loaded when they are chosen. */

import { computed, effect, signal } from '@preact/signals';

import { keep, recall } from '../app/keep';
import { en } from './en';

export type Catalog = Record<keyof typeof en, string>;
export type Key = keyof typeof en;

export const LANGUAGES: Record<string, string> = { en: 'English', de: 'Deutsch', zh: '中文' };

const LOADERS: Record<string, () => Promise<Catalog>> = {
  de: async () => (await import('./de')).de,
  zh: async () => (await import('./zh')).zh,
};

export const chosenLanguage = signal(recall('language'));
export const language = computed(() => {
  const wanted = [chosenLanguage.value, ...(globalThis.navigator?.languages ?? [])].map((each) => each.slice(0, 2).toLowerCase());
  return wanted.find((each) => each in LANGUAGES) ?? 'en';
});
const catalog = signal<Catalog>(en);

export async function loadLanguage(): Promise<void> {
  const wanted = language.peek();
  catalog.value = (await LOADERS[wanted]?.()) ?? en;
  document.documentElement.lang = wanted;
}

export function watchLanguage(): void {
  effect(() => {
    keep('language', chosenLanguage.value);
    void (language.value && loadLanguage());
  });
}

/** The words for a key, with `{name}` filled in. */
export function t(key: Key | `resolution.${string}` | `check.${string}` | `node.${string}`, values: Record<string, string | number> = {}): string {
  const words = (catalog.value as Record<string, string>)[key] ?? (en as Record<string, string>)[key] ?? key;
  return words.replace(/\{(\w+)\}/g, (_, name: string) => String(values[name] ?? ''));
}
