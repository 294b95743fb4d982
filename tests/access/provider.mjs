// A real OpenID Connect provider (npm: oidc-provider), for clients that log in by themselves.
//
//     node provider.mjs PORT KEY     in the folder where it is installed; KEY names its signing key

import { generateKeyPairSync } from "node:crypto";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [port, kid] = process.argv.slice(2);
const installed = createRequire(`${process.cwd()}/`);
const { Provider } = await import(pathToFileURL(installed.resolve("oidc-provider")));

const { privateKey } = generateKeyPairSync("rsa", { modulusLength: 2048 });
const key = { ...privateKey.export({ format: "jwk" }), kid, alg: "RS256", use: "sig" };
const audience = "https://agent.example.com";

const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [
    {
      client_id: "ci",
      client_secret: "secret-of-ci",
      grant_types: ["client_credentials"],
      redirect_uris: [],
      response_types: [],
    },
  ],
  jwks: { keys: [key] },
  features: {
    devInteractions: { enabled: false },
    clientCredentials: { enabled: true },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => audience,
      getResourceServerInfo: (_, resource) => ({
        audience: resource,
        scope: "agent.run agent.audit",
        accessTokenFormat: "jwt",
        accessTokenTTL: 600,
        jwt: { sign: { alg: "RS256" } },
      }),
    },
  },
});
provider.listen(Number(port), "127.0.0.1", () => console.log("ready"));
