/** A task as the console shows it: a pure fold of what A2A says about it. */

import {
  type Artifact,
  type Message,
  type Part,
  Role,
  type StreamResponse,
  type Task,
  type TaskArtifactUpdateEvent,
  TaskState,
  type TaskStatus,
  type TaskStatusUpdateEvent,
} from '@a2a-js/sdk';

export type State =
  | 'unknown'
  | 'submitted'
  | 'working'
  | 'completed'
  | 'failed'
  | 'canceled'
  | 'input-required'
  | 'rejected'
  | 'auth-required';

const STATES: Record<number, State> = {
  [TaskState.TASK_STATE_SUBMITTED]: 'submitted',
  [TaskState.TASK_STATE_WORKING]: 'working',
  [TaskState.TASK_STATE_COMPLETED]: 'completed',
  [TaskState.TASK_STATE_FAILED]: 'failed',
  [TaskState.TASK_STATE_CANCELED]: 'canceled',
  [TaskState.TASK_STATE_INPUT_REQUIRED]: 'input-required',
  [TaskState.TASK_STATE_REJECTED]: 'rejected',
  [TaskState.TASK_STATE_AUTH_REQUIRED]: 'auth-required',
};

const ENDED: ReadonlySet<State> = new Set(['completed', 'failed', 'canceled', 'rejected']);
export const hasEnded = (state: State): boolean => ENDED.has(state);

export interface FileContent {
  name: string;
  mediaType: string;
  url?: string;
  bytes?: Uint8Array;
}

export interface Said {
  id: string;
  /** Under which OpenCode knows it; '' where the service does not say. */
  messageId: string;
  text: string;
  data: unknown[];
  files: FileContent[];
}

export interface TextBlock {
  kind: 'text' | 'reasoning';
  id: string;
  text: string;
  phase?: string;
  messageId?: string;
}

export interface ToolBlock {
  kind: 'tool';
  id: string;
  callId: string;
  tool: string;
  status: string;
  title: string;
  subtitle: string;
  input: Record<string, unknown>;
  output: string;
  error: string;
  startedAt?: string;
  endedAt?: string;
  messageId?: string;
}

export interface FileBlock {
  kind: 'file';
  id: string;
  file: FileContent;
}

export interface ChangesBlock {
  kind: 'changes';
  id: string;
  patch: string;
}

export type Block = TextBlock | ToolBlock | FileBlock | ChangesBlock;

export interface Question {
  header: string;
  question: string;
  options: { label: string; description: string }[];
  multiple: boolean;
  custom: boolean;
}

export interface Interrupt {
  id: string;
  type: 'permission' | 'question';
  expiresAt?: string;
  permission: string;
  patterns: string[];
  title: string;
  command: string;
  filepath: string;
  diff: string;
  arguments?: unknown;
  always: string[];
  questions: Question[];
  subagent?: string;
  peer?: string;
}

/** What was asked, and how it was decided. */
export interface Decision {
  id: string;
  resolution: string;
  what: string;
}

/** What a sub-agent does now and has done, under the tool call it works for. */
export interface SubagentCall {
  callId: string;
  tool: string;
  title: string;
  status: string;
  startedAt?: string;
  endedAt?: string;
}

export interface Subagent {
  sessionId: string;
  agent: string;
  callId: string;
  calls: SubagentCall[];
}

export interface Todo {
  content: string;
  status: string;
}

export interface Usage {
  input: number;
  output: number;
  total: number;
  reasoning: number;
  cost?: number;
}

export interface TaskView {
  id: string;
  contextId: string;
  state: State;
  at: string;
  /** What the status says in words: why it failed, what it waits for. */
  statusText: string;
  said: Said[];
  blocks: Block[];
  interrupts: Interrupt[];
  decisions: Decision[];
  subagents: Subagent[];
  todos: Todo[];
  retry?: { attempt: number; message: string };
  model: string;
  agent: string;
  usage?: Usage;
  sessionId: string;
  title: string;
  principal: string;
  branch: string;
  directory: string;
  queuedFor: string;
  errorType: string;
  resume?: { message?: unknown; metadata?: unknown };
  startedAt: string;
}

type Loose = Record<string, unknown>;

const loose = (value: unknown): Loose => (value && typeof value === 'object' ? (value as Loose) : {});
const text = (value: unknown): string => (typeof value === 'string' ? value : '');
const list = (value: unknown): unknown[] => (Array.isArray(value) ? value : []);
const number = (value: unknown): number => (typeof value === 'number' ? value : 0);

export function empty(id: string, contextId: string): TaskView {
  return {
    id,
    contextId,
    state: 'unknown',
    at: '',
    statusText: '',
    said: [],
    blocks: [],
    interrupts: [],
    decisions: [],
    subagents: [],
    todos: [],
    model: '',
    agent: '',
    sessionId: '',
    title: '',
    principal: '',
    branch: '',
    directory: '',
    queuedFor: '',
    errorType: '',
    startedAt: '',
  };
}

/** A whole task: it replaces what was known, except what only a stream tells. */
export function fromTask(task: Task, before?: TaskView): TaskView {
  let view = empty(task.id, task.contextId);
  if (before) view = { ...view, subagents: before.subagents, todos: before.todos, startedAt: before.startedAt };
  view = withStatus(view, task.status);
  view = withMetadata(view, task.metadata);
  for (const message of task.history) view = withMessage(view, message);
  for (const artifact of task.artifacts) view = withArtifact(view, artifact, false);
  return view;
}

/** A task without artifacts and history: state, title, usage and what waits change; what is shown of it stays. */
export function withSummary(before: TaskView | undefined, task: Task): TaskView {
  const view = before ?? empty(task.id, task.contextId);
  return withMetadata(withStatus(view, task.status), task.metadata);
}

export function apply(before: TaskView | undefined, event: StreamResponse): TaskView | undefined {
  const payload = event.payload;
  switch (payload?.$case) {
    case 'task':
      return fromTask(payload.value, before);
    case 'statusUpdate':
      return withStatusUpdate(before ?? empty(payload.value.taskId, payload.value.contextId), payload.value);
    case 'artifactUpdate':
      return withArtifactUpdate(before ?? empty(payload.value.taskId, payload.value.contextId), payload.value);
    default:
      return before;
  }
}

/** Which task an event is about. */
export function taskOf(event: StreamResponse): string {
  const payload = event.payload;
  if (payload?.$case === 'task') return payload.value.id;
  return payload?.$case === 'message' || !payload ? '' : payload.value.taskId;
}

function withStatus(view: TaskView, status: TaskStatus | undefined): TaskView {
  if (!status) return view;
  const state = STATES[status.state] ?? 'unknown';
  const interrupts = state === 'input-required' ? view.interrupts : [];
  const startedAt = view.startedAt || (state === 'working' ? (status.timestamp ?? '') : '');
  return { ...view, state, at: status.timestamp ?? view.at, startedAt, interrupts, statusText: wordsOf(status.message) };
}

function withStatusUpdate(view: TaskView, update: TaskStatusUpdateEvent): TaskView {
  const progress = loose(loose(update.metadata?.shared).progress);
  const next = withMetadata(withStatus(view, update.status), update.metadata);
  return progress.type ? withProgress(next, progress) : { ...next, retry: undefined };
}

function withMetadata(view: TaskView, metadata: Loose | undefined): TaskView {
  const shared = loose(metadata?.shared);
  const opencode = loose(metadata?.opencode);
  let next = view;
  if (shared.session) {
    const session = loose(shared.session);
    next = { ...next, sessionId: text(session.id) || next.sessionId, title: text(session.title) || next.title };
  }
  if (shared.usage) next = { ...next, usage: usageOf(loose(shared.usage)) };
  next = withInterrupts(next, shared);
  return withOpenCode(next, opencode, text(metadata?.principal));
}

function withOpenCode(view: TaskView, opencode: Loose, principal: string): TaskView {
  const model = modelName(opencode.model);
  const worktree = loose(opencode.worktree);
  const queue = loose(opencode.queue);
  const error = loose(opencode.error);
  return {
    ...view,
    model: model || view.model,
    agent: text(opencode.agent) || view.agent,
    branch: text(worktree.branch) || view.branch,
    directory: text(worktree.directory) || text(opencode.directory) || view.directory,
    queuedFor: view.state === 'submitted' ? text(queue.reason) || view.queuedFor : '',
    errorType: text(error.type) || text(error.code) || view.errorType,
    resume: opencode.resume ? (opencode.resume as TaskView['resume']) : view.resume,
    principal: principal || text(opencode.principal) || view.principal,
  };
}

function withInterrupts(view: TaskView, shared: Loose): TaskView {
  const told = list(shared.interrupts).length ? list(shared.interrupts) : shared.interrupt ? [shared.interrupt] : [];
  let next = view;
  for (const each of told.map(loose)) {
    const id = text(each.request_id);
    const others = next.interrupts.filter((open) => open.id !== id);
    if (each.phase === 'resolved') {
      next = withDecision({ ...next, interrupts: others }, each);
    } else if (next.state === 'input-required') {
      next = { ...next, interrupts: [...others, interruptOf(each)] };
    }
  }
  return next;
}

function withDecision(view: TaskView, told: Loose): TaskView {
  const id = text(told.request_id);
  const decision = { id, resolution: text(told.resolution), what: whatWasAsked(interruptOf(told)) };
  return { ...view, decisions: [...view.decisions.filter((each) => each.id !== id), decision] };
}

/** In a few words, what a person was asked. */
export function whatWasAsked(interrupt: Interrupt): string {
  if (interrupt.type === 'question') return interrupt.questions.map((each) => each.question).join(' ');
  return interrupt.command || interrupt.filepath || interrupt.title || interrupt.patterns.join(', ') || interrupt.permission;
}

export function interruptOf(told: Loose): Interrupt {
  const details = loose(told.details);
  const id = text(told.request_id);
  return {
    id,
    type: (text(told.type) || text(told.interrupt_type)) === 'question' || id.startsWith('que_') ? 'question' : 'permission',
    expiresAt: text(told.expires_at) || undefined,
    permission: text(details.permission),
    patterns: list(details.patterns).map(text),
    title: text(details.title),
    command: text(details.command),
    filepath: text(details.filepath),
    diff: text(details.diff),
    arguments: details.arguments,
    always: list(details.always).map(text),
    questions: list(details.questions).map(loose).map(questionOf),
    subagent: text(loose(told.subagent).agent) || undefined,
    peer: text(details.peer) || text(loose(details.peer).name) || undefined,
  };
}

function questionOf(told: Loose): Question {
  return {
    header: text(told.header),
    question: text(told.question),
    options: list(told.options)
      .map(loose)
      .map((each) => ({ label: text(each.label), description: text(each.description) })),
    multiple: told.multiple === true,
    custom: told.custom !== false,
  };
}

function withProgress(view: TaskView, progress: Loose): TaskView {
  const subagent = loose(progress.subagent);
  switch (progress.type) {
    case 'step-start':
      if (subagent.session_id) return withSubagent(view, subagent);
      return { ...view, retry: undefined, model: modelName(progress.model) || view.model, agent: text(progress.agent) || view.agent };
    case 'tool-call':
      return withSubagent(view, subagent, progress);
    case 'phase':
      return withPhase(view, text(progress.artifact_id), text(progress.status));
    case 'retry':
      return { ...view, retry: { attempt: number(progress.attempt), message: text(progress.message) } };
    case 'todo':
      return { ...view, todos: todosOf(progress.todos) };
    default:
      return view;
  }
}

function withPhase(view: TaskView, artifact: string, phase: string): TaskView {
  const blocks = view.blocks.map((each) => (each.id === artifact && each.kind === 'text' ? { ...each, phase } : each));
  return { ...view, blocks };
}

export function todosOf(value: unknown): Todo[] {
  return list(value)
    .map(loose)
    .map((each) => ({ content: text(each.content), status: text(each.status) }));
}

function withSubagent(view: TaskView, told: Loose, call?: Loose): TaskView {
  const sessionId = text(told.session_id);
  if (!sessionId) return view;
  const found = view.subagents.find((each) => each.sessionId === sessionId);
  const before: Subagent = found ?? { sessionId, agent: text(told.agent), callId: text(told.call_id), calls: [] };
  const after = call ? { ...before, calls: withCall(before.calls, call) } : before;
  const subagents = found ? view.subagents.map((each) => (each === found ? after : each)) : [...view.subagents, after];
  return { ...view, subagents };
}

/** The session in which the sub-agent of a tool call has worked, as OpenCode says it in the call's output. */
export function sessionOfSubagent(call: ToolBlock): string {
  return call.tool === 'task' ? (/\bses_[A-Za-z0-9]+/.exec(call.output)?.[0] ?? '') : '';
}

/** What the session of a sub-agent says that it did; what the stream has told is kept. */
export function withSubagentOf(view: TaskView, call: ToolBlock, blocks: readonly Block[]): TaskView {
  if (view.subagents.some((each) => each.callId === call.callId)) return view;
  const calls = blocks.filter((each): each is ToolBlock => each.kind === 'tool');
  const subagent = { sessionId: sessionOfSubagent(call), agent: text(call.input.subagent_type), callId: call.callId, calls };
  return { ...view, subagents: [...view.subagents, subagent] };
}

function withCall(calls: SubagentCall[], told: Loose): SubagentCall[] {
  const call: SubagentCall = {
    callId: text(told.call_id),
    tool: text(told.tool),
    title: text(told.title),
    status: text(told.status),
    startedAt: text(told.started_at) || undefined,
    endedAt: text(told.ended_at) || undefined,
  };
  const known = calls.some((each) => each.callId === call.callId);
  return known ? calls.map((each) => (each.callId === call.callId ? call : each)) : [...calls, call];
}

function withMessage(view: TaskView, message: Message): TaskView {
  if (message.role === Role.ROLE_USER) {
    if (view.said.some((each) => each.id === message.messageId)) return view;
    return { ...view, said: [...view.said, saidOf(message)] };
  }
  const told = loose(loose(message.metadata?.shared).interrupt);
  return told.phase === 'resolved' ? withDecision(view, told) : view;
}

export function saidOf(message: Message): Said {
  const messageId = text(loose(message.metadata?.opencode).message_id);
  const said: Said = { id: message.messageId, messageId, text: '', data: [], files: [] };
  const words: string[] = [];
  for (const part of message.parts) {
    if (part.content?.$case === 'text' && !part.filename) words.push(part.content.value);
    else if (part.content?.$case === 'data') said.data.push(part.content.value);
    else said.files.push(fileOf(part));
  }
  return { ...said, text: words.join('\n') };
}

function wordsOf(message: Message | undefined): string {
  return message ? saidOf(message).text : '';
}

function fileOf(part: Part, name = ''): FileContent {
  const file: FileContent = { name: part.filename || name, mediaType: part.mediaType };
  if (part.content?.$case === 'url') file.url = part.content.value;
  else if (part.content?.$case === 'raw') file.bytes = part.content.value;
  else if (part.content?.$case === 'text') file.bytes = new TextEncoder().encode(part.content.value);
  return file;
}

function withArtifactUpdate(view: TaskView, update: TaskArtifactUpdateEvent): TaskView {
  return update.artifact ? withArtifact(view, update.artifact, update.append) : view;
}

/** An artifact that arrives again replaces what was there, or grows; its place is where it was first seen. */
function withArtifact(view: TaskView, artifact: Artifact, append: boolean): TaskView {
  const at = view.blocks.findIndex((each) => each.id === artifact.artifactId);
  const before = at < 0 ? undefined : view.blocks[at];
  const block = append && before ? grown(before, artifact) : blockOf(artifact, before);
  if (!block) return view;
  const blocks = at < 0 ? [...view.blocks, block] : view.blocks.with(at, block);
  const todos = block.kind === 'tool' && block.tool === 'todowrite' ? todosOf(block.input.todos) : view.todos;
  return { ...view, blocks, todos: todos.length ? todos : view.todos };
}

function grown(before: Block, artifact: Artifact): Block {
  if (before.kind === 'text' || before.kind === 'reasoning') {
    const more = textOf(artifact);
    return more ? { ...before, text: before.text + more } : before;
  }
  if (before.kind !== 'tool') return before;
  return artifact.parts.map((each) => loose(dataOf(each))).reduce(withOutput, before);
}

function withOutput(before: ToolBlock, piece: Loose): ToolBlock {
  return { ...before, status: text(piece.status) || before.status, output: before.output + text(piece.output) };
}

function blockOf(artifact: Artifact, before: Block | undefined): Block | undefined {
  const stream = loose(loose(artifact.metadata?.shared).stream);
  const id = artifact.artifactId;
  const messageId = text(stream.message_id) || undefined;
  const first = artifact.parts[0];
  if (artifact.name === 'changes') return { kind: 'changes', id, patch: textOf(artifact) };
  if (stream.block_type === 'tool_call' || artifact.name.startsWith('tool:')) return toolOf(artifact, messageId);
  if (first?.content?.$case === 'raw' || first?.content?.$case === 'url') {
    return { kind: 'file', id, file: fileOf(first, artifact.name.replace(/^file:/, '')) };
  }
  const kind = stream.block_type === 'reasoning' || artifact.name === 'reasoning' ? 'reasoning' : 'text';
  const phase = text(stream.phase) || (before?.kind === 'text' ? before.phase : undefined);
  return { kind, id, text: textOf(artifact), phase, messageId };
}

function toolOf(artifact: Artifact, messageId: string | undefined): ToolBlock {
  const [whole, ...pieces] = artifact.parts.map((each) => loose(dataOf(each)));
  return pieces.reduce(withOutput, toolFrom(whole ?? {}, artifact.artifactId, artifact.name.replace(/^tool:/, ''), messageId));
}

export function toolFrom(told: Loose, id: string, name: string, messageId?: string): ToolBlock {
  return {
    kind: 'tool',
    id,
    callId: text(told.call_id),
    tool: text(told.tool) || name,
    status: text(told.status),
    title: text(told.title),
    subtitle: text(told.subtitle),
    input: loose(told.input),
    output: text(told.output),
    error: text(told.error),
    startedAt: text(told.started_at) || undefined,
    endedAt: text(told.ended_at) || undefined,
    messageId,
  };
}

function textOf(artifact: Artifact): string {
  return artifact.parts.map((each) => (each.content?.$case === 'text' ? each.content.value : '')).join('');
}

function dataOf(part: Part): unknown {
  return part.content?.$case === 'data' ? part.content.value : undefined;
}

function usageOf(told: Loose): Usage {
  return {
    input: number(told.input_tokens),
    output: number(told.output_tokens),
    total: number(told.total_tokens),
    reasoning: number(told.reasoning_tokens),
    cost: typeof told.cost === 'number' ? told.cost : undefined,
  };
}

function modelName(value: unknown): string {
  const model = loose(value);
  return model.modelID ? `${text(model.providerID)}/${text(model.modelID)}` : '';
}

/** What the agent answered in the end, in plain Markdown. */
export function answerOf(view: TaskView): string {
  const texts = view.blocks.filter((each): each is TextBlock => each.kind === 'text');
  return (texts.find((each) => each.phase === 'answer') ?? texts.at(-1))?.text ?? '';
}
