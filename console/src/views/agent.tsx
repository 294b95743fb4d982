/** The agent's card, its extensions with their methods, and how the service is. */

import { AgentCard } from '@a2a-js/sdk';
import { useEffect, useMemo, useState } from 'preact/hooks';

import type { Json } from '../a2a/service';
import { failureOf } from '../a2a/failure';
import { act, service } from '../app/store';
import { t } from '../i18n';
import { curlRpc } from '../state/curl';
import { type Field, fieldsOf, type Schema, valueOf } from '../state/form';
import { Address, CardView } from './card';
import { Health, Nodes } from './nodes';
import { Page, Raw } from './parts';
import { Shell } from './tasks';

export function AgentPage() {
  const card = service.value?.card;
  const [description, setDescription] = useState<Json>();
  useEffect(() => void act((it) => it.read('/openapi.json')).then(setDescription), []);
  if (!card) return null;
  const raw = AgentCard.toJSON(card) as Json;
  return (
    <Page title={card.name}>
      <Health />
      <Nodes />
      <CardView card={raw} />
      <h2>{t('extensions')}</h2>
      {(card.capabilities?.extensions ?? []).map((each) => (
        <Extension key={each.uri} uri={each.uri} summary={each.description} params={each.params ?? {}} description={description} />
      ))}
      <h2>{t('card')}</h2>
      <Raw value={raw} />
    </Page>
  );
}

interface ExtensionProps {
  uri: string;
  summary: string;
  params: Json;
  description?: Json;
}

function Extension({ uri, summary, params, description }: ExtensionProps) {
  const methods = Object.entries((params.methods ?? {}) as Record<string, Json>);
  return (
    <details class="card extension">
      <summary class="card-head">
        <strong>{String(params.title ?? uri)}</strong>
        <span class="grow" />
        {methods.length > 0 && <span class="muted">{t('methods', { n: methods.length })}</span>}
      </summary>
      <p>{summary}</p>
      <p class="small">
        <Address value={uri} />
      </p>
      {methods.map(([name, facts]) => (
        <Method key={name} name={name} summary={String(facts.summary ?? '')} description={description} />
      ))}
    </details>
  );
}

function Method({ name, summary, description }: { name: string; summary: string; description?: Json }) {
  const [open, setOpen] = useState(false);
  return (
    <details class="method" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        <code>{name}</code> <span class="muted">{summary}</span>
      </summary>
      {open && description && <TryIt method={name} description={description} />}
    </details>
  );
}

function TryIt({ method, description }: { method: string; description: Json }) {
  const fields = useMemo(() => fieldsOf(paramsSchema(description, method), description), [method, description]);
  const [filled, setFilled] = useState<ReadonlyMap<string, string>>(new Map());
  const [result, setResult] = useState<unknown>();
  const fill = (path: string, value: string) => setFilled(new Map([...filled, [path, value]]));
  const run = async () => {
    try {
      setResult(await service.peek()?.call(method, valueOf(fields, filled)));
    } catch (error) {
      const failure = failureOf(error);
      setResult({ error: failure.message, code: failure.code, reason: failure.reason });
    }
  };
  let curl = '';
  try {
    curl = curlRpc(service.value?.root ?? '', method, valueOf(fields, filled));
  } catch (error) {
    curl = (error as Error).message;
  }
  return (
    <form
      class="try"
      onSubmit={(event) => {
        event.preventDefault();
        void run();
      }}
    >
      {fields.map((each) => (
        <FormField key={each.path} field={each} value={filled.get(each.path) ?? ''} fill={(value) => fill(each.path, value)} />
      ))}
      <div class="ask-actions">
        <button type="submit" class="primary">
          {t('tryIt')}
        </button>
      </div>
      <Shell title="curl" text={curl} />
      {result !== undefined && <Raw value={result} />}
    </form>
  );
}

function FormField({ field, value, fill }: { field: Field; value: string; fill(value: string): void }) {
  const choices = field.kind === 'boolean' ? ['true', 'false'] : field.choices;
  return (
    <label>
      <span>
        <code>{field.path}</code> {field.required && <span class="required">*</span>} <span class="muted">{field.hint}</span>
      </span>
      {choices.length > 0 ? (
        <select value={value} onChange={(event) => fill(event.currentTarget.value)}>
          <option value="" />
          {choices.map((each) => (
            <option key={each}>{each}</option>
          ))}
        </select>
      ) : (
        <input
          type="text"
          inputMode={field.kind === 'number' ? 'numeric' : 'text'}
          placeholder={field.kind === 'json' ? 'JSON' : ''}
          value={value}
          required={field.required}
          onInput={(event) => fill(event.currentTarget.value)}
        />
      )}
    </label>
  );
}

/** The schema of a method's params, as the OpenAPI description of the service publishes it. */
function paramsSchema(description: Json, method: string): Schema {
  const content = dig(description, 'paths', '/', 'post', 'requestBody', 'content', 'application/json', 'schema', 'oneOf');
  const requests = Array.isArray(content) ? (content as Schema[]) : [];
  const found = requests.find((each) => dig(each, 'properties', 'method', 'const') === method);
  return (dig(found ?? {}, 'properties', 'params') as Schema | undefined) ?? {};
}

function dig(value: unknown, ...path: string[]): unknown {
  return path.reduce((inner, name) => (inner as Record<string, unknown> | undefined)?.[name], value);
}
