import { expect, test } from 'vitest';

import { failureOf, refused } from '../src/a2a/failure';
import { EventParser } from '../src/a2a/sse';
import { group, waiting } from '../src/state/conversations';
import { curlRpc } from '../src/state/curl';
import { fieldsOf, valueOf } from '../src/state/form';
import { filesOf, sideBySide } from '../src/state/patch';
import { beforeTasks } from '../src/state/session';
import { empty, type State, type TaskView } from '../src/state/task';
import { chartOf, daysBetween } from '../src/state/usage';
import { cut, isOpenCode } from '../src/text/growing';
import { lex, safeAddress } from '../src/text/markdown';

test('events are read whatever the pieces they come in', () => {
  const whole = 'id: 1\ndata: {"a":1}\n\n: keep-alive\n\nid: 2\r\ndata: x\ndata: y\r\n\n';
  for (const size of [1, 3, 7, whole.length]) {
    const parser = new EventParser();
    const found = [];
    for (let at = 0; at < whole.length; at += size) found.push(...parser.feed(whole.slice(at, at + size)));
    expect(found).toEqual([{ id: '1', data: '{"a":1}' }, {}, { id: '2', data: 'x\ny' }]);
  }
});

test('what is finished of a growing text never changes: all pieces together are the whole', () => {
  const text = '# Title\n\nSome *words*.\n\n```py\nx = 1\n\ny = 2\n```\n\n- a\n- b\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\nEnd.';
  const finished: string[] = [];
  let done = 0;
  for (let length = 1; length <= text.length; length += 1) {
    const { frozen, length: cutAt } = cut(text.slice(done, length));
    finished.push(...frozen.filter((each) => each.type !== 'space').map((each) => `${each.type}:${each.raw.trim()}`));
    done += cutAt;
  }
  finished.push(...cut(text.slice(done)).tail.filter((each) => each.type !== 'space').map((each) => `${each.type}:${each.raw.trim()}`));
  expect(finished).toEqual(lex(text).filter((each) => each.type !== 'space').map((each) => `${each.type}:${each.raw.trim()}`));
});

test.each(['- item $\n', '$. item\n', '* item $\n\n  more\n'])('a list without end is finished item by item: %s', (item) => {
  const text = Array.from({ length: 200 }, (_, at) => item.replace('$', String(at + 1))).join('');
  const items: string[] = [];
  let done = 0;
  let longest = 0;
  const take = (tokens: ReturnType<typeof lex>) => {
    for (const each of tokens) if (each.type === 'list') for (const one of each.items) items.push(one.raw.trim());
  };
  for (let length = 0; length <= text.length; length += 7) {
    const { frozen, length: cutAt, tail } = cut(text.slice(done, length));
    take(frozen);
    done += cutAt;
    longest = Math.max(longest, tail.reduce((sum, each) => sum + each.raw.length, 0));
  }
  const { frozen, tail } = cut(text.slice(done));
  take([...frozen, ...tail]);
  expect(items).toEqual(lex(text).flatMap((each) => (each.type === 'list' ? each.items.map((one: { raw: string }) => one.raw.trim()) : [])));
  expect(longest).toBeLessThan(text.length / 2);
});

test('a list that does not count is not taken apart', () => {
  const text = '1. same\n'.repeat(100);
  expect(cut(text).frozen).toEqual([]);
});

test('a code block is open until its fence has come', () => {
  expect(isOpenCode(lex('```js\nlet x')[0])).toBe(true);
  expect(isOpenCode(lex('```js\nlet x\n```')[0])).toBe(false);
  expect(isOpenCode(lex('words')[0])).toBe(false);
});

test('only addresses that cannot run anything are followed', () => {
  expect(safeAddress('https://example.com/a')).toBe('https://example.com/a');
  for (const bad of ['javascript:alert(1)', 'data:text/html,x', 'vbscript:x', '/console/tasks', ' JaVaScRiPt:alert(1)', 'blob:x', 'file:///etc/passwd']) {
    expect(safeAddress(bad)).toBeUndefined();
  }
});

const PATCH = `Index: a.py
===================================================================
--- a.py\t
+++ a.py\t
@@ -1,3 +1,3 @@
 same
-old
+new
 end
Index: b.py
===================================================================
--- b.py\t
+++ b.py\t
@@ -0,0 +1,1 @@
+print(1)
`;

test('a patch is shown file by file, with the lines of both sides', () => {
  const [a, b] = filesOf(PATCH);
  expect([a?.path, a?.added, a?.removed, b?.path]).toEqual(['a.py', 1, 1, 'b.py']);
  expect(sideBySide(a?.rows ?? []).map(({ left, right }) => [left?.text, right?.text])).toContainEqual(['old', 'new']);
  expect((a?.patch ?? '') + (b?.patch ?? '')).toBe(PATCH);
});

test('what is no patch is shown as it is', () => {
  const text = '@@ -1,9 +1,9 @@\nbroken';
  expect(filesOf(text).flatMap((each) => each.rows.map((row) => row.text)).join('\n')).toContain('broken');
});

const task = (id: string, contextId: string, state: State, at: string, more: Partial<TaskView> = {}): TaskView => ({
  ...empty(id, contextId),
  state,
  at,
  ...more,
});

test('a conversation is as urgent as its most urgent task', () => {
  const [first, second] = group([
    task('1', 'a', 'completed', '2026-01-01'),
    task('2', 'a', 'input-required', '2026-01-02'),
    task('3', 'a', 'submitted', '2026-01-03'),
    task('4', 'b', 'failed', '2026-01-04'),
  ]);
  expect([first?.contextId, first?.state]).toEqual(['b', 'failed']);
  expect([second?.state, second?.tasks.map((each) => each.id)]).toEqual(['input-required', ['1', '2', '3']]);
});

test('a session that no task tells of is a conversation, and gives a conversation its title', () => {
  const found = group([task('1', 'a', 'completed', '2026-01-01', { title: 'old' })], [
    { id: 'ses_1', contextId: 'a', title: 'new', at: '2026-01-01' },
    { id: 'ses_2', contextId: 'b', title: 'fork', at: '2026-01-02' },
  ]);
  expect(found.map((each) => [each.contextId, each.title])).toEqual([['b', 'fork'], ['a', 'new']]);
});

test('everything that waits is listed, the oldest first', () => {
  const interrupt = (id: string) => ({ id }) as TaskView['interrupts'][number];
  const found = waiting([
    task('2', 'b', 'input-required', '2026-01-02', { interrupts: [interrupt('q')] }),
    task('1', 'a', 'input-required', '2026-01-01', { interrupts: [interrupt('p'), interrupt('r')] }),
  ]);
  expect(found.map((each) => each.interrupt.id)).toEqual(['p', 'r', 'q']);
});

test('messages that tasks tell themselves are not shown twice', () => {
  const said = { id: '', messageId: '', text: '', data: [], files: [] };
  const messages = [
    { id: 'm1', at: '', said, blocks: [] },
    { id: 'm2', at: '', blocks: [] },
    { id: 'm3', at: '', said, blocks: [] },
    { id: 'm4', at: '', blocks: [] },
  ];
  expect(beforeTasks(messages, new Set(['m4'])).map((each) => each.id)).toEqual(['m1', 'm2']);
  expect(beforeTasks(messages, new Set())).toHaveLength(4);
});

const SCHEMA = {
  components: {
    schemas: {
      Rename: {
        properties: {
          session_id: { type: 'string' },
          request: { $ref: '#/components/schemas/Request' },
          limit: { anyOf: [{ type: 'integer' }, { type: 'null' }] },
          reply: { enum: ['once', 'always'] },
          parts: { type: 'array' },
        },
        required: ['session_id'],
      },
      Request: { properties: { title: { type: 'string', description: 'The new one' } } },
    },
  },
};

test('a form has a field for each value of a schema, and gives them back with their types', () => {
  const fields = fieldsOf({ $ref: '#/components/schemas/Rename' }, SCHEMA);
  expect(fields.map((each) => [each.path, each.kind, each.required])).toEqual([
    ['session_id', 'text', true],
    ['request.title', 'text', false],
    ['limit', 'number', false],
    ['reply', 'choice', false],
    ['parts', 'json', false],
  ]);
  const filled = new Map([['session_id', 'ses_1'], ['request.title', 'T'], ['limit', '3'], ['parts', '[1]']]);
  expect(valueOf(fields, filled)).toEqual({ session_id: 'ses_1', request: { title: 'T' }, limit: 3, parts: [1] });
  expect(() => valueOf(fields, new Map([['parts', '[']]))).toThrow('parts');
});

test('a curl command quotes what a shell would read, and never holds a token', () => {
  const text = curlRpc('http://x', 'GetTask', { id: "it's" });
  expect(text).toContain(`it'\\''s`);
  expect(text).toContain('$TOKEN');
});

test('days without usage are bars without height', () => {
  const item = { day: '2026-01-02', model: 'm', principal: 'p', steps: 1, input_tokens: 1, output_tokens: 1, total_tokens: 2, cost: 0.5 };
  const chart = chartOf([item, { ...item, model: 'n', cost: 1 }], '2026-01-01', '2026-01-03', 'model', 'cost');
  expect(chart.bars.map((each) => each.total)).toEqual([0, 1.5, 0]);
  expect([chart.names, chart.highest]).toEqual([['n', 'm'], 1.5]);
  expect(daysBetween('2026-02-27', '2026-03-01')).toEqual(['2026-02-27', '2026-02-28', '2026-03-01']);
});

test('a refusal names what in the request was wrong, whoever has noticed it', () => {
  const data = [
    { reason: 'INVALID_PARAMS' },
    { fieldViolations: [{ field: 'configuration.taskPushNotificationConfig.url', description: 'is not allowed' }] },
  ];
  const direct = refused({ code: -32602, message: 'No.', data });
  const bySdk = failureOf({ name: 'JsonRpcTransportError', message: 'No.', envelopeCode: -32602, data });
  for (const each of [direct, bySdk]) {
    expect(each.fields).toEqual(['configuration.taskPushNotificationConfig.url']);
    expect(each.reason).toBe('INVALID_PARAMS');
    expect(each.kind).toBe('refused');
  }
  expect(refused({ code: -32057, message: 'No.' }).kind).toBe('login');
});
