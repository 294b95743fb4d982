/** A patch as rows that can be shown side by side or one below the other. */

import { parsePatch } from 'diff';

export interface Row {
  kind: 'same' | 'added' | 'removed' | 'hunk';
  text: string;
  before?: number;
  after?: number;
}

export interface FilePatch {
  path: string;
  added: number;
  removed: number;
  rows: Row[];
  /** This file's part of the patch, to be copied. */
  patch: string;
}

export interface Pair {
  left?: Row;
  right?: Row;
}

/** What cannot be read as a patch is shown as it is. */
export function filesOf(patch: string): FilePatch[] {
  const parts = patch.split(/^(?=Index: |diff --git )/m).filter((each) => each.trim());
  return parts.flatMap((part) => {
    try {
      return parsePatch(part).map((file) => fileOf(file, part));
    } catch {
      return [unreadable(part)];
    }
  });
}

type Parsed = ReturnType<typeof parsePatch>[number];

function fileOf(file: Parsed, patch: string): FilePatch {
  const rows = file.hunks.flatMap(rowsOf);
  const named = [file.newFileName, file.oldFileName, file.index].find((each) => each && each !== '/dev/null');
  return {
    path: (named ?? '').replace(/^[ab]\//, ''),
    added: rows.filter((each) => each.kind === 'added').length,
    removed: rows.filter((each) => each.kind === 'removed').length,
    rows,
    patch,
  };
}

function rowsOf(hunk: Parsed['hunks'][number]): Row[] {
  let before = hunk.oldStart;
  let after = hunk.newStart;
  const head = `@@ -${hunk.oldStart},${hunk.oldLines} +${hunk.newStart},${hunk.newLines} @@`;
  const rows: Row[] = [{ kind: 'hunk', text: head }];
  for (const line of hunk.lines) {
    const text = line.slice(1);
    if (line.startsWith('+')) rows.push({ kind: 'added', text, after: after++ });
    else if (line.startsWith('-')) rows.push({ kind: 'removed', text, before: before++ });
    else if (line.startsWith(' ')) rows.push({ kind: 'same', text, before: before++, after: after++ });
  }
  return rows;
}

function unreadable(patch: string): FilePatch {
  const rows: Row[] = patch.split('\n').map((text) => ({ kind: 'same', text }));
  return { path: '', added: 0, removed: 0, rows, patch };
}

/** Removed lines beside the added ones that follow them. */
export function sideBySide(rows: readonly Row[]): Pair[] {
  const pairs: Pair[] = [];
  let removed: Row[] = [];
  let added: Row[] = [];
  const flush = () => {
    for (let at = 0; at < Math.max(removed.length, added.length); at += 1) {
      pairs.push({ left: removed[at], right: added[at] });
    }
    removed = [];
    added = [];
  };
  for (const row of rows) {
    if (row.kind === 'removed') {
      if (added.length) flush();
      removed.push(row);
    } else if (row.kind === 'added') {
      added.push(row);
    } else {
      flush();
      pairs.push({ left: row, right: row });
    }
  }
  flush();
  return pairs;
}
