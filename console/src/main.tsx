import './style.css';

import { render } from 'preact';

import { failureOf } from './a2a/failure';
import { loadCatalog } from './app/catalog';
import { endOidc, isRemembered, keptToken, loginOptions, tokenFromAddress } from './app/login';
import { installShell, tellOutside } from './app/notify';
import { watchAddress } from './app/route';
import { connect, loginFailure, options, tryAgainNow } from './app/store';
import { loadLanguage, watchLanguage } from './i18n';
import { Shell } from './views/shell';

async function logIn(given: string): Promise<void> {
  try {
    const { oidc } = options.value.login;
    const token = given || (oidc ? await endOidc(oidc) : '') || keptToken();
    if (token) await connect(token, isRemembered());
  } catch (error) {
    loginFailure.value = failureOf(error);
  }
}

async function start(): Promise<void> {
  const given = tokenFromAddress();
  watchAddress();
  const [found] = await Promise.all([loginOptions(), loadLanguage()]);
  watchLanguage();
  options.value = found;
  await logIn(given);
  loadCatalog();
  tellOutside();
  addEventListener('online', tryAgainNow);
  document.addEventListener('visibilitychange', () => document.visibilityState === 'visible' && tryAgainNow());
  render(<Shell />, document.getElementById('app') as HTMLElement);
  void installShell();
}

void start();
