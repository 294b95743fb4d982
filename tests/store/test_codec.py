"""Every update survives being stored: exactly, whatever a client or an agent put into it."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opencode_a2a.domain.events import BlockKind, ToolCall
from opencode_a2a.domain.task import Task, TaskHead
from opencode_a2a.domain.updates import (
    BlockFile,
    BlockOutput,
    BlockPhase,
    BlockText,
    BlockTool,
    ChangesMade,
    Continued,
    DecidedBy,
    DecisionRecord,
    Ended,
    InterruptAnswered,
    InterruptOpened,
    InterruptResolved,
    InterruptUnclear,
    LogEntry,
    MessageAdded,
    NodeLost,
    NodeReturned,
    PeerUsageAdded,
    Progress,
    PromptDone,
    Queued,
    RequestRecord,
    Retold,
    SessionTitled,
    Started,
    Update,
)
from opencode_a2a.domain.values import (
    AnsweredBy,
    CallPath,
    Choice,
    Data,
    Failure,
    FileBytes,
    FileChange,
    FileUrl,
    Message,
    ModelRef,
    PermissionAsk,
    PermissionDecision,
    Problem,
    Question,
    QuestionAsk,
    QuestionDecision,
    Role,
    SubAgent,
    TaskState,
    Text,
    TodoItem,
    Usage,
)
from opencode_a2a.errors import Internal
from opencode_a2a.store import codec
from tests.store.support import visible_state

# JSON as both edges read it: whole numbers of 64 bits, finite floats, no lone surrogates.
texts = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(
    ["", "👩‍👩‍👧‍👦", "\0", "\u2028", "NaN", "2026-01-31T12:00:00Z", '"\\']
)
integers = st.integers(-(2**63), 2**64 - 1)
json = st.recursive(
    st.none() | st.booleans() | integers | texts | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(texts, json, max_size=3)
maybe = st.none() | texts
counts = st.integers(0, 2**53)

about = (maybe, maybe, st.none() | objects)
parts = (
    st.builds(Text, texts, *about)
    | st.builds(Data, json, *about)
    | st.builds(FileBytes, texts, *about)
    | st.builds(FileUrl, texts, *about)
)
messages = st.builds(
    Message,
    texts,
    st.sampled_from(Role),
    st.lists(parts, max_size=3).map(tuple),
    st.none() | objects,
    st.lists(texts, max_size=2).map(tuple),
    st.lists(texts, max_size=2).map(tuple),
)
dollars = st.floats(0, 1e9, allow_nan=False) | st.integers(0, 5).map(float)
own_usages = st.builds(Usage, *[counts] * 5, dollars)
of_peers = st.dictionaries(texts, own_usages, max_size=2)
usages = st.builds(Usage, *[counts] * 5, dollars, counts, of_peers)
words = st.lists(texts).map(tuple)
subagents = st.none() | st.builds(SubAgent, texts, maybe, maybe)
answerers = st.none() | st.builds(AnsweredBy, st.builds(ModelRef, texts, texts), maybe, maybe)
permissions = st.builds(
    PermissionAsk,
    texts,
    texts,
    texts,
    words,
    maybe,
    maybe,
    maybe,
    maybe,
    words,
    maybe,
    subagent=subagents,
)
choices = st.lists(st.builds(Choice, texts, texts), max_size=2).map(tuple)
questions = st.builds(
    QuestionAsk,
    texts,
    texts,
    st.lists(
        st.builds(Question, texts, texts, choices, st.booleans(), st.booleans()), max_size=2
    ).map(tuple),
    maybe,
    subagents,
)
interrupts = permissions | questions
decisions = st.builds(
    PermissionDecision, st.sampled_from(["once", "always", "reject"]), maybe
) | st.builds(QuestionDecision, st.none() | st.lists(words, max_size=2).map(tuple))
calls = st.builds(
    ToolCall,
    texts,
    texts,
    st.sampled_from(["pending", "running", "completed", "error"]),
    maybe,
    maybe,
    st.none() | objects,
    maybe,
    maybe,
    st.none() | counts,
    st.none() | counts,
)
block_texts = st.builds(
    BlockText,
    texts.map("text {}".format),  # a block is one or the other
    texts,
    texts,
    st.sampled_from(BlockKind),
    texts,
    st.booleans(),
    st.booleans(),
)
todos = st.lists(st.builds(TodoItem, texts, texts, texts), max_size=3).map(tuple)
progress = st.builds(
    Progress,
    st.sampled_from(["step-start", "step-finish", "tool-call", "retry", "todo", "compaction"]),
    texts,
    maybe,
    st.none() | usages,
    st.none() | counts,
    st.none() | counts,
    maybe,
    st.none() | todos,
    maybe,
    subagents,
    maybe,
    maybe,
    maybe,
    st.none() | counts,
    st.none() | counts,
    answerers,
)
changes = st.builds(
    ChangesMade,
    st.lists(st.builds(FileChange, texts, counts, counts, texts, texts), max_size=3).map(tuple),
)
ends = st.builds(
    Ended,
    st.sampled_from([TaskState.COMPLETED, TaskState.CANCELED, TaskState.FAILED]),
    maybe,
    st.none() | st.builds(Problem, st.sampled_from(Failure), texts, st.none() | counts),
    st.none() | usages,
    maybe,
    texts,
    answerers,
)
UPDATES: dict[type[Update], st.SearchStrategy[Any]] = {
    MessageAdded: st.builds(
        MessageAdded, messages, maybe, path=st.builds(CallPath, st.integers(0, 99), texts)
    ),
    Queued: st.builds(Queued, maybe),
    NodeLost: st.builds(NodeLost, texts, counts),
    NodeReturned: st.just(NodeReturned()),
    Retold: st.just(Retold()),
    Started: st.builds(Started, texts, texts),
    Continued: st.builds(Continued, texts),
    PromptDone: st.builds(PromptDone, texts),
    SessionTitled: st.builds(SessionTitled, texts, texts),
    BlockText: block_texts,
    BlockTool: st.builds(BlockTool, texts.map("tool {}".format), texts, calls),
    BlockOutput: st.builds(BlockOutput, texts.map("tool {}".format), texts, texts, texts, counts),
    BlockFile: st.builds(BlockFile, texts.map("file {}".format), texts, parts),
    BlockPhase: st.builds(
        BlockPhase,
        texts.map("text {}".format),
        st.sampled_from(["commentary", "answer"]),
    ),
    Progress: progress,
    PeerUsageAdded: st.builds(PeerUsageAdded, texts, usages),
    RequestRecord: st.builds(RequestRecord, interrupts),
    DecisionRecord: st.builds(
        DecisionRecord,
        interrupts,
        texts,
        st.sampled_from(get_args(DecidedBy)),
        st.none() | decisions,
    ),
    InterruptOpened: st.builds(InterruptOpened, interrupts, st.none() | counts),
    InterruptUnclear: st.builds(InterruptUnclear, interrupts, texts, st.none() | counts),
    InterruptAnswered: st.builds(InterruptAnswered, interrupts, decisions, texts, counts, words),
    InterruptResolved: st.builds(InterruptResolved, interrupts, texts, counts),
    ChangesMade: changes,
    Ended: ends,
}
updates = st.one_of(*UPDATES.values())
fewer = settings(max_examples=25)


def kinds(value: object) -> object:
    """A value with the type of everything in it: 1, 1.0 and True are not the same to a client."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        inner = [kinds(getattr(value, field.name)) for field in dataclasses.fields(value)]
        return type(value), inner
    if isinstance(value, dict):
        return dict, [(key, kinds(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [kinds(item) for item in value]
    return type(value), value


def test_every_kind_of_update_is_tried() -> None:
    assert set(UPDATES) == set(get_args(Update))


@pytest.mark.parametrize("kind", UPDATES, ids=lambda kind: kind.__name__)
@fewer
@given(data=st.data())
def test_an_update_comes_back_as_it_was(kind: type[Update], data: st.DataObject) -> None:
    update = data.draw(UPDATES[kind])
    entry = codec.decode(7, 1_000, *codec.encode(update))
    assert entry == LogEntry(7, 1_000, update)
    assert kinds(entry.update) == kinds(update)


@fewer
@given(story=st.lists(updates, max_size=12), end=ends)
def test_a_finished_task_comes_back_as_it_was(story: list[Update], end: Ended) -> None:
    updates = [update for update in story if not isinstance(update, Ended)] + [end]
    head = TaskHead("t", "c", "alice", 1_000)
    task = Task.of(head, [LogEntry(n, 1_000 + n, update) for n, update in enumerate(updates, 1)])
    again = codec.unfold(head, codec.fold(task))
    assert visible_state(again) == visible_state(task)
    assert kinds(again.history) == kinds(task.history)


def test_what_an_earlier_version_wrote_is_read() -> None:
    usage = (
        b'{"input_tokens":7,"output_tokens":3,"reasoning_tokens":0,"cache_read_tokens":0,'
        b'"cache_write_tokens":0,"cost":0.30000000000000004}'
    )
    step = b'{"type":"step-start","status":"started","part_id":"prt_1","usage":null}'
    end = b'{"state":"canceled","message":"Canceled.","usage":%b,"session":"ses_1"}' % usage
    assert codec.decode(1, 1, "Progress", step).update == Progress(
        "step-start", "started", part_id="prt_1"
    )
    ended = codec.decode(2, 2, "Ended", end).update
    assert isinstance(ended, Ended)
    assert ended.usage == Usage(7, 3, cost=0.30000000000000004)
    message = b'{"message":{"message_id":"m","role":"user","parts":[]},"upstream_id":"msg_1"}'
    added = codec.decode(3, 3, "MessageAdded", message).update
    assert added == MessageAdded(Message("m", Role.USER, ()), "msg_1", path=CallPath(0, ""))


def test_depth_that_can_be_stored_can_be_read() -> None:
    deep: list[Any] = []
    depth = 0
    while True:
        update = BlockTool("b", "m", ToolCall("c", "t", "running", input={"deep": deep}))
        try:
            kind, body = codec.encode(update)
        except Internal:
            break
        depth += 1
        assert codec.decode(1, 1, kind, body).update == update
        deep = [deep]
    assert depth > 100


@pytest.mark.parametrize("value", ["\ud83d", 2**64, object(), {1: "not a name"}])
def test_what_is_no_json_is_refused_in_our_own_words(value: object) -> None:
    update = BlockTool("b", "m", ToolCall("c", "t", "running", input={"value": value}))
    with pytest.raises(Internal):
        codec.encode(update)


def test_a_call_that_was_stored_whole_each_time_is_still_read() -> None:
    """Earlier versions wrote a row with all of the output for everything that a tool printed."""
    row = (
        '{"block_id":"prt_1","message_id":"msg_1","call":{"call_id":"call_1","tool":"bash",'
        '"status":"%s","title":null,"subtitle":null,"input":{"command":"make"},"output":%s,'
        '"error":null}}'
    )
    told = [("running", "null"), ("running", '"a"'), ("running", '"ab"'), ("completed", '"abc"')]
    entries = [
        codec.decode(seq, 7, "BlockTool", (row % each).encode()) for seq, each in enumerate(told, 1)
    ]
    task = Task.of(TaskHead("t", "c", "alice", 5), entries[:3])
    assert (call := task.blocks["prt_1"].call) is not None
    assert call.output == "ab"
    more = BlockOutput("prt_1", "call_1", "bash", "c", start=2)
    task.apply(LogEntry(4, 7, more))  # this version goes on with it
    assert task.blocks["prt_1"].call == dataclasses.replace(call, output="abc")
    task.apply(dataclasses.replace(entries[3], seq=5))
    assert task.blocks["prt_1"].call == ToolCall(
        "call_1", "bash", "completed", input={"command": "make"}, output="abc"
    )


def test_rows_of_versions_that_did_not_say_who_are_still_read() -> None:
    """Who asked, who decided, what answered, and when a call began were added later."""
    ask = (
        '{"request_id":"per_1","session":"ses_1","permission":"bash","patterns":["ls"],'
        '"command":"ls","filepath":null,"diff":null,"title":null,"always":[],"call_id":"call_1",'
        '"arguments":null}'
    )
    rows = [
        ("InterruptOpened", f'{{"interrupt":{ask},"expires_at":9}}'),
        (
            "InterruptAnswered",
            f'{{"interrupt":{ask},"decision":{{"reply":"once","message":null}},'
            '"resolution":"once","still_open":0,"grants":[]}',
        ),
        (
            "Ended",
            '{"state":"completed","message":null,"problem":null,"usage":null,"session":"ses_1",'
            '"title":"t"}',
        ),
    ]
    entries = [codec.decode(seq, 7, kind, row.encode()) for seq, (kind, row) in enumerate(rows, 1)]
    head = TaskHead("t", "c", "alice", 5)
    task = codec.unfold(head, codec.fold(Task.of(head, entries)))
    assert (task.state, task.ended and task.ended.answered_by) == (TaskState.COMPLETED, None)
    [asked] = [entry.update for entry in task.history]
    assert isinstance(asked, RequestRecord)
    assert asked.interrupt.subagent is None
