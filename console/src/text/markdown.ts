/** Markdown as DOM nodes.
 *
 * Each token becomes an element made here, with the attributes named here. HTML in the text stays text, so there is
 * nothing to sanitise: no string of the model is ever parsed as HTML. */

import { Lexer, type Token, type Tokens } from 'marked';

import { t } from '../i18n';
import { copyText } from './copy';
import { highlighted } from './highlight';

const OPTIONS = { gfm: true, breaks: true };

/** Top-level tokens; what is only space is left out. */
export function lex(markdown: string): Token[] {
  return new Lexer(OPTIONS).lex(markdown);
}

export function render(tokens: readonly Token[]): DocumentFragment {
  const fragment = document.createDocumentFragment();
  for (const token of tokens) append(fragment, token);
  return fragment;
}

type Parent = DocumentFragment | HTMLElement;

function make(parent: Parent, name: string, children: readonly Token[] | undefined): HTMLElement {
  const element = document.createElement(name);
  for (const child of children ?? []) append(element, child);
  parent.append(element);
  return element;
}

const SIMPLE: Record<string, string> = { paragraph: 'p', strong: 'strong', em: 'em', del: 'del', blockquote: 'blockquote' };

function append(parent: Parent, token: Token): void {
  const simple = SIMPLE[token.type];
  if (simple) {
    make(parent, simple, (token as Tokens.Paragraph).tokens);
    return;
  }
  switch (token.type) {
    case 'space':
    case 'def':
      return;
    case 'heading':
      // The page has headings of its own above: those of a text begin one level deeper.
      make(parent, `h${Math.min((token as Tokens.Heading).depth + 2, 6)}`, token.tokens);
      return;
    case 'code':
      parent.append(codeBlock((token as Tokens.Code).text, (token as Tokens.Code).lang ?? ''));
      return;
    case 'codespan':
      make(parent, 'code', undefined).textContent = (token as Tokens.Codespan).text;
      return;
    case 'br':
    case 'hr':
      make(parent, token.type, undefined);
      return;
    case 'list':
      appendList(parent, token as Tokens.List);
      return;
    case 'table':
      appendTable(parent, token as Tokens.Table);
      return;
    case 'link':
      appendLink(parent, token as Tokens.Link);
      return;
    case 'image':
      appendImage(parent, token as Tokens.Image);
      return;
    case 'text':
      if (token.tokens) for (const child of token.tokens) append(parent, child);
      else parent.append(unescaped((token as Tokens.Text).text));
      return;
    case 'escape':
      parent.append((token as Tokens.Escape).text);
      return;
    default:
      parent.append(token.raw); // html, and whatever is not known here
  }
}

function appendList(parent: Parent, token: Tokens.List): void {
  const list = document.createElement(token.ordered ? 'ol' : 'ul');
  if ('goesOn' in token) list.className = 'goes-on';
  if (token.ordered && typeof token.start === 'number' && token.start !== 1) list.setAttribute('start', String(token.start));
  for (const item of token.items) {
    const element = document.createElement('li');
    if (item.task) {
      element.className = 'task';
      const box = document.createElement('input');
      box.type = 'checkbox';
      box.disabled = true;
      box.checked = item.checked === true;
      box.setAttribute('aria-label', item.checked ? t('done') : t('notDone'));
      element.append(box);
    }
    for (const child of item.tokens) if (child.type !== 'checkbox') append(element, child);
    list.append(element);
  }
  parent.append(list);
}

function appendTable(parent: Parent, token: Tokens.Table): void {
  const frame = document.createElement('div');
  frame.className = 'table-frame';
  frame.tabIndex = 0;
  frame.setAttribute('role', 'region');
  frame.setAttribute('aria-label', t('table'));
  const table = make(frame, 'table', undefined);
  const row = (where: HTMLElement, cells: Tokens.TableCell[], name: string) => {
    const line = make(where, 'tr', undefined);
    for (const cell of cells) {
      const element = make(line, name, cell.tokens);
      if (cell.align === 'center' || cell.align === 'right') element.className = cell.align;
    }
  };
  row(make(table, 'thead', undefined), token.header, 'th');
  const body = make(table, 'tbody', undefined);
  for (const cells of token.rows) row(body, cells, 'td');
  parent.append(frame);
}

/** An address a person may follow; anything else stays text. */
export function safeAddress(address: string): string | undefined {
  try {
    const url = new URL(address);
    return ['http:', 'https:', 'mailto:'].includes(url.protocol) ? url.href : undefined;
  } catch {
    return undefined; // relative addresses would lead to pages of this service
  }
}

function appendLink(parent: Parent, token: Tokens.Link): void {
  const address = safeAddress(token.href);
  const element = make(parent, address ? 'a' : 'span', token.tokens);
  if (!address) return;
  element.setAttribute('href', address);
  element.setAttribute('target', '_blank');
  element.setAttribute('rel', 'noopener noreferrer nofollow');
  element.title = address;
}

/** Pictures from elsewhere are not loaded, they would tell somebody who reads what; they become links. */
function appendImage(parent: Parent, token: Tokens.Image): void {
  const words = token.text || token.href;
  appendLink(parent, { ...token, type: 'link', tokens: [{ type: 'escape', raw: words, text: words }] } as Tokens.Link);
}

const NAMED: Record<string, string> = { '&amp;': '&', '&lt;': '<', '&gt;': '>', '&quot;': '"', '&#39;': "'" };

function unescaped(words: string): string {
  return words.replace(/&(?:amp|lt|gt|quot|#39);/g, (entity) => NAMED[entity] ?? entity);
}

/** A block of code with its language and a button that copies it. */
export function codeBlock(code: string, info: string, plain = false): HTMLElement {
  const language = (info.match(/^[\w+#.-]+/)?.[0] ?? '').toLowerCase();
  const frame = document.createElement('div');
  frame.className = 'code';
  const bar = document.createElement('div');
  bar.className = 'code-bar';
  const name = document.createElement('span');
  name.textContent = language || t('text');
  const button = document.createElement('button');
  button.type = 'button';
  button.className = 'quiet';
  button.textContent = t('copy');
  button.addEventListener('click', () => void copyText(frame.querySelector('code')?.textContent ?? '', button));
  bar.append(name, button);
  const pre = document.createElement('pre');
  pre.tabIndex = 0;
  const inner = document.createElement('code');
  inner.append(plain ? code : highlighted(code, language));
  pre.append(inner);
  frame.append(bar, pre);
  return frame;
}
