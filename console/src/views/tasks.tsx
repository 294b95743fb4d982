/** Every task, and one task with its raw events. */

import { StreamResponse, Task } from '@a2a-js/sdk';
import { useEffect, useState } from 'preact/hooks';

import { EXTENSIONS } from '../a2a/service';
import { cancel } from '../app/actions';
import { pathOf } from '../app/route';
import { act, service, tasks } from '../app/store';
import { t } from '../i18n';
import { curlRpc } from '../state/curl';
import { fromTask, hasEnded, type State, type TaskView } from '../state/task';
import { ago, dollars, figure, moment } from './format';
import { CopyButton, Empty, Page, Raw, StateTag } from './parts';

const FILTERS: State[] = ['input-required', 'working', 'submitted', 'completed', 'failed', 'canceled'];

export function TasksPage() {
  const [state, setState] = useState<State | ''>('');
  const [words, setWords] = useState('');
  const wanted = words.trim().toLowerCase();
  const shown = [...tasks.value.values()]
    .filter((each) => (!state || each.state === state) && `${each.title} ${each.id} ${each.model}`.toLowerCase().includes(wanted))
    .sort((a, b) => (a.at < b.at ? 1 : -1));
  return (
    <Page
      title={t('page.tasks')}
      actions={
        <>
          <input
            type="search"
            placeholder={t('filter')}
            aria-label={t('filter')}
            value={words}
            onInput={(event) => setWords(event.currentTarget.value)}
          />
          <select aria-label={t('state')} value={state} onChange={(event) => setState(event.currentTarget.value as State | '')}>
            <option value="">{t('allStates')}</option>
            {FILTERS.map((each) => (
              <option key={each} value={each}>
                {t(`state.${each}`)}
              </option>
            ))}
          </select>
        </>
      }
    >
      {shown.length ? <TaskTable rows={shown} /> : <Empty icon="list" title={t('noTasks')} />}
    </Page>
  );
}

function TaskTable({ rows }: { rows: TaskView[] }) {
  return (
    <div class="table-frame" tabIndex={0} role="region" aria-label={t('page.tasks')}>
      <table class="tasks">
        <thead>
          <tr>
            <th>{t('state')}</th>
            <th>{t('title')}</th>
            <th>{t('model')}</th>
            <th class="right">{t('tokens')}</th>
            <th class="right">{t('cost')}</th>
            <th>{t('changed')}</th>
          </tr>
        </thead>
        <tbody>
          {rows.map((each) => (
            <tr key={each.id}>
              <td>
                <StateTag state={each.state} />
              </td>
              <td>
                <a href={pathOf('task', each.id)}>{each.title || each.id}</a>
              </td>
              <td class="muted">{each.model}</td>
              <td class="right">{each.usage ? figure(each.usage.total) : ''}</td>
              <td class="right">{each.usage?.cost === undefined ? '' : dollars(each.usage.cost)}</td>
              <td>
                <time dateTime={each.at} title={moment(each.at)}>
                  {ago(each.at)}
                </time>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

export function TaskPage({ id }: { id: string }) {
  const [task, setTask] = useState<Task>();
  const [events, setEvents] = useState<StreamResponse[]>([]);
  useEffect(() => {
    setEvents([]);
    void act((connected) => connected.get(id)).then(setTask);
    const leaving = new AbortController();
    void collect(id, leaving.signal, setEvents);
    return () => leaving.abort();
  }, [id]);
  const followed = tasks.value.get(id);
  const known = task ? { ...fromTask(task, followed), state: followed?.state ?? fromTask(task).state } : followed;
  const root = service.value?.root ?? '';
  return (
    <Page
      title={known?.title || t('task')}
      actions={
        known && (
          <>
            <StateTag state={known.state} />
            <a class="button" href={pathOf('chat', known.contextId)}>
              {t('openConversation')}
            </a>
            {!hasEnded(known.state) && (
              <button type="button" class="danger-quiet" onClick={() => void cancel(known)}>
                {t('cancel')}
              </button>
            )}
          </>
        )
      }
    >
      {known && <Facts task={known} />}
      <h2>curl</h2>
      <Shell title={t('curlGet')} text={curlRpc(root, 'GetTask', { id }, EXTENSIONS)} />
      <Shell title={t('curlFollow')} text={curlRpc(root, 'SubscribeToTask', { id }, EXTENSIONS)} />
      <h2>{t('events', { n: events.length })}</h2>
      <ol class="events">
        {events.map((each, at) => (
          <EventRow key={at} event={each} />
        ))}
      </ol>
      <h2>{t('rawTask')}</h2>
      {task && <Raw value={Task.toJSON(task)} />}
    </Page>
  );
}

async function collect(id: string, signal: AbortSignal, show: (events: StreamResponse[]) => void): Promise<void> {
  const found: StreamResponse[] = [];
  let shown = 0;
  try {
    for await (const event of service.peek()?.events(id, 0, signal) ?? []) {
      found.push(event);
      if (performance.now() - shown < 200) continue;
      shown = performance.now();
      show([...found]);
    }
  } catch {
    // the page was left, or the stream broke: what came is shown
  }
  if (!signal.aborted) show([...found]);
}

function Facts({ task }: { task: TaskView }) {
  const facts: [string, string][] = [
    [t('taskId'), task.id],
    [t('contextId'), task.contextId],
    [t('session'), task.sessionId],
    [t('model'), task.model],
    [t('agent'), task.agent],
    [t('branch'), task.branch],
    [t('principal'), task.principal],
    [t('changed'), moment(task.at)],
    [t('tokens'), task.usage ? `${figure(task.usage.input)} ↑ ${figure(task.usage.output)} ↓` : ''],
    [t('cost'), task.usage?.cost === undefined ? '' : dollars(task.usage.cost)],
    [t('says'), task.statusText],
  ];
  return (
    <dl class="facts">
      {facts
        .filter(([, value]) => value)
        .map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
    </dl>
  );
}

export function Shell({ title, text }: { title: string; text: string }) {
  return (
    <div class="code">
      <div class="code-bar">
        <span>{title}</span>
        <CopyButton text={text} />
      </div>
      <pre tabIndex={0}>
        <code>{text}</code>
      </pre>
    </div>
  );
}

function EventRow({ event }: { event: StreamResponse }) {
  const [open, setOpen] = useState(false);
  const json = StreamResponse.toJSON(event);
  return (
    <li>
      <details onToggle={(toggled) => setOpen(toggled.currentTarget.open)}>
        <summary>
          <code>{event.payload?.$case}</code>
          <span class="muted">{open ? '' : JSON.stringify(json).slice(0, 160)}</span>
        </summary>
        {open && <Raw value={json} />}
      </details>
    </li>
  );
}

