"""Running the commands as a person does, in an environment where nothing else is set.

A process takes a second to start, so what only complains is called in this one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import logging_for_tests
from tests.running import isolated

BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def problems(self) -> list[str]:
        """What it complained about, line by line, without its name."""
        lines = self.err.splitlines()
        assert all(line.startswith("opencode-a2a: ") for line in lines), self.err
        return [line.removeprefix("opencode-a2a: ") for line in lines]


def command(*words: str) -> list[str]:
    name, *rest = words
    return [str(BIN / name), *rest]


def called(
    main: Callable[[list[str]], None],
    words: list[str],
    settings: dict[str, str],
    capture: pytest.CaptureFixture[str],
) -> Ran:
    """A program's `main` that ends before it serves."""
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name.startswith(("A2A_", "OPENCODE_")):
                patch.delenv(name)
        for name, value in settings.items():
            patch.setenv(name, value)
        try:
            with pytest.raises(SystemExit) as ended:
                main(words)
        finally:
            logging_for_tests.configure()
    out, err = capture.readouterr()
    assert isinstance(ended.value.code, int)
    return Ran(ended.value.code, out, err)


def run(directory: Path, *words: str, **settings: str) -> Ran:
    """A command that is expected to end by itself, and soon."""
    done = subprocess.run(
        command(*words),
        env=isolated(directory / "home", **settings),
        cwd=directory,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)
