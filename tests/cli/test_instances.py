"""The running instances of a user, as `opencode-a2a status` lists them."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from starlette.applications import Starlette

from opencode_a2a.app import Built
from opencode_a2a.cli import main, serve
from opencode_a2a.cli.instances import RegisteredInstance, Registration, running_instances
from opencode_a2a.config import load
from opencode_a2a.domain.release import Release
from opencode_a2a.opencode.http import Endpoint
from opencode_a2a.systemd import ServiceManager

Capture = pytest.CaptureFixture[str]
HERE = RegisteredInstance(
    url="http://127.0.0.1:8000",
    workspace="/srv/project",
    pid=os.getpid(),
    command="up",
    version="1.2.3",
    opencode_url="http://127.0.0.1:4096",
    started_at=1_700_000_000,
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "opencode-a2a" / "instances"


def test_an_instance_is_listed_while_it_runs(folder: Path, capsys: Capture) -> None:
    with Registration.open(HERE) as registration:
        assert running_instances() == [HERE]
        registration.update(opencode_version="1.18.33", tasks_at_work=2)
        now = replace(HERE, opencode_version="1.18.33", tasks_at_work=2)
        assert running_instances() == [now]
        (file,) = folder.iterdir()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        main(["status", "--json"])
        assert json.loads(capsys.readouterr().out) == [asdict(now)]
        main(["status"])
        heading, row = capsys.readouterr().out.splitlines()
        assert heading.split()[:3] == ["ADDRESS", "WORKSPACE", "PID"]
        assert row.split()[:6] == [now.url, now.workspace, str(now.pid), "up", "1.18.33", "2"]
    assert running_instances() == []
    assert list(folder.iterdir()) == []


def test_what_a_killed_instance_leaves_is_not_listed_though_its_pid_is_in_use(folder: Path) -> None:
    folder.mkdir(parents=True)
    left = folder / "left.json"
    left.write_text(json.dumps(asdict(HERE)))
    with Registration.open(replace(HERE, pid=1)):
        assert [each.pid for each in running_instances()] == [1]
    assert not left.exists()


def test_an_instance_that_replaces_its_file_meanwhile_stays_listed(folder: Path) -> None:
    """The reader may open a file that is replaced, and so released, before it is looked at."""
    with Registration.open(HERE) as registration, ThreadPoolExecutor(1) as another:

        def replace_often() -> None:
            for times in range(300):
                registration.update(opencode_version=None, tasks_at_work=times)

        replacing = another.submit(replace_often)
        found = []
        while not replacing.done():
            found.append(len(running_instances()))
        assert set(found) == {1}
        assert running_instances() == [registration.instance]
        assert len(list(folder.iterdir())) == 1


async def until_listed(version: str) -> None:
    async with asyncio.timeout(60):
        while True:
            (instance,) = running_instances()
            if instance.opencode_version == version:
                return
            await asyncio.sleep(0.01)


async def test_status_says_which_opencode_is_connected_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "WATCH_SECONDS", 0.01)
    monkeypatch.chdir(tmp_path)
    watch = serve.Watch("up", terminal=None, manager=ServiceManager())
    async with watch.over(load(), Endpoint(base_url=HERE.opencode_url), HERE.url):
        assert [each.opencode_version for each in running_instances()] == [None]
        connected = [Release("1.17.0")]
        watch.built = Built(
            Starlette(),
            at_work=list,
            release=lambda: connected[-1],
            is_connected=lambda: True,
            reload=lambda settings: 0,
        )
        await until_listed("1.17.0")
        connected.append(Release("1.18.33"))  # it was updated
        await until_listed("1.18.33")
    assert running_instances() == []


def test_without_instances_status_says_how_to_start_one(capsys: Capture) -> None:
    main(["status"])
    assert "opencode-a2a up" in capsys.readouterr().out
    main(["status", "--json"])
    assert json.loads(capsys.readouterr().out) == []
