"""What a person at a terminal sees of a service, on a real pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from opencode_a2a.cli.terminal import Terminal
from tests.cli.commands import command
from tests.running import TOKEN, Upstream, insist, isolated


@dataclass
class Screen:
    """Everything that was written to a terminal of 80 columns."""

    process: subprocess.Popen[bytes]
    descriptor: int
    shown: str = ""
    news: threading.Condition = field(default_factory=threading.Condition)

    def read(self) -> None:
        while True:
            try:
                data = os.read(self.descriptor, 65_536)
            except OSError:  # how a terminal ends on Linux
                data = b""
            with self.news:
                self.shown += data.decode(errors="replace")
                self.news.notify_all()
            if not data:
                return

    def wait_for(self, pattern: str, seconds: float = 60) -> re.Match[str]:
        with self.news:
            self.news.wait_for(lambda: re.search(pattern, self.shown), seconds)
            found = re.search(pattern, self.shown)
        assert found, f"never shown: {pattern!r}\n{self.shown}"
        return found

    def type(self, text: str) -> None:
        os.write(self.descriptor, text.encode())


@contextmanager
def on_terminal(
    words: list[str], env: dict[str, str], cwd: Path, *, types: bool = False
) -> Iterator[Screen]:
    """Run a program on a terminal; a person who `types` has it as the input, too."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = subprocess.Popen(
        words,
        env=env,
        cwd=cwd,
        stdin=theirs if types else subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    screen = Screen(process, ours)
    reader = threading.Thread(target=screen.read, daemon=True)
    reader.start()
    try:
        yield screen
    finally:
        process.kill()
        process.wait(10)
        reader.join(10)
        os.close(ours)


def test_a_terminal_that_has_gone_is_not_drawn_on() -> None:
    ours, theirs = pty.openpty()
    stream = os.fdopen(theirs, "w")
    terminal = Terminal(stream)
    terminal.show(["  a task"])
    os.close(ours)
    terminal.show(["  a task", "  another one"])
    terminal.write("a line of the log\n")
    terminal.flush()
    terminal.show([])
    with pytest.raises(OSError, match="Input/output error"):
        stream.close()


def test_a_terminal_shows_the_tasks_at_work_and_what_ctrl_c_waits_for(
    fake: Upstream, tmp_path: Path
) -> None:
    env = isolated(
        tmp_path / "home",
        OPENCODE_BASE_URL=fake.base_url,
        OPENCODE_WORKSPACE_ROOT=str(fake.workspace),
        A2A_TASK_STORE_BACKEND="memory",
        A2A_BEARER_TOKEN=TOKEN,
        A2A_PORT="0",
        A2A_LOG_FORMAT="json",
        A2A_SHUTDOWN_GRACE_SECONDS="300",
        TERM="xterm",
    )
    with on_terminal(command("opencode-a2a", "serve"), env, tmp_path) as screen:
        url = screen.wait_for(r'"event":"serving","url":"([^"]+)"')[1]
        text = "[[hang]] Paint \x1b[31mred " + "and so on " * 10
        message = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": text}]}
        sent = httpx.post(
            f"{url}/message:send",
            headers={"authorization": f"Bearer {TOKEN}", "a2a-version": "1.0"},
            json={"message": message, "configuration": {"returnImmediately": True}},
            timeout=30,
        ).json()["task"]
        line = screen.wait_for(rf"(?:\n|\x1b\[J)(  {sent['id'][:8]}  working .*…)\r\n")[1]
        assert len(line) == 79
        assert "[[hang]] Paint \\x1b[31mred and" in line
        screen.process.send_signal(signal.SIGINT)
        screen.wait_for("Stopping: 1 task is at work and may go on for 300 s")
        screen.wait_for("Press Ctrl-C again to stop at once")
        assert insist(screen.process) == 1
