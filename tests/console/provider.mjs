// A real OpenID Connect provider (npm: oidc-provider) with a login page, for people in a browser.
//
//     node provider.mjs PORT REDIRECT_URI [TOKEN_PORT]
//
// With TOKEN_PORT its token endpoint is there, on another origin.

import http from 'node:http';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [port, redirect, tokenPort] = process.argv.slice(2);
const require = createRequire(new URL('../../console/package.json', import.meta.url));
const { Provider } = await import(pathToFileURL(require.resolve('oidc-provider')));

const issuer = `http://127.0.0.1:${port}`;
const audience = 'https://agent.example.com';
const provider = new Provider(issuer, {
  clients: [
    {
      client_id: 'console',
      token_endpoint_auth_method: 'none',
      grant_types: ['authorization_code'],
      response_types: ['code'],
      redirect_uris: [redirect],
    },
  ],
  cookies: { keys: ['only for this test'] },
  pkce: { required: () => true },
  clientBasedCORS: (_, origin) => origin === new URL(redirect).origin,
  ...(tokenPort ? { discovery: { token_endpoint: `http://127.0.0.1:${tokenPort}/token` } } : {}),
  features: {
    devInteractions: { enabled: true },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => audience,
      useGrantedResource: () => true,
      getResourceServerInfo: () => ({
        audience,
        scope: 'agent.run',
        accessTokenFormat: 'jwt',
        accessTokenTTL: 600,
        jwt: { sign: { alg: 'RS256' } },
      }),
    },
  },
});
const server = provider.listen(Number(port), '127.0.0.1', () => {
  if (!tokenPort) return console.log('ready');
  const { listeners } = { listeners: server.listeners('request') };
  const second = http.createServer((request, response) => {
    request.headers.host = `127.0.0.1:${port}`; // a second name for the same provider
    for (const each of listeners) each(request, response);
  });
  second.listen(Number(tokenPort), '127.0.0.1', () => console.log('ready'));
});
