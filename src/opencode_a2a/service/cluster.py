"""This process among the others that share its database.

Every node can be asked about every task. What only another node can do (continue a task that it
works on, answer its agent, use a session of its OpenCode) becomes a command: a row that the other
node takes, once, and whose result it writes back. No node talks to another one directly.

A command that nobody has taken can be withdrawn, and then nothing has happened. One that was taken
by a node that died since may have been carried out: the caller gets `OutcomeUnknown`.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import orjson
import structlog

from ..domain.nodes import ALIVE_MS, Away, Node, Whereabouts, doer, place, place_named
from ..errors import (
    InvalidParams,
    NodeUnavailable,
    OutcomeUnknown,
    ServiceError,
    StoreError,
)

logger = structlog.get_logger()

BEAT_SECONDS = 2.0
POLL_SECONDS = 1.0  # between two looks for a result, or for commands, that was not notified
TAKE_SECONDS = 3.0  # for the other node to take a command
DO_SECONDS = 120.0  # … and to do it
STOP_TIMEOUT_SECONDS = 5.0  # for what others have asked of this node
CUT_OFF_TIMEOUT_SECONDS = 1.0  # to say that a command was cut off by the end of this node
NOTICE_MS = 15_000  # for a node to be restarted before its tasks say that they wait for it

Json = dict[str, Any]
Handler = Callable[[Json], Awaitable[Any]]


class Command(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def body(self) -> bytes: ...


class NodeStore(Protocol):
    """The rows of nodes and commands."""

    holder: str  # this process

    @property
    def clock(self) -> Callable[[], int]: ...
    def on_words(self, listener: Callable[[list[str]], None]) -> Callable[[], None]: ...
    async def beat(self, node: Node) -> Sequence[Node]: ...
    async def leave(self) -> None: ...
    async def of_task(self, owner: str, task_id: str) -> Whereabouts | None: ...
    async def of_context(self, owner: str, context_id: str) -> Whereabouts: ...
    async def unbind_context(self, owner: str, context_id: str, opencode: str) -> None: ...
    async def of_session(self, owner: str, session_id: str) -> Whereabouts | None: ...
    async def of_request(self, owner: str, request_id: str) -> Whereabouts | None: ...
    async def ask(self, command_id: str, kind: str, body: bytes, *, holder: str) -> None: ...
    async def take(self, begun: Collection[str]) -> Sequence[Command]: ...
    async def done(self, command_id: str, result: bytes) -> None: ...
    async def result(self, command_id: str) -> tuple[bool, bytes | None] | None: ...
    async def withdraw(self, command_id: str) -> bool: ...
    async def forget(self, command_id: str) -> None: ...


class LeftTasks(Protocol):
    """What becomes of tasks whose nodes are gone. Times are the database's, in milliseconds."""

    async def adopt_unstarted(
        self, mine: Node, *, alive_since: int, return_since: int
    ) -> Sequence[str]: ...
    async def note_lost(self, since: int, *, return_ms: int) -> Sequence[str]: ...
    async def fail_abandoned(self, before: int) -> Sequence[str]: ...


class NotTaken(Exception):
    """The other node has not taken the command, and will not: ask somebody else."""


class Cluster:
    def __init__(
        self,
        store: NodeStore,
        describe: Callable[[], Node],
        *,
        log: LeftTasks,
        return_ms: int,
        on_drained: Callable[[], None] = lambda: None,
    ) -> None:
        """`describe`: this node as it is now; `on_drained`: it has nothing left to do. After
        `return_ms`, what was left by nodes of an OpenCode that is gone is given up.
        """
        self._return_ms = return_ms
        self._log = log
        self._store = store
        self._describe = describe
        self._on_drained = on_drained
        self.handlers: dict[str, Handler] = {}
        self.nodes: Sequence[Node] = ()
        self._asked = asyncio.Event()  # there may be commands for this node
        self._changed = asyncio.Event()  # a node has come or gone, or is drained
        self._waiting: dict[str, asyncio.Event] = {}  # for results, by the command's id
        self._doing: dict[str, asyncio.Task[None]] = {}  # by command, until its result is stored
        self._silent: dict[str, int] = {}  # nodes that did not take a command, and when last seen
        self._drained = False
        self._beaten_at = self._steady_since = store.clock()  # without a pause

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Be a node while the block lasts."""
        unsubscribe = self._store.on_words(self._on_words)
        with suppress(StoreError):
            await self._beat()
        jobs = [asyncio.create_task(each()) for each in (self._beat_forever, self._take_forever)]
        try:
            yield
        finally:
            unsubscribe()
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)
            with suppress(StoreError, TimeoutError):
                async with asyncio.timeout(STOP_TIMEOUT_SECONDS):
                    await self._store.leave()
                    if self._doing:
                        await asyncio.wait(self._doing.values())
            for doing in self._doing.values():
                doing.cancel()
            await asyncio.gather(*self._doing.values(), return_exceptions=True)

    @property
    def here(self) -> Node:
        """This node as it is now, apart from what others have asked of it."""
        here = self._describe()
        own = next((node for node in self.nodes if node.holder == here.holder), here)
        return replace(here, draining=own.draining, seen_at=self._store.clock())

    @property
    def is_alone(self) -> bool:
        """Whether nobody else is alive, nor has left anything that this node cannot use."""
        here, now = self.here, self._store.clock()
        others = [node for node in self.nodes if node.holder != here.holder]
        return not any(each.is_alive(now) or each.opencode != here.opencode for each in others)

    def others_of_root(self) -> tuple[Sequence[Node], Sequence[str]]:
        """A node of each other OpenCode of this root, and the OpenCodes that have none now."""
        here, now = self.here, self._store.clock()
        known: dict[str, Node | None] = {}
        for node in sorted(self.nodes, key=lambda each: (each.draining, each.used)):
            if node.root == here.root and node.opencode != here.opencode:
                alive = node if node.is_alive(now) else None
                known[node.opencode] = known.get(node.opencode) or alive
        found = [node for node in known.values() if node is not None]
        return found, [opencode for opencode, node in known.items() if node is None]

    # -- who does it; None: this node

    async def for_task(self, owner: str, task_id: str) -> Node | None:
        return self._other(await self._store.of_task(owner, task_id))

    async def for_context(
        self, owner: str, context_id: str, label: str | None = None
    ) -> Node | None:
        """A context whose node does not come back goes on elsewhere, in a new session."""
        where = await self._store.of_context(owner, context_id)
        if where == Whereabouts():
            return self.for_new_context(context_id, label=label)
        found = doer(self.nodes, where, here=self.here, now=self._store.clock())
        if (
            isinstance(found, Away)
            and found.opencode is not None
            and where.holder is None
            and found.is_over(self._store.clock(), self._return_ms)
        ):
            chosen = self.for_new_context(label=label, root=where.root)
            logger.warning("context.moved", context=context_id, gone=found.opencode)
            await self._store.unbind_context(owner, context_id, found.opencode)
            return chosen
        return self._other(where)

    async def for_session(self, owner: str, session_id: str) -> Node | None:
        """This node if the session is somebody else's: then it does not exist for this caller.

        Its own node might not be there, and to say so would say that there is such a session.
        """
        return self._other(await self._store.of_session(owner, session_id))

    async def for_request(self, owner: str, request_id: str) -> Node | None:
        return self._other(await self._store.of_request(owner, request_id))

    def for_new_context(
        self, context_id: str | None = None, *, label: str | None = None, root: str | None = None
    ) -> Node | None:
        """`context_id`: where the client has chosen it; `root`: where it began at another node."""
        here, now = self.here, self._store.clock()
        root = root or here.root
        fleet = [here, *(node for node in self.nodes if node.holder != here.holder)]
        if context_id is not None:
            chosen = place_named(fleet, root=root, label=label, context_id=context_id, now=now)
        else:
            seed = uuid.uuid4().int
            chosen = place(fleet, root=root, label=label, here=here.holder, now=now, seed=seed)
        if chosen is None and label is not None:
            raise _no_node(label, [each for each in fleet if each.state(now) == "running"])
        if chosen is None and root != here.root:
            raise NodeUnavailable.of(None)
        if chosen is None or (chosen.opencode == here.opencode and not here.draining):
            return None  # to ask another node of the same OpenCode would only take longer
        if chosen.holder == here.holder:
            return None
        # Its own row says so in a moment. Until then the next one may go elsewhere.
        more = replace(chosen, load=chosen.load + 1)
        self.nodes = [more if each.holder == chosen.holder else each for each in self.nodes]
        return chosen

    def _other(self, where: Whereabouts | None) -> Node | None:
        if where is None or where == Whereabouts():
            return None  # there is nothing yet, and this node says so
        here = self.here
        found = doer(self.nodes, where, here=here, now=self._store.clock())
        if isinstance(found, Away):
            raise NodeUnavailable.of(found.opencode)
        return None if found.holder == here.holder else found

    # -- asking others

    async def ask(self, node: Node, kind: str, body: Json) -> Any:
        """Have another node do it; what came of it, or the error it raised."""
        command_id = str(uuid.uuid4())
        woken = self._waiting[command_id] = asyncio.Event()
        try:
            await self._store.ask(command_id, kind, orjson.dumps(body), holder=node.holder)
            result = await self._result(command_id, node, woken)
        finally:
            del self._waiting[command_id]
        with suppress(StoreError):  # it is deleted later
            await self._store.forget(command_id)
        answer = orjson.loads(result)
        if "error" in answer:
            raise error_of(answer["error"])
        return answer["result"]

    async def _result(self, command_id: str, node: Node, woken: asyncio.Event) -> bytes:
        loop = asyncio.get_running_loop()
        began, taken = loop.time(), False
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await woken.wait()
            woken.clear()
            try:
                found = await self._store.result(command_id)
                if found is None:  # it was withdrawn, and the database did not say so
                    raise NotTaken
                taken, result = found
                if result is not None:
                    return result
                passed = loop.time() - began
                waits = passed <= TAKE_SECONDS and self._is_alive(node)
                if not taken and not waits and await self._store.withdraw(command_id):
                    self._silent[node.holder] = node.seen_at
                    self.nodes = self._without_silent(self.nodes)
                    raise NotTaken
            except StoreError:
                passed = loop.time() - began
            if passed > DO_SECONDS or (taken and not self._is_alive(node)):
                raise OutcomeUnknown

    def _without_silent(self, nodes: Sequence[Node]) -> list[Node]:
        """A node that did not take a command is asked nothing more until it is seen again."""
        return [
            replace(node, silent=node.seen_at <= self._silent.get(node.holder, -1))
            for node in nodes
        ]

    def _is_alive(self, node: Node) -> bool:
        now = self._store.clock()
        return any(each.holder == node.holder and each.is_alive(now) for each in self.nodes)

    # -- being asked

    def _on_words(self, words: list[str]) -> None:
        me = f"ask:{self._store.holder}:0"
        if not words or me in words:
            self._asked.set()
        if "nodes:changed:0" in words:
            self._changed.set()
        done = {word[5:-2] for word in words if word.startswith("done:")}
        for command_id, event in self._waiting.items():
            if not words or command_id in done:
                event.set()

    async def _take_forever(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self._asked.wait()
            self._asked.clear()
            try:
                # What was taken without an answer of the database is not begun, and is found again.
                for command in await self._store.take(list(self._doing)):
                    doing = asyncio.create_task(self._do(command))
                    self._doing[command.id] = doing
                    doing.add_done_callback(partial(self._forget, command.id))
            except StoreError:
                await asyncio.sleep(POLL_SECONDS)
            except Exception:
                logger.exception("node.internal_error")

    def _forget(self, command_id: str, _: asyncio.Task[None]) -> None:
        del self._doing[command_id]

    async def _do(self, command: Command) -> None:
        try:
            try:
                found = await self.handlers[command.kind](orjson.loads(command.body))
                answer: Json = {"result": found}
            except ServiceError as exc:
                answer = {"error": described(exc)}
            result = orjson.dumps(answer)
        except asyncio.CancelledError:  # this node stops, and waits for nothing any more
            with suppress(StoreError, TimeoutError):
                async with asyncio.timeout(CUT_OFF_TIMEOUT_SECONDS):
                    unknown = {"error": described(OutcomeUnknown())}  # it may have been done
                    await self._store.done(command.id, orjson.dumps(unknown))
            raise
        except Exception:
            logger.exception("command.internal_error", kind=command.kind)
            failed = {"type": "INTERNAL_ERROR", "message": "The other node failed."}
            result = orjson.dumps({"error": failed})
        while True:  # until its result is stored; otherwise it would be taken and done again
            try:
                return await self._store.done(command.id, result)
            except StoreError:
                pass  # already logged
            except Exception:
                logger.exception("command.internal_error", kind=command.kind)
            await asyncio.sleep(POLL_SECONDS)

    # -- being seen

    async def look(self) -> bool:
        """Find out which nodes there are now; False if that is not possible."""
        try:
            await self._beat()
        except StoreError:
            return False
        return True

    async def _beat_forever(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(BEAT_SECONDS):
                    await self._changed.wait()
            self._changed.clear()
            try:
                await self._beat()
            except StoreError:
                continue  # logged where it happened
            except Exception:
                logger.exception("node.internal_error")

    async def _beat(self) -> None:
        here = self.here
        self.nodes = self._without_silent(await self._store.beat(here))
        own = next((node for node in self.nodes if node.holder == here.holder), None)
        if own is not None:
            await self._look_after_others(own)
        if own is not None and own.draining and not self.here.load and not self._drained:
            self._drained = True
            logger.info("node.drained", node=own.name)
            self._on_drained()

    async def _look_after_others(self, own: Node) -> None:
        """See to the tasks of nodes that are gone.

        A node that has just started, or was cut off from the database, gives the others time to
        return as well: if the database was away, all of them look as if they were gone.
        """
        now = self._store.clock()
        if now - self._beaten_at > ALIVE_MS // 2:
            self._steady_since = now
        self._beaten_at = now
        steady_for = now - max(self._steady_since, own.started_at)
        return_since = now - self._return_ms
        if steady_for > ALIVE_MS and not own.draining:
            await self._log.adopt_unstarted(
                own, alive_since=now - ALIVE_MS, return_since=return_since
            )
        if steady_for > self._return_ms:
            await self._log.fail_abandoned(return_since)
        if steady_for > NOTICE_MS:
            await self._log.note_lost(now - NOTICE_MS, return_ms=self._return_ms)


def _no_node(label: str, running: Sequence[Node]) -> InvalidParams:
    labels = sorted(set[str]().union(*(node.labels for node in running)))
    known = f"the labels of running nodes are {', '.join(labels)}" if labels else "none has a label"
    problem = f"no node that takes new work has the name or label {label!r}; {known}"
    return InvalidParams.at("metadata.opencode.node", problem)


def described(exc: ServiceError) -> Json:
    """An error, for another node."""
    found: Json = {"type": exc.type, "message": exc.message, "retry_after": exc.retry_after}
    if isinstance(exc, InvalidParams):
        found["fields"] = exc.fields
    facts = {
        name: str(value) if not _is_json(value) else value for name, value in exc.facts.items()
    }
    return {**found, "facts": facts}


def _is_json(value: object) -> bool:
    try:
        orjson.dumps(value)
    except TypeError:
        return False
    return True


def error_of(given: Mapping[str, Any]) -> ServiceError:
    """The error that another node has described."""
    kind = _kinds().get(given["type"], ServiceError)
    error = kind.__new__(kind)
    facts, retry_after = given.get("facts", {}), given.get("retry_after")
    ServiceError.__init__(error, given["message"], retry_after=retry_after, **facts)
    if isinstance(error, InvalidParams):
        error.fields = given.get("fields", {})
    return error


def _kinds() -> dict[str, type[ServiceError]]:
    found: dict[str, type[ServiceError]] = {}
    left: list[type[ServiceError]] = [ServiceError]
    while left:
        kind = left.pop(0)
        found.setdefault(kind.type, kind)
        left += kind.__subclasses__()
    return found
