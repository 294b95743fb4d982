"""Which peer to call, how to speak with it, and what a call may cost.

Light enough for whoever only wants to know what could be called: nothing here loads the client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from ..domain.addresses import origin_of
from .failures import PeerNotAllowed


@dataclass(frozen=True, slots=True)
class Login:
    """Header fields that are for these origins only, such as a credential."""

    origins: frozenset[str] = frozenset()
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)  # what must not appear in a log

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
    streams: bool = True
    call_headers: tuple[tuple[str, str], ...] = ()  # for every request of a call; not secret
    extensions: tuple[str, ...] = ()  # to activate in any case
    welcome_extensions: tuple[str, ...] = ()  # to activate if its card lists them


@dataclass(frozen=True, slots=True)
class CallablePeers:
    """The agents that the model may call."""

    targets: Mapping[str, Target]
    by_address: Callable[[str], Target] | None = None  # None: only those that have a name
    own_origins: frozenset[str] = frozenset()  # of this service, and of its OpenCode

    @property
    def secrets(self) -> list[str]:
        return [secret for each in self.targets.values() for secret in each.login.secrets]

    def find(self, word: str, headers: Mapping[str, str]) -> Target:
        target = self.targets.get(word)
        if target is None and self.by_address is not None and "://" in word:
            target = self.by_address(word)
        if target is None:
            names = ", ".join(sorted(self.targets)) or "none"
            raise PeerNotAllowed(f"There is no agent of this name. Those you can call: {names}.")
        self.check_origin(target.url)
        return replace(target, call_headers=tuple(headers.items()))

    def check_origin(self, url: str) -> None:
        if origin_of(url) in self.own_origins:
            raise PeerNotAllowed(
                "That is the service you work for, or its OpenCode: it cannot call itself."
            )
