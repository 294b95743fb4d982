/** What the agent does and says, block by block. */

import { Component, type ComponentChildren } from 'preact';
import { useEffect, useMemo, useState } from 'preact/hooks';

import { showReasoning } from '../app/settings';
import { recallSubagent } from '../app/store';
import { t } from '../i18n';
import type { Block, FileContent, Subagent, SubagentCall, TextBlock, Todo, ToolBlock } from '../state/task';
import { Diff } from './diff';
import { bytes, duration } from './format';
import { Icon, type IconName } from './icons';
import { Markdown } from './markdown';
import { CopyButton, useNow } from './parts';

interface Props {
  /** Of the task that it belongs to, if there is one. */
  taskId?: string;
  block: Block;
  /** Nothing more comes for it. */
  final: boolean;
  subagents: Subagent[];
}

/** Drawn again only when something of it has changed: folds keep what has not. */
export class BlockView extends Component<Props> {
  override shouldComponentUpdate(next: Props): boolean {
    const { block, final, subagents } = this.props;
    return next.block !== block || next.final !== final || next.subagents !== subagents;
  }

  override render({ taskId, block, final, subagents }: Props): ComponentChildren {
    switch (block.kind) {
      case 'text':
        return <Markdown text={block.text} final={final} />;
      case 'reasoning':
        return <Reasoning block={block} final={final} />;
      case 'tool':
        return (
          <Tool taskId={taskId} block={block} final={final} subagents={subagents.filter((each) => each.callId === block.callId)} />
        );
      case 'file':
        return <FileView file={block.file} />;
      case 'changes':
        return block.patch ? <Diff patch={block.patch} /> : null;
    }
  }
}

function Reasoning({ block, final }: { block: TextBlock; final: boolean }) {
  return (
    <details class="reasoning" open={showReasoning.value === 'open'}>
      <summary>
        <Icon name="chevron" size={14} />
        <Icon name="brain" size={16} />
        <span class={final ? '' : 'shimmer'}>{final ? t('thought') : t('thinking')}</span>
      </summary>
      <Markdown text={block.text} final={final} />
    </details>
  );
}

const TOOL_ICONS: Record<string, IconName> = {
  bash: 'terminal',
  edit: 'edit',
  write: 'edit',
  patch: 'edit',
  apply_patch: 'edit',
  read: 'file',
  list: 'list',
  glob: 'search',
  grep: 'search',
  webfetch: 'globe',
  websearch: 'globe',
  task: 'agent',
  todowrite: 'todo',
  todoread: 'todo',
  question: 'question',
};

const isRunning = (status: string): boolean => status === 'running' || status === 'pending';

function Tool({ taskId, block, final, subagents }: { taskId?: string; block: ToolBlock; final: boolean; subagents: Subagent[] }) {
  const running = isRunning(block.status) && !final;
  const now = useNow(running);
  const end = running ? new Date(now).toISOString() : block.endedAt;
  const [open, setOpen] = useState<boolean>();
  const shown = open ?? (running && (block.output !== '' || subagents.length > 0));
  const title = block.title || String(block.input.command ?? block.input.filePath ?? block.input.description ?? '');
  return (
    <details
      class={`card tool tool-${block.status}`}
      open={shown}
      onToggle={(event) => {
        const is = event.currentTarget.open;
        if (is !== shown) setOpen(is);
        if (is && taskId && final && !subagents.length) void recallSubagent(taskId, block);
      }}
    >
      <summary class="card-head">
        <Icon name="chevron" size={14} />
        <Icon name={TOOL_ICONS[block.tool] ?? 'gear'} size={16} />
        <span class="tool-name">{block.tool}</span>
        <span class="tool-title">{title}</span>
        <span class="grow" />
        <span class="muted figure">{duration(block.startedAt, end)}</span>
        <ToolState status={running ? 'running' : block.status} />
      </summary>
      {shown && <ToolBody block={block} subagents={subagents} />}
    </details>
  );
}

function ToolState({ status }: { status: string }) {
  if (isRunning(status)) return <span class="spinner" role="img" aria-label={t('running')} />;
  if (status === 'error') {
    return (
      <span class="mark bad" role="img" aria-label={t('error')}>
        <Icon name="cross" size={14} />
      </span>
    );
  }
  return (
    <span class="mark good" role="img" aria-label={t('done')}>
      <Icon name="check" size={14} />
    </span>
  );
}

const MOST_OUTPUT = 40_000;

function ToolBody({ block, subagents }: { block: ToolBlock; subagents: Subagent[] }) {
  const { command, todos, description, ...rest } = block.input;
  const output = block.output.length > MOST_OUTPUT ? `…\n${block.output.slice(-MOST_OUTPUT)}` : block.output;
  return (
    <div class="tool-body">
      {typeof command === 'string' && <Terminal text={`$ ${command}`} copy={command} />}
      {typeof command !== 'string' && Object.keys(rest).length > 0 && !todos && <Inputs input={rest} />}
      {Array.isArray(todos) ? <Todos todos={todos as Todo[]} /> : output && <Terminal text={output} copy={block.output} />}
      {block.error && <p class="tool-error">{block.error}</p>}
      {subagents.map((each) => (
        <SubagentView key={each.sessionId} subagent={each} />
      ))}
    </div>
  );
}

function Terminal({ text, copy }: { text: string; copy: string }) {
  return (
    <div class="terminal">
      <pre tabIndex={0}>{text}</pre>
      <CopyButton text={copy} />
    </div>
  );
}

function Inputs({ input }: { input: Record<string, unknown> }) {
  return (
    <dl class="inputs">
      {Object.entries(input).map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{typeof value === 'string' ? value : JSON.stringify(value)}</dd>
        </div>
      ))}
    </dl>
  );
}

function SubagentView({ subagent }: { subagent: Subagent }) {
  return (
    <section class="subagent" aria-label={t('subagent', { name: subagent.agent })}>
      <h4>
        <Icon name="agent" size={14} /> {subagent.agent}
      </h4>
      <ul>
        {subagent.calls.map((each) => (
          <SubagentCallView key={each.callId} call={each} />
        ))}
      </ul>
    </section>
  );
}

function SubagentCallView({ call }: { call: SubagentCall }) {
  return (
    <li>
      <Icon name={TOOL_ICONS[call.tool] ?? 'gear'} size={14} />
      <span class="tool-name">{call.tool}</span>
      <span class="tool-title">{call.title}</span>
      <span class="grow" />
      <span class="muted figure">{duration(call.startedAt, call.endedAt)}</span>
      <ToolState status={call.status} />
    </li>
  );
}

export function Todos({ todos }: { todos: Todo[] }) {
  const done = todos.filter((each) => each.status === 'completed').length;
  return (
    <section class="todos" aria-label={t('todoList')}>
      <div class="todos-head">
        <Icon name="todo" size={16} />
        <strong>{t('todoList')}</strong>
        <span class="muted">
          {done}/{todos.length}
        </span>
      </div>
      <ul>
        {todos.map((each, at) => (
          <li key={at} class={`todo-${each.status}`}>
            <span class="todo-mark" role="img" aria-label={t(each.status === 'completed' ? 'done' : 'notDone')} />
            <span>{each.content}</span>
          </li>
        ))}
      </ul>
    </section>
  );
}

const PICTURES = /^image\/(png|jpeg|gif|webp)$/;

export function FileView({ file }: { file: FileContent }) {
  const address = useMemo(() => {
    if (!file.bytes) return undefined;
    // A picture is shown; everything else is only ever saved, whatever it says it is.
    const type = PICTURES.test(file.mediaType) ? file.mediaType : 'application/octet-stream';
    return URL.createObjectURL(new Blob([file.bytes as BlobPart], { type }));
  }, [file]);
  useEffect(() => () => void (address && URL.revokeObjectURL(address)), [address]);
  const name = file.name || t('file');
  if (address && PICTURES.test(file.mediaType)) {
    return (
      <a class="picture" href={address} download={name} title={name}>
        <img src={address} alt={name} loading="lazy" />
      </a>
    );
  }
  return (
    <a class="file-chip" href={address} download={name}>
      <Icon name="file" size={16} />
      <span>{name}</span>
      {file.bytes && <span class="muted">{bytes(file.bytes.length)}</span>}
    </a>
  );
}
