/** Copying to the clipboard, and saying on the button that it was done. */

import { t } from '../i18n';

export async function copyText(text: string, button?: HTMLElement): Promise<void> {
  const done = await write(text);
  if (!button) return;
  const before = button.textContent;
  button.textContent = done ? t('copied') : t('notCopied');
  setTimeout(() => {
    button.textContent = before;
  }, 1500);
}

async function write(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return byHand(text); // no secure context, such as plain http on a network
  }
}

function byHand(text: string): boolean {
  const field = document.createElement('textarea');
  field.value = text;
  field.className = 'off-screen';
  document.body.append(field);
  field.select();
  const done = document.execCommand('copy');
  field.remove();
  return done;
}
