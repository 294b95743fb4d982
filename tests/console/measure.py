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


def used(page: Page, began: float) -> dict[str, float]:
    after = page.call("metrics")
    return {
        "seconds": round(time.monotonic() - began, 1),
        "heap_mb": round(after["JSHeapUsedSize"] / 1e6, 1),
        "nodes": after["Nodes"],
    }


def long_answer(browser: Browser, front: str, running: Service) -> dict[str, Any]:
    kinds = ("Line {} of a *long* answer.", "- item {} with `code`", "Line {}, **bold**.\n")
    text = "\n".join(kinds[n % 3].format(n) for n in range(LINES))
    with browser.page(front) as page:
        page.send("Hello")
        page.wait(".turn-completed")
        context = str(page.call("url")).rpartition("/")[2]
        began = time.monotonic()
        page.evaluate(FRAMES)
        say(running, f"[[text:{text}]]", context)
        page.until("document.querySelectorAll('.turn-completed').length === 2")
        return {**frames(page), **used(page, began), "characters": len(text)}


def say(running: Service, text: str, context: str = "") -> None:
    """Send a message as another client would, and wait for the end of its task."""
    message: dict[str, Any] = {"messageId": str(uuid.uuid4()), "role": "ROLE_USER"}
    message |= {"parts": [{"text": text}], "contextId": context}
    headers = {**running.headers, "A2A-Version": "1.0"}
    url = f"{running.url}/message:send"
    httpx.post(url, json={"message": message}, headers=headers, timeout=300).raise_for_status()


def many_conversations(browser: Browser, front: str, running: Service) -> dict[str, Any]:
    def talk(_: int) -> None:
        say(running, "[[tokens:100]] [[delay:200]]")

    with browser.page(front) as page, ThreadPoolExecutor(CONVERSATIONS) as pool:
        page.wait(".link-live")
        began = time.monotonic()
        page.evaluate(FRAMES)
        list(pool.map(talk, range(CONVERSATIONS)))
        page.until(f"document.querySelectorAll('.dot-completed').length >= {CONVERSATIONS}")
        return {**frames(page), **used(page, began)}


def first_paint(browser: Browser, front: str) -> dict[str, float]:
    with browser.page(front) as page:
        page.wait(".shell")
        script = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
        return {"first_contentful_paint_ms": round(page.evaluate(script), 0)}


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
            (f"{CONVERSATIONS} conversations", many_conversations(browser, front, running)),
        ):
            sys.stdout.write(f"{name}: {json.dumps(figures)}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
