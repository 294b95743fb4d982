// Keeps the shell of the console (page, scripts, styles, icons), so that it opens at once and says honestly that the
// service cannot be reached. Nothing of the API is ever kept: those requests are not touched.
const SHELL = 'shell-v2';
const PAGE = '/console/';

self.addEventListener('install', (event) => event.waitUntil(keepShell().then(() => self.skipWaiting())));
self.addEventListener('activate', (event) => event.waitUntil(forgetOthers().then(() => self.clients.claim())));

self.addEventListener('fetch', (event) => {
  const { request } = event;
  const url = new URL(request.url);
  const own = url.pathname === '/console' || url.pathname.startsWith(PAGE);
  if (request.method !== 'GET' || url.origin !== location.origin || !own) return;
  if (url.pathname.endsWith('/config.json')) return;
  if (url.pathname.includes('/assets/')) event.respondWith(kept(request));
  else event.respondWith(request.mode === 'navigate' ? page() : fresh(request.url));
});

// The page and what it names, also what was loaded before this worker was there.
async function keepShell(response) {
  const found = response ?? (await fetch(PAGE));
  if (!found.ok) return;
  const named = [...(await found.clone().text()).matchAll(/(?:src|href)="(\/console\/[^"]+)"/g)].map(([, path]) => path);
  const cache = await caches.open(SHELL);
  await Promise.all(named.map(async (path) => (await cache.match(path)) ?? cache.add(path)));
  await cache.put(PAGE, found);
}

async function forgetOthers() {
  for (const name of await caches.keys()) if (name !== SHELL) await caches.delete(name);
}

// Files with a hash in their name never change.
async function kept(request) {
  const cache = await caches.open(SHELL);
  return (await cache.match(request)) ?? store(cache, request.url, await fetch(request));
}

async function fresh(address) {
  const cache = await caches.open(SHELL);
  try {
    return await store(cache, address, await fetch(address));
  } catch (error) {
    const found = await cache.match(address);
    if (found) return found;
    throw error;
  }
}

// Every page is the same one. It is asked for by this worker, not by whoever has the link: the service answers no other
// sites, and would take the request of a worker that passes on such a navigation for theirs.
// A page of another version names other files: those of the one before are not needed any more.
async function page() {
  const cache = await caches.open(SHELL);
  const before = await cache.match(PAGE);
  const response = await fresh(PAGE);
  if (before && before.headers.get('etag') !== response.headers.get('etag')) {
    for (const each of await cache.keys()) if (each.url.includes('/assets/')) await cache.delete(each);
    void keepShell(response.clone()).catch(() => undefined);
  }
  return response;
}

async function store(cache, key, response) {
  if (response.ok && response.type === 'basic') await cache.put(key, response.clone());
  return response;
}

// From the service, through the push service of the browser: a task waits for a person, or has ended.
self.addEventListener('push', (event) => event.waitUntil(tell(event.data?.json() ?? {})));

const WORDS = { INPUT_REQUIRED: 'The agent waits for you', COMPLETED: 'The agent is done', FAILED: 'The agent has failed' };

async function tell({ statusUpdate, task }) {
  const told = statusUpdate ?? task ?? {};
  const state = String(told.status?.state ?? '').replace('TASK_STATE_', '');
  const contextId = String(told.contextId ?? '');
  const pages = await self.clients.matchAll({ type: 'window' });
  if (pages.some((each) => each.visibilityState === 'visible')) return; // who looks at the console sees it there
  const asked = told.metadata?.shared?.interrupt;
  const [said] = told.status?.message?.parts ?? [];
  await self.registration.showNotification(told.metadata?.shared?.session?.title ?? WORDS[state] ?? 'OpenCode', {
    body: String(said?.text ?? WORDS[state] ?? '').slice(0, 300),
    tag: asked?.request_id ?? contextId, // the page tells of the same request, if it is open
    data: { path: `${PAGE}chat/${encodeURIComponent(contextId)}` },
    icon: `${PAGE}icon-192.png`,
  });
}

self.addEventListener('notificationclick', (event) => {
  event.notification.close();
  const target = event.notification.data?.path ?? PAGE;
  event.waitUntil(
    self.clients.matchAll({ type: 'window' }).then(async (pages) => {
      const page = pages.find((each) => new URL(each.url).pathname.startsWith('/console'));
      if (!page) return self.clients.openWindow(target);
      page.postMessage({ open: target });
      return page.focus();
    }),
  );
});
