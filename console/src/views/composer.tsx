/** Where a message is written: Enter sends it, files are dropped or pasted, model and agent are chosen. */

import { useSignal } from '@preact/signals';
import { useEffect, useRef, useState } from 'preact/hooks';

import { type Attachment, cancel, send } from '../app/actions';
import { agents, models, worktrees } from '../app/catalog';
import { draftOf, keepDraft } from '../app/keep';
import { chosenAgent, chosenModel } from '../app/settings';
import { t } from '../i18n';
import type { TaskView } from '../state/task';
import { bytes } from './format';
import { Icon } from './icons';
import { IconButton } from './parts';

const TALLEST = 320;

interface Props {
  contextId: string;
  /** The task at work in this conversation: the next message waits for it. */
  running?: TaskView;
  /** The first message of a conversation also says where the agent works. */
  fresh: boolean;
  sent?(): void;
}

export function Composer({ contextId, running, fresh, sent }: Props) {
  const draftKey = fresh ? 'new' : contextId;
  const [text, setText] = useState(() => draftOf(draftKey));
  const [files, setFiles] = useState<Attachment[]>([]);
  const [over, setOver] = useState(false);
  const place = useSignal({ directory: '', worktree: false, variant: '' });
  const field = useRef<HTMLTextAreaElement>(null);

  useEffect(() => {
    setText(draftOf(draftKey));
    setFiles([]);
    if (matchMedia('(min-width: 800px)').matches) field.current?.focus();
  }, [draftKey]);
  useEffect(() => {
    const element = field.current;
    if (!element) return;
    element.style.height = 'auto';
    element.style.height = `${Math.min(element.scrollHeight, TALLEST)}px`;
    keepDraft(draftKey, text);
  }, [text, draftKey]);

  const add = async (list: Iterable<File>) => setFiles([...files, ...(await Promise.all([...list].map(read)))]);
  const submit = async () => {
    const said = text.trim();
    if (!said && !files.length) return;
    setText('');
    setFiles([]);
    sent?.();
    const { directory, worktree, variant } = place.value;
    const where = fresh ? { directory: directory || undefined, worktree } : {};
    const model = chosenModel.value || undefined;
    const done = await send({ text: said, attachments: files, contextId, model, agent: chosenAgent.value, variant, ...where });
    if (!done) {
      setText(said);
      setFiles(files);
    }
  };

  return (
    <form
      class={`composer ${over ? 'over' : ''}`}
      onSubmit={(event) => {
        event.preventDefault();
        void submit();
      }}
      onDragOver={(event) => {
        event.preventDefault();
        setOver(true);
      }}
      onDragLeave={() => setOver(false)}
      onDrop={(event) => {
        event.preventDefault();
        setOver(false);
        void add(event.dataTransfer?.files ?? []);
      }}
    >
      {fresh && <Place place={place.value} change={(next) => (place.value = { ...place.value, ...next })} />}
      <Attachments files={files} remove={(at) => setFiles(files.toSpliced(at, 1))} />
      <textarea
        ref={field}
        rows={1}
        value={text}
        placeholder={running ? t('queuePlaceholder') : t('messagePlaceholder')}
        aria-label={t('message')}
        onInput={(event) => setText(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
          event.preventDefault();
          void submit();
        }}
        onPaste={(event) => {
          const pasted = [...(event.clipboardData?.files ?? [])];
          if (!pasted.length) return;
          event.preventDefault();
          void add(pasted);
        }}
      />
      <div class="composer-bar">
        <FilePicker add={add} />
        <Choices variant={place.value.variant} change={(variant) => (place.value = { ...place.value, variant })} />
        <span class="grow" />
        {running && (
          <button type="button" class="stop" onClick={() => void cancel(running)}>
            <Icon name="stop" size={16} /> {t('stop')}
          </button>
        )}
        <IconButton
          type="submit"
          icon="send"
          class="send"
          label={running ? t('queue') : t('send')}
          disabled={!text.trim() && !files.length}
        />
      </div>
    </form>
  );
}

async function read(file: File): Promise<Attachment> {
  const mediaType = file.type || 'text/plain';
  return { name: file.name || 'pasted', mediaType, bytes: new Uint8Array(await file.arrayBuffer()) };
}

function FilePicker({ add }: { add(files: Iterable<File>): void }) {
  const picker = useRef<HTMLInputElement>(null);
  return (
    <>
      <IconButton icon="clip" label={t('attach')} onClick={() => picker.current?.click()} />
      <input
        ref={picker}
        type="file"
        multiple
        hidden
        aria-hidden="true"
        onChange={(event) => {
          add(event.currentTarget.files ?? []);
          event.currentTarget.value = '';
        }}
      />
    </>
  );
}

function Attachments({ files, remove }: { files: Attachment[]; remove(at: number): void }) {
  if (!files.length) return null;
  return (
    <ul class="attachments" aria-label={t('attachments')}>
      {files.map((each, at) => (
        <li key={at} class="file-chip">
          <Icon name="file" size={16} />
          <span>{each.name}</span>
          <span class="muted">{bytes(each.bytes.length)}</span>
          <IconButton icon="cross" label={t('removeFile', { name: each.name })} onClick={() => remove(at)} />
        </li>
      ))}
    </ul>
  );
}

function Choices({ variant, change }: { variant: string; change(variant: string): void }) {
  const variants = models.value.find((each) => each.id === chosenModel.value)?.variants ?? [];
  return (
    <>
      {models.value.length > 0 && (
        <select
          aria-label={t('model')}
          value={chosenModel.value}
          onChange={(event) => {
            chosenModel.value = event.currentTarget.value;
            change('');
          }}
        >
          <option value="">{t('defaultModel')}</option>
          {models.value.map((each) => (
            <option key={each.id} value={each.id}>
              {each.name}
            </option>
          ))}
        </select>
      )}
      {variants.length > 0 && (
        <select aria-label={t('variant')} value={variant} onChange={(event) => change(event.currentTarget.value)}>
          <option value="">{t('defaultVariant')}</option>
          {variants.map((each) => (
            <option key={each}>{each}</option>
          ))}
        </select>
      )}
      {agents.value.length > 1 && (
        <select
          aria-label={t('agent')}
          value={chosenAgent.value}
          onChange={(event) => {
            chosenAgent.value = event.currentTarget.value;
          }}
        >
          <option value="">{t('defaultAgent')}</option>
          {agents.value.map((each) => (
            <option key={each}>{each}</option>
          ))}
        </select>
      )}
    </>
  );
}

interface PlaceChoice {
  directory: string;
  worktree: boolean;
}

function Place({ place, change }: { place: PlaceChoice; change(next: Partial<PlaceChoice>): void }) {
  return (
    <details class="place">
      <summary>
        <Icon name="chevron" size={14} /> {t('where')}
        <span class="muted">{place.worktree ? t('ownWorktree') : place.directory || t('workspaceRoot')}</span>
      </summary>
      <div class="place-fields">
        <label>
          {t('directory')}
          <input
            type="text"
            list="worktrees"
            value={place.directory}
            placeholder={t('workspaceRoot')}
            onInput={(event) => change({ directory: event.currentTarget.value })}
          />
        </label>
        <datalist id="worktrees">
          {worktrees.value.map((each) => (
            <option key={each} value={each} />
          ))}
        </datalist>
        <label class="check">
          <input type="checkbox" checked={place.worktree} onChange={(event) => change({ worktree: event.currentTarget.checked })} />
          {t('ownWorktree')}
        </label>
      </div>
    </details>
  );
}
