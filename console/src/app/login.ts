/** How a person gets in: a token that is pasted or comes with the link, or the organisation's login page. */

import { keep, recall } from './keep';

export interface LoginOptions {
  version: string;
  title: string;
  login: { token: boolean; oidc?: { issuer: string; client_id: string; scope: string } };
}

const TOKEN = 'token';

/** Take the token out of the address, where it could be seen, copied or kept in the history. */
export function tokenFromAddress(): string {
  const fragment = new URLSearchParams(location.hash.slice(1));
  const token = fragment.get('token') ?? '';
  if (location.hash) history.replaceState(null, '', location.pathname + location.search);
  return token;
}

export const keptToken = (): string => recall(TOKEN, 'tab') || recall(TOKEN);

export function keepToken(token: string, remember: boolean): void {
  keep(TOKEN, token, 'tab');
  keep(TOKEN, remember ? token : '');
}

export const isRemembered = (): boolean => recall(TOKEN) !== '';

export function forgetToken(): void {
  keep(TOKEN, '', 'tab');
  keep(TOKEN, '');
}

/** How this service lets people in; undefined while it is away. */
export async function loginOptions(): Promise<LoginOptions | undefined> {
  try {
    const response = await fetch(`${import.meta.env.BASE_URL}config.json`);
    return response.ok ? ((await response.json()) as LoginOptions) : undefined;
  } catch {
    return undefined;
  }
}

interface Provider {
  authorization_endpoint: string;
  token_endpoint: string;
}

type Oidc = NonNullable<LoginOptions['login']['oidc']>;

async function providerOf(oidc: Oidc): Promise<Provider> {
  const response = await fetch(`${oidc.issuer.replace(/\/$/, '')}/.well-known/openid-configuration`);
  if (!response.ok) throw new Error(`${oidc.issuer}: HTTP ${response.status}`);
  return (await response.json()) as Provider;
}

const backAddress = (): string => `${location.origin}${import.meta.env.BASE_URL}login`;

/** Go to the login page of the organisation (authorization code with PKCE). */
export async function beginOidc(oidc: Oidc): Promise<void> {
  const verifier = random();
  const state = random();
  keep('oidc', JSON.stringify({ verifier, state, path: location.pathname }), 'tab');
  const digest = await crypto.subtle.digest('SHA-256', new TextEncoder().encode(verifier));
  const address = new URL((await providerOf(oidc)).authorization_endpoint);
  const asked = {
    response_type: 'code',
    client_id: oidc.client_id,
    redirect_uri: backAddress(),
    scope: oidc.scope,
    state,
    code_challenge: base64url(new Uint8Array(digest)),
    code_challenge_method: 'S256',
  };
  for (const [name, value] of Object.entries(asked)) address.searchParams.set(name, value);
  location.assign(address);
}

/** Back from the login page: the token for the code; '' where this is not such a return. */
export async function endOidc(oidc: Oidc): Promise<string> {
  const answer = new URLSearchParams(location.search);
  const begun = recall('oidc', 'tab');
  if (!answer.has('state')) return '';
  history.replaceState(null, '', import.meta.env.BASE_URL);
  if (!begun) return '';
  keep('oidc', '', 'tab');
  const { verifier, state, path } = JSON.parse(begun) as { verifier: string; state: string; path: string };
  history.replaceState(null, '', path);
  if (answer.get('state') !== state) throw new Error('The login page answered for another login. Try again.');
  const code = answer.get('code');
  if (!code) throw new Error(answer.get('error_description') ?? answer.get('error') ?? 'The login was refused.');
  const response = await fetch((await providerOf(oidc)).token_endpoint, {
    method: 'POST',
    body: new URLSearchParams({
      grant_type: 'authorization_code',
      code,
      redirect_uri: backAddress(),
      client_id: oidc.client_id,
      code_verifier: verifier,
    }),
  });
  const given = (await response.json()) as { access_token?: string; error_description?: string; error?: string };
  if (!given.access_token) throw new Error(given.error_description ?? given.error ?? `HTTP ${response.status}`);
  return given.access_token;
}

function random(): string {
  return base64url(crypto.getRandomValues(new Uint8Array(32)));
}

function base64url(bytes: Uint8Array): string {
  return btoa(String.fromCharCode(...bytes)).replaceAll('+', '-').replaceAll('/', '_').replaceAll('=', '');
}
