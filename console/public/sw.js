// Keeps the shell of the console (page, scripts, styles, icons), so that it opens at once and says honestly that the
// service cannot be reached. Nothing of the API is ever kept: those requests are not touched.
const SHELL = 'shell-v2';
const WORDS = 'words'; // the page keeps here what to call the states, in the language of the person
const PAGE = '/console/';

self.addEventListener('install', (event) => event.waitUntil(fetch(PAGE).then(keepShell).then(() => self.skipWaiting())));
self.addEventListener('activate', (event) => event.waitUntil(forgetOthers().then(() => self.clients.claim())));

self.addEventListener('fetch', (event) => {
  const { request } = event;
  const url = new URL(request.url);
  const own = url.pathname === '/console' || url.pathname.startsWith(PAGE);
  if (request.method !== 'GET' || url.origin !== location.origin || !own) return;
  if (url.pathname.endsWith('/config.json')) return;
  if (url.pathname.includes('/assets/')) event.respondWith(kept(request));
  else event.respondWith(request.mode === 'navigate' ? page(event) : fresh(request.url));
});

// What a page names; a page that names none of our scripts comes from somebody else, such as a proxy.
const namedIn = (text) => [...text.matchAll(/(?:src|href)="(\/console\/[^"]+)"/g)].map(([, path]) => path);
const isAsset = (path) => path.includes('/assets/');

// The page and what it names, also what was loaded before this worker was there. The page comes last: whoever finds it
// finds everything else.
async function keepShell(response) {
  if (!response.ok) return;
  const named = namedIn(await response.clone().text());
  if (!named.some(isAsset)) return;
  const cache = await caches.open(SHELL);
  await Promise.all(named.map(async (path) => (await cache.match(path)) ?? cache.add(path)));
  await cache.put(PAGE, response);
}

// A page of another version names other files. Those of the one before are needed until the new ones are here.
async function renew(before, response) {
  const cache = await caches.open(SHELL);
  const old = (await cache.keys()).filter((each) => isAsset(each.url));
  const text = await response.clone().text();
  await keepShell(response);
  const named = namedIn(text);
  if (!named.some(isAsset) || text === (await before?.text())) return;
  for (const each of old) if (!named.includes(new URL(each.url).pathname)) await cache.delete(each);
}

async function forgetOthers() {
  for (const name of await caches.keys()) if (name !== SHELL && name !== WORDS) await caches.delete(name);
}

// Files with a hash in their name never change.
async function kept(request) {
  const cache = await caches.open(SHELL);
  return (await cache.match(request)) ?? store(cache, request.url, await fetch(request));
}

async function fresh(address) {
  const cache = await caches.open(SHELL);
  const response = await current(address, await cache.match(address));
  return store(cache, address, response);
}

// What the service has now. While it is away, or a proxy says so in its place, what is kept.
async function current(address, before) {
  try {
    const response = await fetch(address);
    return before && response.status >= 500 ? before : response;
  } catch (error) {
    if (before) return before;
    throw error;
  }
}

// Every page is the same one. It is asked for by this worker, not by whoever has the link: the service answers no other
// sites, and would take the request of a worker that passes on such a navigation for theirs.
async function page(event) {
  const before = await (await caches.open(SHELL)).match(PAGE);
  const response = await current(PAGE, before);
  if (response !== before && response.ok) event.waitUntil(renew(before?.clone(), response.clone()).catch(() => undefined));
  return response;
}

async function store(cache, key, response) {
  if (response.ok && response.type === 'basic') await cache.put(key, response.clone());
  return response;
}

// From the service, through the push service of the browser: a task waits for a person, or has ended.
self.addEventListener('push', (event) => event.waitUntil(tell(event.data?.json() ?? {})));

const ENGLISH = { title: 'OpenCode', 'input-required': 'Waits for you', completed: 'Completed', failed: 'Failed' };

async function words() {
  const found = await (await caches.open(WORDS)).match(`${PAGE}words`);
  return { ...ENGLISH, ...(await found?.json()) };
}

// A browser takes the subscription away from who gets a push and shows nothing. Who looks at the console sees it
// there, so for them it is shown without a sound and closed again.
async function tell({ statusUpdate, task }) {
  const told = statusUpdate ?? task ?? {};
  const state = String(told.status?.state ?? '').replace('TASK_STATE_', '').replaceAll('_', '-').toLowerCase();
  const contextId = String(told.contextId ?? '');
  const [pages, called] = await Promise.all([self.clients.matchAll({ type: 'window' }), words()]);
  const isSeen = pages.some((each) => each.visibilityState === 'visible');
  const asked = told.metadata?.shared?.interrupt;
  const tag = asked?.request_id ?? contextId; // the page tells of the same request, if it is open
  const [said] = told.status?.message?.parts ?? [];
  await self.registration.showNotification(told.metadata?.shared?.session?.title ?? called.title, {
    body: String(said?.text ?? called[state] ?? '').slice(0, 300),
    tag,
    silent: isSeen,
    data: { path: `${PAGE}chat/${encodeURIComponent(contextId)}` },
    icon: `${PAGE}icon-192.png`,
  });
  if (isSeen) for (const each of await self.registration.getNotifications({ tag })) each.close();
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
