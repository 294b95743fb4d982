/** The frame around every page. */

import { useEffect } from 'preact/hooks';

import { go, pathOf, route } from '../app/route';
import { conversations, link, notice, openConversation, options, service, starting, tryAgainNow } from '../app/store';
import { t } from '../i18n';
import { AgentPage } from './agent';
import { Chat, NewChat } from './chat';
import { Login } from './login';
import { IconButton } from './parts';
import { SettingsPage } from './settings';
import { Navigation, Sidebar } from './sidebar';
import { TaskPage, TasksPage } from './tasks';
import { UsagePage } from './usage';
import { WaitingPage } from './waiting';

export function Shell() {
  const { page } = route.value;
  useEffect(() => {
    if (page !== 'chat' && page !== 'home') void openConversation('');
  }, [page]);
  useKeys();
  if (starting.value) return <Starting />;
  if (!service.value) return <Login />;
  return (
    <div class={`shell at-${page}`}>
      <a class="skip" href="#main">
        {t('skip')}
      </a>
      <Sidebar />
      <main id="main">
        <Reconnecting />
        <Notice />
        <Current />
      </main>
      <div class="bottom narrow-only">
        <Navigation />
      </div>
    </div>
  );
}

/** The service has been asked and has not answered yet. */
function Starting() {
  return (
    <main class="login starting">
      <img src={`${import.meta.env.BASE_URL}icon.svg`} alt="" width={52} height={52} />
      <p>{options.value.title}</p>
    </main>
  );
}

function Current() {
  const at = route.value;
  switch (at.page) {
    case 'chat':
      return <Chat contextId={at.contextId} />;
    case 'task':
      return <TaskPage id={at.id} />;
    case 'waiting':
      return <WaitingPage />;
    case 'tasks':
      return <TasksPage />;
    case 'usage':
      return <UsagePage />;
    case 'agent':
      return <AgentPage />;
    case 'settings':
      return <SettingsPage />;
    case 'home':
      return <NewChat />;
  }
}

function Reconnecting() {
  if (link.value !== 'reconnecting') return null;
  return (
    <div class="banner" role="status">
      <span class="spinner" aria-hidden="true" />
      {t('link.reconnecting.title')}
      <button type="button" class="quiet" onClick={tryAgainNow}>
        {t('tryNow')}
      </button>
    </div>
  );
}

function Notice() {
  if (!notice.value) return null;
  return (
    <div class="banner notice" role="alert">
      <span>{notice.value}</span>
      <IconButton icon="cross" label={t('close')} onClick={() => (notice.value = '')} />
    </div>
  );
}

function useKeys(): void {
  useEffect(() => {
    const pressed = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (event.key === 'Escape') target.blur();
      if (event.metaKey || event.ctrlKey || event.altKey || /^(input|textarea|select)$/i.test(target.tagName)) return;
      const action = KEYS[event.key];
      if (!action || !service.peek()) return;
      event.preventDefault();
      action();
    };
    addEventListener('keydown', pressed);
    return () => removeEventListener('keydown', pressed);
  }, []);
}

const KEYS: Record<string, () => void> = {
  n: () => go(pathOf('home')),
  w: () => go(pathOf('waiting')),
  '/': () => document.getElementById('search')?.focus(),
  j: () => step(1),
  k: () => step(-1),
};

function step(by: number): void {
  const all = conversations.peek();
  const at = route.peek();
  const current = all.findIndex((each) => at.page === 'chat' && each.contextId === at.contextId);
  const next = all[Math.max(0, Math.min(all.length - 1, current + by))];
  if (next) go(pathOf('chat', next.contextId));
}
