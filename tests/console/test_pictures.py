"""The pictures of docs/console.md, taken with `make console-pictures`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.console.browser import PHONE, Browser, Page
from tests.running import Service, Upstream, real_opencode, service

FOLDER = os.environ.get("CONSOLE_PICTURES", "")
pytestmark = pytest.mark.skipif(not FOLDER, reason="only to take the pictures of the documentation")

BEFORE = """def greet(name):
    return "Hi " + name


def main():
    print(greet("you"))
"""
AFTER = '''def greet(name: str, *, formal: bool = False) -> str:
    """A greeting for one person."""
    return f"Good day, {name}." if formal else f"Hello, {name}!"


def main() -> None:
    print(greet("you"))
'''
ANSWER = """## The greeting is friendlier now

`greet` takes a keyword **formal** and has types. Nothing that calls it has to change:

```python
greet("Ada")               # Hello, Ada!
greet("Ada", formal=True)  # Good day, Ada.
```

| file | change |
|---|---|
| `greet.py` | types, `formal`, a docstring |

Next I would add a test for the formal case."""
PLAN = [
    {"content": "Read greet.py", "status": "completed", "priority": "high"},
    {"content": "Make the greeting friendlier", "status": "in_progress", "priority": "high"},
    {"content": "Run the program", "status": "pending", "priority": "medium"},
]
QUESTION = {
    "header": "Style",
    "question": "Which style should the greeting have?",
    "options": [
        {"label": "Friendly", "description": "Hello, Ada!"},
        {"label": "Formal", "description": "Good day, Ada."},
        {"label": "Both", "description": "With a keyword for the formal one"},
    ],
}


def tool(name: str, **arguments: Any) -> str:
    return f"[[tool:{name} {json.dumps(arguments)}]]"


WORK = "Make the greeting friendlier, and give it types"
CLEAN = "Clean up the old release branches"
ASK = "Which greeting do people like?"
OTHERS = ("Explain what this project does", "Why is the build slow?", "Write a changelog")
STORIES = {
    WORK: " ".join(
        (
            "[[reason:30]]",
            tool("read", filePath="greet.py"),
            tool("todowrite", todos=PLAN),
            tool("write", filePath="greet.py", content=AFTER),
            tool("bash", command="python3 greet.py", description="Run the program"),
            f"[[text:{ANSWER}]]",
        )
    ),
    CLEAN: " ".join(
        (
            "[[reason:8]]",
            tool("bash", command="git branch --merged main", description="List merged branches"),
            tool(
                "bash",
                command="rm -rf .git/refs/heads/release-1.0 .git/refs/heads/release-1.1",
                description="Remove the merged release branches",
            ),
        )
    ),
    ASK: tool("question", questions=[QUESTION]),
    **dict.fromkeys(OTHERS, f"[[text:{ANSWER}]]"),
}


@pytest.fixture(scope="module")
def gallery(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Upstream, Service]]:
    place = tmp_path_factory.mktemp("gallery")
    scripts = {"MODEL_SCRIPTS": json.dumps(STORIES)}
    permission = {"bash": {"*": "allow", "rm *": "ask"}, "edit": "allow"}
    with (
        real_opencode(place / "opencode", scripts, permission=permission) as upstream,
        service(upstream, place / "service") as running,
    ):
        yield upstream, running


def picture(page: Page, name: str) -> None:
    path = Path(FOLDER).resolve() / f"{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    page.call("picture", path=str(path))


def test_pictures(browser: Browser, gallery: tuple[Upstream, Service]) -> None:
    upstream, running = gallery
    (upstream.workspace / "greet.py").write_text(BEFORE)
    front = browser.front(running.url)
    with browser.page(front, token="") as page:
        page.wait(".login-card")
        picture(page, "login")
    with browser.page(front) as page:
        page.wait(".link-live")
        for text in OTHERS:
            page.send(text)
            page.wait(".turn-completed")
            page.click(".new")
        page.send(WORK)
        page.wait(".turn-completed")
        page.until("document.querySelectorAll('.diff-rows').length === 1")
        for scheme in ("light", "dark"):
            page.call("scheme", scheme=scheme)
            picture(page, f"chat-{scheme}")
        page.call("scheme", scheme="light")
        page.evaluate("document.querySelector('.tool').scrollIntoView({block: 'start'}); null")
        picture(page, "tools")
        page.click(".new")
        page.wait(".welcome")
        picture(page, "home")
        page.send(ASK)
        page.wait(".ask .option")
        page.click(".option:has-text('Both')")
        picture(page, "question")
        page.click(".new")
        page.send(CLEAN)
        page.wait(".ask .command")
        for name in ("tasks", "usage", "agent"):
            page.click(f".pages a[href$={name}]")
            page.wait(".page h1")
            page.wait(
                {"tasks": ".tasks td", "usage": ".chart rect", "agent": ".tile dd"}[name],
                "attached",
            )
            page.call("scheme", scheme="dark" if name == "usage" else "light")
            picture(page, name)
    with browser.page(front, **PHONE) as page:
        page.wait(".conversation")
        picture(page, "phone-conversations")
        page.click(".conversation:has-text('Clean up')")
        page.wait(".ask .command")
        picture(page, "phone-permission")
        page.call("scheme", scheme="dark")
        page.call("goto", url=f"{front}/console/waiting")
        page.wait(".ask .option")
        picture(page, "phone-waiting-dark")
    every_page(browser, front)


# What is to be seen on a page before its picture is taken.
PAGES = {
    "": ".composer textarea",
    "waiting": ".ask .option",
    "tasks": ".tasks td",
    "usage": ".chart rect",
    "agent": ".tile dd",
    "settings": ".settings select",
}


def every_page(browser: Browser, front: str) -> None:
    """Each main page, in light and dark, on a desk and on a phone."""
    for size, options in (("desktop", {}), ("phone", {**PHONE, "deviceScaleFactor": 1})):
        with browser.page(front, **options) as page:
            page.wait(".link-live", "attached")
            page.call("goto", url=f"{front}/console")
            page.click(".conversation:has-text('friendlier')")
            page.wait(".diff-rows", "attached")
            both(page, f"pages/conversation-{size}")
            for name, shown in PAGES.items():
                page.call("goto", url=f"{front}/console/{name}")
                page.wait(shown, "attached")
                both(page, f"pages/{name or 'home'}-{size}")


def both(page: Page, name: str) -> None:
    for scheme in ("light", "dark"):
        page.call("scheme", scheme=scheme)
        page.until("!document.getAnimations().some((each) => each instanceof CSSTransition)")
        picture(page, f"{name}-{scheme}")
