// Vercel's AI SDK with the community's provider for A2A. Run in the folder where both are installed.

import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const STEP_MS = 90_000;
console.log = console.error; // the provider prints every event; what we print are the outcomes

const plan = JSON.parse(process.argv[2]);
const installed = createRequire(`${process.cwd()}/`);
const load = (name) => import(pathToFileURL(installed.resolve(name)));
const { a2a } = await import(
  pathToFileURL(`${process.cwd()}/node_modules/a2a-ai-provider/dist/index.js`)
);
const { generateText, streamText } = await load("ai");

// The provider has no option for a token: whoever uses it hands one over like this.
const plainFetch = globalThis.fetch;
globalThis.fetch = (url, init = {}) => {
  const headers = new Headers(init.headers);
  headers.set("authorization", `Bearer ${plan.token}`);
  return plainFetch(url, { ...init, headers });
};

class Lacking extends Error {}

const model = a2a(`${plan.url}/.well-known/agent-card.json`);
const options = (contextId) => ({ providerOptions: { a2a: { contextId } } });

const driver = {
  async discover() {
    throw new Lacking("the provider reads the card and does not show it");
  },
  async ask([prompt]) {
    return (await generateText({ model, prompt })).text;
  },
  async stream([prompt]) {
    const pieces = [];
    for await (const piece of streamText({ model, prompt }).textStream) pieces.push(piece);
    return pieces;
  },
  async converse(prompts) {
    const context = crypto.randomUUID();
    const shown = [];
    for (const prompt of prompts) {
      shown.push((await generateText({ model, prompt, ...options(context) })).text);
    }
    return shown;
  },
  async cancel() {
    throw new Lacking("the provider cannot cancel");
  },
};
driver.continue = driver.permission = driver.converse;

const late = () =>
  new Promise((_, reject) => {
    setTimeout(() => reject(new Error("no answer in time")), STEP_MS).unref();
  });

for (const step of plan.steps) {
  let outcome;
  try {
    outcome = { shown: await Promise.race([driver[step.name](step.prompts), late()]) };
  } catch (error) {
    console.error(error);
    if (error instanceof Lacking) outcome = { lacking: error.message };
    else outcome = { error: `${error.name}: ${error.message}`.slice(0, 300) };
  }
  process.stdout.write(`\n${JSON.stringify({ step: step.name, ...outcome })}\n`);
}
process.exit(0);
