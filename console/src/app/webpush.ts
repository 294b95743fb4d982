/** Being told while the console is closed: the browser's push service gets the push notifications of each task that is sent from
 * here, encrypted for this browser. Where the browser or the service offers none of it, notifications need an open page. */

import { signal } from '@preact/signals';

import type { Json } from '../a2a/service';
import { t } from '../i18n';
import { keep, recall } from './keep';
import { notice, service } from './store';

/** What a message says about where to push; undefined while nothing is pushed. */
export const pushTarget = signal<Json | undefined>(undefined);

const REFUSED = 'pushRefused'; // the person has been told so
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

let ended: Promise<void> = Promise.resolve();

/** Subscribe this browser, or find its subscription again; false where that cannot be. */
export async function subscribe(): Promise<boolean> {
  pushTarget.value = undefined;
  await ended; // somebody may just have logged out
  if (!isOffered() || !('serviceWorker' in navigator) || !('PushManager' in globalThis)) return false;
  try {
    const [worker, key] = await Promise.all([navigator.serviceWorker.ready, serverKey()]);
    const found = (await current(worker.pushManager, key)) ?? (await worker.pushManager.subscribe({ userVisibleOnly: true, applicationServerKey: key }));
    if (!service.peek()) {
      await found.unsubscribe(); // they have left meanwhile
      return false;
    }
    const { endpoint, keys } = found.toJSON();
    const credentials = `${keys?.p256dh}.${keys?.auth}`;
    pushTarget.value = { id: 'console', url: endpoint, authentication: { scheme: SCHEME, credentials } };
    return true;
  } catch {
    return false; // no push service, or the person does not want it
  }
}

/** The service does not push to the push service of this browser. Said once on a device. */
export function pushRefused(): void {
  pushTarget.value = undefined;
  if (!recall(REFUSED)) notice.value = t('pushRefused');
  keep(REFUSED, 'yes');
}

/** End the subscription of this browser, and take away what it shows: the next person must not see it. */
export function unsubscribe(): Promise<void> {
  pushTarget.value = undefined;
  keep(REFUSED, '');
  ended = end().catch(() => undefined);
  return ended;
}

async function end(): Promise<void> {
  const worker = await navigator.serviceWorker?.getRegistration();
  for (const each of (await worker?.getNotifications?.()) ?? []) each.close();
  await (await worker?.pushManager?.getSubscription())?.unsubscribe();
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
