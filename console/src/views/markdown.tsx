import { useEffect, useLayoutEffect, useRef } from 'preact/hooks';

import { GrowingMarkdown } from '../text/growing';

const FRAME_MS = 16; // a long text is drawn piece by piece, and the browser shows each before the next
const SLOWEST = 8; // a slow text is drawn again when this many times its drawing time has passed

/** A text of the model. It is drawn as often as its own drawing time allows, so a page under load stays usable. */
export function Markdown({ text, final }: { text: string; final: boolean }) {
  const element = useRef<HTMLDivElement>(null);
  const growing = useRef<GrowingMarkdown | undefined>(undefined);
  const rest = useRef({ until: 0, timer: 0 });

  useLayoutEffect(() => {
    if (!element.current) return;
    growing.current ??= new GrowingMarkdown(element.current);
    const later = (wait: number) => {
      rest.current.timer = setTimeout(draw, wait) as unknown as number;
    };
    const draw = () => {
      const begun = performance.now();
      const isAll = growing.current?.advance(text, final) ?? true;
      const ended = performance.now();
      rest.current.until = ended + (ended - begun) * SLOWEST;
      if (!isAll) later(FRAME_MS);
    };
    clearTimeout(rest.current.timer);
    const wait = rest.current.until - performance.now();
    if (final || wait <= 0) draw();
    else later(wait);
  }, [text, final]);
  useEffect(() => () => clearTimeout(rest.current.timer), []);

  return <div class="markdown" ref={element} />;
}
