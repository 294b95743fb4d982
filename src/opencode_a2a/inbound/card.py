"""The Agent Card: one document for both protocol lines, cheap to fetch again.

The hybrid card carries 1.0 members and their 0.3 counterparts side by side, which
clients of either line read without noticing the other. Who asks with
`A2A-Version: 1.0` gets the pure 1.0 card. The extended card says more about the
extensions, to those who have logged in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from email.utils import formatdate

import orjson
from starlette.requests import Request
from starlette.responses import Response

from ..contract.declare import Json
from ..web.proxies import EXTERNAL_URL
from .failures import JSON, version_of
from .security import SecurityScheme, requirements


@dataclass(frozen=True, slots=True)
class CardFacts:
    """What only the deployment knows."""

    url: str
    title: str
    description: str
    version: str
    schemes: tuple[SecurityScheme, ...]
    input_modes: tuple[str, ...]
    output_modes: tuple[str, ...]
    follows_proxy: bool = False  # the address is the one at which a trusted proxy was asked
    push: bool = False  # notifications are sent


@dataclass(frozen=True, slots=True)
class Document:
    body: bytes
    etag: str
    modified: str = field(default_factory=lambda: formatdate(usegmt=True))

    @classmethod
    def of(cls, card: Json) -> Document:
        return cls.of_bytes(orjson.dumps(card))

    @classmethod
    def of_bytes(cls, body: bytes) -> Document:
        return cls(body, f'"{hashlib.sha256(body).hexdigest()[:32]}"')

    def answer(
        self, request: Request, headers: Mapping[str, str], media_type: str = JSON
    ) -> Response:
        """The document, or 304 for a client that has it already."""
        headers = {
            "etag": f"W/{self.etag}",  # weak: the same whether it is compressed or not
            "last-modified": self.modified,
            **headers,
        }
        known = request.headers.get("if-none-match", "")
        if any(tag.strip().removeprefix("W/") in (self.etag, "*") for tag in known.split(",")):
            response = Response(status_code=304, headers=headers)
            response.headers.add_vary_header("Accept-Encoding")  # as the compression would do
            return response
        return Response(self.body, headers=headers, media_type=media_type)


class Card:
    def __init__(
        self, facts: CardFacts, public: Sequence[Json], extended: Callable[[], Sequence[Json]]
    ) -> None:
        self.hybrid = Document.of(hybrid(facts, public))
        self.pure = Document.of(pure(facts, public))
        self._facts = facts
        self._public = public
        self._extended = extended

    # Made when asked for: the schemas of all methods would be a tenth of the start, and what
    # OpenCode cannot do is known once it is connected.

    @property
    def extended_hybrid(self) -> Json:
        return self.extended(is_pure=False)

    @property
    def extended_pure(self) -> Json:
        return self.extended(is_pure=True)

    def extended(self, *, is_pure: bool, external_url: str | None = None) -> Json:
        facts = self._facts_at(external_url)
        return (pure if is_pure else hybrid)(facts, self._extended())

    def _facts_at(self, external_url: str | None) -> CardFacts:
        if external_url is None or not self._facts.follows_proxy:
            return self._facts
        return replace(self._facts, url=external_url)

    async def serve(self, request: Request) -> Response:
        wants_pure = (version_of(request) or "").startswith("1.")
        facts = self._facts_at(external_url_of(request))
        if facts is self._facts:
            document = self.pure if wants_pure else self.hybrid
        else:
            document = Document.of((pure if wants_pure else hybrid)(facts, self._public))
        # Whoever asks through a proxy may choose the address in it, so nobody else may get it.
        kept = "private, no-cache" if self._facts.follows_proxy else "public, max-age=300"
        headers = {"cache-control": kept, "vary": "A2A-Version"}
        return document.answer(request, headers)


def external_url_of(request: Request) -> str | None:
    """Where a trusted proxy was asked, if the request came through one that says so."""
    found: str | None = request.scope.get("state", {}).get(EXTERNAL_URL)
    return found


def pure(facts: CardFacts, extensions: Sequence[Json]) -> Json:
    """The card as A2A 1.0 defines it."""
    return {
        "name": facts.title,
        "description": facts.description,
        "version": facts.version,
        "supportedInterfaces": [
            {"url": facts.url, "protocolBinding": binding, "protocolVersion": version}
            for version in ("1.0", "0.3")
            for binding in ("JSONRPC", "HTTP+JSON")
        ],
        "capabilities": {
            "streaming": True,
            "pushNotifications": facts.push,
            "extendedAgentCard": True,
            "extensions": list(extensions),
        },
        "securitySchemes": {scheme.name: scheme.v1 for scheme in facts.schemes},
        "securityRequirements": [
            {"schemes": {scheme.name: {"list": []}}} for scheme in facts.schemes
        ],
        "defaultInputModes": list(facts.input_modes),
        "defaultOutputModes": list(facts.output_modes),
        "skills": [
            {
                "id": "code",
                "name": "Work on code",
                "description": "Reads, explains, writes, runs and reviews code in its workspace.",
                "tags": ["coding", "opencode", "agent"],
                "examples": ["Explain what this repository does.", "Fix the failing test."],
            }
        ],
    }


def hybrid(facts: CardFacts, extensions: Sequence[Json]) -> Json:
    """The 1.0 card with the members a 0.3 client looks for."""
    return pure(facts, extensions) | {
        "protocolVersion": "0.3.0",
        "url": facts.url,
        "preferredTransport": "JSONRPC",
        "additionalInterfaces": [
            {"url": facts.url, "transport": "JSONRPC"},
            {"url": facts.url, "transport": "HTTP+JSON"},
        ],
        "supportsAuthenticatedExtendedCard": True,
        "securitySchemes": {scheme.name: {**scheme.v1, **scheme.v03} for scheme in facts.schemes},
        "security": requirements(facts.schemes),
    }
