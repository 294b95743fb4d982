import { useState } from 'preact/hooks';

import { askForNotifications, stopNotifications } from '../app/notify';
import { diffLayout, notifications, showReasoning, theme } from '../app/settings';
import { logOut, options } from '../app/store';
import { pushTarget } from '../app/webpush';
import { chosenLanguage, LANGUAGES, t } from '../i18n';
import { Page } from './parts';

const KEYS: [string, Parameters<typeof t>[0]][] = [
  ['n', 'newConversation'],
  ['/', 'search'],
  ['j k', 'keyNextPrevious'],
  ['w', 'page.waiting'],
  ['Enter', 'send'],
  ['Shift Enter', 'keyNewLine'],
  ['Esc', 'keyEscape'],
];

export function SettingsPage() {
  const [refused, setRefused] = useState(false);
  return (
    <Page title={t('page.settings')}>
      <div class="settings card">
        <Row label={t('theme')} value={theme.value} change={(value) => (theme.value = value as typeof theme.value)}
          options={[['auto', t('theme.auto')], ['light', t('theme.light')], ['dark', t('theme.dark')]]} />
        <Row label={t('language')} value={chosenLanguage.value} change={(value) => (chosenLanguage.value = value)}
          options={[['', t('language.auto')], ...Object.entries(LANGUAGES)]} />
        <Row label={t('diffs')} value={diffLayout.value} change={(value) => (diffLayout.value = value as 'split' | 'unified')}
          options={[['unified', t('unified')], ['split', t('split')]]} />
        <Row label={t('reasoning')} value={showReasoning.value} change={(value) => (showReasoning.value = value as 'open' | 'folded')}
          options={[['folded', t('folded')], ['open', t('unfolded')]]} />
        <label class="check">
          <input
            type="checkbox"
            checked={notifications.value === 'on'}
            onChange={(event) => {
              if (!event.currentTarget.checked) stopNotifications();
              else void askForNotifications().then((allowed) => setRefused(!allowed));
            }}
          />
          {t('notifyMe')}
        </label>
        {notifications.value === 'on' && <p class="muted small">{t(pushTarget.value ? 'toldAlways' : 'toldWhileOpen')}</p>}
        {refused && <p class="login-error">{t('notificationsRefused')}</p>}
      </div>
      <h2>{t('keys')}</h2>
      <dl class="keys">
        {KEYS.map(([keys, what]) => (
          <div key={keys}>
            <dt>
              {keys.split(' ').map((each) => (
                <kbd key={each}>{each}</kbd>
              ))}
            </dt>
            <dd>{t(what)}</dd>
          </div>
        ))}
      </dl>
      <p class="page-foot">
        <button type="button" onClick={logOut}>
          {t('logOut')}
        </button>
        <span class="muted small">
          {options.value.title} {options.value.version}
        </span>
      </p>
    </Page>
  );
}

interface RowProps {
  label: string;
  value: string;
  options: [string, string][];
  change(value: string): void;
}

function Row({ label, value, options: choices, change }: RowProps) {
  return (
    <label class="row">
      <span>{label}</span>
      <select value={value} onChange={(event) => change(event.currentTarget.value)}>
        {choices.map(([each, name]) => (
          <option key={each} value={each}>
            {name}
          </option>
        ))}
      </select>
    </label>
  );
}
