"""Which peer to call, how to speak with it, and what a call may cost.

Light enough for whoever only wants to know what could be called: nothing here loads the client.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..domain.addresses import origin_of


@dataclass(frozen=True, slots=True)
class Login:
    """Header fields that are for these origins only, such as a credential."""

    origins: frozenset[str] = frozenset()
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def headers_for(self, url: str) -> tuple[tuple[str, str], ...]:
        return self.headers if origin_of(url) in self.origins else ()


@dataclass(frozen=True, slots=True)
class PeerLimits:
    concurrent_calls: int = 16
    response_bytes: int = 64 * 1024 * 1024
    total_seconds: float = 3600.0
    request_seconds: float = 60.0
    card_seconds: float = 10.0
    idle_seconds: float = 60.0  # of silence on a stream; then it is opened again
    lost_seconds: float = 60.0  # without any sign of the peer


@dataclass(frozen=True, slots=True)
class Target:
    """A peer, and how to speak with it."""

    url: str
    login: Login = Login()
    name: str = ""
    named: bool = True  # by a person or the operator, so that it may be a private host
    transports: tuple[str, ...] = ("JSONRPC", "HTTP+JSON")
    line: str | None = None  # None: the newest that both speak
    own_order: bool = False  # of the transports, rather than the peer's
    streams: bool = True
    extensions: tuple[str, ...] = ()  # to activate in any case
    welcome_extensions: tuple[str, ...] = ()  # to activate if its card lists them
