/** How the service is: what it needs, and for an admin the nodes that share its database. */

import { useEffect, useState } from 'preact/hooks';

import { failureOf, FORBIDDEN } from '../a2a/failure';
import type { Json } from '../a2a/service';
import { methods } from '../app/catalog';
import { options, service } from '../app/store';
import { t } from '../i18n';
import { ago, moment } from './format';

const EVERY_MS = 10_000;
const NODES = 'opencode.nodes.list';

/** Look now and every ten seconds; undefined before the first answer, and where there is none. */
function useRepeated<Result>(look: () => Promise<Result | undefined>): Result | undefined {
  const [found, setFound] = useState<Result>();
  useEffect(() => {
    let left = false;
    const again = () => void look().then((result) => left || setFound(result));
    again();
    const timer = setInterval(again, EVERY_MS);
    return () => {
      left = true;
      clearInterval(timer);
    };
  }, []);
  return found;
}

interface Readiness {
  status?: string;
  checks?: Record<string, boolean>;
}

interface Tile {
  name: string;
  value: string;
  good: boolean;
}

async function health(): Promise<Tile[]> {
  const begun = performance.now();
  const [live, ready] = await Promise.all(['/health', '/ready'].map(statusOf));
  const took = Math.round(performance.now() - begun);
  const needed = Object.entries(ready?.checks ?? {});
  return [
    { name: t('health'), value: live?.status ?? '', good: live?.status === 'ok' },
    { name: t('readiness'), value: ready?.status ?? '', good: ready?.status === 'ready' },
    ...needed.map(([name, good]) => ({ name: t(`check.${name}`), value: good ? t('works') : t('missing'), good })),
    { name: t('roundTrip'), value: `${took} ms`, good: true },
    { name: t('version'), value: options.value.version || service.peek()?.card.version || '', good: true },
  ];
}

async function statusOf(path: string): Promise<Readiness | undefined> {
  try {
    return (await service.peek()?.read(path)) as Readiness | undefined;
  } catch (error) {
    return { status: (error as Error).message };
  }
}

export function Health() {
  const tiles = useRepeated(health) ?? [];
  return (
    <dl class="tiles">
      {tiles.map(({ name, value, good }) => (
        <div key={name} class={`tile ${good ? '' : 'bad'}`}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

let refusing: unknown; // the connection whose token lacks the scope admin: it is not asked again

async function nodes(): Promise<Json[]> {
  const connected = service.peek();
  if (!connected || refusing === connected) return [];
  try {
    return (await connected.call<{ items: Json[] }>(NODES)).items;
  } catch (error) {
    if (failureOf(error).code === FORBIDDEN) refusing = connected;
    return [];
  }
}

export function Nodes() {
  return methods.value.has(NODES) ? <NodeTable /> : null;
}

function NodeTable() {
  const found = useRepeated(nodes) ?? [];
  if (!found.length) return null;
  return (
    <>
      <h2>{t('nodes')}</h2>
      <div class="table-frame" tabIndex={0} role="region" aria-label={t('nodes')}>
        <table class="nodes">
          <thead>
            <tr>
              <th>{t('node')}</th>
              <th>{t('state')}</th>
              <th class="right">{t('page.tasks')}</th>
              <th>OpenCode</th>
              <th>{t('labels')}</th>
              <th>{t('version')}</th>
              <th>{t('seen')}</th>
            </tr>
          </thead>
          <tbody>
            {found.map((each) => (
              <NodeRow key={String(each.id)} node={each} />
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}

function NodeRow({ node }: { node: Json }) {
  const seen = String(node.seen_at ?? '');
  const labels = Array.isArray(node.labels) ? node.labels.join(', ') : '';
  return (
    <tr>
      <td>
        {String(node.name)} {node.answers === true && <span class="tag">{t('answersYou')}</span>}
      </td>
      <td>
        <span class={`tag ${node.state === 'running' ? 'tag-completed' : 'tag-input-required'}`}>{t(`node.${String(node.state)}`)}</span>
      </td>
      <td class="right">
        {String(node.load)}
        {node.capacity ? ` / ${String(node.capacity)}` : ''}
      </td>
      <td>
        <code>{String(node.opencode)}</code> {String(node.opencode_version ?? '')}
      </td>
      <td>{labels}</td>
      <td>{String(node.version)}</td>
      <td>
        <time dateTime={seen} title={moment(seen)}>
          {ago(seen)}
        </time>
      </td>
    </tr>
  );
}
