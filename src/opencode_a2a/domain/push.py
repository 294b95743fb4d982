"""Push notifications: whom to tell about a task, how far they were told, and when to try again.

The log of a task is the outbox. A push config has a durable cursor into it: the number of the last
event that its receiver has taken. So a commit of the log owes the notification in the same moment,
nothing is stored twice, and a process that starts goes on at the cursor.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from .addresses import origin_of
from .task import Task, TaskHead
from .updates import Ended, LogEntry
from .values import TaskState

FIRST_RETRY_SECONDS = 1.0
MAX_RETRY_SECONDS = 600.0
MAX_RETRY_AFTER_SECONDS = 3_600.0  # however long a receiver asks to be left alone
MAX_PROBE_SECONDS = 60.0  # between two probes of a receiver
FAILURES_TO_OPEN = 5  # in a row, of one receiver: then it is only probed
DEFAULT_ID = "default"  # of a config that comes with a message or from a client of 0.3
HMAC_SCHEMES = frozenset({"hmac", "hmac-sha256"})  # the credentials are a key, and never sent
WEB_PUSH = "webpush"  # the scheme of a browser's push service
WEB_PUSH_BODY = 3_993  # bytes: push services take 4 096, of which the encryption needs some


class BrowserKeys(NamedTuple):
    """With which a notification for a browser is encrypted."""

    public: bytes  # an uncompressed point of P-256
    secret: bytes

    @classmethod
    def read(cls, credentials: str | None) -> BrowserKeys:
        """From `p256dh.auth`, as `PushSubscription.toJSON()` writes them. ValueError: they are not.

        Whether the point is on the curve is seen when it is used.
        """
        problem = ValueError("must be the keys of a PushSubscription: p256dh, a dot, auth")
        try:
            public, secret = (_decoded(part) for part in (credentials or "").split("."))
        except ValueError:  # not two, or not base64
            raise problem from None
        if len(public) != 65 or public[0] != 4 or len(secret) != 16:
            raise problem
        return cls(public, secret)


def _decoded(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


@dataclass(frozen=True, slots=True)
class PushTarget:
    """What a client registers: where to, and how its receiver knows that it is us."""

    url: str
    id: str | None = None  # None: chosen here
    token: str | None = field(default=None, repr=False)
    scheme: str | None = None  # of the Authorization header
    credentials: str | None = field(default=None, repr=False)
    line: Literal["1.0", "0.3"] = "1.0"  # what the client speaks, and so its receiver
    every_event: bool = False  # also what only adds to an artifact
    hints: bool = False
    hitl: bool = False

    @property
    def is_browser(self) -> bool:
        """Whether the receiver is the push service of a browser."""
        return (self.scheme or "").lower() == WEB_PUSH

    @property
    def signing_secret(self) -> str | None:
        """What the receiver can verify a signature with: a key of its own, or else its token."""
        if (self.scheme or "").lower() in HMAC_SCHEMES:
            return self.credentials
        return self.token


class ReceiverKey(NamedTuple):
    """What shares a breaker and some sending slots.

    Receivers of other callers do not, although they may be at the same address: otherwise one
    caller could have the others' notifications delayed.
    """

    owner: str
    origin: str


@dataclass(frozen=True, slots=True)
class PushConfig:
    """A target of one task. The owner of the task is the only one who sees it."""

    head: TaskHead  # of the task
    id: str
    target: PushTarget
    created_at: int

    @property
    def receiver(self) -> ReceiverKey:
        return ReceiverKey(self.head.owner, origin_of(self.target.url))


@dataclass(slots=True)
class PushCursor:
    """How far a receiver was told, and how often it has not taken the next event."""

    task_id: str
    config_id: str
    receiver: ReceiverKey
    every_event: bool
    seq: int
    state: TaskState  # of the task, there
    status_at: int = 0  # of the last change of state up to there
    attempts: int = 0  # failed ones, of the next event
    next_at: int = 0  # not before
    over: bool = False  # the receiver was told the end, so nothing follows

    @property
    def key(self) -> tuple[str, str]:
        return self.task_id, self.config_id

    @classmethod
    def at_start(cls, config: PushConfig) -> PushCursor:
        """Before the first event of the task."""
        return cls(
            config.head.id,
            config.id,
            receiver=config.receiver,
            every_event=config.target.every_event,
            seq=0,
            state=TaskState.SUBMITTED,
            status_at=config.head.created_at,
        )

    @classmethod
    def after(cls, config: PushConfig, task: Task) -> PushCursor:
        """After everything that the task is now."""
        cursor = cls.at_start(config)
        cursor.seq, cursor.state, cursor.status_at = task.last_seq, task.state, task.status_at
        cursor.over = task.state.terminal
        return cursor

    def passed(self, entry: LogEntry) -> None:
        """The entry is dealt with: it was taken, is nothing to tell, or is a dead letter."""
        self.seq, self.attempts, self.next_at = entry.seq, 0, 0
        if entry.state is not None:
            self.state, self.status_at = entry.state, entry.at
        self.over = isinstance(entry.update, Ended)


@dataclass(frozen=True, slots=True)
class DuePush:
    """The next entries for a receiver; with the task, where they end it."""

    config: PushConfig
    entries: Sequence[LogEntry]
    task: Task | None = None
    more: bool = False  # others follow


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An event that a receiver has not taken in time."""

    config: PushConfig
    seq: int
    at: int  # of the event
    attempts: int
    error: str


@dataclass(frozen=True, slots=True)
class Notification:
    """One event as it goes to a receiver. The id is the same for every attempt."""

    id: str
    body: bytes
    attempt: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of an attempt: nothing wrong, or what was."""

    error: str | None = None
    retry_after: float | None = None  # seconds, if the receiver has said
    unwell: bool = False  # the receiver is away, so other events need not be tried
    gone: bool = False  # and will not be back: a browser that wants nothing more


def event_id(task_id: str, seq: int) -> str:
    return f"{task_id}:{seq}"


def retry_seconds(attempts: int, *, jitter: float, retry_after: float | None) -> float:
    """How long to wait after so many failed attempts; `jitter` is between 0 and 1."""
    pause = min(FIRST_RETRY_SECONDS * 2.0 ** min(attempts - 1, 20), MAX_RETRY_SECONDS)
    pause *= 0.5 + jitter
    return max(pause, min(retry_after or 0.0, MAX_RETRY_AFTER_SECONDS))


@dataclass(slots=True)
class Breaker:
    """Whether a receiver is asked at all. After some failures in a row one attempt is a probe."""

    failures: int = 0
    closed_until: float = 0.0  # to everybody
    probing: bool = False

    @property
    def is_open(self) -> bool:
        """Whether the receiver is only probed."""
        return self.failures >= FAILURES_TO_OPEN

    def admit(self, now: float) -> bool:
        """Whether to go ahead, and report the outcome."""
        if not self.is_open:
            return True
        if self.probing or now < self.closed_until:
            return False
        self.probing = True
        return True

    def worked(self) -> None:
        self.failures, self.closed_until, self.probing = 0, 0.0, False

    def failed(self, now: float, *, jitter: float) -> None:
        self.failures += 1
        self.probing = False
        if (extra := self.failures - FAILURES_TO_OPEN) >= 0:
            pause = retry_seconds(extra + 2, jitter=jitter, retry_after=None)
            self.closed_until = now + min(pause, MAX_PROBE_SECONDS)


class SendingShares:
    """How many requests each owner has under way.

    An owner may have as many as are left for everybody else. So one alone gets half of all, each
    further one half of the rest, and there is nearly always something left for one who comes new.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._used = Counter[str]()

    def may_begin(self, owner: str) -> bool:
        return self._used[owner] < self._free

    def begin(self, owner: str) -> None:
        self._free -= 1
        self._used[owner] += 1

    def end(self, owner: str) -> None:
        self._free += 1
        self._used[owner] -= 1
        if not self._used[owner]:
            del self._used[owner]

    def next_of(self, waiting: Iterable[str]) -> str | None:
        """Who is to begin: of those who wait, one who has the fewest under way."""
        owner = min(waiting, key=lambda each: self._used[each], default=None)
        return owner if owner is not None and self.may_begin(owner) else None


@dataclass(frozen=True, slots=True)
class Claimed:
    """What a look at the configs has found."""

    taken: Sequence[PushCursor] = ()  # nobody sent these (any more); now this process holds them
    changed: Sequence[PushCursor] = ()  # held before, and their task has changed
    lost: Collection[tuple[str, str]] = ()  # not held any more, or deleted
    more: bool = False  # others are left to be taken


class StoredConfig(NamedTuple):
    """What became of a config that was put."""

    cursor: PushCursor | None  # None: another process sends to it
    replaced: bool  # it was there, with another target


class TooManyConfigs(Exception):
    """The task has as many configs as it may have."""


class TaskGone(Exception):
    """The task was deleted meanwhile."""


class TellNews(Protocol):
    def __call__(self, task_id: str | None, seq: int, *, has_state: bool) -> None:
        """How far the log of a task goes, or None: there may be news of any task.

        `has_state`: its state has changed.
        """
        ...


class PushStore(Protocol):
    """The configs and cursors of this workspace root."""

    async def put(self, config: PushConfig, cursor: PushCursor, *, most: int) -> StoredConfig:
        """Add a config, or change the target of one that is there, which goes on at its cursor.

        `TooManyConfigs` or `TaskGone` if it cannot be added.
        """
        ...

    async def of_task(self, owner: str, task_id: str) -> Sequence[PushConfig]: ...

    async def delete(self, owner: str, task_id: str, config_id: str) -> None: ...

    async def claim(self, known: Collection[tuple[str, str]]) -> Claimed:
        """Renew the lease on what this process sends (`known`), and claim what nobody sends."""
        ...

    async def release(self) -> None: ...

    def on_news(self, tell: TellNews) -> Callable[[], None]:
        """Call it when a process has written something, until the result is called.

        A hint: some of it never comes, and what this process has written comes, too.
        """
        ...

    async def follow(self, task_ids: Sequence[str]) -> None:
        """Have news of these tasks told for some seconds that do not change their states, too."""
        ...

    async def due(self, cursor: PushCursor) -> DuePush | None:
        """What comes after the cursor; None if the config is gone."""
        ...

    async def save(
        self, cursors: Sequence[PushCursor], dead: Sequence[DeadLetter]
    ) -> Collection[tuple[str, str]]:
        """Returns what was not saved, because this process does not hold it any more."""
        ...

    async def dead_letters(
        self, owner: str, *, task_id: str | None, config_id: str | None, limit: int
    ) -> Sequence[DeadLetter]:
        """The oldest first."""
        ...

    async def dead_entry(self, letter: DeadLetter) -> DuePush | None: ...

    async def redelivered(self, letter: DeadLetter) -> None: ...

    async def not_redelivered(self, letter: DeadLetter, error: str) -> None:
        """Count one more attempt, if the letter is still there."""
        ...


class Receivers(Protocol):
    """The way to receivers, under the egress policy."""

    async def check(self, url: str, *, owner: str) -> None:
        """`Refused` if nothing may be sent there."""
        ...

    async def challenge(self, url: str, *, owner: str) -> None:
        """`Refused` if who is there does not want this."""
        ...

    async def post(self, config: PushConfig, notification: Notification) -> Answer: ...


class RenderPush(Protocol):
    def __call__(self, due: DuePush, entry: LogEntry, state: TaskState) -> bytes | None:
        """An event in the words of its receiver; None if that is not told about it."""
        ...
