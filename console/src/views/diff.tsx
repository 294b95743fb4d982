/** What was changed, file by file. */

import { useMemo, useState } from 'preact/hooks';

import { diffLayout } from '../app/settings';
import { t } from '../i18n';
import { type FilePatch, filesOf, type Row, sideBySide } from '../state/patch';
import { Icon } from './icons';
import { CopyButton } from './parts';

const MOST_ROWS = 400;

export function Diff({ patch, title }: { patch: string; title?: string }) {
  const files = useMemo(() => filesOf(patch), [patch]);
  const added = files.reduce((sum, each) => sum + each.added, 0);
  const removed = files.reduce((sum, each) => sum + each.removed, 0);
  const split = diffLayout.value === 'split';
  return (
    <section class="card diff" aria-label={title ?? t('changes')}>
      <header class="card-head">
        <Icon name="edit" />
        <strong>{title ?? t('filesChanged', { n: files.length })}</strong>
        <Counts added={added} removed={removed} />
        <span class="grow" />
        <button
          type="button"
          class="quiet wide-only"
          aria-pressed={split}
          onClick={() => {
            diffLayout.value = split ? 'unified' : 'split';
          }}
        >
          {split ? t('unified') : t('split')}
        </button>
        <CopyButton text={patch} label={t('copyPatch')} />
      </header>
      {files.map((file, at) => (
        <DiffFile key={`${file.path}:${at}`} file={file} open={files.length <= 3} split={split} />
      ))}
    </section>
  );
}

function Counts({ added, removed }: { added: number; removed: number }) {
  return (
    <span class="counts">
      <span class="plus" aria-label={t('linesAdded', { n: added })}>
        +{added}
      </span>{' '}
      <span class="minus" aria-label={t('linesRemoved', { n: removed })}>
        −{removed}
      </span>
    </span>
  );
}

function DiffFile({ file, open, split }: { file: FilePatch; open: boolean; split: boolean }) {
  const [whole, setWhole] = useState(false);
  const rows = whole ? file.rows : file.rows.slice(0, MOST_ROWS);
  return (
    <details class="diff-file" open={open}>
      <summary>
        <Icon name="chevron" size={14} />
        <span class="path">{file.path || t('patch')}</span>
        <Counts added={file.added} removed={file.removed} />
      </summary>
      <div class="diff-frame" tabIndex={0} role="region" aria-label={file.path}>
        {split ? <Split rows={rows} /> : <Unified rows={rows} />}
      </div>
      <footer class="diff-foot">
        <CopyButton text={file.patch} label={t('copyPatch')} />
        {rows.length < file.rows.length && (
          <button type="button" class="quiet" onClick={() => setWhole(true)}>
            {t('showAll', { n: file.rows.length })}
          </button>
        )}
      </footer>
    </details>
  );
}

const SIGN = { added: '+', removed: '−', same: ' ', hunk: '' };

function Unified({ rows }: { rows: Row[] }) {
  return (
    <table class="diff-rows">
      <tbody>
        {rows.map((row, at) => (
          <tr key={at} class={`row-${row.kind}`}>
            <td class="number">{row.before ?? ''}</td>
            <td class="number">{row.after ?? ''}</td>
            <td class="line">
              <span class="sign">{SIGN[row.kind]}</span>
              {row.text}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Split({ rows }: { rows: Row[] }) {
  return (
    <table class="diff-rows split">
      <tbody>
        {sideBySide(rows).map(({ left, right }, at) => (
          <tr key={at}>
            <td class="number">{left?.before ?? ''}</td>
            <td class={`line row-${left?.kind ?? 'none'}`}>{left?.text ?? ''}</td>
            <td class="number">{right?.after ?? ''}</td>
            <td class={`line row-${right?.kind ?? 'none'}`}>{left?.kind === 'hunk' ? '' : (right?.text ?? '')}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
