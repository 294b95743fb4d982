"""What the agent's tools for calling other agents do: implements `domain.ports.PeerTools`.

Whatever goes wrong becomes a result that the model can read: what happened, and what it can do. A
peer whose answer nobody waits for any more is asked to cancel its task.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..domain.peer_calls import CallSite, ToolResult, ToolSpec
from ..domain.ports import PeerConversation, PeerConversations
from ..domain.values import Usage
from ..errors import ServiceError
from ..locks import KeyedLock
from ..observe import audit as audit_log
from ..observe import metrics
from .client import CANCEL_SECONDS, Outgoing, Peer, PeerCall, Peers, PeerUpdate, Received
from .downloads import file_name
from .failures import (
    AuthRequired,
    ConnectionLost,
    MessageInDoubt,
    PeerBusy,
    PeerError,
    PeerNotAllowed,
    PeerRefused,
    PeerTimeout,
    PeerUnauthorized,
    PeerUnreachable,
    TaskCanceled,
    TaskNotCompleted,
)
from .peer_requests import answer_to, interrupt_of
from .target import CallablePeers, PeerLimits, Target
from .transcript import Data, File, Json, Transcript
from .workspace_files import FileProblem, WorkspaceFiles

logger = structlog.get_logger()

MAX_RESULT_BYTES, MAX_RESULT_LINES = 48 * 1024, 1_500  # OpenCode hides most of what is longer
EXCERPT = 2_000  # characters of an answer that is too long, or of a reason
LONGEST_ABOUT, LONGEST_SKILL = 500, 100  # characters of what a card says of an agent, and of each
MOST_SKILLS = 20
MOST_KNOWN = 10_000  # conversations
ANSWER_RETRY_SECONDS = 1.0
# What the model can do about it.
HINTS: tuple[tuple[type[PeerError], str], ...] = (
    (PeerUnreachable, "It may be down: try again later, or go on without it."),
    (PeerUnauthorized, "Only the operator can change its credential: go on without it."),
    (PeerNotAllowed, "a2a_peers lists the agents that you can call."),
    (PeerBusy, "Try again later, or go on without it."),
    (PeerTimeout, "Try again later, ask for less, or go on without it."),
    (MessageInDoubt, "It may be at work. Call again only if it does no harm to do it twice."),
    (ConnectionLost, "a2a_status tells what became of it. Look before you call again."),
    (AuthRequired, "Somebody must log in there first: go on without it."),
    (TaskNotCompleted, "Call it again with another message, or go on without it."),
    (PeerError, "Go on without it."),
)


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid")


class NoArguments(_Arguments):
    pass


class PeerArguments(_Arguments):
    peer: str = Field(min_length=1, max_length=2_000, description="The name of the agent.")


class CallArguments(PeerArguments):
    message: str = Field(
        min_length=1,
        description="What it should do, with all that it needs to know for that: it sees neither "
        "this conversation nor your files.",
    )
    files: list[str] | None = Field(
        default=None, max_length=20, description="Paths of files in the workspace to send along."
    )
    continues: bool | None = Field(
        default=None,
        alias="continue",
        description="Continue your conversation with it, which is the default. `false` begins a "
        "new one.",
    )


_TOOLS: dict[str, tuple[type[_Arguments], str]] = {
    "peers": (
        NoArguments,
        "List the other agents that you can call: their names, what they are good at, and whether "
        "they answer now.",
    ),
    "call": (
        CallArguments,
        "Have another agent do something, and wait for its answer. It may take minutes. The files "
        "of its answer are put into the workspace.",
    ),
    "status": (
        PeerArguments,
        "Look at your last call to another agent: its state, and its answer so far.",
    ),
    "cancel": (PeerArguments, "Cancel your last call to another agent."),
}


def tool_specs(peers: CallablePeers) -> list[ToolSpec]:
    """The tools as the model is told of them, with the names of the agents it can call."""
    names = ", ".join(sorted(peers.targets))
    found = list[ToolSpec]()
    for name, (arguments, description) in _TOOLS.items():
        schema = arguments.model_json_schema()
        if names and "peer" in schema["properties"]:
            schema["properties"]["peer"]["description"] = f"The name of the agent: {names}."
        found.append(ToolSpec(name, description, schema))
    return found


class PeerToolbox:
    """Implements `domain.ports.PeerTools`."""

    def __init__(
        self,
        peers: Peers,
        callable_peers: Callable[[], CallablePeers],  # as they are now
        conversations: PeerConversations,
    ) -> None:
        self._peers = peers
        self._callable = callable_peers
        self._conversations = conversations
        self._talking: KeyedLock[tuple[str, str, str]] = KeyedLock()
        self._own: set[tuple[str, str, str]] = set()  # conversations that this process has had
        self.open_tasks: set[tuple[str, str]] = set()  # of this process, by peer

    @property
    def limits(self) -> PeerLimits:
        return self._peers.limits

    async def run(self, tool: str, arguments: Mapping[str, Any], site: CallSite) -> ToolResult:
        began, outcome, peer = time.monotonic(), "internal_error", ""
        audit = logger.bind(tool=tool, task=site.task_id, principal=site.owner)
        try:
            asked = _TOOLS[tool][0].model_validate(arguments)
            if not isinstance(asked, PeerArguments):
                result = ToolResult(await self._list())
            else:
                target = self._callable().find(asked.peer, site.headers)
                peer = target.name
                audit = audit.bind(peer=peer)
                result = ToolResult(await self._speak(tool, asked, _Talk(self, target, site)))
            outcome = "completed"
        except (ValidationError, FileProblem, PeerError, ServiceError) as exc:
            outcome = type(exc).__name__
            result = ToolResult(_reason(exc), failed=True)
        except asyncio.CancelledError:
            outcome = "canceled"
            raise
        finally:
            seconds = time.monotonic() - began
            audit.info("peer.called", outcome=outcome, seconds=round(seconds, 3))
            _observe(tool, peer, outcome=outcome, seconds=seconds, site=site)
        return replace(result, peer=peer)

    # -- the tools

    async def _list(self) -> str:
        peers = self._callable()
        budget = MAX_RESULT_BYTES // (len(peers.targets) + 1)
        found = [
            about.encode()[: budget - 1].decode(errors="ignore")
            for about in await asyncio.gather(*map(self._about, peers.targets.values()))
        ]
        if peers.by_address is not None:
            found.append("You can also call other agents, by their URL as the name.")
        return "\n".join(found)

    async def _about(self, target: Target) -> str:
        try:
            async with self._peers.connect(target, counted=False) as peer:
                card = peer.found.card
                skills = "".join(
                    f"\n  - {_line(f'{skill.name}: {skill.description}', LONGEST_SKILL)}"
                    for skill in card.skills[:MOST_SKILLS]
                )
                return f"{target.name}: {_line(card.name)}. {_line(card.description)}{skills}"
        except PeerError as exc:
            return f"{target.name}: cannot be called now. {_line(exc.message)}"

    async def _speak(self, tool: str, asked: PeerArguments, talk: _Talk) -> str:
        last = await self._conversations.last(*talk.key)
        if isinstance(asked, CallArguments):
            paths = asked.files or []
            files = await asyncio.to_thread(talk.files.parts, paths, talk.site.may_read)
            parts = ({"text": asked.message}, *files)
            await self._end_lost(talk, last)
            if asked.continues is False:
                return await talk.exchange(parts)
            async with self._talking(talk.key):
                last = await self._conversations.last(*talk.key)
                return await talk.exchange(parts, context_id=last.context_id if last else None)
        if last is None or last.task_id is None:
            raise PeerRefused("You have not called it in this conversation.")
        await talk.look(last.task_id)
        if tool == "cancel":
            await talk.cancel()
        return await talk.result(talk.list_files())

    async def _end_lost(self, talk: _Talk, last: PeerConversation | None) -> None:
        """An earlier process may have left a task, which would keep the next one waiting."""
        if talk.key in self._own:
            return
        task_id = None if last is None else last.task_id
        if task_id is not None and (talk.target.name, task_id) not in self.open_tasks:
            lost = _Talk(self, talk.target, talk.site)
            try:
                await lost.look(task_id)
            except (PeerUnreachable, PeerTimeout):
                raise  # who does not answer now will not answer the call either
            except PeerError:
                pass
            else:
                with suppress(PeerError):
                    await lost.cancel()
        if len(self._own) >= MOST_KNOWN:
            self._own.clear()  # it costs each of them one look
        self._own.add(talk.key)

    @asynccontextmanager
    async def connect(self, target: Target, *, counted: bool) -> AsyncIterator[Peer]:
        async with self._peers.connect(target, counted=counted) as peer:
            self._callable().check_origin(peer.url)
            yield peer

    async def keep(self, key: tuple[str, str, str], conversation: PeerConversation) -> None:
        with suppress(ServiceError):  # then the next call begins a new conversation
            await self._conversations.keep(*key, conversation)


@dataclass(eq=False, slots=True)
class _Talk:
    """One message to a peer, and everything that follows from it."""

    box: PeerToolbox
    target: Target
    site: CallSite
    found: Transcript = field(default_factory=Transcript)
    _received: list[File] = field(default_factory=list)
    _data: list[Any] = field(default_factory=list)
    _is_new: bool = False  # what is said is the last of the conversation
    _is_sent: bool = False
    _known: asyncio.Event = field(default_factory=asyncio.Event)  # what the peer has made of it
    _keeping: asyncio.Task[None] | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        return self.site.owner, self.site.context_id, self.target.name

    @property
    def files(self) -> WorkspaceFiles:
        return WorkspaceFiles(self.site.directory)

    async def exchange(self, parts: Sequence[Json], context_id: str | None = None) -> str:
        """Send a message; the answer, once the task has completed."""
        self._is_new = True
        try:
            await self._send(Outgoing(tuple(parts), context_id=context_id))
            while self.found.state == "INPUT_REQUIRED":
                await self._pass_on()
            self.found.check()
            return await self.result(await self._keep_files())
        except BaseException:
            try:
                await self.cancel()
            except PeerError as exc:
                task, problem = self.site.task_id, type(exc).__name__
                logger.warning(
                    "peer.not_canceled", task=task, peer=self.target.name, problem=problem
                )
            raise
        finally:
            self.box.open_tasks.discard((self.target.name, self.found.task_id or ""))
            if self.found.usage is not None:
                self.site.add_usage(self.target.name, _usage(self.found.usage))
            if self._keeping is not None:
                await self._keeping

    async def _pass_on(self) -> None:
        """Have a person decide what the peer asks, and tell the peer."""
        found = self.found
        request = found.requests[0] if found.requests else None
        asks = interrupt_of(found, peer=self.target.name, session=self.site.session)
        answer = answer_to(request, await self.site.ask(asks))
        if answer is None:
            raise TaskCanceled("Nobody answered what it asked, so its task is canceled.")
        message = Outgoing((answer,), task_id=found.task_id, context_id=found.context_id)
        until = time.monotonic() + self.box.limits.lost_seconds
        while True:
            try:
                return await self._send(message)
            except (PeerUnreachable, PeerBusy) as exc:
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(max(ANSWER_RETRY_SECONDS, exc.retry_after or 0.0))
            except PeerRefused:
                # Others may have decided meanwhile. Then the task goes on.
                async with self._call() as call:
                    await call.watch(found.task_id or "")
                asks_still = request is None or request in found.requests
                if found.state == "INPUT_REQUIRED" and asks_still:
                    raise
                return None

    async def _send(self, message: Outgoing) -> None:
        sending = asyncio.create_task(self._send_and_follow(message))
        try:
            await asyncio.wait({sending})
        except asyncio.CancelledError:
            if self._is_sent and self.found.task_id is None:
                # The peer is at work on a task that cannot be canceled until it is known.
                known = asyncio.create_task(self._known.wait())
                either: set[asyncio.Task[Any]] = {sending, known}
                await asyncio.wait(
                    either, timeout=CANCEL_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                known.cancel()
            raise
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        sending.result()

    async def _send_and_follow(self, message: Outgoing) -> None:
        # An answer does not wait for calls of others: its task has begun, and so has a person.
        async with self._call(counted=message.task_id is None) as call:
            self._is_sent = True
            await call.send(message)

    async def look(self, task_id: str) -> None:
        async with self._call() as call:
            await call.get(task_id)

    async def cancel(self) -> None:
        if self.found.task_id is None or self.found.ended:
            return
        seconds = min(CANCEL_SECONDS, self.box.limits.request_seconds)
        try:
            async with asyncio.timeout(seconds), self._call() as call:
                await call.cancel()
        except TimeoutError:
            raise PeerTimeout(f"It did not cancel its task in {seconds:g} s.") from None

    @asynccontextmanager
    async def _call(self, *, counted: bool = False) -> AsyncIterator[PeerCall]:
        """Not for the whole talk: who waits for a person must not keep others from calling."""
        async with self.box.connect(self.target, counted=counted) as peer:
            call = peer.call(self._take)
            call.transcript = self.found
            yield call

    def _take(self, update: PeerUpdate) -> None:
        if not isinstance(update, Received):
            return
        self._received += [each for each in update.shown if isinstance(each, File)]
        self._data += [each.value for each in update.shown if isinstance(each, Data)]
        self._known.set()
        found = self.found
        if self._is_new and found.task_id is not None:
            self.box.open_tasks.add((self.target.name, found.task_id))
        if self._is_new and self._keeping is None and found.context_id is not None:
            conversation = PeerConversation(found.context_id, found.task_id)
            self._keeping = asyncio.create_task(self.box.keep(self.key, conversation))

    async def _keep_files(self) -> list[str]:
        if not self._received:
            return []
        try:
            async with self.box.connect(self.target, counted=False) as peer:
                return await self.files.keep_all(peer, self._received)
        except PeerError as exc:  # the answer itself is there
            return [f"not kept. {_line(exc.message)}"]

    def list_files(self) -> list[str]:
        """The files of an answer, which were written into the workspace when it came."""
        return [
            file_name(each) if each.url else f"{file_name(each)} ({each.size} bytes)"
            for each in self._received
        ]

    async def result(self, files: Sequence[str]) -> str:
        """What the model gets to read."""
        found, name = self.found, self.target.name
        state = (found.state or "unknown").lower().replace("_", "-")
        texts = [found.answer, *(json.dumps(value, ensure_ascii=False) for value in self._data)]
        if not found.ended or found.state != "COMPLETED":
            texts.append(found.status_text)
        said = "\n\n".join(text for text in texts if text) or "It has said nothing."
        head = f"{name}: {state}"
        listed = "".join(f"\n  {line}" for line in files)
        text = f"{head}\nIts files:{listed}\n\n{said}" if files else f"{head}\n\n{said}"
        if len(text.encode()) <= MAX_RESULT_BYTES and text.count("\n") <= MAX_RESULT_LINES:
            return text
        try:
            answer = File(f"{name}.md", "text/markdown", None)
            path = await asyncio.to_thread(self.files.keep, file_name(answer), text.encode())
            where = f"all {len(text)} characters are in {path}"
        except FileProblem as exc:
            where = f"what follows this could not be kept ({exc})"
        return f"{head}\nIts answer is long: {where}. It begins:\n\n{text[:EXCERPT]}"


def _usage(told: Json) -> Usage:
    """What a service of this project says it has used; of other agents' words, what is like it."""

    def number(found: Any, name: str) -> int:
        value = found.get(name) if isinstance(found, dict) else None
        return int(value) if isinstance(value, int | float) and 0 <= value < 1e15 else 0

    cache, cost = told.get("cache_tokens"), told.get("cost")
    return Usage(
        input_tokens=number(told, "input_tokens"),
        output_tokens=number(told, "output_tokens"),
        reasoning_tokens=number(told, "reasoning_tokens"),
        cache_read_tokens=number(cache, "read_tokens"),
        cache_write_tokens=number(cache, "write_tokens"),
        cost=float(cost) if isinstance(cost, int | float) and 0 <= cost < 1e15 else 0.0,
        unreported_steps=number(told, "unreported_steps"),
    )


def _observe(tool: str, peer: str, *, outcome: str, seconds: float, site: CallSite) -> None:
    name = metrics.PEERS[peer]
    metrics.OUTBOUND_CALLS.labels(name, tool, outcome).inc()
    metrics.OUTBOUND_SECONDS.labels(name).observe(seconds)
    audit_log.record(
        "peer.call",
        outcome=outcome,
        by=audit_log.Actor(site.owner),
        tool=tool,
        peer=peer,
        task=site.task_id,
        context=site.context_id,
        session=site.session,
    )


def _reason(exc: ValidationError | FileProblem | PeerError | ServiceError) -> str:
    """What went wrong, and what the model can do about it."""
    if isinstance(exc, ValidationError):
        wrong = (f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in exc.errors())
        return f"The arguments are wrong. {'; '.join(wrong)}"
    if isinstance(exc, FileProblem):
        return f"{exc} Nothing was sent. Leave the file out, or send another."
    if isinstance(exc, ServiceError):
        return f"{exc.message} Go on without it."
    hint = next(hint for kind, hint in HINTS if isinstance(exc, kind))
    if exc.retry_after:
        hint = f"Try again in {exc.retry_after:.0f} s, or go on without it."
    return f"{_line(exc.message, EXCERPT)} {hint}"


def _line(text: str, longest: int = LONGEST_ABOUT) -> str:
    return " ".join(text.split())[:longest]
