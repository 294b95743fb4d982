"""A worktree or workspace that could not be created: nothing of it is left, nor of its branch."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.line import Line as Wire
from tests.extensions.conftest import EVERYTHING, Json, Line, fresh, git, line_of
from tests.extensions.inside import Inside
from tests.extensions.test_worktrees import KINDS, Made
from tests.features import is_2, require
from tests.running import Upstream, real_opencode, until_ready

CREATE = "workspaces.create"
FEATURE: Json = {"request": {"type": "worktree", "branch": "feature"}}
PATHS = {"workspace": b"/experimental/workspace", "worktree": b"/experimental/worktree"}


def known_to_git(workspace: Path) -> tuple[set[str], set[str]]:
    """The worktrees and the branches."""
    branches = git(workspace, "branch", "--format=%(refname)")
    return set(git(workspace, "worktree", "list").splitlines()), set(branches.splitlines())


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
    """An OpenCode that has workspaces switched off."""
    require("workspaces")
    with real_opencode(tmp_path_factory.mktemp("without"), snapshot=False) as upstream:
        yield upstream


def test_where_workspaces_are_switched_off_the_answer_says_how_to_switch_them_on(
    without: Upstream, tmp_path: Path
) -> None:
    require("refusals_without_workspaces")
    before = known_to_git(without.workspace)
    with line_of(without, tmp_path, **EVERYTHING) as caller:
        error = caller.refused(CREATE, **FEATURE)
        assert error["type"] == "METHOD_DISABLED"
        assert "OPENCODE_EXPERIMENTAL_WORKSPACES" in error["setting"]
        assert caller.call("worktrees.list")["items"] == []
    assert known_to_git(without.workspace) == before


def test_a_service_that_does_not_wait_so_long_leaves_nothing_either(
    without: Upstream, tmp_path: Path
) -> None:
    before = known_to_git(without.workspace)
    with line_of(without, tmp_path, OPENCODE_TIMEOUT_STREAM="2", **EVERYTHING) as caller:
        error = caller.refused(CREATE, **FEATURE)
    assert error["type"] in ("METHOD_DISABLED", "UPSTREAM_TIMEOUT")
    assert known_to_git(without.workspace) == before


def test_an_opencode_that_dies_meanwhile_leaves_nothing_when_it_is_back(tmp_path: Path) -> None:
    require("workspaces")
    with ExitStack() as stack:
        upstream = stack.enter_context(real_opencode(tmp_path / "opencode", snapshot=False))
        assert upstream.password is not None
        # Who starts OpenCode again ends every process whose environment holds its password.
        (secrets := tmp_path / "secrets").mkdir()
        (secrets / "OPENCODE_AUTH_PASSWORD").write_text(upstream.password)
        env = {"CREDENTIALS_DIRECTORY": str(secrets), **EVERYTHING}
        nameless = replace(upstream, password=None)
        caller = stack.enter_context(line_of(nameless, tmp_path / "service", **env))
        another = stack.enter_context(ThreadPoolExecutor(1))
        until_ready(caller.http)
        before = known_to_git(upstream.workspace)
        answer = another.submit(caller.refused, CREATE, **FEATURE)
        deadline = time.monotonic() + 60
        while known_to_git(upstream.workspace) == before:  # OpenCode then waits some seconds
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert upstream.pid is not None
        os.kill(upstream.pid, signal.SIGKILL)
        assert answer.result()["type"] in ("METHOD_DISABLED", "UPSTREAM_UNREACHABLE")
        assert known_to_git(upstream.workspace) == before


@pytest.mark.parametrize("kind", KINDS)
async def test_what_was_made_and_never_heard_of_is_removed(
    full_opencode: Upstream, inside: Inside, tmp_path: Path, kind: str
) -> None:
    if kind == "workspace":
        require("workspaces")
    name = f"lost-{fresh()[:8]}"
    request = {"type": "worktree", "branch": name} if kind == "workspace" else {"name": name}
    path = b"/api/worktree" if is_2() else PATHS[kind]
    async with Wire.to(full_opencode.base_url, path) as cable:
        upstream = replace(full_opencode, base_url=cable.url)
        with line_of(upstream, tmp_path, **EVERYTHING) as caller:
            await asyncio.to_thread(until_ready, caller.http)
            before, listed = known_to_git(inside.workspace), inside.worktrees()
            cable.trap("after")
            error = await asyncio.to_thread(caller.refused, f"{kind}s.create", request=request)
            assert error["type"] == "UPSTREAM_UNREACHABLE"
            assert cable.sprung == 1
            assert known_to_git(inside.workspace) == before
            assert inside.worktrees() == listed


def test_a_branch_that_was_there_before_stays(alice: Line, inside: Inside) -> None:
    require("workspaces")
    name = f"kept-{fresh()[:8]}"
    git(inside.workspace, "branch", name)
    before = known_to_git(inside.workspace)
    error = alice.refused(CREATE, request={"type": "worktree", "branch": name})
    assert (error["type"], error["upstream_status"]) == ("UPSTREAM_HTTP_ERROR", 400)
    assert known_to_git(inside.workspace) == before
    listed = alice.call("workspaces.list")["items"]
    assert name not in {each["branch"] for each in listed}


@pytest.mark.parametrize("kind", KINDS)
def test_the_files_are_there_when_it_is_said_to_be_ready(
    alice: Line, inside: Inside, kind: str
) -> None:
    """OpenCode answers before git has written them, and git would overwrite what is changed."""
    many = inside.workspace / f"many-{fresh()[:8]}"
    many.mkdir()
    for number in range(1_000):
        (many / str(number)).write_text("x\n")
    git(inside.workspace, "add", many.name)
    git(inside.workspace, "commit", "-qm", "many files")
    made = Made.by(alice, kind)
    assert len(list((made.directory / many.name).iterdir())) == 1_000
    made.remove(alice)


@pytest.mark.parametrize("kind", KINDS)
def test_one_that_is_removed_from_inside_takes_its_branch_along(
    alice: Line, inside: Inside, kind: str
) -> None:
    before = known_to_git(inside.workspace)
    made = Made.by(alice, kind, f"inner-{fresh()[:8]}")
    made.remove(alice, metadata=made.place)
    assert known_to_git(inside.workspace) == before
