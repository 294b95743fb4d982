/** Tasks grouped into the conversations they belong to. */

import { hasEnded, type Interrupt, type State, type TaskView } from './task';

export interface Conversation {
  contextId: string;
  title: string;
  state: State;
  at: string;
  tasks: TaskView[];
  sessionId: string;
}

/** A session as the service lists it: also those that no task of ours has told of yet. */
export interface Session {
  id: string;
  contextId: string;
  title: string;
  at: string;
}

/** Latest change first; the tasks of each oldest first. */
export function group(tasks: Iterable<TaskView>, sessions: readonly Session[] = []): Conversation[] {
  const found = new Map<string, TaskView[]>();
  for (const task of tasks) {
    const known = found.get(task.contextId);
    if (known) known.push(task);
    else found.set(task.contextId, [task]);
  }
  const titles = new Map(sessions.map((each) => [each.contextId, each]));
  const all = [...found.values()].map((each) => withTitle(conversationOf(each), titles));
  for (const each of sessions) {
    if (found.has(each.contextId)) continue;
    all.push({ contextId: each.contextId, title: each.title, state: 'unknown', at: each.at, tasks: [], sessionId: each.id });
  }
  return all.sort((a, b) => compare(b.at, a.at));
}

function withTitle(conversation: Conversation, titles: ReadonlyMap<string, Session>): Conversation {
  const title = titles.get(conversation.contextId)?.title;
  return title ? { ...conversation, title } : conversation;
}

/** What happens in a conversation is what its most urgent task does. */
const URGENCY: State[] = ['input-required', 'auth-required', 'working', 'submitted'];

function conversationOf(tasks: TaskView[]): Conversation {
  const sorted = tasks.toSorted(inOrder);
  const latest = sorted.at(-1) as TaskView;
  const urgent = URGENCY.find((state) => sorted.some((each) => each.state === state));
  return {
    contextId: latest.contextId,
    title: sorted.findLast((each) => each.title)?.title ?? '',
    state: urgent ?? latest.state,
    at: sorted.reduce((at, each) => (each.at > at ? each.at : at), ''),
    tasks: sorted,
    sessionId: sorted.findLast((each) => each.sessionId)?.sessionId ?? '',
  };
}

/** In the order in which they were begun: ended tasks by their end, then those at work, then those that wait. */
export function inOrder(a: TaskView, b: TaskView): number {
  return rank(a) - rank(b) || compare(a.at, b.at);
}

function rank(task: TaskView): number {
  if (hasEnded(task.state)) return 0;
  return task.state === 'submitted' ? 2 : 1;
}

function compare(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0;
}

export interface Waiting {
  task: TaskView;
  interrupt: Interrupt;
}

/** Everything that waits for a person, the oldest first. */
export function waiting(tasks: Iterable<TaskView>): Waiting[] {
  const open = [...tasks].filter((task) => task.state === 'input-required').sort((a, b) => compare(a.at, b.at));
  return open.flatMap((task) => task.interrupts.map((interrupt) => ({ task, interrupt })));
}

export function matches(conversation: Conversation, words: string): boolean {
  const wanted = words.trim().toLowerCase();
  return !wanted || conversation.title.toLowerCase().includes(wanted);
}
