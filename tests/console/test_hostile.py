"""What the model says, tools print and files are called is hostile: nothing of it runs."""

from __future__ import annotations

import json
from pathlib import Path

from tests.console.browser import Browser, Page
from tests.console.payloads import payloads
from tests.running import Upstream, service

FIRST = "<img src=x onerror=ran()>"
# Nothing in the page may have come from a string that was read as HTML.
FOREIGN = """() => [...document.querySelectorAll('#app *')].filter((each) =>
  ['SCRIPT', 'IFRAME', 'OBJECT', 'EMBED', 'BASE', 'META', 'STYLE', 'LINK', 'VIDEO', 'AUDIO', 'MATH']
    .includes(each.tagName.toUpperCase())
  || [...each.attributes].some(({ name, value }) =>
    /^on/i.test(name) || name === 'srcdoc' || /^(javascript|vbscript|data):/i.test(value.trim()))
  || (each.tagName === 'IMG' && !/^(blob:|\\/console\\/)/.test(each.getAttribute('src'))),
).map((each) => each.outerHTML.slice(0, 200))"""
LISTEN = "globalThis.ran = () => { globalThis.hasRun = true; };"


def nothing_ran(page: Page) -> None:
    assert page.evaluate(FOREIGN.replace("() =>", "(() =>", 1) + ")()") == []
    assert page.evaluate("globalThis.hasRun === undefined")
    assert page.said == []


def tool(name: str, **arguments: object) -> str:
    return f"[[tool:{name} {json.dumps(arguments)}]]"


def test_the_corpus_has_at_least_two_hundred_payloads() -> None:
    assert len(set(payloads())) >= 200


def test_nothing_of_a_text_runs(browser: Browser, front: str) -> None:
    corpus = payloads()
    with browser.page(front, before=LISTEN) as page:
        page.wait(".shell")
        for at in range(0, len(corpus), 100):
            text = "\n\n".join(corpus[at : at + 100]).replace("]]", "] ]")
            page.send(f"{FIRST} [[text:{text}]]")
            page.until(f"document.querySelectorAll('.turn-completed').length === {at // 100 + 1}")
            nothing_ran(page)
        page.call("goto", url=f"{front}/console/tasks")  # the title is hostile, too
        page.wait(".tasks td")
        nothing_ran(page)


def test_nothing_of_tools_files_and_diffs_runs(
    browser: Browser, front: str, working_opencode: Upstream
) -> None:
    corpus = "\n".join(payloads())
    name = "<img src=x onerror=ran()>.html"
    (working_opencode.workspace / "corpus.txt").write_text(corpus)
    (working_opencode.workspace / name).write_text("before\n")
    bash = tool("bash", command="cat corpus.txt", description=FIRST)
    write = tool("write", filePath=name, content=corpus)
    ask = tool("bash", command=f"rm -f '{FIRST}'", description=FIRST)
    question = {
        "header": FIRST,
        "question": FIRST,
        "options": [{"label": FIRST, "description": FIRST}],
    }
    with browser.page(front, before=LISTEN) as page:
        page.wait(".shell")
        page.attach(f"{FIRST}.txt", "text/plain", corpus.encode())
        page.send(
            f"{FIRST} [[reason:2]] {bash} {write} {ask} {tool('question', questions=[question])}"
        )
        page.wait(".ask")
        nothing_ran(page)
        page.click(".ask button.primary")
        page.wait(".ask .option")
        nothing_ran(page)
        page.click(".ask .option")
        page.click(".ask button.primary")
        page.wait(".turn-completed")
        for at in range(page.count(".tool > summary")):
            page.click(f":nth-match(.tool > summary, {at + 1})")
        page.wait(".diff-file")
        assert name in page.text(".diff")
        nothing_ran(page)


def test_nothing_of_the_agents_name_and_description_runs(
    browser: Browser, working_opencode: Upstream, tmp_path: Path
) -> None:
    settings = {"A2A_TITLE": FIRST, "A2A_DESCRIPTION": FIRST}
    with (
        service(working_opencode, tmp_path, **settings) as run,
        browser.page(browser.front(run.url), path="/agent", before=LISTEN) as page,
    ):
        page.wait(".page h1")
        assert page.text(".page h1") == FIRST
        nothing_ran(page)
