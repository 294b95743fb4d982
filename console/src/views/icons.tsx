/** Drawn here, so that nothing is loaded for them. They say nothing to screen readers: the button beside them does. */

const PATHS = {
  plus: 'M12 5v14M5 12h14',
  send: 'M12 19V5M6 11l6-6 6 6',
  stop: 'M8 8h8v8H8z',
  back: 'M15 5l-7 7 7 7',
  chevron: 'M9 6l6 6-6 6',
  bell: 'M6 16V11a6 6 0 1112 0v5l1.5 2h-15zM10 21h4',
  list: 'M4 6h16M4 12h16M4 18h10',
  chart: 'M5 20V10M12 20V4M19 20v-7',
  agent: 'M12 3v3M6 6h12a2 2 0 012 2v8a2 2 0 01-2 2H6a2 2 0 01-2-2V8a2 2 0 012-2zM9 11v2M15 11v2',
  gear: 'M4 7h9M17 7h3M4 17h3M11 17h9M15 5v4M9 15v4',
  chat: 'M5 5h14a1.5 1.5 0 011.5 1.5v9A1.5 1.5 0 0119 17h-8l-4.5 3.5V17H5a1.5 1.5 0 01-1.5-1.5v-9A1.5 1.5 0 015 5z',
  search: 'M11 5a6 6 0 100 12 6 6 0 000-12zM20 20l-4.5-4.5',
  terminal: 'M5 7l5 5-5 5M12 18h7',
  file: 'M7 3h7l4 4v14H7zM14 3v4h4',
  edit: 'M4 20h4L19 9l-4-4L4 16zM13 7l4 4',
  clip: 'M19 11l-7.5 7.5a4.5 4.5 0 01-6.4-6.4L13 4.3a3 3 0 014.3 4.3l-7.6 7.5a1.5 1.5 0 01-2.1-2.1L14.5 7',
  check: 'M5 12.5l4.5 4.5L19 7.5',
  cross: 'M6 6l12 12M18 6L6 18',
  brain: 'M12 4a4 4 0 00-4 3 3.5 3.5 0 00-2 6 3.5 3.5 0 004 5.5 2.5 2.5 0 002-.5 2.5 2.5 0 002 .5 3.5 3.5 0 004-5.5 3.5 3.5 0 00-2-6 4 4 0 00-4-3zM12 4v14',
  fork: 'M7 4v9a4 4 0 004 4h6M17 17l-3-3M17 17l-3 3M7 4a0 0 0 010 0M7 20v-3',
  retry: 'M19 12a7 7 0 11-2-5M19 4v4h-4',
  copy: 'M9 9h10v11H9zM5 15V4h10',
  question: 'M9 9a3 3 0 114.5 2.6c-1 .6-1.5 1.2-1.5 2.4M12 18v.01',
  shield: 'M12 3l7 3v5c0 4.5-3 8-7 10-4-2-7-5.5-7-10V6z',
  todo: 'M4 7l2 2 3-3M4 16l2 2 3-3M13 8h7M13 17h7',
  trash: 'M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13',
  play: 'M8 5l11 7-11 7z',
  globe: 'M12 3a9 9 0 100 18 9 9 0 000-18zM3 12h18M12 3c3 3 3 15 0 18M12 3c-3 3-3 15 0 18',
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name, size = 18 }: { name: IconName; size?: number }) {
  return (
    <svg class={`icon icon-${name}`} width={size} height={size} viewBox="0 0 24 24" aria-hidden="true" focusable="false">
      <path d={PATHS[name]} />
    </svg>
  );
}
