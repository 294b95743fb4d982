// A browser driven by lines: each line of input is a call, each line of output what came of it.
//
//   in   {"id": 1, "call": "fill", "page": 1, "selector": "textarea", "value": "Hello"}
//   out  {"id": 1, "result": null}   or   {"id": 1, "error": "…"}
//
//   node driver.mjs CHROMIUM CONSOLE_FILES

import { createReadStream, existsSync, readFileSync, statSync } from 'node:fs';
import http from 'node:http';
import { createRequire } from 'node:module';
import { extname, join } from 'node:path';
import { createInterface } from 'node:readline';

const [chromiumPath, files] = process.argv.slice(2);
const require = createRequire(new URL('../../console/package.json', import.meta.url));
const { chromium } = require('playwright-core');
const axe = readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');

const PATIENCE_MS = 90_000;

const POLICY = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  "img-src 'self' data: blob:",
  "connect-src 'self'",
  "manifest-src 'self'",
  "worker-src 'self'",
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
  "require-trusted-types-for 'script'",
  'trusted-types console',
].join('; ');
const TYPES = {
  '.css': 'text/css',
  '.html': 'text/html',
  '.js': 'text/javascript',
  '.png': 'image/png',
  '.svg': 'image/svg+xml',
  '.webmanifest': 'application/manifest+json',
};

/** What a proxy in front of a service does, on a port of its own; it can cut every connection, and answer in the place of
 * the service. A service that does not serve the console gets it from here. */
async function front(service) {
  const { hostname, port } = new URL(service);
  const served = (await fetch(`${service}/console`)).ok;
  const made = { sockets: new Set(), answers: [] };
  const { sockets } = made;
  const server = http.createServer((request, response) => {
    const { pathname } = new URL(request.url, service);
    const instead = made.answers.find(({ path }) => new RegExp(path).test(pathname));
    if (instead) {
      response.writeHead(instead.status, { 'content-type': 'text/html' });
      response.end(instead.body);
    } else if (!served && pathname === '/console/config.json') {
      response.setHeader('content-type', 'application/json');
      response.end(JSON.stringify({ version: 'test', title: 'OpenCode', login: { token: true } }));
    } else if (!served && pathname.startsWith('/console')) {
      let file = join(files, pathname.slice('/console'.length));
      if (!existsSync(file) || statSync(file).isDirectory()) file = join(files, 'index.html');
      response.setHeader('content-type', TYPES[extname(file)] ?? 'application/octet-stream');
      response.setHeader('content-security-policy', POLICY);
      createReadStream(file).pipe(response);
    } else {
      const { method, url, headers } = request;
      const onward = http.request({ hostname, port, method, path: url, headers }, (answer) => {
        response.writeHead(answer.statusCode, answer.headers);
        answer.pipe(response);
      });
      onward.on('error', () => response.destroy());
      response.on('close', () => onward.destroy());
      request.pipe(onward);
    }
  });
  server.on('connection', (socket) => {
    sockets.add(socket);
    socket.on('close', () => sockets.delete(socket));
  });
  return new Promise((resolve) => {
    server.listen(0, '127.0.0.1', () => resolve(Object.assign(made, { url: `http://127.0.0.1:${server.address().port}` })));
  });
}

const browser = await chromium.launch({ executablePath: chromiumPath });
const fronts = new Map();
const pages = new Map();

const calls = {
  async front({ service }) {
    const made = await front(service);
    fronts.set(made.url, made);
    return made.url;
  },
  cut({ front: url }) {
    for (const socket of fronts.get(url).sockets) socket.destroy();
  },
  /** Answer requests whose path matches so; none: pass everything on. */
  answer({ front: url, answers }) {
    fronts.get(url).answers = answers;
  },
  async open({ page: number, url, options, before }) {
    const context = await browser.newContext(options);
    if (before) await context.addInitScript(before);
    const page = await context.newPage();
    page.setDefaultTimeout(PATIENCE_MS);
    const said = [];
    page.on('pageerror', (error) => said.push(`error: ${error.message}`));
    page.on('dialog', (dialog) => {
      said.push(`dialog: ${dialog.message()}`);
      return dialog.dismiss();
    });
    page.on('console', (message) => {
      // A service that is away, a wrong token: the browser reports each of them by itself.
      if (message.type() === 'error' && !message.text().startsWith('Failed to load')) said.push(message.text());
    });
    pages.set(number, { page, context, said });
    await page.goto(url);
  },
  async close({ page }) {
    await pages.get(page).context.close();
    pages.delete(page);
  },
  goto: ({ page, url }) => at(page).goto(url).then(() => null),
  reload: ({ page }) => at(page).reload().then(() => null),
  fill: ({ page, selector, value }) => at(page).fill(selector, value),
  click: ({ page, selector }) => at(page).click(selector),
  choose: ({ page, selector, value }) => at(page).selectOption(selector, value).then(() => null),
  press: ({ page, key }) => at(page).keyboard.press(key),
  attach: ({ page, selector, file, mimeType, base64 }) =>
    at(page).setInputFiles(selector, { name: file, mimeType, buffer: Buffer.from(base64, 'base64') }),
  wait: ({ page, selector, state }) => at(page).waitForSelector(selector, { state: state ?? 'visible' }).then(() => null),
  until: ({ page, script }) => until((it) => at(page).evaluate(it), script),
  evaluate: ({ page, script }) => at(page).evaluate(script),
  text: ({ page, selector }) => at(page).locator(selector).first().innerText(),
  texts: ({ page, selector }) => at(page).locator(selector).allInnerTexts(),
  count: ({ page, selector }) => at(page).locator(selector).count(),
  url: ({ page }) => at(page).url(),
  said: ({ page }) => pages.get(page).said,
  scheme: ({ page, scheme }) => at(page).emulateMedia({ colorScheme: scheme }),
  size: ({ page, width, height }) => at(page).setViewportSize({ width, height }),
  picture: ({ page, path }) => at(page).screenshot({ path, animations: 'disabled', caret: 'hide' }).then(() => null),
  async violations({ page }) {
    // Through the DevTools: the policy of the page lets nothing else be run in it.
    const session = await pages.get(page).context.newCDPSession(at(page));
    await session.send('Runtime.evaluate', { expression: axe });
    const expression = "axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa'] }).then((it) => JSON.stringify(it.violations))";
    const { result } = await session.send('Runtime.evaluate', { expression, awaitPromise: true, returnByValue: true });
    await session.detach();
    return JSON.parse(result.value).map(({ id, impact, nodes }) => ({ id, impact, where: nodes.map((each) => each.html.slice(0, 200)) }));
  },
  /** Run a script in the service worker of the page. */
  worker: ({ page, script }) => pages.get(page).context.serviceWorkers()[0].evaluate(script),
  'worker until': ({ page, script }) => until((it) => calls.worker({ page, script: it }), script),
  /** Hand the service worker of the page what a push service has delivered, usually after leaving the page. */
  async push({ page, origin, data, stay }) {
    const session = await pages.get(page).context.newCDPSession(at(page));
    const found = new Promise((resolve) => {
      session.on('ServiceWorker.workerRegistrationUpdated', ({ registrations }) => {
        const own = registrations.find((each) => each.scopeURL.startsWith(origin) && !each.isDeleted);
        if (own) resolve(own.registrationId);
      });
    });
    await session.send('ServiceWorker.enable');
    const registrationId = await found;
    if (!stay) await at(page).goto('about:blank');
    await session.send('ServiceWorker.deliverPushMessage', { origin, registrationId, data });
    await session.detach();
  },
  /** CPU seconds and resident memory of the browser's processes, by what they are for. */
  async processes() {
    const session = await browser.newBrowserCDPSession();
    const { processInfo } = await session.send('SystemInfo.getProcessInfo');
    await session.detach();
    return processInfo.map(({ type, id, cpuTime }) => {
      const resident = /VmRSS:\s*(\d+)/.exec(readFileSync(`/proc/${id}/status`, 'utf8'));
      return { type, cpu: cpuTime, mb: Number(resident?.[1] ?? 0) / 1000 };
    });
  },
  async metrics({ page }) {
    const session = await pages.get(page).context.newCDPSession(at(page));
    await session.send('Performance.enable');
    const { metrics } = await session.send('Performance.getMetrics');
    await session.detach();
    return Object.fromEntries(metrics.map(({ name, value }) => [name, value]));
  },
};

/** The page's policy forbids to evaluate a string in it, so it is asked again and again from here. */
async function until(ask, script) {
  for (const end = Date.now() + PATIENCE_MS; !(await ask(script)); ) {
    if (Date.now() > end) throw new Error(`never true: ${script}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

const at = (number) => pages.get(number).page;
const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);

say({ id: 0, result: browser.version() });
for await (const line of createInterface({ input: process.stdin })) {
  const asked = JSON.parse(line);
  Promise.resolve()
    .then(() => calls[asked.call](asked))
    .then((result) => say({ id: asked.id, result: result ?? null }))
    .catch((error) => say({ id: asked.id, error: error.message }));
}
await browser.close();
process.exit(0);
