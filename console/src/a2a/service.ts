/** The service as the console uses it: the SDK's client over JSON-RPC, and the extension methods beside it. */

import './buffer';

import {
  type AgentCard,
  CancelTaskRequest,
  GetTaskRequest,
  ListTasksRequest,
  type ListTasksResponse,
  SendMessageRequest,
  type StreamResponse,
  SubscribeToTaskRequest,
  type Task,
} from '@a2a-js/sdk';
import {
  type Client,
  ClientFactory,
  DefaultAgentCardResolver,
  JsonRpcTransportFactory,
} from '@a2a-js/sdk/client';

import { Failure, failureOf, refused, type RpcError } from './failure';
import { readEvents, type ServerEvent } from './sse';

const SPECIFICATIONS = 'https://github.com/Intelligent-Internet/opencode-a2a/blob/main/docs/extension-specifications.md';
/** Everything the agent does, its requests included, and one stream for all tasks. */
export const EXTENSIONS = [
  'shared-stream-hints-v1',
  'shared-interactive-interrupt-v1',
  'opencode-task-watch-v1',
].map((each) => `${SPECIFICATIONS}#${each}`);

export type Json = Record<string, unknown>;

/** What the SDK's JSON-RPC transport offers besides the methods of A2A. */
interface ExtensionTransport {
  callExtensionMethod(method: string, params: unknown): Promise<unknown>;
}

export class Service {
  private constructor(
    readonly root: string,
    private readonly client: Client,
    private readonly authorized: typeof fetch,
    readonly card: AgentCard,
  ) {}

  /** Connect with a token; fails with kind `login` where the service does not accept it. */
  static async connect(root: string, token: string): Promise<Service> {
    const authorized: typeof fetch = async (input, init = {}) => {
      const headers = new Headers(init.headers);
      headers.set('authorization', `Bearer ${token}`);
      headers.set('a2a-version', '1.0'); // the SDK leaves it out of calls of extension methods
      headers.set('a2a-extensions', EXTENSIONS.join(','));
      const response = await reach(input, { ...init, headers });
      if (response.status === 401) throw new Failure('The token was not accepted.', 'login', 401);
      return response;
    };
    return attempt(async () => {
      const resolver = new DefaultAgentCardResolver({ fetchImpl: reach });
      const open = await resolver.resolve(root);
      // The card names the service's own address; this page came from where the service really is for this browser.
      open.supportedInterfaces = open.supportedInterfaces.map((each) => ({ ...each, url: root }));
      const factory = new ClientFactory({ transports: [new JsonRpcTransportFactory({ fetchImpl: authorized })] });
      const client = await factory.createFromAgentCard(open);
      const card = await client.transport.getExtendedAgentCard({ tenant: '' });
      return new Service(root, client, authorized, card);
    });
  }

  send(request: unknown): Promise<Task> {
    return attempt(async () => (await this.client.sendMessage(SendMessageRequest.fromJSON(request))) as Task);
  }

  get(id: string): Promise<Task> {
    return attempt(() => this.client.getTask(GetTaskRequest.fromJSON({ id })));
  }

  list(request: unknown): Promise<ListTasksResponse> {
    return attempt(() => this.client.listTasks(ListTasksRequest.fromJSON(request)));
  }

  cancel(id: string): Promise<Task> {
    return attempt(() => this.client.cancelTask(CancelTaskRequest.fromJSON({ id })));
  }

  /** The events of one task after a number of its log; for an ended task the stream ends by itself. */
  events(id: string, after: number, signal: AbortSignal): AsyncGenerator<StreamResponse> {
    const options = { signal, serviceParameters: { 'Last-Event-ID': String(after) } };
    return this.client.resubscribeTask(SubscribeToTaskRequest.fromJSON({ id }), options);
  }

  /** An extension method; its result. */
  async call<Result = Json>(method: string, params: unknown = {}): Promise<Result> {
    return attempt(async () => {
      const transport = this.client.transport as unknown as ExtensionTransport;
      return unwrap(await transport.callExtensionMethod(method, params)) as Result;
    });
  }

  /** An extension method that answers with a stream: each event's id and result. */
  async *stream(method: string, params: unknown, after: string, signal: AbortSignal): AsyncGenerator<ServerEvent> {
    const request = rpc(method, params);
    const headers = { ...request.headers, accept: 'text/event-stream', ...(after ? { 'Last-Event-ID': after } : {}) };
    const response = await this.authorized(this.root, { ...request, headers, signal });
    if (!response.headers.get('content-type')?.startsWith('text/event-stream')) {
      unwrap(await response.json());
      throw new Failure('The service did not answer with a stream.', 'refused');
    }
    if (response.body) yield* readEvents(response.body);
  }

  /** A plain resource of the service, such as its OpenAPI description. */
  async read(path: string): Promise<Json> {
    return attempt(async () => (await (await this.authorized(new URL(path, this.root))).json()) as Json);
  }

  /** The extension methods that the card declares, and that are not switched off. */
  methods(): Set<string> {
    const declared = this.card.capabilities?.extensions ?? [];
    const methods = declared.flatMap((each) => Object.entries((each.params?.methods ?? {}) as Record<string, Json>));
    return new Set(methods.filter(([, facts]) => facts.availability !== 'disabled').map(([name]) => name));
  }
}

/** Fetch. A proxy that does not reach the service answers in its place: that is nobody's refusal. */
const reach: typeof fetch = async (input, init) => {
  const response = await fetch(input, init);
  const isJson = response.headers.get('content-type')?.includes('json') ?? false;
  if (response.status >= 502 && response.status <= 504 && !isJson) throw new Failure(`HTTP ${response.status}`, 'network', response.status);
  return response;
};

let requests = 0;

function rpc(method: string, params: unknown): RequestInit & { headers: Record<string, string> } {
  requests += 1;
  return {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ jsonrpc: '2.0', id: requests, method, params }),
  };
}

/** The result of a JSON-RPC answer; an error is thrown. */
export function unwrap(answer: unknown): unknown {
  const { result, error } = answer as { result?: unknown; error?: RpcError };
  if (error) throw refused(error);
  return result;
}

async function attempt<Result>(work: () => Promise<Result>): Promise<Result> {
  try {
    return await work();
  } catch (error) {
    throw failureOf(error);
  }
}
