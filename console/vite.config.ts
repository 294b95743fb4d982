import process from 'node:process';

import { defineConfig } from 'vite';

// `npm run dev` shows the sources against a service that runs elsewhere: SERVICE=http://127.0.0.1:8000
const service = process.env.SERVICE ?? 'http://127.0.0.1:8000';

export default defineConfig({
  base: '/console/',
  oxc: { jsx: { runtime: 'automatic', importSource: 'preact' } },
  build: {
    target: 'es2022',
    outDir: '../src/opencode_a2a/console', // the service serves it from there, and it is in the wheel
    emptyOutDir: true,
    // Scripts and styles stay files of their own: the page's policy refuses what is written inline.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
  },
  server: { proxy: { '^/(?!console)|^/console/config.json': service } },
});
