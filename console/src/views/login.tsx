import { useState } from 'preact/hooks';

import { type Failure, failureOf } from '../a2a/failure';
import { beginOidc, isRemembered } from '../app/login';
import { connect, expired, loginFailure, options } from '../app/store';
import { t } from '../i18n';

function whatFailed(failure: Failure): string {
  if (failure.kind === 'login') return t(expired.value ? 'tokenExpired' : 'tokenWrong');
  return failure.kind === 'network' ? t('unreachable', { why: failure.message }) : failure.message;
}

export function Login() {
  const [token, setToken] = useState('');
  const [remember, setRemember] = useState(isRemembered());
  const [busy, setBusy] = useState(false);
  const { login, title } = options.value;
  const failure = loginFailure.value;
  const enter = async () => {
    setBusy(true);
    try {
      await connect(token.trim(), remember);
    } catch (error) {
      loginFailure.value = failureOf(error);
    }
    setBusy(false);
  };
  return (
    <main class="login">
      <form
        class="login-card"
        onSubmit={(event) => {
          event.preventDefault();
          void enter();
        }}
      >
        <img src={`${import.meta.env.BASE_URL}icon.svg`} alt="" width={52} height={52} />
        <h1>{title}</h1>
        <p class="muted">{t('loginIntro')}</p>
        {failure && (
          <p class="login-error" role="alert">
            {whatFailed(failure)}
          </p>
        )}
        {login.oidc && (
          <button type="button" class="primary" onClick={() => login.oidc && void beginOidc(login.oidc)}>
            {t('loginWith')}
          </button>
        )}
        {login.token && (
          <>
            <label>
              {t('token')}
              <input
                type="password"
                name="token"
                autocomplete="current-password"
                value={token}
                onInput={(event) => setToken(event.currentTarget.value)}
                required
              />
            </label>
            <label class="check">
              <input type="checkbox" checked={remember} onChange={(event) => setRemember(event.currentTarget.checked)} />
              {t('remember')}
            </label>
            <button type="submit" class={login.oidc ? '' : 'primary'} disabled={busy || !token.trim()}>
              {t('logIn')}
            </button>
            <p class="muted small">
              {t('tokenHint')} <code>opencode-a2a token</code>
            </p>
          </>
        )}
      </form>
    </main>
  );
}
