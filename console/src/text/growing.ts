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

/** Every top-level token but the last with content is finished. */
export function cut(markdown: string): Cut {
  const tokens = lex(markdown);
  let last = tokens.length - 1;
  while (last > 0 && tokens[last]?.type === 'space') last -= 1;
  const frozen = tokens.slice(0, Math.max(last, 0));
  const length = frozen.reduce((sum, each) => sum + each.raw.length, 0);
  return { frozen, tail: tokens.slice(Math.max(last, 0)), length };
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

export class GrowingMarkdown {
  #text = '';
  #done = 0; // characters that are finished
  #tail: Node[] = [];
  #openCode: Text | undefined;

  constructor(private readonly element: HTMLElement) {}

  /** Show this text; `final` says that no more will come. */
  show(text: string, final: boolean): void {
    if (!text.startsWith(this.#text)) this.#reset();
    // Links may be defined after they are used: then everything is drawn once more at the end.
    if (final && this.#done && /^ {0,3}\[[^\]]+\]: /m.test(text)) this.#reset();
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
