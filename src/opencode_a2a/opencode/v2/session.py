"""Conversations with OpenCode 2: implements the ports `Driver` and `AgentSession`."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Unpack

from ...domain import events as ev
from ...domain.catalog import Location
from ...domain.values import (
    Decision,
    FileChange,
    Interrupt,
    PermissionAsk,
    PermissionDecision,
    PermissionRule,
    Prompt,
    QuestionAsk,
    Selection,
    SessionRef,
)
from ...errors import UpstreamError, UpstreamHttpError
from ..answers import DiffInfo, Wire, file_change, read
from ..driver import ABORT_WAIT_SECONDS, CALL_MS, Defaults, gone_if_unknown, subagents_in
from ..feed import Feed, Subscription
from ..http import Http, NotFound, Options, Requests
from . import wire
from .catalog import OpenCode2Catalog

TOOLS_SECONDS = 0.3  # until sessions have the tools of a server that is connected; nothing tells
PAGE_SIZE = 200  # messages read at once; OpenCode gives no more
INSTRUCTIONS = "opencode-a2a"  # the name of the deployment's system text in a session


class _McpServer(Wire):
    class Status(Wire):
        status: str

    name: str
    status: Status


class Driver:
    """Implements `opencode.driver.Driver`."""

    tells_of_disposals = False

    def __init__(self, http: Http, feed: Feed, defaults: Defaults) -> None:
        self._http = http
        self._feed = feed
        self._defaults = defaults
        self._catalog = OpenCode2Catalog(http, defaults.run_seconds)

    async def connected(self) -> None:
        """Nothing has to be prepared."""

    async def create(
        self, title: str, context_id: str, *, location: Location, rules: Sequence[PermissionRule]
    ) -> SessionRef:
        # The metadata shows services for other roots that the session is not theirs.
        origin = {"contextId": context_id, "root": self._defaults.directory}
        body: dict[str, Any] = {
            "title": title,  # without one OpenCode would ask a model for it
            "metadata": {"a2a": origin},
            "location": {"directory": location.directory},
            "permissions": [wire.rule_to_wire(rule) for rule in rules],
        }
        answer = await self._http.call("POST", "api", "session", body=body)
        created = read(wire.Session, answer["data"])
        return SessionRef(created.id, title, directory=created.location.directory)

    async def delete(self, ref: SessionRef) -> None:
        await self._http.call("DELETE", "api", "session", ref.id)

    def session(self, ref: SessionRef, rules: Sequence[PermissionRule]) -> Session:
        return Session(
            ref, self._http, self._feed, catalog=self._catalog, defaults=self._defaults, rules=rules
        )

    def catalog(self, requests: Requests) -> OpenCode2Catalog:
        return OpenCode2Catalog(requests, self._defaults.run_seconds)

    async def mcp_status(self, directory: str, server: str) -> str | None:
        answer = await self._http.call("GET", "api", "mcp", query=wire.at(directory))
        servers = read(list[_McpServer], answer["data"])
        return next((each.status.status for each in servers if each.name == server), None)

    async def add_mcp(
        self, directory: str, server: str, *, url: str, headers: Mapping[str, str]
    ) -> None:
        await self._catalog.loaded(Location(directory))  # only then it connects at once
        config = {
            "type": "remote",
            "url": url,
            "headers": dict(headers),
            "oauth": False,
            "codemode": False,  # the model sees the tools themselves, and is asked for each call
            "timeout": {"execution": CALL_MS},
        }
        await self._http.call(
            "PUT",
            *("api", "experimental", "mcp", server),
            query=wire.at(directory),
            body={"config": config},
        )
        await asyncio.sleep(TOOLS_SECONDS)

    async def agent_rules(self, directory: str) -> Mapping[str, Sequence[PermissionRule]]:
        agents = await self._catalog.list_agents(Location(directory))
        return {agent.id: [each.rule for each in agent.permissions] for agent in agents}

    async def session_rules(self, session: str) -> Sequence[PermissionRule]:
        answer = await self._http.call("GET", "api", "session", session)
        return [each.rule for each in read(wire.Session, answer["data"]).permissions]

    async def add_rules(self, session: str, rules: Sequence[PermissionRule]) -> None:
        await self._catalog.restrict(session, rules)


class Session:
    def __init__(
        self,
        ref: SessionRef,
        http: Http,
        feed: Feed,
        *,
        catalog: OpenCode2Catalog,
        defaults: Defaults,
        rules: Sequence[PermissionRule],
    ) -> None:
        self.ref = ref
        self._http = http
        self._feed = feed
        self._catalog = catalog
        self._defaults = defaults
        self._rules = rules
        self._subscription: Subscription | None = None
        self._directory = ref.directory or defaults.directory

    async def _call(
        self, method: str, *more: str, session: str | None = None, **options: Unpack[Options]
    ) -> Any:
        where = ("api", "session", session or self.ref.id, *more)
        return await self._http.call(method, *where, **options)

    async def events(self) -> Subscription:
        self._subscription = await self._feed.subscribe(self.ref.id)
        return self._subscription

    async def prompt(self, prompt: Prompt, *, replaces: bool = False) -> None:
        await self._feed.ready()
        with gone_if_unknown():
            await self._prepare(prompt.selection)
        if replaces and not await self._withdraw(prompt.message_id):
            return
        body = {"id": prompt.message_id, **wire.prompt_body(prompt.parts)}
        with gone_if_unknown():
            await self._call("POST", "prompt", body=body)

    async def _prepare(self, selected: Selection) -> None:
        """Have the session answer as the prompt wants it: each choice holds until it is changed."""
        defaults = self._defaults
        found = read(wire.Session, (await self._call("GET"))["data"])
        if self._subscription is not None and found.title:  # it may have got it after its last run
            self._subscription.put([ev.TitleChanged(self.ref.id, found.title)])
        if self._rules:
            await self._catalog.keep_rules(self.ref.id, self._rules)
        if defaults.system:
            where = ("api", "experimental", "session", self.ref.id, "instructions", "entries")
            body = {"value": defaults.system}
            await self._http.call("PUT", *where, INSTRUCTIONS, body=body)
        await self._catalog.choose(
            found,
            agent=selected.agent or defaults.agent,
            model=selected.model or self.ref.model,
            variant=selected.variant or defaults.variant,
        )

    async def _withdraw(self, message_id: str) -> bool:
        """Remove a prompt: one that OpenCode has is not begun again. False if it is at work."""
        try:
            await self._call("DELETE", "inbox", message_id)
            return True  # it had not begun
        except NotFound:
            pass
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
        try:
            await self._call("GET", "message", message_id)
        except NotFound:
            return await self._is_waiting(message_id)
        return True

    async def _is_waiting(self, message_id: str) -> bool:
        """Whether OpenCode has taken a prompt that is no message yet."""
        try:
            answer = await self._call("GET", "inbox")
        except NotFound:
            return False
        return any(each.get("id") == message_id for each in answer["data"])

    async def read(self, since: str) -> Sequence[ev.AgentEvent]:
        # What is at work is read first. If the run ends in between, its messages are complete and
        # the next read finds it at rest. The other order would show it at rest and unfinished.
        active = (await self._http.call("GET", "api", "session", "active"))["data"]
        messages = await self._messages_since(since)
        prompted_at = messages[0].time.created if messages else 0
        events: list[ev.AgentEvent] = [*await self._children(self.ref.id, prompted_at)]
        events += _stored_events(self.ref.id, messages)
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
        if self._subscription is not None:
            for event in events:
                if isinstance(event, ev.ToolSnapshot) and not event.call.over:
                    self._subscription.calls.setdefault(event.part_id, event)
        known = {each.call.call_id for each in events if isinstance(each, ev.ToolSnapshot)}
        pending = await self._pending(family, known)
        requests = [ev.InterruptAsked(ask.session, ask) for ask in pending]
        open_requests = frozenset(each.interrupt.request_id for each in requests)
        events += [ev.Idle(each) for each in family - {self.ref.id} - active.keys()]
        if not family.isdisjoint(active):
            events.append(ev.Busy(self.ref.id))
        elif messages and messages[-1].type == "idle":
            events.append(ev.Idle(self.ref.id, wire.end_of_run(messages[-1])))
        else:
            events.append(ev.Idle(self.ref.id))
        return [*events, *requests, ev.CaughtUp(self.ref.id, open_requests)]

    async def _pending(self, family: Collection[str], calls: Collection[str]) -> list[Interrupt]:
        """What these sessions wait for, with what is shown of calls other than these."""
        asks: list[Interrupt] = []
        for session in family:
            with suppress(NotFound):
                permissions = await self._call("GET", "permission", session=session)
                forms = await self._call("GET", "form", session=session)
                for info in read(list[wire.Permission], permissions["data"]):
                    ask = wire.permission(info)
                    unknown = info.action == "shell" and ask.call_id not in calls
                    asks.append(await self._with_command(info, ask) if unknown else ask)
                found = read(list[wire.Form], forms["data"])
                asks += [wire.question(form) for form in found if wire.is_question(form)]
        return asks

    async def _with_command(self, info: wire.Permission, ask: PermissionAsk) -> PermissionAsk:
        """The same with its command, which only the call tells."""
        if info.source is None:
            return ask
        where = ("message", info.source.message)
        found = read(wire.Message, (await self._call("GET", *where, session=info.session))["data"])
        calls = [e.call for e in wire.blocks(info.session, found) if isinstance(e, ev.ToolSnapshot)]
        given = next((call.input for call in calls if call.call_id == info.source.id), None)
        return replace(ask, command=(given or {}).get("command"))

    async def _done_by(self, subagent: str, since: int) -> list[ev.AgentEvent]:
        """What a sub-agent has done since then, and the sub-agents that it has started."""
        events: list[ev.AgentEvent] = [*await self._children(subagent, since)]
        page = await self._page(subagent, {"limit": str(PAGE_SIZE)})
        shown = (ev.MessageSeen, ev.StepStarted, ev.StepFinished, ev.ToolSnapshot)
        for message in reversed(page.data):
            if message.time.created >= since:  # not of an earlier turn
                stored = wire.stored_events(subagent, message)
                events += [event for event in stored if isinstance(event, shown)]
        return events

    async def _children(self, parent: str, since: int) -> list[ev.ChildStarted]:
        """The sub-agent sessions that another has started since then."""
        query = {"parentID": parent, "limit": str(PAGE_SIZE)}
        answer = await self._http.call("GET", "api", "session", query=query)
        return [
            ev.ChildStarted(child.id, parent, agent=child.agent)
            for child in reversed(read(list[wire.Session], answer["data"]))
            if child.time.created >= since
        ]

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
            if not page.data or page.cursor.next is None:
                return []
            query = {"limit": str(PAGE_SIZE), "cursor": page.cursor.next}

    async def _page(self, session: str, query: Mapping[str, str]) -> wire.Page:
        return read(wire.Page, await self._call("GET", "message", session=session, query=query))

    async def abort(self, sub_agents: Collection[str]) -> None:
        with suppress(UpstreamError):  # the request is sent in any case: OpenCode may still get it
            await self._feed.ready(ABORT_WAIT_SECONDS)
        # The children that it waits for stop with it; those in the background do not.
        for session in (self.ref.id, *sub_agents):
            with suppress(NotFound):
                await self._call("POST", "interrupt", session=session)

    async def settle(self, interrupt: Interrupt, decision: Decision) -> bool:
        with suppress(UpstreamError):
            await self._feed.ready(ABORT_WAIT_SECONDS)
        session, request_id = interrupt.session, interrupt.request_id
        try:
            if isinstance(decision, PermissionDecision):
                if decision.message:
                    await self._pass_on(session, request_id, decision.message)
                # "always" would hold for every session of the project, and for good.
                body = {"decision": "reject" if decision.reply == "reject" else "once"}
                body |= {"message": decision.message} if decision.message else {}
                where = ("permission", request_id, "reply")
                await self._call("POST", *where, session=session, body=body)
            elif decision.answers is None or not isinstance(interrupt, QuestionAsk):
                await self._call("DELETE", "form", request_id, session=session)
            else:
                answer = {"answer": wire.answer_to(interrupt, decision.answers)}
                await self._call("POST", "form", request_id, "reply", session=session, body=answer)
        except NotFound:
            return False  # somebody else has decided, or OpenCode has lost the request
        except UpstreamHttpError as exc:
            if exc.facts["name"] == "FormAlreadySettledError":
                return False
            raise
        return True

    async def _pass_on(self, session: str, request_id: str, message: str) -> None:
        """Tell the model why it was refused: OpenCode would only say that the call has failed.

        The run waits for the decision, so it gets this with its next step.
        """
        await self._call("GET", "permission", request_id, session=session)  # if it still waits
        body = {"id": f"msg_{request_id.removeprefix('per_')}", "text": message}
        await self._call("POST", "prompt", session=session, body=body)

    async def changes(self, message_id: str) -> tuple[FileChange, ...]:
        query = {"from": message_id, "to": message_id}
        answer = await self._call("GET", "diff", query=query)
        return tuple(map(file_change, read(list[DiffInfo], answer["data"])))


def _stored_events(session: str, messages: Sequence[wire.Message]) -> Iterator[ev.AgentEvent]:
    rests = [number for number, message in enumerate(messages) if message.type == "idle"]
    last_rest = rests[-1] if rests else -1
    for number, message in enumerate(messages):
        yield from wire.stored_events(session, message, at_rest=number < last_rest)
