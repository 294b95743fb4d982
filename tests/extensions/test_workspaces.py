"""Projects, workspaces and worktrees on the real OpenCode, which deletes what it is told to.

Whatever is handed to a method that removes or resets is a throwaway directory of this test.
"""

from __future__ import annotations

import json
import subprocess
import uuid
from pathlib import Path

import httpx
import pytest

from tests.extensions.conftest import EVERYTHING, Inside, Json, Line, settings
from tests.running import Upstream, service

CHANGES: dict[str, Json] = {
    "opencode.workspaces.create": {"request": {"type": "worktree"}},
    "opencode.workspaces.remove": {"workspace_id": "wrk_0"},
    "opencode.worktrees.create": {},
    "opencode.worktrees.remove": {"request": {"directory": "{throwaway}"}},
    "opencode.worktrees.reset": {"request": {"directory": "{throwaway}"}},
}


def worktrees(line: Line) -> set[str]:
    return {item["directory"] for item in line.call("opencode.worktrees.list")["items"]}


def made(line: Line, inside: Inside) -> Path:
    name = f"tree-{uuid.uuid4().hex[:8]}"
    with inside.awaiting("worktree.ready"):
        item = line.call("opencode.worktrees.create", request={"name": name})["item"]
    assert (item["name"], item["branch"]) == (name, f"opencode/{name}")
    return Path(item["directory"])


def test_the_project_of_the_workspace_is_the_current_one(alice: Line, inside: Inside) -> None:
    current = alice.call("opencode.projects.current")["item"]
    assert (current["worktree"], current["vcs"]) == (str(inside.workspace), "git")
    assert current in alice.call("opencode.projects.list")["items"]


def test_projects_outside_the_workspace_are_not_listed(
    alice: Line, inside: Inside, tmp_path: Path
) -> None:
    inside.session("elsewhere", tmp_path)
    known = {project["worktree"] for project in inside.http.get("/project").json()}
    assert "/" in known  # where OpenCode puts what is in no repository
    listed = {p["worktree"] for p in alice.call("opencode.projects.list")["items"]}
    assert str(inside.workspace) in listed
    assert all(Path(worktree).is_relative_to(inside.workspace) for worktree in listed)


def test_a_worktree_is_made_listed_reset_and_removed(alice: Line, inside: Inside) -> None:
    tree = made(alice, inside)
    assert str(tree) in worktrees(alice)
    readme = tree / "README.md"
    assert readme.read_text() == "hello project\n"
    readme.write_text("changed\n")
    asked = {"directory": str(tree)}
    assert alice.call("opencode.worktrees.reset", request=asked) == {"ok": True}
    assert readme.read_text() == "hello project\n"
    assert alice.call("opencode.worktrees.remove", request=asked) == {"ok": True}
    assert not tree.exists()
    assert str(tree) not in worktrees(alice)
    error = alice.refused("opencode.worktrees.remove", request=asked)
    assert list(error["fields"]) == ["request.directory"]


def test_a_session_in_a_worktree_can_be_seen(alice: Line, inside: Inside) -> None:
    tree = made(alice, inside)
    session = inside.session("in a tree", tree)
    assert alice.call("opencode.sessions.get", session_id=session)["item"]["id"] == session
    listed = {item["id"] for item in alice.call("opencode.sessions.list", limit=100)["items"]}
    assert session in listed


@pytest.mark.parametrize("method", ["opencode.worktrees.remove", "opencode.worktrees.reset"])
def test_a_directory_that_is_no_worktree_is_never_handed_on(
    alice: Line, inside: Inside, tmp_path: Path, method: str
) -> None:
    victim = tmp_path / "victim"
    (victim / "inner").mkdir(parents=True)
    (victim / "precious.txt").write_text("keep me\n")
    tree = made(alice, inside)
    link = tmp_path / "link"
    link.symlink_to(victim)
    inside_the_tree = tree / "way-out"
    inside_the_tree.symlink_to(victim)
    below = inside.workspace / "below-me"
    below.mkdir(exist_ok=True)
    inside.session("seen there", victim)  # OpenCode knows the directory; that makes it no worktree
    for bent in (
        victim,
        f"{victim}/",
        victim / "inner" / "..",
        link,
        f"{tree}/../../../../../../../../../..{victim}",
        inside_the_tree,
        f"{tree}/way-out/",
        tree / "README.md",
        tree.parent,
        below,
        f"%2e%2e{victim}",
        "victim",
        tree.name,
    ):
        error = alice.refused(method, request={"directory": str(bent)})
        assert (error["type"], list(error["fields"])) == ("INVALID_PARAMS", ["request.directory"])
    assert (victim / "precious.txt").read_text() == "keep me\n"
    assert (tree / "README.md").exists()
    assert below.exists()


def test_a_clone_is_no_worktree_though_opencode_takes_it_for_one(
    alice: Line, inside: Inside, tmp_path: Path
) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(inside.workspace), str(clone)], check=True)
    liar = tmp_path / "liar"  # it says of itself what git does not know of
    liar.mkdir()
    (liar / ".git").write_text((made(alice, inside) / ".git").read_text())
    sessions = [inside.session("in a copy", copy) for copy in (clone, liar)]
    told = inside.http.get("/experimental/worktree", params={"directory": str(inside.workspace)})
    assert {str(clone), str(liar)} & set(told.json())  # older versions take only one for it
    assert not worktrees(alice) & {str(clone), str(liar), str(inside.workspace)}
    for copy in (clone, liar):
        for method in ("opencode.worktrees.remove", "opencode.worktrees.reset"):
            error = alice.refused(method, request={"directory": str(copy)})
            assert list(error["fields"]) == ["request.directory"]
        assert (copy / ".git").exists()
    for session in sessions:
        error = alice.refused("opencode.sessions.get", session_id=session)
        assert error["type"] == "SESSION_FORBIDDEN"


def test_what_one_caller_had_made_does_not_exist_for_another(
    alice: Line, bob: Line, inside: Inside
) -> None:
    tree = made(alice, inside)
    request = {"type": "worktree", "branch": f"b-{uuid.uuid4().hex[:8]}"}
    item = alice.call("opencode.workspaces.create", request=request)["item"]
    workspace, directory = item["workspace_id"], item["directory"]
    assert not worktrees(bob) & {str(tree), directory}
    listed = bob.call("opencode.workspaces.list")["items"]
    assert workspace not in {each["workspace_id"] for each in listed}
    for method in ("opencode.worktrees.remove", "opencode.worktrees.reset"):
        for hers in (str(tree), directory):
            error = bob.refused(method, request={"directory": hers})
            assert list(error["fields"]) == ["request.directory"]
    error = bob.refused("opencode.workspaces.remove", workspace_id=workspace)
    assert list(error["fields"]) == ["workspace_id"]
    routed = {"opencode": {"workspace": {"id": workspace}}}
    error = bob.refused("opencode.sessions.list", metadata=routed)
    assert list(error["fields"]) == ["metadata.opencode.workspace.id"]
    assert tree.exists()
    assert alice.call("opencode.workspaces.remove", workspace_id=workspace) == {"ok": True}
    alice.call("opencode.worktrees.remove", request={"directory": str(tree)})


@pytest.mark.parametrize("method", ["opencode.worktrees.remove", "opencode.worktrees.reset"])
def test_the_workspace_itself_is_no_worktree_either(
    alice: Line, inside: Inside, method: str
) -> None:
    error = alice.refused(method, request={"directory": str(inside.workspace)})
    assert list(error["fields"]) == ["request.directory"]
    assert (inside.workspace / "README.md").exists()


def test_a_worktree_may_be_named_by_another_way_to_it(
    alice: Line, inside: Inside, tmp_path: Path
) -> None:
    tree = made(alice, inside)
    link = tmp_path / "to-the-tree"
    link.symlink_to(tree)
    alice.call("opencode.worktrees.remove", request={"directory": str(link)})
    assert not tree.exists()
    assert link.is_symlink()


@pytest.mark.parametrize("name", ["../up", "-rf", "a b", "a;b", "", "x" * 201])
def test_a_name_is_a_name(alice: Line, name: str) -> None:
    error = alice.refused("opencode.worktrees.create", request={"name": name})
    assert list(error["fields"]) == ["request.name"]


def test_no_command_comes_along_with_a_worktree(alice: Line) -> None:
    request = {"name": "x", "startCommand": "true"}
    error = alice.refused("opencode.worktrees.create", request=request)
    assert list(error["fields"]) == ["request.startCommand"]


def test_a_workspace_is_made_listed_used_and_removed(alice: Line, inside: Inside) -> None:
    request = {"type": "worktree", "branch": f"b-{uuid.uuid4().hex[:8]}"}
    item = alice.call("opencode.workspaces.create", request=request)["item"]
    workspace = item["workspace_id"]
    assert item["type"] == "worktree"
    assert item["branch"] == request["branch"]
    assert item in alice.call("opencode.workspaces.list")["items"]
    session = inside.http.post("/session", params={"workspace": workspace}, json={}).json()["id"]
    routed = {"opencode": {"workspace": {"id": workspace}, "directory": "/nowhere"}}
    for method in ("projects.current", "worktrees.list", "sessions.list", "providers.list"):
        alice.call(f"opencode.{method}", metadata=routed)
    listed = alice.call("opencode.sessions.list", metadata=routed)["items"]
    assert [item["id"] for item in listed] == [session]
    for _ in range(2):  # nobody's, then her own: it works outside the root, but in her workspace
        assert alice.call("opencode.sessions.unrevert", session_id=session)["item"]["id"] == session
    assert alice.call("opencode.workspaces.remove", workspace_id=workspace) == {"ok": True}
    error = alice.refused("opencode.sessions.unrevert", session_id=session)
    assert error["type"] in ("SESSION_FORBIDDEN", "SESSION_NOT_FOUND")
    assert not Path(item["directory"]).exists()
    error = alice.refused("opencode.workspaces.remove", workspace_id=workspace)
    assert list(error["fields"]) == ["workspace_id"]
    error = alice.refused("opencode.projects.current", metadata=routed)
    assert list(error["fields"]) == ["metadata.opencode.workspace.id"]


def test_an_unknown_kind_of_workspace_is_named(alice: Line) -> None:
    error = alice.refused("opencode.workspaces.create", request={"type": "castle"})
    assert "worktree" in error["fields"]["request.type"]
    request = {"type": "worktree", "extra": {"directory": "x"}}
    error = alice.refused("opencode.workspaces.create", request=request)
    assert list(error["fields"]) == ["request.extra"]


@pytest.mark.parametrize("method", CHANGES)
def test_switched_off_nothing_is_changed(plain: Line, tmp_path: Path, method: str) -> None:
    params = json.loads(json.dumps(CHANGES[method]).replace("{throwaway}", str(tmp_path)))
    error = plain.refused(method, **params)
    assert error["type"] == "METHOD_DISABLED"
    assert error["setting"] == "A2A_ENABLE_WORKSPACE_MUTATIONS"


@pytest.mark.parametrize("directory", ["..", "/", "missing"])
def test_no_method_looks_outside_the_workspace(alice: Line, directory: str) -> None:
    for method in ("projects.list", "projects.current", "workspaces.list", "worktrees.list"):
        metadata = {"opencode": {"directory": directory}}
        error = alice.refused(f"opencode.{method}", metadata=metadata)
        assert list(error["fields"]) == ["metadata.opencode.directory"]


def test_where_there_is_no_repository_there_are_no_worktrees(
    full_opencode: Upstream, tmp_path: Path
) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    env = settings(OPENCODE_WORKSPACE_ROOT=str(plain), **EVERYTHING)
    with service(full_opencode, tmp_path, **env) as running:
        headers = {"authorization": "Bearer alice"}
        with httpx.Client(base_url=running.url, headers=headers, timeout=60) as http:
            line = Line(http)
            error = line.refused("opencode.worktrees.create")
            assert (error["type"], error["upstream_status"]) == ("UPSTREAM_HTTP_ERROR", 400)
            session = line.session("hello", uuid.uuid4().hex)
            listed = line.call("opencode.sessions.list", limit=100)["items"]
            assert [item["id"] for item in listed] == [session]
