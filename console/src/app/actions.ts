/** What a person can have done: each is one or two A2A calls. */

import type { Task } from '@a2a-js/sdk';

import { bytesOf } from '../a2a/buffer';
import { type Failure, failureOf, NO_PUSH } from '../a2a/failure';
import type { Json, Service } from '../a2a/service';
import type { Interrupt, TaskView } from '../state/task';
import { act, forget, loadSessions, showSending, showSent, tasksOf } from './store';
import { pushRefused, pushTarget } from './webpush';

export interface Attachment {
  name: string;
  mediaType: string;
  bytes: Uint8Array;
}

export interface NewMessage {
  text: string;
  attachments: readonly Attachment[];
  contextId: string;
  model?: string;
  agent?: string;
  variant?: string;
  directory?: string;
  worktree?: boolean;
}

/** Send a message; false where the service did not take it. */
export async function send(draft: NewMessage): Promise<boolean> {
  const messageId = crypto.randomUUID();
  const parts: Json[] = draft.text ? [{ text: draft.text }] : [];
  for (const { name, mediaType, bytes } of draft.attachments) {
    parts.push({ raw: bytesOf(bytes).toString('base64'), filename: name, mediaType });
  }
  const message = { messageId, contextId: draft.contextId, role: 'ROLE_USER', parts };
  return sendRequest({ message, metadata: metadataOf(draft) }, draft.contextId, draft.text);
}

async function sendRequest(request: Json, contextId: string, text: string): Promise<boolean> {
  const interim = `sending:${crypto.randomUUID()}`;
  showSending(interim, contextId, text);
  const task = await act((service) => deliver(service, request));
  forget(interim);
  if (task) showSent(task);
  return task !== undefined;
}

/** A service that does not push to where this browser is told must still get the message. */
async function deliver(service: Service, request: Json): Promise<Task> {
  const configuration = { returnImmediately: true };
  const taskPushNotificationConfig = pushTarget.peek();
  if (!taskPushNotificationConfig) return service.send({ ...request, configuration });
  try {
    return await service.send({ ...request, configuration: { ...configuration, taskPushNotificationConfig } });
  } catch (error) {
    if (!isAboutPush(failureOf(error))) throw error;
    pushRefused();
    return service.send({ ...request, configuration });
  }
}

function isAboutPush({ code, fields }: Failure): boolean {
  return code === NO_PUSH || fields.some((each) => each.startsWith('configuration.taskPushNotificationConfig'));
}

function metadataOf(draft: NewMessage): Json {
  const [providerID, ...rest] = (draft.model ?? '').split('/');
  const opencode: Json = { newTask: true };
  if (draft.agent) opencode.agent = draft.agent;
  if (draft.variant) opencode.variant = draft.variant;
  if (draft.directory) opencode.directory = draft.directory;
  if (draft.worktree) opencode.isolation = 'worktree';
  return { ...(draft.model ? { shared: { model: { providerID, modelID: rest.join('/') } } } : {}), opencode };
}

export const cancel = (task: TaskView) => act((service) => service.cancel(task.id));

/** Ask the same again, as a new message of the conversation. */
export const retry = (task: TaskView): Promise<boolean> => {
  const [said] = task.said;
  const attachments = (said?.files ?? []).flatMap(({ name, mediaType, bytes }) => (bytes ? [{ name, mediaType, bytes }] : []));
  return send({ text: said?.text ?? '', attachments, contextId: task.contextId });
};

/** Go on with a task that was interrupted, as the service proposes it; else with a plain word. */
export async function resume(task: TaskView): Promise<boolean> {
  const proposed = task.resume?.message as Json | undefined;
  if (!proposed) return send({ text: 'Continue.', attachments: [], contextId: task.contextId });
  return sendRequest({ message: proposed, metadata: task.resume?.metadata ?? {} }, task.contextId, 'Continue.');
}

/** A new conversation with everything up to the end of this task; its context. */
export function fork(task: TaskView): Promise<string> {
  const later = tasksOf(task.contextId);
  const next = later.slice(later.findIndex((each) => each.id === task.id) + 1).flatMap((each) => each.said);
  return forkAt(task.sessionId, next.find((each) => each.messageId)?.messageId ?? '');
}

/** A new conversation with everything before a message, or with everything where none is named; its context. */
export async function forkAt(sessionId: string, messageId: string): Promise<string> {
  const params = { session_id: sessionId, ...(messageId ? { request: { messageID: messageId } } : {}) };
  const answer = await act((service) => service.call<{ item: Json }>('opencode.sessions.fork', params));
  void loadSessions();
  return answer ? String(answer.item.context_id) : '';
}

export async function rename(sessionId: string, title: string): Promise<void> {
  await act((service) => service.call('opencode.sessions.rename', { session_id: sessionId, request: { title } }));
  await loadSessions();
}

export type Reply = 'once' | 'always' | 'reject';

export const answerPermission = (interrupt: Interrupt, reply: Reply, message = '') =>
  act((service) =>
    service.call('a2a.interrupt.permission.reply', {
      request_id: interrupt.id,
      reply,
      ...(message ? { message } : {}),
    }),
  );

export const answerQuestions = (interrupt: Interrupt, answers: string[][]) =>
  act((service) => service.call('a2a.interrupt.question.reply', { request_id: interrupt.id, answers }));

export const dismissQuestions = (interrupt: Interrupt) =>
  act((service) => service.call('a2a.interrupt.question.reject', { request_id: interrupt.id }));
