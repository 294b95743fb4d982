/** Highlighted code as DOM nodes. What highlight.js returns is read as spans and text; it never becomes HTML. */

import hljs from 'highlight.js/lib/core';
import bash from 'highlight.js/lib/languages/bash';
import css from 'highlight.js/lib/languages/css';
import diff from 'highlight.js/lib/languages/diff';
import go from 'highlight.js/lib/languages/go';
import java from 'highlight.js/lib/languages/java';
import json from 'highlight.js/lib/languages/json';
import markdown from 'highlight.js/lib/languages/markdown';
import python from 'highlight.js/lib/languages/python';
import rust from 'highlight.js/lib/languages/rust';
import sql from 'highlight.js/lib/languages/sql';
import typescript from 'highlight.js/lib/languages/typescript';
import xml from 'highlight.js/lib/languages/xml';
import yaml from 'highlight.js/lib/languages/yaml';

const LANGUAGES = { bash, css, diff, go, java, json, markdown, python, rust, sql, typescript, xml, yaml };
for (const [name, language] of Object.entries(LANGUAGES)) hljs.registerLanguage(name, language);
hljs.registerAliases(['javascript', 'js', 'jsx', 'mjs', 'cjs'], { languageName: 'typescript' });
hljs.registerAliases(['console', 'shell', 'zsh'], { languageName: 'bash' });

const MOST = 60_000; // characters; what is longer stays plain

const TOKEN = /<span class="([^"]*)">|<\/span>|&(amp|lt|gt|quot|#x27|#39);|[^<&]+|[<&]/g;
const ENTITIES: Record<string, string> = { amp: '&', lt: '<', gt: '>', quot: '"', '#x27': "'", '#39': "'" };

export function highlighted(code: string, language: string): DocumentFragment {
  const fragment = document.createDocumentFragment();
  if (code.length > MOST || !hljs.getLanguage(language)) {
    fragment.append(code);
    return fragment;
  }
  const open: (DocumentFragment | HTMLElement)[] = [fragment];
  for (const [token, name, entity] of hljs.highlight(code, { language, ignoreIllegals: true }).value.matchAll(TOKEN)) {
    const top = open.at(-1) ?? fragment;
    if (name !== undefined) {
      const span = document.createElement('span');
      span.className = name;
      top.append(span);
      open.push(span);
    } else if (token === '</span>') {
      open.pop();
    } else {
      top.append(entity ? (ENTITIES[entity] ?? token) : token);
    }
  }
  return fragment;
}

const ENDINGS: Record<string, string> = {
  c: 'java', cc: 'java', cpp: 'java', cs: 'java', h: 'java', kt: 'java', htm: 'xml', html: 'xml', md: 'markdown', py: 'python',
  rs: 'rust', sh: 'bash', svg: 'xml', ts: 'typescript', tsx: 'typescript', vue: 'xml', yml: 'yaml', toml: 'yaml', ini: 'yaml',
};

/** The language of a file, by how its name ends. */
export function languageOf(path: string): string {
  const ending = path.slice(path.lastIndexOf('.') + 1).toLowerCase();
  return ENDINGS[ending] ?? ending;
}
