"""How people get in: the link that `up` prints, and the login page of their organisation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.cli.commands import command
from tests.cli.test_terminal import on_terminal
from tests.console.browser import Browser, Page
from tests.postgres import free_port
from tests.running import (
    READY_SECONDS,
    ROOT,
    Service,
    Upstream,
    isolated,
    opencode_command,
    running,
    service,
)

PROVIDER = ROOT / "console" / "node_modules" / "oidc-provider"
ROLES = '[oidc.scope_map]\n"agent.run" = ["tasks:read", "tasks:write", "sessions:read"]\n'


def test_the_link_that_up_prints_leads_to_the_first_answer(
    browser: Browser, tmp_path: Path
) -> None:
    workspace = tmp_path / "project"
    workspace.mkdir()
    (workspace / "notes.txt").write_text("buy milk\n")
    env = isolated(tmp_path / "home", OPENCODE_COMMAND=opencode_command(), A2A_PORT="0")
    with on_terminal(command("opencode-a2a", "up"), env, workspace) as screen:
        link = screen.wait_for(r"Console: (http\S+#token=\S+)", READY_SECONDS)[1]
        with browser.visit(link) as page:
            page.send("Hello!")
            page.wait(".turn-completed")
            assert "I am the demo model" in page.text(".turn .agent > .markdown")
            assert "#token" not in page.call("url")
            page.send("List the files.")
            page.until("document.querySelectorAll('.turn-completed').length === 2")
            page.click(".tool summary")
            assert "notes.txt" in page.text(".tool-body")
            page.send("Ask me a question.")
            page.wait(".ask .option")
            page.click(".ask .option")
            page.click(".ask button.primary")
            page.until("document.querySelectorAll('.turn-completed').length === 3")
            assert page.said == []
        screen.process.terminate()
        screen.process.wait(60)


@contextmanager
def organisation(
    upstream: Upstream, place: Path, *, token_port: int | None = None
) -> Iterator[Service]:
    """A service whose people log in at a real provider."""
    port, own = free_port(), free_port()
    back = f"http://127.0.0.1:{own}/console/login"
    words = [str(port), back, *([str(token_port)] if token_port is not None else [])]
    provider = ["node", str(Path(__file__).with_name("provider.mjs")), *words]
    place.mkdir(parents=True, exist_ok=True)
    config = place / "settings.toml"
    config.write_text(ROLES)
    settings = {
        "A2A_PORT": str(own),
        "A2A_OIDC_ISSUER": f"http://127.0.0.1:{port}",
        "A2A_OIDC_AUDIENCE": "https://agent.example.com",
        "A2A_CONSOLE_OIDC_CLIENT_ID": "console",
        "A2A_CONSOLE_OIDC_SCOPE": "openid agent.run",
    }
    with running(provider, isolated(place / "home"), ROOT) as program:
        program.wait_for("ready")
        with service(upstream, place, config=str(config), **settings) as run:
            yield run


def log_in(page: Page, who: str) -> None:
    page.click("button:has-text('Log in with your organisation')")
    page.wait("input[name=login]")
    page.call("fill", selector="input[name=login]", value=who)
    page.call("fill", selector="input[name=password]", value="any")
    page.click("button[type=submit]")
    page.wait("button:has-text('Continue')")
    page.click("button:has-text('Continue')")


@pytest.mark.skipif(not PROVIDER.exists(), reason="oidc-provider is not installed: make test does")
@pytest.mark.parametrize("elsewhere", [False, True], ids=["one origin", "token elsewhere"])
def test_people_log_in_at_their_organisation(
    browser: Browser, working_opencode: Upstream, place: Path, elsewhere: bool
) -> None:
    token_port = free_port() if elsewhere else None
    with organisation(working_opencode, place, token_port=token_port) as run:
        with browser.page(run.url, token="", path="/tasks") as page:
            log_in(page, "ada")
            page.wait(".link-live")
            assert page.call("url") == f"{run.url}/console/tasks", "where the login began"
            token = page.evaluate("sessionStorage.getItem('console.token')")
            headers = {"authorization": f"Bearer {token}", "A2A-Version": "1.0"}
            page.click(".new")
            page.send("Hello from Ada")
            page.wait(".turn-completed")
            assert "ECHO: Hello from Ada" in page.text(".turn .agent")
            page.call("reload")
            page.wait(".turn-completed")
            assert page.said == []
        listed = httpx.get(f"{run.url}/tasks", headers=headers, timeout=60).json()
        assert len(listed["tasks"]) == 1


def test_an_answer_of_the_login_page_for_another_login_is_refused(
    browser: Browser, working_opencode: Upstream, place: Path
) -> None:
    """Somebody who sends a person such a link must not log that person in as somebody else."""
    settings = {
        "A2A_OIDC_ISSUER": "http://127.0.0.1:9",
        "A2A_OIDC_AUDIENCE": "https://agent.example.com",
        "A2A_CONSOLE_OIDC_CLIENT_ID": "console",
    }
    begun = '{"verifier": "v", "state": "mine", "path": "/console/"}'
    before = f"sessionStorage.setItem('console.oidc', '{begun}')"
    with service(working_opencode, place, **settings) as run:
        url = f"{run.url}/console/login?code=stolen&state=another"
        with browser.visit(url, before=before) as page:
            page.wait(".login-error")
            assert "for another login" in page.text(".login-error")
            assert "stolen" not in page.call("url")
            assert page.evaluate("sessionStorage.getItem('console.token')") is None
