"""The metrics of this process, in a registry of prometheus-client.

What exists elsewhere already, such as the tasks at work, is not counted but read when somebody asks
(`Gauge`).

Values of labels come from closed sets. Where they come from outside (models, principals, tools),
`Names` keeps the first ones apart and calls all others `other`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics import disable_created_metrics
from prometheus_client.registry import Collector

PREFIX = "opencode_a2a_"
OTHER = "other"  # all names after the first ones
MAX_NAMES = 100
MAX_PAYERS = 500  # pairs of a model and a principal

Labels: TypeAlias = tuple[str, ...]
Values: TypeAlias = Mapping[Labels, float]

# In seconds, if nothing else is said.
REQUEST_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
TASK_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
PERSON_BUCKETS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 14400.0, 86400.0)
COMMIT_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
ENTRY_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


class Declared(NamedTuple):
    """What a metric is, for its reference page."""

    name: str
    kind: str
    help: str
    labels: Labels


METRICS: dict[str, Declared] = {}  # all that are declared below, by their full name

disable_created_metrics()  # type: ignore[no-untyped-call]  # the time of the first count is of no use, and a third of the lines
REGISTRY = CollectorRegistry()


class OwnProcess(ProcessCollector):
    """Also where `/proc` has nothing but processes, as in the units of deployed instances."""

    def _boot_time(self) -> float:
        if sys.platform != "linux":
            return 0.0
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


OwnProcess(registry=REGISTRY)


def render(accept: str) -> tuple[bytes, str]:
    """All metrics in the best format that the client accepts, and its content type."""
    encode, content_type = choose_encoder(accept)
    return encode(REGISTRY), content_type


def _declare(kind: str, name: str, help: str, labels: Labels) -> Declared:
    declared = Declared(PREFIX + name, kind, help, labels)
    METRICS[declared.name] = declared
    return declared


def _counter(name: str, help: str, labels: Labels = ()) -> Counter:
    """Something that happens: how often, or how much of it."""
    return Counter(_declare("counter", name, help, labels).name, help, labels, registry=REGISTRY)


def _histogram(
    name: str, help: str, labels: Labels = (), buckets: Sequence[float] = REQUEST_BUCKETS
) -> Histogram:
    """How long things take, or how large they are."""
    name = _declare("histogram", name, help, labels).name
    return Histogram(name, help, labels, registry=REGISTRY, buckets=buckets)


class Gauge(Collector):
    """Something that is so now. `read` is set while somebody knows it (`reading`)."""

    def __init__(self, name: str, help: str, labels: Labels = ()) -> None:
        self._declared = _declare("gauge", name, help, labels)
        self.read: Callable[[], Values] | None = None
        REGISTRY.register(self)

    def collect(self) -> Iterable[GaugeMetricFamily]:
        name, _, help, labels = self._declared
        family = GaugeMetricFamily(name, help, labels=labels)
        for values, value in (self.read() if self.read is not None else {}).items():
            family.add_metric(values, value)
        return [family]


class Names(dict[str, str]):
    """The names that a label has, by name: the first ones as they are, all others as `other`."""

    def __init__(self, limit: int = MAX_NAMES) -> None:
        self._limit = limit

    def __missing__(self, name: str) -> str:
        if len(self) >= self._limit:
            return OTHER
        self[name] = name
        return name


@contextmanager
def reading(gauges: Mapping[Gauge, Callable[[], Values]]) -> Iterator[None]:
    """Let these be read while the block lasts."""
    for gauge, read in gauges.items():
        gauge.read = read
    try:
        yield
    finally:
        for gauge, read in gauges.items():
            if gauge.read is read:  # another service of this process may have taken it over
                gauge.read = None


def one(value: float) -> Values:
    """The value of a gauge without labels."""
    return {(): value}


PRINCIPALS = Names()
MODELS = Names()
TOOLS = Names()
PEERS = Names()
_payers: set[tuple[str, str]] = set()


def payer(model: str, principal: str) -> tuple[str, str]:
    """The labels of what somebody uses of a model. Pairs are bounded, as each has many series."""
    pair = MODELS[model], PRINCIPALS[principal]
    if pair not in _payers:
        if len(_payers) >= MAX_PAYERS:
            return OTHER, OTHER
        _payers.add(pair)
    return pair


# -- the service

INFO = Gauge("info", "Always 1; the labels say what runs here.", ("version", "opencode_version"))
CONNECTIONS = Gauge(
    "connections",
    "Open connections of clients; `known` ones have carried a request with a valid credential.",
    ("kind",),
)
REQUESTS = _counter(
    "requests_total",
    "Requests that were answered. `outcome` is `ok`, the `type` of the error, or "
    "`disconnected` where the client left before its answer.",
    ("operation", "line", "transport", "outcome"),
)
REQUEST_SECONDS = _histogram(
    "request_duration_seconds",
    "From a request's head to the beginning of its answer. A stream begins with the task as it "
    "is; a blocking send is answered when the task rests.",
    ("operation", "line", "transport"),
)
INTERNAL_ERRORS = _counter(
    "internal_errors_total", "Requests that failed by an error of the service itself."
)
LOGINS_REFUSED = _counter(
    "logins_refused_total",
    "Requests whose credential was wrong (`invalid`), or was not even looked at because too "
    "many from the same address were wrong (`slowed`).",
    ("reason",),
)
STREAMS = Gauge("streams", "Event streams that are open now.")
STREAMS_OPENED = _counter("streams_opened_total", "Event streams that were opened.")
STREAM_BYTES = _counter("stream_bytes_total", "Bytes of events that were sent.")
READERS = Gauge(
    "readers", "Streams and blocking requests that wait for the next entry of a task's log."
)

# -- tasks

TASKS = Gauge(
    "tasks", "Tasks that this process holds now, by state; ended ones are none.", ("state",)
)
QUEUE_DEPTH = Gauge(
    "queue_depth",
    "Tasks that wait: `slot` for a free one (OPENCODE_MAX_CONCURRENT_STREAMS), `context` for "
    "an older task of their context or their own preparation.",
    ("reason",),
)
QUEUE_LIMIT = Gauge("queue_limit", "How many tasks may wait for a slot (A2A_MAX_QUEUED_TASKS).")
TASKS_CREATED = _counter("tasks_created_total", "Tasks that were stored.")
TASKS_RESUMED = _counter(
    "tasks_resumed_total", "Tasks of another or an earlier process that were taken over."
)
TASKS_ENDED = _counter(
    "tasks_ended_total",
    "Tasks that have ended; `problem` says why one has failed.",
    ("state", "problem"),
)
TASK_SECONDS = _histogram(
    "task_duration_seconds",
    "From a task's creation to its end, with all waiting.",
    labels=("state",),
    buckets=TASK_BUCKETS,
)
QUEUE_SECONDS = _histogram(
    "task_queue_seconds",
    "From a task's creation until the agent works on it.",
    buckets=TASK_BUCKETS,
)
FIRST_TOKEN_SECONDS = _histogram(
    "task_first_token_seconds",
    "From a task's creation until its first output (text or reasoning) can be read.",
    buckets=TASK_BUCKETS,
)
TURNS = _counter(
    "turns_total",
    "Prompts of tasks: `message` of a caller, or `continuation` after OpenCode lost its work.",
    ("kind",),
)
TOKENS = _counter(
    "tokens_total",
    "Tokens that the providers have reported, for agents and sub-agents.",
    ("model", "principal", "kind"),
)
COST = _counter(
    "cost_dollars_total",
    "Costs in US dollars, as OpenCode reckons them from the reported tokens.",
    ("model", "principal"),
)
PROVIDER_RETRIES = _counter(
    "provider_retries_total", "Times that OpenCode waited to ask a provider again."
)
TOOL_CALLS = _counter(
    "tool_calls_total",
    "Tool calls of agents and sub-agents that have ended (`completed` or `error`).",
    ("tool", "outcome"),
)
INTERRUPTS_OPEN = Gauge(
    "interrupts_open", "Requests of agents that wait for a person now.", ("kind",)
)
INTERRUPTS = _counter(
    "interrupts_total",
    "Requests of agents that are settled. `outcome` is the answer (`once`, `always`, "
    "`reject`, `answered`, `rejected`), `rule` where nobody had to be asked, `expired`, "
    "`elsewhere` (in OpenCode's own interface) or `ended` (with the task).",
    ("kind", "outcome"),
)
INTERRUPT_SECONDS = _histogram(
    "interrupt_wait_seconds",
    "How long an agent's request waited until it was settled.",
    labels=("kind",),
    buckets=PERSON_BUCKETS,
)

# -- the task log

COMMIT_SECONDS = _histogram(
    "log_commit_duration_seconds",
    "How long commits of the task log took.",
    buckets=COMMIT_BUCKETS,
)
COMMIT_ENTRIES = _histogram(
    "log_commit_entries",
    "Entries of the task log that were committed together.",
    buckets=ENTRY_BUCKETS,
)
LOG_LAG_SECONDS = _histogram(
    "log_lag_seconds",
    "How long the oldest update of a commit had waited when it was committed.",
    buckets=COMMIT_BUCKETS,
)
LOG_PENDING = Gauge("log_pending_updates", "Updates that are not committed yet.")
STORE_ERRORS = _counter(
    "store_errors_total",
    "Transactions that the database refused (`unavailable`), or of which it is not known "
    "whether they were committed (`unknown`).",
    ("error",),
)

# -- OpenCode

OPENCODE_CONNECTED = Gauge("opencode_connected", "1 while OpenCode's events arrive, else 0.")
OPENCODE_REQUESTS = _counter(
    "opencode_requests_total",
    "Requests to OpenCode. `outcome` is `ok` or the `type` of the error.",
    ("route", "outcome"),
)
OPENCODE_SECONDS = _histogram(
    "opencode_request_duration_seconds", "How long OpenCode took to answer.", ("route",)
)
FEED_RECONNECTS = _counter(
    "feed_reconnects_total", "Times that OpenCode's event stream was connected after the first."
)
FEED_GAPS = _counter(
    "feed_gaps_total", "Gaps in the events of running tasks: what came meanwhile is read."
)
RECONCILES = _counter(
    "reconciles_total", "Times that a task read from OpenCode what it may have missed."
)

# -- other services

OUTBOUND_CALLS = _counter(
    "outbound_calls_total",
    "What the agent has asked of other agents, by the tool it used. `outcome` is `completed`, "
    "`canceled`, or the name of the error.",
    ("peer", "tool", "outcome"),
)
OUTBOUND_SECONDS = _histogram(
    "outbound_call_duration_seconds",
    "How long that took.",
    labels=("peer",),
    buckets=TASK_BUCKETS,
)
PUSH_ATTEMPTS = _counter(
    "push_attempts_total",
    "Push notifications that were sent to a receiver, which has `taken` them or not "
    "(`failed`). An event may need several.",
    ("outcome",),
)
PUSH_SECONDS = _histogram(
    "push_delivery_seconds",
    "From the commit of an event until its receiver has taken it, with all attempts.",
)
PUSH_DEAD = _counter("push_dead_letters_total", "Events that a receiver has not taken in time.")
PUSH_CONFIGS = Gauge(
    "push_configs",
    "Push configs that this process sends to (`open`); those whose next event was not taken at "
    "the first attempt (`failing`); and those that are not tried because their receiver does "
    "not answer (`receiver_away`).",
    ("kind",),
)
AUDIT_ERRORS = _counter("audit_errors_total", "Lines of the audit log that could not be written.")
FILES_FETCHED = _counter(
    "files_fetched_total",
    "Files that messages named by URL; they are `ok` or `refused`.",
    ("outcome",),
)

# These have all their values from the beginning, so that their first change is a change.
for _outcome in ("taken", "failed"):
    PUSH_ATTEMPTS.labels(_outcome)
for _error in ("unavailable", "unknown"):
    STORE_ERRORS.labels(_error)
for _reason in ("invalid", "slowed"):
    LOGINS_REFUSED.labels(_reason)
