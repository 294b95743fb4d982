/** A Markdown text that grows while it is shown.
 *
 * Only its unfinished end is read and drawn again; everything before is left as it is. So an answer of ten thousand
 * lines costs at each step what its last paragraph costs. */

import type { Token, Tokens } from 'marked';

import { codeBlock, lex, render } from './markdown';

/** Where the text can be cut: what is before is finished, whatever follows. */
export interface Cut {
  frozen: Token[];
  tail: Token[];
  length: number;
}

/** Every top-level token but the last with content is finished; of a long list, all items but the last. */
export function cut(markdown: string): Cut {
  const tokens = lex(markdown);
  let last = tokens.length - 1;
  while (last > 0 && tokens[last]?.type === 'space') last -= 1;
  const frozen = tokens.slice(0, Math.max(last, 0));
  const length = frozen.reduce((sum, each) => sum + each.raw.length, 0);
  const begun = beginningOf(tokens[last]);
  if (!begun) return { frozen, tail: tokens.slice(Math.max(last, 0)), length };
  const next = length + begun.raw.length;
  return { frozen: [...frozen, begun], tail: lex(markdown.slice(next)), length: next };
}

const LONG_LIST = 40; // items

/** A list as the one before another: shown without a gap between them. */
export interface ListBeginning extends Tokens.List {
  goesOn: true;
}

/** The finished items of a long list, if what follows them can be read as a list by itself. */
function beginningOf(token: Token | undefined): ListBeginning | undefined {
  if (token?.type !== 'list') return undefined;
  const list = token as Tokens.List;
  const items = list.items.slice(0, -1);
  if (items.length < LONG_LIST) return undefined;
  const raw = items.map((each) => each.raw).join('');
  const rest = list.raw.slice(raw.length);
  if (!list.raw.startsWith(raw) || !raw.endsWith('\n')) return undefined;
  const number = /^(\d+)[.)] /.exec(rest)?.[1];
  if (list.ordered ? Number(number) !== Number(list.start || 1) + items.length : !/^[-*+] /.test(rest)) return undefined;
  return { ...list, raw, items, goesOn: true };
}

const FENCE = /^ {0,3}(`{3,}|~{3,})/;

/** A code block whose closing fence has not come yet. */
export function isOpenCode(token: Token | undefined): token is Tokens.Code {
  if (token?.type !== 'code') return false;
  const fence = FENCE.exec(token.raw)?.[1];
  if (!fence) return false;
  const lastLine = token.raw.trimEnd().split('\n').at(-1) ?? '';
  return !(lastLine.trim().startsWith(fence) && token.raw.trimEnd().includes('\n'));
}

const STEP = 12_000; // characters

export class GrowingMarkdown {
  #text = '';
  #done = 0; // characters that are finished
  #tail: Node[] = [];
  #openCode: Text | undefined;

  constructor(private readonly element: HTMLElement) {}

  /** Show more of this text, as much as can be drawn without being noticed; whether that was all.
   *
   * `final` says that no more will come. */
  advance(text: string, final: boolean): boolean {
    if (!text.startsWith(this.#text)) this.#reset();
    const isAll = text.length - this.#text.length <= STEP;
    this.#show(isAll ? text : text.slice(0, this.#text.length + STEP), final && isAll);
    return isAll;
  }

  #show(text: string, final: boolean): void {
    // Links may be defined after they are used: then everything is drawn once more at the end, if that is not too much.
    if (final && this.#done && text.length <= 5 * STEP && /^ {0,3}\[[^\]]+\]: /m.test(text)) this.#reset();
    if (text === this.#text && !final) return;
    this.#text = text;
    const { frozen, tail, length } = cut(text.slice(this.#done));
    if (frozen.length === 0 && !final && this.#extend(tail)) return;
    this.#clearTail();
    this.element.append(render(frozen));
    this.#done += length;
    this.#drawTail(tail, final);
  }

  #drawTail(tail: Token[], final: boolean): void {
    const [only] = tail;
    const open = !final && isOpenCode(only) ? only : undefined;
    const drawn = open ? codeBlock(open.text, open.lang ?? '', true) : render(tail);
    this.#tail = drawn instanceof DocumentFragment ? [...drawn.childNodes] : [drawn];
    this.element.append(drawn);
    const code = open ? this.element.lastElementChild?.querySelector('code') : undefined;
    this.#openCode = code ? ((code.firstChild ?? code.appendChild(document.createTextNode(''))) as Text) : undefined;
  }

  /** An open code block only gets more text. */
  #extend(tail: Token[]): boolean {
    const [only] = tail;
    const shown = this.#openCode;
    if (!shown || !isOpenCode(only) || !only.text.startsWith(shown.data)) return false;
    shown.appendData(only.text.slice(shown.length));
    return true;
  }

  #clearTail(): void {
    for (const node of this.#tail) node.parentNode?.removeChild(node);
    this.#tail = [];
    this.#openCode = undefined;
  }

  #reset(): void {
    this.element.replaceChildren();
    this.#text = '';
    this.#done = 0;
    this.#tail = [];
    this.#openCode = undefined;
  }
}
