/** Small things kept in the browser: in this tab, or on this device. A browser that forbids it only forgets. */

export type Where = 'tab' | 'device';

const storage = (where: Where): Storage => (where === 'tab' ? sessionStorage : localStorage);

export function recall(key: string, where: Where = 'device'): string {
  try {
    return storage(where).getItem(`console.${key}`) ?? '';
  } catch {
    return '';
  }
}

/** What was written and not sent yet: of a conversation, or of a new one. */
export const draftOf = (conversation: string): string => recall(`draft.${conversation}`, 'tab');

export const keepDraft = (conversation: string, text: string): void => keep(`draft.${conversation}`, text, 'tab');

export function forgetDrafts(): void {
  try {
    for (const key of Object.keys(sessionStorage)) if (key.startsWith('console.draft.')) sessionStorage.removeItem(key);
  } catch {
    // private windows
  }
}

export function keep(key: string, value: string, where: Where = 'device'): void {
  try {
    if (value) storage(where).setItem(`console.${key}`, value);
    else storage(where).removeItem(`console.${key}`);
  } catch {
    // private windows and full disks
  }
}
