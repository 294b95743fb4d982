// A client driven by lines: each line of input is a call, each line of output says what came of it.
//
//   in   {"id": 1, "call": "stream", "params": {…}}          {"id": 1, "call": "leave"}
//   out  {"id": 1, "item": {…}} …  {"id": 1, "end": true}    {"id": 1, "error": {"name", "message"}}

import { createInterface } from 'node:readline';

export const [url, binding] = process.argv.slice(2);

/** fetch with the credential of the test, and the extensions that it activates, if any. */
export const authorized = (input, init = {}) => {
  const headers = new Headers(init.headers);
  const { A2A_TOKEN, EXTENSIONS, EXTENSIONS_HEADER } = process.env;
  headers.set('authorization', `Bearer ${A2A_TOKEN}`);
  if (EXTENSIONS) headers.set(EXTENSIONS_HEADER, EXTENSIONS);
  return fetch(input, { ...init, headers });
};

const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);

/** Serve `calls` (async functions, or async generators for streams) until the input ends. */
export async function serve(calls) {
  const leaving = new Map();

  const run = async ({ id, call, params }) => {
    const options = { signal: leaving.get(id).signal };
    try {
      const result = calls[call](params, options);
      if (Symbol.asyncIterator in result) {
        for await (const item of result) say({ id, item });
      } else {
        say({ id, item: await result });
      }
      say({ id, end: true });
    } catch (error) {
      if (options.signal.aborted) say({ id, end: true });
      else say({ id, error: { name: error.name, message: error.message } });
    } finally {
      leaving.delete(id);
    }
  };

  say({ id: 0, item: 'ready' });
  for await (const line of createInterface({ input: process.stdin })) {
    const asked = JSON.parse(line);
    if (asked.call === 'leave') {
      leaving.get(asked.id)?.abort();
    } else {
      leaving.set(asked.id, new AbortController());
      run(asked);
    }
  }
  process.exit(0);
}
