"""A conversation with OpenCode, of whichever generation: implements the port `AgentSession`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

from ..domain import events as ev
from ..domain.values import Decision, FileChange, Interrupt, Prompt, SessionRef
from ..errors import UpstreamError, UpstreamHttpError
from .answers import DiffInfo, file_change, read
from .api import Defaults
from .feed import Feed, Subscription
from .http import NotFound, Requests

ABORT_WAIT_SECONDS = 1.0  # that an abort waits for events
_OF_SUB_AGENTS = (ev.ChildStarted, ev.MessageSeen, ev.StepStarted, ev.StepFinished, ev.ToolSnapshot)


class Session(ABC):
    settled_errors: ClassVar[Collection[str]] = ()  # what OpenCode calls a request that is decided

    def __init__(self, ref: SessionRef, http: Requests, feed: Feed, defaults: Defaults) -> None:
        self.ref = ref
        self._http = http
        self._feed = feed
        self._defaults = defaults
        self._directory = ref.directory or defaults.directory
        self._subscription: Subscription | None = None

    async def events(self) -> Subscription:
        self._subscription = await self._feed.subscribe(self.ref.id)
        return self._subscription

    @abstractmethod
    async def prompt(self, prompt: Prompt, *, replaces: bool = False) -> None: ...

    @abstractmethod
    async def has(self, message_id: str) -> bool: ...

    async def read(self, since: str) -> Sequence[ev.AgentEvent]:
        # What is at work is read first. If the run ends in between, its messages are complete and
        # the next read finds it at rest. The other order would show it at rest and unfinished.
        statuses = await self._statuses()
        prompted_at, events, end = await self._stored(since)
        events = [*await self._children(self.ref.id, prompted_at), *events]
        family, waiting = {self.ref.id}, _sub_agents_in(events)
        while waiting:
            sub_agent = waiting.pop(0)
            if sub_agent in family:
                continue
            family.add(sub_agent)
            if self._subscription is not None:
                self._subscription.include(sub_agent)
            # The sub-agents that it has started, which model answers, and its signs of life.
            done = [*await self._children(sub_agent, prompted_at)]
            done += await self._done_by(sub_agent, prompted_at)
            waiting += _sub_agents_in(done)
            events += [event for event in done if isinstance(event, _OF_SUB_AGENTS)]
        if self._subscription is not None:
            self._subscription.know(events)
        asks = [await self._complete(ask, events) for ask in await self._pending(family)]
        requests = [ev.InterruptAsked(ask.session, ask) for ask in asks]
        events += self._at_rest(statuses, family, end)
        open_requests = frozenset(each.interrupt.request_id for each in requests)
        return [*events, *requests, ev.CaughtUp(self.ref.id, open_requests)]

    async def _complete(self, ask: Interrupt, _: Sequence[ev.AgentEvent]) -> Interrupt:
        """With what only the tool call tells, where it is not among these events."""
        return ask

    @abstractmethod
    async def abort(self, sub_agents: Collection[str]) -> None: ...

    async def settle(self, interrupt: Interrupt, decision: Decision) -> bool:
        await self._wait_for_events()
        try:
            await self._settle(interrupt, decision)
        except NotFound:
            return False  # somebody else has decided, or OpenCode has lost the request
        except UpstreamHttpError as exc:
            if exc.facts["name"] in self.settled_errors:
                return False
            raise
        return True

    async def changes(self, message_id: str) -> tuple[FileChange, ...]:
        answer = await self._diff(message_id)
        return tuple(map(file_change, read(list[DiffInfo], answer)))

    async def _wait_for_events(self) -> None:
        """Wait a moment for events. The request is sent in any case: OpenCode may still get it."""
        with suppress(UpstreamError):
            await self._feed.ready(ABORT_WAIT_SECONDS)

    @abstractmethod
    async def _statuses(self) -> Mapping[str, Any]:
        """Of the sessions that are at work."""

    @abstractmethod
    async def _stored(self, since: str) -> tuple[int, list[ev.AgentEvent], ev.AgentEvent]:
        """What is stored from this prompt on: when it came, what was done, and how it ended."""

    @abstractmethod
    async def _children(self, parent: str, since: int) -> Sequence[ev.AgentEvent]:
        """The sub-agent sessions that another has started since then."""

    @abstractmethod
    async def _done_by(self, sub_agent: str, since: int) -> Sequence[ev.AgentEvent]: ...

    @abstractmethod
    async def _pending(self, family: Collection[str]) -> Sequence[Interrupt]: ...

    @abstractmethod
    def _at_rest(
        self, statuses: Mapping[str, Any], family: Collection[str], end: ev.AgentEvent
    ) -> Sequence[ev.AgentEvent]:
        """Which of them are at work, and which are not."""

    @abstractmethod
    async def _settle(self, interrupt: Interrupt, decision: Decision) -> None: ...

    @abstractmethod
    async def _diff(self, message_id: str) -> Any: ...


def _sub_agents_in(events: Sequence[ev.AgentEvent]) -> list[str]:
    """Those that were started and, if one of an earlier turn works again, named by a tool call."""
    found = [event.session for event in events if isinstance(event, ev.ChildStarted)]
    calls = [event for event in events if isinstance(event, ev.ToolSnapshot)]
    return [*found, *(call.child.session for call in calls if call.child is not None)]
