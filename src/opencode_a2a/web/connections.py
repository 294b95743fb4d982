"""Which connections may stay open, and for how long: the rule, without a socket or a clock.

A connection is *unknown* until it carries a request of a known caller.

- Unknown connections are bounded in total and per address. A new one over the bound closes the
  oldest, by when it began to wait for its client or for its answer; answers get a second more. So
  whoever connects gets in, and has to send its request before as many others come. A client that
  does not read its answers keeps nobody out.
- A trusted proxy has no address here: the clients behind it are bounded by the totals alone.
- Known connections do not count against their address, because behind a proxy all callers have the
  same one. They are bounded by the total alone. When the total is reached, unknown connections are
  closed first, then known ones between two requests. A known caller's request or stream is never
  closed for anybody.
- A request head has a deadline. So has a body, but every part that arrives postpones it. What
  a known caller is answered has none until its connection is to be closed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from ipaddress import IPv6Address, IPv6Network, ip_address
from operator import itemgetter
from typing import Generic, TypeVar

MARK_KNOWN = "opencode_a2a.mark_known"  # in a request's state: call it if its caller is known
CUT_OFF = "opencode_a2a.cut_off"  # in a request's state: call it to close its connection at once
MAX_CONNECTIONS = 8_192  # fewer where the limit for open files is lower
MAX_CONNECTIONS_PER_ADDRESS = 1_024  # that have not carried a request of a known caller yet
RESERVED_FILES = 256  # descriptors for all but clients: the database, OpenCode, attachments
MAX_HEAD_BYTES = 32_768  # of a request line with its header fields
HEAD_SECONDS = 15.0  # for the head of a request to arrive
BODY_SECONDS = 30.0  # for its body, and more for every part of it that arrives
BODY_BYTES_PER_SECOND = 512  # a body that arrives at this rate is never too slow
KEEP_ALIVE_SECONDS = 75  # between two requests; clients and proxies close theirs earlier
UNKNOWN_ANSWER_SECONDS = 30.0  # no answer to an unknown caller takes long, unless it is not read
ANSWER_HEAD_START = 1.0  # seconds by which an unknown caller's answer counts as younger than it is
CLOSING_SECONDS = 600.0  # for a known caller to read the rest of the last answer
LINGER_SECONDS = 3.0  # how long a refused client may go on sending before it is cut off
MAX_UNKNOWN = 2_048  # unknown connections, however many there may be in total

K = TypeVar("K")


class Phase(Enum):
    """What a connection waits for."""

    HEAD = "head"  # the client, to send (the rest of) a request head
    BODY = "body"  # the client, to send the rest of a request body
    ANSWER = "answer"  # the service, to finish its answer
    IDLE = "idle"  # the client, to send another request
    CLOSING = "closing"  # the client, to read the rest of the last answer
    LINGER = "linger"  # the client, to close the connection after it was refused


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    total: int
    unknown: int
    unknown_per_address: int
    head_seconds: float
    body_seconds: float

    @classmethod
    def of(
        cls, *, total: int, per_address: int, head_seconds: float, body_seconds: float
    ) -> ConnectionLimits:
        unknown = min(MAX_UNKNOWN, max(1, total // 2))
        return cls(
            total=total,
            unknown=unknown,
            unknown_per_address=min(per_address, unknown),
            head_seconds=head_seconds,
            body_seconds=body_seconds,
        )


@dataclass(slots=True)
class _Entry:
    address: str
    phase: Phase
    since: float
    is_known: bool = False
    received: int = 0  # bytes of the body, in phase BODY


class _ClosingOrder(Generic[K]):
    """Connections in the order in which they are closed to make room."""

    __slots__ = ("_answered", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[K, float] = {}  # both oldest first
        self._answered: dict[K, float] = {}

    def __len__(self) -> int:
        return len(self._waiting) + len(self._answered)

    def put(self, key: K, phase: Phase, since: float) -> None:
        self.drop(key)
        if phase is Phase.ANSWER:
            self._answered[key] = since + ANSWER_HEAD_START
        else:
            self._waiting[key] = since

    def drop(self, key: K) -> None:
        self._waiting.pop(key, None)
        self._answered.pop(key, None)

    def first(self) -> K | None:
        oldest = [next(iter(each.items())) for each in (self._waiting, self._answered) if each]
        return min(oldest, key=itemgetter(1))[0] if oldest else None


class Connections(Generic[K]):
    """All open connections, by key. The methods return which of them the caller must close."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._entries: dict[K, _Entry] = {}
        self._unknown = _ClosingOrder[K]()
        self._unknown_at: dict[str, _ClosingOrder[K]] = {}
        self._known_unused = _ClosingOrder[K]()

    def __len__(self) -> int:
        return len(self._entries)

    def kinds(self) -> dict[tuple[str, ...], float]:
        """How many are open of which kind."""
        return {("known",): len(self) - self.unknown, ("unknown",): self.unknown}

    @property
    def unknown(self) -> int:
        return len(self._unknown)

    def opened(self, key: K, address: str, now: float) -> K | None:
        """Which connection must be closed for a new one: none, another, or the new one itself.

        `address` is empty for those that are not counted by address.
        """
        other = self._least_needed(address)
        if other is not None:
            self.closed(other)
        elif len(self._entries) >= self._limits.total:
            return key
        self._entries[key] = _Entry(address, Phase.HEAD, since=now)
        self._unknown_at.setdefault(address, _ClosingOrder())
        self._sort(key, self._entries[key])
        return other

    def moved(self, key: K, phase: Phase, now: float) -> None:
        if (entry := self._entries.get(key)) is not None:
            entry.phase, entry.since, entry.received = phase, now, 0
            self._sort(key, entry)

    def received(self, key: K, size: int) -> None:
        """So many bytes of a body arrived."""
        if (entry := self._entries.get(key)) is not None:
            entry.received += size

    def became_known(self, key: K) -> None:
        entry = self._entries.get(key)
        if entry is not None and not entry.is_known:
            self._forget_unknown(key, entry)
            entry.is_known = True
            self._sort(key, entry)

    def closed(self, key: K) -> None:
        if (entry := self._entries.pop(key, None)) is not None:
            self._known_unused.drop(key)
            self._forget_unknown(key, entry)

    def overdue(self, now: float) -> list[tuple[K, Phase]]:
        """The connections that have waited too long, and for what."""
        found = []
        for key, entry in self._entries.items():
            deadline = self._deadline(entry)
            if deadline is not None and now >= deadline:
                found.append((key, entry.phase))
        return found

    def _least_needed(self, address: str) -> K | None:
        """The connection to close before a new one from this address is entered."""
        here = self._unknown_at.get(address) if address else None
        if here is not None and len(here) >= self._limits.unknown_per_address:
            return here.first()
        full = len(self._entries) >= self._limits.total
        if full or len(self._unknown) >= self._limits.unknown:
            first = self._unknown.first()
            return self._known_unused.first() if first is None and full else first
        return None

    def _sort(self, key: K, entry: _Entry) -> None:
        if not entry.is_known:
            self._unknown.put(key, entry.phase, since=entry.since)
            self._unknown_at[entry.address].put(key, entry.phase, since=entry.since)
        elif entry.phase in (Phase.BODY, Phase.ANSWER, Phase.CLOSING):
            self._known_unused.drop(key)
        else:
            self._known_unused.put(key, entry.phase, since=entry.since)

    def _forget_unknown(self, key: K, entry: _Entry) -> None:
        self._unknown.drop(key)
        if (here := self._unknown_at.get(entry.address)) is not None:
            here.drop(key)
            if not len(here):
                del self._unknown_at[entry.address]

    def _deadline(self, entry: _Entry) -> float | None:
        match entry.phase:
            case Phase.HEAD:
                return entry.since + self._limits.head_seconds
            case Phase.BODY:
                extra = entry.received / BODY_BYTES_PER_SECOND
                return entry.since + self._limits.body_seconds + extra
            case Phase.LINGER:
                return entry.since + LINGER_SECONDS
            case Phase.ANSWER:
                return None if entry.is_known else entry.since + UNKNOWN_ANSWER_SECONDS
            case Phase.CLOSING:
                seconds = CLOSING_SECONDS if entry.is_known else UNKNOWN_ANSWER_SECONDS
                return entry.since + seconds
            case Phase.IDLE:  # the server closes it after KEEP_ALIVE_SECONDS
                return None


@lru_cache(4_096)
def network_of(host: str) -> str:
    """What counts as one address: of IPv6 a /64 network, which is what one customer gets."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Network((int(address) >> 64 << 64, 64)))
