"""`opencode-a2a call`, `peers` and `card URL` as a person or a script uses them."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import web

from opencode_a2a.cli import main
from opencode_a2a.cli.instances import RegisteredInstance, Registration
from opencode_a2a.cli.outcome import EXIT_CODES
from opencode_a2a.cli.parser import EXIT_CODES_HELP
from opencode_a2a.cli.token import kept_token
from opencode_a2a.outbound.failures import PeerError, TaskNotCompleted
from tests.cli.commands import Ran, called, command
from tests.cli.test_terminal import on_terminal
from tests.outbound.agents import Rude, card, frame, streaming, task
from tests.running import ROOT, TOKEN, Service, Upstream, isolated, running, service

Capture = pytest.CaptureFixture[str]
Call = Callable[..., Ran]


@pytest.fixture
def call(fake_service: Service, tmp_path: Path, capsys: Capture) -> Call:
    """Runs `call` on the service, as one person."""

    def run(*words: str, peer: str = fake_service.url, name: str = "call", **more: str) -> Ran:
        settings = {
            "A2A_CLIENT_BEARER_TOKEN": TOKEN,
            "XDG_STATE_HOME": str(tmp_path / "state"),
            "XDG_CONFIG_HOME": str(tmp_path / "config"),
        }
        given = {name: value for name, value in (settings | more).items() if value}
        return called(main, [name, *([peer] if peer else []), *words], given, capsys)

    return run


def test_the_answer_is_the_output_and_nothing_else(call: Call) -> None:
    assert call("hello", "--no-stream", "you") == Ran(0, "ECHO: hello you\n", "")
    assert call("[[reason:2]] [[tool:bash]] hi").out.startswith("TOOL RESULT")


@pytest.mark.parametrize("line", ["1.0", "0.3"])
@pytest.mark.parametrize("transport", ["JSONRPC", "HTTP+JSON"])
def test_line_and_transport_make_no_difference(
    fake_service: Service, call: Call, tmp_path: Path, line: str, transport: str
) -> None:
    config = tmp_path / "settings.toml"
    config.write_text(
        f'[peers.it]\nurl = "{fake_service.url}"\nbearer_token = "env:IT"\n'
        f'line = "{line}"\ntransport = "{transport}"\n'
    )
    ran = call("--config", str(config), "--yes", "[[permission]]", peer="it", IT=TOKEN)
    assert (ran.code, ran.out) == (0, "TOOL RESULT: hi\n")


def test_each_event_is_a_line_of_json(call: Call) -> None:
    ran = call("--json", "[[reason:2]] hello")
    events = [json.loads(line) for line in ran.out.splitlines()]
    assert next(iter(events[0])) == "task"
    state = events[-1]["statusUpdate"]["status"]["state"]
    assert (ran.code, state) == (0, "TASK_STATE_COMPLETED")
    names = {
        each["artifactUpdate"]["artifact"]["name"] for each in events if "artifactUpdate" in each
    }
    assert names == {"reasoning", "answer"}  # so stream hints were active


def test_the_task_can_be_printed_and_the_conversation_continued(call: Call) -> None:
    first = json.loads(call("--output", "task", "one").out)
    second = json.loads(call("--output", "task", "--last", "two").out)
    assert first["status"]["state"] == second["status"]["state"] == "TASK_STATE_COMPLETED"
    assert first["contextId"] == second["contextId"]
    assert first["id"] != second["id"]
    third = json.loads(call("--output", "task", "--context", first["contextId"], "three").out)
    assert third["contextId"] == first["contextId"]
    assert call("--task", third["id"]).out == "ECHO: three\n"  # watched, and over


def test_a_file_goes_with_the_message(call: Call, tmp_path: Path) -> None:
    note = tmp_path / "note.txt"
    note.write_text("remember this")
    task = json.loads(call("--file", str(note), "--output", "task", "Read it").out)
    assert [part.get("filename") for part in task["history"][0]["parts"]] == [None, "note.txt"]


def test_a_permission_can_be_given_or_refused_beforehand_or_later(call: Call) -> None:
    assert call("--yes", "[[permission]]").out == "TOOL RESULT: hi\n"
    assert call("--no", "[[permission]]").code == 3
    asked = call("[[permission]]")
    assert (asked.code, asked.out) == (5, "")
    assert asked.err.startswith("opencode-a2a: The agent asks for permission: bash")
    (later,) = re.findall(r"To continue: opencode-a2a call \S+ (--task \S+) ANSWER", asked.err)
    assert call(*later.split(), "yes").out == "TOOL RESULT: hi\n"
    assert call("[[permission]]").code == 5
    assert call("--last", "yes").out == "TOOL RESULT: hi\n"
    assert call("--yes", "[[question]]").code == 5  # that is no question of yes or no


@pytest.mark.parametrize(
    ("words", "settings", "code", "says"),
    [
        (["[[error:500]]"], {}, 1, "The model could not answer"),
        (["--model", "demo", "x"], {}, 2, "--model demo: must be PROVIDER/MODEL"),
        (["--file", "/nosuch", "x"], {}, 2, "--file /nosuch: No such file or directory"),
        (["--header", "x", "x"], {}, 2, "--header 'x': must be 'Name: value'"),
        (["--yes", "--no", "x"], {}, 2, "--yes and --no contradict each other"),
        (["--timeout", "-1", "x"], {}, 2, "--timeout: must be more than 0 seconds"),
        (["--last", "x"], {}, 2, "--last: there was no conversation with"),
        (["x"], {"peer": "nosuch"}, 2, "nosuch: is neither a URL nor a configured peer"),
        (["x"], {"A2A_CLIENT_TIMEOUT_SECONDS": "0"}, 2, "A2A_CLIENT_TIMEOUT_SECONDS: is '0'"),
        (["x"], {"A2A_CLIENT_BEARER_TOKEN": "wrong"}, 6, "refuses access (HTTP 401)"),
        (["x"], {"A2A_CLIENT_BEARER_TOKEN": ""}, 6, "Set A2A_CLIENT_BEARER_TOKEN"),
        (["x"], {"peer": "127.0.0.1:1"}, 7, "Nobody accepts connections"),
        (["x"], {"peer": "no..host"}, 7, "There is no host no..host"),
        (["x"], {"peer": "http://[::1"}, 2, "http://[::1: is no URL"),
        (
            ["x"],
            {"peer": "silent", "A2A_CLIENT_TIMEOUT_SECONDS": "0.5"},
            9,
            "did not arrive in 0.5 s",
        ),
        (["--timeout", "0.5", "[[hang]]"], {}, 9, "The task is not done after 0.5 s"),
        (["--task", "nosuch"], {}, 10, "There is no task with this id"),
    ],
)
def test_every_end_has_its_exit_code_and_its_reason(
    call: Call, words: list[str], settings: dict[str, str], code: int, says: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, and no more
        if settings.get("peer") == "silent":
            settings = settings | {"peer": f"127.0.0.1:{silent.getsockname()[1]}"}
        ran = call(*words, **settings)
    assert (ran.code, ran.out) == (code, "")
    assert says in ran.err
    assert TOKEN not in ran.err


def test_a_name_server_that_hangs_does_not_keep_the_program_from_ending(tmp_path: Path) -> None:
    program = (
        "import socket, threading\n"
        "socket.getaddrinfo = lambda *args, **named: threading.Event().wait()\n"
        "from opencode_a2a.cli import main\n"
        "main(['call', 'http://agent.example', 'hello'])\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env=isolated(tmp_path, A2A_CLIENT_TIMEOUT_SECONDS="0.5"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (7, "")
    assert "No name server has told in time what address agent.example has." in ran.stderr


def test_every_exit_code_is_documented_and_every_error_has_one() -> None:
    guide = (ROOT / "docs" / "guide.md").read_text()
    for code in {0, 2, 130, *EXIT_CODES.values()}:
        assert re.search(rf"\b{code} \w", EXIT_CODES_HELP)
        assert f"\n| {code} |" in guide

    def kinds(kind: type[PeerError]) -> set[type[PeerError]]:
        return {kind}.union(*map(kinds, kind.__subclasses__()))

    for kind in kinds(PeerError) - {PeerError, TaskNotCompleted}:
        assert issubclass(kind, tuple(EXIT_CODES))


def test_an_answer_may_come_through_pipes(fake_service: Service, tmp_path: Path) -> None:
    ran = subprocess.run(
        command("opencode-a2a", "call", fake_service.url, "Review this:", "-"),
        env=isolated(tmp_path, A2A_CLIENT_BEARER_TOKEN=TOKEN),
        input="+ a line\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert (ran.stdout, ran.stderr) == ("ECHO: Review this:\n\n+ a line\n", "")


def test_an_instance_of_ones_own_needs_no_credential(
    fake: Upstream, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    token = kept_token(fake.workspace)
    with service(fake, tmp_path / "service", A2A_BEARER_TOKEN=token) as own:
        about = RegisteredInstance(
            own.url, str(fake.workspace), 1, "up", "0", "http://127.0.0.1:1", 0
        )
        with Registration.open(about):
            ran = call("hello", peer=own.url, A2A_CLIENT_BEARER_TOKEN="")
    assert ran == Ran(0, "ECHO: hello\n", "")


def test_peers_are_listed_and_looked_at(fake_service: Service, call: Call, tmp_path: Path) -> None:
    assert call(peer="", name="peers").err.startswith("opencode-a2a: no peer is configured")
    folder = tmp_path / "config" / "opencode-a2a"
    folder.mkdir(parents=True)
    (folder / "peers.toml").write_text(
        f'[peers.here]\nurl = "{fake_service.url}"\nbearer_token = "env:HERE"\n'
        f'[peers.gone]\nurl = "http://127.0.0.1:1"\nmodel_may_call = false\n'
    )
    listed = call(peer="", name="peers", HERE=TOKEN)
    assert listed.code == 1
    _, gone, here = listed.out.splitlines()
    assert gone.split()[:5] == ["gone", "http://127.0.0.1:1", "–", "–", "✗"]
    assert "Nobody accepts connections" in gone
    assert here.split() == [
        "here",
        fake_service.url,
        "1.0",
        "JSONRPC",
        *["may", "call"],
        "OpenCode",
    ]
    found = json.loads(call("--json", peer="", name="peers", HERE=TOKEN).out)
    assert {each["name"]: (each["ok"], each["model_may_call"]) for each in found} == {
        "gone": (False, False),
        "here": (True, True),
    }
    assert call("hi", peer="here", HERE=TOKEN, A2A_CLIENT_BEARER_TOKEN="").out == "ECHO: hi\n"


def test_a_card_of_another_agent_is_shown_and_checked(call: Call) -> None:
    shown = call(name="card")
    assert (shown.code, shown.err) == (0, "")
    assert json.loads(shown.out)["name"] == "OpenCode"
    more = json.loads(call("--extended", name="card").out)["capabilities"]["extensions"]
    assert len(more) > len(json.loads(shown.out)["capabilities"]["extensions"]) - 1


def test_a_call_goes_on_when_the_service_is_killed_and_comes_back(
    fake: Upstream, tmp_path: Path
) -> None:
    env = isolated(tmp_path, A2A_CLIENT_BEARER_TOKEN=TOKEN)
    with service(fake, tmp_path / "service") as first:
        words = command("opencode-a2a", "call", first.url, "--json", "[[tokens:3]] [[hang]]")
        with running(words, env, tmp_path) as call:
            call.wait_for(r'"artifactUpdate".*\n')
            first.program.kill()
            call.wait_for("Connecting again")
            port = first.url.rpartition(":")[2]
            with service(fake, tmp_path / "service", A2A_PORT=port):
                call.wait_for("Connected again; nothing is missing")
                call.process.send_signal(signal.SIGINT)
                call.wait_for("TASK_STATE_CANCELED")
                assert call.process.wait(30) == 3


def test_a_person_at_a_terminal_sees_the_work_and_answers_and_cancels(
    fake_service: Service, tmp_path: Path
) -> None:
    env = isolated(tmp_path, A2A_CLIENT_BEARER_TOKEN=TOKEN, TERM="xterm")
    words = command("opencode-a2a", "call", fake_service.url)
    with on_terminal([*words, "[[reason:2]] [[permission]]"], env, tmp_path, types=True) as screen:
        screen.wait_for(r"OpenCode, A2A 1\.0 over JSONRPC")
        screen.wait_for(r"\x1b\[2mthink0 ")  # dimmed
        screen.wait_for(r"asks for permission: bash[\s\S]*> ")
        screen.type("yes\n")
        screen.wait_for(r"✓\x1b\[0m bash")
        screen.wait_for(r"TOOL RESULT: hi")
        screen.wait_for(r"tokens in, \d+ out")
        assert screen.process.wait(30) == 0
        assert screen.shown.rindex("\x1b[?25h") > screen.shown.rindex("\x1b[?25l")  # the cursor
    hangs = "[[reason:2]] [[tokens:3]] [[hang]]"
    with on_terminal([*words, hangs], env, tmp_path, types=True) as screen:
        screen.wait_for("think0 ")
        screen.process.send_signal(signal.SIGINT)
        screen.wait_for("Canceling the task")
        assert screen.process.wait(30) == 3


@pytest.mark.parametrize(
    ("settings", "codes"),
    [({"TERM": "xterm", "NO_COLOR": "1"}, "\x1b[?25l"), ({"TERM": "dumb"}, "")],
)
def test_colours_and_control_codes_can_be_refused(
    fake_service: Service, tmp_path: Path, settings: dict[str, str], codes: str
) -> None:
    env = isolated(tmp_path, A2A_CLIENT_BEARER_TOKEN=TOKEN, **settings)
    words = command("opencode-a2a", "call", fake_service.url, "[[reason:2]] [[tool:bash]]")
    with on_terminal(words, env, tmp_path) as screen:
        screen.wait_for(r"✓ bash[\s\S]*TOOL RESULT[\s\S]*tokens in")
        assert screen.process.wait(30) == 0
    assert not re.search(r"\x1b\[[\d;]*3\d[\d;]*m", screen.shown)
    assert codes in screen.shown
    assert bool(codes) == ("\x1b" in screen.shown)


def test_a_chat_has_history_commands_and_several_lines(
    fake_service: Service, tmp_path: Path
) -> None:
    env = isolated(tmp_path, A2A_CLIENT_BEARER_TOKEN=TOKEN, TERM="xterm", PROMPT_TOOLKIT_NO_CPR="1")
    words = command("opencode-a2a", "call", fake_service.url)
    prompt = r"[\s\S]*\x1b\[\?2004h"  # a paste could begin now, so somebody reads
    with on_terminal(words, env, tmp_path, types=True) as screen:
        screen.wait_for(f"/help{prompt}")
        screen.type("one\x1b\rtwo\r")  # Alt-Enter between them
        screen.wait_for(rf"ECHO: one[\s\S]*two[\s\S]*tokens in{prompt}")
        screen.type("[[permission]]\r")
        screen.wait_for(f"asks for permission: bash{prompt}")
        screen.type("\x03")
        screen.wait_for(f"Canceling the task{prompt}")
        screen.type("[[reason:2]] [[tokens:3]] [[hang]]\r")
        screen.wait_for("think0 ")
        screen.process.send_signal(signal.SIGINT)
        screen.wait_for(rf"Canceling the task[\s\S]*Canceling the task{prompt}")
        screen.type("/model nosuch\r")
        screen.wait_for(f"must be PROVIDER/MODEL{prompt}")
        screen.type("/new\r")
        screen.wait_for(f"The next message begins a new conversation{prompt}")
        screen.type("\x10" * 5 + "\r")  # five times up: the first message
        screen.wait_for(rf"ECHO: one[\s\S]*ECHO: one{prompt}")
        screen.type("\x04")
        assert screen.process.wait(30) == 0
    (history,) = (tmp_path / ".local/state/opencode-a2a/history").iterdir()
    assert history.read_text().splitlines()[0] == '"one\\ntwo"'


async def test_files_of_an_agent_are_named_and_saved_and_its_card_is_kept(tmp_path: Path) -> None:
    async def served(request: web.Request) -> web.StreamResponse:
        if request.path == "/plot.html":
            return web.Response(text="<p>", content_type="text/html")
        if request.headers.get("if-none-match") == '"1"':
            return web.Response(status=304)
        return web.json_response(card(agent.url), headers={"ETag": '"1"'})

    async def run(*words: str) -> Ran:
        process = await asyncio.create_subprocess_exec(
            *command("opencode-a2a", "call", agent.url, *words),
            env=isolated(tmp_path),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        async with asyncio.timeout(60):
            out, err = await process.communicate()
        return Ran(process.returncode or 0, out.decode(), err.decode())

    async with Rude.open() as agent:
        files = [
            {"raw": "aGVsbG8=", "filename": "../a.txt", "mediaType": "text/plain"},
            {"url": f"{agent.url}/plot.html", "mediaType": "text/html"},
        ]
        done = task("COMPLETED", "Here.")
        done["task"]["artifacts"].append({"artifactId": "f", "parts": files})
        agent.card = served
        agent.answers["SendStreamingMessage"] = streaming(frame(done))
        named = await run("Draw.")
        assert (named.code, named.out) == (0, "Here.\n")
        assert "The agent sends ../a.txt (text/plain, 5 bytes)" in named.err
        assert f"call {agent.url} --task t --save DIRECTORY" in named.err
        saved = await run("--save", "there", "Draw.")
        assert (saved.code, saved.out) == (0, "Here.\n")
        assert "Saved there/a.txt (5 bytes)\nSaved there/plot.html (3 bytes)\n" in saved.err
    assert {path.name: path.read_text() for path in (tmp_path / "there").iterdir()} == {
        "a.txt": "hello",
        "plot.html": "<p>",
    }
    asked = [(what, fields.get("if-none-match")) for what, fields in agent.asked]
    assert asked == [
        ("/.well-known/agent-card.json", None),
        ("SendStreamingMessage", None),
        ("/.well-known/agent-card.json", '"1"'),
        ("SendStreamingMessage", None),
        ("/plot.html", None),
    ]


async def test_a_permission_is_given_beforehand_also_if_the_peer_says_nothing_about_it(
    tmp_path: Path,
) -> None:
    asks = {"request_id": "per_1", "type": "permission", "phase": "asked"}
    waiting = task("INPUT_REQUIRED")
    waiting["task"]["metadata"] = {"shared": {"interrupt": asks}}
    async with Rude.open() as agent:
        answers = iter((frame(waiting), frame(task("COMPLETED", "Done."))))

        async def answer(request: web.Request) -> web.StreamResponse:
            return await streaming(next(answers))(request)

        agent.answers["SendStreamingMessage"] = answer
        process = await asyncio.create_subprocess_exec(
            *command("opencode-a2a", "call", agent.url, "--yes", "Do it."),
            env=isolated(tmp_path),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        async with asyncio.timeout(60):
            out, err = await process.communicate()
    assert (process.returncode, out.decode()) == (0, "Done.\n"), err.decode()
    assert "→ once" in err.decode()
