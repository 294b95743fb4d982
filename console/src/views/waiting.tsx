/** Everything that waits for a person, across all conversations. */

import { pathOf } from '../app/route';
import { waitingNow } from '../app/store';
import { t } from '../i18n';
import { AskCard } from './ask';
import { ago } from './format';
import { Empty, Page } from './parts';

export function WaitingPage() {
  const items = waitingNow.value;
  return (
    <Page title={t('page.waiting')}>
      {!items.length && (
        <Empty icon="check" title={t('nothingWaits')}>
          {t('nothingWaitsHint')}
        </Empty>
      )}
      <ul class="waiting">
        {items.map(({ task, interrupt }) => (
          <li key={interrupt.id}>
            <p class="waiting-from">
              <a href={pathOf('chat', task.contextId)}>{task.title || t('conversation')}</a>
              <time dateTime={task.at}>{ago(task.at)}</time>
            </p>
            <AskCard interrupt={interrupt} />
          </li>
        ))}
      </ul>
    </Page>
  );
}
