"""A conversation with OpenCode 2."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Unpack

from ...domain import events as ev
from ...domain.values import (
    Decision,
    Interrupt,
    PermissionAsk,
    PermissionDecision,
    Prompt,
    QuestionAsk,
    Selection,
    SessionRef,
)
from ...errors import UpstreamHttpError
from ..answers import read
from ..api import Defaults, gone_if_unknown
from ..feed import Feed
from ..http import NotFound, Options, Requests
from ..session import Session
from . import wire

PAGE_SIZE = 200  # messages read at once; OpenCode gives no more


class Session2(Session):
    settled_errors = ("FormAlreadySettledError",)

    def __init__(
        self,
        ref: SessionRef,
        http: Requests,
        feed: Feed,
        defaults: Defaults,
        *,
        prepare: Callable[[Selection], Awaitable[str]],
    ) -> None:
        """`prepare` has the session answer as a prompt wants it; its title."""
        super().__init__(ref, http, feed, defaults)
        self._prepare = prepare

    async def _call(
        self, method: str, *more: str, session: str | None = None, **options: Unpack[Options]
    ) -> Any:
        where = ("api", "session", session or self.ref.id, *more)
        return await self._http.call(method, *where, **options)

    async def prompt(self, prompt: Prompt, *, replaces: bool = False) -> None:
        await self._feed.ready()
        with gone_if_unknown():
            title = await self._prepare(prompt.selection)
        if self._subscription is not None and title:  # it may have got it after its last run
            self._subscription.put([ev.TitleChanged(self.ref.id, title)])
        if replaces and not await self._withdraw(prompt.message_id):
            return
        body = {"id": prompt.message_id, **wire.prompt_body(prompt.parts)}
        with gone_if_unknown():
            await self._call("POST", "prompt", body=body)

    async def _withdraw(self, message_id: str) -> bool:
        """Remove a prompt: one that OpenCode has is not begun again. False if it is at work."""
        with suppress(NotFound):
            await self._call("DELETE", "inbox", message_id)
            return True  # it had not begun
        try:
            body = {"messageID": message_id, "files": False}
            await self._call("POST", "revert", "stage", body=body)
            await self._call("POST", "revert", "commit")
        except NotFound:
            pass
        except UpstreamHttpError as exc:
            if exc.facts["upstream_status"] == 409:
                return False
            raise
        return True

    async def has(self, message_id: str) -> bool:
        with suppress(NotFound):
            await self._call("GET", "message", message_id)
            return True
        with suppress(NotFound):  # OpenCode may have taken it, and not have begun with it
            answer = await self._call("GET", "inbox")
            return any(each.get("id") == message_id for each in answer["data"])
        return False

    async def abort(self, sub_agents: Collection[str]) -> None:
        await self._wait_for_events()
        # The children that it waits for stop with it; those in the background do not.
        for session in (self.ref.id, *sub_agents):
            with suppress(NotFound):
                await self._call("POST", "interrupt", session=session)

    async def _settle(self, interrupt: Interrupt, decision: Decision) -> None:
        session, request_id = interrupt.session, interrupt.request_id
        if isinstance(decision, PermissionDecision):
            if decision.message:
                await self._pass_on(session, request_id, decision.message)
            # "always" would hold for every session of the project, and for good.
            body = {"decision": "reject" if decision.reply == "reject" else "once"}
            body |= {"message": decision.message} if decision.message else {}
            await self._call("POST", "permission", request_id, "reply", session=session, body=body)
        elif decision.answers is None or not isinstance(interrupt, QuestionAsk):
            await self._call("DELETE", "form", request_id, session=session)
        else:
            answer = {"answer": wire.answer_to(interrupt, decision.answers)}
            await self._call("POST", "form", request_id, "reply", session=session, body=answer)

    async def _pass_on(self, session: str, request_id: str, message: str) -> None:
        """Tell the model why it was refused: OpenCode would only say that the call has failed.

        The run waits for the decision, so it gets this with its next step.
        """
        await self._call("GET", "permission", request_id, session=session)  # if it still waits
        body = {"id": f"msg_{request_id.removeprefix('per_')}", "text": message}
        await self._call("POST", "prompt", session=session, body=body)

    async def _diff(self, message_id: str) -> Any:
        query = {"from": message_id, "to": message_id}
        return (await self._call("GET", "diff", query=query))["data"]

    async def _statuses(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = await self._http.call("GET", "api", "session", "active")
        return read(dict[str, Any], found["data"])

    def _at_rest(
        self, statuses: Mapping[str, Any], family: Collection[str], end: ev.AgentEvent
    ) -> Sequence[ev.AgentEvent]:
        idle = [ev.Idle(each) for each in family if each != self.ref.id and each not in statuses]
        return [*idle, end if statuses.keys().isdisjoint(family) else ev.Busy(self.ref.id)]

    async def _pending(self, family: Collection[str]) -> Sequence[Interrupt]:
        asks: list[Interrupt] = []
        for session in family:
            with suppress(NotFound):
                permissions = await self._call("GET", "permission", session=session)
                forms = await self._call("GET", "form", session=session)
                asks += map(wire.permission, read(list[wire.Permission], permissions["data"]))
                found = read(list[wire.Form], forms["data"])
                asks += [wire.question(form) for form in found if wire.is_question(form)]
        return asks

    async def _complete(self, ask: Interrupt, events: Sequence[ev.AgentEvent]) -> Interrupt:
        """With its command, which a run that no task has followed has told nobody."""
        if not isinstance(ask, PermissionAsk) or ask.permission != "shell":
            return ask
        if any(isinstance(e, ev.ToolSnapshot) and e.call.call_id == ask.call_id for e in events):
            return ask
        page = await self._page(ask.session, {"limit": "1", "type": "assistant"})
        for event in (each for m in page.data for each in wire.blocks(ask.session, m)):
            if isinstance(event, ev.ToolSnapshot) and event.call.call_id == ask.call_id:
                return replace(ask, command=(event.call.input or {}).get("command"))
        return ask

    async def _done_by(self, sub_agent: str, since: int) -> Sequence[ev.AgentEvent]:
        page = await self._page(sub_agent, {"limit": str(PAGE_SIZE)})
        messages = [each for each in reversed(page.data) if each.created >= since]
        return [event for each in messages for event in wire.stored_events(sub_agent, each)]

    async def _children(self, parent: str, since: int) -> Sequence[ev.AgentEvent]:
        query = {"parentID": parent, "limit": str(PAGE_SIZE)}
        answer = await self._http.call("GET", "api", "session", query=query)
        return [
            ev.ChildStarted(child.id, parent, agent=child.agent)
            for child in reversed(read(list[wire.Session], answer["data"]))
            if child.created >= since
        ]

    async def _stored(self, since: str) -> tuple[int, list[ev.AgentEvent], ev.AgentEvent]:
        messages = await self._messages_since(since)
        prompted_at = messages[0].created if messages else 0
        rests = [number for number, message in enumerate(messages) if message.type == "idle"]
        last_rest = rests[-1] if rests else -1
        events = [
            event
            for number, message in enumerate(messages)
            for event in wire.stored_events(self.ref.id, message, at_rest=number < last_rest)
        ]
        is_over = bool(messages) and messages[-1].type == "idle"
        end = ev.Idle(self.ref.id, wire.end_of_run(messages[-1]) if is_over else None)
        return prompted_at, events, end

    async def _messages_since(self, since: str) -> list[wire.Message]:
        """The messages from `since` on, oldest first; none when OpenCode does not have it."""
        messages: list[wire.Message] = []
        query = {"limit": str(PAGE_SIZE)}
        while True:
            with gone_if_unknown():
                page = await self._page(self.ref.id, query)
            for message in page.data:
                messages.append(message)
                if message.id == since:
                    return messages[::-1]
            if not page.data or page.next is None:
                return []
            query["cursor"] = page.next

    async def _page(self, session: str, query: Mapping[str, str]) -> wire.Page:
        return read(wire.Page, await self._call("GET", "message", session=session, query=query))
