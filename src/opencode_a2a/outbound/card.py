"""A peer's Agent Card: finding it, and choosing from it how to speak with the peer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Protocol
from urllib.parse import urlsplit

import httpx
from a2a.client.card_resolver import parse_agent_card
from a2a.types.a2a_pb2 import AgentCard, AgentInterface
from google.protobuf.json_format import ParseError  # type: ignore[import-untyped]

from .failures import NotAnAgent, PeerProtocolError, PeerRefused
from .target import Login, Target
from .transport import get

WELL_KNOWN = ("/.well-known/agent-card.json", "/.well-known/agent.json")
LINES = ("1.0", "0.3")
CARDS_KEPT = 256  # in memory
REQUIRED = (
    *("name", "description", "version", "capabilities"),
    *("defaultInputModes", "defaultOutputModes", "skills"),
)


@dataclass(frozen=True, slots=True)
class FoundCard:
    url: str
    raw: dict[str, Any]  # as it was received
    card: AgentCard
    etag: str | None = None


class CardCache(Protocol):
    """Cards that were found before. They are asked for again, but not sent again."""

    def get(self, target: Target) -> FoundCard | None: ...

    def put(self, target: Target, found: FoundCard) -> None: ...


class CardsInMemory:
    def __init__(self) -> None:
        self._cards: dict[tuple[str, Login], FoundCard] = {}

    def get(self, target: Target) -> FoundCard | None:
        return self._cards.get((target.url, target.login))

    def put(self, target: Target, found: FoundCard) -> None:
        self._cards[target.url, target.login] = found
        if len(self._cards) > CARDS_KEPT:
            del self._cards[next(iter(self._cards))]


async def find_card(http: httpx.AsyncClient, url: str, known: FoundCard | None) -> FoundCard:
    """The card of the agent at an address; `known` is what was found there before."""
    if urlsplit(url).path.endswith(".json"):
        return await _fetch(http, url, known)
    missing: PeerRefused | NotAnAgent | None = None
    places = [url.rstrip("/") + path for path in WELL_KNOWN]
    if known is not None:
        places.sort(key=lambda place: place != known.url)  # where it was before
    for place in places:
        try:
            return await _fetch(http, place, known)
        except NotAnAgent as exc:
            missing = missing or exc
        except PeerRefused as exc:
            if exc.reason != "NOT_FOUND":
                raise
            missing = missing or exc
    raise NotAnAgent(
        f"There is no Agent Card at {url}. {missing.message if missing else ''}".rstrip(),
        hint=f"An A2A agent has one at {WELL_KNOWN[0]}; or give the address of the card itself.",
    )


async def _fetch(http: httpx.AsyncClient, url: str, known: FoundCard | None) -> FoundCard:
    headers = {}
    if known is not None and known.url == url and known.etag:
        headers["if-none-match"] = known.etag
    response = await get(http, url, headers)
    if response.status_code == 304 and known is not None:
        return known
    raw, card = read_card(response.content, where=str(response.request.url))
    is_kept = "no-store" not in response.headers.get("cache-control", "")
    return FoundCard(url, raw, card=card, etag=response.headers.get("etag") if is_kept else None)


def read_card(content: bytes, *, where: str) -> tuple[dict[str, Any], AgentCard]:
    hint = "The peer's operator has to mend its card."
    try:
        raw = json.loads(content)
    except (ValueError, RecursionError):
        raise NotAnAgent(f"What is at {where} is not JSON, so it is no Agent Card.") from None
    if not isinstance(raw, dict):
        raise NotAnAgent(f"What is at {where} is no Agent Card.")
    try:
        card = parse_agent_card(json.loads(content))  # which changes what it is given
    except (ParseError, ValueError, TypeError, AttributeError, KeyError) as exc:
        reason = str(exc).splitlines()[0][:200]
        raise NotAnAgent(f"The Agent Card at {where} is wrong: {reason}", hint=hint) from None
    if not card.supported_interfaces:
        raise NotAnAgent(
            f"The Agent Card at {where} names no address to send messages to.", hint=hint
        )
    return raw, card


def line_of(interface: AgentInterface) -> str:
    """The protocol line, such as 1.0; cards of 1.0 that forget to say it are taken for that."""
    return ".".join((interface.protocol_version or "1.0").split(".")[:2])


def choose_interface(
    card: AgentCard, transports: Sequence[str], *, line: str | None
) -> AgentInterface:
    """The first that we speak: on the newer line, in the peer's order."""
    lines = LINES if line is None else (line,)
    spoken = [
        interface
        for interface in card.supported_interfaces
        if interface.protocol_binding in transports and line_of(interface) in lines
    ]
    if not spoken:
        offered = ", ".join(
            f"{line_of(each)} over {each.protocol_binding}" for each in card.supported_interfaces
        )
        raise PeerProtocolError(
            f"The peer speaks A2A {offered}; this client {' and '.join(lines)} over "
            f"{' and '.join(transports)}.",
            hint="A2A_CLIENT_SUPPORTED_TRANSPORTS, or `transport` and `line` of a configured peer, "
            "limit what is spoken here.",
        )

    best: AgentInterface = min(spoken, key=lambda each: lines.index(line_of(each)))
    return best  # the first of equals


def reachable_url(url: str, card_url: str) -> str:
    """Where to send to: agents that listen everywhere often publish just that as their address."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise NotAnAgent(f"The Agent Card names {url!r} as an address, which is no http(s) URL.")
    try:
        anywhere = ip_address(parts.hostname).is_unspecified
    except ValueError:
        anywhere = False
    if anywhere:
        host = urlsplit(card_url).hostname or ""
        host = f"[{host}]" if ":" in host else host
        return parts._replace(netloc=f"{host}:{parts.port}" if parts.port else host).geturl()
    return url


def card_problems(raw: dict[str, Any], card: AgentCard) -> Iterator[str]:
    """What is wrong with a card, beyond what makes it unusable."""
    for name in REQUIRED:
        if name not in raw:
            yield f"{name}: is missing, although A2A requires it"
    for position, each in enumerate(card.supported_interfaces):
        where = f"interface {position + 1}"
        if urlsplit(each.url).scheme not in ("http", "https") and each.protocol_binding != "GRPC":
            yield f"{where}: {each.url!r} is no http(s) URL"
        if not each.protocol_binding:
            yield f"{where}: does not say its transport"
        if "supportedInterfaces" in raw and not each.protocol_version:
            yield f"{where}: does not say its protocolVersion"
    for position, skill in enumerate(card.skills):
        for name in ("id", "name", "description"):
            if not getattr(skill, name):
                yield f"skill {position + 1}: has no {name}"
        if not skill.tags:
            yield f"skill {position + 1}: has no tags"
    schemes = card.security_schemes
    for requirement in card.security_requirements:
        for name in requirement.schemes:
            if name not in schemes:
                yield f"security: there is no scheme {name!r}"
