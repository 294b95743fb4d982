"""`opencode-a2a up` with the real OpenCode: it works as printed, survives, and cleans up."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from opencode_a2a.cli.up import welcome
from opencode_a2a.config import load
from opencode_a2a.domain.release import Release
from opencode_a2a.opencode.providers import ChosenProviders
from tests.cli.commands import command, run
from tests.faults.survivors import agent_at_work
from tests.running import Program, isolated, opencode2_command, opencode_command, running
from tests.shell import shell


@pytest.fixture(params=[opencode_command, opencode2_command], ids=["1", "2"])
def opencode(request: pytest.FixtureRequest) -> str:
    """The real OpenCode of each generation."""
    if (found := request.param()) is None:
        pytest.skip("npm has no OpenCode 2 for this system")
    return str(found)


@contextmanager
def up(directory: Path, *options: str, **settings: str) -> Iterator[Program]:
    workspace = directory / "workspace"
    workspace.mkdir(exist_ok=True)
    settings = {"OPENCODE_COMMAND": opencode_command(), "A2A_PORT": "0", **settings}
    env = isolated(directory / "home", **settings)
    with running(command("opencode-a2a", "up", *options), env, workspace) as program:
        yield program


def opencodes(program: Program) -> list[int]:
    """The processes it has started, in that order."""
    return [int(pid) for pid in re.findall(r"event=opencode.started pid=(\d+)", program.output)]


def alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def typed(said: str, home: Path, text: str = "Hello!") -> dict[str, object]:
    """What the printed command answers, typed as it stands or with another text."""
    found = re.search(r"Try it, in another shell:\n\n(  curl .*?)\n\n", said, re.DOTALL)
    assert found, said
    line = found[1].replace("Hello!", text)
    with shell(home, home.parent / "typed") as opened:
        body: dict[str, dict[str, object]] = json.loads(opened.run(line).read_text())
    return body["task"]


def status(directory: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(
        run(directory, "opencode-a2a", "status", "--json").out
    )
    return found


def answered(task: dict[str, object]) -> bool:
    said = json.dumps(task)
    return "TASK_STATE_COMPLETED" in said and "I am the demo model of opencode-a2a" in said


def said_with(monkeypatch: pytest.MonkeyPatch, toml: Path, text: str, **env: str) -> str:
    for name in [name for name in os.environ if name.upper().startswith("A2A_")]:
        monkeypatch.delenv(name)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    toml.write_text(f"[a2a]\n{text}\n")
    chosen = ChosenProviders(Release("1.18.33"), ("mine",), "mine/m")
    said = welcome(load(toml), "http://127.0.0.1:8000", made=None, chosen=chosen)
    assert "Version: 1.18.33\nModel: mine/m\n" in said
    return said


@pytest.mark.parametrize(
    ("toml", "env", "login", "put_in"),
    [
        (
            "",
            {"A2A_BEARER_TOKEN": "hush"},
            '-H "Authorization: Bearer $A2A_BEARER_TOKEN"',
            ", where $A2A_BEARER_TOKEN is set",
        ),
        (
            "",
            {"a2a_bearer_token": "hush"},
            '-H "Authorization: Bearer $a2a_bearer_token"',
            ", where $a2a_bearer_token is set",
        ),
        (
            'bearer_token = "hush"',
            {},
            '-H "Authorization: Bearer TOKEN"',
            ", with your A2A_BEARER_TOKEN for TOKEN",
        ),
        (
            'static_auth_credentials = [{scheme = "bearer", token = "hush", principal = "ann"}]',
            {},
            '-H "Authorization: Bearer TOKEN"',
            ", with the token of ann for TOKEN",
        ),
        (
            "static_auth_credentials = [{scheme = 'basic', username = 'a b', password = 'hush', "
            "principal = 'ann'}]",
            {},
            "-u 'a b:PASSWORD'",
            ", with the password of ann for PASSWORD",
        ),
    ],
)
def test_the_printed_command_logs_in_the_way_that_is_configured(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    toml: str,
    env: dict[str, str],
    login: str,
    put_in: str,
) -> None:
    said = said_with(monkeypatch, tmp_path / "settings.toml", toml, **env)
    assert f"Try it{put_in}:\n\n  curl " in said
    assert f"\n    {login} \\\n" in said
    assert "hush" not in said


def test_the_printed_command_works_opencode_may_die_and_ctrl_c_leaves_nothing(
    tmp_path: Path, opencode: str
) -> None:
    with up(tmp_path, OPENCODE_COMMAND=opencode) as program:
        program.wait_for("Stop with Ctrl-C")
        said = program.output
        assert "a built-in demo model answers" in said
        url = program.wait_for(r"OpenCode answers A2A at (\S+)")[1]
        workspace, home = (tmp_path / "workspace").resolve(), tmp_path / "home"
        assert re.search(rf"It works in {workspace}\nVersion: \d+\.\S+\nModel: demo\n", said)
        token = run(tmp_path, "opencode-a2a", "token", str(workspace)).out.strip()
        assert len(token) >= 32
        assert token not in said
        assert answered(typed(said, home))
        (listed,) = status(tmp_path)
        assert (listed["url"], listed["workspace"]) == (url, str(workspace))
        assert (listed["pid"], listed["command"]) == (program.process.pid, "up")
        (tmp_path / "workspace" / "notes.txt").touch()
        files = json.dumps(typed(said, home, "List the files."))
        assert "TASK_STATE_COMPLETED" in files
        assert "The tool call gave this result:\\n\\nnotes.txt" in files
        asking = json.dumps(typed(said, home, "Ask me a question."))
        assert "TASK_STATE_INPUT_REQUIRED" in asking
        assert "Which color do you like best?" in asking

        running_one = opencodes(program)[-1]
        os.kill(running_one, signal.SIGKILL)
        program.wait_for("event=opencode.died")
        deadline = time.monotonic() + 60
        while (
            len(opencodes(program)) < 3
            or httpx.get(f"{url}/ready", timeout=60, verify=False).status_code != 200
        ):
            assert time.monotonic() < deadline, program.output
            time.sleep(0.1)
        assert answered(typed(said, home))

        program.process.send_signal(signal.SIGINT)
        assert program.process.wait(60) == 0
        started = opencodes(program)
        assert len(started) == 3  # to be asked, with the demo model, and after its death
        assert not any(alive(pid) for pid in started)
        assert "Traceback" not in program.output
        assert "\x1b" not in program.output  # it is no terminal
        assert "event=stopping" in program.output
        assert status(tmp_path) == []


def login(directory: Path) -> dict[str, str]:
    token = run(directory, "opencode-a2a", "token", str(directory / "workspace")).out.strip()
    return {"Authorization": f"Bearer {token}", "A2A-Version": "1.0"}


def state(client: httpx.Client, task: str) -> str:
    found: str = client.get(f"/tasks/{task}").json()["status"]["state"]
    return found


def until_one_has_failed(client: httpx.Client, tasks: list[str]) -> str:
    """Which of these it is."""
    deadline = time.monotonic() + 120
    while True:
        for task in tasks:
            if state(client, task) == "TASK_STATE_FAILED":
                return task
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_two_opencodes_share_the_conversations_and_one_of_them_may_die(tmp_path: Path) -> None:
    with up(tmp_path, "--opencodes", "2") as program:
        program.wait_for("Stop with Ctrl-C")
        assert "Starting OpenCode 2 of 2" in program.output
        _, _, second = opencodes(program)  # one was asked for its providers
        said, home = program.output, tmp_path / "home"
        asking = [typed(said, home, "Ask me a question.") for _ in range(2)]  # each holds one
        for task in asking:
            assert "TASK_STATE_INPUT_REQUIRED" in json.dumps(task)
        os.kill(second, signal.SIGKILL)
        program.wait_for("event=opencode.died")
        assert answered(typed(said, home))  # by the other one, or by the one that is started again
        url = program.wait_for(r"OpenCode answers A2A at (\S+)")[1]
        with httpx.Client(base_url=url, headers=login(tmp_path), timeout=60) as client:
            # The OpenCode that was started again knows nothing of the question.
            lost = until_one_has_failed(client, [str(task["id"]) for task in asking])
            (other,) = [task for task in asking if task["id"] != lost]
            message = {
                "messageId": "m9",
                "role": "ROLE_USER",
                "parts": [{"text": "Blue"}],
                "taskId": other["id"],
                "contextId": other["contextId"],
            }
            answer = client.post("/message:send", json={"message": message}).json()
            assert answer["task"]["status"]["state"] == "TASK_STATE_COMPLETED", answer
        program.process.send_signal(signal.SIGINT)
        assert program.process.wait(60) == 0
        assert len(opencodes(program)) == 4
        assert not any(alive(pid) for pid in opencodes(program))
        assert "Traceback" not in program.output


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere daemons are not found")
def test_killed_it_leaves_nothing_that_the_agent_started(tmp_path: Path) -> None:
    with agent_at_work(tmp_path) as at:
        at.program.kill()
        assert at.left() == set()
        assert not alive(at.opencode)


def test_with_a_provider_and_a_token_of_ones_own_nothing_is_made_up(
    tmp_path: Path, opencode: str
) -> None:
    provider = {"provider": {"mine": {"models": {"m": {}}, "options": {"apiKey": "k"}}}}
    mine = {"OPENCODE_CONFIG_CONTENT": json.dumps(provider), "A2A_BEARER_TOKEN": "my-own-token"}
    with up(tmp_path, OPENCODE_COMMAND=opencode, **mine) as program:
        program.wait_for("Stop with Ctrl-C")
        assert "demo" not in program.output
        assert re.search(r"Model: .*one of mine", program.output)
        assert "my-own-token" not in program.output
        assert '"Authorization: Bearer $A2A_BEARER_TOKEN"' in program.output
        (pid,) = opencodes(program)
        program.process.send_signal(signal.SIGTERM)
        assert program.process.wait(60) == 0
        assert not alive(pid)


def test_stopped_while_it_starts_it_leaves_nothing_either(tmp_path: Path) -> None:
    with up(tmp_path) as program:
        program.wait_for("event=opencode.started")
        program.process.send_signal(signal.SIGTERM)
        assert program.process.wait(60) == 0
        assert not any(alive(pid) for pid in opencodes(program))
        assert "Traceback" not in program.output


def ask(program: Program, directory: Path, text: str, **more: object) -> dict[str, Any]:
    """The task of a client that gets every block."""
    program.wait_for("Stop with Ctrl-C")
    url = program.wait_for(r"OpenCode answers A2A at (\S+)")[1]
    headers = login(directory) | {"A2A-Extensions": "urn:a2a:stream-hints/v1"}
    message = {"messageId": text, "role": "ROLE_USER", "parts": [{"text": text}], **more}
    sent = {"message": message}
    answer = httpx.post(f"{url}/message:send", json=sent, headers=headers, timeout=60)
    task: dict[str, Any] = answer.json()["task"]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED", task
    return task


def test_conversations_and_their_rules_survive_the_move_to_opencode_2(tmp_path: Path) -> None:
    if (newer := opencode2_command()) is None:
        pytest.skip("npm has no OpenCode 2 for this system")
    rules = {"A2A_PERMISSION_RULES": '[{"permission": "bash", "action": "deny"}]'}
    with up(tmp_path, **rules) as program:
        before = ask(program, tmp_path, "Hello!")
    with up(tmp_path, OPENCODE_COMMAND=newer, **rules) as program:
        context = {"contextId": before["contextId"]}
        listed = ask(program, tmp_path, "List the files.", **context)
        after = ask(program, tmp_path, "And now?", **context)
    assert "Message 3 of this conversation" in after["artifacts"][-1]["parts"][0]["text"]
    assert "tool:glob" in [each["name"] for each in listed["artifacts"]]  # no command may be run
    sessions = [each["metadata"]["shared"]["session"]["id"] for each in (before, after)]
    assert sessions[0] == sessions[1]
