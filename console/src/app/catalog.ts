/** What can be chosen for a message: models, agents, worktrees. Asked for once per connection. */

import { computed, effect, signal } from '@preact/signals';

import type { Json } from '../a2a/service';
import { act, service } from './store';

export interface Model {
  id: string;
  name: string;
  variants: string[];
}

export const models = signal<Model[]>([]);
export const agents = signal<string[]>([]);
export const worktrees = signal<string[]>([]);
export const methods = computed(() => service.value?.methods() ?? new Set<string>());

export function loadCatalog(): void {
  effect(() => {
    models.value = [];
    agents.value = [];
    worktrees.value = [];
    if (service.value) void load();
  });
}

async function load(): Promise<void> {
  const items = (method: string) =>
    methods.peek().has(method) ? act((it) => it.call<{ items: Json[] }>(method)).then((all) => all?.items ?? []) : [];
  const [someModels, someAgents, someWorktrees] = await Promise.all([
    items('opencode.models.list'),
    items('opencode.agents.list'),
    items('opencode.worktrees.list'),
  ]);
  models.value = someModels
    .filter((each) => each.connected !== false)
    .map((each) => ({
      id: `${String(each.provider_id)}/${String(each.model_id)}`,
      name: String(each.name ?? each.model_id),
      variants: (each.variants as string[] | undefined) ?? [],
    }));
  agents.value = someAgents.filter((each) => each.mode !== 'subagent').map((each) => String(each.name));
  worktrees.value = someWorktrees.map((each) => String(each.directory ?? '')).filter(Boolean);
}
