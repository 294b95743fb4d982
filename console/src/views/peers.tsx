/** An inspector for any A2A agent that this service may call: its card, and what it says. */

import { useEffect, useState } from 'preact/hooks';

import { failureOf } from '../a2a/failure';
import type { Json } from '../a2a/service';
import { methods } from '../app/catalog';
import { pathOf } from '../app/route';
import { act, service } from '../app/store';
import { t } from '../i18n';
import { CardView, DeclaredExtensions } from './card';
import { Markdown } from './markdown';
import { Empty, Page, Raw } from './parts';

const CARD = 'opencode.peers.card';

interface Found {
  url: string;
  card: Json;
  line: string | null;
  transport: string | null;
  problems: string[];
}

export function PeersPage() {
  const [known, setKnown] = useState<{ items: string[]; any_address: boolean }>();
  const [peer, setPeer] = useState('');
  const [shown, setShown] = useState<{ peer: string; found: Found }>();
  const [problem, setProblem] = useState('');
  const [busy, setBusy] = useState(false);
  const offered = methods.value.has(CARD);
  useEffect(() => {
    if (offered) void act((it) => it.call<{ items: string[]; any_address: boolean }>('opencode.peers.list')).then(setKnown);
  }, [offered]);
  const look = async () => {
    setBusy(true);
    setProblem('');
    setShown(undefined);
    try {
      const found = await service.peek()?.call<Found>(CARD, { peer: peer.trim() });
      if (found) setShown({ peer: peer.trim(), found });
    } catch (error) {
      setProblem(failureOf(error).message);
    }
    setBusy(false);
  };
  const back = (
    <a class="button" href={pathOf('agent')}>
      {t('page.agent')}
    </a>
  );
  if (!offered) {
    return (
      <Page title={t('inspect')} actions={back}>
        <Empty icon="globe" title={t('noPeers')}>
          {t('noPeersHint')} <code>A2A_CLIENT_ALLOW_ANY_PEER=true</code>
        </Empty>
      </Page>
    );
  }
  return (
    <Page title={t('inspect')} actions={back}>
      <form
        class="inspect"
        onSubmit={(event) => {
          event.preventDefault();
          void look();
        }}
      >
        <label>
          {known?.any_address ? t('peerNameOrAddress') : t('peerName')}
          <input
            name="peer"
            list="known-peers"
            required
            autocomplete="off"
            placeholder={known?.any_address ? 'https://agent.example.com' : ''}
            value={peer}
            onInput={(event) => setPeer(event.currentTarget.value)}
          />
        </label>
        <datalist id="known-peers">
          {known?.items.map((each) => (
            <option key={each} value={each} />
          ))}
        </datalist>
        <button type="submit" class="primary" disabled={busy || !peer.trim()}>
          {t('showCard')}
        </button>
      </form>
      {busy && <p class="status">{t('loading')}</p>}
      {problem && (
        <p class="login-error" role="alert">
          {problem}
        </p>
      )}
      {shown && <Inspected key={shown.found.url} peer={shown.peer} found={shown.found} />}
    </Page>
  );
}

function Inspected({ peer, found }: { peer: string; found: Found }) {
  const name = typeof found.card.name === 'string' ? found.card.name : found.url;
  return (
    <section class="inspected" aria-label={name}>
      <h2 class="inspected-name">{name}</h2>
      <p class="small">
        <code>{found.url}</code>{' '}
        {found.line && (
          <span class="tag">
            {found.transport} · A2A {found.line}
          </span>
        )}
      </p>
      {found.problems.length > 0 && (
        <div class="card failed">
          <ul class="problems" aria-label={t('problems')}>
            {found.problems.map((each, at) => (
              <li key={at}>{each}</li>
            ))}
          </ul>
        </div>
      )}
      <CardView card={found.card} />
      <DeclaredExtensions card={found.card} />
      {found.line && <Talk peer={peer} />}
      <h2>{t('card')}</h2>
      <Raw value={found.card} />
    </section>
  );
}

interface Exchange {
  said: string;
  answer: string;
  state: string | null;
  context_id: string | null;
  events: Json[];
}

/** One conversation with the other agent, for as long as it is looked at. */
function Talk({ peer }: { peer: string }) {
  const [exchanges, setExchanges] = useState<Exchange[]>([]);
  const [text, setText] = useState('');
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState('');
  const send = async () => {
    setBusy(true);
    setProblem('');
    const context_id = exchanges.at(-1)?.context_id ?? undefined;
    try {
      const answer = await service.peek()?.call<Exchange>('opencode.peers.send', { peer, text, context_id });
      if (answer) setExchanges([...exchanges, { ...answer, said: text }]);
      setText('');
    } catch (error) {
      setProblem(failureOf(error).message);
    }
    setBusy(false);
  };
  return (
    <>
      <h2>{t('message')}</h2>
      {exchanges.map((each, at) => (
        <article key={at} class="exchange">
          <p class="said-text">{each.said}</p>
          <Markdown text={each.answer} final />
          <details class="events">
            <summary>
              {each.state && <span class="tag">{each.state}</span>} {t('events', { n: each.events.length })}
            </summary>
            <Raw value={each.events} />
          </details>
        </article>
      ))}
      <form
        class="inspect"
        onSubmit={(event) => {
          event.preventDefault();
          void send();
        }}
      >
        <label>
          {t('message')}
          <textarea name="message" rows={2} required value={text} onInput={(event) => setText(event.currentTarget.value)} />
        </label>
        <button type="submit" class="primary" disabled={busy || !text.trim()}>
          {t('send')}
        </button>
      </form>
      {busy && <p class="status">{t('sending')}</p>}
      {problem && (
        <p class="login-error" role="alert">
          {problem}
        </p>
      )}
    </>
  );
}
