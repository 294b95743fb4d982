"""Isolated contexts on the real OpenCode: they do not see each other's files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.extensions.conftest import (
    MODEL,
    Json,
    Line,
    fresh,
    git,
    line_of,
    session_of,
    tool,
)
from tests.extensions.inside import Inside
from tests.running import Upstream, until_ready

FINISH = "worktrees.finish"
ISOLATED = {"isolation": "worktree"}


def bash(command: str) -> str:
    return tool("bash", command=command, description="Works")


def worktree_of(task: Json) -> Json:
    found: Json = task["metadata"]["opencode"]["worktree"]
    return found


def diff_of(task: Json) -> str:
    [changes] = [each for each in task["artifacts"] if each["name"] == "changes"]
    return "".join(part.get("text", "") for part in changes["parts"])


def finish(caller: Line, task: Json, action: str, **more: object) -> Json:
    request = {"directory": worktree_of(task)["directory"], "action": action, **more}
    item: Json = caller.call(FINISH, request=request)["item"]
    return item


@pytest.fixture
def shared(inside: Inside) -> Iterator[Path]:
    """A file of the main checkout that several contexts change."""
    file = inside.workspace / f"shared-{fresh()}.txt"
    file.write_text("first\n")
    git(inside.workspace, "add", file.name)
    git(inside.workspace, "commit", "-q", "-m", f"add {file.name}")
    yield file
    assert git(inside.workspace, "worktree", "list").count("a2a/") == 0


def test_a_whole_round_of_an_isolated_context(
    alice: Line, bob: Line, inside: Inside, shared: Path
) -> None:
    first = alice.converse(bash(f"echo second > {shared.name}; pwd"), opencode=ISOLATED)
    context, worktree = first["contextId"], worktree_of(first)
    assert worktree["directory"] in json.dumps(first["artifacts"])
    assert worktree["base"] == git(inside.workspace, "rev-parse", "HEAD")
    assert worktree["base_branch"] == git(inside.workspace, "branch", "--show-current")
    [listed] = [
        each
        for each in alice.call("worktrees.list")["items"]
        if each["directory"] == worktree["directory"]
    ]
    assert (listed["branch"], listed["context_id"]) == (worktree["branch"], context)

    asked = {"directory": worktree["directory"], "action": "drop", "discard": True}
    assert bob.refused_field(FINISH, request=asked) == "request.directory"
    wrong = alice.send("move", context, opencode={"isolation": "none"})
    assert "metadata.opencode.isolation" in wrong["message"]
    # its session is that of an isolated context, also where it is named
    alice.converse("x", shared={"session": {"id": session_of(first)}}, opencode=ISOLATED)

    again = alice.converse(bash(f"cat {shared.name}"), context)
    assert "second" in json.dumps(again["artifacts"])
    assert worktree_of(again) == worktree

    merged = finish(alice, first, "merge")
    assert (merged["merged"], merged["worktree_removed"]) == ("fast-forward", True)
    assert shared.read_text() == "second\n"
    assert not Path(worktree["directory"]).exists()

    after = alice.converse(bash(f"cat {shared.name}; echo third >> {shared.name}"), context)
    assert worktree_of(after) == worktree | {"base": merged["commit"]}
    assert session_of(after) == session_of(first)
    assert "+third" in diff_of(after)
    assert shared.read_text() == "second\n"
    lost = alice.refused(FINISH, request={**asked, "discard": False})
    assert (lost["type"], lost["files"]) == ("WORK_WOULD_BE_LOST", [shared.name])
    assert finish(alice, after, "drop", discard=True)["worktree_removed"]


def test_a_deployment_can_isolate_every_new_context(
    full_opencode: Upstream, tmp_path: Path, shared: Path
) -> None:
    everywhere = {"A2A_ISOLATION": "worktree"}
    with line_of(full_opencode, tmp_path, **everywhere) as caller:
        until_ready(caller.http)
        task = caller.converse(bash(f"echo mine > {shared.name}"), shared={"model": MODEL})
        assert Path(worktree_of(task)["directory"]).parent.name == "worktrees"
        assert shared.read_text() == "first\n"
        free = caller.converse("hi", opencode={"isolation": "none"})
        assert "worktree" not in free["metadata"].get("opencode", {})
        assert finish(caller, task, "drop", discard=True)["branch_deleted"]
