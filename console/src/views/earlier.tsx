/** The part of a conversation that no task of ours tells: a fork's past, or what happened in OpenCode's terminal. */

import { useEffect, useState } from 'preact/hooks';

import type { Json } from '../a2a/service';
import { act, loaded, tasksOf } from '../app/store';
import { t } from '../i18n';
import { beforeTasks, type Earlier as Said, earlierOf } from '../state/session';
import { BlockView } from './blocks';
import { SaidView } from './turn';

const PREFIX = 'ctx:opencode-session:';

export function Earlier({ contextId }: { contextId: string }) {
  const [messages, setMessages] = useState<Said[]>([]);
  const sessionId = contextId.startsWith(PREFIX) ? contextId.slice(PREFIX.length) : '';
  const known = loaded.value.has(contextId);
  useEffect(() => {
    setMessages([]);
    if (!sessionId || !known) return;
    const told = new Set(tasksOf(contextId).flatMap((task) => task.blocks.map((each) => ('messageId' in each && each.messageId) || '')));
    const params = { session_id: sessionId, limit: 100 };
    void act((service) => service.call<{ items: Json[] }>('opencode.sessions.messages.list', params)).then((page) =>
      setMessages(beforeTasks(earlierOf(page?.items ?? []), told)),
    );
  }, [sessionId, known]);
  if (!messages.length) return null;
  return (
    <section class="earlier" aria-label={t('earlier')}>
      {messages.map((each) => (
        <article class="turn" key={each.id}>
          {each.said && <SaidView said={each.said} />}
          <div class="agent">
            {each.blocks.map((block) => (
              <BlockView key={block.id} block={block} final subagents={[]} />
            ))}
          </div>
        </article>
      ))}
      <p class="divider">{t('earlier')}</p>
    </section>
  );
}
