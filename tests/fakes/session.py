"""An agent that does nothing by itself: the test says what happens, and when.

Implements the ports `Agent` and `AgentSession`. What the service does to it is
remembered, and `until` waits for it, so that no test has to sleep.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractContextManager

from opencode_a2a.domain.catalog import Location
from opencode_a2a.domain.events import (
    AgentEvent,
    BlockKind,
    CaughtUp,
    Idle,
    InterruptAsked,
    MessageSeen,
    Speaker,
    TextSnapshot,
)
from opencode_a2a.domain.ports import SessionGone
from opencode_a2a.domain.values import (
    Decision,
    FileChange,
    Interrupt,
    PermissionRule,
    Prompt,
    SessionRef,
)
from opencode_a2a.errors import UpstreamError, UpstreamUnreachable

PATIENCE = 30.0  # seconds; who waits longer waits for ever


class Watched:
    """Something whose changes can be waited for."""

    def __init__(self, part_of: Watched | None = None) -> None:
        self._changed = asyncio.Event()
        self._part_of = part_of

    def changed(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
        if self._part_of is not None:
            self._part_of.changed()

    async def until(self, so: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not so():
                await self._changed.wait()


class ScriptedSession(Watched):
    def __init__(self, ref: SessionRef, agent: Watched | None = None) -> None:
        super().__init__(agent)
        self.ref = ref
        self.prompts: list[Prompt] = []
        self.aborts = 0
        self.stopped: list[set[str]] = []  # the sub-agents of each abort
        self.settled: list[tuple[str, Decision]] = []
        self.looks = 0
        self.subscribed = False
        self.stored: list[AgentEvent] = []
        self.open_requests: frozenset[str] = frozenset()
        self.trouble: Exception | None = None  # what every call meets
        self.deleted = False
        self.mute = False  # it takes a prompt, and its answer gets lost
        self.deaf = False  # it takes an abort, and does nothing
        self.last_words = ""  # what it still says when it is aborted
        self.no_reply: UpstreamError | None = None  # what every answer to a request meets
        self.being_told = False  # an answer is on its way, or has arrived
        self.unheard = False  # … although it was heard
        self.line, self.gate = asyncio.Event(), asyncio.Event()  # closed, they keep who
        self.ear, self.eye = asyncio.Event(), asyncio.Event()
        self.line.set()  # … subscribes
        self.gate.set()  # … prompts
        self.ear.set()  # … answers
        self.eye.set()  # … or looks waiting
        self._events: asyncio.Queue[Sequence[AgentEvent]] = asyncio.Queue()

    # -- what the test does

    @property
    def asked(self) -> str:
        """The text of the newest prompt."""
        return "".join(part for part in self.prompts[-1].parts if isinstance(part, str))

    async def until_asked(self, text: str) -> None:
        await self.until(lambda: self.prompts and self.asked == text)

    async def until_looks(self, count: int) -> None:
        await self.until(lambda: self.looks >= count)

    def say(self, *events: AgentEvent) -> None:
        assert self.subscribed, "nobody listens"
        self._events.put_nowait(events)

    def ask(self, *asks: Interrupt) -> None:
        """Wait for a person, and say so."""
        self.open_requests |= {ask.request_id for ask in asks}
        self.say(*(InterruptAsked(ask.session, ask) for ask in asks))

    def begin(self) -> str:
        """Take up the newest prompt; the id of the answer that will come."""
        question = self.prompts[-1].message_id
        self.say(
            MessageSeen(self.ref.id, question, Speaker.USER, len(self.prompts)),
            self._message(),
        )
        return f"answer-to-{question}"

    def answer(self, text: str) -> None:
        """Answer the newest prompt, completely."""
        self.begin()
        self.say(*self.told(text))

    def told(self, text: str) -> list[AgentEvent]:
        """The newest prompt's answer, from its text to the end."""
        answer = self._message(completed=True, finish="stop")
        part = f"part-of-{answer.message_id}"
        block = TextSnapshot(self.ref.id, answer.message_id, part, BlockKind.TEXT, text, ended=True)
        return [block, answer, Idle(self.ref.id)]

    def remember(self, text: str) -> None:
        """Have the newest prompt answered in the store, without a word about it."""
        question = self.prompts[-1].message_id
        asked = MessageSeen(self.ref.id, question, Speaker.USER, len(self.prompts))
        self.stored = [asked, self._message(), *self.told(text)]

    def _message(self, **end: object) -> MessageSeen:
        question = self.prompts[-1].message_id
        return MessageSeen(
            self.ref.id,
            f"answer-to-{question}",
            Speaker.AGENT,
            len(self.prompts),
            question,
            completed=bool(end.get("completed")),
            finish=str(end["finish"]) if "finish" in end else None,
            aborted=bool(end.get("aborted")),
        )

    # -- the port

    async def events(self) -> AbstractContextManager[AsyncIterator[Sequence[AgentEvent]]]:
        await self.line.wait()
        self._meet_trouble()
        self._events = asyncio.Queue()
        self.subscribed = True
        self.changed()
        return _Arriving(self)

    async def next(self) -> Sequence[AgentEvent]:
        return await self._events.get()

    async def prompt(self, prompt: Prompt, *, replaces: bool = False) -> None:
        assert self.subscribed, "subscribe, then prompt"
        await self.gate.wait()
        self._meet_trouble()
        self._meet_deletion()
        self.prompts.append(prompt)
        self.changed()
        if self.mute:
            raise UpstreamUnreachable("It heard, but its answer got lost.")

    async def read(self, since: str) -> Sequence[AgentEvent]:
        self.looks += 1
        self.changed()
        self._meet_trouble()
        self._meet_deletion()
        found = [*self.stored, CaughtUp(self.ref.id, self.open_requests)]
        await self.eye.wait()
        return found

    async def has(self, message_id: str) -> bool:
        self._meet_trouble()
        return not self.deleted and any(p.message_id == message_id for p in self.prompts)

    async def abort(self, sub_agents: Collection[str]) -> None:
        self.aborts += 1
        self.stopped.append(set(sub_agents))
        self.changed()
        self._meet_trouble()
        if self.prompts and self.subscribed and not self.deaf and not self.deleted:
            self.begin()
            if self.last_words:
                self.say(self.told(self.last_words)[0])
            self.say(self._message(completed=True, aborted=True), Idle(self.ref.id))

    async def settle(self, interrupt: Interrupt, decision: Decision) -> bool:
        self.being_told = True
        self.changed()
        await self.ear.wait()
        self._meet_trouble()
        if self.no_reply is not None and not self.unheard:
            raise self.no_reply
        wanted = interrupt.request_id in self.open_requests
        if wanted:
            self.settled.append((interrupt.request_id, decision))
        self.open_requests -= {interrupt.request_id}
        self.changed()
        if self.no_reply is not None:
            raise self.no_reply
        return wanted

    async def changes(self, message_id: str) -> tuple[FileChange, ...]:
        return ()

    def _meet_deletion(self) -> None:
        if self.deleted:
            raise SessionGone

    def _meet_trouble(self) -> None:
        if self.trouble is not None:
            raise self.trouble


class _Arriving:
    """An iterator that may be cancelled while it waits, and asked again."""

    def __init__(self, session: ScriptedSession) -> None:
        self._session = session

    def __enter__(self) -> _Arriving:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.subscribed = False

    def __aiter__(self) -> _Arriving:
        return self

    async def __anext__(self) -> Sequence[AgentEvent]:
        return await self._session.next()


class ScriptedAgent(Watched):
    def __init__(self) -> None:
        super().__init__()
        self.sessions: dict[str, ScriptedSession] = {}
        self.creating = 0
        self.made = 0
        self.gate = asyncio.Event()  # sessions are made while it is set
        self.gate.set()
        self.trouble: UpstreamError | None = None
        self._ids = 0

    def of(self, context_id: str) -> ScriptedSession:
        """The session that serves a context: its newest."""
        found = [s for s in self.sessions.values() if s.ref.title.startswith(f"{context_id}/")]
        return found[-1]

    async def available(self) -> None:
        if self.trouble is not None:
            raise self.trouble

    def new_message_id(self) -> str:
        self._ids += 1
        return f"msg_{self._ids:04}"

    async def create(
        self,
        title: str,
        context_id: str,
        *,
        location: Location | None = None,
        rules: Sequence[PermissionRule] = (),
    ) -> SessionRef:
        self.creating += 1
        self.changed()
        await self.gate.wait()
        if self.trouble is not None:
            raise self.trouble
        directory = location.directory if location is not None else "/work"
        ref = SessionRef(f"ses_{self.made}", f"{context_id}/{title}", directory)
        self.sessions[ref.id] = ScriptedSession(ref, self)
        self.made += 1
        self.changed()
        return ref

    async def delete(self, ref: SessionRef) -> None:
        del self.sessions[ref.id]
        self.changed()

    def session(self, ref: SessionRef, rules: Sequence[PermissionRule] = ()) -> ScriptedSession:
        found = self.sessions[ref.id]
        found.ref = ref
        return found
