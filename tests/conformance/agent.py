"""An agent that plays what the A2A conformance kit asks for, by the id of the message.

It stands where OpenCode stands, behind the ports `Agent` and `AgentSession`: everything above
it is the service. The kit names a scenario in the id its message has in A2A, which no agent
ever hears; so this one looks it up in the task log, under the id it was prompted with.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import orjson
from sqlalchemy import Connection, select

from opencode_a2a.domain.catalog import Location
from opencode_a2a.domain.events import (
    AgentEvent,
    BlockKind,
    CaughtUp,
    FileSnapshot,
    Idle,
    InterruptAsked,
    MessageSeen,
    Speaker,
    TextDelta,
    TextSnapshot,
)
from opencode_a2a.domain.values import (
    Data,
    Decision,
    Failure,
    FileBytes,
    FileChange,
    FileUrl,
    Interrupt,
    Part,
    PermissionRule,
    Problem,
    Prompt,
    Question,
    QuestionAsk,
    SessionRef,
)
from opencode_a2a.store.database import Database
from opencode_a2a.store.tables import entries

# What is said, piece by piece, to a message whose id begins so. The longest beginning counts.
TEXTS: dict[str, tuple[str, ...]] = {
    "": ("Hello from TCK",),
    "tck-artifact-text": ("Generated text content",),
    "tck-message-response": ("Direct message response",),
    "tck-stream-001": ("Stream hello from TCK",),
    "tck-stream-002": (),
    "tck-stream-003": ("Stream task lifecycle",),
    "tck-stream-ordering-001": ("Ordered output",),
    "tck-stream-artifact-text": ("Streamed text content",),
    "tck-stream-artifact-chunked": ("chunk-1 ", "chunk-2"),
}
ASKS = "tck-input-required"
REJECTS = "tck-reject-task"
OUTPUT = FileBytes(base64.b64encode(b"Generated content\n").decode(), "text/plain", "output.txt")
HANDED: dict[str, Part] = {
    "tck-artifact-data": Data({"key": "value", "count": 42}),
    "tck-artifact-file": OUTPUT,
    "tck-artifact-file-url": FileUrl("https://example.com/output.txt", "text/plain", "output.txt"),
    "tck-stream-artifact-file": OUTPUT,
}
RUNS_LONG = "test-resubscribe-message-id"

REJECTED = Problem(Failure.PROVIDER_ERROR, "rejected")


class Heard:
    """The ids that messages have in A2A, read where the service keeps them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def message(self, upstream_id: str) -> tuple[str, str]:
        """The task of a prompt, and the id of its message."""
        for task_id, told in await self._database.read(_messages):
            if told["upstream_id"] == upstream_id:
                return task_id, told["message"]["message_id"]
        raise LookupError(upstream_id)

    async def newest(self, task_id: str) -> str:
        """The id of what was said last in a task."""
        told = [told for owner, told in await self._database.read(_messages) if owner == task_id]
        found: str = told[-1]["message"]["message_id"]
        return found


def _messages(db: Connection) -> list[tuple[str, dict[str, Any]]]:
    wanted = select(entries.c.task_id, entries.c.body).where(entries.c.kind == "MessageAdded")
    found = db.execute(wanted.order_by(entries.c.task_id, entries.c.seq))
    return [(task_id, orjson.loads(body)) for task_id, body in found]


class Player:
    """Implements `Agent`."""

    def __init__(self, heard: Heard, directory: str, long: float, hold: bool = False) -> None:
        """A long task takes `long` seconds; `hold` keeps open what has no scenario.

        Sessions work in `directory`. Of any other the service would ask OpenCode whether it may be
        used, before each task of a context.
        """
        self._heard = heard
        self._directory = directory
        self._long = long
        self._hold = hold
        self._numbers = itertools.count(1)
        self._sessions: dict[str, Stage] = {}

    async def available(self) -> None:
        return None

    def new_message_id(self) -> str:
        return f"msg_{next(self._numbers):06}"

    async def create(
        self,
        title: str,
        context_id: str,
        *,
        location: Location | None = None,
        rules: Sequence[PermissionRule] = (),
    ) -> SessionRef:
        ref = SessionRef(f"ses_{next(self._numbers):06}", title, self._directory)
        self._sessions[ref.id] = Stage(ref, self._heard, self._long, self._hold)
        return ref

    async def delete(self, ref: SessionRef) -> None:
        del self._sessions[ref.id]

    def session(self, ref: SessionRef, rules: Sequence[PermissionRule] = ()) -> Stage:
        return self._sessions[ref.id]


class Stage:
    """Implements `AgentSession`: one prompt at a time, played as its message id says."""

    def __init__(self, ref: SessionRef, heard: Heard, long: float, hold: bool) -> None:
        self.ref = ref
        self._heard = heard
        self._long = long
        self._hold = hold
        self._prompts: dict[str, str] = {}  # by id: the task
        self._newest = ""
        self._told: list[AgentEvent] = []  # about the newest prompt
        self._open: frozenset[str] = frozenset()
        self._asked = itertools.count(1)
        self._arriving: asyncio.Queue[Sequence[AgentEvent]] = asyncio.Queue()
        self._playing: asyncio.Task[None] | None = None

    async def events(self) -> AbstractContextManager[AsyncIterator[Sequence[AgentEvent]]]:
        self._arriving = asyncio.Queue()
        return nullcontext(_Arriving(self._arriving))

    async def prompt(self, prompt: Prompt, *, replaces: bool = False) -> None:
        task_id, message_id = await self._heard.message(prompt.message_id)
        self._prompts[prompt.message_id] = task_id
        self._newest, self._told = prompt.message_id, []
        self._say(
            MessageSeen(self.ref.id, prompt.message_id, Speaker.USER, len(self._prompts)),
            self._answer(),
        )
        self._playing = asyncio.create_task(self._play(message_id))

    async def has(self, message_id: str) -> bool:
        return message_id in self._prompts

    async def read(self, since: str) -> Sequence[AgentEvent]:
        return [*self._told, CaughtUp(self.ref.id, self._open)]

    async def abort(self, sub_agents: Collection[str]) -> None:
        if self._playing is not None:
            self._playing.cancel()
        self._open = frozenset()
        self._say(self._answer(completed=True, aborted=True), Idle(self.ref.id))

    async def settle(self, interrupt: Interrupt, decision: Decision) -> bool:
        wanted = interrupt.request_id in self._open
        self._open -= {interrupt.request_id}
        if wanted:
            said = await self._heard.newest(self._prompts[self._newest])
            self._playing = asyncio.create_task(self._play(said))
        return wanted

    async def changes(self, message_id: str) -> tuple[FileChange, ...]:
        return ()

    # -- the scenarios

    async def _play(self, message_id: str) -> None:
        scenario = max((s for s in TEXTS if message_id.startswith(s)), key=len)
        held = self._hold and not message_id.startswith(("tck-", RUNS_LONG))
        if held or message_id.startswith(ASKS):
            return self._ask()
        if message_id.startswith(REJECTS):
            return self._finish(problem=REJECTED)
        if message_id.startswith(RUNS_LONG):
            await asyncio.sleep(self._long)
        answer, part = self._answer().message_id, f"{self._newest}-part"
        handed = [s for s in HANDED if message_id.startswith(s)]
        if handed:
            self._say(FileSnapshot(self.ref.id, answer, part, HANDED[max(handed, key=len)]))
        elif TEXTS[scenario]:
            self._tell(answer, part, TEXTS[scenario])
        return self._finish()

    def _tell(self, answer: str, part: str, pieces: Sequence[str]) -> None:
        def shown(text: str, ended: bool) -> TextSnapshot:
            return TextSnapshot(self.ref.id, answer, part, BlockKind.TEXT, text, ended)

        self._say(shown("", ended=False))
        for piece in pieces:
            self._say(TextDelta(self.ref.id, answer, part, piece))
        self._say(shown("".join(pieces), ended=True))

    def _ask(self) -> None:
        request_id = f"{self._newest}-ask-{next(self._asked)}"
        question = Question("More", "What else should I know?")
        self._open |= {request_id}
        ask = QuestionAsk(request_id, self.ref.id, (question,))
        self._say(InterruptAsked(self.ref.id, ask))

    def _finish(self, problem: Problem | None = None) -> None:
        self._say(self._answer(completed=True, problem=problem), Idle(self.ref.id))

    def _answer(
        self, completed: bool = False, problem: Problem | None = None, aborted: bool = False
    ) -> MessageSeen:
        return MessageSeen(
            self.ref.id,
            f"{self._newest}-answer",
            Speaker.AGENT,
            len(self._prompts),
            self._newest,
            completed,
            "stop" if completed and problem is None and not aborted else None,
            problem,
            aborted,
        )

    def _say(self, *events: AgentEvent) -> None:
        self._told += events
        self._arriving.put_nowait(events)


class _Arriving:
    """An iterator that may be cancelled while it waits, and asked again."""

    def __init__(self, arriving: asyncio.Queue[Sequence[AgentEvent]]) -> None:
        self._arriving = arriving

    def __aiter__(self) -> _Arriving:
        return self

    async def __anext__(self) -> Sequence[AgentEvent]:
        return await self._arriving.get()
