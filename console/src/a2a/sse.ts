/** Server-Sent Events of a fetch response: each event's id and data. Comments are reported as events without data. */

export interface ServerEvent {
  id?: string;
  data?: string;
}

export async function* readEvents(body: ReadableStream<Uint8Array>): AsyncGenerator<ServerEvent> {
  const reader = body.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader();
  const parser = new EventParser();
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      yield* parser.feed(value);
    }
  } finally {
    void reader.cancel().catch(() => undefined);
  }
}

/** Pieces of text in, whole events out. */
export class EventParser {
  #rest = '';
  #id: string | undefined;
  #data: string[] = [];

  *feed(piece: string): Generator<ServerEvent> {
    const lines = (this.#rest + piece).split('\n');
    this.#rest = lines.pop() ?? '';
    for (const raw of lines) {
      const line = raw.endsWith('\r') ? raw.slice(0, -1) : raw;
      if (line === '') yield* this.#end();
      else if (line.startsWith(':')) yield {};
      else this.#field(line);
    }
  }

  *#end(): Generator<ServerEvent> {
    if (this.#data.length) yield { id: this.#id, data: this.#data.join('\n') };
    this.#data = [];
    this.#id = undefined;
  }

  #field(line: string): void {
    const colon = line.indexOf(':');
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? '' : line.slice(line[colon + 1] === ' ' ? colon + 2 : colon + 1);
    if (name === 'data') this.#data.push(value);
    else if (name === 'id') this.#id = value;
  }
}
