/** Small parts that several pages use. */

import type { ComponentChildren } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';

import { t } from '../i18n';
import type { State } from '../state/task';
import { copyText } from '../text/copy';
import { Icon, type IconName } from './icons';

export function StateDot({ state }: { state: State }) {
  return <span class={`dot dot-${state}`} role="img" aria-label={t(`state.${state}`)} title={t(`state.${state}`)} />;
}

export function StateTag({ state }: { state: State }) {
  return (
    <span class={`tag tag-${state}`}>
      <span class={`dot dot-${state}`} aria-hidden="true" />
      {t(`state.${state}`)}
    </span>
  );
}

export function IconButton(props: {
  icon: IconName;
  label: string;
  onClick?: () => void;
  class?: string;
  type?: 'button' | 'submit';
  disabled?: boolean;
}) {
  return (
    <button
      type={props.type ?? 'button'}
      class={`icon-button ${props.class ?? ''}`}
      aria-label={props.label}
      title={props.label}
      disabled={props.disabled}
      onClick={props.onClick}
    >
      <Icon name={props.icon} />
    </button>
  );
}

export function CopyButton({ text, label }: { text: string | (() => string); label?: string }) {
  const button = useRef<HTMLButtonElement>(null);
  return (
    <button
      ref={button}
      type="button"
      class="quiet"
      onClick={() => void copyText(typeof text === 'string' ? text : text(), button.current ?? undefined)}
    >
      {label ?? t('copy')}
    </button>
  );
}

export function Empty({ icon, title, children }: { icon: IconName; title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <Icon name={icon} size={36} />
      <h2>{title}</h2>
      <div>{children}</div>
    </div>
  );
}

/** A page with a heading, beside the list of conversations. */
export function Page({ title, actions, children }: { title: string; actions?: ComponentChildren; children: ComponentChildren }) {
  return (
    <div class="page">
      <header class="page-head">
        <h1 tabIndex={-1}>{title}</h1>
        <div class="page-actions">{actions}</div>
      </header>
      <div class="page-body">{children}</div>
    </div>
  );
}

/** The time now, renewed each second while something is measured. */
export function useNow(running: boolean): number {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    if (!running) return undefined;
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, [running]);
  return now;
}

export function Raw({ value }: { value: unknown }) {
  const text = typeof value === 'string' ? value : JSON.stringify(value, null, 2);
  return (
    <div class="code">
      <div class="code-bar">
        <span>JSON</span>
        <CopyButton text={text} />
      </div>
      <pre tabIndex={0}>
        <code>{text}</code>
      </pre>
    </div>
  );
}
