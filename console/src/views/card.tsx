/** The Agent Card of the service: every word of it is only ever text. */

import { t } from '../i18n';
import { safeAddress } from '../text/markdown';

type Loose = Record<string, unknown>;

const loose = (value: unknown): Loose => (value && typeof value === 'object' && !Array.isArray(value) ? (value as Loose) : {});
const list = (value: unknown): Loose[] => (Array.isArray(value) ? value.map(loose) : []);
const text = (value: unknown): string => (typeof value === 'string' ? value : value === undefined || value === null ? '' : JSON.stringify(value));

interface Interface {
  url: string;
  binding: string;
  version: string;
}

/** Cards of 0.3 name one address, and others beside it; those of 1.0 a list. */
export function interfacesOf(card: Loose): Interface[] {
  const listed = list(card.supportedInterfaces);
  if (listed.length) {
    return listed.map((each) => ({ url: text(each.url), binding: text(each.protocolBinding), version: text(each.protocolVersion) }));
  }
  const version = text(card.protocolVersion) || '0.3';
  const first = { url: text(card.url), binding: text(card.preferredTransport) || 'JSONRPC', version };
  const others = list(card.additionalInterfaces).map((each) => ({ url: text(each.url), binding: text(each.transport), version }));
  return [first, ...others.filter((each) => each.url !== first.url || each.binding !== first.binding)];
}

export function CardView({ card }: { card: Loose }) {
  const provider = loose(card.provider);
  return (
    <>
      <p class="lead">{text(card.description)}</p>
      {text(provider.organization) && (
        <p class="small">
          {text(provider.organization)} <Address value={text(provider.url)} />
        </p>
      )}
      {text(card.documentationUrl) && (
        <p class="small">
          <Address value={text(card.documentationUrl)} />
        </p>
      )}
      <h2>{t('interfaces')}</h2>
      <ul class="plain">
        {interfacesOf(card).map((each, at) => (
          <li key={at}>
            <span class="tag">{each.binding}</span> <span class="tag">A2A {each.version}</span> <code>{each.url}</code>
          </li>
        ))}
      </ul>
      <h2>{t('skills')}</h2>
      <ul class="skills">
        {list(card.skills).map((each, at) => (
          <li key={at} class="card">
            <strong>{text(each.name)}</strong>
            <p>{text(each.description)}</p>
            {(Array.isArray(each.tags) ? each.tags : []).map((tag, position) => (
              <span key={position} class="tag">
                {text(tag)}
              </span>
            ))}
          </li>
        ))}
      </ul>
    </>
  );
}

/** A link where the address leads to the web; else the text. */
export function Address({ value }: { value: string }) {
  const address = safeAddress(value);
  if (!address) return <span>{value}</span>;
  return (
    <a href={address} target="_blank" rel="noopener noreferrer">
      {value}
    </a>
  );
}
