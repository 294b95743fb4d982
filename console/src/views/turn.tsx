/** One task of a conversation: what was said, what the agent did, what it answered, what it cost. */

import { cancel, fork, forkAt, resume, retry } from '../app/actions';
import { keepDraft } from '../app/keep';
import { go, pathOf } from '../app/route';
import { t } from '../i18n';
import { answerOf, type Block, type Decision, hasEnded, type Said, type TaskView } from '../state/task';
import { AskCard } from './ask';
import { BlockView, FileView } from './blocks';
import { dollars, duration, figure, moment } from './format';
import { Icon } from './icons';
import { CopyButton, IconButton } from './parts';

export function Turn({ task }: { task: TaskView }) {
  const ended = hasEnded(task.state);
  // What was changed stands at the end, where one looks for it; what was decided, before the answer.
  const changes = task.blocks.filter((each) => each.kind === 'changes');
  const others = task.blocks.filter((each) => each.kind !== 'changes');
  const answer = ended && others.at(-1)?.kind === 'text' ? others.slice(-1) : [];
  const last = task.blocks.at(-1);
  const view = (each: Block) => (
    <BlockView
      key={each.id}
      taskId={task.id}
      block={each}
      final={ended || (each !== last && each.kind !== 'tool')}
      subagents={task.subagents}
    />
  );
  return (
    <article class={`turn turn-${task.state}`} data-task={task.id} aria-busy={task.state === 'working'}>
      {task.said.map((each) => (
        <SaidView key={each.id} said={each} edit={editOf(task, each)} />
      ))}
      <div class="agent" aria-live={ended ? 'off' : 'polite'}>
        {/* One list: a block that changes its place among the others is not drawn again. */}
        {[
          ...others.slice(0, others.length - answer.length).map(view),
          <Decisions key="decisions" decisions={task.decisions} />,
          ...answer.map(view),
          ...changes.map(view),
        ]}
        {task.interrupts.map((each) => (
          <AskCard key={each.id} interrupt={each} />
        ))}
        <Status task={task} />
        {ended && <Foot task={task} />}
      </div>
    </article>
  );
}

/** Say it differently: in a conversation that is forked before this message. */
function editOf(task: TaskView, said: Said): (() => void) | undefined {
  if (!task.sessionId || !said.messageId || !hasEnded(task.state)) return undefined;
  return () =>
    void forkAt(task.sessionId, said.messageId).then((contextId) => {
      if (!contextId) return;
      keepDraft(contextId, said.text);
      go(pathOf('chat', contextId));
    });
}

export function SaidView({ said, edit }: { said: Said; edit?: () => void }) {
  const text = said.text || said.data.map((each) => JSON.stringify(each)).join('\n');
  return (
    <div class="said">
      <span class="off-screen">{t('you')}</span>
      {edit && <IconButton icon="edit" class="said-edit" label={t('sayDifferently')} onClick={edit} />}
      {text && <div class="said-text">{text}</div>}
      {said.files.length > 0 && (
        <div class="files">
          {said.files.map((each, at) => (
            <FileView key={at} file={each} />
          ))}
        </div>
      )}
    </div>
  );
}

function Decisions({ decisions }: { decisions: Decision[] }) {
  if (!decisions.length) return null;
  return (
    <ul class="decisions">
      {decisions.map((each) => (
        <li key={each.id}>
          <Icon name={['reject', 'rejected', 'expired'].includes(each.resolution) ? 'cross' : 'check'} size={14} />
          <span>
            {t(`resolution.${each.resolution}`)}: <code>{each.what}</code>
          </span>
        </li>
      ))}
    </ul>
  );
}

function Status({ task }: { task: TaskView }) {
  if (task.retry && task.state === 'working') {
    return <p class="status warn">{t('retrying', { n: task.retry.attempt, why: task.retry.message })}</p>;
  }
  switch (task.state) {
    case 'submitted':
      return (
        <p class="status">
          <span class="dot dot-submitted" aria-hidden="true" />
          {task.queuedFor === 'context' ? t('queuedBehind') : task.queuedFor ? t('queuedSlot') : t('sending')}
          {!task.id.startsWith('sending:') && (
            <button type="button" class="quiet" onClick={() => void cancel(task)}>
              {t('cancel')}
            </button>
          )}
        </p>
      );
    case 'working':
      return (
        <p class="status">
          <span class="working" aria-hidden="true">
            <i />
            <i />
            <i />
          </span>
          <span class="off-screen">{t('state.working')}</span>
        </p>
      );
    case 'failed':
    case 'rejected':
      return <FailedCard task={task} />;
    case 'canceled':
      return <p class="status">{t('state.canceled')}</p>;
    default:
      return null;
  }
}

function FailedCard({ task }: { task: TaskView }) {
  return (
    <section class="card failed" role="alert">
      <header class="card-head">
        <Icon name="cross" />
        <strong>{t('state.failed')}</strong>
        {task.errorType && <span class="tag">{task.errorType}</span>}
      </header>
      <p>{task.statusText || t('noReason')}</p>
      <div class="ask-actions">
        <button type="button" class="primary" onClick={() => void retry(task)}>
          {t('retry')}
        </button>
        <button type="button" onClick={() => void resume(task)}>
          {t('continue')}
        </button>
      </div>
    </section>
  );
}

function Foot({ task }: { task: TaskView }) {
  const { usage } = task;
  const took = duration(task.startedAt, task.at);
  return (
    <footer class="turn-foot">
      <span class="turn-facts">
        {task.model && <span>{task.model}</span>}
        {task.agent && task.agent !== 'build' && <span>{task.agent}</span>}
        {usage && (
          <span title={t('tokensTitle')}>
            {figure(usage.input)} ↑ {figure(usage.output)} ↓
          </span>
        )}
        {usage?.cost !== undefined && <span>{dollars(usage.cost)}</span>}
        {took && <span>{took}</span>}
        <time dateTime={task.at}>{moment(task.at)}</time>
      </span>
      <span class="turn-actions">
        <CopyButton text={() => answerOf(task)} />
        <IconButton icon="retry" label={t('retry')} onClick={() => void retry(task)} />
        {task.sessionId && (
          <IconButton
            icon="fork"
            label={t('forkHere')}
            onClick={() => void fork(task).then((contextId) => contextId && go(pathOf('chat', contextId)))}
          />
        )}
        <a class="icon-button" href={pathOf('task', task.id)} aria-label={t('taskDetail')} title={t('taskDetail')}>
          <Icon name="list" />
        </a>
      </span>
    </footer>
  );
}
