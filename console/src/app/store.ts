/** What the console knows now. The stream of the service writes it, views read it. */

import { type StreamResponse, Task } from '@a2a-js/sdk';
import { batch, computed, signal } from '@preact/signals';

import type { Failure } from '../a2a/failure';
import { failureOf } from '../a2a/failure';
import { Service } from '../a2a/service';
import { type Link, type Listener, Watch } from '../a2a/watch';
import { group, inOrder, type Session, waiting } from '../state/conversations';
import { earlierOf } from '../state/session';
import {
  apply,
  empty,
  fromTask,
  hasEnded,
  sessionOfSubagent,
  type TaskView,
  taskOf,
  type ToolBlock,
  withSubagentOf,
  withSummary,
} from '../state/task';
import { forgetDrafts } from './keep';
import { forgetToken, keepToken, type LoginOptions } from './login';

const PAGE = 100;
const HISTORY = 1_000; // messages of a task; a list has none unless it is asked for them
const RECENT_MS = 7 * 86_400_000; // of these tasks the stream tells everything; older ones are listed
const FRAME_MS = 80; // events are collected and shown at most this often

export const options = signal<LoginOptions>({ version: '', title: 'OpenCode', login: { token: true } });
export const service = signal<Service | undefined>(undefined);
/** Nobody knows yet whether the kept token is good. */
export const starting = signal(true);
/** A token was accepted, and then no longer. */
export const expired = signal(false);
export const loginFailure = signal<Failure | undefined>(undefined);
export const link = signal<Link>('connecting');
export const listed = signal(false);
export const tasks = signal<ReadonlyMap<string, TaskView>>(new Map());
/** Conversations whose past has been loaded. */
export const loaded = signal<ReadonlySet<string>>(new Set());
export const notice = signal('');

/** Sessions as the service lists them; they have the titles that were given later. */
export const sessions = signal<readonly Session[]>([]);
export const conversations = computed(() => group(tasks.value.values(), sessions.value));
export const waitingNow = computed(() => waiting(tasks.value.values()));

export function tasksOf(contextId: string): TaskView[] {
  return [...tasks.value.values()].filter((each) => each.contextId === contextId).sort(inOrder);
}

let watch: Watch | undefined;
let pending: (() => void)[] = [];
let scheduled = 0;

/** Collect changes of the tasks and make them together: a fast stream must not draw the page for each word. */
function change(id: string, how: (before: TaskView | undefined) => TaskView | undefined): void {
  pending.push(() => {
    const after = how(draft.get(id));
    if (after) draft.set(id, after);
  });
  scheduled ||= setTimeout(flush, FRAME_MS) as unknown as number;
}

let draft = new Map<string, TaskView>();

function flush(): void {
  scheduled = 0;
  const work = pending;
  pending = [];
  draft = new Map(tasks.peek());
  for (const each of work) each();
  tasks.value = draft;
}

export async function connect(token: string, remember: boolean): Promise<void> {
  loginFailure.value = undefined;
  expired.value = false;
  const connected = await Service.connect(location.origin, token);
  keepToken(token, remember);
  open(connected);
}

function open(connected: Service): void {
  batch(() => {
    close();
    service.value = connected;
  });
  const listener: Listener = {
    summary: (task: Task) => change(task.id, (before) => withSummary(before, task)),
    event: (event: StreamResponse) => change(taskOf(event), (before) => apply(before, event)),
    ready: () => void (listed.peek() || listAll(connected)),
    link: (state) => {
      if (link.peek() !== state) link.value = state;
    },
    refused: (error) => lost(failureOf(error)),
  };
  watch = new Watch(connected, listener, new Date(Date.now() - RECENT_MS).toISOString());
  watch.start();
}

/** Forget the connection and all that came through it. */
function close(): void {
  watch?.stop();
  watch = undefined;
  pending = [];
  followed = '';
  recalled.clear();
  batch(() => {
    service.value = undefined;
    listed.value = false;
    tasks.value = new Map();
    loaded.value = new Set();
    sessions.value = [];
    notice.value = '';
  });
}

/** The tasks there are, besides those that are at work. */
async function listAll(connected: Service): Promise<void> {
  listed.value = true;
  void loadSessions();
  try {
    const page = await connected.list({ pageSize: PAGE });
    if (service.peek() !== connected) return;
    for (const task of page.tasks) change(task.id, (before) => before ?? withSummary(undefined, task));
  } catch (error) {
    if (service.peek() === connected) lost(failureOf(error));
  }
}

/** The sessions whose titles hold these words; without words the latest. */
export async function loadSessions(search = ''): Promise<readonly Session[]> {
  const params = { limit: PAGE, roots: true, ...(search ? { search } : {}) };
  const found = await act(async (connected) => {
    if (!connected.methods().has('opencode.sessions.list')) return [];
    const { items } = await connected.call<{ items: unknown[] }>('opencode.sessions.list', params);
    return items.map((each) => sessionOf(fromTask(Task.fromJSON(each))));
  });
  const known = new Map([...sessions.peek(), ...(found ?? [])].map((each) => [each.contextId, each]));
  sessions.value = [...known.values()];
  return found ?? [];
}

const sessionOf = ({ sessionId, contextId, title, at }: TaskView): Session => ({ id: sessionId, contextId, title, at });

/** A call has failed: where the token is no longer accepted, ask for another; else say what happened. */
export function lost(failure: Failure): void {
  if (failure.kind !== 'login') {
    notice.value = failure.message;
    return;
  }
  close();
  forgetToken();
  expired.value = true;
  loginFailure.value = failure;
}

export function logOut(): void {
  close();
  forgetToken();
  forgetDrafts();
  loginFailure.value = undefined;
}

export function tryAgainNow(): void {
  watch?.hurry();
}

let followed = '';

/** Show a conversation: follow it, and load what was said before. */
export async function openConversation(contextId: string): Promise<void> {
  leaveConversation(contextId);
  watch?.follow(contextId ? [contextId] : []);
  const connected = service.peek();
  if (!connected || !contextId || loaded.peek().has(contextId)) return;
  await act(async () => {
    let pageToken = '';
    do {
      const page = await connected.list({ contextId, includeArtifacts: true, historyLength: HISTORY, pageSize: 50, pageToken });
      if (service.peek() !== connected) return;
      for (const task of page.tasks) change(task.id, (before) => withPast(before, fromTask(task, before)));
      pageToken = page.nextPageToken;
    } while (pageToken);
  });
  if (service.peek() === connected) loaded.value = new Set([...loaded.peek(), contextId]);
}

/** The stream may already have told more about a task at work than a list that was asked for earlier. */
function withPast(before: TaskView | undefined, listed: TaskView): TaskView {
  const streamed = before !== undefined && (before.blocks.length > 0 || before.said.length > 0);
  return streamed && !hasEnded(listed.state) ? before : listed;
}

/** What happens in a conversation that is not followed is not known: it is loaded again when it is opened again. */
function leaveConversation(next: string): void {
  if (followed !== next && tasksOf(followed).some((each) => !hasEnded(each.state))) {
    loaded.value = new Set([...loaded.peek()].filter((each) => each !== followed));
  }
  followed = next;
}

const recalled = new Set<string>();

/** What a sub-agent did in a task that has ended: only the stream tells of it, and later the sub-agent's own session. */
export async function recallSubagent(taskId: string, call: ToolBlock): Promise<void> {
  const sessionId = sessionOfSubagent(call);
  if (!sessionId || recalled.has(sessionId)) return;
  recalled.add(sessionId);
  const params = { session_id: sessionId, limit: PAGE };
  const page = await act((connected) => connected.call<{ items: unknown[] }>('opencode.sessions.messages.list', params));
  if (!page) recalled.delete(sessionId);
  else change(taskId, (before) => before && withSubagentOf(before, call, earlierOf(page.items).flatMap((each) => each.blocks)));
}

/** Make a call; what goes wrong is said to the person. What comes after they have left is not for the next one. */
export async function act<Result>(work: (connected: Service) => Promise<Result>): Promise<Result | undefined> {
  const connected = service.peek();
  if (!connected) return undefined;
  try {
    const result = await work(connected);
    return service.peek() === connected ? result : undefined;
  } catch (error) {
    if (service.peek() === connected) lost(failureOf(error));
    return undefined;
  }
}

export function showSent(task: Task): void {
  change(task.id, (before) => (before && before.state !== 'unknown' ? before : fromTask(task, before)));
}

/** A message is on its way: shown at once, under an id of its own until the service has answered. */
export function showSending(id: string, contextId: string, text: string): void {
  const view: TaskView = { ...empty(id, contextId), state: 'submitted', at: new Date().toISOString() };
  change(id, () => ({ ...view, said: [{ id, messageId: '', text, data: [], files: [] }] }));
}

export function forget(id: string): void {
  pending.push(() => draft.delete(id));
  scheduled ||= setTimeout(flush, FRAME_MS) as unknown as number;
}
