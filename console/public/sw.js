// Keeps the shell of the console (page, scripts, styles, icons), so that it opens at once and says honestly that the
// service cannot be reached. Nothing of the API is ever kept: those requests are not touched.
const SHELL = 'shell-v1';

self.addEventListener('install', () => self.skipWaiting());
self.addEventListener('activate', (event) => event.waitUntil(self.clients.claim()));

self.addEventListener('fetch', (event) => {
  const { request } = event;
  const url = new URL(request.url);
  if (request.method !== 'GET' || url.origin !== location.origin || !url.pathname.startsWith('/console')) return;
  if (url.pathname.endsWith('/config.json')) return;
  const page = request.mode === 'navigate';
  event.respondWith(url.pathname.includes('/assets/') ? kept(request) : fresh(request, page ? '/console/' : request.url));
});

// Files with a hash in their name never change.
async function kept(request) {
  const cache = await caches.open(SHELL);
  return (await cache.match(request)) ?? store(cache, request.url, await fetch(request));
}

async function fresh(request, key) {
  const cache = await caches.open(SHELL);
  try {
    return await store(cache, key, await fetch(request));
  } catch (error) {
    const found = await cache.match(key);
    if (found) return found;
    throw error;
  }
}

async function store(cache, key, response) {
  if (response.ok && response.type === 'basic') await cache.put(key, response.clone());
  return response;
}

self.addEventListener('notificationclick', (event) => {
  event.notification.close();
  const target = event.notification.data?.path ?? '/console/';
  event.waitUntil(
    self.clients.matchAll({ type: 'window' }).then(async (pages) => {
      const page = pages.find((each) => new URL(each.url).pathname.startsWith('/console'));
      if (!page) return self.clients.openWindow(target);
      page.postMessage({ open: target });
      return page.focus();
    }),
  );
});
