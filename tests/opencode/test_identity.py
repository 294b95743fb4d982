"""The name of an OpenCode, which callers see."""

from __future__ import annotations

from pathlib import Path

import pytest

from opencode_a2a.opencode.http import Endpoint
from opencode_a2a.opencode.identity import opencode_name

ROOT = Path("/srv/project")


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("http://agent:s3cret@opencode.example:4096/", "http://opencode.example:4096"),
        ("https://opencode.example", "https://opencode.example"),
        ("http://me:pw@[2001:db8::1]:4096", "http://[2001:db8::1]:4096"),
    ],
)
def test_a_name_has_no_password(url: str, name: str) -> None:
    assert opencode_name(Endpoint(url), ROOT) == name


def test_a_name_does_not_tell_the_id_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    machine_id, names = "0123456789abcdef0123456789abcdef", set[str]()
    for given in (machine_id, machine_id, machine_id[::-1]):
        content = given.encode() + b"\n"
        monkeypatch.setattr(Path, "read_bytes", lambda _, content=content: content)
        names.add(opencode_name(Endpoint("http://127.0.0.1:4096"), ROOT))
    assert len(names) == 2
    assert not any(machine_id[:6] in name or machine_id[::-1][:6] in name for name in names)
    assert all(name.endswith(":4096") for name in names)
