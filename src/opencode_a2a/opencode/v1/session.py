"""A conversation with OpenCode 1.x.

It never answers a request that arrives while it starts. A read can be repeated, a change cannot:
the service sends it only while events arrive, because then OpenCode is up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ...domain import events as ev
from ...domain.ports import SessionGone
from ...domain.values import (
    Decision,
    Interrupt,
    PermissionAsk,
    PermissionDecision,
    Prompt,
    QuestionDecision,
    SessionRef,
)
from ...errors import UpstreamHttpError
from ..answers import read
from ..api import Defaults, gone_if_unknown, without_none
from ..feed import Feed, Subscription
from ..http import NotFound, Requests
from ..ids import dated_id, prompt_id
from ..session import Session
from . import wire
from .instances import Instances

PAGE_SIZE = 50  # messages read at once when catching up


class Session1(Session):
    def __init__(
        self,
        ref: SessionRef,
        http: Requests,
        feed: Feed,
        defaults: Defaults,
        instances: Instances,
    ) -> None:
        super().__init__(ref, http, feed, defaults)
        self._instances = instances
        self._dated_ids: dict[str, str] = {}  # of prompts, where the order needs them
        self._here = {"directory": self._directory}

    @property
    def _orders_messages_by_id(self) -> bool:
        release = self._feed.release
        return release is not None and release.orders_messages_by_id

    async def _call(self, method: str, *more: str, body: Any = None) -> Any:
        return await self._http.call(method, "session", self.ref.id, *more, body=body)

    async def events(self) -> Subscription:
        # Before the prompt, and where a cancel does not have to wait for it.
        await self._instances.load(self._directory)
        return await super().events()

    async def prompt(self, prompt: Prompt, *, replaces: bool = False) -> None:
        await self._feed.ready()
        await self._instances.load(self._directory)  # OpenCode may have been started again
        message_id = prompt.message_id
        if self._orders_messages_by_id:
            message_id = self._dated_ids.setdefault(message_id, dated_id(message_id))
        if replaces and not await self._withdraw(message_id):
            return
        defaults, selected = self._defaults, prompt.selection
        body = {
            "messageID": message_id,
            "parts": wire.prompt_parts(message_id, prompt.parts),
            "agent": selected.agent or defaults.agent or None,
            "system": defaults.system or None,
            "variant": selected.variant or defaults.variant or None,
            "model": wire.model(selected.model or self.ref.model),
        }
        with gone_if_unknown():
            await self._call("POST", "prompt_async", body=without_none(body))

    async def _withdraw(self, message_id: str) -> bool:
        """Remove a prompt: sent again, its files would stand there twice. False if it is at work.

        It may have begun just now.
        """
        try:
            await self._call("DELETE", "message", message_id)
        except NotFound:
            pass
        except UpstreamHttpError as exc:
            if exc.facts["upstream_status"] == 409:
                return False
            raise
        return True

    async def has(self, message_id: str) -> bool:
        try:
            await self._call("GET", "message", message_id)
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

    async def abort(self, sub_agents: Collection[str]) -> None:
        await self._wait_for_events()
        await self._http.call("POST", "session", self.ref.id, "abort", query=self._here)
        # What they wait for stays open otherwise, and could be approved later.
        await asyncio.gather(
            *(
                self.settle(ask, _refusal_of(ask))
                for ask in await self._pending({self.ref.id, *sub_agents})
            )
        )

    async def _settle(self, interrupt: Interrupt, decision: Decision) -> None:
        kind, verb, body = "question", "reject", dict[str, Any]()
        if isinstance(decision, PermissionDecision):
            kind, verb, body = "permission", "reply", {"reply": decision.reply}
            body |= {"message": decision.message} if decision.message else {}
        elif decision.answers is not None:
            verb, body = "reply", {"answers": decision.answers}
        where = (kind, interrupt.request_id, verb)
        await self._http.call("POST", *where, query=self._here, body=body or None)

    async def _diff(self, message_id: str) -> Any:
        if message_id not in self._dated_ids and self._orders_messages_by_id:
            await self._has_dated(message_id)
        query = {"messageID": self._dated_ids.get(message_id, message_id)}
        return await self._http.call("GET", "session", self.ref.id, "diff", query=query)

    async def _statuses(self) -> Mapping[str, wire.Status]:
        answer = await self._http.call("GET", "session", "status", query=self._here)
        return read(dict[str, wire.Status], answer)

    def _at_rest(
        self, statuses: Mapping[str, wire.Status], family: Collection[str], end: ev.AgentEvent
    ) -> Sequence[ev.AgentEvent]:
        status = statuses.get(self.ref.id)
        return [end if status is None else wire.status_event(self.ref.id, status)]

    async def _pending(self, family: Collection[str]) -> Sequence[Interrupt]:
        permissions, questions = await asyncio.gather(
            self._http.call("GET", "permission", query=self._here),
            self._http.call("GET", "question", query=self._here),
        )
        found: list[Interrupt] = [
            *map(wire.permission, read(list[wire.PermissionInfo], permissions)),
            *map(wire.question, read(list[wire.QuestionInfo], questions)),
        ]
        return [each for each in found if each.session in family]

    async def _done_by(self, sub_agent: str, since: int) -> Sequence[ev.AgentEvent]:
        answer = await self._http.call("GET", "session", sub_agent, "message")
        messages = [each for each in read(list[wire.Message], answer) if each.info.created >= since]
        return [event for message in messages for event in wire.events_of(message)]

    async def _children(self, parent: str, since: int) -> Sequence[ev.AgentEvent]:
        answer = await self._http.call("GET", "session", parent, "children")
        return [
            ev.ChildStarted(child.id, parent, agent=child.agent)
            for child in read(list[wire.SessionInfo], answer)
            if child.created >= since
        ]

    async def _stored(self, since: str) -> tuple[int, list[ev.AgentEvent], ev.AgentEvent]:
        messages = await self._messages_since(since)
        prompted_at = messages[0].info.created if messages else 0
        events = [event for message in messages for event in wire.stored_events(message)]
        return prompted_at, events, ev.Idle(self.ref.id)

    async def _messages_since(self, since: str) -> list[wire.Message]:
        """The messages from `since` on, oldest first; none when OpenCode does not have it."""
        messages: list[wire.Message] = []
        query = {"limit": str(PAGE_SIZE)}
        while True:
            with gone_if_unknown():
                answer, headers = await self._http.exchange(
                    "GET", "session", self.ref.id, "message", query=query
                )
            messages = [*read(list[wire.Message], answer), *messages]
            for index, message in enumerate(messages):
                if prompt_id(message.info.id) == since:
                    return messages[index:]
            if (cursor := headers.get("X-Next-Cursor")) is None:
                return []
            query["before"] = cursor


def _refusal_of(ask: Interrupt) -> Decision:
    return (
        PermissionDecision("reject") if isinstance(ask, PermissionAsk) else QuestionDecision(None)
    )
