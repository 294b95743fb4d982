"""The output of a running tool call: told once, piece by piece, and whole in the end."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opencode_a2a.domain.blocks import LATEST_OUTPUT, LONGEST_OUTPUT, Blocks
from opencode_a2a.domain.events import ToolCall, ToolSnapshot
from opencode_a2a.domain.task import Task, TaskHead
from opencode_a2a.domain.updates import BlockOutput, BlockTool, LogEntry, Update, coalesce
from opencode_a2a.domain.values import OutputModes, TaskState
from opencode_a2a.inbound.dialect import V1
from opencode_a2a.inbound.render import Renderer
from tests.domain.logs import HEAD, STEADY

WINDOW = 3_000  # characters that the agent tells of the output of a running call: its latest
HINTS = Renderer(V1, hints=True)


def snapshot(output: str | None, status: Any = "running", **more: Any) -> ToolSnapshot:
    command = {"command": "make"}
    call = ToolCall("call_1", "bash", status, input=command, output=output, **more)
    return ToolSnapshot("ses_1", "msg_1", "prt_1", call)


class Log:
    """What is stored of one call, told by an agent and by processes that come and go."""

    def __init__(self, head: TaskHead = HEAD) -> None:
        self.entries: list[LogEntry] = []
        self.task = Task(head)
        self._blocks = Blocks()

    def tell(self, *events: ToolSnapshot) -> list[Update]:
        """The updates of events that are committed together."""
        updates = coalesce([u for event in events for u in self._blocks.on_tool(event)])
        for update in updates:
            entry = LogEntry(len(self.entries) + 1, 7, update)
            self.entries.append(entry)
            self.task.apply(entry)
        return updates

    def restart(self) -> None:
        self._blocks = Blocks()
        self._blocks.resume(self.task)

    @property
    def output(self) -> str:
        call = self.task.blocks["prt_1"].call
        assert call is not None
        return call.output or ""

    def as_of(self, seq: int) -> Task:
        return Task.of(self.task.head, self.entries[:seq])


class Client:
    """Keeps artifacts as A2A says: a piece adds its part, anything else replaces the artifact."""

    def __init__(self, task: Task) -> None:
        self._head = task.head
        self.parts: list[dict[str, Any]] = []
        for artifact in HINTS.task(task)["artifacts"]:
            self.parts = artifact["parts"]

    def read(self, entries: Iterable[LogEntry]) -> Client:
        for entry in entries:
            encoded = HINTS.event(self._head, entry, TaskState.WORKING)
            assert encoded is not None
            event = json.loads(encoded)["artifactUpdate"]
            parts = event["artifact"]["parts"]
            if event.get("append"):
                if "data" in parts[0]:
                    assert parts[0]["data"]["output_start"] == len(self.output)
                self.parts = self.parts + parts
            else:
                self.parts = parts
        return self

    @property
    def output(self) -> str:
        return "".join(part["data"].get("output", "") for part in self.parts)

    @property
    def text(self) -> str:
        return "".join(part["text"] for part in self.parts)


lines = st.integers(0, 400).map(lambda n: f"{n} " * (n % 7) + "\n" * (n % 2))
steps = st.lists(st.lists(lines, min_size=1, max_size=4) | st.just("restart"), max_size=40)


@STEADY
@given(steps, st.data())
def test_what_a_client_puts_together_is_what_was_printed(
    steps: list[list[str] | str], data: st.DataObject
) -> None:
    """With restarts, lost events, and a client that comes back in the middle."""
    log, printed = Log(), ""
    log.tell(snapshot(None))
    for step in steps:
        if isinstance(step, str):
            log.restart()
            continue
        events = []
        for line in step:
            printed += line
            events.append(snapshot(printed[-WINDOW:]))
        log.tell(*events)
        assert log.output == printed or len(printed) > WINDOW
        assert log.output.endswith(printed[-WINDOW:])
    came_back = data.draw(st.integers(0, len(log.entries)))
    for seq in (0, came_back):
        client = Client(log.as_of(seq)).read(log.entries[seq:])
        assert client.output == log.output
    ended = log.tell(snapshot(printed, "completed", title="make"))
    assert [type(update) for update in ended] == [BlockTool]
    assert Client(log.as_of(came_back)).read(log.entries[came_back:]).output == printed


def test_a_tool_that_prints_twenty_kilobytes_costs_about_as_much() -> None:
    log, printed = Log(), ""
    log.tell(snapshot(None))
    for step in range(200):
        printed += f"{step:04} " + "x" * 95
        (piece,) = log.tell(snapshot(printed))
        assert isinstance(piece, BlockOutput)
    outputs = [e.update.output for e in log.entries if isinstance(e.update, BlockOutput)]
    assert "".join(outputs) == printed


def test_an_endless_output_keeps_its_latest_part() -> None:
    log, printed = Log(), ""
    for step in range(3 * LONGEST_OUTPUT // 1_000):
        printed += f"{step:06} " * 143
        log.tell(snapshot(printed[-30_000:]))
        assert len(log.output) <= LONGEST_OUTPUT
        assert printed.endswith(log.output)
        assert len(log.output) >= min(len(printed), LATEST_OUTPUT)
    told = sum(len(_output(entry.update)) for entry in log.entries)
    assert told < 1.2 * len(printed)


def _output(update: Update) -> str:
    if isinstance(update, BlockOutput):
        return update.output
    assert isinstance(update, BlockTool)
    return update.call.output or ""


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (snapshot("5"), snapshot("15")),  # rewritten
        (snapshot("x" * 500), snapshot("y" * 500)),
        (snapshot("a"), snapshot("ab", title="make")),  # something else has changed, too
        (snapshot("a"), snapshot("a", "error", error="it broke")),
    ],
)
def test_anything_but_more_output_shows_the_call_whole(
    before: ToolSnapshot, now: ToolSnapshot
) -> None:
    log = Log()
    log.tell(before)
    assert log.tell(now) == [BlockTool("prt_1", "msg_1", now.call)]


def test_what_is_older_than_what_was_told_changes_nothing() -> None:
    log = Log()
    log.tell(snapshot("one\ntwo\n"))
    assert log.tell(snapshot(None), snapshot("one\n"), snapshot("one\ntwo\n")) == []
    (more,) = log.tell(snapshot("one\ntwo\nthree\n"))
    assert more == BlockOutput("prt_1", "call_1", "bash", "three\n", start=8)


def test_a_client_that_takes_text_only_puts_the_same_text_together() -> None:
    log = Log(TaskHead("t", "c", "alice", 1, OutputModes(("text/plain",))))
    log.tell(snapshot(None))
    log.tell(snapshot("one\n"))
    log.tell(snapshot("one\ntwo\n"))
    assert Client(log.as_of(0)).read(log.entries).text == Client(log.task).text
    assert Client(log.task).text == "[bash] running\none\ntwo\n"


def test_the_first_start_of_a_call_counts_however_often_it_begins() -> None:
    """Before 1.18, OpenCode said with each report of a running call that it starts now."""
    log = Log()
    log.tell(snapshot(None, "pending"))
    log.tell(snapshot(None, started_at=5))
    [more] = log.tell(snapshot("a", started_at=8))
    assert isinstance(more, BlockOutput), "and it is not told whole because of that"
    log.restart()
    log.tell(snapshot("ab", "completed", started_at=8, ended_at=9))
    call = log.task.blocks["prt_1"].call
    assert call is not None
    assert (call.started_at, call.ended_at) == (5, 9)
    assert call.told()["started_at"] == "1970-01-01T00:00:00.005Z"
