"""Updates: the state each leads to, and the same story told in fewer of them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given

from opencode_a2a.domain.events import BlockKind, ToolCall
from opencode_a2a.domain.updates import (
    BlockText,
    BlockTool,
    ChangesMade,
    Ended,
    InterruptAnswered,
    InterruptOpened,
    InterruptResolved,
    InterruptUnclear,
    MessageAdded,
    Progress,
    Started,
    Update,
    coalesce,
    state_after,
)
from opencode_a2a.domain.values import Message, PermissionAsk, PermissionDecision, Role, TaskState
from tests.domain.logs import STEADY, folded, in_pieces, visible

ASK = PermissionAsk("per_1", "ses_1", "bash")
RUNNING = BlockTool("t1", "m1", ToolCall("call", "bash", "running"))
COMPLETED = BlockTool("t1", "m1", ToolCall("call", "bash", "completed"))
STEP = Progress("step-start", "started")
ALLOWED = PermissionDecision("once")


def text(
    said: str, append: bool = True, block: str = "b1", part: str = "p1", last: bool = False
) -> BlockText:
    return BlockText(block, "m1", part, BlockKind.TEXT, said, append, last)


@pytest.mark.parametrize(
    ("update", "state"),
    [
        (Started("ses_1"), TaskState.WORKING),
        (InterruptOpened(ASK), TaskState.INPUT_REQUIRED),
        (InterruptUnclear(ASK, "what?"), TaskState.INPUT_REQUIRED),
        (InterruptAnswered(ASK, ALLOWED, "once", still_open=1), TaskState.INPUT_REQUIRED),
        (InterruptAnswered(ASK, ALLOWED, "once", still_open=0), TaskState.WORKING),
        (InterruptResolved(ASK, "once", still_open=1), TaskState.INPUT_REQUIRED),
        (InterruptResolved(ASK, "once", still_open=0), TaskState.WORKING),
        (Ended(TaskState.FAILED), TaskState.FAILED),
        (MessageAdded(Message("m", Role.USER, ()), "msg_1"), None),
        (text("Hi"), None),
        (RUNNING, None),
        (STEP, None),
        (ChangesMade(()), None),
    ],
)
def test_the_state_an_update_leads_to(update: Update, state: TaskState | None) -> None:
    assert state_after(update) is state


def test_neighbouring_pieces_of_one_block_become_one() -> None:
    assert coalesce([text("a", append=False), text("b"), text("c", last=True)]) == [
        text("abc", append=False, last=True)
    ]


def test_pieces_that_continue_what_was_seen_still_continue_it() -> None:
    assert coalesce([text("a"), text("b")]) == [text("ab")]


def test_what_is_replaced_before_anyone_saw_it_is_not_sent() -> None:
    waiting = [text("a"), text("b"), text("new", append=False, part="p2"), text("!", part="p2")]
    assert coalesce(waiting) == [text("new!", append=False, part="p2")]


def test_pieces_of_different_blocks_stay_apart() -> None:
    waiting = [text("a"), text("b", block="b2"), text("c")]
    assert coalesce(waiting) == waiting


def test_pieces_with_something_between_them_stay_apart() -> None:
    waiting: list[Update] = [text("a"), STEP, text("b")]
    assert coalesce(waiting) == waiting


def test_of_a_tool_calls_states_in_a_row_only_the_last_is_sent() -> None:
    assert coalesce([RUNNING, RUNNING, COMPLETED]) == [COMPLETED]
    assert coalesce([RUNNING, STEP, COMPLETED]) == [RUNNING, STEP, COMPLETED]


def test_everything_else_is_sent_unchanged() -> None:
    waiting: list[Update] = [Started("ses_1"), STEP, STEP, InterruptOpened(ASK)]
    assert coalesce(waiting) == waiting
    assert coalesce([]) == []


@STEADY
@given(in_pieces())
def test_fewer_updates_make_the_same_task_wherever_the_waiting_list_is_cut(
    pieces: list[Sequence[Update]],
) -> None:
    raw: list[Update] = []
    told: list[Update] = []
    for piece in pieces:
        raw += piece
        told += coalesce(piece)
        assert visible(folded(told)) == visible(folded(raw))
    assert len(told) <= len(raw)


@STEADY
@given(in_pieces())
def test_telling_it_shorter_twice_is_no_shorter(pieces: list[Sequence[Update]]) -> None:
    for piece in pieces:
        told = coalesce(piece)
        assert coalesce(told) == told
