"""What one caller owns does not exist for another, by any method and any trick with ids."""

from __future__ import annotations

import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.extensions.conftest import (
    EVERYTHING,
    METHODS,
    MISSING,
    MODEL,
    Json,
    Line,
    line,
    settings,
    sub_agent,
)
from tests.extensions.inside import Inside
from tests.running import Upstream, service

TEXT = {"parts": [{"type": "text", "text": "hello"}]}
NOWHERE = "ses_0000000000000000000000nope"
BY_MESSAGE = ("diff", "messages.get", "fork", "revert")


def of(session: str, message: str = "msg_0") -> dict[str, Json]:
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
    named = {f"sessions.{name}": {"session_id": session, **params} for name, params in more.items()}
    return {name: params for name, params in named.items() if name not in MISSING}


ABOUT_A_SESSION = [name for name, m in METHODS.items() if "session_id" in m.params.model_fields]
OFFERED = [name for name in ABOUT_A_SESSION if name not in MISSING]


def nonexistent(caller: Line, session: str, method: str = "sessions.get", **params: Any) -> bool:
    error = caller.refused(method, **{"session_id": session, **params})
    return error == {"type": "SESSION_NOT_FOUND", "session_id": session}


@pytest.fixture(scope="module")
def hers(alice: Line) -> tuple[str, str]:
    """A session of Alice's, and a message in it."""
    session = alice.session("mine")
    [first, _] = alice.call("sessions.messages.list", session_id=session)["items"]
    return session, first["messageId"]


@pytest.fixture(scope="module")
def bobs(bob: Line) -> str:
    return bob.session("his")


def test_the_table_has_every_method_that_takes_a_session() -> None:
    assert sorted(of("")) == sorted(OFFERED)


@pytest.mark.parametrize("method", OFFERED)
def test_a_session_of_another_does_not_exist(
    bob: Line, inside: Inside, hers: tuple[str, str], method: str
) -> None:
    before = inside.get(hers[0])
    for session in (hers[0], NOWHERE):
        assert nonexistent(bob, session, method, **of(session, hers[1])[method])
    assert inside.get(hers[0]) == before


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


@pytest.mark.parametrize(
    ("method", "trick"),
    [
        *(("sessions.get", trick) for trick in TRICKS),
        *((method, TRICKS[0]) for method in OFFERED),
    ],
)
def test_an_id_is_an_id_and_nothing_else(
    bob: Line, bobs: str, hers: tuple[str, str], method: str, trick: str
) -> None:
    bent = trick.format(own=bobs, hers=hers[0], tail=hers[0].removeprefix("ses_"))
    assert bob.refused_field(method, **of(bent, hers[1])[method]) == "session_id"


@pytest.mark.parametrize("trick", ["{hers}/..", "../{hers}", "{hers}?", "{hers}%2f.", "msg_", ""])
def test_nor_is_a_message_id(bob: Line, bobs: str, hers: tuple[str, str], trick: str) -> None:
    for method in BY_MESSAGE:
        name = f"sessions.{method}"
        field = bob.refused_field(name, **of(bobs, trick.format(hers=hers[1]))[name])
        assert field.lower().replace("_", "").endswith("messageid")


def test_a_message_of_another_session_is_not_reached_through_ones_own(
    bob: Line, bobs: str, hers: tuple[str, str]
) -> None:
    for method in BY_MESSAGE:
        name = f"sessions.{method}"
        error = bob.refused(name, **of(bobs, hers[1])[name])
        assert "no such message" in next(iter(error["fields"].values()))


def test_lists_show_ones_own_only(alice: Line, bob: Line, bobs: str, hers: tuple[str, str]) -> None:
    statuses = [
        {item["session_id"] for item in who.call("sessions.status")["items"]}
        for who in (alice, bob)
    ]
    for seen in (statuses, [set(alice.listed()), set(bob.listed())]):
        assert hers[0] in seen[0] - seen[1]
        assert bobs in seen[1] - seen[0]


def test_the_sessions_of_sub_agents_belong_with_their_root(alice: Line, bob: Line) -> None:
    session = alice.session(f"{sub_agent('hello')} go")
    [child] = alice.call("sessions.children", session_id=session)["items"]
    for method, params in of(child["id"]).items():
        assert nonexistent(bob, child["id"], method, **params)
    assert child["id"] not in bob.listed()


def test_what_nobody_owns_is_shared_until_somebody_takes_it(
    alice: Line, bob: Line, inside: Inside
) -> None:
    session = inside.session("anybody's")
    for who in (alice, bob):
        assert who.call("sessions.get", session_id=session)["item"]["id"] == session
    alice.call("sessions.unrevert", session_id=session)
    assert nonexistent(bob, session)
    assert alice.call("sessions.get", session_id=session)


def test_who_tried_to_change_it_in_vain_has_it_for_a_moment_only(
    full_opencode: Upstream, inside: Inside, tmp_path: Path
) -> None:
    kept, lost = inside.session("kept"), inside.session("lost")
    brief = settings()
    with (
        service(full_opencode, tmp_path, **brief) as running,
        line(running, "alice") as alice,
        line(running, "bob") as bob,
    ):
        alice.call("sessions.unrevert", session_id=kept)
        unknown = {"messageID": "msg_unknown"}
        alice.refused_field("sessions.revert", session_id=lost, request=unknown)
        deadline = time.monotonic() + 60
        while "error" in bob.ask("opencode.sessions.unrevert", {"session_id": lost}):
            assert time.monotonic() < deadline
        assert nonexistent(alice, lost)
        assert nonexistent(bob, kept)


def test_a_session_that_is_being_made_waits_for_its_owner(
    alice: Line, bob: Line, inside: Inside
) -> None:
    """As this service makes them: until it has written down whose it is, it is nobody's to take."""
    session = inside.session("new", metadata={"a2a": {"contextId": "c"}})
    for who in (alice, bob):
        for method in ("sessions.get", "sessions.unrevert"):
            assert nonexistent(who, session, method)


def test_a_copy_made_in_opencode_belongs_to_whom_the_original_does(
    alice: Line, bob: Line, hers: tuple[str, str], inside: Inside
) -> None:
    copy = inside.fork(hers[0])
    assert alice.call("sessions.get", session_id=copy)["item"]["id"] == copy
    assert nonexistent(bob, copy)


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
    for method, params in of(session).items():
        if METHODS[method].toggle is None:
            assert nonexistent(plain, session, method, **params)
    mine = plain.session("mine")
    assert plain.listed() == [mine]


def test_what_works_outside_the_workspace_is_nobodys_here(
    alice: Line, inside: Inside, tmp_path: Path
) -> None:
    session = inside.session("elsewhere", tmp_path)
    for method, params in of(session).items():
        assert alice.refused(method, **params)["type"] == "SESSION_FORBIDDEN"
    assert session not in alice.listed()


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
    with (
        service(full_opencode, tmp_path, **env) as other,
        line(other, "alice") as alice,
        line(other, "bob") as bob,
    ):
        root = str(full_opencode.workspace)
        for method, params in of(*hers).items():
            error = alice.refused(method, **params)
            assert (error["type"], error["root"]) == ("SESSION_FORBIDDEN", root), method
        assert hers[0] not in alice.listed()
        assert nonexistent(bob, hers[0])


OFF = ("A2A_TASK_STORE_DATABASE_URL", "A2A_CLIENT_ALLOW_ANY_PEER")  # no nodes, no peers


def test_a_credential_is_good_for_what_its_scopes_say(reader: Line, inside: Inside) -> None:
    session = inside.session("anybody's")
    for name, method in METHODS.items():
        if method.scope == "sessions:read" or name in MISSING:
            continue
        error = reader.refused(name, session_id=session)
        if error["type"] == "METHOD_DISABLED":
            assert error["setting"] in OFF, "all others are on"
            continue
        assert (error["type"], error["required_scope"]) == ("AUTHORIZATION_FORBIDDEN", method.scope)
    assert reader.call("sessions.get", session_id=session)


def test_a_directory_can_be_chosen_only_where_that_is_allowed(plain: Line) -> None:
    error = plain.refused("sessions.list", directory="below")
    assert "A2A_ALLOW_DIRECTORY_OVERRIDE" in error["fields"]["directory"]
    plain.call("sessions.list", directory=".")
