"""Working in a worktree or workspace that was made through the service."""

from __future__ import annotations

import json
import subprocess
import uuid
from pathlib import Path

import pytest

from tests.extensions.conftest import EVERYTHING, Inside, Json, Line, line, settings
from tests.running import Upstream, service

HERE = "metadata.opencode.directory"
MODES = ["text/plain", "text/x-diff"]  # the answer and the changes


def tool(name: str, **arguments: str) -> str:
    return f"[[tool:{name} {json.dumps(arguments)}]]"


PWD = tool("bash", command="pwd", description="Says where it is")


def send(caller: Line, text: str, context: str | None = None, **opencode: object) -> Json:
    """The task, or the error, that comes of a message with this `metadata.opencode`."""
    message: Json = {"messageId": uuid.uuid4().hex, "role": "ROLE_USER", "parts": [{"text": text}]}
    if context is not None:
        message["contextId"] = context
    params = {
        "message": message,
        "metadata": {"opencode": opencode},
        "configuration": {"acceptedOutputModes": MODES},
    }
    answer = caller.ask("SendMessage", params, **{"a2a-version": "1.0"})
    found: Json = answer["result"]["task"] if "result" in answer else answer["error"]
    return found


def done(caller: Line, text: str, context: str | None = None, **opencode: object) -> Json:
    task = send(caller, text, context, **opencode)
    assert task["status"]["state"] == "TASK_STATE_COMPLETED", task
    return task


def is_place(caller: Line, directory: str | Path) -> bool:
    """Whether a caller can name this directory: in a message and to a method the rule is one."""
    place = {"metadata": {"opencode": {"directory": str(directory)}}}
    answer = caller.ask("opencode.projects.current", place)
    if "result" in answer:
        return True
    assert list(answer["error"]["data"]["fields"]) == [HERE]
    return False


def session_of(task: Json) -> str:
    found: str = task["metadata"]["shared"]["session"]["id"]
    return found


@pytest.fixture
def tree(alice: Line) -> str:
    made: str = alice.call("opencode.worktrees.create")["item"]["directory"]
    return made


@pytest.mark.parametrize("kind", ["worktree", "workspace"])
def test_a_whole_round_in_a_worktree(alice: Line, bob: Line, inside: Inside, kind: str) -> None:
    if kind == "worktree":
        made = alice.call("opencode.worktrees.create", request={"name": "round"})["item"]
        there: Json = {"directory": made["directory"]}
        gone: Json = {"request": {"directory": made["directory"]}}
    else:
        made = alice.call("opencode.workspaces.create", request={"type": "worktree"})["item"]
        there = {"workspace": {"id": made["workspace_id"]}}
        gone = {"workspace_id": made["workspace_id"]}
    tree = Path(made["directory"])
    name = f"new-{uuid.uuid4().hex[:8]}.txt"

    written = done(alice, tool("write", filePath=name, content="made here\n"), **there)
    context = written["contextId"]
    assert (tree / name).read_text() == "made here\n"
    assert not (inside.workspace / name).exists()

    again = done(alice, PWD, context, **there)  # to name the place again is right
    assert str(tree) in json.dumps(again["artifacts"])
    assert session_of(again) == session_of(written)

    place = {"opencode": there}
    listed = alice.call("opencode.sessions.list", metadata=place)["items"]
    assert [item["id"] for item in listed] == [session_of(written)]
    current = alice.call("opencode.projects.current", metadata=place)["item"]
    assert current == alice.call("opencode.projects.current")["item"]
    assert bob.ask("opencode.projects.current", {"metadata": place})["error"]["code"] == -32602

    assert alice.call(f"opencode.{kind}s.remove", **gone) == {"ok": True}
    assert not tree.exists()
    ended = send(alice, "and now?", context)
    assert ended["status"]["state"] == "TASK_STATE_FAILED"
    assert ended["metadata"]["opencode"]["error"]["type"] == "DIRECTORY_GONE"
    assert "Start a new context" in ended["status"]["message"]["parts"][0]["text"]
    assert send(alice, "and here?", **there)["code"] == -32602
    assert not tree.exists()


def test_a_directory_in_a_worktree_is_a_place_too(alice: Line, tree: str) -> None:
    below = Path(tree) / "below"
    below.mkdir()
    assert is_place(alice, below)
    (Path(tree) / "way-out").symlink_to("/tmp")
    for wrong in (f"{tree}/way-out", f"{tree}/..", f"{tree}/nowhere", f"{tree}/README.md"):
        assert not is_place(alice, wrong)


def test_a_worktree_of_one_caller_is_no_place_for_another(
    alice: Line, bob: Line, tree: str, inside: Inside
) -> None:
    refused = send(bob, PWD, directory=tree)
    assert (refused["code"], HERE in refused["message"]) == (-32602, True)
    for method in ("sessions.list", "sessions.status", "providers.list", "worktrees.list"):
        error = bob.refused(f"opencode.{method}", metadata={"opencode": {"directory": tree}})
        assert list(error["fields"]) == [HERE]
    nobodys = inside.session("by hand", Path(tree))
    assert alice.call("opencode.sessions.get", session_id=nobodys)
    assert bob.refused("opencode.sessions.get", session_id=nobodys)["type"] == "SESSION_FORBIDDEN"


def test_a_worktree_that_nobody_owns_is_a_place_where_they_are_shared(
    bob: Line, full_opencode: Upstream, inside: Inside, tmp_path: Path
) -> None:
    where = {"directory": str(inside.workspace)}
    made = inside.http.post("/experimental/worktree", params=where, json={}).json()["directory"]
    assert is_place(bob, made)
    alone = settings(A2A_SHARED_SESSIONS="false", **EVERYTHING)
    with service(full_opencode, tmp_path, **alone) as running, line(running, "bob") as caller:
        assert not is_place(caller, made)


def test_what_only_says_that_it_is_a_worktree_is_no_place(
    alice: Line, tree: str, inside: Inside, tmp_path: Path
) -> None:
    clone, liar = tmp_path / "clone", tmp_path / "liar"
    subprocess.run(["git", "clone", "-q", str(inside.workspace), str(clone)], check=True)
    liar.mkdir()
    (liar / ".git").write_text((Path(tree) / ".git").read_text())
    by_hand = tmp_path / "by-hand"  # git knows it, but OpenCode has never heard of it
    command = ["git", "worktree", "add", "-q", "--detach", str(by_hand)]
    subprocess.run(command, cwd=inside.workspace, check=True)
    for wrong in (clone, liar, by_hand, tmp_path):
        assert not is_place(alice, wrong)
    subprocess.run(
        ["git", "worktree", "remove", "--force", str(by_hand)], cwd=inside.workspace, check=True
    )


def test_a_repository_below_the_root_has_worktrees_as_well(alice: Line, inside: Inside) -> None:
    nested = inside.workspace / f"nested-{uuid.uuid4().hex[:8]}"
    nested.mkdir()
    (nested / "inner.txt").write_text("inner\n")
    author = ("-c", "user.name=test", "-c", "user.email=test@example.invalid")
    for words in (("init", "-q"), ("add", "-A"), (*author, "commit", "-qm", "inner")):
        subprocess.run(["git", *words], cwd=nested, check=True)
    place = {"opencode": {"directory": nested.name}}
    made = alice.call("opencode.worktrees.create", metadata=place)["item"]["directory"]
    assert (Path(made) / "inner.txt").exists()
    assert is_place(alice, made)
    gone = {"directory": made}
    assert alice.call("opencode.worktrees.remove", metadata=place, request=gone) == {"ok": True}
    assert not Path(made).exists()


def test_where_directories_cannot_be_chosen_no_worktree_can(plain: Line, tree: str) -> None:
    assert "A2A_ALLOW_DIRECTORY_OVERRIDE" in send(plain, "x", directory=tree)["message"]
