"""Calling other agents: the one way in which this program is an A2A client.

`Peers` bounds what goes on at a time, `Peer` is an agent whose card was read, `PeerCall` is the
work on one task of it: sent, followed over broken connections, polled where the peer cannot stream,
answered when it asks, canceled. The official SDK speaks the protocol; what may be connected to,
and how much may come back, is decided in `transport`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import (
    aclosing,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass, replace
from typing import TypeAlias, cast
from urllib.parse import urlsplit
from uuid import uuid4

import httpx
from a2a.client import Client, ClientCallContext, ClientConfig, ClientFactory
from a2a.client.errors import A2AClientError
from a2a.types.a2a_pb2 import (
    AgentCard,
    CancelTaskRequest,
    GetExtendedAgentCardRequest,
    GetTaskRequest,
    Message,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
)
from a2a.utils.errors import A2A_REASON_TO_ERROR, A2AError, VersionNotSupportedError
from google.protobuf.json_format import (  # type: ignore[import-untyped]
    MessageToDict,
    ParseDict,
    ParseError,
)

from ..domain.addresses import origin_of
from .card import (
    CardCache,
    CardsInMemory,
    FoundCard,
    choose_interface,
    find_card,
    line_of,
    reachable_url,
)
from .egress import Egress
from .failures import (
    ConnectionLost,
    MessageInDoubt,
    PeerBusy,
    PeerError,
    PeerProtocolError,
    PeerRefused,
    PeerTimeout,
    PeerUnreachable,
    StreamSilent,
)
from .target import PeerLimits, Target
from .transcript import Json, Shown, Transcript
from .transport import Connections, Deadline, PeerTransport, get

POLL_SECONDS, POLL_FACTOR, MAX_POLL_SECONDS = 0.3, 1.5, 5.0
RECONNECT_SECONDS, MAX_RECONNECT_SECONDS = 0.2, 5.0  # before the first try again, and at most
CANCEL_SECONDS = 15.0
EXTENSIONS_HEADER = "A2A-Extensions"
ANSWER_HINT = "A2A_CLIENT_TIMEOUT_SECONDS sets how long an answer may take."
IN_DOUBT_HINT = "Ask the peer for its tasks, or send the message again."
CARD_HINT = "Is it an A2A agent, and is it up?"


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What is sent: parts in the JSON of A2A 1.0."""

    parts: tuple[Json, ...]
    metadata: Json | None = None
    task_id: str | None = None
    context_id: str | None = None


@dataclass(frozen=True, slots=True)
class Received:
    event: Json  # of A2A 1.0, whatever line the peer speaks
    shown: Sequence[Shown]  # what is new in it


@dataclass(frozen=True, slots=True)
class Reconnecting:
    reason: str


@dataclass(frozen=True, slots=True)
class Resumed:
    pass


PeerUpdate: TypeAlias = Received | Reconnecting | Resumed
Emit: TypeAlias = Callable[[PeerUpdate], None]


class Peers:
    """Connects to peers: so many at a time, and with their cards kept for the next time."""

    def __init__(self, egress: Egress, limits: PeerLimits, cards: CardCache | None = None) -> None:
        self.limits = limits
        self._egress = egress
        self._slots = asyncio.Semaphore(limits.concurrent_calls)
        self._cards = CardsInMemory() if cards is None else cards

    @asynccontextmanager
    async def connect(self, target: Target, *, counted: bool = True) -> AsyncIterator[Peer]:
        """A peer that has shown its card; waits while too many calls go on.

        Not `counted` is what must not wait for the calls of others, such as canceling one.
        """
        slot = self._slots if counted else nullcontext()
        async with slot, Connections.open(self._egress_for(target)) as connections:
            yield await Peer.meet(self, target, connections)

    def _egress_for(self, target: Target) -> Egress:
        if target.named:
            host = (urlsplit(target.url).hostname or "").lower()
            return replace(self._egress, named_hosts=self._egress.named_hosts | {host})
        return replace(self._egress, allow_private=False)

    async def card(self, target: Target, connections: Connections) -> FoundCard:
        known, limits = self._cards.get(target), self.limits
        seconds, hint = min((limits.card_seconds, CARD_HINT), (limits.request_seconds, ANSWER_HINT))
        late = f"The Agent Card of {target.url} did not arrive in {seconds:g} s."
        deadline = Deadline.after(seconds, late, hint=hint)
        transport = PeerTransport(connections, target.login, limits.response_bytes, deadline)
        async with _client(transport) as http:
            found = await find_card(http, target.url, known)
        if found is not known:
            self._cards.put(target, found)
        return found


class Peer:
    def __init__(
        self, target: Target, found: FoundCard, connections: Connections, limits: PeerLimits
    ) -> None:
        self.target = target
        self.found = found
        self.limits = limits
        self._connections = connections
        self._card_took = 0.0  # seconds, which count for the next answer
        interface = choose_interface(found.card, target.transports, line=target.line)
        self.url = reachable_url(interface.url, found.url)
        self.line = line_of(interface)
        self.transport = interface.protocol_binding
        self._card = AgentCard()
        self._card.CopyFrom(found.card)
        del self._card.supported_interfaces[:]
        chosen = self._card.supported_interfaces.add()
        chosen.CopyFrom(interface)
        chosen.url = self.url if self.transport == "JSONRPC" else self.url.rstrip("/")
        listed = {extension.uri for extension in found.card.capabilities.extensions}
        welcome = [uri for uri in target.welcome_extensions if uri in listed]
        self.extensions = list(dict.fromkeys([*target.extensions, *welcome]))

    @classmethod
    async def meet(cls, peers: Peers, target: Target, connections: Connections) -> Peer:
        now = asyncio.get_running_loop().time
        began = now()
        peer = cls(target, await peers.card(target, connections), connections, peers.limits)
        peer._card_took = now() - began
        return peer

    def next_deadline(self, seconds: float = math.inf, *, hint: str = "") -> Deadline:
        """For the next answer: A2A_CLIENT_TIMEOUT_SECONDS, or so many if that is less.

        What the card took counts for the first one, so that both together take no longer.
        """
        host, allowed = urlsplit(self.url).hostname, self.limits.request_seconds
        took, self._card_took = self._card_took, 0.0
        if seconds < allowed - took:
            late = f"No answer from {host} within {seconds:g} s."
            return Deadline.after(seconds, late, hint=hint)
        late = f"No answer from {host} within {allowed:g} s{', its card included' if took else ''}."
        return Deadline.after(max(0.0, allowed - took), late, hint=ANSWER_HINT)

    @property
    def streams(self) -> bool:
        return self.target.streams and self._card.capabilities.streaming

    @property
    def login_goes_there(self) -> bool:
        """Whether the credential is for the address that the card names."""
        return not self.target.login.headers or origin_of(self.url) in self.target.login.origins

    def call(self, emit: Emit) -> PeerCall:
        return PeerCall(self, emit)

    async def extended_card(self) -> Json:
        """What the peer shows to those who have logged in; its card if it has nothing more."""
        if not self._card.capabilities.extended_agent_card:
            return self.found.raw
        deadline = self.next_deadline(self.limits.card_seconds, hint=CARD_HINT)
        async with self.client(deadline) as (client, _):
            with peer_errors():
                card = await client.get_extended_agent_card(
                    GetExtendedAgentCardRequest(), context=self.context()
                )
        shown: Json = MessageToDict(card)
        return shown

    async def download(self, url: str, max_bytes: int) -> bytes:
        """A file that the peer names; what it may be is up to whoever takes it."""
        seconds = self.limits.request_seconds
        late = f"The file did not arrive in {seconds:g} s."
        deadline = Deadline.after(seconds, late, hint=ANSWER_HINT)
        transport = PeerTransport(
            self._connections, self.target.login, max_bytes, deadline, is_a2a=False
        )
        async with _client(transport) as http:
            return (await get(http, url)).content

    @asynccontextmanager
    async def client(
        self, deadline: Deadline, *, streams: bool = False
    ) -> AsyncIterator[tuple[Client, PeerTransport]]:
        """To ask something; a stream has to begin by the deadline, any other answer to be there."""
        transport = PeerTransport(
            self._connections,
            self.target.login,
            self.limits.response_bytes,
            deadline,
            idle_seconds=self.limits.idle_seconds if streams else None,
        )
        async with _client(transport) as http:
            config = ClientConfig(
                streaming=streams,
                httpx_client=http,
                supported_protocol_bindings=[self.transport],
            )
            yield ClientFactory(config).create(self._card), transport

    def context(self, **headers: str) -> ClientCallContext:
        if self.extensions:
            headers[EXTENSIONS_HEADER] = ",".join(self.extensions)
        return ClientCallContext(service_parameters=dict(self.target.call_headers) | headers)


class PeerCall:
    """The work on one task of a peer. `emit` gets everything that happens, as it happens."""

    def __init__(self, peer: Peer, emit: Emit) -> None:
        self.transcript = Transcript()
        self.peer = peer
        self._emit = emit
        self._limits = peer.limits
        self._last_event_id: str | None = None
        self._in_doubt = False  # the connection was lost, and nothing has arrived since
        self._told_lost = False
        self._news = 0  # what has been shown so far

    async def send(self, message: Outgoing) -> None:
        """Send a message and follow its task until it ends or waits; PeerError if that fails."""
        self.transcript.begin()
        async with self._bounded() as end:
            request, continues = _request(message), message.task_id is not None
            try:
                if not self.peer.streams or not await self._send_and_stream(request):
                    await self._send_and_return(request, end, wait=continues)
            except (ConnectionLost, PeerTimeout) as exc:
                if self.transcript.task_id is None:
                    raise MessageInDoubt(
                        f"{exc.message} It is not known whether the peer got the message.",
                        hint=f"{IN_DOUBT_HINT} {exc.hint}".rstrip(),
                    ) from exc
                self._lose(exc)
            await self._follow()
            await self._fetch_answer()

    async def watch(self, task_id: str) -> None:
        """Follow a task that exists already."""
        async with self._bounded():
            await self.get(task_id)
            await self._follow()

    async def get(self, task_id: str) -> None:
        async with self.peer.client(self.peer.next_deadline()) as (client, _):
            with peer_errors():
                request = GetTaskRequest(id=task_id)
                task = await client.get_task(request, context=self.peer.context())
        self._snapshot(task)

    async def cancel(self) -> None:
        """Have the peer cancel the task."""
        if self.transcript.task_id is None:
            return
        async with self.peer.client(self.peer.next_deadline(CANCEL_SECONDS)) as (client, _):
            with peer_errors():
                request = CancelTaskRequest(id=self.transcript.task_id)
                task = await client.cancel_task(request, context=self.peer.context())
        self._snapshot(task)

    @asynccontextmanager
    async def _bounded(self) -> AsyncIterator[Deadline]:
        seconds = self._limits.total_seconds
        end = Deadline.after(
            seconds,
            f"The task is not done after {seconds:g} s.",
            hint="Allow more with --timeout.",
        )
        bound = asyncio.timeout_at(end.at)
        try:
            async with bound:
                yield end
        except TimeoutError:
            if not bound.expired():
                raise
            raise end.error() from None

    # -- sending

    async def _send_and_stream(self, request: SendMessageRequest) -> bool:
        """Whether the peer took the message; if not, it cannot stream although its card says so."""
        async with self.peer.client(self.peer.next_deadline(), streams=True) as (client, transport):
            stream = client.send_message(request, context=self.peer.context())
            try:
                await self._read(stream, transport, continues=bool(request.message.task_id))
                self._check_end()
            except PeerRefused as exc:
                if exc.reason == "UNSUPPORTED_OPERATION" and self.transcript.state is None:
                    return False
                raise
        return True

    async def _send_and_return(
        self, request: SendMessageRequest, end: Deadline, *, wait: bool
    ) -> None:
        """Agents that cannot stream often work while they are asked, so this may take its time."""
        request.configuration.return_immediately = not wait
        async with self.peer.client(end) as (client, transport):
            stream = client.send_message(request, context=self.peer.context())
            await self._read(stream, transport, continues=False)

    # -- following

    async def _follow(self) -> None:
        """Follow the task until it ends or waits, by streams where the peer has them."""
        polling, interval = not self.peer.streams, POLL_SECONDS
        pause, lost_at, news = RECONNECT_SECONDS, None, self._news
        while not self._settled:
            task_id = self.transcript.task_id
            if task_id is None:
                raise PeerProtocolError("The peer answered with neither a task nor a message.")
            try:
                if polling:
                    await asyncio.sleep(interval)
                    interval = min(interval * POLL_FACTOR, MAX_POLL_SECONDS)
                    await self.get(task_id)
                else:
                    polling = not await self._subscribe(task_id)
            except (ConnectionLost, PeerUnreachable, PeerBusy, PeerTimeout) as exc:
                now = asyncio.get_running_loop().time()
                if not self._in_doubt or lost_at is None:
                    lost_at = now
                if self._news != news:
                    pause, news = RECONNECT_SECONDS, self._news
                self._lose(exc)
                if now - lost_at > self._limits.lost_seconds:
                    raise
                await asyncio.sleep(max(pause, exc.retry_after or 0.0))
                pause = min(pause * 2, MAX_RECONNECT_SECONDS)

    async def _fetch_answer(self) -> None:
        """Some servers stream only states; then the answer is in the task."""
        found = self.transcript
        if found.state == "COMPLETED" and not found.has_blocks and found.task_id is not None:
            with suppress(PeerError):
                await self.get(found.task_id)

    @property
    def _settled(self) -> bool:
        return (self.transcript.ended or self.transcript.paused) and not self._in_doubt

    async def _subscribe(self, task_id: str) -> bool:
        """Stream the rest of a task; False if the peer does not offer that for it."""
        headers = {} if self._last_event_id is None else {"Last-Event-ID": self._last_event_id}
        async with self.peer.client(self.peer.next_deadline(), streams=True) as (client, transport):
            context = self.peer.context(**headers)
            try:
                stream = client.subscribe(SubscribeToTaskRequest(id=task_id), context=context)
                await self._read(stream, transport, continues=False)
                self._check_end()
            except PeerRefused:  # such as for a task that has ended meanwhile
                await self.get(task_id)
                return False
        return True

    async def _read(
        self,
        stream: AsyncIterator[StreamResponse],
        transport: PeerTransport,
        *,
        continues: bool,
    ) -> None:
        """Hand on events until the task ends or waits.

        A stream that `continues` a waiting task may begin with the task as it still waits.
        """
        first = True
        try:
            async with aclosing(cast(AsyncGenerator[StreamResponse], stream)) as events:
                while True:
                    with peer_errors():
                        event = await anext(events, None)
                    if event is None:
                        return
                    self._take(event)
                    if self.transcript.ended:
                        return
                    if self.transcript.paused and not (first and continues):
                        return
                    first = False
        finally:
            self._last_event_id = transport.last_event_id or self._last_event_id

    def _check_end(self) -> None:
        """A stream may end with the task, or when the task waits, but not before."""
        if not (self.transcript.ended or self.transcript.paused):
            raise ConnectionLost("The peer ended its stream before the task.")

    def _snapshot(self, task: Task) -> None:
        self._take(StreamResponse(task=task))

    def _take(self, received: StreamResponse) -> None:
        """Read an event, and hand it on; what goes wrong with that is no fault of the peer's."""
        with peer_errors():
            event: Json = MessageToDict(received)
            shown = self.transcript.feed(event)
        self._in_doubt = False
        if self._told_lost:
            self._told_lost = False
            self._emit(Resumed())
        self._news += len(shown)
        self._emit(Received(event, shown))

    def _lose(self, exc: PeerError) -> None:
        self._in_doubt = True
        if not self._told_lost and not isinstance(exc, StreamSilent):
            self._told_lost = True
            self._emit(Reconnecting(exc.message))


# What the SDK lets through where an answer has not the form that it expects.
_MALFORMED = (
    *(ParseError, httpx.InvalidURL),
    *(ValueError, KeyError, TypeError, AttributeError, RecursionError),
)
_REASONS = {kind: reason for reason, kind in A2A_REASON_TO_ERROR.items()}


@contextmanager
def peer_errors() -> Iterator[None]:
    """Translate what the SDK raises; the transport raises our own errors already."""
    try:
        yield
    except VersionNotSupportedError as exc:
        raise PeerProtocolError(
            f"The peer does not speak this version of A2A: {exc.message}",
            hint="Choose another with `line` of a configured peer.",
        ) from exc
    except A2AClientError as exc:
        code, found, said = exc.message.partition(": ")
        if found and code.startswith("JSON-RPC Error"):  # one that A2A does not define
            raise PeerRefused(said) from exc
        raise PeerProtocolError(f"The peer does not answer as A2A asks: {_line(exc)}") from exc
    except A2AError as exc:
        raise PeerRefused(exc.message, reason=_REASONS.get(type(exc), "")) from exc
    except _MALFORMED as exc:
        raise PeerProtocolError(f"The peer does not answer as A2A asks: {_line(exc)}") from exc


def _line(exc: Exception) -> str:
    return (str(exc).splitlines() or [type(exc).__name__])[0][:200]


def _client(transport: PeerTransport) -> httpx.AsyncClient:
    """Its own time-outs are off: the transport has the deadline."""
    return httpx.AsyncClient(
        transport=transport, timeout=None, trust_env=False, follow_redirects=False
    )


def _request(message: Outgoing) -> SendMessageRequest:
    body: Json = {"messageId": str(uuid4()), "role": "ROLE_USER", "parts": list(message.parts)}
    if message.task_id is not None:
        body["taskId"] = message.task_id
    if message.context_id is not None:
        body["contextId"] = message.context_id
    request = SendMessageRequest(message=ParseDict(body, Message()))
    if message.metadata:
        request.metadata.update(message.metadata)
    return request
