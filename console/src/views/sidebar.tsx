/** The list of conversations and the way to the other pages. */

import { useEffect, useState } from 'preact/hooks';

import { pathOf, route } from '../app/route';
import { conversations, link, listed, loadSessions, options, tryAgainNow, waitingNow } from '../app/store';
import { t } from '../i18n';
import { type Conversation, matches } from '../state/conversations';
import { ago } from './format';
import { Icon, type IconName } from './icons';
import { StateDot } from './parts';

const PAGES: { page: 'waiting' | 'tasks' | 'usage' | 'agent' | 'settings'; icon: IconName }[] = [
  { page: 'waiting', icon: 'bell' },
  { page: 'tasks', icon: 'list' },
  { page: 'usage', icon: 'chart' },
  { page: 'agent', icon: 'agent' },
  { page: 'settings', icon: 'gear' },
];

export function Sidebar() {
  return (
    <aside class="sidebar">
      <div class="brand">
        <a href={pathOf('home')} class="brand-name">
          <img src={`${import.meta.env.BASE_URL}icon.svg`} alt="" width={26} height={26} />
          <span>{options.value.title}</span>
        </a>
        <LinkState />
      </div>
      <ConversationList />
      <Navigation />
    </aside>
  );
}

export function LinkState() {
  const state = link.value;
  return (
    <button type="button" class={`link link-${state}`} onClick={tryAgainNow} title={t(`link.${state}.title`)} aria-live="polite">
      <span class="dot" aria-hidden="true" />
      {t(`link.${state}`)}
    </button>
  );
}

function ConversationList() {
  const [words, setWords] = useState('');
  useEffect(() => {
    if (!words.trim()) return undefined;
    const timer = setTimeout(() => void loadSessions(words.trim()), 300);
    return () => clearTimeout(timer);
  }, [words]);
  const shown = conversations.value.filter((each) => matches(each, words));
  return (
    <nav class="conversations" aria-label={t('conversations')}>
      <a class="new" href={pathOf('home')} aria-keyshortcuts="n">
        <Icon name="plus" /> {t('newConversation')}
      </a>
      <label class="search">
        <Icon name="search" size={16} />
        <input
          type="search"
          id="search"
          placeholder={t('search')}
          aria-label={t('search')}
          aria-keyshortcuts="/"
          value={words}
          onInput={(event) => setWords(event.currentTarget.value)}
        />
      </label>
      <ul>
        {shown.map((each) => (
          <ConversationItem key={each.contextId} conversation={each} />
        ))}
      </ul>
      {!shown.length && <p class="muted center">{!listed.value ? t('loading') : words ? t('nothingFound') : t('noConversations')}</p>}
    </nav>
  );
}

function ConversationItem({ conversation }: { conversation: Conversation }) {
  const at = route.value;
  const here = at.page === 'chat' && at.contextId === conversation.contextId;
  return (
    <li>
      <a href={pathOf('chat', conversation.contextId)} class="conversation" aria-current={here ? 'page' : undefined}>
        <StateDot state={conversation.state} />
        <span class="conversation-title">{conversation.title || t('untitled')}</span>
        <time dateTime={conversation.at}>{ago(conversation.at)}</time>
      </a>
    </li>
  );
}

const isAt = (page: string): boolean => {
  const at = route.value.page;
  return at === page || (at === 'task' && page === 'tasks');
};

export function Navigation() {
  const count = waitingNow.value.length;
  return (
    <nav class="pages" aria-label={t('pages')}>
      <a href={pathOf('home')} class="narrow-only" aria-current={['home', 'chat'].includes(route.value.page) ? 'page' : undefined}>
        <Icon name="chat" />
        <span>{t('page.chat')}</span>
      </a>
      {PAGES.map(({ page, icon }) => (
        <a key={page} href={pathOf(page)} aria-current={isAt(page) ? 'page' : undefined}>
          <Icon name={icon} />
          <span class="wide-only">{t(`page.${page}`)}</span>
          <span class="narrow-only">{t(page === 'waiting' ? 'page.waiting.short' : `page.${page}`)}</span>
          {page === 'waiting' && count > 0 && (
            <span class="badge" aria-label={t('waitingCount', { n: count })}>
              {count}
            </span>
          )}
        </a>
      ))}
    </nav>
  );
}
