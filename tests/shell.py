"""A shell as a newcomer has it open: what was set or entered before holds for the next command."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from tests.cli.commands import BIN
from tests.running import ROOT, isolated


@dataclass(frozen=True, slots=True)
class Shell:
    process: subprocess.Popen[str]
    folder: Path  # for the output of commands
    numbers: Iterator[int] = field(default_factory=count)

    def run(self, typed: str) -> Path:
        """Run a command to its end; the file that has its output, to which a job (`&`) may add."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        output = self.folder / f"output{next(self.numbers)}"
        self.process.stdin.write(f"{{ {typed}\n}} >{shlex.quote(str(output))} 2>&1 </dev/null\n")
        self.process.stdin.write("echo $?\n")
        self.process.stdin.flush()
        code = self.process.stdout.readline().strip()
        assert code == "0", f"{typed}\nended with {code or 'the shell'}:\n{output.read_text()}"
        return output


@contextmanager
def shell(home: Path, folder: Path, **environment: str) -> Iterator[Shell]:
    """One in which `curl` needs no curl and `opencode-a2a` is the one under test."""
    programs = folder / "bin"
    programs.mkdir(parents=True, exist_ok=True)
    curl = programs / "curl"
    curl.write_text(f'#!/bin/sh\nexec {sys.executable} -IS {ROOT / "tests" / "curl.py"} "$@"\n')
    curl.chmod(0o755)
    env = isolated(home, **environment)
    env["PATH"] = f"{programs}:{BIN}:{env['PATH']}"
    process = subprocess.Popen(
        ["sh"],
        env=env,
        cwd=home,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
    with process:  # closes its input, which ends it
        yield Shell(process, folder)
