"""The console in a real browser, with the real OpenCode and the scripted model."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.console.browser import PHONE, Browser, Page
from tests.console.measure import say
from tests.running import TOKEN, Service, Upstream, service

pytestmark = pytest.mark.usefixtures("front")
ANSWER = ".turn .agent > .markdown:last-of-type"
COLOUR = {
    "header": "Colour",
    "question": "Which color?",
    "options": [
        {"label": "Red", "description": "like a rose"},
        {"label": "Blue", "description": "like the sea"},
    ],
}
LONG = "[[tokens:120]] [[delay:25]]"


def tool(name: str, **arguments: Any) -> str:
    return f"[[tool:{name} {json.dumps(arguments)}]]"


def words(text: str) -> str:
    return " ".join(text.split())


def answer_in_service(running: Service) -> str:
    """What the latest task says, as any client reads it."""
    headers = {**running.headers, "A2A-Version": "1.0"}
    listed = httpx.get(
        f"{running.url}/tasks", params={"includeArtifacts": True, "pageSize": 1}, headers=headers
    ).json()
    artifacts = listed["tasks"][0]["artifacts"]
    return words("".join(part["text"] for part in artifacts[-1]["parts"]))


def is_complete(page: Page) -> None:
    page.wait(".turn-completed")


def shown_answer(page: Page) -> str:
    return words(page.text(ANSWER))


def test_a_new_user_pastes_the_token_and_gets_an_answer(browser: Browser, front: str) -> None:
    with browser.page(front, token="") as page:
        page.call("fill", selector="input[name=token]", value=TOKEN)
        page.click("button[type=submit]")
        page.send("Hello there")
        is_complete(page)
        assert shown_answer(page) == "ECHO: Hello there"
        assert page.text(".said-text") == "Hello there"
        assert "demo/demo" in page.text(".turn-facts")
        assert page.said == []


def test_the_token_of_the_link_leaves_the_address_at_once(browser: Browser, front: str) -> None:
    with browser.page(front) as page:
        page.wait(".shell")
        assert TOKEN not in page.call("url")
        assert page.evaluate("localStorage.getItem('console.token')") is None
        assert page.evaluate("sessionStorage.getItem('console.token')") == TOKEN


def test_reasoning_tools_and_changes_are_shown(
    browser: Browser, front: str, working_opencode: Upstream
) -> None:
    (working_opencode.workspace / "greet.py").write_text("print('hi')\n")
    write = tool("write", filePath="greet.py", content="print('hello')\n")
    bash = tool("bash", command="echo one; echo two", description="Count")
    with browser.page(front) as page:
        page.send(f"[[reason:4]] {bash} {write} [[say:First a look.]] [[text:All **done**.]]")
        is_complete(page)
        assert page.text(".reasoning summary") == "Thoughts"
        page.click(".tool:has-text('echo one') summary")
        assert "one\ntwo" in page.text(".tool-body .terminal:nth-of-type(2) pre")
        assert page.text(".markdown strong") == "done"
        assert "greet.py" in page.text(".diff-file summary")
        assert "print('hello')" in page.text(".diff-rows .row-added")
        assert page.said == []


def test_a_permission_is_allowed_on_a_phone(browser: Browser, front: str) -> None:
    with browser.page(front, **PHONE) as page:
        page.send(tool("bash", command="rm -f gone.txt", description="Remove it"))
        page.wait(".ask")
        assert page.text(".ask .command") == "rm -f gone.txt"
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        page.click(".ask button.primary")
        is_complete(page)
        assert "Allowed once" in page.text(".decisions")
        assert page.said == []


def test_a_refusal_tells_the_agent_why(browser: Browser, front: str) -> None:
    with browser.page(front, path="/") as page:
        page.send(tool("bash", command="rm -rf everything", description="Remove it"))
        page.wait(".ask")
        page.click(".pages a[href$=waiting]")
        page.wait(".waiting .ask")
        page.click(".waiting .danger-quiet")
        page.call("fill", selector=".refuse input", value="Ask me which file.")
        page.click(".refuse button[type=submit]")
        page.wait(".empty")
        page.click(".conversation")
        is_complete(page)
        assert "Ask me which file." in shown_answer(page)


def test_a_question_is_answered_with_an_option(browser: Browser, front: str) -> None:
    with browser.page(front) as page:
        page.send(tool("question", questions=[COLOUR]))
        page.wait(".ask .option")
        page.click(".option:has-text('Blue')")
        page.click(".ask button.primary")
        is_complete(page)
        assert '"Which color?"="Blue"' in shown_answer(page)


def test_a_question_is_answered_in_own_words(browser: Browser, front: str) -> None:
    with browser.page(front) as page:
        page.send(tool("question", questions=[COLOUR]))
        page.wait(".ask .own-words")
        page.call("fill", selector=".ask .own-words", value="Green, please")
        page.click(".ask button.primary")
        is_complete(page)
        assert '"Which color?"="Green, please"' in shown_answer(page)


def test_what_is_always_allowed_is_not_asked_again(browser: Browser, front: str) -> None:
    with browser.page(front) as page:
        page.send(tool("bash", command="rm -f first.txt", description="Remove it"))
        page.wait(".ask")
        page.click(".ask button:has-text('Always allow')")
        is_complete(page)
        assert "Always allowed" in page.text(".decisions")
        page.send(tool("bash", command="rm -f second.txt", description="Remove it"))
        page.until("document.querySelectorAll('.turn-completed').length === 2")
        assert page.count(".decisions") == 1


def test_the_table_of_tasks_is_filtered(browser: Browser, front: str) -> None:
    with browser.page(front) as page:
        page.send("A walnut [[text:One.]]")
        is_complete(page)
        page.click(".pages a[href$=tasks]")
        page.wait(".tasks td:has-text('walnut')")
        rows = "[...document.querySelectorAll('.tasks tbody tr')]"
        page.call("fill", selector=".page input[type=search]", value="walnut")
        page.until(f"{rows}.length > 0 && {rows}.every((it) => /walnut/.test(it.innerText))")
        page.call("choose", selector=".page select", value="failed")
        page.wait(".empty")
        page.call("choose", selector=".page select", value="completed")
        page.wait(".tasks td:has-text('walnut')")


# Which page may use the clipboard of the machine depends on where the tests run.
CLIPBOARD = """Object.defineProperty(navigator, 'clipboard', {
  value: { writeText: async (text) => { globalThis.copied = text; } },
});"""


def test_code_is_copied(browser: Browser, front: str) -> None:
    code = "print('hello')\nprint('again')"
    with browser.page(front, before=CLIPBOARD) as page:
        page.send(f"[[text:```python\n{code}\n```]]")
        is_complete(page)
        page.click(".agent .code button")
        page.until("globalThis.copied !== undefined")
        assert page.evaluate("globalThis.copied").strip() == code


def test_two_conversations_work_at_once(browser: Browser, front: str) -> None:
    with browser.page(front) as page:
        page.send(f"first {LONG}")
        page.wait(".turn-working, .turn-completed")
        first = page.call("url")
        page.click(".new")
        page.send("second [[text:Two.]]")
        is_complete(page)
        assert shown_answer(page) == "Two."
        page.call("goto", url=first)
        is_complete(page)
        assert len(shown_answer(page).split()) == 120
        assert page.count(".conversation") >= 2


def test_a_reload_in_the_middle_loses_nothing(
    browser: Browser, front: str, behind_console: Service
) -> None:
    with browser.page(front) as page:
        page.send(f"Go on {LONG}")
        page.wait(".turn .agent .markdown")
        page.call("reload")
        is_complete(page)
        assert shown_answer(page) == answer_in_service(behind_console)
        assert len(shown_answer(page).split()) == 120
        page.call("reload")  # now everything comes from the list
        is_complete(page)
        page.wait(".said-text")
        assert page.text(".said-text").startswith("Go on")
        page.until("document.querySelector('.turn .agent > .markdown')?.innerText.length > 600")
        assert shown_answer(page) == answer_in_service(behind_console)
        assert page.said == []


# The page may be connected again before a test can look.
COUNT_CUTS = """globalThis.cuts = 0;
let wasCut = false;
new MutationObserver(() => {
  const isCut = document.querySelector('.link-reconnecting') !== null;
  if (isCut && !wasCut) globalThis.cuts += 1;
  wasCut = isCut;
}).observe(document, { childList: true, subtree: true, attributes: true });"""


def test_a_cut_connection_loses_nothing(
    browser: Browser, front: str, behind_console: Service
) -> None:
    with browser.page(front, before=COUNT_CUTS) as page:
        page.send(f"Go on {LONG}")
        page.wait(".turn .agent .markdown")
        for number in range(1, 4):
            browser.call("cut", front=front)
            page.until(f"globalThis.cuts >= {number}")
            page.wait(".link-live")
        is_complete(page)
        assert shown_answer(page) == answer_in_service(behind_console)
        assert len(shown_answer(page).split()) == 120


def test_a_service_killed_and_started_again_loses_nothing(
    browser: Browser, working_opencode: Upstream, place: Path, port: int
) -> None:
    settings = {"A2A_PORT": str(port)}
    with service(working_opencode, place, **settings) as first:
        front = browser.front(first.url)
        with browser.page(front) as page:
            page.send("Go on [[tokens:200]] [[delay:40]]")
            page.wait(".turn .agent .markdown")
            first.program.kill()
            page.wait(".link-reconnecting")
            page.wait(".banner")
            with service(working_opencode, place, **settings) as second:
                page.wait(".link-live")
                is_complete(page)
                assert shown_answer(page) == answer_in_service(second)
                assert len(shown_answer(page).split()) == 200


def test_a_task_is_canceled(browser: Browser, front: str) -> None:
    with browser.page(front) as page:
        page.send("[[hangmid:3]] [[tokens:9]]")
        page.wait(".turn .agent .markdown")
        page.click(".stop")
        page.wait(".turn-canceled")


def test_the_next_message_waits_its_turn(browser: Browser, front: str) -> None:
    with browser.page(front) as page:
        page.send("one [[hangmid:3]] [[tokens:9]]")
        page.wait(".turn .agent .markdown")
        page.send("two")
        page.wait(".turn-submitted")
        page.click(".stop")
        page.wait(".turn-canceled")
        is_complete(page)
        assert words(page.text(".turn-completed .agent > .markdown")) == "ECHO: two"


def test_a_file_is_attached(browser: Browser, front: str) -> None:
    with browser.page(front) as page:
        page.attach("notes.txt", "text/plain", b"[[text:I have read the notes.]]")
        page.wait(".attachments .file-chip")
        page.send("Read this.")
        is_complete(page)
        assert shown_answer(page) == "I have read the notes."
        assert "notes.txt" in page.text(".said .file-chip")


def test_a_conversation_is_forked_and_renamed(browser: Browser, front: str) -> None:
    with browser.page(front) as page:
        page.send("Remember the maple")
        is_complete(page)
        page.click(".turn-actions button[aria-label^=Fork]")
        page.wait(".earlier .said-text")
        assert page.text(".earlier .said-text") == "Remember the maple"
        page.send("And now?")
        is_complete(page)
        page.click("button[aria-label=Rename]")
        page.call("fill", selector=".title-field", value="Maples")
        page.call("press", key="Enter")
        page.wait(".chat-head h1:has-text('Maples')")


def test_a_wrong_token_is_refused_with_a_reason(browser: Browser, front: str) -> None:
    with browser.page(front, token="wrong") as page:
        page.wait(".login-error")
        assert "not accepted" in page.text(".login-error")


def test_an_expired_token_leads_back_to_the_login(
    browser: Browser, working_opencode: Upstream, place: Path, port: int
) -> None:
    settings = {"A2A_PORT": str(port)}
    with service(working_opencode, place, **settings) as first:
        front = browser.front(first.url)
        with browser.page(front) as page:
            page.wait(".link-live")
            page.call("fill", selector=".composer textarea", value="my draft")
            first.program.stop()
            with service(working_opencode, place, A2A_BEARER_TOKEN="another", **settings):
                page.wait(".login-error")
                assert "no longer accepted" in page.text(".login-error")
                page.call("fill", selector="input[name=token]", value="another")
                page.click("button[type=submit]")
                page.wait(".composer textarea")
                kept = page.evaluate("document.querySelector('.composer textarea').value")
                assert kept == "my draft"


def test_ten_thousand_lines_are_shown_to_the_last(
    browser: Browser, front: str, behind_console: Service
) -> None:
    text = "\n\n".join(f"line {number}" for number in range(1, 10_001))
    with browser.page(front) as page:
        page.send("Hello")
        is_complete(page)
        say(behind_console, f"[[text:{text}]]", str(page.call("url")).rpartition("/")[2])
        page.until("document.querySelectorAll('.turn-completed').length === 2")
        lines = "[...document.querySelectorAll('.turn:last-of-type .agent > .markdown p')]"
        page.until(f"{lines}.length === 10000")
        assert page.evaluate(f"{lines}.every((it, at) => it.textContent === `line ${{at + 1}}`)")
        assert page.said == []


PAGES = ("waiting", "tasks", "usage", "agent", "settings")


@pytest.mark.parametrize("options", [{}, PHONE], ids=["desktop", "phone"])
def test_every_page_can_be_used_by_everybody(
    browser: Browser, front: str, options: dict[str, Any]
) -> None:
    """axe-core finds no serious violation, in light and dark."""
    found: dict[str, Any] = {}

    def look(page: Page, name: str) -> None:
        for scheme in ("light", "dark"):
            page.call("scheme", scheme=scheme)
            page.until("!document.getAnimations().some((each) => each instanceof CSSTransition)")
            found[f"{name}, {scheme}"] = serious(page)

    ask = tool("bash", command="rm -f x", description="Remove")
    write = tool("write", filePath="axe.txt", content="one\ntwo\n")
    with browser.page(front, **options) as page:
        page.wait(".link-live", "attached")
        look(page, "new conversation")
        page.send(f"[[reason:2]] {write} {ask} [[text:# Done\n\n- `a`\n\n| a |\n|---|\n| b |]]")
        page.wait(".ask")
        page.call("press", key="Escape")
        look(page, "permission")
        chat = page.call("url")
        for name in PAGES:
            page.call("goto", url=f"{front}/console/{name}")
            page.wait(".page h1")
            look(page, name)
        page.call("goto", url=f"{front}/console/waiting")
        page.click(".ask button.primary")
        page.wait(".empty")
        page.call("goto", url=chat)
        is_complete(page)
        look(page, "conversation")
        page.click(".turn-actions a")
        page.wait(".events li")
        look(page, "task")
        page.call("goto", url=f"{front}/console/chat/nowhere")
        page.wait(".composer")
        look(page, "a conversation that is not there")
    with browser.page(front, token="", **options) as page:
        page.wait(".login-card")
        look(page, "login")
    assert {name: violations for name, violations in found.items() if violations} == {}


def serious(page: Page) -> list[Any]:
    violations = page.call("violations")
    return [each for each in violations if each["impact"] in ("serious", "critical")]


@pytest.mark.parametrize(("language", "title"), [("de-DE", "Wartet auf dich"), ("zh-CN", "等待你")])
def test_the_console_speaks_the_language_of_the_browser(
    browser: Browser, front: str, language: str, title: str
) -> None:
    with browser.page(front, path="/waiting", locale=language) as page:
        page.wait(".page h1")
        assert page.text(".page h1") == title
        assert page.evaluate("document.documentElement.lang") == language[:2]


def test_a_method_is_tried_with_a_form_of_its_schema(browser: Browser, front: str) -> None:
    with browser.page(front, path="/agent") as page:
        page.click(".extension:has-text('Provider Discovery') > summary")
        page.click(".method:has-text('opencode.models.list') > summary")
        page.call("fill", selector=".try label:has-text('provider_id') input", value="demo")
        page.click(".try button.primary")
        page.wait(".try .code >> text=demo-vision")
        assert re.search(r"curl .*opencode\.models\.list", page.text(".try .code"), re.DOTALL)


def test_a_task_shows_its_raw_events(browser: Browser, front: str) -> None:
    with browser.page(front) as page:
        page.send("Hello")
        is_complete(page)
        page.click(".turn-actions a")
        page.wait(".events li")
        page.until("document.querySelectorAll('.events li').length > 3")
        assert "GetTask" in page.text(".code pre")


def test_files_are_pasted_and_dropped(browser: Browser, front: str) -> None:
    give = """(kind, field, name) => {
      const data = new DataTransfer();
      data.items.add(new File(['[[text:Read by the model.]]'], name, { type: 'text/plain' }));
      const event = kind === 'paste'
        ? new ClipboardEvent('paste', { clipboardData: data, bubbles: true, cancelable: true })
        : new DragEvent('drop', { dataTransfer: data, bubbles: true, cancelable: true });
      document.querySelector(field).dispatchEvent(event);
    }"""
    with browser.page(front) as page:
        page.wait(".composer textarea")
        page.evaluate(f"({give})('paste', '.composer textarea', 'pasted.txt')")
        page.wait(".attachments li:has-text('pasted.txt')")
        page.evaluate(f"({give})('drop', '.composer', 'dropped.txt')")
        page.wait(".attachments li:has-text('dropped.txt')")
        page.click(".attachments li:has-text('dropped.txt') button")
        page.send("Read it.")
        is_complete(page)
        assert shown_answer(page) == "Read by the model."
        assert page.count(".said .file-chip") == 1


def test_what_failed_is_asked_again(browser: Browser, front: str) -> None:
    with browser.page(front) as page:
        page.send("[[error:400:1]] [[text:Now it works.]]")
        page.wait(".turn-failed .failed")
        page.click(".failed button.primary")
        is_complete(page)
        assert words(page.text(".turn-completed .agent > .markdown")) == "Now it works."


def test_everything_can_be_done_with_the_keyboard(browser: Browser, front: str) -> None:
    with browser.page(front) as page:
        page.send("maple [[text:One.]]")
        is_complete(page)
        page.call("press", key="Escape")
        for key, place in (("w", "/waiting"), ("n", "/console/"), ("j", "/chat/")):
            page.call("press", key=key)
            page.until(f"location.pathname.includes('{place}')")
            page.call("press", key="Escape")
        page.call("press", key="/")
        page.until("document.activeElement.id === 'search'")
        page.call("fill", selector="#search", value="no such conversation")
        page.wait(".conversations p:has-text('Nothing found')")
        page.call("fill", selector="#search", value="maple")
        page.wait(".conversation:has-text('maple')")


def test_model_agent_and_place_are_chosen(
    browser: Browser, front: str, working_opencode: Upstream
) -> None:
    with browser.page(front) as page:
        page.wait("select[aria-label=Model]")
        page.call("choose", selector="select[aria-label=Model]", value="demo/demo-small")
        page.call("choose", selector="select[aria-label=Agent]", value="plan")
        page.click(".place summary")
        page.click(".place .check")
        page.send(tool("bash", command="git branch --show-current", description="Branch"))
        is_complete(page)
        facts = page.text(".turn-facts")
        assert "demo/demo-small" in facts
        assert "plan" in facts
        branch = page.text(".chat-head .tag")
        assert branch
        page.click(".tool summary")
        assert branch in page.text(".tool-body")
        page.click(".turn-actions a")
        page.wait(".facts")
        assert branch in page.text(".facts")
        page.evaluate("localStorage.clear(); null")


def test_what_a_subagent_did_is_shown_also_after_a_reload(browser: Browser, front: str) -> None:
    prompt = tool("bash", command="echo from below", description="Say it")
    below = tool("task", description="Look", prompt=prompt, subagent_type="general")
    with browser.page(front) as page:
        page.send(f"{below} [[text:Done.]]")
        is_complete(page)
        page.click(".tool:has-text('task') > summary")
        page.wait(".subagent li:has-text('bash')")
        page.call("reload")
        is_complete(page)
        page.click(".tool:has-text('task') > summary")
        page.wait(".subagent li:has-text('bash')")
        assert page.said == []


def test_a_message_is_said_differently_in_a_fork(browser: Browser, front: str) -> None:
    with browser.page(front) as page:
        page.send("first [[text:One.]]")
        is_complete(page)
        page.send("second [[text:Two.]]")
        page.until("document.querySelectorAll('.turn-completed').length === 2")
        page.click(":nth-match(.turn, 2) >> .said-edit")
        page.wait(".earlier .said-text")
        assert page.count(".earlier .said-text") == 1
        draft = page.evaluate("document.querySelector('.composer textarea').value")
        assert draft == "second [[text:Two.]]"
        page.send("other [[text:Three.]]")
        is_complete(page)
        assert "Two." not in page.text(".scroller")


def test_an_admin_sees_the_nodes_and_nobody_else_does(
    browser: Browser, front: str, working_opencode: Upstream, place: Path
) -> None:
    credential = {"scheme": "bearer", "token": "admin-token", "principal": "ada"}
    credential |= {"scopes": ["tasks:read", "admin"]}  # type: ignore[dict-item]
    settings = {"A2A_STATIC_AUTH_CREDENTIALS": json.dumps([credential]), "A2A_NODE_NAME": "first"}
    with (
        service(working_opencode, place, **settings) as run,
        browser.page(run.url, token="admin-token", path="/agent") as page,
    ):
        page.wait(".nodes tbody tr")
        assert "first" in page.text(".nodes tbody tr")
        assert page.text(".nodes .tag-completed") == "running"
        page.wait(".tile:has-text('Task store'):has-text('works')")  # soon, on a busy machine
    with browser.page(front, path="/agent") as page:
        page.wait(".tile:has-text('Task store')")
        assert page.count(".nodes") == 0
