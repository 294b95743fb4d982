"""What one caller owns does not exist for another, by any method and any trick with ids."""

from __future__ import annotations

import sqlite3
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.extensions.conftest import EVERYTHING, METHODS, Inside, Json, Line, line, settings
from tests.running import Upstream, service

TEXT = {"parts": [{"type": "text", "text": "hello"}]}
MODEL = {"providerID": "demo", "modelID": "demo"}


def of(session: str, message: str) -> dict[str, Json]:
    """Each method that takes a session, with everything else in order."""
    more: dict[str, dict[str, Any]] = {
        "get": {},
        "children": {},
        "todo": {},
        "diff": {"message_id": message},
        "messages.list": {},
        "messages.get": {"message_id": message},
        "prompt_async": {"request": TEXT},
        "command": {"request": {"command": "shout"}},
        "shell": {"request": {"agent": "build", "command": "true"}},
        "summarize": {"request": MODEL},
        "fork": {"request": {"messageID": message}},
        "share": {},
        "unshare": {},
        "revert": {"request": {"messageID": message}},
        "unrevert": {},
        "rename": {"request": {"title": "another"}},
        "delete": {},
    }
    return {f"opencode.sessions.{name}": {"session_id": session, **p} for name, p in more.items()}


ABOUT_A_SESSION = [name for name, m in METHODS.items() if "session_id" in m.params.model_fields]


@pytest.fixture(scope="module")
def hers(alice: Line) -> tuple[str, str]:
    """A session of Alice's, and a message in it."""
    session = alice.session("mine", uuid.uuid4().hex)
    [first, _] = alice.call("opencode.sessions.messages.list", session_id=session)["items"]
    return session, first["messageId"]


def test_the_table_has_every_method_that_takes_a_session() -> None:
    assert sorted(of("", "")) == sorted(ABOUT_A_SESSION)


@pytest.mark.parametrize("method", ABOUT_A_SESSION)
def test_a_session_of_another_does_not_exist(
    bob: Line, inside: Inside, hers: tuple[str, str], method: str
) -> None:
    before = inside.http.get(f"/session/{hers[0]}").json()
    error = bob.refused(method, **of(*hers)[method])
    assert (error["type"], error["session_id"]) == ("SESSION_NOT_FOUND", hers[0])
    assert inside.http.get(f"/session/{hers[0]}").json() == before


@pytest.mark.parametrize("method", ABOUT_A_SESSION)
def test_and_cannot_be_told_from_one_that_really_does_not(bob: Line, method: str) -> None:
    nowhere = "ses_0000000000000000000000nope"
    error = bob.refused(method, **of(nowhere, "msg_0")[method])
    assert error == {"type": "SESSION_NOT_FOUND", "session_id": nowhere}


TRICKS = (
    "{own}/../{hers}",
    "{own}/message?x=",
    "{hers}/",
    "{hers}?",
    "{hers}#",
    "{hers}%2f",
    "..%2fsession%2f{hers}",
    "%73es_{tail}",
    "./{hers}",
    "{own}\\..\\{hers}",
    "{hers}\0",
    "{hers}\n",
    " {hers}",
    "{hers};x",
    "../global/dispose?",
    "SES_{tail}",
    "ses_",
    "",
    "ses_é",
    "msg_{tail}",
)


@pytest.mark.parametrize("trick", TRICKS)
@pytest.mark.parametrize("method", ABOUT_A_SESSION)
def test_an_id_is_an_id_and_nothing_else(
    bob: Line, bobs: str, hers: tuple[str, str], method: str, trick: str
) -> None:
    bent = trick.format(own=bobs, hers=hers[0], tail=hers[0].removeprefix("ses_"))
    error = bob.refused(method, **of(bent, hers[1])[method])
    assert (error["type"], list(error["fields"])) == ("INVALID_PARAMS", ["session_id"])


@pytest.mark.parametrize("trick", ["{hers}/..", "../{hers}", "{hers}?", "{hers}%2f.", "msg_", ""])
def test_nor_is_a_message_id(bob: Line, bobs: str, hers: tuple[str, str], trick: str) -> None:
    bent = trick.format(hers=hers[1])
    for method in ("diff", "messages.get", "fork", "revert"):
        name = f"opencode.sessions.{method}"
        assert bob.refused(name, **of(bobs, bent)[name])["type"] == "INVALID_PARAMS"


def test_a_message_of_another_session_is_not_reached_through_ones_own(
    bob: Line, bobs: str, hers: tuple[str, str]
) -> None:
    for method in ("diff", "messages.get", "fork", "revert"):
        name = f"opencode.sessions.{method}"
        error = bob.refused(name, **of(bobs, hers[1])[name])
        assert "no such message" in next(iter(error["fields"].values()))


@pytest.fixture(scope="module")
def bobs(bob: Line) -> str:
    return bob.session("his", uuid.uuid4().hex)


def test_lists_show_ones_own_only(alice: Line, bob: Line, bobs: str, hers: tuple[str, str]) -> None:
    for method in ("opencode.sessions.list", "opencode.sessions.status"):
        limit = {"limit": 100} if method.endswith("list") else {}
        seen = [
            {
                item.get("id") or item.get("session_id")
                for item in who.call(method, **limit)["items"]
            }
            for who in (alice, bob)
        ]
        assert hers[0] in seen[0] - seen[1]
        assert bobs in seen[1] - seen[0]


def test_the_sessions_of_sub_agents_belong_with_their_root(alice: Line, bob: Line) -> None:
    task = '{"description": "sub", "prompt": "hello", "subagent_type": "general"}'
    session = alice.session(f"[[tool:task {task}]] go", uuid.uuid4().hex)
    [child] = alice.call("opencode.sessions.children", session_id=session)["items"]
    params = of(child["id"], "msg_0")
    for method in ABOUT_A_SESSION:
        assert bob.refused(method, **params[method])["type"] == "SESSION_NOT_FOUND"
    assert child["id"] not in {
        item["id"] for item in bob.call("opencode.sessions.list", limit=100)["items"]
    }


def test_what_nobody_owns_is_shared_until_somebody_takes_it(
    alice: Line, bob: Line, inside: Inside
) -> None:
    session = inside.session("anybody's")
    for who in (alice, bob):
        assert who.call("opencode.sessions.get", session_id=session)["item"]["id"] == session
    alice.call("opencode.sessions.unrevert", session_id=session)
    error = bob.refused("opencode.sessions.get", session_id=session)
    assert error["type"] == "SESSION_NOT_FOUND"
    assert alice.call("opencode.sessions.get", session_id=session)


def test_who_tried_to_change_it_in_vain_has_it_for_a_moment_only(
    full_opencode: Upstream, inside: Inside, tmp_path: Path
) -> None:
    kept, lost = inside.session("kept"), inside.session("lost")
    brief = settings(A2A_PENDING_SESSION_CLAIM_TTL_SECONDS="0.5")
    with (
        service(full_opencode, tmp_path, **brief) as running,
        line(running, "alice") as alice,
        line(running, "bob") as bob,
    ):
        alice.call("opencode.sessions.unrevert", session_id=kept)
        unknown = {"messageID": "msg_unknown"}
        error = alice.refused("opencode.sessions.revert", session_id=lost, request=unknown)
        assert error["type"] == "INVALID_PARAMS"
        deadline = time.monotonic() + 30
        while "error" in bob.ask("opencode.sessions.unrevert", {"session_id": lost}):
            assert time.monotonic() < deadline
        for who, others in ((alice, lost), (bob, kept)):
            error = who.refused("opencode.sessions.get", session_id=others)
            assert error["type"] == "SESSION_NOT_FOUND"


def test_a_session_that_is_being_made_waits_for_its_owner(
    alice: Line, bob: Line, inside: Inside
) -> None:
    """As this service makes them: until it has written down whose it is, it is nobody's to take."""
    body = {"title": "new", "metadata": {"a2a": {"contextId": "c"}}}
    where = {"directory": str(inside.workspace)}
    session = inside.http.post("/session", params=where, json=body).json()["id"]
    for who in (alice, bob):
        for method in ("opencode.sessions.get", "opencode.sessions.unrevert"):
            error = who.refused(method, session_id=session)
            assert error["type"] == "SESSION_NOT_FOUND"


def test_a_copy_made_in_opencode_belongs_to_whom_the_original_does(
    alice: Line, bob: Line, hers: tuple[str, str], inside: Inside
) -> None:
    session, _ = hers
    copy = inside.http.post(f"/session/{session}/fork", json={}).json()["id"]
    assert alice.call("opencode.sessions.get", session_id=copy)["item"]["id"] == copy
    error = bob.refused("opencode.sessions.get", session_id=copy)
    assert error["type"] == "SESSION_NOT_FOUND"


def test_of_two_who_take_it_at_the_same_time_one_has_it(
    alice: Line, bob: Line, inside: Inside
) -> None:
    for _ in range(5):
        session = inside.session("who is first")
        with ThreadPoolExecutor(2) as both:
            tries = [
                both.submit(who.ask, "opencode.sessions.unrevert", {"session_id": session})
                for who in (alice, bob)
            ]
        assert sorted("result" in each.result() for each in tries) == [False, True]


def test_without_sharing_what_nobody_owns_does_not_exist(plain: Line, inside: Inside) -> None:
    session = inside.session("anybody's")
    for method, params in of(session, "msg_0").items():
        if METHODS[method].toggle is None:
            assert plain.refused(method, **params)["type"] == "SESSION_NOT_FOUND"
    mine = plain.session("mine", uuid.uuid4().hex)
    listed = plain.call("opencode.sessions.list", limit=100)["items"]
    assert [item["id"] for item in listed] == [mine]


def test_what_works_outside_the_workspace_is_nobodys_here(
    alice: Line, inside: Inside, tmp_path: Path
) -> None:
    session = inside.session("elsewhere", tmp_path)
    for method, params in of(session, "msg_0").items():
        assert alice.refused(method, **params)["type"] == "SESSION_FORBIDDEN"
    listed = alice.call("opencode.sessions.list", limit=100)["items"]
    assert session not in {item["id"] for item in listed}


def test_what_belongs_to_another_root_is_not_to_be_had_even_by_its_owner(
    full_opencode: Upstream, full_folder: Path, hers: tuple[str, str], tmp_path: Path
) -> None:
    """Although both services use one OpenCode, know the same caller, and have the same rows."""
    env = settings(OPENCODE_WORKSPACE_ROOT=str(tmp_path), **EVERYTHING)
    with (
        closing(sqlite3.connect(full_folder / "tasks.db")) as original,
        closing(sqlite3.connect(tmp_path / "tasks.db")) as copy,
    ):
        original.backup(copy)
    with service(full_opencode, tmp_path, **env) as other, line(other, "alice") as alice:
        for method, params in of(*hers).items():
            error = alice.refused(method, **params)
            assert (error["type"], error["root"]) == (
                "SESSION_FORBIDDEN",
                str(full_opencode.workspace),
            )
        listed = alice.call("opencode.sessions.list", limit=100)["items"]
        assert hers[0] not in {item["id"] for item in listed}
        with line(other, "bob") as bob:
            error = bob.refused("opencode.sessions.get", session_id=hers[0])
            assert error == {"type": "SESSION_NOT_FOUND", "session_id": hers[0]}


OFF = ("A2A_TASK_STORE_DATABASE_URL", "A2A_CLIENT_ALLOW_ANY_PEER")  # no nodes, no peers


def test_a_credential_is_good_for_what_its_scopes_say(reader: Line, inside: Inside) -> None:
    session = inside.session("anybody's")
    for name, method in METHODS.items():
        if method.scope == "sessions:read":
            continue
        error = reader.refused(name, session_id=session)
        if error["type"] == "METHOD_DISABLED":
            assert error["setting"] in OFF, "all others are on"
            continue
        assert (error["type"], error["required_scope"]) == ("AUTHORIZATION_FORBIDDEN", method.scope)
    assert reader.call("opencode.sessions.get", session_id=session)


def test_a_directory_can_be_chosen_only_where_that_is_allowed(plain: Line) -> None:
    error = plain.refused("opencode.sessions.list", directory="below")
    assert "A2A_ALLOW_DIRECTORY_OVERRIDE" in error["fields"]["directory"]
    plain.call("opencode.sessions.list", directory=".")
