"""Which node does what: rules, and properties of fleets that hypothesis makes up."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from opencode_a2a.domain.events import BlockKind
from opencode_a2a.domain.nodes import (
    ALIVE_MS,
    Away,
    Node,
    Whereabouts,
    doer,
    place,
    place_named,
)
from opencode_a2a.domain.retelling import LEFT_OUT, MAX_CHARACTERS, retell
from opencode_a2a.domain.task import Task, TaskHead
from opencode_a2a.domain.updates import BlockText, Ended, LogEntry, MessageAdded
from opencode_a2a.domain.values import Message, OutputModes, Role, TaskState, Text

NOW = 1_000_000


def node(holder: str, **more: object) -> Node:
    known = Node(holder, holder, opencode=f"oc-{holder}", root="/w", capacity=4, seen_at=NOW)
    return replace(known, **more)  # type: ignore[arg-type]


nodes = st.lists(
    st.builds(
        node,
        st.uuids().map(str),
        opencode=st.sampled_from(["one", "two", "three"]),
        root=st.sampled_from(["/w", "/v"]),
        load=st.integers(0, 12),
        capacity=st.sampled_from([0, 1, 4]),
        draining=st.booleans(),
        labels=st.frozensets(st.sampled_from(["gpu", "big"])),
        seen_at=st.integers(NOW - 3 * ALIVE_MS, NOW),
    ),
    min_size=1,
    max_size=8,
)


def test_a_new_context_goes_to_the_freest_node_and_stays_if_that_makes_no_difference() -> None:
    here, there = node("a", load=1), node("b")
    assert place([here, there], root="/w", label=None, here="a", now=NOW, seed=1) is there
    assert place([here, there], root="/w", label=None, here="a", now=NOW, seed=2) is there
    there = node("b", load=1)
    assert place([here, there], root="/w", label=None, here="b", now=NOW, seed=1) is there
    assert place([here, there], root="/w", label=None, here="a", now=NOW, seed=1) is here
    assert place([here, there], root="/other", label=None, here="a", now=NOW, seed=1) is None
    labelled = node("c", labels=frozenset({"gpu"}), load=9, root="/other")
    assert place([here, labelled], root="/w", label="gpu", here="a", now=NOW, seed=1) is labelled
    assert place([here, labelled], root="/w", label="c", here="a", now=NOW, seed=1) is labelled


@given(nodes, st.sampled_from([None, "gpu", "big"]), st.text(max_size=9), st.integers(0, 2**64))
def test_only_a_living_node_that_fits_gets_new_work(
    fleet: list[Node], label: str | None, context_id: str, seed: int
) -> None:
    fits = [
        each
        for each in fleet
        if each.is_alive(NOW)
        and not each.draining
        and (each.root == "/w" if label is None else label in each.labels)
    ]
    chosen = place(fleet, root="/w", label=label, here=fleet[0].holder, now=NOW, seed=seed)
    assert (chosen in fits) if fits else chosen is None
    if len(fits) < 3:
        assert all(chosen is not None and chosen.used <= each.used for each in fits)
    if fleet[0] in fits:
        assert chosen is not None
        assert chosen.used <= fleet[0].used
    named = [
        place_named(some, root="/w", label=label, context_id=context_id, now=NOW)
        for some in (fleet, fleet[::-1])
    ]
    assert named[0] == named[1], "whoever is asked, and in whatever order he knows the others"


@given(nodes, st.sampled_from(["one", "two", "three", None]), st.booleans())
def test_what_is_there_is_done_by_its_holder_or_by_a_node_of_its_opencode(
    fleet: list[Node], opencode: str | None, held: bool
) -> None:
    here = replace(fleet[0], seen_at=NOW)
    holder = fleet[-1]
    where = Whereabouts(holder.holder if held else None, opencode, "/w")
    found = doer(fleet, where, here=here, now=NOW)
    if held and holder.is_alive(NOW):
        assert isinstance(found, Node)
        assert found.holder == holder.holder
    elif isinstance(found, Away):
        assert found.opencode == opencode
        assert not any(
            each.is_alive(NOW) and each.opencode == opencode and each.root == "/w"
            for each in (here, *fleet[1:])
        )
    else:
        assert found.is_alive(NOW)
        assert found.root == "/w"
        assert opencode in (None, found.opencode)


def test_what_is_away_is_waited_for() -> None:
    gone = node("b", seen_at=NOW - 60_000)
    found = doer([node("a"), gone], Whereabouts(None, "oc-b", "/w"), here=node("a"), now=NOW)
    assert found == Away("oc-b", NOW - 60_000)
    assert not found.is_over(NOW, return_ms=60_000)
    assert found.is_over(NOW + 1, return_ms=60_000)


# -- what a new session is told


def _task(question: str, answer: str) -> Task:
    head = TaskHead("t", "c", "alice", 1, OutputModes())
    said = MessageAdded(Message("m", Role.USER, (Text(question),)), "msg_1")
    text = BlockText("b", "msg_2", "p", BlockKind.TEXT, answer, append=True)
    ended = Ended(TaskState.COMPLETED, None)
    return Task.of(head, [LogEntry(1, 1, said), LogEntry(2, 2, text), LogEntry(3, 3, ended)])


def test_a_new_session_is_told_what_was_said() -> None:
    told = retell([_task("My name is Ada.", "Hello Ada."), _task("And I like tea.", "Noted.")])
    assert told is not None
    words = ["User: My name is Ada.", "Assistant: Hello Ada.", "User: And I", "Assistant: Noted."]
    positions = [told.index(each) for each in words]
    assert positions == sorted(positions)
    assert retell([]) is None


def test_the_beginning_of_a_long_conversation_is_left_out() -> None:
    told = retell([_task("old", "x" * MAX_CHARACTERS), _task("new", "newest")])
    assert told is not None
    assert LEFT_OUT in told
    assert "User: old" not in told
    assert "newest" in told
