"""OpenCode as an agent: implements the ports `Agent` and `AgentSession`.

OpenCode never answers a request that arrives while it starts. A read can be repeated, a
change cannot: the service sends it only while events arrive, because then OpenCode is up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import Field

from ...domain import events as ev
from ...domain.catalog import Location
from ...domain.ports import SessionGone
from ...domain.release import Release
from ...domain.values import (
    Decision,
    FileChange,
    Interrupt,
    PermissionDecision,
    PermissionRule,
    Prompt,
    QuestionDecision,
    SessionRef,
)
from ...errors import UpstreamError, UpstreamHttpError, UpstreamUnreachable
from ..feed import SILENCE_SECONDS, Feed, Subscription
from ..http import Endpoint, Http
from ..identity import Identity
from ..ids import dated_id, new_id, part_id, prompt_id
from . import wire
from .instances import Instances
from .tools import OpenCodeTools

PAGE_SIZE = 50  # messages read at once when catching up
ABORT_WAIT_SECONDS = 1.0  # seconds an abort waits for events


@dataclass(frozen=True, slots=True)
class Defaults:
    """What goes with every prompt of this deployment."""

    directory: str
    agent: str | None = None
    system: str | None = None
    variant: str | None = None
    rules: Callable[[], Sequence[PermissionRule]] = tuple  # for new sessions, as they are now
    model_titles: bool = False  # OpenCode asks a model for the titles of new sessions


class StoredMessage(wire.Wire):
    info: wire.MessageInfo
    parts: list[wire.PartInfo] = Field(default=[])


class OpenCode:
    def __init__(
        self,
        http: Http,
        feed: Feed,
        *,
        identity: Identity,
        instances: Instances,
        defaults: Defaults,
    ) -> None:
        self._http = http
        self._feed = feed
        self._identity = identity
        self._instances = instances
        self._defaults = defaults

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        endpoint: Endpoint,
        defaults: Defaults,
        timeout: float = 30.0,
        concurrency: int = 0,
        silence: float = SILENCE_SECONDS,
    ) -> AsyncIterator[OpenCode]:
        """`timeout` bounds each request, `silence` the time between two events."""
        async with (
            Http.open(endpoint, timeout, concurrency=concurrency) as http,
            Feed.open(http, silence) as feed,
            Identity.open(http, feed) as identity,
            Instances.open(http, feed, defaults.directory) as instances,
        ):
            yield cls(http, feed, identity=identity, instances=instances, defaults=defaults)

    @property
    def http(self) -> Http:
        return self._http

    @property
    def connected(self) -> bool:
        return self._feed.connected

    @property
    def release(self) -> Release | None:
        """The version that is connected, or was last; None before the first answer."""
        return self._identity.release

    @property
    def sessions_at_work(self) -> int:
        """With their sub-agents."""
        return self._feed.subscribed

    async def available(self) -> None:
        await self._feed.ready()

    def new_message_id(self) -> str:
        return new_id("msg")

    async def create(
        self,
        title: str,
        context_id: str,
        *,
        location: Location | None = None,
        rules: Sequence[PermissionRule] = (),
    ) -> SessionRef:
        directory = location.directory if location is not None else self._defaults.directory
        # The metadata shows services for other roots that the session is not theirs.
        origin = {"contextId": context_id, "root": self._defaults.directory}
        body: dict[str, Any] = {"metadata": {"a2a": origin}}
        if not self._defaults.model_titles:  # without one OpenCode asks a model for it
            body["title"] = title
        if location is not None and location.workspace is not None:
            body["workspaceID"] = location.workspace
        if all_rules := (*self._defaults.rules(), *rules):
            body["permission"] = [asdict(rule) for rule in all_rules]
        await self._feed.ready()
        answer = await self._http.call("POST", "session", query={"directory": directory}, body=body)
        created = wire.read(wire.SessionInfo, answer)
        # Until the model has made a title, clients see this one.
        return SessionRef(created.id, title, directory=created.directory or directory)

    async def delete(self, ref: SessionRef) -> None:
        await self._http.call("DELETE", "session", ref.id)

    def tools(self, url: str, headers: Mapping[str, str]) -> OpenCodeTools:
        """What offers the tools of this MCP server to sessions."""
        return OpenCodeTools(
            self._http,
            self._feed,
            url=url,
            headers=headers,
            rules=self._defaults.rules,
            directory=self._defaults.directory,
        )

    def session(self, ref: SessionRef) -> OpenCodeSession:
        return OpenCodeSession(
            ref,
            http=self._http,
            feed=self._feed,
            defaults=self._defaults,
            identity=self._identity,
            instances=self._instances,
        )


class OpenCodeSession:
    def __init__(
        self,
        ref: SessionRef,
        http: Http,
        feed: Feed,
        defaults: Defaults,
        identity: Identity,
        instances: Instances,
    ) -> None:
        self.ref = ref
        self._http = http
        self._feed = feed
        self._defaults = defaults
        self._identity = identity
        self._instances = instances
        self._dated_ids: dict[str, str] = {}  # of prompts, where the order needs them
        self._subscription: Subscription | None = None
        self._directory = ref.directory or defaults.directory
        self._directory_query = {"directory": self._directory}

    async def events(self) -> Subscription:
        # Before the prompt, and where a cancel does not have to wait for it.
        await self._instances.load(self._directory)
        self._subscription = await self._feed.subscribe(self.ref.id)
        return self._subscription

    async def prompt(self, prompt: Prompt, *, replaces: bool = False) -> None:
        await self._feed.ready()
        await self._instances.load(self._directory)  # OpenCode may have been started again
        message_id, release = prompt.message_id, await self._identity.known()
        if release.orders_messages_by_id:
            message_id = self._dated_ids.setdefault(message_id, dated_id(message_id))
        body: dict[str, Any] = {
            "messageID": message_id,
            "parts": [
                {"id": part_id(message_id, i), **wire.prompt_part(part)}
                for i, part in enumerate(prompt.parts)
            ],
        }
        defaults, selected = self._defaults, prompt.selection
        extras = {
            "agent": selected.agent or defaults.agent,
            "system": defaults.system,
            "variant": selected.variant or defaults.variant,
        }
        body |= {name: value for name, value in extras.items() if value}
        if (model := selected.model or self.ref.model) is not None:
            body["model"] = {"providerID": model.provider, "modelID": model.model}
        if replaces and not await self._withdraw(message_id):
            return
        with _gone_if_unknown():
            await self._http.call("POST", "session", self.ref.id, "prompt_async", body=body)

    async def _withdraw(self, message_id: str) -> bool:
        """Remove a prompt: sent again, its files would stand there twice. False if it is at work.

        It may have begun just now.
        """
        try:
            await self._http.call("DELETE", "session", self.ref.id, "message", message_id)
        except UpstreamHttpError as exc:
            if exc.facts["upstream_status"] == 409:
                return False
            _raise_unless_absent(exc)
        return True

    async def has(self, message_id: str) -> bool:
        try:
            await self._http.call("GET", "session", self.ref.id, "message", message_id)
        except UpstreamHttpError as exc:
            _raise_unless_absent(exc)
            return await self._has_dated(message_id)
        return True

    async def _has_dated(self, message_id: str) -> bool:
        """Look for a prompt under whatever id it was sent, maybe by an earlier process."""
        try:
            found = await self._messages_since(message_id)
        except SessionGone:
            return False
        if found:
            self._dated_ids[message_id] = found[0].info.id
        return bool(found)

    async def read(self, since: str) -> Sequence[ev.AgentEvent]:
        # The status is read first. If the message completes in between, it is read as complete, and
        # the next read finds the session idle. The other order would show it idle and unfinished.
        statuses = wire.read(
            dict[str, wire.Status],
            await self._http.call("GET", "session", "status", query=self._directory_query),
        )
        messages = await self._messages_since(since)
        prompted_at = messages[0].info.time.created if messages else 0
        events: list[ev.AgentEvent] = [*await self._children(self.ref.id, prompted_at)]
        events += [event for message in messages for event in _stored_events(message)]
        family, waiting = {self.ref.id}, _subagents_in(events)
        while waiting:
            subagent = waiting.pop(0)
            if subagent in family:
                continue
            family.add(subagent)
            if self._subscription is not None:
                self._subscription.include(subagent)
            done = await self._done_by(subagent, prompted_at)
            waiting += _subagents_in(done)
            events += done
        permissions, questions = await self._pending(family)
        status = statuses.get(self.ref.id, wire.Status(type="idle"))
        events.append(wire.status_event(self.ref.id, status))
        requests = [
            *(ev.InterruptAsked(p.session, wire.permission(p)) for p in permissions),
            *(ev.InterruptAsked(q.session, wire.question(q)) for q in questions),
        ]
        open_requests = frozenset(each.interrupt.request_id for each in requests)
        return [*events, *requests, ev.CaughtUp(self.ref.id, open_requests)]

    async def abort(self) -> None:
        await self._wait_for_events()
        await self._http.call("POST", "session", self.ref.id, "abort", query=self._directory_query)

    async def _wait_for_events(self) -> None:
        """Wait a moment for events. The request is sent in any case: OpenCode may still get it."""
        with suppress(UpstreamError):
            await self._feed.ready(ABORT_WAIT_SECONDS)

    async def settle(self, interrupt: Interrupt, decision: Decision) -> bool:
        kind, verb, body = "question", "reject", dict[str, Any]()
        if isinstance(decision, PermissionDecision):
            kind, verb, body = "permission", "reply", {"reply": decision.reply}
            body |= {"message": decision.message} if decision.message else {}
        elif decision.answers is not None:
            verb, body = "reply", {"answers": decision.answers}
        request_id = interrupt.request_id
        await self._wait_for_events()
        try:
            await self._http.call(
                "POST", kind, request_id, verb, query=self._directory_query, body=body or None
            )
        except UpstreamHttpError as exc:
            _raise_unless_absent(exc)
            return False  # somebody else has decided, or OpenCode has lost the request
        return True

    async def reject_pending(self, family: Collection[str]) -> None:
        permissions, questions = await self._pending({self.ref.id, *family})
        await asyncio.gather(
            *(self.settle(wire.permission(p), PermissionDecision("reject")) for p in permissions),
            *(self.settle(wire.question(q), QuestionDecision(None)) for q in questions),
        )

    async def changes(self, message_id: str) -> tuple[FileChange, ...]:
        if (
            message_id not in self._dated_ids
            and (await self._identity.known()).orders_messages_by_id
        ):
            await self._has_dated(message_id)
        message_id = self._dated_ids.get(message_id, message_id)
        answer = await self._http.call(
            "GET", "session", self.ref.id, "diff", query={"messageID": message_id}
        )
        return tuple(wire.file_change(diff) for diff in wire.read(list[wire.DiffInfo], answer))

    async def _pending(
        self, family: Collection[str]
    ) -> tuple[list[wire.PermissionInfo], list[wire.QuestionInfo]]:
        permissions, questions = await asyncio.gather(
            self._http.call("GET", "permission", query=self._directory_query),
            self._http.call("GET", "question", query=self._directory_query),
        )
        return (
            [p for p in wire.read(list[wire.PermissionInfo], permissions) if p.session in family],
            [q for q in wire.read(list[wire.QuestionInfo], questions) if q.session in family],
        )

    async def _done_by(self, subagent: str, since: int) -> list[ev.AgentEvent]:
        """What a sub-agent has done since then, and the sub-agents that it has started."""
        events: list[ev.AgentEvent] = [*await self._children(subagent, since)]
        for message in await self._messages(subagent):
            if message.info.time.created >= since:  # not of an earlier turn
                events += _events_of_subagent(message)
        return events

    async def _children(self, parent: str, since: int) -> list[ev.ChildStarted]:
        """The sub-agent sessions that another has started since then."""
        answer = await self._http.call("GET", "session", parent, "children")
        return [
            ev.ChildStarted(child.id, parent, agent=child.agent)
            for child in wire.read(list[wire.SessionInfo], answer)
            if child.time.created >= since
        ]

    async def _messages(self, session: str) -> list[StoredMessage]:
        return wire.read(
            list[StoredMessage], await self._http.call("GET", "session", session, "message")
        )

    async def _messages_since(self, since: str) -> list[StoredMessage]:
        """The messages from `since` on, oldest first; none when OpenCode does not have it."""
        messages: list[StoredMessage] = []
        query: Mapping[str, str] = {"limit": str(PAGE_SIZE)}
        while True:
            with _gone_if_unknown():
                answer, headers = await self._http.exchange(
                    "GET", "session", self.ref.id, "message", query=query
                )
            messages = [*wire.read(list[StoredMessage], answer), *messages]
            for index, message in enumerate(messages):
                if prompt_id(message.info.id) == since:
                    return messages[index:]
            cursor = headers.get("X-Next-Cursor")
            if cursor is None:
                return []
            query = {"limit": str(PAGE_SIZE), "before": cursor}


@contextmanager
def _gone_if_unknown() -> Iterator[None]:
    try:
        yield
    except UpstreamHttpError as exc:
        if _names_nothing(exc):
            raise SessionGone from exc
        raise


def _raise_unless_absent(exc: UpstreamHttpError) -> None:
    """Raise, unless OpenCode says that it has no such thing.

    After the 404 of a proxy nothing is known: a prompt is not sent twice for it, and a decision is
    delivered again.
    """
    if _names_nothing(exc):
        return
    if exc.facts["upstream_status"] == 404:
        raise UpstreamUnreachable("Something else than OpenCode has answered.") from exc
    raise exc


def _names_nothing(exc: UpstreamHttpError) -> bool:
    """Whether OpenCode says that it has no such session, message or request.

    The 404 of a proxy, or of a version without the route, does not have such a name:
    NotFoundError, PermissionNotFoundError, QuestionNotFoundError.
    """
    name = exc.facts["name"]
    is_opencodes = isinstance(name, str) and name.endswith("NotFoundError")
    return exc.facts["upstream_status"] == 404 and is_opencodes


def _subagents_in(events: Sequence[ev.AgentEvent]) -> list[str]:
    """Those that were started and, if one of an earlier turn works again, named by a tool call."""
    found = [event.session for event in events if isinstance(event, ev.ChildStarted)]
    calls = [event for event in events if isinstance(event, ev.ToolSnapshot)]
    return [*found, *(call.child.session for call in calls if call.child is not None)]


def _events_of_subagent(message: StoredMessage) -> list[ev.AgentEvent]:
    """Which model answers, and the signs of life of a sub-agent: its steps and tool calls."""
    shown = (ev.StepStarted, ev.StepFinished, ev.ToolSnapshot)
    parts = [event for part in message.parts for event in wire.part_events(part)]
    return [*wire.message_events(message.info), *(e for e in parts if isinstance(e, shown))]


def _stored_events(message: StoredMessage) -> list[ev.AgentEvent]:
    """The events that would have led to a stored message: its start, its parts, its end."""
    info = message.info
    begun = info.model_copy(
        update={"time": wire.Time(created=info.time.created), "finish": None, "error": None}
    )
    parts = [event for part in message.parts for event in wire.part_events(part)]
    return [*wire.message_events(begun), *parts, *wire.message_events(info)]
