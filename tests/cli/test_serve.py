"""Where settings come from, who wins, and which signals stop the service."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.cli.commands import command
from tests.running import ROOT, Upstream, insist, isolated, running

# Work that takes its time to end, and gets a copy of the first signal when it has begun to.
WORK = """
import asyncio, os, signal, sys
import uvloop
from opencode_a2a.cli import serve

async def work():
    print("working", flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0.002)
        if sys.argv[2] == "copy":
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.1)
        else:
            print("ending", flush=True)
            await asyncio.sleep(600)

serve.SAME_SIGNAL_SECONDS = float(sys.argv[1])
uvloop.run(serve.until_stopped(work(), on_stop=lambda: None))
"""

# Work on a terminal of its own. What became of it is written to argv[1]: the terminal may be gone.
ON_TERMINAL = """
import asyncio, fcntl, signal, sys, termios
from pathlib import Path
from opencode_a2a.cli import serve

fcntl.ioctl(0, termios.TIOCSCTTY)
if sys.argv[2] == "nohup":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

async def work():
    print("working", flush=True)
    for _ in range(600):
        await asyncio.sleep(0.1)
        if sys.argv[2] == "nohup" and not sys.stdout.isatty():
            Path(sys.argv[1]).write_text("survived")
            return

asyncio.run(
    serve.until_stopped(
        work(),
        on_stop=lambda: Path(sys.argv[1]).write_text("stopped"),
        on_reload=lambda: print("reloaded", flush=True),
    )
)
"""


@contextmanager
def served(
    upstream: Upstream, directory: Path, *words: str, **settings: str
) -> Iterator[httpx.Client]:
    """A client without a credential, of a service started with these words and settings."""
    env = isolated(directory / "home", OPENCODE_BASE_URL=upstream.base_url, **settings)
    with running(command(*words), env, directory) as program:
        url = program.wait_for(r"event=serving url=(\S+)")[1]
        with httpx.Client(base_url=url, timeout=20) as client:
            yield client
        assert program.stop() == 0


def card(client: httpx.Client) -> dict[str, str]:
    found: dict[str, str] = client.get("/.well-known/agent-card.json").json()
    return found


def accepts(client: httpx.Client, token: str) -> bool:
    answer = client.get("/tasks", headers={"authorization": f"Bearer {token}"})
    assert answer.status_code in (200, 401)
    return answer.status_code == 200


def test_the_environment_wins_over_secret_files_and_those_over_toml(
    fake: Upstream, tmp_path: Path
) -> None:
    (tmp_path / "settings.toml").write_text(
        """
        [a2a]
        port = 0
        title = "from toml"
        description = "from toml"
        bearer_token = "toml-token"
        static_auth_credentials = [
            { scheme = "bearer", token = "second-token", principal = "second" },
        ]
        [task_store]
        backend = "memory"
        """
    )
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "a2a_title").write_text("from a secret\n")
    (secrets / "A2A_BEARER_TOKEN").write_text("secret-token\n")
    words = ["opencode-a2a", "serve", "--config", "settings.toml", "--secrets", str(secrets)]
    words += ["--host", "localhost"]  # a flag is a setting said louder
    settings = {"A2A_TITLE": "from the environment", "A2A_HOST": "nowhere.invalid"}
    with served(fake, tmp_path, *words, **settings) as client:
        assert client.base_url.host == "localhost"
        told = card(client)
        assert (told["name"], told["description"]) == ("from the environment", "from toml")
        assert accepts(client, "secret-token")
        assert accepts(client, "second-token")
        assert not accepts(client, "toml-token")
    assert not list((tmp_path / "home").rglob("tasks.db")), "it was to keep tasks in memory"


def test_nothing_in_the_workspace_changes_a_setting(fake: Upstream, tmp_path: Path) -> None:
    """And the older program serves without being told to, with systemd's credentials."""
    mine = "A2A_TITLE=mine\nA2A_BEARER_TOKEN=mine\nA2A_HOST=0.0.0.0\n"
    for name in (".env", "env", ".env.local", "a2a.env"):
        (tmp_path / name).write_text(mine)
    table = '[a2a]\ntitle = "mine"\nbearer_token = "mine"\n'
    for name in ("settings.toml", "config.toml", "opencode-a2a.toml", ".opencode-a2a.toml"):
        (tmp_path / name).write_text(table)
    (tmp_path / "A2A_TITLE").write_text("mine")
    credentials = tmp_path / "home" / "credentials"
    credentials.mkdir(parents=True)
    (credentials / "a2a_bearer_token").write_text("from systemd")
    settings = {"CREDENTIALS_DIRECTORY": str(credentials), "A2A_PORT": "0"}
    with served(fake, tmp_path, "opencode-a2a-server", **settings) as client:
        assert card(client)["name"] == "OpenCode"
        assert client.base_url.host == "127.0.0.1"
        assert accepts(client, "from systemd")
        assert not accepts(client, "mine")
    assert list((tmp_path / "home/.local/state").rglob("tasks.db")), "the usual place"


def test_with_the_memory_backend_a_task_can_be_sent_and_read_back(
    fake: Upstream, tmp_path: Path
) -> None:
    settings = {"A2A_TASK_STORE_BACKEND": "memory", "A2A_BEARER_TOKEN": "t", "A2A_PORT": "0"}
    with served(fake, tmp_path, "opencode-a2a", "serve", **settings) as client:
        client.headers.update({"authorization": "Bearer t", "a2a-version": "1.0"})
        message = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "Hello!"}]}
        sent = client.post("/message:send", json={"message": message}).json()["task"]
        assert sent["status"]["state"] == "TASK_STATE_COMPLETED"
        assert client.get(f"/tasks/{sent['id']}").json() == sent
        assert [task["id"] for task in client.get("/tasks").json()["tasks"]] == [sent["id"]]
    assert not list((tmp_path / "home").rglob("*.db"))


def test_a_copy_of_the_signal_that_stops_it_does_not_kill_it(tmp_path: Path) -> None:
    words = [sys.executable, "-c", WORK, "600", "copy"]
    with running(words, isolated(tmp_path), ROOT) as program:
        program.wait_for("working")
        program.process.send_signal(signal.SIGINT)
        assert program.process.wait(60) == 0


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    words = [sys.executable, "-c", WORK, "0", "none"]
    with running(words, isolated(tmp_path), ROOT) as program:
        program.wait_for("working")
        program.process.send_signal(signal.SIGINT)
        program.wait_for("ending")
        assert insist(program.process) == 1


@pytest.mark.parametrize(("started", "result"), [("plainly", "stopped"), ("nohup", "survived")])
def test_a_hangup_reloads_unless_the_terminal_is_gone(
    tmp_path: Path, started: str, result: str
) -> None:
    witness = tmp_path / "witness"
    ours, theirs = pty.openpty()
    words = [sys.executable, "-c", ON_TERMINAL, str(witness), started]
    process = subprocess.Popen(
        words,
        env=isolated(tmp_path / "home"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        shown = b""
        while b"working" not in shown:
            shown += os.read(ours, 4096)
        process.send_signal(signal.SIGHUP)
        while b"reloaded" not in shown:
            shown += os.read(ours, 4096)
        os.close(ours)
        assert process.wait(60) == 0
        assert witness.read_text() == result
    finally:
        process.kill()
        process.wait(10)
