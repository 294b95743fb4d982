"""The console is part of the wheel, and served from there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import httpx
import pytest

from tests.console.browser import CONSOLE
from tests.running import ROOT, Upstream, isolated, service

PREFIX = "opencode_a2a/console/"


@pytest.mark.skipif(not (CONSOLE / "index.html").is_file(), reason="not built: make console")
def test_the_wheel_has_the_console_and_serves_it(fake: Upstream, tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=300)
    [wheel] = tmp_path.glob("*.whl")
    installed = tmp_path / "installed"
    with ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if name.startswith(PREFIX)}
        archive.extractall(installed)
    built = {
        PREFIX + file.relative_to(CONSOLE).as_posix()
        for file in CONSOLE.rglob("*")
        if file.is_file()
    }
    assert names == built
    here = {"PYTHONPATH": str(installed)}
    where = [sys.executable, "-c", "import opencode_a2a; print(opencode_a2a.__file__)"]
    env = isolated(tmp_path / "home", **here)
    found = subprocess.run(where, env=env, check=True, capture_output=True, text=True, timeout=60)
    assert found.stdout.startswith(str(installed))
    command = (sys.executable, "-m", "opencode_a2a", "serve")
    with (
        service(fake, tmp_path / "service", command=command, **here) as running,
        httpx.Client(base_url=running.url, timeout=60) as client,
    ):
        page = client.get("/console")
        assert page.status_code == 200
        assert "script-src 'self'" in page.headers["content-security-policy"]
        named = re.findall(r'(?:src|href)="(/console/[^"]+)"', page.text)
        assert any(path.endswith(".js") for path in named)
        assert [path for path in named if client.get(path).status_code != 200] == []
