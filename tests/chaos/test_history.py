"""The checker of clusters finds what it is there for."""

from __future__ import annotations

import pytest

from tests.chaos.history import Final, History, Seen, Wanted


def sound() -> History:
    return History(
        acknowledged=[("k", "t"), ("k", "t")],
        wanted={"k": Wanted("k")},
        seen=[Seen("t", "working", 0, 1), Seen("t", "completed", 1, 2), Seen("t", "working", 1, 3)],
        frames={("t", 1): {b"a"}},
        streams=[("t", [1, 2, 5])],
        finals={"t": Final("completed", "x", expected="x")},
        prompts=["m1", "m2"],
    )


def test_a_sound_history_has_no_violations() -> None:
    assert list(sound().violations()) == []


@pytest.mark.parametrize(
    "break_it",
    [
        lambda h: h.acknowledged.append(("k", "u")) or h.finals.update(u=Final("completed", "")),
        lambda h: h.prompts.append("m1"),
        lambda h: h.seen.append(Seen("t", "working", 2.5, 4)),
        lambda h: h.seen.append(Seen("t", "failed", 2.5, 4)),
        lambda h: h.frames.update({("t", 1): {b"a", b"b"}}),
        lambda h: h.streams.append(("t", [1, 3, 2])),
        lambda h: h.streams.append(("t", [1, 1])),
        lambda h: h.finals.clear(),
        lambda h: h.finals.update(t=Final("working", "")),
        lambda h: h.finals.update(t=Final("failed", "", "INTERNAL")),
        lambda h: h.finals.update(t=Final("canceled", "")),
        lambda h: h.finals.update(t=Final("completed", "y", expected="x")),
        lambda h: h.canceled.update(t=0.5),
    ],
)
def test_what_must_not_happen_is_found(break_it: object) -> None:
    history = sound()
    assert callable(break_it)
    break_it(history)
    assert list(history.violations())
