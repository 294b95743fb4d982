/** What was said in a session outside of tasks: before it was forked, or in OpenCode's own terminal. */

import { Message, Role } from '@a2a-js/sdk';

import { type Block, type Said, saidOf, toolFrom } from './task';

export interface Earlier {
  id: string;
  at: string;
  said?: Said;
  blocks: Block[];
}

type Loose = Record<string, unknown>;

export function earlierOf(items: readonly unknown[]): Earlier[] {
  return items.map((item) => {
    const message = Message.fromJSON(item);
    const opencode = (message.metadata?.opencode ?? {}) as Loose;
    const at = timeOf(opencode.time ?? opencode.created_at);
    if (message.role === Role.ROLE_USER) return { id: message.messageId, at, said: saidOf(message), blocks: [] };
    return { id: message.messageId, at, blocks: message.parts.flatMap((part, n) => blockOf(part, `${message.messageId}:${n}`)) };
  });
}

function timeOf(value: unknown): string {
  const time = typeof value === 'object' && value ? (value as Loose).created : value;
  if (typeof time === 'number') return new Date(time).toISOString();
  return typeof time === 'string' ? time : '';
}

function blockOf(part: Message['parts'][number], id: string): Block[] {
  const kind = ((part.metadata?.shared as Loose | undefined)?.stream as Loose | undefined)?.block_type;
  if (part.content?.$case === 'text') {
    return [{ kind: kind === 'reasoning' ? 'reasoning' : 'text', id, text: part.content.value }];
  }
  if (part.content?.$case === 'data') return [toolFrom((part.content.value ?? {}) as Loose, id, 'tool')];
  return [];
}

/** Without what tasks tell themselves: the messages before the first that belongs to one of them. */
export function beforeTasks(messages: readonly Earlier[], told: ReadonlySet<string>): Earlier[] {
  const first = messages.findIndex((each) => told.has(each.id));
  if (first < 0) return [...messages];
  const kept = messages.slice(0, first);
  while (kept.at(-1)?.said) kept.pop();
  return kept;
}
