/** What the agent asks a person: permission cards and question cards. */

import { useState } from 'preact/hooks';

import { answerPermission, answerQuestions, dismissQuestions, type Reply } from '../app/actions';
import { t } from '../i18n';
import type { Interrupt, Question } from '../state/task';
import { Diff } from './diff';
import { moment } from './format';
import { Icon } from './icons';
import { Raw } from './parts';

export function AskCard({ interrupt, heading }: { interrupt: Interrupt; heading?: string }) {
  return interrupt.type === 'permission' ? (
    <PermissionCard interrupt={interrupt} heading={heading} />
  ) : (
    <QuestionCard interrupt={interrupt} heading={heading} />
  );
}

function Who({ interrupt }: { interrupt: Interrupt }) {
  const who = interrupt.peer ?? interrupt.subagent;
  return who ? <span class="tag">{who}</span> : null;
}

function Until({ interrupt }: { interrupt: Interrupt }) {
  return interrupt.expiresAt ? <p class="muted small">{t('answerUntil', { at: moment(interrupt.expiresAt) })}</p> : null;
}

function PermissionCard({ interrupt, heading }: { interrupt: Interrupt; heading?: string }) {
  const [refusing, setRefusing] = useState(false);
  const [reason, setReason] = useState('');
  const [busy, setBusy] = useState(false);
  const decide = async (reply: Reply, message = '') => {
    setBusy(true);
    await answerPermission(interrupt, reply, message);
    setBusy(false);
  };
  return (
    <section class="card ask" aria-label={t('permissionAsked', { what: interrupt.permission })} data-request={interrupt.id}>
      <header class="card-head">
        <Icon name="shield" />
        <strong>{heading ?? t('permissionAsked', { what: interrupt.permission })}</strong>
        <Who interrupt={interrupt} />
      </header>
      <div class="ask-body">
        <What interrupt={interrupt} />
        {interrupt.always.length > 0 && (
          <p class="muted small">
            {t('alwaysMeans')} <code>{interrupt.always.join(', ')}</code>
          </p>
        )}
        <Until interrupt={interrupt} />
        {refusing ? (
          <form
            class="refuse"
            onSubmit={(event) => {
              event.preventDefault();
              void decide('reject', reason.trim());
            }}
          >
            <label>
              {t('refuseReason')}
              <input
                type="text"
                value={reason}
                onInput={(event) => setReason(event.currentTarget.value)}
                placeholder={t('refuseHint')}
                ref={(field) => field?.focus()}
              />
            </label>
            <div class="ask-actions">
              <button type="submit" class="danger" disabled={busy}>
                {reason.trim() ? t('refuseAndSay') : t('refuseAndStop')}
              </button>
              <button type="button" onClick={() => setRefusing(false)}>
                {t('back')}
              </button>
            </div>
          </form>
        ) : (
          <div class="ask-actions">
            <button type="button" class="primary" disabled={busy} onClick={() => void decide('once')}>
              {t('allowOnce')}
            </button>
            {interrupt.always.length > 0 && (
              <button type="button" disabled={busy} onClick={() => void decide('always')}>
                {t('allowAlways')}
              </button>
            )}
            <button type="button" class="danger-quiet" disabled={busy} onClick={() => setRefusing(true)}>
              {t('refuse')}
            </button>
          </div>
        )}
      </div>
    </section>
  );
}

/** What would be done comes first; what the model says about it is only that. */
function What({ interrupt }: { interrupt: Interrupt }) {
  const { command, filepath, diff, patterns, title } = interrupt;
  return (
    <>
      {command && <pre class="command" tabIndex={0}>{command}</pre>}
      {!command && filepath && <p class="path">{filepath}</p>}
      {!command && !filepath && patterns.length > 0 && <pre class="command" tabIndex={0}>{patterns.join('\n')}</pre>}
      {diff && <Diff patch={diff} />}
      {interrupt.arguments !== undefined && <Raw value={interrupt.arguments} />}
      {title && title !== command && <p class="muted">{t('agentSays', { words: title })}</p>}
    </>
  );
}

function QuestionCard({ interrupt, heading }: { interrupt: Interrupt; heading?: string }) {
  const [chosen, setChosen] = useState<string[][]>(interrupt.questions.map(() => []));
  const [words, setWords] = useState<string[]>(interrupt.questions.map(() => ''));
  const [busy, setBusy] = useState(false);
  const answers = interrupt.questions.map((_, at) => [...(chosen[at] ?? []), ...(words[at]?.trim() ? [words[at].trim()] : [])]);
  const complete = answers.every((each) => each.length > 0);
  return (
    <form
      class="card ask"
      aria-label={t('questionAsked')}
      data-request={interrupt.id}
      onSubmit={(event) => {
        event.preventDefault();
        setBusy(true);
        void answerQuestions(interrupt, answers).then(() => setBusy(false));
      }}
    >
      <header class="card-head">
        <Icon name="question" />
        <strong>{heading ?? t('questionAsked')}</strong>
        <Who interrupt={interrupt} />
      </header>
      <div class="ask-body">
        {interrupt.questions.map((question, at) => (
          <QuestionField
            key={at}
            name={`${interrupt.id}:${at}`}
            question={question}
            chosen={chosen[at] ?? []}
            words={words[at] ?? ''}
            choose={(labels) => setChosen(chosen.with(at, labels))}
            write={(value) => setWords(words.with(at, value))}
          />
        ))}
        <Until interrupt={interrupt} />
        <div class="ask-actions">
          <button type="submit" class="primary" disabled={!complete || busy}>
            {t('answer')}
          </button>
          <button type="button" class="danger-quiet" disabled={busy} onClick={() => void dismissQuestions(interrupt)}>
            {t('dismiss')}
          </button>
        </div>
      </div>
    </form>
  );
}

interface FieldProps {
  name: string;
  question: Question;
  chosen: string[];
  words: string;
  choose(labels: string[]): void;
  write(words: string): void;
}

function QuestionField({ name, question, chosen, words, choose, write }: FieldProps) {
  const toggle = (label: string) => {
    if (!question.multiple) {
      write('');
      choose([label]);
    } else choose(chosen.includes(label) ? chosen.filter((each) => each !== label) : [...chosen, label]);
  };
  return (
    <fieldset class="question">
      <legend>{question.question}</legend>
      {question.options.map((option) => (
        <label key={option.label} class="option">
          <input
            type={question.multiple ? 'checkbox' : 'radio'}
            name={name}
            checked={chosen.includes(option.label)}
            onChange={() => toggle(option.label)}
          />
          <span>
            <strong>{option.label}</strong>
            {option.description && <span class="muted">{option.description}</span>}
          </span>
        </label>
      ))}
      {question.custom && (
        <input
          type="text"
          class="own-words"
          aria-label={t('ownWords')}
          placeholder={t('ownWords')}
          value={words}
          onInput={(event) => {
            if (!question.multiple && event.currentTarget.value) choose([]);
            write(event.currentTarget.value);
          }}
        />
      )}
    </fieldset>
  );
}
