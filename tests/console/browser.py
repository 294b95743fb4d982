"""A real browser for the tests of the console: Chromium, driven through playwright-core."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from tests.running import ROOT, TOKEN

CONSOLE = ROOT / "src" / "opencode_a2a" / "console"
DRIVER = Path(__file__).parent / "driver.mjs"
DESKTOP: dict[str, Any] = {"viewport": {"width": 1280, "height": 800}}
PHONE: dict[str, Any] = {
    "viewport": {"width": 390, "height": 844},
    "isMobile": True,
    "hasTouch": True,
    "deviceScaleFactor": 2,
}


def chromium() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if (found := shutil.which(name))), None)


def missing() -> str:
    """Why no browser can be driven here; empty where one can."""
    if chromium() is None:
        return "there is no Chromium: apt-get install chromium"
    if not (ROOT / "console" / "node_modules" / "playwright-core").is_dir():
        return "playwright-core is not installed: make console/node_modules/.dev"
    if not (CONSOLE / "index.html").is_file():
        return "the console is not built: make console"
    return ""


class Browser:
    """One Chromium; pages in it share nothing with each other."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._numbers = count(1)

    def call(self, name: str, **arguments: Any) -> Any:
        number = next(self._numbers)
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps({"id": number, "call": name, **arguments}) + "\n")
        stdin.flush()
        line = stdout.readline()
        assert line, f"the browser has ended during {name}"
        answer = json.loads(line)
        assert answer["id"] == number
        assert "error" not in answer, f"{name} {str(arguments)[:300]}: {answer['error'][:2000]}"
        return answer["result"]

    def front(self, service: str) -> str:
        """The address of the console in front of a service."""
        return str(self.call("front", service=service))

    def page(
        self, front: str, *, token: str = TOKEN, path: str = "", before: str = "", **options: Any
    ) -> AbstractContextManager[Page]:
        """The console in front of a service; `before` runs before any script of the page."""
        url = f"{front}/console{path}{f'#token={token}' if token else ''}"
        return self.visit(url, before=before, **options)

    @contextmanager
    def visit(self, url: str, *, before: str = "", **options: Any) -> Iterator[Page]:
        number = next(self._numbers)
        shown = {**DESKTOP, "locale": "en-US", **options}
        self.call("open", page=number, url=url, options=shown, before=before)
        try:
            yield Page(self, number)
        finally:
            self.call("close", page=number)


@dataclass(frozen=True)
class Page:
    browser: Browser
    number: int

    def call(self, name: str, **arguments: Any) -> Any:
        return self.browser.call(name, page=self.number, **arguments)

    def send(self, text: str) -> None:
        """Write a message and press Enter."""
        self.call("fill", selector=".composer textarea", value=text)
        self.call("press", key="Enter")

    def wait(self, selector: str, state: str = "visible") -> None:
        self.call("wait", selector=selector, state=state)

    def until(self, script: str) -> None:
        self.call("until", script=script)

    def click(self, selector: str) -> None:
        self.call("click", selector=selector)

    def text(self, selector: str) -> str:
        return str(self.call("text", selector=selector))

    def count(self, selector: str) -> int:
        return int(self.call("count", selector=selector))

    def evaluate(self, script: str) -> Any:
        return self.call("evaluate", script=script)

    def attach(self, name: str, media_type: str, content: bytes) -> None:
        self.call(
            "attach",
            selector=".composer input[type=file]",
            file=name,
            mimeType=media_type,
            base64=base64.b64encode(content).decode(),
        )

    @property
    def said(self) -> list[str]:
        """Errors and dialogs of the page: there must be none."""
        return list(self.call("said"))


@contextmanager
def browsing() -> Iterator[Browser]:
    command = ["node", str(DRIVER), str(chromium()), str(CONSOLE)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
        env={**os.environ, "NODE_NO_WARNINGS": "1"},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline(), "the browser does not start"
        yield Browser(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30)
        assert process.stdout is not None
        process.stdout.close()
