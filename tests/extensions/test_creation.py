"""A worktree or workspace that could not be created: nothing of it is left, nor of its branch."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.line import Line as Wire
from tests.extensions.conftest import EVERYTHING, Inside, Json, Line, line, settings
from tests.features import require
from tests.running import Upstream, real_opencode, service, until_ready

CREATE = "opencode.workspaces.create"
SWITCH = "OPENCODE_EXPERIMENTAL_WORKSPACES=1"


def git(workspace: Path) -> tuple[set[str], set[str]]:
    """The worktrees and the branches that git knows."""

    def lines(*words: str) -> set[str]:
        told = subprocess.run(
            ["git", *words], cwd=workspace, check=True, capture_output=True, text=True
        )
        return set(told.stdout.splitlines())

    return lines("worktree", "list"), lines("branch", "--format=%(refname)")


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
    """An OpenCode that has workspaces switched off."""
    with real_opencode(tmp_path_factory.mktemp("without"), snapshot=False) as upstream:
        yield upstream


@pytest.fixture(scope="module")
def caller(without: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    directory = tmp_path_factory.mktemp("service-without")
    known = settings(**EVERYTHING)
    with service(without, directory, **known) as running, line(running, "alice") as connected:
        yield connected


def refusal(caller: Line, request: Json) -> Json:
    error: Json = caller.ask(CREATE, {"request": request})["error"]
    return error


@pytest.mark.parametrize("branch", [None, "feature"])
def test_where_workspaces_are_switched_off_the_answer_says_how_to_switch_them_on(
    caller: Line, without: Upstream, branch: str | None
) -> None:
    require("refusals_without_workspaces")
    before = git(without.workspace)
    error = refusal(caller, {"type": "worktree", "branch": branch})
    assert (error["data"]["type"], error["data"]["method"]) == ("METHOD_DISABLED", CREATE)
    assert SWITCH in error["message"]
    assert "OPENCODE_EXPERIMENTAL_WORKSPACES" in error["data"]["setting"]
    assert git(without.workspace) == before
    assert caller.call("opencode.worktrees.list")["items"] == []


def test_an_opencode_that_dies_meanwhile_leaves_nothing_when_it_is_back(tmp_path: Path) -> None:
    with ExitStack() as stack:
        upstream = stack.enter_context(real_opencode(tmp_path / "opencode", snapshot=False))
        assert upstream.password is not None
        # Who starts OpenCode again ends every process whose environment holds its password.
        (secrets := tmp_path / "secrets").mkdir()
        (secrets / "OPENCODE_AUTH_PASSWORD").write_text(upstream.password)
        known = settings(CREDENTIALS_DIRECTORY=str(secrets), **EVERYTHING)
        nameless = replace(upstream, password=None)
        running = stack.enter_context(service(nameless, tmp_path / "service", **known))
        caller = stack.enter_context(line(running, "alice"))
        another = stack.enter_context(ThreadPoolExecutor(1))
        until_ready(caller.http)
        before = git(upstream.workspace)
        answer = another.submit(refusal, caller, {"type": "worktree", "branch": "feature"})
        deadline = time.monotonic() + 60
        while git(upstream.workspace) == before:  # OpenCode then waits some seconds, in vain
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert upstream.pid is not None
        os.kill(upstream.pid, signal.SIGKILL)
        assert answer.result()["data"]["type"] in ("METHOD_DISABLED", "UPSTREAM_UNREACHABLE")
        assert git(upstream.workspace) == before


def test_a_service_that_does_not_wait_so_long_leaves_nothing_either(
    without: Upstream, tmp_path: Path
) -> None:
    before = git(without.workspace)
    hasty = settings(OPENCODE_TIMEOUT_STREAM="2", **EVERYTHING)
    with service(without, tmp_path, **hasty) as running, line(running, "alice") as caller:
        error = refusal(caller, {"type": "worktree", "branch": "feature"})
    assert error["data"]["type"] in ("METHOD_DISABLED", "UPSTREAM_TIMEOUT")
    assert git(without.workspace) == before


@pytest.mark.parametrize(
    ("method", "path"),
    [
        (CREATE, b"/experimental/workspace"),
        ("opencode.worktrees.create", b"/experimental/worktree"),
    ],
)
async def test_what_was_made_and_never_heard_of_is_removed(
    full_opencode: Upstream, inside: Inside, tmp_path: Path, method: str, path: bytes
) -> None:
    name = f"lost-{uuid.uuid4().hex[:8]}"
    request = {"type": "worktree", "branch": name} if method == CREATE else {"name": name}
    async with Wire.to(full_opencode.base_url, path) as cable:
        upstream = replace(full_opencode, base_url=cable.url)
        with (
            service(upstream, tmp_path, **settings(**EVERYTHING)) as running,
            line(running, "alice") as caller,
        ):
            await asyncio.to_thread(until_ready, caller.http)
            before = git(inside.workspace)
            cable.trap("after")
            answer = await asyncio.to_thread(caller.ask, method, {"request": request})
            assert answer["error"]["data"]["type"] == "UPSTREAM_UNREACHABLE"
            assert cable.sprung == 1
            assert git(inside.workspace) == before
            params = {"directory": str(inside.workspace)}
            listed = inside.http.get("/experimental/workspace", params=params).json()
            assert name not in {each["branch"] for each in listed}


def test_a_branch_that_was_there_before_stays(alice: Line, inside: Inside) -> None:
    name = f"kept-{uuid.uuid4().hex[:8]}"
    subprocess.run(["git", "branch", name], cwd=inside.workspace, check=True)
    before = git(inside.workspace)
    request = {"type": "worktree", "branch": name}
    error = alice.refused(CREATE, request=request)
    assert (error["type"], error["upstream_status"]) == ("UPSTREAM_HTTP_ERROR", 400)
    assert git(inside.workspace) == before
    listed = alice.call("opencode.workspaces.list")["items"]
    assert name not in {each["branch"] for each in listed}


def test_the_files_are_there_when_it_is_said_to_be_ready(alice: Line, inside: Inside) -> None:
    """OpenCode answers before git has written them, and git would overwrite what is changed."""
    many = inside.workspace / f"many-{uuid.uuid4().hex[:8]}"
    many.mkdir()
    for number in range(1_000):
        (many / str(number)).write_text("x\n")
    author = ("-c", "user.name=test", "-c", "user.email=test@example.invalid")
    for words in (("add", many.name), (*author, "commit", "-qm", "many files")):
        subprocess.run(["git", *words], cwd=inside.workspace, check=True)
    made = alice.call("opencode.worktrees.create")["item"]
    space = alice.call(CREATE, request={"type": "worktree"})["item"]
    for directory in (made["directory"], space["directory"]):
        assert len(list((Path(directory) / many.name).iterdir())) == 1_000
    alice.call("opencode.worktrees.remove", request={"directory": made["directory"]})
    alice.call("opencode.workspaces.remove", workspace_id=space["workspace_id"])


@pytest.mark.parametrize("kind", ["workspace", "worktree"])
def test_one_that_is_removed_from_inside_takes_its_branch_along(
    alice: Line, inside: Inside, kind: str
) -> None:
    before = git(inside.workspace)
    name = f"inner-{uuid.uuid4().hex[:8]}"
    if kind == "workspace":
        made = alice.call(CREATE, request={"type": "worktree", "branch": name})["item"]
        place = {"opencode": {"workspace": {"id": made["workspace_id"]}}}
        asked: Json = {"workspace_id": made["workspace_id"]}
    else:
        made = alice.call("opencode.worktrees.create", request={"name": name})["item"]
        place = {"opencode": {"directory": made["directory"]}}
        asked = {"request": {"directory": made["directory"]}}
    assert alice.call(f"opencode.{kind}s.remove", metadata=place, **asked) == {"ok": True}
    assert git(inside.workspace) == before
    assert not Path(made["directory"]).exists()
