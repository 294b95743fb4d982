"""A session whose agent can call other agents.

The requests by which OpenCode asks for such calls are answered here, unless the rules of the agent
or of the deployment leave them to a person. What a peer asks becomes a request of the session, like
those of the agent itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard, TypeVar

import structlog

from ..domain.events import (
    AgentEvent,
    CaughtUp,
    InterruptAsked,
    InterruptClosed,
    MessageSeen,
    PeerUsage,
    ToolCall,
    ToolSnapshot,
)
from ..domain.exchange import refuses
from ..domain.peer_calls import ASK_ALWAYS, SERVER, TOOL_NAMES, CallSite, ToolResult
from ..domain.permissions import action_of
from ..domain.ports import AgentSession
from ..domain.task import TaskHead
from ..domain.values import (
    CallPath,
    Decision,
    FileChange,
    Interrupt,
    PermissionAsk,
    PermissionDecision,
    PermissionRule,
    Prompt,
    SessionRef,
    Usage,
)
from ..errors import CallTooDeep, ServiceError
from ..observe import tracing
from ..observe.tasks import ref_of, tool_span
from .calls import call_headers
from .peer_calls import AnnouncedCall, PeerCalls, stop

logger = structlog.get_logger()
T = TypeVar("T")

OFFER_SECONDS = 30.0  # in which a session gets the tools, also right after the start
ONCE = PermissionDecision("once")
NOT_ALLOWED = PermissionDecision(
    "reject", "The rules of this workspace forbid calls to other agents. Go on without."
)
BROKEN = ToolResult("The service failed while it made this call. Go on without it.", failed=True)


@dataclass(frozen=True, slots=True)
class _PeerRequest:
    interrupt: Interrupt
    decided: asyncio.Future[Decision]


@dataclass(eq=False, slots=True)
class CallingSession:
    """Implements `domain.ports.AgentSession`: a session whose agent can call peers."""

    inner: AgentSession
    calls: PeerCalls
    head: TaskHead
    path: Callable[[], CallPath]
    origin: CallPath = CallPath()  # whose trace the task belongs to
    denied: Sequence[PermissionRule] = ()  # to this caller, beyond what the rules of its agent say
    _work: dict[asyncio.Task[Any], str] = field(default_factory=dict)  # and the call it is for
    _rules: Callable[[str | None], Sequence[PermissionRule]] | None = None
    _agents: dict[str, str | None] = field(default_factory=dict)  # by message
    _started: dict[str, ToolSnapshot] = field(default_factory=dict)  # calls of ours, by id
    _unexplained: dict[str, PermissionAsk] = field(default_factory=dict)  # by call
    _answered: set[str] = field(default_factory=set)  # requests for calls that nobody else decides
    _announced: dict[str, AnnouncedCall] = field(default_factory=dict)  # by call
    _requests: dict[str, _PeerRequest] = field(default_factory=dict)  # of peers
    _stopping: bool = False  # what is allowed now would still be done
    _news: list[AgentEvent] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def ref(self) -> SessionRef:
        return self.inner.ref

    # -- the port

    async def events(self) -> AbstractContextManager[AsyncIterator[Sequence[AgentEvent]]]:
        self._stopping = False
        with suppress(TimeoutError):  # then the task goes on without tools
            async with asyncio.timeout(OFFER_SECONDS):
                tools = await asyncio.shield(self.calls.tools)
                if tools is not None:
                    self._rules = await tools.host.offer(self.ref)
        return _Events(self, await self.inner.events())

    async def prompt(self, prompt: Prompt, *, replaces: bool = False) -> None:
        await self.inner.prompt(prompt, replaces=replaces)

    async def has(self, message_id: str) -> bool:
        return await self.inner.has(message_id)

    async def read(self, since: str) -> Sequence[AgentEvent]:
        *stored, end = await self.inner.read(since)
        found = self.sift(stored)
        waiting = end.open_requests if isinstance(end, CaughtUp) else frozenset()
        kept_back = {ask.request_id for ask in self._unexplained.values()} | self._answered
        asked = {k: each.interrupt for k, each in self._requests.items() if not each.decided.done()}
        found += [InterruptAsked(self.ref.id, each) for each in asked.values()]
        return [*found, CaughtUp(self.ref.id, waiting - kept_back | asked.keys())]

    async def abort(self, sub_agents: Collection[str]) -> None:
        self._stopping = True
        self.stop_calls()
        await self.inner.abort(sub_agents)

    async def settle(self, interrupt: Interrupt, decision: Decision) -> bool:
        request = self._requests.get(interrupt.request_id)
        if request is not None:
            if not request.decided.done():
                request.decided.set_result(decision)
            return True
        if refuses(decision) or not _is_ours(interrupt):
            return await self.inner.settle(interrupt, decision)
        # "always" would keep OpenCode from asking, and then nobody announces the next call.
        started = self._started.get(interrupt.call_id or "")
        if started is None:
            return await self.inner.settle(interrupt, ONCE)
        return await self._allow_call(interrupt, started.call)

    async def changes(self, message_id: str) -> tuple[FileChange, ...]:
        return await self.inner.changes(message_id)

    # -- whose call it is

    def sift(self, events: Sequence[AgentEvent]) -> list[AgentEvent]:
        """The events without the requests for calls to peers that nobody has to decide."""
        return [passed for event in events for passed in self._sift(event)]

    def _sift(self, event: AgentEvent) -> list[AgentEvent]:
        match event:
            case MessageSeen(answered_by=by) if by is not None:
                self._agents[event.message_id] = by.agent
            case ToolSnapshot(call=call) if event.session == self.ref.id:
                if call.tool in TOOL_NAMES:
                    return [event, *self._on_call(event)]
            case InterruptAsked(interrupt=ask) if _is_ours(ask):
                return self._on_request(ask)
            case InterruptClosed(request_id=request_id) if request_id in self._answered:
                return []
            case _:
                pass
        return [event]

    def _on_call(self, event: ToolSnapshot) -> list[AgentEvent]:
        call_id = event.call.call_id
        if event.call.over:
            self._started.pop(call_id, None)
            self._stop_call(call_id)
        if event.call.status != "running":
            return []
        self._started[call_id] = event
        ask = self._unexplained.pop(call_id, None)
        return self._on_request(ask) if ask is not None else []

    def _on_request(self, ask: PermissionAsk) -> list[AgentEvent]:
        """A call asks just before it tells what it was called with: wait for that."""
        started = self._started.get(ask.call_id or "")
        if ask.session != self.ref.id or ask.call_id is None:
            action = "deny"  # a sub-agent's, where its rules were changed; or nobody knows for what
        elif started is None:
            self._unexplained[ask.call_id] = ask
            return []
        else:
            rules = self._rules_for(started.call)
            action = action_of(rules, ask.permission) or "allow"
        if action == "ask":
            return [InterruptAsked(ask.session, ask)]
        if ask.request_id not in self._answered:
            self._answered.add(ask.request_id)
            if action == "deny" or started is None:
                self._begin(ask.call_id or "", self._refuse(ask))
            elif not self._stopping:
                self._begin(started.call.call_id, self._allow_unasked(ask, started.call))
        return []

    async def _allow_unasked(self, ask: PermissionAsk, call: ToolCall) -> None:
        try:
            await self._allow_call(ask, call)
        except ServiceError as exc:
            self._answered.discard(ask.request_id)  # the next read brings it back
            logger.warning("peer.call.delayed", task=self.head.id, problem=exc.type)

    async def _allow_call(self, ask: PermissionAsk, call: ToolCall) -> bool:
        """Allow a call when it is its turn; whether OpenCode still asked for that."""
        announced = self._announced.get(call.call_id)
        if announced is not None and announced.in_doubt:
            return await self.inner.settle(ask, ONCE)
        if announced is None or announced.over.is_set():
            announced = self._announced[call.call_id] = self.calls.announce(
                call,
                session=self.ref.id,
                allow=lambda: self.inner.settle(ask, ONCE),
                start=lambda: self._begin(call.call_id, self._make(call)),
            )
        return await announced.allowed()

    async def _refuse(self, ask: PermissionAsk) -> None:
        try:
            await self.inner.settle(ask, NOT_ALLOWED)
        except ServiceError:
            self._answered.discard(ask.request_id)

    def _begin(self, call_id: str, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._work[task] = call_id
        task.add_done_callback(self._work.pop)
        return task

    def _stop_call(self, call_id: str) -> None:
        """OpenCode does not wait for this call any more, if it ever made it."""
        if (announced := self._announced.pop(call_id, None)) is not None:
            announced.give_up()
        for task, each in self._work.items():
            if each == call_id:
                stop(task)

    def stop_calls(self) -> None:
        """Stop the calls of this session. Their peers are told meanwhile."""
        for call_id in {*self._announced, *self._work.values()}:
            self._stop_call(call_id)

    # -- making a call

    async def _make(self, call: ToolCall) -> ToolResult:
        tool, rules = call.tool.removeprefix(f"{SERVER}_"), self._rules_for(call)
        span, began = tracing.new_span_id() if tracing.process.tracer else "", time.time_ns()
        try:
            path = replace(self.origin, depth=self.path().depth)
            headers = call_headers(path, self.calls.max_depth, span=span)
        except CallTooDeep as exc:
            logger.info("peer.call.refused", tool=tool, task=self.head.id, reason=exc.type)
            return ToolResult(f"{exc.message} Go on without this call.", failed=True)
        tools = self.calls.tools.result()
        assert tools is not None, "it was called"
        site = CallSite(
            task_id=self.head.id,
            context_id=self.head.context_id,
            owner=self.head.owner,
            session=self.ref.id,
            directory=self.ref.directory,
            headers=headers,
            ask=self._ask,
            add_usage=self._add_usage,
            may_read=lambda path: action_of(rules, "read", path) == "allow",
        )
        result = BROKEN
        try:
            result = await tools.tools.run(tool, call.input or {}, site)
        except Exception:
            logger.exception("peer.call.internal_error", task=self.head.id)
        finally:
            ref = ref_of(self.origin)
            if span and ref.sampled:
                tracing.record(
                    f"peer {tool}",
                    below=tool_span(ref, self.head.id, call.call_id),
                    span=span,
                    kind="client",
                    times=(began, time.time_ns()),
                    attributes={"a2a.peer": result.peer},
                    error="failed" if result.failed else None,
                )
        return result

    async def _ask(self, interrupt: Interrupt) -> Decision:
        decided: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        request_id = interrupt.request_id
        self._requests[request_id] = _PeerRequest(interrupt, decided)
        self._tell(InterruptAsked(self.ref.id, interrupt))
        try:
            return await decided
        finally:
            del self._requests[request_id]
            if decided.cancelled():
                self._tell(InterruptClosed(self.ref.id, request_id, "elsewhere"))

    def _add_usage(self, peer: str, usage: Usage) -> None:
        self._tell(PeerUsage(self.ref.id, peer, usage))

    def _rules_for(self, call: ToolCall) -> Sequence[PermissionRule]:
        """The rules of the agent that makes a call."""
        started = self._started.get(call.call_id)
        agent = self._agents.get(started.message_id) if started is not None else None
        rules = self._rules(agent) if self._rules is not None else ASK_ALWAYS
        return (*rules, *self.denied)

    # -- what the session reports

    def _tell(self, event: AgentEvent) -> None:
        self._news.append(event)
        self._changed.set()

    @property
    def is_quiet(self) -> bool:
        """Whether no call is going on: then only OpenCode has anything to report."""
        return not (self._started or self._work or self._news)

    async def changed(self) -> None:
        await self._changed.wait()

    def take_news(self) -> list[AgentEvent]:
        self._changed.clear()
        news, self._news = self._news, []
        return news


def _is_ours(interrupt: Interrupt) -> TypeGuard[PermissionAsk]:
    return isinstance(interrupt, PermissionAsk) and interrupt.permission in TOOL_NAMES


class _Events:
    """What OpenCode reports of a session, and what comes from its calls to peers."""

    def __init__(
        self,
        session: CallingSession,
        inner: AbstractContextManager[AsyncIterator[Sequence[AgentEvent]]],
    ) -> None:
        self._session = session
        self._inner = inner
        self._stream: AsyncIterator[Sequence[AgentEvent]] | None = None
        self._reading: asyncio.Task[Sequence[AgentEvent]] | None = None  # also when nobody waits

    def __enter__(self) -> _Events:
        self._stream = self._inner.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._session.stop_calls()
        if self._reading is not None:
            self._reading.cancel()
        self._inner.__exit__(None, None, None)

    def __aiter__(self) -> _Events:
        return self

    async def __anext__(self) -> Sequence[AgentEvent]:
        while True:
            found = self._session.sift(await self._next())
            found += self._session.take_news()
            if found:
                return found

    async def _next(self) -> Sequence[AgentEvent]:
        """What OpenCode reports next; nothing when a call has something to report first."""
        assert self._stream is not None
        if self._reading is None:
            if self._session.is_quiet:
                return await anext(self._stream)
            self._reading = asyncio.create_task(_read(self._stream))
        changed = asyncio.create_task(self._session.changed())
        try:
            either: set[asyncio.Task[Any]] = {self._reading, changed}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
        if not self._reading.done():
            return ()
        reading, self._reading = self._reading, None
        return reading.result()


async def _read(stream: AsyncIterator[Sequence[AgentEvent]]) -> Sequence[AgentEvent]:
    return await anext(stream)
