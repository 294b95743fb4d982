"""A task is the fold of its log."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from opencode_a2a.domain.events import BlockKind, ToolCall
from opencode_a2a.domain.task import Task
from opencode_a2a.domain.updates import (
    BlockText,
    BlockTool,
    ChangesMade,
    Ended,
    InterruptOpened,
    InterruptResolved,
    LogEntry,
    MessageAdded,
    PeerUsageAdded,
    Progress,
    Started,
    Update,
)
from opencode_a2a.domain.values import (
    CallPath,
    FileChange,
    Message,
    PermissionAsk,
    Role,
    SessionRef,
    TaskState,
    Text,
    Usage,
)
from tests.domain.logs import HEAD, STEADY, endings, entries, folded, logs, running, visible

ASK = PermissionAsk("per_1", "ses_1", "bash")
DONE = Ended(TaskState.COMPLETED)


def text(said: str, append: bool = True, block: str = "b1", last: bool = False) -> BlockText:
    return BlockText(block, "m1", block, BlockKind.TEXT, said, append, last)


def tool(status: str, block: str = "t1") -> BlockTool:
    call = ToolCall("call", "bash", "completed" if status == "completed" else "running")
    return BlockTool(block, "m1", call)


def step(usage: Usage) -> Progress:
    return Progress("step-finish", "completed", usage=usage)


def test_a_task_nobody_has_said_anything_about_is_submitted() -> None:
    task = folded([])
    assert (task.state, task.status_at, task.last_seq) == (TaskState.SUBMITTED, 5, 0)


def test_the_state_and_its_time_are_those_of_the_last_update_that_changed_it() -> None:
    log: list[tuple[int, Update]] = [
        (10, Started("ses_1", "title")),
        (20, text("Hi", append=False)),
        (30, InterruptOpened(ASK)),
        (40, text(" you")),
    ]
    task = Task.of(HEAD, [LogEntry(n, at, update) for n, (at, update) in enumerate(log, 1)])
    assert (task.state, task.status_at) == (TaskState.INPUT_REQUIRED, 30)
    assert (task.session, task.last_seq) == (SessionRef("ses_1", "title"), 4)


def test_blocks_keep_the_order_in_which_they_appeared() -> None:
    updates: list[Update] = [
        text("a", append=False),
        tool("running"),
        text("b", False, "b2"),
        text("c"),
    ]
    task = folded([*updates, tool("completed")])
    assert [(b.id, b.text, b.last) for b in task.visible_blocks()] == [
        ("b1", "ac", False),
        ("t1", "", True),
        ("b2", "b", False),
    ]


def test_a_replaced_block_says_only_the_new_text() -> None:
    task = folded([text("old", append=False), text("er"), text("new", append=False, last=True)])
    assert [(b.text, b.last) for b in task.visible_blocks()] == [("new", True)]


def test_an_emptied_block_is_not_visible() -> None:
    assert folded([text("void", append=False), text("", append=False)]).visible_blocks() == []


def test_a_tool_call_is_as_it_was_last_reported() -> None:
    (block,) = folded([tool("running"), tool("completed")]).visible_blocks()
    assert block.call is not None
    assert (block.call.status, block.kind) == ("completed", BlockKind.TOOL_CALL)


def test_interrupts_are_open_until_they_are_resolved() -> None:
    other = PermissionAsk("per_2", "ses_1", "edit")
    opened = [InterruptOpened(ASK), InterruptOpened(other)]
    assert folded(opened).open_interrupts == [ASK, other]
    resolved = InterruptResolved(ASK, "once", still_open=1)
    assert folded([*opened, resolved]).open_interrupts == [other]


def test_messages_are_kept_in_order() -> None:
    first, second = (Message(name, Role.USER, (Text(name),)) for name in ("one", "two"))
    task = folded([MessageAdded(first, "msg_1"), text("Hi", False), MessageAdded(second, "msg_2")])
    assert task.messages == [first, second]


def test_usage_is_summed_step_by_step_until_the_end_gives_the_total() -> None:
    steps = [step(Usage(5, 1)), step(Usage(6, 2))]
    assert folded(steps).usage == Usage(11, 3)
    assert folded([*steps, DONE]).usage == Usage(11, 3)
    assert folded([*steps, replace(DONE, usage=Usage(20, 4))]).usage == Usage(20, 4)


def test_what_peers_have_used_adds_up_under_their_names() -> None:
    calls: list[Update] = [PeerUsageAdded("b", Usage(3)), step(Usage(5))]
    calls.append(PeerUsageAdded("b", Usage(4)))
    assert folded(calls).usage == Usage(5, peers={"b": Usage(7)})
    assert folded([*calls, DONE]).usage == Usage(5, peers={"b": Usage(7)})


def test_the_deepest_call_path_of_its_messages_is_the_tasks() -> None:
    said = Message("m", Role.USER, (Text("hello"),))
    sent = [CallPath(0, "a"), CallPath(2, "b"), CallPath(2, "c"), CallPath(1, "d")]
    added = [MessageAdded(said, f"msg_{n}", path=path) for n, path in enumerate(sent)]
    assert folded(added[:1]).path == CallPath(0, "a")
    assert folded(added).path == CallPath(2, "b")
    assert Task.of(HEAD, folded([*added, DONE]).compacted()).path == CallPath(2, "b")


def test_the_first_terminal_state_wins() -> None:
    ended: list[Update] = [Started("ses_1"), text("Hi", False), InterruptOpened(ASK), DONE]
    late: list[Update] = [
        Ended(TaskState.FAILED, "too late"),
        Started("ses_2"),
        text(" you"),
        tool("running"),
        InterruptOpened(ASK),
        ChangesMade((FileChange("a", 1, 0, "added"),)),
        step(Usage(1)),
        MessageAdded(Message("m", Role.USER, ()), "msg_9"),
    ]
    task = folded([*ended, *late])
    assert task == folded(ended)
    assert (task.state, task.open_interrupts, task.last_seq) == (TaskState.COMPLETED, [], 4)


def test_the_end_may_name_the_session_and_its_title() -> None:
    ended = replace(DONE, session="ses_1", title="at last")
    assert folded([Started("ses_1"), ended]).session == SessionRef("ses_1", "at last")


def test_a_compacted_log_has_one_entry_for_each_block() -> None:
    pieces: list[Update] = [
        text("a", False),
        text("b"),
        tool("running"),
        text("c", last=True),
        tool("completed"),
    ]
    compacted = folded([Started("ses_1"), *pieces, DONE]).compacted()
    assert [entry.update for entry in compacted] == [
        Started("ses_1"),
        text("abc", append=False, last=True),
        tool("completed"),
        DONE,
    ]


@STEADY
@given(running, endings)
def test_a_compacted_log_folds_to_the_same_task(updates: list[Update], end: Ended) -> None:
    task = folded([*updates, end])
    again = Task.of(HEAD, task.compacted())
    assert visible(again) == visible(task)
    assert again.last_seq == task.last_seq
    assert [b.seq for b in again.visible_blocks()] == [b.seq for b in task.visible_blocks()]
    assert again.compacted() == task.compacted()


@STEADY
@given(running, running, endings)
def test_a_log_compacted_half_way_ends_as_the_whole_one(
    before: list[Update], after: list[Update], end: Ended
) -> None:
    half = folded(before)
    rest = entries([*after, end], first=half.last_seq + 1)
    whole = visible(folded([*before, *after, end]))
    pieced = visible(Task.of(HEAD, [*half.compacted(), *rest]))
    # A block that was empty half way and is not at the end counts from then on.
    whole["blocks"].sort(key=lambda block: block[0])
    pieced["blocks"].sort(key=lambda block: block[0])
    assert pieced == whole


@STEADY
@given(logs(), st.data())
def test_folding_may_pause_anywhere(updates: list[Update], data: st.DataObject) -> None:
    pause = data.draw(st.integers(0, len(updates)))
    log = entries(updates)
    task = Task.of(HEAD, log[:pause])
    assert all(block.text is not None for block in task.visible_blocks())  # reading joins pieces
    for entry in log[pause:]:
        task.apply(entry)
    assert visible(task) == visible(folded(updates))


@STEADY
@given(logs(), st.data())
def test_a_snapshot_stays_as_it_is_while_the_task_goes_on(
    updates: list[Update], data: st.DataObject
) -> None:
    moments = data.draw(st.sets(st.integers(0, len(updates)), max_size=4))
    log, task = entries(updates), Task(HEAD, status_at=HEAD.created_at)
    snapshots: dict[int, Task] = {0: task.snapshot()} if 0 in moments else {}
    for n, entry in enumerate(log, 1):
        task.apply(entry)
        if n in moments:
            snapshots[n] = task.snapshot()
    assert task == Task.of(HEAD, log)
    for n, snapshot in snapshots.items():
        assert snapshot == Task.of(HEAD, log[:n])


@STEADY
@given(logs(), st.data())
def test_a_snapshot_can_go_on_by_itself(updates: list[Update], data: st.DataObject) -> None:
    pause = data.draw(st.integers(0, len(updates)))
    log = entries(updates)
    task = Task.of(HEAD, log[:pause])
    ahead = task.snapshot()
    for entry in log[pause:]:
        ahead.apply(entry)
    assert ahead == Task.of(HEAD, log)
    assert task == Task.of(HEAD, log[:pause])
