/** One conversation. */

import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';

import { rename } from '../app/actions';
import { go, pathOf } from '../app/route';
import { conversations, listed, loaded, openConversation, service, tasksOf } from '../app/store';
import { t } from '../i18n';
import { hasEnded, type TaskView } from '../state/task';
import { Todos } from './blocks';
import { Composer } from './composer';
import { Earlier } from './earlier';
import { Icon } from './icons';
import { IconButton, StateTag } from './parts';
import { Turn } from './turn';

export function NewChat() {
  // The conversation chooses its own id, so it can be followed before its first message is sent.
  const [contextId] = useState(() => crypto.randomUUID());
  useEffect(() => void openConversation(contextId), [contextId]);
  const examples = ['example1', 'example2', 'example3'] as const;
  return (
    <div class="chat">
      <div class="welcome">
        <div class="welcome-mark">
          <Icon name="terminal" size={30} />
        </div>
        <h1 tabIndex={-1}>{t('welcome')}</h1>
        <p class="muted">{service.value?.card.description}</p>
        <ul class="examples" aria-label={t('examples')}>
          {examples.map((each) => (
            <li key={each}>
              <button type="button" onClick={() => fill(t(each))}>
                {t(each)}
              </button>
            </li>
          ))}
        </ul>
      </div>
      <Composer contextId={contextId} fresh sent={() => go(pathOf('chat', contextId))} />
    </div>
  );
}

function fill(text: string): void {
  const field = document.querySelector<HTMLTextAreaElement>('.composer textarea');
  if (!field) return;
  field.value = text;
  field.dispatchEvent(new Event('input', { bubbles: true }));
  field.focus();
}

export function Chat({ contextId }: { contextId: string }) {
  useEffect(() => void openConversation(contextId), [contextId, listed.value]);
  const shown = tasksOf(contextId);
  const current = shown.findLast((each) => !hasEnded(each.state) && each.state !== 'submitted');
  const waiting = shown.findLast((each) => each.state === 'submitted' && !each.id.startsWith('sending:'));
  return (
    <div class="chat">
      <ChatHead contextId={contextId} tasks={shown} />
      <Scroller follow={contextId}>
        <Earlier contextId={contextId} />
        {!loaded.value.has(contextId) && !shown.length && <p class="status center">{t('loading')}</p>}
        {shown.map((task) => (
          <Turn key={task.id} task={task} />
        ))}
      </Scroller>
      <OpenTodos task={current} />
      <Composer contextId={contextId} running={current ?? waiting} fresh={false} />
    </div>
  );
}

function ChatHead({ contextId, tasks }: { contextId: string; tasks: TaskView[] }) {
  const [editing, setEditing] = useState(false);
  const known = conversations.value.find((each) => each.contextId === contextId);
  const title = known?.title || t('conversation');
  const sessionId = known?.sessionId ?? '';
  const latest = tasks.at(-1);
  const branch = tasks.findLast((each) => each.branch)?.branch;
  useEffect(() => setEditing(false), [contextId]);
  return (
    <header class="chat-head">
      <a class="icon-button narrow-only" href={pathOf('home')} aria-label={t('conversations')}>
        <Icon name="back" />
      </a>
      {editing ? (
        <form
          class="grow"
          onSubmit={(event) => {
            event.preventDefault();
            const wanted = String(new FormData(event.currentTarget).get('title') ?? '').trim();
            setEditing(false);
            if (wanted && wanted !== title) void rename(sessionId, wanted);
          }}
        >
          <input name="title" class="title-field" aria-label={t('title')} defaultValue={title} ref={(field) => field?.focus()} />
        </form>
      ) : (
        <h1 tabIndex={-1} title={title}>
          {title}
        </h1>
      )}
      {branch && <span class="tag wide-only">{branch}</span>}
      {latest && <StateTag state={latest.state} />}
      {sessionId && (
        <IconButton icon="edit" label={t('rename')} class="wide-only" onClick={() => setEditing(!editing)} />
      )}
    </header>
  );
}

function OpenTodos({ task }: { task: TaskView | undefined }) {
  if (!task?.todos.some((each) => each.status !== 'completed')) return null;
  return (
    <div class="open-todos">
      <Todos todos={task.todos} />
    </div>
  );
}

const NEAR = 120;

/** Stays at the end while the reader is there; a reader who has scrolled up is left alone. */
function Scroller({ follow, children }: { follow: unknown; children: preact.ComponentChildren }) {
  const frame = useRef<HTMLDivElement>(null);
  const inner = useRef<HTMLDivElement>(null);
  const atEnd = useRef(true);
  const [away, setAway] = useState(false);
  const toEnd = () => frame.current?.scrollTo({ top: frame.current.scrollHeight });
  useLayoutEffect(() => {
    if (!inner.current) return undefined;
    // Measured when the browser has laid the page out anyway, not at each word.
    const observer = new ResizeObserver(() => atEnd.current && toEnd());
    observer.observe(inner.current);
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(() => {
    if (atEnd.current) toEnd();
  }, [follow]);
  return (
    <div
      class="scroller"
      ref={frame}
      tabIndex={0}
      role="log"
      aria-label={t('conversation')}
      onScroll={(event) => {
        const { scrollHeight, scrollTop, clientHeight } = event.currentTarget;
        atEnd.current = scrollHeight - scrollTop - clientHeight < NEAR;
        if (away === atEnd.current) setAway(!atEnd.current);
      }}
    >
      <div class="column" ref={inner}>
        {children}
      </div>
      {away && (
        <button
          type="button"
          class="to-end"
          onClick={() => {
            atEnd.current = true;
            toEnd();
          }}
        >
          {t('toEnd')}
        </button>
      )}
    </div>
  );
}
