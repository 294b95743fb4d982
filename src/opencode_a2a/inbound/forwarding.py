"""Requests that another node must carry out, as commands.

A node is asked with what the client has sent, so it checks and does the same as if the client had
sent it there. It answers with the id of a task, or with the result of a method in the client's
dialect. Reading needs no other node: every event is in the database that all of them share.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from ..contract.a2a import written
from ..contract.declare import Json
from ..contract.dispatch import Contract
from ..contract.params import validated
from ..domain.nodes import Node
from ..domain.task import Task
from ..domain.values import Caller, TaskState
from ..errors import (
    NodeUnavailable,
    OtherOpenCode,
    OtherWorkspace,
    OutcomeUnknown,
    ServiceError,
    StoreError,
    StoreUnavailable,
    TaskHandover,
    TaskNotCancelable,
)
from ..observe.tracing import SpanRef
from ..service.calls import read_path
from ..service.cluster import Cluster, NotTaken
from ..service.options import SESSION_CONTEXT_PREFIX
from ..service.tasks import Request, Tasks
from . import parse
from .dialect import V03, V03_REST, V1, Dialect
from .render import Renderer

ATTEMPTS = 12  # while a task passes from one node to another
PAUSE_SECONDS = 1.0
LIST_SECONDS = 10.0  # for another node to say what it has
UNANSWERED = 3  # nodes that may have done it and have not said so, before the client is told
_DIALECTS = {dialect.name: dialect for dialect in (V1, V03, V03_REST)}

T = TypeVar("T")
Find = Callable[[], Awaitable[Node | None]]
Here = Callable[[], Awaitable[T]]


class Sent(Protocol):
    """The parts of a request that the other node needs to know."""

    @property
    def caller(self) -> Caller: ...
    @property
    def dialect(self) -> Dialect: ...
    @property
    def params(self) -> Any: ...
    @property
    def idempotency_key(self) -> str | None: ...
    @property
    def depth(self) -> str | None: ...
    @property
    def trace(self) -> SpanRef: ...


@dataclass(slots=True)
class _Asked:
    """What a node is asked to do."""

    kind: str
    body: Json
    unanswered: int = 0  # nodes that have taken it, and did not say what came of it
    was_ignored: bool = False  # a node that seemed to run has not taken it in time


class Forwarding:
    def __init__(self, cluster: Cluster, tasks: Tasks, contract: Contract) -> None:
        self._cluster = cluster
        self._tasks = tasks
        self._contract = contract

    def install(self) -> None:
        """Do from now on what other nodes ask for."""
        self._cluster.handlers |= {
            "send": self._on_send,
            "cancel": self._on_cancel,
            "method": self._on_method,
        }

    async def do(self, there: Callable[[], Awaitable[T | None]], here: Here[T]) -> T:
        """Have another node do it, if it is for another one; otherwise do it here.

        This node may not know yet that there are others: then it looks, and tries again.
        """
        for knows in (False, True):
            if (found := await there()) is not None:
                return found
            try:
                return await here()
            except (TaskHandover, OtherOpenCode, OtherWorkspace):
                if knows:
                    raise
                if not await self._cluster.look():
                    # Who else could do it cannot be found out, so this is no final answer.
                    raise StoreUnavailable.nothing_changed() from None
        raise AssertionError("it was done, or refused")

    # -- asking

    async def send(self, call: Sent, request: Request) -> Task | None:
        """Have another node take a message; None if this one is to take it."""
        body = {
            "caller": _caller(call.caller),
            "dialect": call.dialect.name,
            "params": call.params,
            "idempotency_key": call.idempotency_key,
            "depth": call.depth,
            "trace": [call.trace.trace, call.trace.span, call.trace.sampled],
            "command": str(uuid.uuid4()),
        }
        request, asked = replace(request, command_id=body["command"]), _Asked("send", body)
        try:
            found = await self._ask(lambda: self._node_for(call.caller, request), asked)
        except OutcomeUnknown:
            with suppress(StoreError):
                if (task := await self._tasks.find(call.caller, request)) is not None:
                    return task
            raise
        if found is not None:
            return await self._read(call.caller, found["task"])
        if asked.unanswered:  # another node may have stored it, or be about to
            try:
                return await self._tasks.send(call.caller, request)
            except StoreUnavailable:
                raise OutcomeUnknown from None
        return None

    async def cancel(self, caller: Caller, task_id: str) -> Task | None:
        asked = _Asked("cancel", {"caller": _caller(caller), "task": task_id})
        find: Find = lambda: self._cluster.for_task(caller.principal, task_id)  # noqa: E731
        try:
            found = await self._ask(find, asked)
        except TaskNotCancelable:
            if asked.unanswered:
                task = await self._read(caller, task_id)
                if task.state is TaskState.CANCELED:
                    return task  # by the node that has not answered
            raise
        if found is None and not asked.unanswered:
            return None
        task = await self._read(caller, task_id)
        return task if found is not None or task.state is TaskState.CANCELED else None

    async def method(
        self, name: str, caller: Caller, params: Any, *, dialect: str
    ) -> tuple[Json] | None:
        """What a method of an extension returns at another node; None if it is for this one."""
        given = params if isinstance(params, dict) else {}
        session_id, request_id = given.get("session_id"), given.get("request_id")
        body = {"caller": _caller(caller), "method": name, "params": given, "dialect": dialect}
        find: Find
        if isinstance(request_id, str):
            find = lambda: self._cluster.for_request(caller.principal, request_id)  # noqa: E731
        elif isinstance(session_id, str):
            find = lambda: self._cluster.for_session(caller.principal, session_id)  # noqa: E731
        elif self._contract.lists_all_nodes(name) and not self._cluster.is_alone:
            return (await self._of_all_nodes(body),)
        else:
            return None
        found = await self._ask(find, _Asked("method", body))
        return None if found is None else (found["value"],)

    async def _of_all_nodes(self, body: Json) -> Json:
        """What a method lists here, and at one node of each other OpenCode of this root."""
        found: Json = (await self._on_method(body))["value"]  # or it is refused
        others, away = self._cluster.others_of_root()
        there = await asyncio.gather(*(self._listed_by(node, body) for node in others))
        lists = [found, *(each for each in there if each is not None)]
        items = [item for each in lists for item in each["items"]]
        items.sort(key=_changed_at, reverse=True)
        asked = zip(others, there, strict=True)
        missing = [*away, *(node.opencode for node, each in asked if each is None)]
        limit = self._contract.limit_of(body["method"], body["params"])
        return {**found, "items": items[:limit], "missing": sorted(missing)}

    async def _listed_by(self, node: Node, body: Json) -> Json | None:
        """What another node lists; None if it does not answer in time."""
        try:
            async with asyncio.timeout(LIST_SECONDS):
                listed: Json = (await self._cluster.ask(node, "method", body))["value"]
                return listed
        except (NotTaken, ServiceError, TimeoutError):
            return None

    async def _read(self, caller: Caller, task_id: str) -> Task:
        """A task that another node has changed, or may have: so nobody is told that it has not."""
        try:
            return await self._tasks.get(caller, task_id)
        except StoreUnavailable:
            raise OutcomeUnknown from None

    async def _node_for(self, caller: Caller, request: Request) -> Node | None:
        cluster, owner = self._cluster, caller.principal
        if request.task_id is not None:
            return await cluster.for_task(owner, request.task_id)
        if request.options.session is not None:
            return await cluster.for_session(owner, request.options.session)
        if request.context_id is None:
            return cluster.for_new_context(label=request.options.node)
        if request.context_id.startswith(SESSION_CONTEXT_PREFIX):
            session_id = request.context_id.removeprefix(SESSION_CONTEXT_PREFIX)
            return await cluster.for_session(owner, session_id)
        return await cluster.for_context(owner, request.context_id, request.options.node)

    async def _ask(self, find: Find, asked: _Asked) -> Any:
        """Ask whoever it is for. A task that passes to another node is followed there.

        A node that has not answered may have done it. What can be done once only, because a key
        is stored with it, is asked of the next one.
        """
        if self._cluster.is_alone:
            return None
        opencode = None
        for _ in range(ATTEMPTS):
            try:
                if (node := await find()) is None:
                    return None
                opencode = node.opencode
                return await self._cluster.ask(node, asked.kind, asked.body)
            except NotTaken:
                asked.was_ignored = True
            except TaskHandover:
                await asyncio.sleep(PAUSE_SECONDS)
            except OutcomeUnknown:
                asked.unanswered += 1
                if asked.kind == "method" or asked.unanswered == UNANSWERED:
                    raise
            except StoreUnavailable:
                if asked.unanswered:
                    break
                raise
            except NodeUnavailable:
                if asked.unanswered:
                    break
                if not asked.was_ignored:
                    raise
                await asyncio.sleep(PAUSE_SECONDS)  # that node may only be busy
        raise OutcomeUnknown if asked.unanswered else NodeUnavailable.of(opencode)

    # -- being asked

    async def _on_send(self, body: Json) -> Json:
        params = validated(parse.SendParams, body["params"])
        trace, span, sampled = body["trace"]
        path = read_path(body["depth"], SpanRef(trace, span, sampled=sampled))
        send = parse.Send(
            _DIALECTS[body["dialect"]], params, idempotency_key=body["idempotency_key"], path=path
        )
        request = replace(send.request, command_id=body.get("command"))
        task = await self._tasks.send(_caller_of(body), request)
        return {"task": task.head.id}

    async def _on_cancel(self, body: Json) -> Json:
        await self._tasks.cancel(_caller_of(body), body["task"])
        return {}

    async def _on_method(self, body: Json) -> Json:
        found = await self._contract.call(body["method"], _caller_of(body), body["params"])
        return {"value": written(found, Renderer(_DIALECTS[body["dialect"]]).value)}


def _changed_at(item: Json) -> str:
    """When a session was changed; sessions without that stay in their order."""
    status = item.get("status")
    return str(status.get("timestamp", "")) if isinstance(status, dict) else ""


def _caller(caller: Caller) -> Json:
    return {"principal": caller.principal, "scopes": sorted(caller.scopes)}


def _caller_of(body: Json) -> Caller:
    return Caller(body["caller"]["principal"], frozenset(body["caller"]["scopes"]))
