"""Run an installer quietly, and say how far it is.

    python progress.py LABEL DIRECTORY PROGRAM ARGUMENT...

Every few seconds a line says how much there is in DIRECTORY. What the program prints is shown only
if it fails. The Makefile runs this file before anything is installed, so it needs only the standard
library.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

INTERVAL = 5.0  # seconds between two lines


def run(
    label: str,
    command: Sequence[str],
    *,
    directory: Path,
    environment: Mapping[str, str] | None = None,
) -> int:
    """The exit code of the program, 127 if there is no such program."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        except OSError as exc:
            _say(f"{label}: {command[0]} cannot be run: {exc.strerror}")
            return 127
        with process:
            while (code := _exit_code(process)) is None:
                _say(f"{label}: {_megabytes(directory)} after {_seconds(began)}")
        if code == 0:
            _say(f"{label}: done, {_megabytes(directory)} in {_seconds(began)}")
            return 0
        output.seek(0)
        _say(output.read().decode(errors="replace").rstrip())
    _say(f"{label}: failed after {_seconds(began)} (exit code {code}): {' '.join(command)}")
    return code


def _exit_code(process: subprocess.Popen[bytes]) -> int | None:
    """None if it still runs after the interval."""
    try:
        return process.wait(INTERVAL)
    except subprocess.TimeoutExpired:
        return None


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _seconds(began: float) -> str:
    return f"{time.monotonic() - began:.0f} s"


def _megabytes(directory: Path) -> str:
    sizes: dict[tuple[int, int], int] = {}  # by file, which may have several names
    for folder, _, files in os.walk(directory):
        for file in files:
            try:
                found = os.lstat(f"{folder}/{file}")
            except OSError:  # installers rename and remove files all the time
                continue
            sizes[found.st_dev, found.st_ino] = found.st_size
    return f"{sum(sizes.values()) / 1e6:.0f} MB"


if __name__ == "__main__":
    try:
        sys.exit(run(sys.argv[1], sys.argv[3:], directory=Path(sys.argv[2])))
    except KeyboardInterrupt:
        sys.exit(130)
