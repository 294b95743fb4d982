"""What a printed curl command does, without needing curl."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
from pathlib import Path
from string import Template

import httpx


def curl(command: str, *, home: Path | None = None, **variables: str) -> httpx.Response:
    """The answer to a command as a shell would read it; it may use no more than is known here.

    What stands in `$(…)` is run in an empty environment but for PATH and HOME.
    """
    parser = argparse.ArgumentParser("curl", exit_on_error=False)
    parser.add_argument("url")
    for flag in ("-s", "-N"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("-H", action="append", default=[])
    parser.add_argument("-d", required=True)
    text = re.sub(
        r"\$\((.*?)\)", lambda found: _output(found[1], home), command.replace("\\\n", " ")
    )
    text = Template(text).substitute(variables)
    name, *words = shlex.split(text)
    assert name == "curl"
    given = parser.parse_args(words)
    headers = dict(header.split(": ", 1) for header in given.H)
    return httpx.post(given.url, headers=headers, content=given.d, timeout=60)


def _output(command: str, home: Path | None) -> str:
    env = {"PATH": os.environ["PATH"], "HOME": str(home)}
    ran = subprocess.run(["sh", "-c", command], env=env, capture_output=True, text=True, check=True)
    return ran.stdout.strip()
