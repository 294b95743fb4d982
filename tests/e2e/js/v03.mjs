// The JavaScript SDK's 0.3 client: node v03.mjs URL JSONRPC|HTTP+JSON

import {
  ClientFactory,
  DefaultAgentCardResolver,
  JsonRpcTransportFactory,
  RestTransportFactory,
} from 'a2a-js-sdk-0.3/client';

import { authorized as fetchImpl, binding, serve, url } from './lines.mjs';

const factory = new ClientFactory({
  transports: [new JsonRpcTransportFactory({ fetchImpl }), new RestTransportFactory({ fetchImpl })],
  preferredTransports: [binding],
  cardResolver: new DefaultAgentCardResolver({ fetchImpl }),
});
const client = await factory.createFromUrl(url);

await serve({
  who: async () => [client.transport.constructor.name.replace(/^_/, ''), '0.3'],
  send: (params, options) => client.sendMessage(params, options),
  stream: (params, options) => client.sendMessageStream(params, options),
  get: (params, options) => client.getTask(params, options),
  cancel: (params, options) => client.cancelTask(params, options),
  resubscribe: (params, options) => client.resubscribeTask(params, options),
  // Push configs: make one, read it, list all, delete it; what each call has answered.
  push: async ({ taskId, ...pushNotificationConfig }, options) => {
    const one = { id: taskId, pushNotificationConfigId: pushNotificationConfig.id };
    const made = await client.setTaskPushNotificationConfig(
      { taskId, pushNotificationConfig },
      options,
    );
    const read = await client.getTaskPushNotificationConfig(one, options);
    const list = await client.listTaskPushNotificationConfig({ id: taskId }, options);
    if (one.pushNotificationConfigId === 'gone') {
      await client.deleteTaskPushNotificationConfig(one, options);
    }
    return [made, read, list];
  },
});
