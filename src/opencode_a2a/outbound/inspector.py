"""Other agents, for a person who looks at them: implements `domain.ports.PeerInspector`.

What may be called is what the agent of this service may call. A message waits for its answer for a
minute, not for hours: whoever looks at an agent sits in front of a screen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import orjson

from ..domain.ports import PeerCard, PeerExchange
from ..errors import InvalidParams, PeerFailed, RateLimited
from .egress import Egress
from .failures import AnswerTooLarge, PeerError, PeerNotAllowed, PeerTimeout
from .target import CallablePeers, PeerLimits, Target

if TYPE_CHECKING:
    from .client import Emit, PeerCall, Peers, PeerUpdate

MAX_SECONDS = 60.0
MAX_BYTES = 1024 * 1024  # of a card, or of all events
MAX_AT_ONCE = 8  # looks, of all callers; one takes a minute at most


class Inspector:
    def __init__(
        self,
        callable_peers: Callable[[], CallablePeers],  # as they are now
        egress: Egress,
        limits: PeerLimits,
        *,
        headers: Mapping[str, str],  # of every request
    ) -> None:
        self._callable = callable_peers
        self._egress = egress
        self._limits = replace(
            limits,
            total_seconds=min(limits.total_seconds, MAX_SECONDS),
            response_bytes=min(limits.response_bytes, MAX_BYTES),
        )
        self._headers = headers
        self._peers: Peers | None = None
        self._looks = 0  # at the moment

    def names(self) -> Sequence[str]:
        return sorted(self._callable().targets)

    def takes_addresses(self) -> bool:
        return self._callable().by_address is not None

    async def card(self, peer: str) -> PeerCard:
        peers, target = await self._client(), self._target(peer)
        from .card import card_problems, choose_interface, line_of

        try:
            with self._looking():
                found = await peers.look(target)
        except PeerError as exc:
            raise _failed(exc) from exc
        try:
            orjson.dumps(found.raw)
        except (TypeError, ValueError):  # too deep, too large a number, half a character
            raise PeerFailed("Its card has something in it that JSON cannot hold.") from None
        problems = [*card_problems(found.raw, found.card)]
        line = transport = None
        try:
            chosen = choose_interface(found.card, target.transports, line=target.line)
            line, transport = line_of(chosen), chosen.protocol_binding
        except PeerError as exc:
            problems.append(exc.message)
        return PeerCard(
            found.url, found.raw, line=line, transport=transport, problems=tuple(problems)
        )

    async def send(self, peer: str, text: str, *, context_id: str | None) -> PeerExchange:
        peers, target = await self._client(), self._target(peer)
        from .client import Received

        events: list[Mapping[str, Any]] = []
        left = MAX_BYTES

        def keep(update: PeerUpdate) -> None:
            nonlocal left
            if isinstance(update, Received):
                left -= len(orjson.dumps(update.event))
                if left < 0:
                    raise AnswerTooLarge(f"Its answer has more than {MAX_BYTES} bytes.")
                events.append(update.event)

        try:
            with self._looking():
                call = await self._ask(peers, target, text, context_id=context_id, keep=keep)
        except PeerError as exc:
            raise _failed(exc) from exc
        found = call.transcript
        return PeerExchange(
            tuple(events),
            answer=found.answer,
            state=found.state,
            task_id=found.task_id,
            context_id=found.context_id,
        )

    async def _ask(
        self, peers: Peers, target: Target, text: str, *, context_id: str | None, keep: Emit
    ) -> PeerCall:
        from .client import Outgoing

        async with peers.connect(target) as connected:
            self._callable().check_origin(connected.url)
            call = connected.call(keep)
            try:
                await call.send(Outgoing(({"text": text},), context_id=context_id))
            except PeerTimeout:
                if call.transcript.task_id is None:
                    raise
            return call

    @contextmanager
    def _looking(self) -> Iterator[None]:
        """Nobody waits for the looks of others, which may all be at agents that hang."""
        if self._looks >= MAX_AT_ONCE:
            raise RateLimited(
                "Too many agents are being looked at. Try again in a moment.", retry_after=10
            )
        self._looks += 1
        try:
            yield
        finally:
            self._looks -= 1

    def _target(self, peer: str) -> Target:
        try:
            return self._callable().find(peer, self._headers)
        except PeerNotAllowed as exc:
            raise InvalidParams.at("peer", exc.message) from None

    async def _client(self) -> Peers:
        """Loaded when somebody looks for the first time: it takes a second."""
        if self._peers is None:
            await asyncio.to_thread(import_module, ".client", __package__)
            from .client import Peers

            self._peers = Peers(self._egress, self._limits)
        return self._peers


def _failed(exc: PeerError) -> InvalidParams | PeerFailed:
    if isinstance(exc, PeerNotAllowed):
        return InvalidParams.at("peer", exc.message)
    return PeerFailed(exc.message)
