/** Telling a person who looks elsewhere: notification, badge, title of the page. */

import { effect } from '@preact/signals';

import { t } from '../i18n';
import { whatWasAsked } from '../state/task';
import { go, pathOf } from './route';
import { notifications } from './settings';
import { options, service, waitingNow } from './store';
import { subscribe, unsubscribe } from './webpush';

const told = new Set<string>();
/** Those that are worth telling of. */
const STATES = ['input-required', 'auth-required', 'completed', 'failed', 'canceled', 'rejected'] as const;

/** The policy of the page lets no script be loaded by a plain string: this is the one address that may. */
function scriptAddress(path: string): string {
  const types = (globalThis as { trustedTypes?: { createPolicy(name: string, rules: object): { createScriptURL(url: string): string } } })
    .trustedTypes;
  if (!types) return path;
  return types.createPolicy('console', { createScriptURL: (url: string) => url }).createScriptURL(path);
}

export async function installShell(): Promise<void> {
  if (!('serviceWorker' in navigator) || import.meta.env.DEV) return;
  navigator.serviceWorker.addEventListener('message', ({ data }) => {
    const path = (data as { open?: unknown } | undefined)?.open;
    if (typeof path === 'string' && path.startsWith(import.meta.env.BASE_URL)) go(path);
  });
  const scope = import.meta.env.BASE_URL.replace(/\/$/, ''); // the page is there without the slash, too
  await navigator.serviceWorker.register(scriptAddress(`${import.meta.env.BASE_URL}sw.js`), { scope }).catch(() => undefined);
}

export async function askForNotifications(): Promise<boolean> {
  if (!('Notification' in globalThis)) return false;
  const allowed = (await Notification.requestPermission()) === 'granted';
  notifications.value = allowed ? 'on' : 'off';
  if (allowed) await subscribe();
  return allowed;
}

export function stopNotifications(): void {
  notifications.value = 'off';
  void unsubscribe();
}

export function tellOutside(): void {
  let wasIn = false;
  effect(() => {
    const isIn = service.value !== undefined;
    if (isIn && notifications.peek() === 'on') void subscribe();
    if (wasIn && !isIn) void unsubscribe(); // who has left, or whose token has expired, is not told any more
    wasIn = isIn;
  });
  effect(() => void keepWords().catch(() => undefined));
  effect(() => {
    const count = waitingNow.value.length;
    document.title = `${count ? `(${count}) ` : ''}${options.value.title}`;
    const badge = navigator as { setAppBadge?(count: number): Promise<void>; clearAppBadge?(): Promise<void> };
    void (count ? badge.setAppBadge?.(count) : badge.clearAppBadge?.())?.catch(() => undefined);
    for (const { task, interrupt } of waitingNow.value) {
      if (told.has(interrupt.id)) continue;
      told.add(interrupt.id);
      void tell(task.title || t('conversation'), whatWasAsked(interrupt), pathOf('chat', task.contextId), interrupt.id);
    }
  });
}

/** The service worker speaks while no page is there: it gets its words from the last one. */
async function keepWords(): Promise<void> {
  const words = { title: options.value.title, ...Object.fromEntries(STATES.map((each) => [each, t(`state.${each}`)])) };
  const cache = await globalThis.caches?.open('words');
  await cache?.put(`${import.meta.env.BASE_URL}words`, new Response(JSON.stringify(words)));
}

async function tell(title: string, body: string, path: string, tag: string): Promise<void> {
  if (notifications.peek() !== 'on' || document.visibilityState === 'visible') return;
  if (!('Notification' in globalThis) || Notification.permission !== 'granted') return;
  const details = { body, tag, data: { path }, icon: `${import.meta.env.BASE_URL}icon-192.png` };
  const worker = await navigator.serviceWorker?.getRegistration();
  if (worker) await worker.showNotification(title, details);
  else new Notification(title, details).onclick = () => go(path);
}
