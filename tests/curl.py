"""What a printed curl command does, without needing curl."""

from __future__ import annotations

import argparse
import shlex
from string import Template

import httpx


def curl(command: str, **variables: str) -> httpx.Response:
    """The answer to a command as a shell would read it; it may use no more than is known here."""
    parser = argparse.ArgumentParser("curl", exit_on_error=False)
    parser.add_argument("url")
    for flag in ("-s", "-N"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("-H", action="append", default=[])
    parser.add_argument("-d", required=True)
    text = Template(command.replace("\\\n", " ")).substitute(variables)
    name, *words = shlex.split(text)
    assert name == "curl"
    given = parser.parse_args(words)
    headers = dict(header.split(": ", 1) for header in given.H)
    return httpx.post(given.url, headers=headers, content=given.d, timeout=60)
