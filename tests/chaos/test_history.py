"""The checker of clusters accepts what may happen, and finds what must not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.chaos.history import Final, History, Loss, Wanted
from tests.chaos.linear import Operation, Rules, is_linearizable


def get(state: str, began: float, ended: float, told: str = "") -> Operation:
    return Operation("get", began, ended, state, told)


def cancel(result: str, began: float, ended: float) -> Operation:
    return Operation("cancel", began, ended, result)


def answer(choice: str, result: str, began: float, ended: float) -> Operation:
    return Operation("answer", began, ended, result, choice)


NEVER = float("inf")
TEXT, ASKS, HANGS = Rules(), Rules(asks=True), Rules(hangs=True)
LOSES = Rules(hangs=True, may_fail=True)
LOSES_ASKING = Rules(asks=True, may_fail=True)
LOST = [
    get("input-required", 0, 1),
    answer("once", "refused", 2, 3),
    get("input-required", 4, 5),
]


@pytest.mark.parametrize(
    ("rules", "operations"),
    [
        (TEXT, []),
        (TEXT, [get("submitted", 0, 1), get("completed", 2, 3)]),
        # Requests at the same time are in any order.
        (TEXT, [get("completed", 0, 2), get("working", 1, 3)]),
        (HANGS, [cancel("done", 0, 5), get("working", 1, 2), get("canceled", 3, 4)]),
        (HANGS, [cancel("done", 0, 5), cancel("refused", 1, 4), get("canceled", 6, 7)]),
        (HANGS, [cancel("done", 0, 4), cancel("done", 1, 3)]),  # both wait for the same end
        # What was not answered has happened at some time, or never.
        (HANGS, [cancel("", 0, NEVER), cancel("refused", 1, 2), get("canceled", 3, 4)]),
        (HANGS, [cancel("", 0, NEVER), get("working", 5, 6), get("canceled", 7, 8)]),
        (HANGS, [cancel("", 0, NEVER), get("working", 5, 6), cancel("done", 7, 8)]),
        (ASKS, [get("input-required", 0, 1), answer("once", "done", 2, 3), get("working", 4, 5)]),
        (
            ASKS,
            [
                get("input-required", 0, 1),
                answer("once", "done", 2, 5),
                answer("reject", "refused", 3, 4),
                get("completed", 6, 7, "once"),
            ],
        ),
        (
            ASKS,
            [
                answer("once", "", 1, NEVER),
                answer("reject", "refused", 3, 4),
                get("completed", 6, 7, "once"),
            ],
        ),
        (LOSES, [get("working", 0, 1), cancel("refused", 2, 3), get("failed", 4, 5)]),
        (LOSES_ASKING, [*LOST, get("failed", 6, 7)]),
        (LOSES_ASKING, [*LOST, get("working", 6, 7), get("failed", 8, 9)]),
    ],
)
def test_what_one_task_can_show_is_accepted(rules: Rules, operations: list[Operation]) -> None:
    assert is_linearizable(operations, rules)


@pytest.mark.parametrize(
    ("rules", "operations"),
    [
        (TEXT, [get("completed", 0, 1), get("working", 2, 3)]),  # an old state, after a new one
        (TEXT, [get("working", 0, 1), get("submitted", 2, 3)]),
        (TEXT, [get("completed", 0, 1), get("canceled", 2, 3)]),
        (TEXT, [get("failed", 0, 1)]),
        (HANGS, [get("completed", 0, 1)]),
        (HANGS, [cancel("done", 0, 1), get("working", 2, 3)]),  # acknowledged, and lost
        (HANGS, [cancel("done", 0, 1), cancel("done", 2, 3)]),
        (HANGS, [cancel("refused", 0, 1), get("working", 2, 3)]),  # refused without a reason
        (HANGS, [get("canceled", 0, 1)]),  # canceled by nobody
        (HANGS, [get("canceled", 0, 1), cancel("", 2, NEVER)]),  # … before anybody asked
        (TEXT, [get("input-required", 0, 1)]),
        (ASKS, [get("completed", 0, 1)]),  # without an answer
        (ASKS, [answer("once", "done", 0, 3), answer("reject", "done", 1, 2)]),  # both count
        (ASKS, [answer("once", "done", 0, 1), get("input-required", 2, 3)]),  # lost
        (ASKS, [answer("once", "done", 0, 1), get("completed", 2, 3, "reject")]),
        (ASKS, [get("input-required", 2, 3), answer("once", "refused", 4, 5),
                get("input-required", 6, 7)]),
        (LOSES, [get("failed", 0, 1), cancel("done", 2, 3)]),
        (LOSES_ASKING, [*LOST, answer("once", "done", 6, 7)]),
        (LOSES_ASKING, [*LOST, get("completed", 6, 7)]),
        (LOSES_ASKING, [*LOST, get("working", 6, 7), get("completed", 8, 9)]),
        (ASKS, [*LOST[:2], get("working", 4, 5)]),
    ],
)  # fmt: skip
def test_what_no_task_can_show_is_found(rules: Rules, operations: list[Operation]) -> None:
    assert not is_linearizable(operations, rules)


def test_a_long_history_is_judged_soon() -> None:
    polls = [get("working", at, at + 0.9) for at in range(300)]
    doubts = [cancel("", at, NEVER) for at in range(5, 60, 10)]
    assert is_linearizable([*polls, *doubts, get("canceled", 301, 302)], HANGS)
    assert not is_linearizable([*polls, *doubts, get("completed", 301, 302)], HANGS)


def sound() -> History:
    history = History(
        acknowledged=[("k", "t"), ("k", "t")],
        wanted={"k": Wanted("#1#", began=0)},
        frames={("t", 2): {b"a"}, ("t", 3): {b"b"}},
        streams=[("t", [1, 2, 3]), ("t", [2, 3])],
        finals={"t": Final("completed", "x", expected="x", at=9)},
        heard=Counter({"#1#": 1}),
        stored={"t"},
        entries={"t": [(1, "Started"), (2, "BlockText"), (3, "Ended")]},
        losses=[Loss(20.0, 21.0)],
    )
    history.operations["t"] = [get("working", 0, 1), get("completed", 1, 2), get("working", 1, 3)]
    return history


def test_a_sound_history_has_no_violations() -> None:
    assert list(sound().violations()) == []


def test_a_task_may_fail_only_with_its_opencode() -> None:
    history = sound()
    history.operations["t"] = [get("failed", 5, 6)]
    history.finals["t"] = Final("failed", "", "UPSTREAM_INTERRUPTED", at=9)
    assert list(history.violations())
    history.losses.append(Loss(4.0, 5.0))
    assert list(history.violations()) == []
    history.finals["t"] = Final("failed", "", "INTERNAL", at=9)
    assert list(history.violations())


@pytest.mark.parametrize(
    "break_it",
    [
        lambda h: h.acknowledged.append(("k", "u")) or h.finals.update(u=Final("completed", "")),
        lambda h: h.heard.update(["#1#"]),
        lambda h: h.heard.update({"#1#": -1, "#2#": 1}),
        lambda h: h.operations["t"].append(get("working", 2.5, 4)),
        lambda h: h.operations["t"].append(get("failed", 2.5, 4)),
        lambda h: h.operations["t"].append(cancel("done", 2.5, 4)),
        lambda h: h.operations["x"].append(get("working", 2.5, 4)),
        lambda h: h.frames.update({("t", 2): {b"a", b"b"}}),
        lambda h: h.streams.append(("t", [1, 3, 2])),
        lambda h: h.streams.append(("t", [1, 1])),
        lambda h: h.streams.append(("t", [1, 3])),
        lambda h: h.stored.add("u"),
        lambda h: h.entries["t"].pop(1),
        lambda h: h.entries["t"].append((4, "Ended")),
        lambda h: h.finals.clear(),
        lambda h: h.finals.update(t=Final("working", "")),
        lambda h: h.finals.update(t=Final("failed", "", "INTERNAL")),
        lambda h: h.finals.update(t=Final("canceled", "")),
        lambda h: h.finals.update(t=Final("completed", "y", expected="x")),
    ],
)
def test_what_must_not_happen_is_found(break_it: Callable[[History], object]) -> None:
    history = sound()
    break_it(history)
    assert list(history.violations())
