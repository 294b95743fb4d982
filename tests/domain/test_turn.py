"""A turn, rule by rule: lists of events in, lists of updates out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import pytest

from opencode_a2a.domain.blocks import CUT_SHORT
from opencode_a2a.domain.events import (
    AgentEvent,
    BlockKind,
    Busy,
    CaughtUp,
    ChildStarted,
    Compacting,
    FilesChanged,
    FileSnapshot,
    Gap,
    Idle,
    InterruptAsked,
    InterruptClosed,
    MessageSeen,
    PartRemoved,
    PeerUsage,
    Retrying,
    RunEnd,
    SessionErred,
    Speaker,
    StepFinished,
    StepStarted,
    TextDelta,
    TextSnapshot,
    TitleChanged,
    TodosChanged,
    ToolCall,
    ToolSnapshot,
)
from opencode_a2a.domain.task import Task, TaskHead
from opencode_a2a.domain.turn import ABORTED, CUT, FILTERED, LOST, STOPPED, Outcome, Turn
from opencode_a2a.domain.updates import (
    BlockFile,
    BlockPhase,
    BlockText,
    BlockTool,
    InterruptOpened,
    InterruptResolved,
    LogEntry,
    PeerUsageAdded,
    Progress,
    SessionTitled,
    Update,
)
from opencode_a2a.domain.values import (
    AnsweredBy,
    Failure,
    FileBytes,
    ModelRef,
    PermissionAsk,
    Problem,
    QuestionAsk,
    SubAgent,
    TaskState,
    TodoItem,
    Usage,
)

ROOT, CHILD, STRANGER = "ses_root", "ses_child", "ses_stranger"
ASK, ANSWER = "msg_10", "msg_20"
TEXT, REASONING = BlockKind.TEXT, BlockKind.REASONING

# -- events, in short


def asked(message_id: str = ASK, created: int = 10) -> MessageSeen:
    return MessageSeen(ROOT, message_id, Speaker.USER, created)


def begun(
    message_id: str = ANSWER,
    created: int = 20,
    parent: str = ASK,
    speaker: Speaker = Speaker.AGENT,
    session: str = ROOT,
) -> MessageSeen:
    return MessageSeen(session, message_id, speaker, created, parent)


def done(
    message_id: str = ANSWER, created: int = 20, finish: str | None = "stop", **how: Any
) -> MessageSeen:
    return MessageSeen(
        ROOT, message_id, Speaker.AGENT, created, ASK, completed=True, finish=finish, **how
    )


def opened(part: str, kind: BlockKind = TEXT, message_id: str = ANSWER) -> TextSnapshot:
    return TextSnapshot(ROOT, message_id, part, kind, "", ended=False)


def said(part: str, text: str, message_id: str = ANSWER) -> TextDelta:
    return TextDelta(ROOT, message_id, part, text)


def closed(part: str, text: str, kind: BlockKind = TEXT, message_id: str = ANSWER) -> TextSnapshot:
    return TextSnapshot(ROOT, message_id, part, kind, text, ended=True)


Status = Literal["pending", "running", "completed", "error"]


def tool(
    part: str,
    status: Status,
    child: str | None = None,
    message_id: str = ANSWER,
    stops: bool = False,
    **more: Any,
) -> ToolSnapshot:
    call = ToolCall("call_1", "bash", status, **more)
    subagent = SubAgent(child, "general", "call_1") if child is not None else None
    return ToolSnapshot(ROOT, message_id, part, call, subagent, stops)


def permission(request_id: str, session: str = ROOT) -> InterruptAsked:
    return InterruptAsked(session, PermissionAsk(request_id, session, "bash"))


def retrying(attempt: int = 1, session: str = ROOT) -> Retrying:
    return Retrying(session, attempt, "too many requests", next_at=1000 * attempt)


PROBLEM = Problem(Failure.PROVIDER_ERROR, "The model could not answer.", 500)
WORKING: Sequence[AgentEvent] = (asked(), Busy(ROOT), begun())

# -- a turn, and what it makes of them


def turn_after(*events: AgentEvent) -> Turn:
    turn = Turn(ROOT, ASK)
    feed(turn, *events)
    return turn


def feed(turn: Turn, *events: AgentEvent) -> list[Update]:
    return [update for event in events for update in turn.feed(event)]


def told(*events: AgentEvent) -> list[Update]:
    return feed(Turn(ROOT, ASK), *events)


def shown(updates: Sequence[Update]) -> dict[str, str]:
    """The text a client ends up with, block by block."""
    entries = (LogEntry(n, n, update) for n, update in enumerate(updates, 1))
    task = Task.of(TaskHead("task", "context", "caller", 0), entries)
    return {block.id: block.text for block in task.visible_blocks() if block.call is None}


def taken_up(updates: Sequence[Update]) -> Turn:
    """A turn that another process begins with this log."""
    entries = (LogEntry(n, n, update) for n, update in enumerate(updates, 1))
    turn = Turn(ROOT, ASK)
    turn.resume(Task.of(TaskHead("task", "context", "caller", 0), entries))
    return turn


def text(
    block: str, text: str, append: bool = False, last: bool = False, part: str | None = None
) -> BlockText:
    return BlockText(block, ANSWER, block if part is None else part, TEXT, text, append, last)


# -- whose text


def test_an_answer_to_the_prompt_is_shown() -> None:
    assert told(*WORKING, opened("prt_a"), said("prt_a", "Hi")) == [text("prt_a", "Hi")]


def test_an_answer_to_somebody_elses_prompt_is_not_shown() -> None:
    foreign = begun("msg_21", parent="msg_99")
    parts = (opened("prt_a", message_id="msg_21"), said("prt_a", "Hi", "msg_21"))
    assert told(*WORKING, foreign, *parts, closed("prt_a", "Hi", message_id="msg_21")) == []


def test_what_the_user_wrote_or_attached_is_never_shown() -> None:
    attached = TextSnapshot(ROOT, ASK, "prt_file", TEXT, "contents of a file", ended=True)
    wrote = TextSnapshot(ROOT, ASK, "prt_user", TEXT, "do something", ended=False)
    assert told(attached, asked(), wrote, attached, begun(), wrote, asked()) == []


def test_a_compaction_summary_is_never_shown() -> None:
    summary = begun("msg_30", 30, speaker=Speaker.HOUSEKEEPING)
    parts = (
        opened("prt_s", message_id="msg_30"),
        said("prt_s", "## Goal", "msg_30"),
        closed("prt_s", "## Goal", message_id="msg_30"),
    )
    assert told(*WORKING, summary, *parts) == []


def test_after_a_compaction_the_run_goes_on_under_a_younger_user_message() -> None:
    updates = told(
        *WORKING,
        done(finish="stop"),
        asked("msg_30", created=30),
        begun("msg_40", 40, parent="msg_30"),
        opened("prt_b", message_id="msg_40"),
        said("prt_b", "more", "msg_40"),
    )
    assert shown(updates) == {"prt_b": "more"}


def test_messages_older_than_the_prompt_are_not_the_turns() -> None:
    turn = turn_after(asked("msg_05", created=5), asked(), asked("msg_05", created=5))
    late = begun("msg_06", 6, parent="msg_05")
    assert feed(turn, late, closed("prt_old", "an earlier answer", message_id="msg_06")) == []


def test_a_part_may_be_heard_of_before_its_message() -> None:
    assert told(asked(), closed("prt_a", "Hi"), begun()) == [text("prt_a", "Hi", last=True)]


def test_a_sub_agents_text_is_not_shown_but_its_usage_counts() -> None:
    turn = turn_after(*WORKING, ChildStarted(CHILD, ROOT))
    updates = feed(
        turn,
        begun("msg_c", 30, "msg_x", session=CHILD),
        TextSnapshot(CHILD, "msg_c", "prt_c", TEXT, "to myself", ended=True),
        StepFinished(CHILD, "msg_c", "prt_f", Usage(7, 3)),
    )
    assert shown(updates) == {}
    assert turn.usage == Usage(7, 3)


def test_a_sub_agents_steps_say_who_takes_them_and_when_they_begin() -> None:
    turn = turn_after(*WORKING, ChildStarted(CHILD, ROOT, "general"))
    turn.feed(tool("prt_t", "running", child=CHILD))
    who = SubAgent(CHILD, "general", "call_1")
    usage = Usage(7, 3)
    events = (StepStarted(CHILD, "msg_c", "prt_s"), StepFinished(CHILD, "msg_c", "prt_f", usage))
    assert feed(turn, *events) == [
        Progress("step-start", "started", "prt_s", message_id="msg_c", subagent=who),
        Progress("step-finish", "completed", "prt_f", usage, message_id="msg_c", subagent=who),
    ]
    assert feed(turn, *events) == [], "told once"


def test_the_steps_of_the_agent_itself_are_no_sub_agents() -> None:
    [progress] = told(*WORKING, StepStarted(ROOT, ANSWER, "prt_s"))
    assert progress == Progress("step-start", "started", "prt_s", message_id=ANSWER)


def test_a_sub_agents_tool_calls_are_signs_of_life_with_a_beginning_and_an_end() -> None:
    turn = turn_after(*WORKING, ChildStarted(CHILD, ROOT, "explore"))

    def call(status: Status, **more: Any) -> ToolSnapshot:
        called = ToolCall("call_c", "bash", status, input={"command": "secret"}, **more)
        return ToolSnapshot(CHILD, "msg_c", "prt_c", called)

    assert feed(turn, call("pending")) == []
    updates = feed(
        turn,
        call("running", subtitle="Looks", started_at=10),
        call("running", subtitle="Looks", started_at=11, output="some"),
        call("completed", title="Looked", started_at=12, ended_at=13, output="all"),
        call("running", subtitle="Looks", started_at=11),  # read late
        call("completed", title="Looked", started_at=12, ended_at=13, output="all"),
    )
    who = SubAgent(CHILD, "explore")
    told_of = [
        (u.type, u.status, u.tool, u.title, u.subagent, u.started_at, u.ended_at)
        for u in map(_progress, updates)
    ]
    assert told_of == [
        ("tool-call", "running", "bash", "Looks", who, 10, None),
        ("tool-call", "completed", "bash", "Looked", who, 10, 13),
    ]
    assert "secret" not in str(updates)


def _progress(update: Update) -> Progress:
    assert isinstance(update, Progress)
    return update


def test_who_takes_a_step_may_be_learned_later_and_nothing_is_reported_twice() -> None:
    """After a restart the same is read again, and more is known by then."""
    started = StepStarted(CHILD, "msg_c", "prt_s")
    again = taken_up(told(*WORKING, ChildStarted(CHILD, ROOT), started))
    feed(again, *WORKING, tool("prt_t", "running", child=CHILD))
    assert feed(again, ChildStarted(CHILD, ROOT, "general"), started) == []


def test_a_step_that_nobody_accounted_for_is_counted_as_such() -> None:
    """OpenCode does not know what an aborted step has used, nor a retried one."""
    turn = turn_after(*WORKING, StepStarted(ROOT, ANSWER, "prt_1"))
    turn.feed(StepFinished(ROOT, ANSWER, "prt_2", Usage(5, 2)))
    turn.feed(begun("msg_30", 30))
    turn.feed(StepStarted(ROOT, "msg_30", "prt_3"))
    feed(turn, done("msg_30", 30, finish=None, aborted=True), Idle(ROOT))
    assert turn.usage == Usage(5, 2, unreported_steps=1)


def test_a_sub_agents_question_is_the_turns_question() -> None:
    question = QuestionAsk("que_1", "ses_grandchild", ())
    turn = turn_after(*WORKING, ChildStarted(CHILD, ROOT), ChildStarted("ses_grandchild", CHILD))
    updates = feed(turn, InterruptAsked("ses_grandchild", question))
    shown = replace(question, subagent=SubAgent("ses_grandchild"))
    assert updates == [InterruptOpened(shown)], "and says who asks"
    assert [opened.interrupt for opened in turn.requests.open.values()] == [shown]


def test_a_sub_agent_named_by_its_tool_call_belongs_to_the_family() -> None:
    turn = turn_after(*WORKING, tool("prt_t", "running", child=CHILD))
    assert turn.family == {ROOT, CHILD}
    assert len(feed(turn, permission("per_1", CHILD))) == 1


def test_what_strangers_ask_or_spend_is_not_the_turns() -> None:
    turn = turn_after(*WORKING, ChildStarted(CHILD, STRANGER))
    assert feed(turn, permission("per_1", STRANGER), permission("per_2", CHILD)) == []
    assert feed(turn, StepFinished(STRANGER, "msg_s", "prt_s", Usage(1))) == []
    assert feed(turn, TodosChanged(STRANGER, ()), retrying(session=STRANGER)) == []


def test_what_an_earlier_answer_cost_is_not_counted() -> None:
    turn = turn_after(*WORKING)
    assert feed(turn, StepFinished(ROOT, "msg_06", "prt_f", Usage(1))) == []
    assert turn.usage == Usage()


def test_a_new_title_is_reported_once_and_one_that_is_known_not_at_all() -> None:
    turn = Turn(ROOT, ASK, title="first")
    events = [TitleChanged(ROOT, t) for t in ("first", "second", "second")]
    assert feed(turn, *events, TitleChanged(CHILD, "not this")) == [SessionTitled(ROOT, "second")]


# -- what a text is


def phases(updates: Sequence[Update]) -> list[tuple[str, str]]:
    return [(u.block_id, u.phase) for u in updates if isinstance(u, BlockPhase)]


def test_a_text_is_commentary_once_a_tool_call_follows_and_the_last_one_is_the_answer() -> None:
    turn = turn_after(*WORKING, opened("prt_a"), said("prt_a", "Let me"))
    feed(turn, closed("prt_a", "Let me see."))
    follows = feed(turn, tool("prt_t", "pending"))
    assert phases(follows[:1]) == [("prt_a", "commentary")], "before the call itself"
    assert phases(feed(turn, tool("prt_t", "completed"), tool("prt_u", "running"))) == []
    feed(turn, done(finish="tool-calls"), begun("msg_21", 21))
    for part in ("prt_b", "prt_c"):
        feed(turn, closed(part, "Done.", message_id="msg_21"))
    ended = feed(turn, done("msg_21", 21), Idle(ROOT))
    assert phases(ended) == [("prt_b", "commentary"), ("prt_c", "answer")]


@pytest.mark.parametrize("how", [{"finish": "length"}, {"problem": PROBLEM}, {"aborted": True}])
def test_a_run_that_is_not_completed_has_no_answer(how: dict[str, Any]) -> None:
    turn = turn_after(*WORKING, closed("prt_a", "I think"))
    assert phases(feed(turn, done(**how), Idle(ROOT))) == []


def test_the_kind_of_a_text_is_reported_once_also_after_a_restart() -> None:
    seen = told(*WORKING, closed("prt_a", "Let me see."), tool("prt_t", "running"))
    again = taken_up([*seen, text("prt_b", "Do", last=True)])
    stored = (*WORKING, closed("prt_a", "Let me see."), tool("prt_t", "completed"))
    updates = feed(again, *stored, closed("prt_b", "Done"), done(), Idle(ROOT), CaughtUp(ROOT))
    assert phases(updates) == [("prt_b", "answer")]


def test_an_abandoned_text_is_neither() -> None:
    turn = turn_after(*WORKING, opened("prt_a"), said("prt_a", "Cut"), retrying())
    assert phases(feed(turn, tool("prt_t", "running"))) == []
    updates = feed(turn, closed("prt_b", "Whole"), done(), Idle(ROOT))
    assert phases(updates) == [("prt_a", "answer")], "the block that the retried text took over"


def test_a_turn_knows_what_answered_it() -> None:
    first, second = (AnsweredBy(ModelRef("p", name), agent="build") for name in ("m1", "m2"))
    turn = turn_after(*WORKING)
    assert turn.answered_by != first
    feed(turn, replace(begun(), answered_by=first))
    [started] = feed(turn, StepStarted(ROOT, ANSWER, "prt_s"))
    assert isinstance(started, Progress)
    assert (turn.answered_by, started.answered_by) == (first, first)
    feed(turn, replace(done(finish="tool-calls"), answered_by=first))
    feed(turn, replace(begun("msg_21", 21), answered_by=second))
    assert turn.answered_by == second


# -- what a block says


def test_deltas_extend_a_block_that_the_first_of_them_begins() -> None:
    updates = told(*WORKING, opened("prt_a"), said("prt_a", "He"), said("prt_a", "llo"))
    assert updates == [text("prt_a", "He"), text("prt_a", "llo", append=True)]


def test_an_empty_delta_says_nothing() -> None:
    assert told(*WORKING, opened("prt_a"), said("prt_a", "")) == []


def test_a_delta_before_its_part_is_made_up_for_by_the_closing_text() -> None:
    updates = told(*WORKING, said("prt_a", "Hel"), closed("prt_a", "Hello"))
    assert updates == [text("prt_a", "Hello", last=True)]


def test_the_closing_text_adds_what_is_missing_and_closes_the_block() -> None:
    updates = told(*WORKING, opened("prt_a"), said("prt_a", "He"), closed("prt_a", "Hello"))
    assert updates[1:] == [text("prt_a", "llo", append=True, last=True)]


def test_the_closing_text_closes_a_block_that_misses_nothing() -> None:
    updates = told(*WORKING, opened("prt_a"), said("prt_a", "Hi"), closed("prt_a", "Hi"))
    assert updates[1:] == [text("prt_a", "", append=True, last=True)]


def test_a_closing_text_that_begins_differently_replaces_the_block() -> None:
    updates = told(*WORKING, opened("prt_a"), said("prt_a", "Hello "), closed("prt_a", "Hello"))
    assert updates[1:] == [text("prt_a", "Hello", append=False, last=True)]


def test_an_empty_closing_text_empties_the_block() -> None:
    updates = told(*WORKING, opened("prt_a"), said("prt_a", "Hello"), closed("prt_a", ""))
    assert updates[1:] == [text("prt_a", "", append=False, last=True)]


def test_a_snapshot_older_than_the_deltas_changes_nothing() -> None:
    turn = turn_after(*WORKING, opened("prt_a"), said("prt_a", "Hello"))
    older = TextSnapshot(ROOT, ANSWER, "prt_a", TEXT, "Hel", ended=False)
    assert feed(turn, opened("prt_a"), older) == []
    assert feed(turn, said("prt_a", "!")) == [text("prt_a", "!", append=True)]


def test_a_closed_text_stays_closed() -> None:
    turn = turn_after(*WORKING, opened("prt_a"), closed("prt_a", "Hello"))
    longer = TextSnapshot(ROOT, ANSWER, "prt_a", TEXT, "Hello and", ended=False)
    assert feed(turn, opened("prt_a"), said("prt_a", "!"), longer) == []
    assert feed(turn, closed("prt_a", "Hello")) == []


def test_a_text_that_was_empty_all_along_is_not_mentioned() -> None:
    assert told(*WORKING, opened("prt_a"), closed("prt_a", ""), done()) == []


def test_reasoning_is_a_block_of_its_own_kind() -> None:
    updates = told(
        *WORKING,
        opened("prt_r", REASONING),
        opened("prt_a"),
        said("prt_r", "hmm"),
        said("prt_a", "Hi"),
    )
    assert [(u.block_id, u.kind) for u in updates if isinstance(u, BlockText)] == [
        ("prt_r", REASONING),
        ("prt_a", TEXT),
    ]


def test_a_tool_call_is_reported_whole_whenever_it_changes() -> None:
    running = tool("prt_t", "running", title="ls")
    updates = told(*WORKING, tool("prt_t", "pending"), running, running, tool("prt_t", "completed"))
    assert [u.call.status for u in updates if isinstance(u, BlockTool)] == [
        "pending",
        "running",
        "completed",
    ]


def test_a_finished_tool_stays_finished() -> None:
    turn = turn_after(*WORKING, tool("prt_t", "completed", output="ok"))
    assert feed(turn, tool("prt_t", "pending"), tool("prt_t", "running")) == []


def test_an_open_part_that_is_removed_is_emptied() -> None:
    turn = turn_after(*WORKING, opened("prt_a"), said("prt_a", "Hello"))
    assert feed(turn, PartRemoved(ROOT, ANSWER, "prt_a")) == [text("prt_a", "", last=True, part="")]
    assert feed(turn, PartRemoved(ROOT, ANSWER, "prt_a")) == []


def test_a_file_is_handed_over_once_by_the_answer_and_by_nobody_else() -> None:
    picture = FileBytes("eA==", "image/png", "x.png")

    def file(part: str, message_id: str = ANSWER, session: str = ROOT) -> FileSnapshot:
        return FileSnapshot(session, message_id, part, picture)

    told_early = told(asked(), file("a"), begun())
    assert told_early == [BlockFile("a", ANSWER, picture)]
    others = (file("b", ASK), file("c", "msg_7", CHILD))
    turn = turn_after(asked(), ChildStarted(CHILD, ROOT), begun())
    assert feed(turn, *others, file("a"), file("a")) == told_early
    resumed = taken_up(told_early)
    assert feed(resumed, asked(), begun(), file("a"), CaughtUp(ROOT)) == []


# -- after a gap


def test_a_gap_holds_back_what_was_open_until_its_closing_text() -> None:
    turn = turn_after(*WORKING, opened("prt_a"), said("prt_a", "one "))
    assert feed(turn, Gap(ROOT), said("prt_a", "three ")) == []
    assert feed(turn, opened("prt_a"), CaughtUp(ROOT), said("prt_a", "four ")) == []
    assert feed(turn, closed("prt_a", "one two three four five")) == [
        text("prt_a", "two three four five", append=True, last=True)
    ]


def test_a_part_first_heard_of_in_a_gap_is_held_back_too() -> None:
    turn = turn_after(*WORKING, Gap(ROOT), opened("prt_a"), CaughtUp(ROOT))
    assert feed(turn, said("prt_a", "two ")) == []
    assert feed(turn, closed("prt_a", "one two ")) == [text("prt_a", "one two ", last=True)]


def test_a_part_that_begins_after_the_gap_is_made_up_for_streams_again() -> None:
    turn = turn_after(*WORKING, Gap(ROOT), CaughtUp(ROOT), opened("prt_a"))
    assert feed(turn, said("prt_a", "one ")) == [text("prt_a", "one ")]


def test_a_gap_leaves_closed_blocks_alone() -> None:
    turn = turn_after(*WORKING, closed("prt_a", "Hello"), Gap(ROOT))
    assert feed(turn, begun(), closed("prt_a", "Hello"), CaughtUp(ROOT)) == []


def test_an_answer_missed_in_a_gap_is_found_by_reading() -> None:
    turn = turn_after(asked(), Gap(ROOT))
    updates = feed(
        turn, asked(), begun(), closed("prt_a", "Hello"), done(), Idle(ROOT), CaughtUp(ROOT)
    )
    assert shown(updates) == {"prt_a": "Hello"}
    assert turn.outcome == Outcome(TaskState.COMPLETED)


# -- when the provider is tried again


def test_a_retried_part_takes_over_the_block_of_the_one_left_behind() -> None:
    turn = turn_after(*WORKING, opened("prt_a"), said("prt_a", "one tw"), retrying())
    assert feed(turn, opened("prt_b"), said("prt_b", "one "), said("prt_b", "two")) == [
        text("prt_a", "one ", append=False, part="prt_b"),
        text("prt_a", "two", append=True, part="prt_b"),
    ]


def test_a_retried_part_takes_over_only_a_block_of_its_kind() -> None:
    updates = told(
        *WORKING,
        opened("prt_r", REASONING),
        said("prt_r", "hm"),
        opened("prt_a"),
        said("prt_a", "He"),
        retrying(),
        closed("prt_s", "hmm", REASONING),
        closed("prt_b", "Hello"),
    )
    assert shown(updates) == {"prt_r": "hmm", "prt_a": "Hello"}


def test_a_retry_leaves_what_was_closed_alone() -> None:
    updates = told(*WORKING, closed("prt_a", "Hello"), retrying(), closed("prt_b", "World"))
    assert shown(updates) == {"prt_a": "Hello", "prt_b": "World"}


def test_deltas_of_a_part_left_behind_are_dropped() -> None:
    turn = turn_after(*WORKING, opened("prt_a"), said("prt_a", "one "), retrying())
    assert feed(turn, said("prt_a", "two ")) == []


def test_a_void_block_that_nobody_takes_over_is_emptied() -> None:
    turn = turn_after(*WORKING, opened("prt_a"), said("prt_a", "one "), retrying())
    assert feed(turn, done(finish=None)) == [text("prt_a", "", last=True, part="")]


def test_a_part_its_completed_message_did_not_close_is_void() -> None:
    turn = turn_after(*WORKING, opened("prt_a"), said("prt_a", "one "))
    assert feed(turn, done()) == [text("prt_a", "", last=True, part="")]


def test_a_void_block_taken_over_by_a_part_that_said_nothing_is_emptied_too() -> None:
    turn = turn_after(*WORKING, opened("prt_a"), said("prt_a", "one "), retrying())
    assert feed(turn, opened("prt_b"), done(finish=None)) == [text("prt_a", "", last=True, part="")]


def test_one_block_serves_every_attempt() -> None:
    updates = told(
        *WORKING,
        opened("prt_a"),
        said("prt_a", "one "),
        retrying(1),
        opened("prt_b"),
        retrying(2),
        opened("prt_c"),
        said("prt_c", "two "),
        closed("prt_c", "two three"),
        done(),
    )
    assert shown(updates) == {"prt_a": "two three"}


def test_a_part_left_behind_does_not_come_back_when_it_is_read_again() -> None:
    turn = turn_after(*WORKING, opened("prt_a"), said("prt_a", "one "), retrying())
    assert feed(turn, begun(), opened("prt_a"), retrying(), CaughtUp(ROOT)) == []
    assert feed(turn, closed("prt_b", "two")) == [text("prt_a", "two", last=True, part="prt_b")]


def test_a_part_given_up_too_soon_is_not_lost() -> None:
    """An old retry, heard after a look that was ahead of it, voids what has begun since."""
    turn = turn_after(*WORKING, Gap(ROOT), opened("prt_b"), CaughtUp(ROOT), retrying())
    updates = feed(turn, opened("prt_c"), closed("prt_b", "one"), closed("prt_c", "two"))
    assert sorted(shown(updates).values()) == ["one", "two"]


def test_a_part_that_is_heard_of_after_its_message_was_read_complete_is_void() -> None:
    turn = turn_after(*WORKING, done())
    assert feed(turn, opened("prt_a"), said("prt_a", "one "), Idle(ROOT)) == []


def test_a_retry_leaves_alone_what_a_gap_has_left_open() -> None:
    """It may be another message's; the part may be closed already."""
    turn = turn_after(*WORKING, opened("prt_a"), said("prt_a", "one "), Gap(ROOT), retrying())
    assert feed(turn, closed("prt_a", "one two")) == [text("prt_a", "two", append=True, last=True)]


def test_a_block_that_another_part_took_over_is_not_begun_again_by_who_takes_up() -> None:
    before = told(*WORKING, opened("prt_a"), retrying(), opened("prt_b"), closed("prt_b", "two"))
    assert shown(before) == {"prt_a": "two"}
    after = feed(taken_up(before), *WORKING, closed("prt_a", "one"), done(), CaughtUp(ROOT))
    assert shown([*before, *after]) == {"prt_a": "two", "prt_a-again": "one"}


def test_a_block_given_up_too_soon_is_emptied_by_who_takes_up() -> None:
    before = told(*WORKING, opened("prt_a"), said("prt_a", "one "), retrying())
    before += [text("prt_a-again", "one two", last=True, part="prt_a")]
    after = feed(taken_up(before), *WORKING, closed("prt_a", "one two"), done(), CaughtUp(ROOT))
    assert shown([*before, *after]) == {"prt_a-again": "one two"}


def test_a_retry_missed_in_a_gap_is_noticed_when_the_message_is_complete() -> None:
    turn = turn_after(*WORKING, opened("prt_a"), said("prt_a", "one "), Gap(ROOT))
    updates = [text("prt_a", "one ")]
    read = (begun(), opened("prt_a"), closed("prt_b", "two"), done(), Idle(ROOT), CaughtUp(ROOT))
    assert shown([*updates, *feed(turn, *read)]) == {"prt_b": "two"}


# -- signs of life


def test_progress_is_reported_once_however_often_it_is_read() -> None:
    signs: Sequence[AgentEvent] = (
        StepStarted(ROOT, ANSWER, "prt_s"),
        StepFinished(ROOT, ANSWER, "prt_f", Usage(5, 1)),
        Compacting(ROOT, done=False, part_id="prt_c"),
        retrying(),
    )
    turn = turn_after(*WORKING)
    assert [u.type for u in feed(turn, *signs) if isinstance(u, Progress)] == [
        "step-start",
        "step-finish",
        "compaction",
        "retry",
    ]
    assert feed(turn, *signs, CaughtUp(ROOT)) == []
    assert [u.type for u in feed(turn, retrying(2)) if isinstance(u, Progress)] == ["retry"]


def test_usage_is_counted_once_per_step_and_summed_over_steps() -> None:
    turn = turn_after(*WORKING)
    first = StepFinished(ROOT, ANSWER, "prt_1", Usage(5, 1, cost=0.5))
    second = StepFinished(ROOT, ANSWER, "prt_2", Usage(6, 2, cost=0.25))
    feed(turn, first, second, first, second)
    assert turn.usage == Usage(11, 3, cost=0.75)


def test_what_peers_have_used_is_told_under_their_names_and_adds_up() -> None:
    turn = turn_after(*WORKING, ChildStarted(CHILD, ROOT))
    step = StepFinished(ROOT, ANSWER, "prt_1", Usage(5, 1))
    calls = [PeerUsage(ROOT, "b", Usage(7)), PeerUsage(CHILD, "b", Usage(2))]
    updates = feed(turn, step, *calls, PeerUsage(ROOT, "c", Usage(1)))
    assert updates[1:] == [
        PeerUsageAdded("b", Usage(7)),
        PeerUsageAdded("b", Usage(2)),
        PeerUsageAdded("c", Usage(1)),
    ]
    assert turn.usage == Usage(5, 1, peers={"b": Usage(9), "c": Usage(1)})
    assert feed(turn, PeerUsage(STRANGER, "b", Usage(9))) == []
    later = taken_up(updates)
    later.feed(PeerUsage(ROOT, "b", Usage(1)))
    assert later.usage == Usage(5, 1, peers={"b": Usage(10), "c": Usage(1)})


def test_todos_and_the_end_of_a_compaction_are_reported() -> None:
    todos = (TodoItem("x", "pending", "high"),)
    updates = told(*WORKING, TodosChanged(ROOT, todos), Compacting(ROOT, done=True))
    assert updates == [
        Progress("todo", "updated", todos=todos),
        Progress("compaction", "completed"),
    ]


def test_the_end_of_a_compaction_that_has_a_name_is_reported_once() -> None:
    begins, ends = (Compacting(ROOT, done=done, part_id="msg_30") for done in (False, True))
    both = [Progress("compaction", status, part_id="msg_30") for status in ("started", "completed")]
    assert told(*WORKING, begins, ends, begins, ends) == both


def test_a_compaction_before_the_prompt_is_not_the_turns() -> None:
    assert told(Compacting(ROOT, done=False, part_id="prt_c"), Compacting(ROOT, done=True)) == []


def test_the_title_is_the_latest_and_file_changes_are_noticed() -> None:
    turn = turn_after(*WORKING, TitleChanged(ROOT, "first"), TitleChanged(CHILD, "not this"))
    feed(turn, TitleChanged(ROOT, "second"), FilesChanged(ROOT, "msg_06"))
    assert (turn.title, turn.files_changed) == ("second", False)
    feed(turn, FilesChanged(ROOT, ANSWER))
    assert turn.files_changed


# -- what the agent asks


def test_a_request_opens_and_its_answer_resolves_it() -> None:
    turn = turn_after(*WORKING)
    ask = permission("per_1")
    assert feed(turn, ask, ask) == [InterruptOpened(ask.interrupt)]
    assert feed(turn, InterruptClosed(ROOT, "per_1", "once")) == [
        InterruptResolved(ask.interrupt, "once", still_open=0)
    ]
    assert feed(turn, InterruptClosed(ROOT, "per_1", "once")) == []


def test_a_resolution_says_how_many_requests_are_still_open() -> None:
    turn = turn_after(*WORKING, permission("per_1"), permission("per_2"))
    closing = (InterruptClosed(ROOT, "per_1", "once"), InterruptClosed(ROOT, "per_2", "reject"))
    updates = feed(turn, *closing)
    assert [u.still_open for u in updates if isinstance(u, InterruptResolved)] == [1, 0]


def test_a_request_answered_elsewhere_is_resolved_once_it_is_no_longer_listed() -> None:
    turn = turn_after(*WORKING, permission("per_1"), permission("per_2"), Gap(ROOT))
    updates = feed(turn, permission("per_2"), CaughtUp(ROOT, frozenset({"per_2"})))
    assert updates == [InterruptResolved(permission("per_1").interrupt, "elsewhere", still_open=1)]


def test_the_end_closes_what_is_still_asked() -> None:
    turn = turn_after(*WORKING, permission("per_1"), done(aborted=True))
    assert feed(turn, Idle(ROOT)) == [
        InterruptResolved(permission("per_1").interrupt, "ended", still_open=0)
    ]


def test_a_lost_run_closes_what_is_still_asked() -> None:
    turn = turn_after(*WORKING, permission("per_1"), Idle(ROOT))
    listed = CaughtUp(ROOT, frozenset({"per_1"}))
    assert feed(turn, listed) == []
    assert [type(u) for u in feed(turn, listed)] == [InterruptResolved]
    assert turn.outcome is not None


# -- when it is over


def test_an_idle_session_with_a_completed_answer_is_the_end() -> None:
    assert turn_after(*WORKING, done(), Idle(ROOT)).outcome == Outcome(TaskState.COMPLETED)


def test_a_late_idle_of_the_previous_run_is_not_the_end() -> None:
    turn = turn_after(asked(), Idle(ROOT), begun())
    assert not turn.in_doubt
    feed(turn, done())
    assert turn.outcome is None


def test_an_idle_of_a_sub_agent_or_a_stranger_is_not_the_end() -> None:
    turn = turn_after(*WORKING, ChildStarted(CHILD, ROOT), done(), Idle(CHILD), Idle(STRANGER))
    assert turn.outcome is None


def test_a_completed_step_is_not_the_end_while_the_session_is_busy() -> None:
    turn = turn_after(*WORKING, done(finish="tool-calls"), begun("msg_30", 30), Idle(ROOT))
    assert turn.outcome is None
    feed(turn, done("msg_30", 30))
    assert turn.outcome == Outcome(TaskState.COMPLETED)


def test_a_finished_answer_without_an_idle_is_looked_at_soon() -> None:
    story = [*WORKING, done(finish="tool-calls")]
    assert not turn_after(*story).in_doubt
    story += [begun("msg_30", 30), done("msg_30", 30)]
    assert turn_after(*story).in_doubt
    story += [Busy(ROOT), CaughtUp(ROOT, frozenset())]
    assert not turn_after(*story).in_doubt, "a look has shown that it goes on"


def test_an_error_and_an_early_idle_wait_for_the_message_to_be_completed() -> None:
    turn = turn_after(*WORKING, SessionErred(ROOT, PROBLEM), Idle(ROOT), Idle(ROOT))
    assert turn.outcome is None
    assert turn.in_doubt
    feed(turn, done(finish=None, problem=PROBLEM))
    assert turn.outcome == Outcome(TaskState.FAILED, PROBLEM.message, PROBLEM)


def test_an_error_is_not_the_end_of_a_run_that_goes_on() -> None:
    turn = turn_after(*WORKING, SessionErred(ROOT, PROBLEM), done(finish=None), Busy(ROOT))
    assert turn.outcome is None
    feed(turn, begun("msg_30", 30), done("msg_30", 30), Idle(ROOT), Idle(ROOT))
    assert turn.outcome == Outcome(TaskState.COMPLETED)


def test_busy_takes_an_early_idle_back() -> None:
    turn = turn_after(*WORKING, Idle(ROOT), Busy(ROOT), done())
    assert turn.outcome is None


@pytest.mark.parametrize(
    ("last", "outcome"),
    [
        (done(), Outcome(TaskState.COMPLETED)),
        (done(finish="unknown"), Outcome(TaskState.COMPLETED)),
        (done(finish="length"), Outcome(TaskState.FAILED, CUT.message, CUT)),
        (done(finish="content-filter"), Outcome(TaskState.FAILED, FILTERED.message, FILTERED)),
        (done(problem=PROBLEM), Outcome(TaskState.FAILED, PROBLEM.message, PROBLEM)),
        (done(finish=None, aborted=True), Outcome(TaskState.CANCELED, ABORTED)),
        (done(finish=None), Outcome(TaskState.CANCELED, ABORTED)),  # while it waited to retry
    ],
)
def test_the_outcome_is_read_from_the_newest_message(last: MessageSeen, outcome: Outcome) -> None:
    assert turn_after(*WORKING, last, Idle(ROOT)).outcome == outcome


def test_a_run_that_ends_in_a_compaction_is_completed() -> None:
    summary = MessageSeen(ROOT, "msg_30", Speaker.HOUSEKEEPING, 30, ASK, completed=True)
    assert turn_after(*WORKING, done(), summary, Idle(ROOT)).outcome == Outcome(TaskState.COMPLETED)


def test_the_newest_message_is_the_youngest_not_the_one_heard_of_last() -> None:
    failed = done("msg_40", 40, finish=None, problem=PROBLEM)
    turn = turn_after(
        *WORKING,
        Gap(ROOT),
        begun("msg_40", 40),
        done("msg_30", 30, finish="tool-calls"),
        failed,
        Idle(ROOT),
        CaughtUp(ROOT),
    )
    assert turn.outcome == Outcome(TaskState.FAILED, PROBLEM.message, PROBLEM)


def test_a_run_that_stops_at_a_refused_tool_is_canceled() -> None:
    turn = turn_after(
        *WORKING,
        permission("per_1"),
        InterruptClosed(ROOT, "per_1", "reject"),
        tool("prt_t", "error", stops=True),
        done(finish="tool-calls"),
        Idle(ROOT),
    )
    assert turn.outcome == Outcome(TaskState.CANCELED, STOPPED)


def test_a_refusal_that_nobody_heard_of_is_read_from_the_tool() -> None:
    turn = turn_after(asked(), Gap(ROOT), begun(), tool("prt_t", "error", stops=True))
    feed(turn, done(finish="tool-calls"), Idle(ROOT), CaughtUp(ROOT))
    assert turn.outcome == Outcome(TaskState.CANCELED, STOPPED)


def test_a_run_that_finds_another_way_after_a_refusal_is_completed() -> None:
    refused = (permission("per_1"), InterruptClosed(ROOT, "per_1", "reject"))
    step = (tool("prt_t", "error"), done(finish="tool-calls"))
    turn = turn_after(*WORKING, *refused, *step, begun("msg_30", 30), done("msg_30", 30))
    feed(turn, Idle(ROOT))
    assert turn.outcome == Outcome(TaskState.COMPLETED)


def test_an_answer_given_through_a_tool_is_completed() -> None:
    answered = tool("prt_t", "completed", stops=True)
    turn = turn_after(*WORKING, answered, done(finish="tool-calls"), Idle(ROOT))
    assert turn.outcome == Outcome(TaskState.COMPLETED)


@pytest.mark.parametrize(
    "middle",
    [
        (tool("prt_t", "completed"), done(finish="tool-calls")),
        (tool("prt_t", "error", error="No such file"), done(finish="tool-calls")),
        (done(), asked("msg_25", 25)),
    ],
)
def test_a_run_that_is_lost_between_two_answers_is_not_completed(
    middle: Sequence[AgentEvent],
) -> None:
    turn = turn_after(*WORKING, *middle, Gap(ROOT), Idle(ROOT), CaughtUp(ROOT))
    assert turn.outcome is None
    feed(turn, Idle(ROOT), CaughtUp(ROOT))
    assert turn.outcome == Outcome(TaskState.FAILED, LOST.message, LOST)


# -- an agent that says once and for all how a run has ended


ENDED_WELL = Idle(ROOT, RunEnd())
ENDED_BADLY = Idle(ROOT, RunEnd(PROBLEM))
STOPPED_BY_SOMEBODY = Idle(ROOT, RunEnd(aborted=True))
READ = CaughtUp(ROOT)


@pytest.mark.parametrize(
    ("events", "outcome"),
    [
        ((done(), ENDED_WELL), Outcome(TaskState.COMPLETED)),
        ((done(finish="tool-calls"), ENDED_WELL), Outcome(TaskState.COMPLETED)),
        ((done(), asked("msg_25", 25), ENDED_WELL), Outcome(TaskState.COMPLETED)),
        ((done(finish="length"), ENDED_WELL), Outcome(TaskState.FAILED, CUT.message, CUT)),
        ((ENDED_BADLY,), Outcome(TaskState.FAILED, PROBLEM.message, PROBLEM)),
        (
            (done(problem=CUT), ENDED_BADLY),
            Outcome(TaskState.FAILED, CUT.message, CUT),  # the message knows better
        ),
        ((STOPPED_BY_SOMEBODY, READ), Outcome(TaskState.CANCELED, ABORTED)),
        (
            (tool("prt_t", "error", stops=True), done(finish="tool-calls"), STOPPED_BY_SOMEBODY),
            Outcome(TaskState.CANCELED, STOPPED),
        ),
    ],
)
def test_the_end_of_a_run_that_is_said_once_and_for_all_is_not_waited_for(
    events: Sequence[AgentEvent], outcome: Outcome
) -> None:
    turn = turn_after(*WORKING, *events)
    feed(turn, READ)  # what is stored may have to be read first, and is not read twice
    assert turn.outcome == outcome


@pytest.mark.parametrize("end", [ENDED_BADLY, STOPPED_BY_SOMEBODY])
def test_a_run_may_end_before_it_has_an_answer(end: Idle) -> None:
    turn = turn_after(asked(), Busy(ROOT), end, READ)
    assert turn.outcome is not None
    assert turn.outcome.state is not TaskState.COMPLETED


@pytest.mark.parametrize(
    "later", [Busy(ROOT), begun("msg_30", 30)], ids=["busy again", "another answer"]
)
def test_another_run_takes_the_end_of_the_one_before_back(later: AgentEvent) -> None:
    turn = turn_after(*WORKING, ENDED_WELL, later, done("msg_30", 30))
    assert turn.outcome is None
    feed(turn, ENDED_WELL)
    assert turn.outcome == Outcome(TaskState.COMPLETED)


@pytest.mark.parametrize("end", [ENDED_WELL, ENDED_BADLY, STOPPED_BY_SOMEBODY])
def test_the_end_of_a_run_before_the_prompt_is_not_the_end(end: Idle) -> None:
    turn = turn_after(end, asked(), Busy(ROOT), begun(), done())
    assert turn.outcome is None
    feed(turn, ENDED_WELL)
    assert turn.outcome == Outcome(TaskState.COMPLETED)


def test_a_prompt_that_was_never_taken_fails_with_why_the_run_failed() -> None:
    turn = turn_after(Busy(ROOT), ENDED_BADLY, Idle(ROOT), READ)
    assert turn.outcome is None
    feed(turn, Idle(ROOT), READ)
    assert turn.outcome == Outcome(TaskState.FAILED, PROBLEM.message, PROBLEM)


def test_a_run_that_ends_without_an_answer_has_not_begun() -> None:
    turn = turn_after(asked(), Busy(ROOT), ENDED_WELL, READ, READ)
    assert turn.outcome is None
    assert turn.not_begun


# -- answers that do not name their prompt


def unnamed(message_id: str, created: int, **how: Any) -> MessageSeen:
    return MessageSeen(ROOT, message_id, Speaker.AGENT, created, **how)


def test_an_answer_that_names_no_prompt_is_to_the_prompt_before_it() -> None:
    old = closed("prt_old", "old", message_id="msg_06")
    turn = turn_after(asked("msg_05", 5), unnamed("msg_06", 6), old)
    updates = feed(
        turn,
        *(asked(), unnamed(ANSWER, 20), opened("prt_a"), said("prt_a", "Hi")),
        *(asked("msg_25", 25), unnamed("msg_30", 30), closed("prt_b", "!", message_id="msg_30")),
        *(unnamed("msg_06", 6, completed=True), old),
    )
    assert shown(updates) == {"prt_a": "Hi", "prt_b": "!"}


def test_the_end_of_an_answer_need_not_tell_when_it_began_or_who_gave_it() -> None:
    by = AnsweredBy(ModelRef("demo", "demo"))
    turn = turn_after(asked(), unnamed(ANSWER, 20, answered_by=by))
    feed(turn, unnamed("msg_30", 30), unnamed(ANSWER, 40, completed=True, finish="tool-calls"))
    feed(turn, unnamed("msg_30", 50, completed=True, finish="stop"), ENDED_WELL)
    assert turn.outcome == Outcome(TaskState.COMPLETED)
    assert turn.answered_by == by


# -- sub-agents that no call waits for


def in_background(session: str = CHILD, status: Status = "completed") -> ToolSnapshot:
    call = ToolCall("call_1", "subagent", status)
    child = SubAgent(session, "general", "call_1", background=True)
    return ToolSnapshot(ROOT, ANSWER, "prt_t", call, child)


STARTED = (*WORKING, in_background(), done("msg_20"))
AGAIN = (asked("msg_25", 25), Busy(ROOT), unnamed("msg_30", 30), done("msg_30", 30))


def test_the_task_goes_on_until_what_a_sub_agent_in_the_background_begins_has_ended() -> None:
    turn = turn_after(*STARTED, ENDED_WELL, Busy(ROOT), READ)
    assert not turn.in_doubt, "a look has shown that the sub-agent works"
    feed(turn, ENDED_WELL, Idle(CHILD, RunEnd()), *AGAIN, ENDED_WELL)
    assert turn.outcome is None, "more may be coming that nobody has heard of"
    feed(turn, Idle(CHILD), Idle(ROOT, RunEnd()), READ)
    assert turn.outcome is None
    feed(turn, Idle(CHILD), Idle(ROOT, RunEnd()), READ)
    assert turn.outcome == Outcome(TaskState.COMPLETED)


def test_nothing_is_at_work_between_a_sub_agent_and_the_run_that_it_begins() -> None:
    turn = turn_after(*STARTED, ENDED_WELL, Gap(ROOT), Idle(CHILD), ENDED_WELL, READ)
    assert turn.outcome is None
    feed(turn, *AGAIN, closed("prt_b", "It is done.", message_id="msg_30"), ENDED_WELL)
    feed(turn, ENDED_WELL, READ)
    assert turn.outcome is None
    feed(turn, ENDED_WELL, READ)
    assert turn.outcome == Outcome(TaskState.COMPLETED)


def test_each_sub_agent_in_the_background_is_waited_for() -> None:
    turn = turn_after(*STARTED, in_background("ses_other"), ENDED_WELL, Idle(CHILD), ENDED_WELL)
    feed(turn, READ, READ)
    assert turn.outcome is None
    feed(turn, Idle("ses_other"), ENDED_WELL, READ, READ)
    assert turn.outcome == Outcome(TaskState.COMPLETED)


def test_one_that_could_not_be_started_is_not_waited_for() -> None:
    turn = turn_after(*WORKING, in_background(status="error"), done(), ENDED_WELL)
    assert turn.outcome == Outcome(TaskState.COMPLETED)


def test_nothing_is_said_after_the_outcome() -> None:
    turn = turn_after(*WORKING, opened("prt_a"), closed("prt_a", "Hi"), done(), Idle(ROOT))
    outcome = turn.outcome
    later: Sequence[AgentEvent] = (
        said("prt_a", "!"),
        permission("per_1"),
        begun("msg_50", 50),
        closed("prt_z", "late", message_id="msg_50"),
        done("msg_50", 50, finish=None, problem=PROBLEM),
        StepFinished(ROOT, ANSWER, "prt_f", Usage(1)),
        Gap(ROOT),
        Idle(ROOT),
        CaughtUp(ROOT),
    )
    assert feed(turn, *later) == []
    assert turn.outcome is outcome
    assert turn.usage == Usage()


# -- the end, after a gap


def test_after_a_gap_nothing_ends_until_what_is_stored_was_read() -> None:
    turn = turn_after(*WORKING, Gap(ROOT), done(), Idle(ROOT))
    assert (turn.outcome, turn.needs_reconcile, turn.in_doubt) == (None, True, True)
    feed(turn, begun("msg_30", 30), CaughtUp(ROOT))
    assert (turn.outcome, turn.needs_reconcile) == (None, False)  # there was a newer message
    feed(turn, done("msg_30", 30), Idle(ROOT))
    assert turn.outcome == Outcome(TaskState.COMPLETED)


def test_a_part_still_open_in_a_gap_is_not_void_before_it_was_read() -> None:
    turn = turn_after(*WORKING, opened("prt_a"), said("prt_a", "one "), Gap(ROOT))
    assert feed(turn, done()) == []
    assert feed(turn, closed("prt_a", "one two")) == [text("prt_a", "two", append=True, last=True)]
    answer = BlockPhase("prt_a", "answer")
    assert feed(turn, Idle(ROOT), CaughtUp(ROOT)) == [answer]
    assert turn.outcome == Outcome(TaskState.COMPLETED)


def test_a_run_found_idle_and_unfinished_twice_is_lost() -> None:
    turn = turn_after(*WORKING, Gap(ROOT), Idle(ROOT), CaughtUp(ROOT))
    assert turn.outcome is None
    feed(turn, Idle(ROOT), CaughtUp(ROOT))
    assert turn.outcome == Outcome(TaskState.FAILED, LOST.message, LOST)


def test_what_a_lost_run_left_open_is_closed_as_far_as_it_got() -> None:
    turn = turn_after(
        *WORKING,
        closed("prt_a", "whole"),
        *(opened("prt_b"), said("prt_b", "one "), tool("prt_c", "running")),
        *(opened("prt_d"), Gap(ROOT), Idle(ROOT), CaughtUp(ROOT)),
    )
    call = ToolCall("call_1", "bash", "error", error=CUT_SHORT)
    assert feed(turn, CaughtUp(ROOT)) == [
        text("prt_b", "", append=True, last=True),
        BlockTool("prt_c", ANSWER, call),
    ]


def test_a_void_block_of_a_lost_run_is_closed_too() -> None:
    turn = turn_after(*WORKING, opened("prt_a"), said("prt_a", "one "), retrying())
    feed(turn, Idle(ROOT), CaughtUp(ROOT))
    assert feed(turn, CaughtUp(ROOT)) == [text("prt_a", "", append=True, last=True)]


def test_a_prompt_that_never_arrived_has_not_begun() -> None:
    assert not turn_after(Idle(ROOT), CaughtUp(ROOT)).not_begun
    turn = turn_after(Idle(ROOT), CaughtUp(ROOT), Idle(ROOT), CaughtUp(ROOT))
    assert turn.not_begun
    assert turn.outcome is None


def test_a_lost_run_fails_with_the_error_it_was_lost_with() -> None:
    turn = turn_after(*WORKING, SessionErred(ROOT, PROBLEM), Idle(ROOT))
    feed(turn, CaughtUp(ROOT), CaughtUp(ROOT))
    assert turn.outcome == Outcome(TaskState.FAILED, PROBLEM.message, PROBLEM)


def test_an_error_that_a_run_survived_is_not_why_it_was_lost() -> None:
    turn = turn_after(*WORKING, SessionErred(ROOT, PROBLEM), begun("msg_30", 30))
    assert not turn.in_doubt
    feed(turn, Idle(ROOT), CaughtUp(ROOT), CaughtUp(ROOT))
    assert turn.outcome == Outcome(TaskState.FAILED, LOST.message, LOST)


@pytest.mark.parametrize("between", [Busy(ROOT), retrying(), Gap(ROOT)])
def test_only_two_idle_looks_in_a_row_mean_that_a_run_is_lost(between: AgentEvent) -> None:
    turn = turn_after(*WORKING, Idle(ROOT), CaughtUp(ROOT), between, Idle(ROOT), CaughtUp(ROOT))
    assert turn.outcome is None
    feed(turn, CaughtUp(ROOT))
    assert turn.outcome is not None
