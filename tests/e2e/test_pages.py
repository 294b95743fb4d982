"""The commands of README, first hour and guide, run in their order against `opencode-a2a up`.

What a page shows as their result is compared with what comes. `up` works as on the machine of a
newcomer: the real OpenCode 2 with the demo model, in a git repository with one file.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.cli.commands import BIN, command
from tests.curl import DOCUMENTED_PORT
from tests.pages import PAGES, Command, commands, difference, with_known
from tests.running import Program, isolated, opencode2_command, opencode_command, running
from tests.shell import Shell, shell

# Commands that no test should run, each with the reason. Everything else on the pages is run.
NOT_RUN = {
    "make console": "installs packages; whoever runs the tests in a browser has done it",
    "uv tool install .": "installs this program for the user",
    "make run": "installs packages, and ends in `opencode-a2a up`, which is run",
    "make test": "runs this test",
    "podman build -t opencode-a2a .": "builds an image from the network",
    'podman run --rm -p 127.0.0.1:8000:8000 -v "$PWD":/workspace -v opencode-a2a:/home/agent '
    "opencode-a2a": "needs that image",
    "OPENCODE_SERVER_PASSWORD=a-long-password opencode serve": (
        "takes port 4096; tests/cli/test_serve.py has it on another"
    ),
    "OPENCODE_AUTH_PASSWORD=a-long-password A2A_BEARER_TOKEN=dev-token opencode-a2a serve": (
        "needs that OpenCode"
    ),
    "opencode-a2a push dead": "needs a receiver that fails; tests/cli/test_push.py has one",
    "opencode-a2a push redeliver": "needs what that one has refused",
}
# A free port; and what one section asks for, because another start would take seconds.
ALWAYS_SET = {
    "A2A_PORT": "0",
    "A2A_ENABLE_WORKSPACE_MUTATIONS": "true",
}
OPENCODE = opencode2_command() or opencode_command()
READY = r"OpenCode answers A2A at \S+:(\d+)\n(.*\n)*Stop with Ctrl-C\."
WELCOME = "OpenCode answers A2A at"
# The test has its own OpenCode; installing one is tried in tests/cli/test_executable.py.
UP = re.compile(r"(?P<settings>.*)\bopencode-a2a up( --install-opencode)?", re.DOTALL)
SECONDS = 60.0


class Reader:
    """Somebody who types what the pages say: `up` in one shell, everything else in another."""

    def __init__(self, home: Path, folder: Path) -> None:
        self.home, self.folder = home, folder
        self.project = home / "my-project"
        self.port_file = folder / "port"
        self.service, self.opened = ExitStack(), ExitStack()
        self.settings: dict[str, str] | None = None  # those that `up` was started with
        self.up_on_page = False
        self.known: dict[str, str] = {}  # what shortened words stand for on this page
        self.problems: list[str] = []
        self.up: Program
        self.shell: Shell
        self.job: Path  # the output of what was started with `&`

    def follow(self, page: str) -> set[str]:
        """Type what a page says; the commands that were left out."""
        self.known, self.up_on_page = {}, False
        self.new_shell()
        left_out = set()
        for each in commands(page):
            typed = re.sub(r"\s+# .*$", "", each.text)
            if typed in NOT_RUN:
                left_out.add(typed)
            elif up := UP.fullmatch(typed):
                self.start(up["settings"])
                if each.shown:  # without what is installed and logged before
                    self.compare(each, "".join(each.shown.partition(WELCOME)[1:]), self.welcome)
            elif each.language == "python":
                self.run_python(each.text)
            elif each.language == "toml":
                self.save(each.text)
            else:
                self.type(each, with_known(typed, self.known))
        return left_out

    def new_shell(self) -> None:
        self.opened.close()
        opened = shell(self.home, self.folder, CURL_PORT_FILE=str(self.port_file))
        self.shell = self.opened.enter_context(opened)

    def start(self, settings: str) -> None:
        """`up`, which takes the shell: the rest is typed in another one.

        It may run since an earlier page; further ones on the same page start it again.
        """
        wanted = dict(word.split("=", 1) for word in shlex.split(settings))
        if self.up_on_page or wanted != self.settings:
            self.service.close()
            env = isolated(self.home, **{**ALWAYS_SET, **wanted}, OPENCODE_COMMAND=OPENCODE)
            env["PATH"] = f"{BIN}:{env['PATH']}"
            started = running(command("opencode-a2a", "up"), env, self.project)
            self.up = self.service.enter_context(started)
            self.port_file.write_text(self.up.wait_for(READY)[1])
            self.settings = wanted
        if not self.up_on_page:
            self.new_shell()
        self.up_on_page = True

    def welcome(self) -> str:
        return self.up.wait_for(READY)[0]

    def type(self, each: Command, typed: str) -> None:
        """What changes something is done once; a reader looks again until it has come."""
        if "…" in typed:
            self.problems.append(f"{each.where}: {typed}\nuses a word that was not shown before")
        elif typed.endswith("&"):
            self.job = self.shell.run(typed)
            self.compare(each, f"{each.shown}…", self.job.read_text, SECONDS)
        elif typed == "wait":
            self.shell.run(typed)
            self.compare(each, each.shown, self.job.read_text)
        else:
            changes = re.search(r"\bpost | -d ", typed)
            self.compare(each, each.shown, partial(self.run, typed), 0 if changes else SECONDS)

    def compare(
        self, each: Command, shown: str, look: Callable[[], str], seconds: float = 0
    ) -> None:
        """Look, and again for some seconds until it is what is shown."""
        deadline = time.monotonic() + seconds
        came = look()
        while shown and (problem := difference(shown, self.as_documented(came), self.known)):
            if time.monotonic() >= deadline:
                self.problems.append(f"{each.where}: {each.text}\ngave\n{came}\nwithout {problem}")
                return
            time.sleep(0.1)
            came = look()

    def as_documented(self, came: str) -> str:
        came = re.sub(r"^:.*\n", "", came, flags=re.MULTILINE)  # a stream that was silent for long
        came = came.replace(f":{self.port_file.read_text()}", f":{DOCUMENTED_PORT}")
        return came.replace(str(self.project), "/home/you/my-project")

    def run(self, typed: str) -> str:
        here = f"localhost:{self.port_file.read_text()}" if self.port_file.exists() else ""
        typed = typed.replace(f"localhost:{DOCUMENTED_PORT}", here)
        return self.shell.run(typed).read_text()

    def save(self, text: str) -> None:
        """Write a file whose name is in its first line, a comment."""
        name = text.splitlines()[0].removeprefix("# ~/")
        (self.home / name).write_text(text)

    def run_python(self, program: str) -> str:
        script = self.folder / "program.py"
        script.write_text(program)
        url = f"http://127.0.0.1:{self.port_file.read_text()}"
        return self.run(f"URL={url} {sys.executable} {script}")


@pytest.mark.timeout(600)
def test_the_commands_of_the_pages_do_what_is_shown(tmp_path: Path) -> None:
    home = tmp_path / "home"
    project = home / "my-project"
    project.mkdir(parents=True)
    (project / "notes.txt").touch()
    author = ("-c", "user.name=test", "-c", "user.email=test@example.invalid")
    for words in (("init", "-qb", "main"), ("add", "-A"), (*author, "commit", "-qm", "first")):
        subprocess.run(["git", *words], cwd=project, check=True, env=isolated(home))
    # Snapshots are half the work of a prompt, and no page shows what a task has changed.
    config = home / ".config" / "opencode" / "opencode.json"
    config.write_text(json.dumps({"snapshot": False}))
    reader = Reader(home, tmp_path / "typed")
    with reader.service, reader.opened:
        left_out = set[str]().union(*(reader.follow(page) for page in PAGES))
    assert not reader.problems, "\n\n".join(reader.problems)
    assert left_out == set(NOT_RUN), "NOT_RUN names commands that no page has"
