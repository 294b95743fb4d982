/** The one stream of the page: every task of the caller, and every event of the conversations that are open.
 *
 * It comes back by itself with the id of the last event it has seen, so nothing is lost and nothing comes twice, whether
 * the network, the laptop's lid or the service was the reason. */

import { StreamResponse, Task } from '@a2a-js/sdk';

import { failureOf } from './failure';
import { type Service, unwrap } from './service';

export type Link = 'connecting' | 'live' | 'reconnecting' | 'refused';

export interface Listener {
  summary(task: Task): void;
  event(event: StreamResponse): void;
  ready(): void;
  link(state: Link): void;
  /** The service refuses the stream for good: the token, or the stream itself. */
  refused(error: unknown): void;
}

const SILENCE_MS = 10_000; // a comment comes at least every three seconds
const FIRST_PAUSE_MS = 250;
const LONGEST_PAUSE_MS = 5_000;

export class Watch {
  #after = '';
  #contexts: readonly string[] = [];
  #current: AbortController | undefined;
  #pause = FIRST_PAUSE_MS;
  #stopped = false;
  #wake: (() => void) | undefined;

  constructor(
    private readonly service: Service,
    private readonly listener: Listener,
    /** Begin with the tasks that have changed since then, besides those that have not ended. */
    private readonly since: string,
  ) {}

  start(): void {
    void this.#run();
  }

  stop(): void {
    this.#stopped = true;
    this.#current?.abort();
    this.#wake?.();
  }

  /** Follow other conversations; the stream goes on from where it is. */
  follow(contexts: readonly string[]): void {
    if (contexts.join() === this.#contexts.join()) return;
    this.#contexts = contexts;
    this.#current?.abort();
    this.#wake?.();
  }

  /** Try again at once: the browser is online again, or the page is seen again. */
  hurry(): void {
    this.#pause = FIRST_PAUSE_MS;
    this.#wake?.();
  }

  async #run(): Promise<void> {
    this.listener.link('connecting');
    while (!this.#stopped) {
      const attempt = new AbortController();
      this.#current = attempt;
      try {
        await this.#read(attempt);
      } catch (error) {
        if (attempt.signal.aborted && !attempt.signal.reason?.dead) continue;
        const failure = failureOf(error);
        if (failure.kind !== 'network') {
          this.listener.link('refused');
          this.listener.refused(failure);
          if (failure.kind === 'login') return;
        }
      }
      if (attempt.signal.aborted && !attempt.signal.reason?.dead) continue;
      this.listener.link('reconnecting');
      await this.#rest();
    }
  }

  async #read(attempt: AbortController): Promise<void> {
    let timer = 0;
    const alive = () => {
      clearTimeout(timer);
      timer = setTimeout(() => attempt.abort({ dead: true }), SILENCE_MS) as unknown as number;
    };
    alive();
    try {
      const params = { follow: { contexts: this.#contexts }, ...(this.#after ? {} : { since: this.since }) };
      for await (const { id, data } of this.service.stream('opencode.tasks.watch', params, this.#after, attempt.signal)) {
        alive();
        this.#pause = FIRST_PAUSE_MS;
        if (data === undefined) this.listener.link('live');
        else this.#take(unwrap(JSON.parse(data)) as Item);
        if (id) this.#after = id;
      }
    } finally {
      clearTimeout(timer);
    }
  }

  #take(item: Item): void {
    this.listener.link('live');
    if (item.summary) this.listener.summary(Task.fromJSON(item.summary));
    else if (item.event) this.listener.event(StreamResponse.fromJSON(item.event));
    else if (item.ready) this.listener.ready();
  }

  #rest(): Promise<void> {
    const pause = this.#pause * (0.75 + Math.random() / 2);
    this.#pause = Math.min(this.#pause * 2, LONGEST_PAUSE_MS);
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, pause);
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}

interface Item {
  summary?: unknown;
  event?: unknown;
  ready?: boolean;
}
