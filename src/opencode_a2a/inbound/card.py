"""The Agent Card: one document for both protocol lines, cheap to fetch again.

The hybrid card carries 1.0 members and their 0.3 counterparts side by side, which
clients of either line read without noticing the other. Who asks with
`A2A-Version: 1.0` gets the pure 1.0 card. The extended card says more about the
extensions, to those who have logged in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import formatdate

import orjson
from starlette.requests import Request
from starlette.responses import Response

from ..contract.declare import Json
from .failures import JSON, version_of


@dataclass(frozen=True, slots=True)
class CardFacts:
    """What only the deployment knows."""

    url: str
    title: str
    description: str
    version: str
    schemes: tuple[str, ...]
    input_modes: tuple[str, ...]
    output_modes: tuple[str, ...]


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
            return Response(status_code=304, headers=headers)
        return Response(self.body, headers=headers, media_type=media_type)


class Card:
    def __init__(
        self, facts: CardFacts, public: Sequence[Json], extended: Callable[[], Sequence[Json]]
    ) -> None:
        self.hybrid = Document.of(hybrid(facts, public))
        self.pure = Document.of(pure(facts, public))
        self._facts = facts
        self._extended = extended

    # Made when asked for: the schemas of all methods would be a tenth of the start, and what
    # OpenCode cannot do is known once it is connected.

    @property
    def extended_hybrid(self) -> Json:
        return hybrid(self._facts, self._extended())

    @property
    def extended_pure(self) -> Json:
        return pure(self._facts, self._extended())

    async def serve(self, request: Request) -> Response:
        wants_pure = (version_of(request) or "").startswith("1.")
        document = self.pure if wants_pure else self.hybrid
        headers = {"cache-control": "public, max-age=300", "vary": "A2A-Version, Accept-Encoding"}
        return document.answer(request, headers)


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
            "pushNotifications": False,
            "extendedAgentCard": True,
            "extensions": list(extensions),
        },
        "securitySchemes": {
            scheme: {"httpAuthSecurityScheme": {"scheme": scheme}} for scheme in facts.schemes
        },
        "securityRequirements": [{"schemes": {scheme: {"list": []}}} for scheme in facts.schemes],
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
    card = pure(facts, extensions)
    schemes = card["securitySchemes"]
    return card | {
        "protocolVersion": "0.3.0",
        "url": facts.url,
        "preferredTransport": "JSONRPC",
        "additionalInterfaces": [
            {"url": facts.url, "transport": "JSONRPC"},
            {"url": facts.url, "transport": "HTTP+JSON"},
        ],
        "supportsAuthenticatedExtendedCard": True,
        "securitySchemes": {
            name: {**scheme, "type": "http", "scheme": name} for name, scheme in schemes.items()
        },
        "security": [{scheme: []} for scheme in facts.schemes],
    }
