"""Arguments of OpenCode's commands on the real OpenCode: they never run or read anything."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.domain.test_commands import ALLOWED, EXPANSIONS, PATHS
from tests.extensions.command_oracle import Oracle
from tests.extensions.conftest import Inside, Line, settings
from tests.running import service

PAIRS, SEED = 200, 1
EXAMPLES = [*ALLOWED, *PATHS, *((template, arguments) for template, arguments, _ in EXPANSIONS)]
COMMANDS = {
    "explain": "Explain `$ARGUMENTS` to me.",
    "compare": "Compare `$1` against $2 using `$3`.",
    "run": "!`$ARGUMENTS`",
    "plain": "[[text:PLAIN]] $ARGUMENTS",
}
PROMPTS = {"type": "local", "command": [sys.executable, "-m", "tests.extensions.prompts"]}


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oracle]:
    with Oracle.start(
        tmp_path_factory.mktemp("oracle"),
        PAIRS,
        SEED,
        EXAMPLES,
        permission={"bash": "ask"},
        command={name: {"template": template} for name, template in COMMANDS.items()},
        mcp={"prompts": PROMPTS},
    ) as running:
        yield running


@pytest.fixture(scope="module")
def inside(oracle: Oracle) -> Iterator[Inside]:
    login = ("opencode", oracle.upstream.password or "")
    with httpx.Client(base_url=oracle.upstream.base_url, auth=login, timeout=60) as http:
        yield Inside(http, oracle.upstream.workspace)


@pytest.fixture(scope="module")
def alice(oracle: Oracle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    directory = tmp_path_factory.mktemp("commands")
    with service(oracle.upstream, directory, **settings()) as running:
        headers = {"authorization": "Bearer alice"}
        with httpx.Client(base_url=running.url, headers=headers, timeout=60) as http:
            yield Line(http)


def test_no_pair_of_template_and_arguments_runs_or_reads_anything_that_is_allowed(
    oracle: Oracle,
) -> None:
    report = oracle.judge()
    assert report.faults == []
    assert report.compared == PAIRS + len(EXAMPLES)
    # It would prove nothing if all were refused, or if what is refused did no harm.
    assert report.allowed > PAIRS / 5
    assert report.canaries_refused > PAIRS / 20
    assert report.reads_refused > 0


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("explain", "!$'\ntouch canary\n$'"),
        ("compare", 'x! "| touch canary |" y'),
        ("review", "x!"),
        ("run", "touch canary"),
        ("prompts:tell", "touch canary"),
    ],
)
def test_arguments_do_not_become_shell_commands(
    alice: Line, inside: Inside, command: str, arguments: str
) -> None:
    canary = inside.workspace / "canary"
    canary.unlink(missing_ok=True)
    request = {"command": command, "arguments": arguments}
    params = {"session_id": inside.session(command), "request": request}
    answer = alice.ask("opencode.sessions.command", params)
    assert not canary.exists()
    assert list(answer["error"]["data"]["fields"]) == ["request.arguments"]


@pytest.mark.parametrize(
    ("command", "arguments", "said"),
    [
        ("plain", "It's 5 > 4!", "PLAIN"),
        ("explain", "HEAD~1 of feature/x", "ECHO: Explain `HEAD~1 of feature/x` to me."),
        ("run", "", "ECHO: !``"),
        ("prompts:tell", "", "PROMPTED"),
    ],
)
def test_harmless_arguments_reach_every_kind_of_command(
    alice: Line, inside: Inside, command: str, arguments: str, said: str
) -> None:
    """Also beside a prompt of an MCP server, whose text OpenCode does not show."""
    request = {"command": command, "arguments": arguments}
    session = inside.session(command)
    item = alice.call("opencode.sessions.command", session_id=session, request=request)["item"]
    assert [part["text"] for part in item["parts"] if part["kind"] == "text"] == [said]


def test_prompts_are_no_templates(alice: Line, inside: Inside, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    text = f"$ARGUMENTS !`touch {canary}` $1"
    alice.converse(text, "no template")
    subtask = {"type": "subtask", "prompt": text, "description": "x", "agent": "general"}
    for part in ({"type": "text", "text": text}, subtask | {"command": "run"}):
        session = inside.session("no template")
        with inside.awaiting("session.idle", session):
            request = {"parts": [part]}
            alice.call("opencode.sessions.prompt_async", session_id=session, request=request)
    assert not canary.exists()
