// The JavaScript SDK's 1.0 client: node v1.mjs URL JSONRPC|HTTP+JSON

import {
  CancelTaskRequest,
  DeleteTaskPushNotificationConfigRequest,
  GetTaskPushNotificationConfigRequest,
  GetTaskRequest,
  ListTaskPushNotificationConfigsRequest,
  SendMessageRequest,
  StreamResponse,
  SubscribeToTaskRequest,
  Task,
  TaskPushNotificationConfig,
} from '@a2a-js/sdk';
import {
  ClientFactory,
  DefaultAgentCardResolver,
  JsonRpcTransportFactory,
  RestTransportFactory,
} from '@a2a-js/sdk/client';

import { authorized as fetchImpl, binding, serve, url } from './lines.mjs';

const factory = new ClientFactory({
  transports: [new JsonRpcTransportFactory({ fetchImpl }), new RestTransportFactory({ fetchImpl })],
  preferredTransports: [binding],
  cardResolver: new DefaultAgentCardResolver({ fetchImpl }),
});
const client = await factory.createFromUrl(url);

async function* events(stream) {
  for await (const event of stream) yield StreamResponse.toJSON(event);
}

await serve({
  who: async () => [client.transport.protocolName, client.protocolVersion],
  send: async (params, options) =>
    Task.toJSON(await client.sendMessage(SendMessageRequest.fromJSON(params), options)),
  stream: (params, options) =>
    events(client.sendMessageStream(SendMessageRequest.fromJSON(params), options)),
  get: async (params, options) =>
    Task.toJSON(await client.getTask(GetTaskRequest.fromJSON(params), options)),
  cancel: async (params, options) =>
    Task.toJSON(await client.cancelTask(CancelTaskRequest.fromJSON(params), options)),
  resubscribe: (params, options) =>
    events(client.resubscribeTask(SubscribeToTaskRequest.fromJSON(params), options)),
  // Push configs: make one, read it, list all, delete it; what each call has answered.
  push: async (config, options) => {
    const one = { taskId: config.taskId, id: config.id };
    const made = await client.createTaskPushNotificationConfig(
      TaskPushNotificationConfig.fromJSON(config),
      options,
    );
    const read = await client.getTaskPushNotificationConfig(
      GetTaskPushNotificationConfigRequest.fromJSON(one),
      options,
    );
    const list = await client.listTaskPushNotificationConfig(
      ListTaskPushNotificationConfigsRequest.fromJSON({ taskId: config.taskId }),
      options,
    );
    if (config.id === 'gone') {
      await client.deleteTaskPushNotificationConfig(
        DeleteTaskPushNotificationConfigRequest.fromJSON(one),
        options,
      );
    }
    const shown = list.configs.map(TaskPushNotificationConfig.toJSON);
    return [TaskPushNotificationConfig.toJSON(made), TaskPushNotificationConfig.toJSON(read), shown];
  },
  // What a receiver does with a notification.
  receive: async (body) => StreamResponse.toJSON(StreamResponse.fromJSON(body)),
});
