"""The managed server, with the real OpenCode wherever its behaviour is claimed."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest

from opencode_a2a.domain.release import TRIED
from opencode_a2a.domain.values import ModelRef
from opencode_a2a.errors import UpstreamError, UpstreamHttpError
from opencode_a2a.opencode import process
from opencode_a2a.opencode.agent import OpenCode
from opencode_a2a.opencode.api import Defaults
from opencode_a2a.opencode.http import Endpoint, Http
from opencode_a2a.opencode.process import (
    Launch,
    ManagedOpenCode,
    ManagedProcessFailed,
    child_environment,
)
from tests.running import ROOT, isolated, opencode2_command, opencode_command

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and PR_SET_PDEATHSIG")


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    """The real OpenCode, offline, with a home and a workspace of its own."""
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    return Launch(opencode_command(), workspace, isolated(tmp_path / "home"))


@pytest.fixture(params=[opencode_command, opencode2_command], ids=["1", "2"])
def either(launch: Launch, request: pytest.FixtureRequest) -> Launch:
    """The real OpenCode of each generation."""
    if (command := request.param()) is None:
        pytest.skip("npm has no OpenCode 2 for this system")
    return replace(launch, command=command)


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., str]:
    """A shell script in the role of OpenCode: it gets `serve --hostname H --port P`."""

    def write(body: str, first_line: str = "#!/bin/sh") -> str:
        path = tmp_path / "opencode"
        path.write_text(f"{first_line}\n{dedent(body)}")
        path.chmod(0o755)
        return str(path)

    return write


READY = 'echo "opencode server listening on http://$3:$5"\n'


async def version(endpoint: Endpoint) -> str:
    async with Http.open(endpoint) as http:
        return (await http.probe(60)).version


async def eventually(happened: Callable[[], bool], within: float = 60) -> None:
    """For what another process does: nothing in ours can be awaited for it."""
    async with asyncio.timeout(within):
        while not happened():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    stat = Path(f"/proc/{pid}/stat")
    with suppress(FileNotFoundError, ProcessLookupError):
        return stat.read_text().rpartition(") ")[2].startswith("Z")  # dead; init will collect it
    return sys.platform == "linux"


async def all_gone(pids: str) -> None:
    noted = [int(pid) for pid in pids.split()]
    assert noted
    await eventually(lambda: all(map(is_gone, noted)))


def name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def environment_of(pid: int) -> dict[str, str]:
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(entry.split("=", 1) for entry in entries if entry)


# What the child is told


def test_our_settings_stay_with_us_and_the_users_environment_goes_along() -> None:
    users = {
        "PATH": "/bin",
        "ANTHROPIC_API_KEY": "key",
        "OPENCODE_CONFIG": "/etc/opencode.json",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "true",
        "XDG_DATA_HOME": "/data",
        "NOT_A2A_": "kept",
    }
    ours = {
        "A2A_STATIC_AUTH_CREDENTIALS": "secret",
        "A2A_PORT": "8000",
        "OPENCODE_BASE_URL": "http://elsewhere",
        "OPENCODE_AUTH_USERNAME": "me",
        "OPENCODE_AUTH_PASSWORD": "secret",
        "OPENCODE_COMMAND": "opencode",
        "OPENCODE_WORKSPACE_ROOT": "/srv/project",
        "OPENCODE_SERVER_USERNAME": "me",
        "OPENCODE_SERVER_PASSWORD": "the user's",
        "OPENCODE_PASSWORD": "the user's",
        "OPENCODE_DISABLE_AUTOUPDATE": "0",
        "a2a_bearer_token": "secret",
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=secret",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "authorization=secret",
        "OTEL_EXPORTER_OTLP_METRICS_HEADERS": "authorization=secret",
        "OTEL_EXPORTER_OTLP_LOGS_HEADERS": "authorization=secret",
        "opencode_Auth_Password": "secret",
        "CREDENTIALS_DIRECTORY": "/run/credentials/opencode-a2a.service",
    }
    assert child_environment({**users, **ours}, "generated", None) == {
        **users,
        "OPENCODE_SERVER_PASSWORD": "generated",
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_EMBEDDED_WEB_UI": "1",
    }


def test_our_inline_config_is_laid_over_the_users() -> None:
    users = {"model": "a/b", "mcp": {"theirs": {"type": "local"}}, "plugin": ["x"], "share": "auto"}
    ours = {"mcp": {"ours": {"type": "remote"}}, "plugin": [], "share": {"mode": "off"}}
    child = child_environment({"OPENCODE_CONFIG_CONTENT": json.dumps(users)}, "generated", ours)
    assert json.loads(child["OPENCODE_CONFIG_CONTENT"]) == {
        "model": "a/b",
        "mcp": {"theirs": {"type": "local"}, "ours": {"type": "remote"}},
        "plugin": [],
        "share": {"mode": "off"},
    }


@pytest.mark.parametrize("unreadable", ['{"model": // mine\n"a/b"}', "nonsense"])
def test_an_inline_config_that_cannot_be_merged_is_refused_rather_than_lost(
    unreadable: str,
) -> None:
    with pytest.raises(ManagedProcessFailed, match="OPENCODE_CONFIG_CONTENT must be"):
        child_environment({"OPENCODE_CONFIG_CONTENT": unreadable}, "generated", {"share": "no"})
    child = child_environment({"OPENCODE_CONFIG_CONTENT": unreadable}, "generated", None)
    assert child["OPENCODE_CONFIG_CONTENT"] == unreadable


def test_secrets_do_not_show_when_values_are_printed() -> None:
    assert "hush" not in repr(Endpoint("http://x", "me", "hush"))
    assert "hush" not in repr(Launch("opencode", Path(), {"KEY": "hush"}, {"apiKey": "hush"}))


# The real server


@linux
async def test_the_running_child_has_none_of_our_secrets(
    launch: Launch, program: Callable[[str], str]
) -> None:
    ours = {"A2A_STATIC_AUTH_CREDENTIALS": "secret", "OPENCODE_AUTH_PASSWORD": "secret"}
    launch = replace(
        launch,
        command=program(f"{READY}sleep 300; :"),
        environment={**launch.environment, **ours, "MY_API_KEY": "mine"},
    )
    async with ManagedOpenCode.start(launch) as managed:
        assert managed.pid is not None
        environment = environment_of(managed.pid)
        name = name_of(managed.pid)
    assert "secret" not in environment.values()
    assert environment["MY_API_KEY"] == "mine"
    assert environment["OPENCODE_SERVER_PASSWORD"] == managed.endpoint.password
    assert name == "opencode"  # not the interpreter that prepared it


async def test_it_answers_to_its_password_only_and_if_killed_comes_back_on_the_same_endpoint(
    either: Launch,
) -> None:
    theirs = {"OPENCODE_PASSWORD": "theirs", "OPENCODE_SERVER_PASSWORD": "theirs"}
    launch = replace(either, environment={**either.environment, **theirs})
    async with ManagedOpenCode.start(launch) as managed:
        endpoint, first = managed.endpoint, managed.pid
        assert endpoint.base_url.startswith("http://127.0.0.1:")
        assert await version(endpoint) in TRIED
        for password in ("theirs", None):
            with pytest.raises(UpstreamHttpError) as refused:
                await version(replace(endpoint, password=password))
            assert refused.value.facts["upstream_status"] == 401
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await eventually(lambda: managed.pid not in (None, first))
        assert managed.endpoint == endpoint
        assert managed.restarts == 1
        assert await version(endpoint) in TRIED


@linux
async def test_nothing_it_started_survives_the_exit_not_even_a_running_tool(
    either: Launch,
) -> None:
    note = either.directory / "tool.pid"
    async with ManagedOpenCode.start(either) as managed:
        assert managed.pid is not None
        server, endpoint = managed.pid, managed.endpoint
        command = f"echo $$ > {note}; exec sleep 300"
        shell = asyncio.create_task(run_shell(endpoint, either.directory, command))
        await eventually(lambda: note.exists() and note.read_text().endswith("\n"))
        tool = int(note.read_text())
        assert os.getpgid(tool) != os.getpgid(server) == server
        assert not is_gone(tool)
    with pytest.raises(ProcessLookupError):
        os.killpg(server, 0)
    await eventually(lambda: is_gone(tool))
    with pytest.raises(UpstreamError):
        await shell


async def run_shell(endpoint: Endpoint, directory: Path, command: str) -> None:
    async with OpenCode.connect([endpoint], Defaults(str(directory))) as agent:
        session = await agent.create("a shell", "")
        model = ModelRef("opencode", "any")
        await agent.catalog.shell(session.id, agent="build", command=command, model=model)


PARENT = """
import asyncio, json, sys, uvloop
from pathlib import Path
from opencode_a2a.opencode.process import Launch, ManagedOpenCode

async def main(command, directory, environment):
    launch = Launch(command, Path(directory), environment)
    async with ManagedOpenCode.start(launch) as managed:
        print("pid", managed.pid, flush=True)
        await managed.failed()

loop, arguments = sys.argv[1:]
{"asyncio": asyncio, "uvloop": uvloop}[loop].run(main(*json.loads(arguments)))
"""


@linux
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_it_dies_when_we_are_killed(
    launch: Launch, program: Callable[[str], str], loop: str
) -> None:
    command = program(f"{READY}sleep 300; :")
    arguments = json.dumps([command, str(launch.directory), launch.environment])
    us = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PARENT, loop, arguments),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert us.stdout is not None
    async with asyncio.timeout(60):
        while not (line := await us.stdout.readline()).startswith(b"pid "):
            assert line, "it ended without a word"
    server = int(line.split()[1])
    assert name_of(server) == "opencode"
    us.kill()
    await eventually(lambda: is_gone(server))
    await us.communicate()


async def test_another_port_is_tried_when_the_first_is_taken(
    either: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = process.free_port
    async with await asyncio.start_server(
        lambda _, writer: writer.close(), "127.0.0.1", 0
    ) as taken:
        ports = [taken.sockets[0].getsockname()[1]]
        monkeypatch.setattr(process, "free_port", lambda: ports.pop() if ports else free())
        async with ManagedOpenCode.start(either) as managed:
            assert await version(managed.endpoint) in TRIED
            assert managed.restarts == 0


# What goes wrong


async def test_a_missing_executable_comes_with_advice(launch: Launch) -> None:
    with pytest.raises(ManagedProcessFailed, match=r"npm install -g opencode-ai.*OPENCODE_COMMAND"):
        async with ManagedOpenCode.start(replace(launch, command="no-such-opencode")):
            pass


async def test_a_file_that_is_no_program_is_named(
    launch: Launch, program: Callable[..., str]
) -> None:
    command = program("", "\0")
    with pytest.raises(ManagedProcessFailed, match=f"{command} cannot be run: Exec format error"):
        async with ManagedOpenCode.start(replace(launch, command=command)):
            pass


async def test_a_missing_workspace_is_named(launch: Launch) -> None:
    missing = launch.directory / "missing"
    with pytest.raises(ManagedProcessFailed, match=str(missing)):
        async with ManagedOpenCode.start(replace(launch, directory=missing)):
            pass


async def test_dying_before_ready_is_reported_with_code_and_last_lines(
    launch: Launch, program: Callable[[str], str]
) -> None:
    command = program("seq 1 100; echo 'the disk is on fire' >&2; exit 7")
    with pytest.raises(ManagedProcessFailed, match="code 7") as failure:
        async with ManagedOpenCode.start(replace(launch, command=command)):
            pass
    lines = str(failure.value).splitlines()
    assert lines[-1] == "the disk is on fire"
    assert "100" in lines
    assert "80" not in lines


async def test_never_getting_ready_is_an_error_and_even_who_ignores_signals_is_ended(
    launch: Launch, program: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "TERM_GRACE", 0.2)
    note = launch.directory / "pids"
    command = program(f"trap '' TERM; sleep 300 & echo $$ $! > {note}; wait; sleep 300")
    # Long enough for the program to begin, on a machine that is busy.
    with pytest.raises(ManagedProcessFailed, match="not ready within 2 s"):
        async with ManagedOpenCode.start(replace(launch, command=command, ready_timeout=2)):
            pass
    await all_gone(note.read_text())


@linux
async def test_pipelines_of_an_agent_end_as_they_do_in_a_shell(
    launch: Launch, program: Callable[[str], str]
) -> None:
    note = launch.directory / "ignored"
    command = program(f"grep SigIgn /proc/self/status > {note}\n{READY}exec sleep 300")
    async with ManagedOpenCode.start(replace(launch, command=command)):
        ignored = int(note.read_text().split()[1], 16)
    assert not ignored & 1 << signal.SIGPIPE - 1


async def test_it_is_given_up_after_too_many_deaths(
    launch: Launch, program: Callable[[str], str]
) -> None:
    command = program(f"{READY}echo 'out of memory'; exit 3")
    async with (
        asyncio.timeout(60),
        ManagedOpenCode.start(replace(launch, command=command)) as managed,
    ):
        failure = await managed.failed()
    assert managed.restarts == 5
    assert managed.pid is None
    assert "code 3" in str(failure)
    assert str(failure).endswith("out of memory\n5 restarts did not help.")


async def test_it_is_given_up_when_restarts_take_long_and_never_get_ready(
    launch: Launch, program: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in {"FIRST_DELAY": 0.01, "STABLE_SECONDS": 0.2}.items():
        monkeypatch.setattr(process, name, seconds)
    once = launch.directory / "once"
    until_once = f"until [ -e {once} ]; do sleep 0.02; done"
    command = program(f"[ -e {once} ] && exec sleep 300\n{READY}{until_once}; exit 3")
    launch = replace(launch, command=command)
    async with asyncio.timeout(60), ManagedOpenCode.start(launch) as managed:
        managed._launch = replace(launch, ready_timeout=0.5)  # the first may take its time
        once.touch()
        failure = await managed.failed()
    assert managed.restarts == 5
    assert "not ready within 0.5 s" in str(failure)


async def test_restarts_are_forgotten_once_it_was_well_for_a_while(
    launch: Launch, program: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in {"FIRST_DELAY": 0.01, "STABLE_SECONDS": 0.05}.items():
        monkeypatch.setattr(process, name, seconds)
    command = program(f"{READY}sleep 0.1; exit 3")
    async with ManagedOpenCode.start(replace(launch, command=command)) as managed:
        await eventually(lambda: managed.restarts > process.MAX_RESTARTS)


async def test_a_death_is_noticed_while_a_grandchild_still_holds_its_output(
    launch: Launch, program: Callable[[str], str]
) -> None:
    note = launch.directory / "pid"
    command = program(f"setsid sleep 300 & echo $! >> {note}\n{READY}sleep 0.2; kill -9 $$")
    async with ManagedOpenCode.start(replace(launch, command=command)) as managed:
        await eventually(lambda: managed.restarts >= 1)
    await all_gone(note.read_text())
