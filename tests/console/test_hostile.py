"""What the model says, tools print and files are called is hostile: nothing of it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.console.browser import Browser, Page
from tests.console.foreign import card_of, stranger
from tests.console.payloads import RUN, payloads
from tests.console.test_console import serious
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


def hostile_card(url: str) -> dict[str, Any]:
    """A card that is right, with a payload wherever it can have a word or an address."""
    corpus = payloads()
    extensions = [{"uri": each, "description": each} for each in corpus]
    return {
        **card_of(url),
        "name": FIRST,
        "description": "\n\n".join(corpus[:50]),
        "version": FIRST,
        "protocolVersion": FIRST,
        "provider": {"organization": FIRST, "url": f"javascript:{RUN}"},
        "documentationUrl": f"javascript:{RUN}",
        "iconUrl": "https://elsewhere.example/icon.png",
        "capabilities": {"streaming": False, "extensions": extensions},
        "supportedInterfaces": [
            {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
            {"url": f"javascript:{RUN}", "protocolBinding": FIRST, "protocolVersion": FIRST},
        ],
        "skills": [
            {"id": each, "name": each, "description": each, "tags": [each]} for each in corpus
        ],
    }


def test_nothing_of_another_agent_runs(
    browser: Browser, working_opencode: Upstream, tmp_path: Path
) -> None:
    """Neither of its card, nor of what it answers, nor of its name in the settings of ours."""
    config = tmp_path / "settings.toml"
    with stranger() as agent:
        agent.card = hostile_card(agent.url)
        agent.answer = "\n\n".join(payloads())
        config.write_text(f'[peers.foreign]\nurl = "{agent.url}"\n')
        settings = {"A2A_TITLE": FIRST, "A2A_DESCRIPTION": FIRST}
        with (
            service(working_opencode, tmp_path, config=str(config), **settings) as run,
            browser.page(browser.front(run.url), path="/peers", before=LISTEN) as page,
        ):
            page.wait(".inspect")
            page.call("fill", selector="input[name=peer]", value="foreign")
            page.click(".inspect button.primary")
            page.wait(".inspected .skills li")
            assert page.text(".inspected-name") == FIRST
            assert page.count(".inspected .skills li") == len(payloads())
            nothing_ran(page)
            page.call("fill", selector="textarea[name=message]", value=FIRST)
            page.click("section.inspected form button.primary")
            page.wait(".exchange .markdown > *")
            page.click(".exchange summary")
            nothing_ran(page)
            page.click(".pages a[href$=agent]")
            page.wait(".page h1")
            assert page.text(".page h1") == FIRST
            nothing_ran(page)


def test_what_is_no_agent_is_said_and_an_agent_can_be_talked_to(
    browser: Browser, working_opencode: Upstream, tmp_path: Path
) -> None:
    settings = {"A2A_CLIENT_ALLOW_ANY_PEER": "true", "A2A_CLIENT_ALLOW_PRIVATE_HOSTS": "true"}
    with (
        stranger() as agent,
        service(working_opencode, tmp_path, **settings) as run,
        browser.page(browser.front(run.url), path="/agent") as page,
    ):
        page.click(".page-actions a[href$=peers]")
        page.call("fill", selector="input[name=peer]", value="http://127.0.0.1:9")
        page.click(".inspect button.primary")
        page.wait(".login-error")
        assert "Nobody accepts connections" in page.text(".login-error")
        page.call("fill", selector="input[name=peer]", value=agent.url)
        page.click(".inspect button.primary")
        page.wait(".inspected")
        assert page.text(".inspected-name") == "Stranger"
        page.call("fill", selector="textarea[name=message]", value="Hello?")
        page.click("section.inspected form button.primary")
        page.wait(".exchange .markdown strong")
        assert page.text(".exchange .markdown") == "Hello, too."
        assert serious(page) == []


def test_where_no_peer_may_be_called_the_inspector_says_so(browser: Browser, front: str) -> None:
    with browser.page(front, path="/peers") as page:
        page.wait(".empty")
        assert "A2A_CLIENT_ALLOW_ANY_PEER=true" in page.text(".empty")
