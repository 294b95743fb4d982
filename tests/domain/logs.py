"""Logs to fold: any updates in any order, and what a client can ask of the result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from hypothesis import settings
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
    FileBytes,
    FileChange,
    Message,
    PermissionAsk,
    Role,
    TaskState,
    Text,
    Usage,
)

STEADY = settings()  # of the profile in tests/conftest.py: the same examples in every ordinary run
HEAD = TaskHead("task", "context", "caller", created_at=5)


def entries(updates: Iterable[Update], first: int = 1, at: int = 7) -> list[LogEntry]:
    return [LogEntry(seq, at, update) for seq, update in enumerate(updates, first)]


def folded(updates: Iterable[Update]) -> Task:
    return Task.of(HEAD, entries(updates))


def visible(task: Task) -> dict[str, Any]:
    """Everything a client can ask of a task; the numbers of its entries apart."""
    return {
        "state": (task.state, task.status_at, task.ended),
        "blocks": [
            (b.id, b.message_id, b.kind, b.part_id, b.text, b.call, b.last, b.phase)
            for b in task.visible_blocks()
        ],
        "messages": task.messages,
        "interrupts": task.open_interrupts,
        "changes": task.changes,
        "session": task.session,
        "usage": task.usage,
    }


# -- updates

TEXTS = {"b1": BlockKind.TEXT, "b2": BlockKind.TEXT, "b3": BlockKind.REASONING}
ASKS = [PermissionAsk(f"per_{n}", "ses_1", "bash") for n in range(3)]
ENDS = [TaskState.COMPLETED, TaskState.CANCELED, TaskState.FAILED]


@st.composite
def _text(draw: st.DrawFn) -> BlockText:
    block = draw(st.sampled_from(sorted(TEXTS)))
    said = draw(st.text("xyz", max_size=3))
    part = draw(st.sampled_from([block, "other"]))
    append, last = draw(st.booleans()), draw(st.booleans())
    return BlockText(block, f"m-{block}", part, TEXTS[block], said, append, last)


_tool = st.builds(
    lambda block, status: BlockTool(block, f"m-{block}", ToolCall("call", "bash", status)),
    st.sampled_from(["t1", "t2"]),
    st.sampled_from(["pending", "running", "completed", "error"]),
)
_output = st.builds(
    lambda block, said: BlockOutput(block, "call", "bash", said, 0),
    st.sampled_from(["t1", "t2"]),
    st.text("xyz", max_size=3),
)
_phase = st.builds(
    lambda block, phase: BlockPhase(block, phase),
    st.sampled_from(sorted(TEXTS)),
    st.sampled_from(["commentary", "answer"]),
)
_file = st.builds(
    lambda block: BlockFile(block, f"m-{block}", FileBytes("eA==", "image/png", block)),
    st.sampled_from(["f1", "f2"]),
)
_usage = st.none() | st.builds(Usage, st.integers(0, 9), st.integers(0, 9))
_progress = st.builds(lambda usage: Progress("step-finish", "completed", usage=usage), _usage)
_peer = st.builds(PeerUsageAdded, st.sampled_from(["one", "two"]), st.just(Usage(3, 4)))
_message = st.builds(
    lambda text: MessageAdded(Message("m", Role.USER, (Text(text),)), "msg_1"), st.text("xyz")
)
_started = st.builds(Started, st.sampled_from(["ses_1", "ses_2"]), st.sampled_from(["", "title"]))
_opened = st.builds(InterruptOpened, st.sampled_from(ASKS))
_resolved = st.builds(InterruptResolved, st.sampled_from(ASKS), st.just("once"), st.integers(0, 1))
_changes = st.builds(
    lambda names: ChangesMade(tuple(FileChange(name, 1, 0, "added") for name in names)),
    st.lists(st.sampled_from(["a", "b"]), max_size=2),
)
endings = st.builds(
    Ended,
    st.sampled_from(ENDS),
    usage=_usage,
    session=st.sampled_from([None, "ses_1"]),
    title=st.sampled_from(["", "at last"]),
)
# Texts first and often: that is what logs are made of, and where mistakes hide.
running = st.lists(
    st.one_of(
        _text(), _text(), _text(), _tool, _tool, _output, _output, _progress, _message, _started,
        _opened, _resolved, _changes, _file, _phase, _peer,
    ),
    max_size=25,
)  # fmt: skip


@st.composite
def logs(draw: st.DrawFn) -> list[Update]:
    """A log that may have ended, and may have been written to after its end."""
    updates: list[Update] = [*draw(running)]
    if draw(st.booleans()):
        updates += [draw(endings), *draw(running)]
        if draw(st.booleans()):
            updates.append(draw(endings))
    return updates


@st.composite
def in_pieces(draw: st.DrawFn) -> list[Sequence[Update]]:
    """A log, cut anywhere."""
    updates = draw(logs())
    cuts = draw(st.lists(st.integers(0, len(updates)), max_size=6).map(sorted))
    bounds = [0, *cuts, len(updates)]
    return [updates[a:b] for a, b in pairwise(bounds)]
