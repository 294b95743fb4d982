"""What a client gets to see, where that needs no service."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from typing import Any

import pytest

from opencode_a2a.domain.events import BlockKind
from opencode_a2a.domain.task import Task, TaskHead
from opencode_a2a.domain.turn import LOST
from opencode_a2a.domain.updates import (
    BlockPhase,
    BlockText,
    DecisionRecord,
    Ended,
    InterruptAnswered,
    InterruptOpened,
    InterruptResolved,
    InterruptUnclear,
    LogEntry,
    MessageAdded,
    PeerUsageAdded,
    Progress,
    Queued,
    RequestRecord,
    Started,
    Update,
)
from opencode_a2a.domain.values import (
    Failure,
    Message,
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
    Usage,
    WorktreeRef,
)
from opencode_a2a.inbound.dialect import V03, V03_REST, V1, Dialect
from opencode_a2a.inbound.events import TaskEvents
from opencode_a2a.inbound.render import Renderer
from opencode_a2a.store import codec


def test_noise_that_an_earlier_version_stored_is_not_shown() -> None:
    ended = Ended(TaskState.CANCELED, usage=Usage(1, 2, cost=0.1 + 0.2, unreported_steps=1))
    task = Task.of(TaskHead("t", "c", "alice", 1), [LogEntry(1, 1, ended)])
    assert Renderer(V1).task(task)["metadata"]["shared"]["usage"] == {
        "input_tokens": 1,
        "output_tokens": 2,
        "total_tokens": 3,
        "cost": 0.3,
        "unreported_steps": 1,
    }


@pytest.mark.parametrize("hints", [False, True])
def test_what_peers_have_used_is_shown_under_their_names(*, hints: bool) -> None:
    head, render = TaskHead("t", "c", "alice", 1), Renderer(V1, hints=hints)
    called = LogEntry(1, 1, PeerUsageAdded("reviewer", Usage(3, 4, cost=0.5)))
    usage = Usage(1, 2, peers={"reviewer": Usage(3, 4, cost=0.5)})
    ended = LogEntry(2, 1, Ended(TaskState.COMPLETED, usage=usage))
    own = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
    theirs = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7, "cost": 0.5}
    assert render.event(head, called, TaskState.WORKING) is None
    last = render.event(head, ended, TaskState.COMPLETED, last=True)
    assert last is not None
    for shown in (
        render.task(Task.of(head, [called, ended])),
        json.loads(last)["statusUpdate"],
    ):
        assert shown["metadata"]["shared"]["usage"] == {**own, "peers": {"reviewer": theirs}}
    running = render.task(Task.of(head, [called]))["metadata"]["shared"]["usage"]
    assert running["peers"] == {"reviewer": theirs}


@pytest.mark.parametrize(("hints", "limit"), [(False, 260), (True, 380)])
def test_little_goes_out_around_a_chunk(*, hints: bool, limit: int) -> None:
    head = TaskHead(str(uuid.uuid4()), str(uuid.uuid4()), "alice", 1)
    ids = ("prt_1e9b19b06001Bl966k2nVXwKQl", "msg_1e9b192b00016v6G6gseUPMvwA")
    chunk = BlockText(ids[0], ids[1], ids[0], BlockKind.TEXT, "", append=True)
    event = Renderer(V1, hints=hints).event(head, LogEntry(1000, 1, chunk), TaskState.WORKING)
    assert event is not None
    assert len(b"id: 1000\ndata: %b\n\n" % event) <= limit


def test_an_event_is_one_line_for_every_reader_and_says_the_same() -> None:
    text = "a\x85b\u2028c\u2029d\u2019e\n\r\x0b\x0c\x1c"
    head = TaskHead("t", "c", "alice", 1)
    chunk = BlockText("prt_1", "msg_1", "prt_1", BlockKind.TEXT, text, append=False)
    renderer, entry = Renderer(V1), LogEntry(1, 1, chunk)
    event = renderer.event(head, entry, TaskState.WORKING)
    assert event is not None
    first = renderer.first(Task.of(head, [entry]))
    for encoded, artifact in (
        (event, json.loads(event)["artifactUpdate"]["artifact"]),
        (first, json.loads(first)["task"]["artifacts"][0]),
    ):
        assert len(encoded.decode().splitlines()) == 1
        assert artifact["parts"] == [{"text": text}]


@pytest.mark.parametrize("dialect", [V1, V03, V03_REST], ids=lambda dialect: dialect.name)
def test_a_diff_stands_once_in_a_task_and_its_events(dialect: Dialect) -> None:
    diff = "".join(f"+line {n}\n" for n in range(2_000))
    ask = PermissionAsk("per_1", "ses_1", "edit", ("a.txt",), filepath="a.txt", diff=diff)
    opened = LogEntry(1, 1, InterruptOpened(ask))
    resolved = LogEntry(2, 1, InterruptResolved(ask, "once"))
    head = TaskHead("t", "c", "alice", 1)
    render = Renderer(dialect, hints=True)
    shown = [json.dumps(render.task(Task.of(head, [opened])))]
    for entry in (opened, resolved):
        event = render.event(head, entry, TaskState.INPUT_REQUIRED)
        assert event is not None
        shown.append(event.decode())
    assert [text.count("+line 1000\\n") for text in shown] == [1, 1, 0]


ASKS = LogEntry(1, 1, InterruptOpened(PermissionAsk("per_1", "ses_1", "bash", ("ls",))))
SAYS = BlockText("b", "m", "b", BlockKind.TEXT, "text", append=False)


class Pages:
    """A cursor that has read these pages."""

    def __init__(self, *pages: list[LogEntry]) -> None:
        self._pages = list(pages)
        self.caught_up = False

    def change(self) -> None:
        return None

    async def read(self) -> list[LogEntry]:
        page = self._pages.pop(0)
        self.caught_up = not self._pages
        return page


def _unwrapped(event: dict[str, Any]) -> dict[str, Any]:
    (body,) = event.values() if len(event) == 1 else (event,)
    return body


@pytest.mark.parametrize("dialect", [V1, V03, V03_REST], ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("hidden", [True, False])
async def test_a_stream_that_ends_after_the_page_with_the_request_says_so(
    dialect: Dialect, *, hidden: bool
) -> None:
    later: Update = Progress("step-start", "started") if hidden else SAYS
    render, head = Renderer(dialect), TaskHead("t", "c", "alice", 1)
    task = Task(head, state=TaskState.WORKING)
    pages = Pages([ASKS], [LogEntry(2, 1, later)])
    events = TaskEvents(render, task, first=b"{}", cursor=pages)
    seen = []
    while (found := await events.read()) is not None:
        several = [found] if isinstance(found, tuple) else found
        seen += [(seq, _unwrapped(json.loads(data))) for seq, data in several]
    assert [seq for seq, _ in seen] == ([1, 2] if hidden else [1, 2, 2])
    assert seen[-1][1]["status"]["state"] == dialect.states[TaskState.INPUT_REQUIRED]
    if dialect.version == "0.3":
        assert [event.get("final") for _, event in seen if "status" in event] == [False, True]


def test_what_is_sent_to_continue_a_task_answers_no_other() -> None:
    lost = Problem(Failure.UPSTREAM_INTERRUPTED, "OpenCode was interrupted.", resumable=True)
    ended = LogEntry(1, 1, Ended(TaskState.FAILED, problem=lost))
    shown = Renderer(V1).task(Task.of(TaskHead("t", "c", "alice", 1), [ended]))
    resume = shown["metadata"]["opencode"]["resume"]
    assert resume["message"]["contextId"] == "c"
    assert resume["metadata"] == {"opencode": {"newTask": True}}


def test_what_a_client_does_not_see_costs_one_look_however_many_read() -> None:
    entry = LogEntry(1, 1, Progress("step-start", "started"))
    head = TaskHead("t", "c", "alice", 1)
    plain = Renderer(V1)
    assert plain.event(head, entry, TaskState.WORKING) is None
    assert entry.encoded == {plain.form: b""}
    hinted = Renderer(V1, hints=True)
    assert hinted.form != plain.form
    assert hinted.event(head, entry, TaskState.WORKING) is not None


def test_a_task_names_its_worktree_from_its_start_on_beside_how_it_ended() -> None:
    worktree = WorktreeRef("a2a/fix-1f", "/trees/fix-1f", base="c0ffee")  # of a detached HEAD
    mark = {"branch": "a2a/fix-1f", "directory": "/trees/fix-1f", "base": "c0ffee"}
    queued = LogEntry(1, 1, Queued())
    started = LogEntry(2, 1, Started("ses_1", "title", worktree=worktree))
    end = Ended(TaskState.FAILED, problem=LOST, session="ses_1", title="new title")
    head = TaskHead("t", "c", "alice", 1)
    render = Renderer(V1)
    assert "worktree" not in json.dumps(render.task(Task.of(head, [queued])))
    event = json.loads(render.event(head, started, TaskState.WORKING) or b"")
    assert event["statusUpdate"]["metadata"]["opencode"] == {"worktree": mark}
    task = Task.of(head, [queued, started, LogEntry(3, 1, end)])
    for shown in (task, Task.of(head, task.compacted())):
        marks = render.task(shown)["metadata"]["opencode"]
        assert marks.keys() == {"error", "resume", "worktree"}
        assert marks["worktree"] == mark


ASK = PermissionAsk("per_1", "ses_2", "bash", ("ls",), "ls", subagent=SubAgent("ses_2", "explore"))
WHICH = QuestionAsk("que_1", "ses_1", (Question("Pick", "Which one?"),))


def said(text: str) -> MessageAdded:
    return MessageAdded(Message(text, Role.USER, (Text(text),)), None)


def history(task: Task, *, hints: bool = True, length: int | None = None) -> list[str]:
    shown = Renderer(V1, hints=hints).task(task, history_length=length).get("history", [])
    return [f"{m['role'][5:].lower()}: {m['parts'][0]['text'].splitlines()[0]}" for m in shown]


def test_the_history_tells_what_was_asked_and_how_it_was_decided_in_order() -> None:
    once = PermissionDecision("once")
    answers = QuestionDecision((("A", "B"), ("own words",)))
    updates: list[Update] = [
        said("do it"),
        InterruptOpened(ASK),
        said("hm?"),
        InterruptUnclear(ASK, "Not understood."),
        said("yes"),
        InterruptAnswered(ASK, once, "once", by="message"),
        InterruptResolved(ASK, "once"),
        InterruptOpened(WHICH),
        InterruptAnswered(WHICH, answers, "answered", by="method"),
        InterruptResolved(WHICH, "answered"),
        RequestRecord(ASK),
        DecisionRecord(ASK, "once", by="rule", decision=once),
        InterruptOpened(replace(ASK, request_id="per_2")),
        InterruptResolved(replace(ASK, request_id="per_2"), "reject"),
        InterruptOpened(replace(ASK, request_id="per_3")),
        InterruptAnswered(
            replace(ASK, request_id="per_3"), PermissionDecision("reject"), "expired", by="expiry"
        ),
        InterruptOpened(replace(ASK, request_id="per_4")),
    ]
    head = TaskHead("t", "c", "alice", 1)
    entries = [LogEntry(n, n, update) for n, update in enumerate(updates, 1)]
    task = Task.of(head, entries)
    permission = "agent: The sub-agent explore asks for permission: bash"
    told = [
        "user: do it",
        permission,
        "user: hm?",
        "user: yes",
        "agent: The agent asks:",
        "agent: Answered by the caller: A, B",
        permission,
        "agent: Allowed once, by a rule of this context.",
        permission,
        "agent: Refused outside this service.",
        permission,
        "agent: Refused: nobody answered in time.",
    ]
    assert history(task) == told, "what is open is in the status"
    assert history(task, length=2) == told[-2:]
    assert history(task, length=0) == []
    assert history(task, hints=False) == ["user: do it", "user: hm?", "user: yes"]
    task.apply(LogEntry(99, 99, Ended(TaskState.CANCELED)))
    again = codec.unfold(head, codec.fold(task))
    assert history(again) == history(task) == [*told, permission]
    shown = Renderer(V1, hints=True).task(again)["history"]
    assert len({message["messageId"] for message in shown}) == len(shown)
    decided = shown[5]["metadata"]["shared"]["interrupt"]
    assert (decided["request_id"], decided["by"], decided["resolution"]) == (
        "que_1",
        "method",
        "answered",
    )


def test_a_task_and_its_events_say_what_a_text_is() -> None:
    head = TaskHead("t", "c", "alice", 1)
    log = [
        LogEntry(1, 1, BlockText("prt_1", "msg_1", "prt_1", BlockKind.TEXT, "Hm.", append=False)),
        LogEntry(2, 1, BlockPhase("prt_1", "commentary")),
    ]
    assert Renderer(V1).event(head, log[1], TaskState.WORKING) is None
    render = Renderer(V1, hints=True)
    event = render.event(head, log[1], TaskState.WORKING)
    assert event is not None
    update = json.loads(event)["statusUpdate"]
    assert update["metadata"]["shared"]["progress"] == {
        "type": "phase",
        "status": "commentary",
        "artifact_id": "prt_1",
    }
    for task in (whole := Task.of(head, log)), codec.unfold(head, codec.fold(whole)):
        [artifact] = render.task(task)["artifacts"]
        assert artifact["metadata"]["shared"]["stream"]["phase"] == "commentary"
