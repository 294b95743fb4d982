import './style.css';

import { render } from 'preact';

import { failureOf } from './a2a/failure';
import { loadCatalog } from './app/catalog';
import { endOidc, isRemembered, keptToken, loginOptions, tokenFromAddress } from './app/login';
import { installShell, tellOutside } from './app/notify';
import { readAddress, watchAddress } from './app/route';
import { connect, loginFailure, options, service, starting, tryAgainNow } from './app/store';
import { loadLanguage, watchLanguage } from './i18n';
import { Shell } from './views/shell';

const AGAIN_MS = 3_000;

async function logIn(given: string): Promise<void> {
  try {
    const { oidc } = options.value.login;
    const token = given || (oidc ? await endOidc(oidc) : '') || keptToken();
    readAddress(); // the login page comes back to an address of its own
    if (token) await connect(token, isRemembered());
  } catch (error) {
    loginFailure.value = failureOf(error);
    // The page was opened while the service was away: it goes on by itself when the service is back.
    if (loginFailure.value.kind === 'network') setTimeout(() => void (service.peek() || logIn(given)), AGAIN_MS);
  }
}

/** Before the service has answered, a token is what can be offered. */
async function askHowToLogIn(): Promise<void> {
  const found = await loginOptions();
  if (found) options.value = found;
  else setTimeout(() => void askHowToLogIn(), AGAIN_MS);
}

async function start(): Promise<void> {
  const given = tokenFromAddress();
  watchAddress();
  await Promise.all([askHowToLogIn(), loadLanguage()]);
  watchLanguage();
  const root = document.getElementById('app') as HTMLElement;
  root.replaceChildren();
  render(<Shell />, root);
  await logIn(given);
  starting.value = false;
  loadCatalog();
  tellOutside();
  addEventListener('online', tryAgainNow);
  document.addEventListener('visibilitychange', () => document.visibilityState === 'visible' && tryAgainNow());
  void installShell();
}

void start();
