/** Which page is shown, as the address says it: everything is below /console/. */

import { signal } from '@preact/signals';

export type Route =
  | { page: 'chat'; contextId: string }
  | { page: 'home' | 'waiting' | 'tasks' | 'usage' | 'agent' | 'settings' }
  | { page: 'task'; id: string };

const BASE = import.meta.env.BASE_URL;
const PAGES = ['waiting', 'tasks', 'usage', 'agent', 'settings'] as const;

export function parse(pathname: string): Route {
  const [page, id] = pathname.replace(BASE.replace(/\/$/, ''), '').split('/').filter(Boolean);
  if (page === 'chat' && id) return { page, contextId: decodeURIComponent(id) };
  if (page === 'task' && id) return { page, id: decodeURIComponent(id) };
  const known = PAGES.find((each) => each === page);
  return { page: known ?? 'home' };
}

export const pathOf = (page: string, id?: string): string =>
  page === 'home' ? BASE : `${BASE}${page}${id ? `/${encodeURIComponent(id)}` : ''}`;

export const route = signal<Route>(parse(location.pathname));

/** After the address has changed without the page having been left. */
export function readAddress(): void {
  route.value = parse(location.pathname);
}

export function go(path: string): void {
  if (path === location.pathname) return;
  history.pushState(null, '', path);
  readAddress();
}

export function watchAddress(): void {
  addEventListener('popstate', readAddress);
  // Links of the console change the page without loading it again; with a modifier key the browser does its own.
  document.addEventListener('click', (event) => {
    const link = (event.target as Element | null)?.closest?.('a');
    if (!link || link.target || link.origin !== location.origin || !link.pathname.startsWith(BASE)) return;
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.button !== 0 || link.hasAttribute('download')) return;
    event.preventDefault();
    go(link.pathname);
  });
}
