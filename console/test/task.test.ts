import { StreamResponse, Task } from '@a2a-js/sdk';
import { expect, test } from 'vitest';

import { answerOf, apply, fromTask, type TaskView, type ToolBlock, withSummary } from '../src/state/task';

const status = (state: string, metadata: object = {}) =>
  StreamResponse.fromJSON({
    statusUpdate: { taskId: 't', contextId: 'c', status: { state: `TASK_STATE_${state}`, timestamp: '2026-01-01T00:00:00Z' }, metadata },
  });
const artifact = (id: string, name: string, part: object, append = false, stream: object = {}) =>
  StreamResponse.fromJSON({
    artifactUpdate: {
      taskId: 't',
      contextId: 'c',
      append,
      artifact: { artifactId: id, name, parts: [part], metadata: { shared: { stream } } },
    },
  });
const fold = (...events: StreamResponse[]): TaskView =>
  events.reduce<TaskView | undefined>(apply, undefined) as TaskView;

test('a text grows by what is appended, and is replaced by what is not', () => {
  const grown = fold(artifact('a', 'answer', { text: 'Hello' }), artifact('a', 'answer', { text: ' world' }, true));
  expect(grown.blocks).toMatchObject([{ kind: 'text', text: 'Hello world' }]);
  expect(apply(grown, artifact('a', 'answer', { text: 'Anew' }))?.blocks).toMatchObject([{ text: 'Anew' }]);
});

test('blocks stay where they were first seen', () => {
  const view = fold(
    artifact('a', 'answer', { text: 'one' }),
    artifact('b', 'tool:bash', { data: { call_id: 'x', tool: 'bash', status: 'running' } }),
    artifact('a', 'answer', { text: ' more' }, true),
  );
  expect(view.blocks.map((each) => each.id)).toEqual(['a', 'b']);
});

test('a block that has not changed is the same object, so it is not drawn again', () => {
  const before = fold(artifact('a', 'answer', { text: 'one' }), artifact('b', 'reasoning', { text: 'x' }));
  const after = apply(before, artifact('b', 'reasoning', { text: 'y' }, true));
  expect(after?.blocks[0]).toBe(before.blocks[0]);
});

test('output of a running tool call is put together from its pieces, and its end replaces it', () => {
  const call = { call_id: 'x', tool: 'bash', status: 'running', input: { command: 'ls' } };
  const view = fold(
    artifact('b', 'tool:bash', { data: { ...call, output: 'a\n' } }),
    artifact('b', 'tool:bash', { data: { call_id: 'x', status: 'running', output: 'b\n', output_start: 2 } }, true),
  );
  expect(view.blocks[0]).toMatchObject({ kind: 'tool', output: 'a\nb\n', input: { command: 'ls' } });
  const done = apply(view, artifact('b', 'tool:bash', { data: { ...call, status: 'completed', output: 'a\nb\nc\n' } }));
  expect((done?.blocks[0] as ToolBlock).output).toBe('a\nb\nc\n');
});

const asked = {
  request_id: 'per_1',
  type: 'permission',
  phase: 'asked',
  details: { permission: 'bash', command: 'rm x', always: ['rm *'] },
};

test('what is asked waits until it is resolved, and then is a decision', () => {
  const view = fold(status('INPUT_REQUIRED', { shared: { interrupt: asked } }));
  expect(view.interrupts).toMatchObject([{ id: 'per_1', command: 'rm x', always: ['rm *'] }]);
  const resolved = { ...asked, phase: 'resolved', resolution: 'once' };
  const after = apply(view, status('WORKING', { shared: { interrupt: resolved } }));
  expect(after?.interrupts).toEqual([]);
  expect(after?.decisions).toEqual([{ id: 'per_1', resolution: 'once', what: 'rm x' }]);
});

test('an ended task waits for nobody, whatever came before', () => {
  const view = fold(status('INPUT_REQUIRED', { shared: { interrupt: asked } }), status('CANCELED'));
  expect(view).toMatchObject({ state: 'canceled', interrupts: [] });
});

test('a summary changes state and title and leaves what is shown', () => {
  const view = fold(artifact('a', 'answer', { text: 'shown' }));
  const summary = Task.fromJSON({
    id: 't',
    contextId: 'c',
    status: { state: 'TASK_STATE_COMPLETED', timestamp: '2026-01-01T00:00:01Z' },
    metadata: { shared: { session: { id: 'ses_1', title: 'A title' }, usage: { input_tokens: 3, output_tokens: 4, cost: 0.5 } } },
  });
  const after = withSummary(view, summary);
  expect(after).toMatchObject({ state: 'completed', title: 'A title', usage: { input: 3, output: 4, cost: 0.5 } });
  expect(after.blocks).toBe(view.blocks);
});

test('a whole task replaces what was shown', () => {
  const view = fold(artifact('a', 'answer', { text: 'old' }));
  const task = { id: 't', contextId: 'c', status: { state: 'TASK_STATE_WORKING' }, artifacts: [{ artifactId: 'z', name: 'answer', parts: [{ text: 'new' }] }] };
  expect(apply(view, StreamResponse.fromJSON({ task }))?.blocks).toMatchObject([{ id: 'z', text: 'new' }]);
});

test('what a sub-agent does is kept under the call it works for', () => {
  const subagent = { session_id: 'ses_2', agent: 'explore', call_id: 'x' };
  const call = (state: string) => status('WORKING', { shared: { progress: { type: 'tool-call', status: state, tool: 'grep', call_id: 'y', subagent } } });
  const view = fold(call('running'), call('completed'));
  expect(view.subagents).toMatchObject([{ agent: 'explore', callId: 'x', calls: [{ tool: 'grep', status: 'completed' }] }]);
});

test('the todo list is the latest that was told', () => {
  const todo = (state: string) => status('WORKING', { shared: { progress: { type: 'todo', todos: [{ content: 'x', status: state }] } } });
  expect(fold(todo('pending'), todo('completed')).todos).toEqual([{ content: 'x', status: 'completed' }]);
});

test('the answer is the text of that phase, else the last', () => {
  const view = fold(artifact('a', 'answer', { text: 'first' }), artifact('b', 'answer', { text: 'last' }));
  expect(answerOf(view)).toBe('last');
  const phase = status('WORKING', { shared: { progress: { type: 'phase', status: 'answer', artifact_id: 'a' } } });
  expect(answerOf(apply(view, phase) as TaskView)).toBe('first');
});

test('messages of a person keep their files; those of the agent are no messages of a person', () => {
  const view = fromTask(
    Task.fromJSON({
      id: 't',
      contextId: 'c',
      history: [
        { messageId: 'm', role: 'ROLE_USER', parts: [{ text: 'look' }, { url: 'https://example.com/a.png', filename: 'a.png', mediaType: 'image/png' }] },
        { messageId: 'n', role: 'ROLE_AGENT', parts: [{ text: 'asks' }] },
      ],
    }),
  );
  expect(view.said).toMatchObject([{ id: 'm', text: 'look', files: [{ name: 'a.png', url: 'https://example.com/a.png' }] }]);
});

test('nothing that a stranger leaves out or gets wrong breaks the fold', () => {
  const odd = { shared: { interrupt: 7, progress: { type: 'todo', todos: 'x' }, session: null, usage: [] }, opencode: 'y' };
  expect(fold(status('WORKING', odd)).state).toBe('working');
  expect(fold(artifact('a', 'tool:bash', { text: 'no data' })).blocks).toMatchObject([{ kind: 'tool', tool: 'bash' }]);
});
