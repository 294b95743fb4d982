"""Projects, worktrees and workspaces on the real OpenCode, which deletes what it is told to.

Whatever is handed to a method that removes or resets is a throwaway directory of this test.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.extensions.conftest import (
    EVERYTHING,
    METHODS,
    MISSING,
    Json,
    Line,
    fresh,
    git,
    line_of,
    session_of,
    tool,
)
from tests.extensions.inside import Inside
from tests.features import is_2, require
from tests.running import Upstream

HERE = "metadata.opencode.directory"
PWD = tool("bash", command="pwd", description="Says where it is")
KINDS = ("worktree", "workspace")
LISTS = ("projects.list", "projects.current", "workspaces.list", "worktrees.list")


def offered(*methods: str) -> list[str]:
    return [method for method in methods if method not in MISSING]


CHANGING = offered("worktrees.remove", "worktrees.reset")


@dataclass(frozen=True)
class Made:
    """A worktree that was made through the service, by itself or as a workspace."""

    kind: str
    item: Json

    @classmethod
    def by(cls, caller: Line, kind: str = "worktree", name: str | None = None) -> Made:
        if kind == "workspace":
            require("workspaces")
        request: Json = {"worktree": {}, "workspace": {"type": "worktree"}}[kind]
        if name is not None:
            request = {**request, {"worktree": "name", "workspace": "branch"}[kind]: name}
        return cls(kind, caller.call(f"{kind}s.create", request=request)["item"])

    @property
    def directory(self) -> Path:
        return Path(self.item["directory"])

    @property
    def place(self) -> Json:
        """Names it in metadata."""
        if self.kind == "worktree":
            return {"opencode": {"directory": self.item["directory"]}}
        return {"opencode": {"workspace": {"id": self.item["workspace_id"]}}}

    @property
    def named(self) -> Json:
        """Names it to the method that removes it."""
        if self.kind == "worktree":
            return {"request": {"directory": self.item["directory"]}}
        return {"workspace_id": self.item["workspace_id"]}

    def remove(self, caller: Line, **more: Any) -> None:
        assert caller.call(f"{self.kind}s.remove", **self.named, **more) == {"ok": True}
        assert not self.directory.exists()

    def is_listed(self, caller: Line) -> bool:
        items = caller.call(f"{self.kind}s.list")["items"]
        return self.item["directory"] in {each["directory"] for each in items}


def is_place(caller: Line, directory: str | Path) -> bool:
    """Whether a caller can name this directory: in a message and to a method the rule is one."""
    place = {"metadata": {"opencode": {"directory": str(directory)}}}
    answer = caller.ask("opencode.projects.current", place)
    if "result" in answer:
        return True
    assert list(answer["error"]["data"]["fields"]) == [HERE]
    return False


@pytest.fixture
def tree(alice: Line) -> Path:
    return Made.by(alice).directory


# -- projects


def test_the_project_of_the_workspace_is_the_current_one(alice: Line, inside: Inside) -> None:
    current = alice.call("projects.current")["item"]
    assert (current["worktree"], current["vcs"]) == (str(inside.workspace), "git")
    assert current in alice.call("projects.list")["items"]


def test_projects_outside_the_workspace_are_not_listed(
    alice: Line, inside: Inside, tmp_path: Path
) -> None:
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "another")
    inside.session("elsewhere", tmp_path)
    listed = {project["worktree"] for project in alice.call("projects.list")["items"]}
    assert str(inside.workspace) in listed
    assert inside.projects() - listed
    assert all(Path(worktree).is_relative_to(inside.workspace) for worktree in listed)


@pytest.mark.parametrize("directory", ["..", "/", "missing"])
def test_no_method_looks_outside_the_workspace(alice: Line, directory: str) -> None:
    for method in offered(*LISTS):
        metadata = {"opencode": {"directory": directory}}
        assert alice.refused_field(method, metadata=metadata) == HERE


# -- what can be done with a worktree


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_round(alice: Line, bob: Line, inside: Inside, kind: str) -> None:
    name = f"round-{fresh()[:8]}"
    made = Made.by(alice, kind, name)
    assert made.item[{"worktree": "name", "workspace": "branch"}[kind]] == name
    assert made.is_listed(alice)
    file = f"{name}.txt"

    write = tool("write", filePath=str(made.directory / file), content="made here\n")
    written = alice.converse(write, **made.place)
    context = written["contextId"]
    assert (made.directory / file).read_text() == "made here\n"
    assert not (inside.workspace / file).exists()
    again = alice.converse(PWD, context, **made.place)  # to name the place again is right
    assert str(made.directory) in json.dumps(again["artifacts"])
    assert session_of(again) == session_of(written)
    assert alice.listed(metadata=made.place) == [session_of(written)]
    assert session_of(written) in alice.listed()
    current = alice.call("projects.current", metadata=made.place)["item"]
    assert current == alice.call("projects.current")["item"]

    made.remove(alice)
    assert not made.is_listed(alice)
    ended = alice.send("and now?", context)
    assert ended["status"]["state"] == "TASK_STATE_FAILED"
    assert ended["metadata"]["opencode"]["error"]["type"] == "DIRECTORY_GONE"
    assert "Start a new context" in ended["status"]["message"]["parts"][0]["text"]
    assert alice.send("and here?", **made.place)["code"] == -32602
    alice.refused_field(f"{kind}s.remove", **made.named)
    assert not made.directory.exists()


def test_a_worktree_is_reset(alice: Line, tree: Path) -> None:
    require("worktree_reset")
    (tree / "README.md").write_text("changed\n")
    assert alice.call("worktrees.reset", request={"directory": str(tree)}) == {"ok": True}
    assert (tree / "README.md").read_text() == "hello project\n"


def test_a_session_made_in_a_workspace_by_hand_can_be_used(alice: Line, inside: Inside) -> None:
    made = Made.by(alice, "workspace")
    where = {"workspace": made.item["workspace_id"]}
    session = inside.http.post("/session", params=where, json={}).json()["id"]
    assert alice.listed(metadata=made.place) == [session]
    for _ in range(2):  # nobody's, then her own: it works outside the root, but in her workspace
        assert alice.call("sessions.unrevert", session_id=session)["item"]["id"] == session
    made.remove(alice)
    error = alice.refused("sessions.unrevert", session_id=session)
    assert error["type"] in ("SESSION_FORBIDDEN", "SESSION_NOT_FOUND")
    assert (
        alice.refused_field("projects.current", metadata=made.place)
        == "metadata.opencode.workspace.id"
    )


def test_a_directory_in_a_worktree_is_a_place_too(alice: Line, tree: Path) -> None:
    below = tree / "below"
    below.mkdir()
    assert is_place(alice, below)
    (tree / "way-out").symlink_to("/tmp")
    for wrong in ("way-out", "..", "nowhere", "README.md"):
        assert not is_place(alice, f"{tree}/{wrong}")


def test_a_worktree_may_be_named_by_another_way_to_it(
    alice: Line, tree: Path, tmp_path: Path
) -> None:
    link = tmp_path / "to-the-tree"
    link.symlink_to(tree)
    alice.call("worktrees.remove", request={"directory": str(link)})
    assert not tree.exists()
    assert link.is_symlink()


def test_a_repository_below_the_root_has_worktrees_as_well(alice: Line, inside: Inside) -> None:
    nested = inside.workspace / f"nested-{fresh()[:8]}"
    nested.mkdir()
    (nested / "inner.txt").write_text("inner\n")
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "inner")):
        git(nested, *words)
    place = {"opencode": {"directory": nested.name}}
    made = alice.call("worktrees.create", metadata=place)["item"]["directory"]
    assert (Path(made) / "inner.txt").exists()
    assert is_place(alice, made)
    gone = {"directory": made}
    assert alice.call("worktrees.remove", metadata=place, request=gone) == {"ok": True}
    assert not Path(made).exists()


# -- what is no worktree, or not this caller's


@pytest.mark.parametrize("method", CHANGING)
def test_a_directory_that_is_no_worktree_is_never_handed_on(
    alice: Line, inside: Inside, tree: Path, tmp_path: Path, method: str
) -> None:
    victim = tmp_path / "victim"
    (victim / "inner").mkdir(parents=True)
    (victim / "precious.txt").write_text("keep me\n")
    link = tmp_path / "link"
    link.symlink_to(victim)
    (tree / "way-out").symlink_to(victim)
    below = inside.workspace / "below-me"
    below.mkdir(exist_ok=True)
    inside.session("seen there", victim)  # OpenCode knows the directory; that makes it no worktree
    for bent in (
        victim,
        f"{victim}/",
        victim / "inner" / "..",
        link,
        f"{tree}/../../../../../../../../../..{victim}",
        tree / "way-out",
        f"{tree}/way-out/",
        tree / "README.md",
        tree.parent,
        below,
        inside.workspace,
        f"%2e%2e{victim}",
        "victim",
        tree.name,
    ):
        field = alice.refused_field(method, request={"directory": str(bent)})
        assert field == "request.directory", bent
    assert (victim / "precious.txt").read_text() == "keep me\n"
    assert (tree / "README.md").exists()
    assert below.exists()
    assert (inside.workspace / "README.md").exists()


def test_what_only_says_that_it_is_a_worktree_is_none(
    alice: Line, inside: Inside, tree: Path, tmp_path: Path
) -> None:
    clone, liar, by_hand = (tmp_path / name for name in ("clone", "liar", "by-hand"))
    git(tmp_path, "clone", "-q", str(inside.workspace), str(clone))
    liar.mkdir()  # it says of itself what git does not know of
    (liar / ".git").write_text((tree / ".git").read_text())
    sessions = [inside.session("in a copy", copy) for copy in (clone, liar)]
    if not is_2():
        known = inside.worktrees()
        assert {str(clone), str(liar)} & known  # older versions take only one for it
    # git knows this one, but OpenCode has never heard of it
    git(inside.workspace, "worktree", "add", "-q", "--detach", str(by_hand))
    listed = {item["directory"] for item in alice.call("worktrees.list")["items"]}
    assert not listed & {str(each) for each in (clone, liar, inside.workspace)}
    for wrong in (clone, liar, by_hand, tmp_path):
        assert not is_place(alice, wrong)
    for copy in (clone, liar):
        for method in CHANGING:
            field = alice.refused_field(method, request={"directory": str(copy)})
            assert field == "request.directory"
        assert (copy / ".git").exists()
    for session in sessions:
        error = alice.refused("sessions.get", session_id=session)
        assert error["type"] == "SESSION_FORBIDDEN"
    git(inside.workspace, "worktree", "remove", "--force", str(by_hand))


@pytest.mark.parametrize("kind", KINDS)
def test_what_one_caller_had_made_does_not_exist_for_another(
    alice: Line, bob: Line, inside: Inside, kind: str
) -> None:
    made = Made.by(alice, kind)
    assert not made.is_listed(bob)
    for method in CHANGING:
        request = {"directory": made.item["directory"]}
        assert bob.refused_field(method, request=request) == "request.directory"
    bob.refused_field(f"{kind}s.remove", **made.named)
    for method in offered("sessions.list", "sessions.status", "providers.list", *LISTS[1:]):
        assert bob.refused_field(method, metadata=made.place).startswith("metadata.opencode.")
    assert bob.send(PWD, **made.place)["code"] == -32602
    nobodys = inside.session("by hand", made.directory)
    assert alice.call("sessions.get", session_id=nobodys)
    assert bob.refused("sessions.get", session_id=nobodys)["type"] == "SESSION_FORBIDDEN"
    assert made.directory.exists()
    made.remove(alice)


def test_a_worktree_that_nobody_owns_is_a_place_where_they_are_shared(
    bob: Line, full_opencode: Upstream, inside: Inside, tmp_path: Path
) -> None:
    made = inside.worktree()
    assert is_place(bob, made)
    with line_of(full_opencode, tmp_path, "bob", A2A_SHARED_SESSIONS="false", **EVERYTHING) as who:
        assert not is_place(who, made)


# -- refusals


@pytest.mark.parametrize("name", ["../up", "-rf", "a b", "a;b", "", "x" * 201])
def test_a_name_is_a_name(alice: Line, name: str) -> None:
    assert alice.refused_field("worktrees.create", request={"name": name}) == "request.name"


def test_no_command_comes_along_with_a_worktree(alice: Line) -> None:
    request = {"name": "x", "startCommand": "true"}
    assert alice.refused_field("worktrees.create", request=request) == "request.startCommand"


def test_an_unknown_kind_of_workspace_is_named(alice: Line) -> None:
    require("workspaces")
    error = alice.refused("workspaces.create", request={"type": "castle"})
    assert "worktree" in error["fields"]["request.type"]
    request = {"type": "worktree", "extra": {"directory": "x"}}
    assert alice.refused_field("workspaces.create", request=request) == "request.extra"


CHANGES = [name for name, method in METHODS.items() if method.toggle and "work" in name]


@pytest.mark.parametrize("method", CHANGES)
def test_switched_off_nothing_is_changed(plain: Line, method: str) -> None:
    error = plain.refused(method)
    assert error["type"] == "METHOD_DISABLED"
    assert error["setting"] == "A2A_ENABLE_WORKSPACE_MUTATIONS"


def test_where_directories_cannot_be_chosen_no_worktree_can(plain: Line, tree: Path) -> None:
    refused = plain.send("x", opencode={"directory": str(tree)})
    assert "A2A_ALLOW_DIRECTORY_OVERRIDE" in refused["message"]


def test_where_there_is_no_repository_there_are_no_worktrees(
    full_opencode: Upstream, tmp_path: Path
) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    env = {"OPENCODE_WORKSPACE_ROOT": str(plain), **EVERYTHING}
    with line_of(full_opencode, tmp_path, **env) as caller:
        error = caller.refused("worktrees.create")
        assert (error["type"], error["upstream_status"]) == ("UPSTREAM_HTTP_ERROR", 400)
        session = caller.session("hello")
        assert caller.listed() == [session]
