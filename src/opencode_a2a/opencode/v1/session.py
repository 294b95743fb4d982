"""Conversations with OpenCode 1.x: implements the ports `Driver` and `AgentSession`.

It never answers a request that arrives while it starts. A read can be repeated, a change cannot:
the service sends it only while events arrive, because then OpenCode is up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pydantic import Field

from ...domain import events as ev
from ...domain.catalog import Location
from ...domain.ports import SessionGone
from ...domain.values import (
    Decision,
    FileChange,
    Interrupt,
    PermissionAction,
    PermissionDecision,
    PermissionRule,
    Prompt,
    QuestionDecision,
    SessionRef,
)
from ...errors import UpstreamError, UpstreamHttpError
from ..answers import DiffInfo, Wire, file_change, read
from ..driver import ABORT_WAIT_SECONDS, CALL_MS, Defaults, gone_if_unknown, subagents_in
from ..feed import Feed, Subscription
from ..http import Http, NotFound, Requests
from ..ids import dated_id, part_id, prompt_id
from . import wire
from .catalog import OpenCodeCatalog
from .instances import Instances

PAGE_SIZE = 50  # messages read at once when catching up


class StoredMessage(Wire):
    info: wire.MessageInfo
    parts: list[wire.PartInfo] = Field(default=[])


class _Rule(Wire):
    permission: str
    pattern: str
    action: PermissionAction

    @property
    def rule(self) -> PermissionRule:
        return PermissionRule(self.permission, self.pattern, self.action)


class _HasRules(Wire):
    """A session or an agent."""

    name: str = ""
    permission: list[_Rule] = Field(default=[])

    @property
    def rules(self) -> list[PermissionRule]:
        return [each.rule for each in self.permission]


class _McpStatus(Wire):
    status: str


class Driver:
    """Implements `opencode.driver.Driver`."""

    tells_of_disposals = True

    def __init__(self, http: Http, feed: Feed, defaults: Defaults) -> None:
        self._http = http
        self._feed = feed
        self._defaults = defaults
        self._instances = Instances(http, feed)

    async def connected(self) -> None:
        await self._instances.load(self._defaults.directory)

    async def create(
        self, title: str, context_id: str, *, location: Location, rules: Sequence[PermissionRule]
    ) -> SessionRef:
        defaults = self._defaults
        # The metadata shows services for other roots that the session is not theirs.
        origin = {"contextId": context_id, "root": defaults.directory}
        # Without a title OpenCode would ask a model for one.
        body: dict[str, Any] = {"title": title, "metadata": {"a2a": origin}}
        if location.workspace is not None:
            body["workspaceID"] = location.workspace
        if rules:
            body["permission"] = [wire.rule_to_wire(rule) for rule in rules]
        answer = await self._http.call(
            "POST", "session", query={"directory": location.directory}, body=body
        )
        created = read(wire.SessionInfo, answer)
        return SessionRef(created.id, title, directory=created.directory or location.directory)

    async def delete(self, ref: SessionRef) -> None:
        await self._http.call("DELETE", "session", ref.id)

    def session(self, ref: SessionRef, _: Sequence[PermissionRule]) -> Session:
        return Session(
            ref,
            http=self._http,
            feed=self._feed,
            defaults=self._defaults,
            instances=self._instances,
        )

    def catalog(self, requests: Requests) -> OpenCodeCatalog:
        return OpenCodeCatalog(requests, self._defaults.run_seconds)

    async def mcp_status(self, directory: str, server: str) -> str | None:
        answer = await self._http.call("GET", "mcp", query={"directory": directory})
        found = read(dict[str, _McpStatus], answer).get(server)
        return found.status if found is not None else None

    async def add_mcp(
        self, directory: str, server: str, *, url: str, headers: Mapping[str, str]
    ) -> None:
        config = {"type": "remote", "url": url, "headers": dict(headers)}
        body = {"name": server, "config": {**config, "oauth": False, "timeout": CALL_MS}}
        await self._http.call("POST", "mcp", query={"directory": directory}, body=body)

    async def agent_rules(self, directory: str) -> Mapping[str, Sequence[PermissionRule]]:
        answer = await self._http.call("GET", "agent", query={"directory": directory})
        return {agent.name: agent.rules for agent in read(list[_HasRules], answer)}

    async def session_rules(self, session: str) -> Sequence[PermissionRule]:
        return read(_HasRules, await self._http.call("GET", "session", session)).rules

    async def add_rules(self, session: str, rules: Sequence[PermissionRule]) -> None:
        body = {"permission": [wire.rule_to_wire(rule) for rule in rules]}
        await self._http.call("PATCH", "session", session, body=body)


class Session:
    def __init__(
        self,
        ref: SessionRef,
        http: Http,
        feed: Feed,
        defaults: Defaults,
        instances: Instances,
    ) -> None:
        self.ref = ref
        self._http = http
        self._feed = feed
        self._defaults = defaults
        self._instances = instances
        self._dated_ids: dict[str, str] = {}  # of prompts, where the order needs them
        self._subscription: Subscription | None = None
        self._directory = ref.directory or defaults.directory
        self._directory_query = {"directory": self._directory}

    @property
    def _orders_messages_by_id(self) -> bool:
        release = self._feed.release
        return release is not None and release.orders_messages_by_id

    async def events(self) -> Subscription:
        # Before the prompt, and where a cancel does not have to wait for it.
        await self._instances.load(self._directory)
        self._subscription = await self._feed.subscribe(self.ref.id)
        return self._subscription

    async def prompt(self, prompt: Prompt, *, replaces: bool = False) -> None:
        await self._feed.ready()
        await self._instances.load(self._directory)  # OpenCode may have been started again
        message_id = prompt.message_id
        if self._orders_messages_by_id:
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
        with gone_if_unknown():
            await self._http.call("POST", "session", self.ref.id, "prompt_async", body=body)

    async def _withdraw(self, message_id: str) -> bool:
        """Remove a prompt: sent again, its files would stand there twice. False if it is at work.

        It may have begun just now.
        """
        try:
            await self._http.call("DELETE", "session", self.ref.id, "message", message_id)
        except NotFound:
            pass
        except UpstreamHttpError as exc:
            if exc.facts["upstream_status"] == 409:
                return False
            raise
        return True

    async def has(self, message_id: str) -> bool:
        try:
            await self._http.call("GET", "session", self.ref.id, "message", message_id)
        except NotFound:
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
        statuses = read(
            dict[str, wire.Status],
            await self._http.call("GET", "session", "status", query=self._directory_query),
        )
        messages = await self._messages_since(since)
        prompted_at = messages[0].info.time.created if messages else 0
        events: list[ev.AgentEvent] = [*await self._children(self.ref.id, prompted_at)]
        events += [event for message in messages for event in _stored_events(message)]
        family, waiting = {self.ref.id}, subagents_in(events)
        while waiting:
            subagent = waiting.pop(0)
            if subagent in family:
                continue
            family.add(subagent)
            if self._subscription is not None:
                self._subscription.include(subagent)
            done = await self._done_by(subagent, prompted_at)
            waiting += subagents_in(done)
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

    async def abort(self, sub_agents: Collection[str]) -> None:
        await self._wait_for_events()
        await self._http.call("POST", "session", self.ref.id, "abort", query=self._directory_query)
        # What they wait for stays open otherwise, and could be approved later.
        permissions, questions = await self._pending({self.ref.id, *sub_agents})
        await asyncio.gather(
            *(self.settle(wire.permission(p), PermissionDecision("reject")) for p in permissions),
            *(self.settle(wire.question(q), QuestionDecision(None)) for q in questions),
        )

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
        except NotFound:
            return False  # somebody else has decided, or OpenCode has lost the request
        return True

    async def changes(self, message_id: str) -> tuple[FileChange, ...]:
        if message_id not in self._dated_ids and self._orders_messages_by_id:
            await self._has_dated(message_id)
        message_id = self._dated_ids.get(message_id, message_id)
        answer = await self._http.call(
            "GET", "session", self.ref.id, "diff", query={"messageID": message_id}
        )
        return tuple(file_change(diff) for diff in read(list[DiffInfo], answer))

    async def _pending(
        self, family: Collection[str]
    ) -> tuple[list[wire.PermissionInfo], list[wire.QuestionInfo]]:
        permissions, questions = await asyncio.gather(
            self._http.call("GET", "permission", query=self._directory_query),
            self._http.call("GET", "question", query=self._directory_query),
        )
        return (
            [p for p in read(list[wire.PermissionInfo], permissions) if p.session in family],
            [q for q in read(list[wire.QuestionInfo], questions) if q.session in family],
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
            for child in read(list[wire.SessionInfo], answer)
            if child.time.created >= since
        ]

    async def _messages(self, session: str) -> list[StoredMessage]:
        return read(
            list[StoredMessage], await self._http.call("GET", "session", session, "message")
        )

    async def _messages_since(self, since: str) -> list[StoredMessage]:
        """The messages from `since` on, oldest first; none when OpenCode does not have it."""
        messages: list[StoredMessage] = []
        query: Mapping[str, str] = {"limit": str(PAGE_SIZE)}
        while True:
            with gone_if_unknown():
                answer, headers = await self._http.exchange(
                    "GET", "session", self.ref.id, "message", query=query
                )
            messages = [*read(list[StoredMessage], answer), *messages]
            for index, message in enumerate(messages):
                if prompt_id(message.info.id) == since:
                    return messages[index:]
            cursor = headers.get("X-Next-Cursor")
            if cursor is None:
                return []
            query = {"limit": str(PAGE_SIZE), "before": cursor}


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
