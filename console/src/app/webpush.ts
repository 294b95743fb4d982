/** Being told while the console is closed: the browser's push service gets the push notifications of each task that is sent from
 * here, encrypted for this browser. Where the browser or the service offers none of it, notifications need an open page. */

import { signal } from '@preact/signals';

import type { Json } from '../a2a/service';
import { service } from './store';

/** What a message says about where to push; undefined while nothing is pushed. */
export const pushTarget = signal<Json | undefined>(undefined);

const PUSH = 'opencode-push-v1';
const PROFILE = 'a2a-compatibility-profile-v1';
const SCHEME = 'WebPush';

function isOffered(): boolean {
  const capabilities = service.peek()?.card.capabilities;
  const declared = (name: string) => capabilities?.extensions.find((each) => each.uri.endsWith(`#${name}`))?.params as Json | undefined;
  const behaviors = declared(PROFILE)?.service_behaviors as { push_notifications?: { challenge?: boolean } } | undefined;
  // A push service does not answer the challenge that some deployments ask of receivers.
  const challenges = behaviors?.push_notifications?.challenge === true;
  return capabilities?.pushNotifications === true && declared(PUSH)?.web_push !== undefined && !challenges;
}

/** Subscribe this browser, or find its subscription again; false where that cannot be. */
export async function subscribe(): Promise<boolean> {
  pushTarget.value = undefined;
  if (!isOffered() || !('serviceWorker' in navigator) || !('PushManager' in globalThis)) return false;
  try {
    const [worker, key] = await Promise.all([navigator.serviceWorker.ready, serverKey()]);
    const found = (await current(worker.pushManager, key)) ?? (await worker.pushManager.subscribe({ userVisibleOnly: true, applicationServerKey: key }));
    const { endpoint, keys } = found.toJSON();
    const credentials = `${keys?.p256dh}.${keys?.auth}`;
    pushTarget.value = { id: 'console', url: endpoint, authentication: { scheme: SCHEME, credentials } };
    return true;
  } catch {
    return false; // no push service, or the person does not want it
  }
}

export async function unsubscribe(): Promise<void> {
  pushTarget.value = undefined;
  const worker = await navigator.serviceWorker?.getRegistration();
  await (await worker?.pushManager?.getSubscription())?.unsubscribe().catch(() => undefined);
}

/** A subscription is for one key of the service: with another it cannot be used. */
async function current(manager: PushManager, key: Uint8Array<ArrayBuffer>): Promise<PushSubscription | undefined> {
  const found = await manager.getSubscription();
  if (!found) return undefined;
  const known = new Uint8Array(found.options.applicationServerKey ?? new ArrayBuffer(0));
  if (known.length === key.length && known.every((each, at) => each === key[at])) return found;
  await found.unsubscribe();
  return undefined;
}

/** The key with which the service signs, as an uncompressed point. */
async function serverKey(): Promise<Uint8Array<ArrayBuffer>> {
  const { keys } = (await service.peek()?.read('/.well-known/jwks.json')) as { keys: { x: string; y: string }[] };
  const [first] = keys;
  return Uint8Array.from([4, ...bytesOf(first?.x ?? ''), ...bytesOf(first?.y ?? '')]);
}

function bytesOf(base64url: string): number[] {
  return [...atob(base64url.replaceAll('-', '+').replaceAll('_', '/'))].map((each) => each.charCodeAt(0));
}
