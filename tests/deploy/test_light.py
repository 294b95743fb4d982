"""Light mode: real processes that are restarted, told from others with their pid, and stopped."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from opencode_a2a.config import Server
from opencode_a2a.deploy import light
from opencode_a2a.deploy.light import (
    STOP_SECONDS,
    UNIT,
    Folder,
    LightSettings,
    Log,
    Process,
    Supervisor,
    logout_remark,
)
from opencode_a2a.deploy.resources import DeployError
from tests.cli.commands import run
from tests.running import opencode_command

SECONDS = 120.0


def test_a_unit_is_not_killed_before_the_longest_grace_is_over() -> None:
    grace = Server.model_fields["shutdown_grace_seconds"]
    (longest,) = (each.le for each in grace.metadata if hasattr(each, "le"))
    for seconds in (*re.findall(r"TimeoutStopSec=(\d+)", UNIT), STOP_SECONDS):
        assert float(seconds) > longest


def wait_for(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_process_is_told_from_a_later_one_with_its_pid() -> None:
    own = Process.own()
    assert own.lives
    assert not Process(own.pid, own.started + 1, own.boot).lives
    assert not Process(own.pid, own.started, "another boot").lives


def test_a_log_is_put_aside_before_it_gets_large(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", most_bytes=10, files=3)
    for text in (b"1111\n", b"2222\n", b"3333\n", b"4444\n", b"5555\n", b"6666\n", b"7777\n"):
        log.write(text)
    assert (tmp_path / "log").read_bytes() == b"7777\n"
    assert (tmp_path / "log.1").read_bytes() == b"5555\n6666\n"
    assert (tmp_path / "log.2").read_bytes() == b"3333\n4444\n"
    assert len(list(tmp_path.iterdir())) == 3
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "none"))  # so there is no systemd
    return Folder("demo")


def test_who_starts_it_learns_that_a_logout_would_end_it(tmp_path: Path) -> None:
    assert "as root: loginctl enable-linger dev" in logout_remark("dev", tmp_path)
    (tmp_path / "dev").touch()
    assert logout_remark("dev", tmp_path) == ""


def test_a_name_cannot_leave_its_directory(folder: Folder) -> None:
    with pytest.raises(DeployError):
        Folder("../demo")


def test_a_pid_file_that_was_left_over_stops_nobody(folder: Folder, tmp_path: Path) -> None:
    folder.save(LightSettings("demo", str(tmp_path)))
    folder.enter()
    assert light.is_running(folder)
    text = (folder.path / "pid.json").read_text()
    started = f'"started": {Process.own().started}'
    (folder.path / "pid.json").write_text(text.replace(started, '"started": 1'))
    assert not light.is_running(folder)
    assert light.stop(folder) is False


def test_there_is_one_supervisor_even_if_two_are_started_at_once(
    folder: Folder, tmp_path: Path
) -> None:
    folder.save(LightSettings("demo", str(tmp_path)))
    folder.enter()
    with pytest.raises(DeployError, match="has a supervisor already"):
        Folder("demo").enter()
    folder.leave()
    again = Folder("demo")
    again.enter()
    again.leave()


def test_a_restart_keeps_the_options_that_are_not_given_anew() -> None:
    before = LightSettings("demo", "/srv", ("--host", "0.0.0.0", "--port", "8000"))
    after = before.with_options({"--port": "8001", "--config": "/c"})
    assert after.arguments == ("--host", "0.0.0.0", "--port", "8001", "--config", "/c")


def test_words_of_a_unit_are_written_as_systemd_reads_them() -> None:
    assert light.unit_words(["a b", "50%", "back\\slash"]) == r"'a b' 50%% 'back\\slash'"


def test_settings_and_keys_that_a_unit_does_not_get_are_named() -> None:
    said = light.environment_remark(["PATH", "OPENAI_API_KEY", "A2A_PORT", "HOME"])
    assert "your environment: A2A_PORT, OPENAI_API_KEY." in said
    assert light.environment_remark(["PATH", "HOME"]) == ""


def test_damaged_settings_are_said_to_be_damaged(folder: Folder, tmp_path: Path) -> None:
    folder.save(LightSettings("demo", str(tmp_path)))
    (folder.path / "settings.json").write_text("{")
    with pytest.raises(DeployError, match="is damaged"):
        _ = folder.settings


def test_what_ends_is_started_again_until_a_signal_says_stop(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = "import os, time; print('pid', os.getpid(), flush=True); time.sleep(60)"
    handlers = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}

    def pids() -> list[int]:
        text = log.read_text() if log.exists() else ""
        return [int(line.split()[1]) for line in text.splitlines() if line.startswith("pid ")]

    def interfere() -> None:
        wait_for(lambda: len(pids()) == 1)
        os.kill(pids()[0], signal.SIGKILL)
        wait_for(lambda: len(pids()) == 2)
        os.kill(os.getpid(), signal.SIGTERM)

    try:
        thread = threading.Thread(target=interfere)
        thread.start()
        Supervisor([sys.executable, "-c", script], Log(log)).run()  # handles signals: here
        thread.join(SECONDS)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert "ended with code -9; it is started again in 0.5 s" in log.read_text()
    assert not [pid for pid in pids() if Path(f"/proc/{pid}").exists()]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "project").mkdir()
    yield tmp_path
    run(tmp_path, "opencode-a2a", "deploy", "light", "stop", "demo", XDG_RUNTIME_DIR="/nowhere")


@pytest.mark.timeout(400)
def test_the_real_programs_survive_a_kill_and_end_when_they_are_told_to(home: Path) -> None:
    def light_command(*words: str) -> tuple[int, str]:
        ran = run(
            home,
            *("opencode-a2a", "deploy", "light", *words),
            OPENCODE_COMMAND=opencode_command(),
            XDG_RUNTIME_DIR="/nowhere",
        )
        return ran.code, ran.out + ran.err

    def pid() -> int:
        code, said = light_command("status", "demo")
        return int(said.split("pid ")[1]) if code == 0 else 0

    code, said = light_command("start", "demo", "--port", "0", "--directory", "project")
    assert code == 0, said
    assert light_command("start", "demo")[1].startswith("opencode-a2a: demo is running already")
    wait_for(lambda: pid() > 0)
    first = pid()
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: pid() not in (0, first))
    assert light_command("stop", "demo") == (0, "Stopped.\n")
    assert light_command("status", "demo") == (1, "opencode-a2a: demo is not running.\n")
    assert light_command("stop", "demo") == (0, "It was not running.\n")
    code, said = light_command("logs", "demo")
    assert "it is started again in 0.5 s" in said
