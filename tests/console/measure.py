"""How the console copes with much: python -m tests.console.measure

Prints the frames that the browser drew while an answer of ten thousand lines came, and while
fifty conversations streamed at once. The figures of docs/console.md are from here.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

from tests.console.browser import Browser, Page, browsing
from tests.running import Service, real_opencode, service

LINES = 10_000
CONVERSATIONS = 50
FRAMES = """globalThis.frames = [];
  (function next(at) {
    globalThis.frames.push(at);
    requestAnimationFrame(next);
  })(performance.now()); null"""


SHOWN = """new MutationObserver((_, observer) => {
  if (!document.querySelector('.composer textarea')) return;
  performance.mark('shown');
  observer.disconnect();
}).observe(document, { childList: true, subtree: true });"""
# Asked twenty times a second: what makes the browser lay out the page would be measured, too.
LAST_IS_SHOWN = f"""[...document.querySelectorAll('.agent > .markdown')].at(-1)
  ?.lastElementChild?.textContent.includes('{LINES - 1}') ?? false"""


def frames(page: Page) -> dict[str, float]:
    times = page.evaluate("globalThis.frames")
    gaps = sorted(b - a for a, b in pairwise(times))
    return {
        "frames": len(gaps),
        "median_ms": round(gaps[len(gaps) // 2], 1),
        "p95_ms": round(gaps[int(len(gaps) * 0.95)], 1),
        "p99_ms": round(gaps[int(len(gaps) * 0.99)], 1),
        "longest_ms": round(gaps[-1], 1),
    }


@dataclass(frozen=True)
class Begin:
    """When a page began, and what its browser had used by then."""

    page: Page
    at: float
    cpu: float

    @classmethod
    def now(cls, page: Page) -> Begin:
        page.evaluate(FRAMES)
        return cls(page, time.monotonic(), _renderers(page)[0])

    def used(self) -> dict[str, float]:
        """Of the page's own process, which runs its scripts and draws it."""
        metrics, (cpu, resident) = self.page.call("metrics"), _renderers(self.page)
        seconds = time.monotonic() - self.at
        return {
            **frames(self.page),
            "seconds": round(seconds, 1),
            "cpu_seconds": round(cpu - self.cpu, 1),
            "cpu_percent": round(100 * (cpu - self.cpu) / seconds, 1),
            "heap_mb": round(metrics["JSHeapUsedSize"] / 1e6, 1),
            "resident_mb": round(resident),
            "nodes": metrics["Nodes"],
        }


def _renderers(page: Page) -> tuple[float, float]:
    """CPU seconds of all of them, and the memory of the largest: the others have no page."""
    found = [each for each in page.call("processes") if each["type"] == "renderer"]
    return sum(each["cpu"] for each in found), max(each["mb"] for each in found)


def long_answer(browser: Browser, front: str, running: Service) -> dict[str, Any]:
    kinds = ("Line {} of a *long* answer.", "- item {} with `code`", "Line {}, **bold**.\n")
    text = "\n".join(kinds[n % 3].format(n) for n in range(LINES))
    with browser.page(front) as page:
        page.send("Hello")
        page.wait(".turn-completed")
        context = str(page.call("url")).rpartition("/")[2]
        begin = Begin.now(page)
        say(running, f"[[text:{text}]]", context)
        page.until("document.querySelectorAll('.turn-completed').length === 2")
        page.until(LAST_IS_SHOWN)
        return {**begin.used(), "characters": len(text)}


def opened_again(browser: Browser, front: str) -> dict[str, Any]:
    """The same answer in a page that is loaded afresh: everything comes at once."""
    with browser.page(front) as page:
        page.wait(".conversation:has-text('Hello')")
        begin = Begin.now(page)
        page.click(".conversation:has-text('Hello')")
        page.until(LAST_IS_SHOWN)
        return begin.used()


def say(running: Service, text: str, context: str = "") -> None:
    """Send a message as another client would, and wait for the end of its task."""
    message: dict[str, Any] = {"messageId": str(uuid.uuid4()), "role": "ROLE_USER"}
    message |= {"parts": [{"text": text}], "contextId": context}
    headers = {**running.headers, "A2A-Version": "1.0"}
    url = f"{running.url}/message:send"
    httpx.post(url, json={"message": message}, headers=headers, timeout=300).raise_for_status()


def many_conversations(browser: Browser, front: str, running: Service) -> dict[str, Any]:
    """One of them is open; of the others the list shows the state."""
    slow = "[[tokens:100]] [[delay:200]]"
    with browser.page(front) as page, ThreadPoolExecutor(CONVERSATIONS) as pool:
        page.wait(".link-live")
        before = page.count(".dot-completed")
        begin = Begin.now(page)
        page.send(slow)
        list(pool.map(lambda _: say(running, slow), range(CONVERSATIONS - 1)))
        ended = before + CONVERSATIONS
        page.until(f"document.querySelectorAll('.sidebar .dot-completed').length >= {ended}")
        page.wait(".turn-completed")
        return begin.used()


def first_paint(browser: Browser, front: str) -> dict[str, float]:
    with browser.page(front, before=SHOWN) as page:
        page.wait(".shell")
        script = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
        whole = "performance.getEntriesByName('shown')[0].startTime"
        return {
            "first_contentful_paint_ms": page.evaluate(script),
            "usable_ms": page.evaluate(whole),
        }


def main() -> None:
    place = Path(tempfile.mkdtemp())
    with (
        browsing() as browser,
        real_opencode(place / "opencode") as upstream,
        service(upstream, place / "service", OPENCODE_MAX_CONCURRENT_STREAMS="0") as running,
    ):
        front = browser.front(running.url)
        for name, figures in (
            ("first paint", first_paint(browser, front)),
            (f"{LINES} lines", long_answer(browser, front, running)),
            ("the same, opened again", opened_again(browser, front)),
            (f"{CONVERSATIONS} conversations", many_conversations(browser, front, running)),
        ):
            sys.stdout.write(f"{name}: {json.dumps(figures)}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
