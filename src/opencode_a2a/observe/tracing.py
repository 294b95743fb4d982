"""Spans, and to which trace they belong. Without a tracer (the usual case) nothing is recorded.

A span is recorded when it is over, so a process that is killed leaves none half done. Those of a
task, its turns and its tool calls are made from the committed log (`observe.tasks`), and their ids
follow from what they are about (`derived`): whichever process ends a task records them under the
same ids, below the request that began it.

`otel` implements the tracer; it is loaded only where the environment asks for it.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Mapping
from contextvars import ContextVar
from functools import lru_cache
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol

Kind = Literal["server", "client", "internal"]
Attributes = Mapping[str, str | int | float | bool]

_TRACEPARENT = re.compile(
    rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
)


class SpanRef(NamedTuple):  # cheaper to make and to look up than a dataclass
    """A span, as `traceparent` names it. `span` is empty where there is none in the trace yet."""

    trace: str  # 32 hexadecimal digits
    span: str = ""  # 16 hexadecimal digits
    sampled: bool = False  # somebody records this trace

    @property
    def header(self) -> str:
        """As W3C Trace Context writes it."""
        return f"00-{self.trace}-{self.span or new_span_id()}-{'01' if self.sampled else '00'}"


def parse(traceparent: bytes) -> SpanRef | None:
    """The span that a header names; None if it is not valid."""
    found = _TRACEPARENT.fullmatch(traceparent)
    if found is None:
        return None
    return SpanRef(found[1].decode(), found[2].decode(), sampled=bool(int(found[3], 16) & 1))


def new_hex(digits: int) -> str:
    """An id that nobody has, and that anybody may guess.

    Unguessable ones come from the kernel, and each time another thread may take the interpreter.
    """
    return f"{random.getrandbits(4 * digits):0{digits}x}"


def new_span_id() -> str:
    return new_hex(16)


@lru_cache(maxsize=1_024)  # each is needed three or four times
def derived(ref: SpanRef, about: str, name: str) -> SpanRef:
    """The span about something that has a name in the log; the same in every process."""
    digest = hashlib.blake2b(f"{ref.trace} {about} {name}".encode(), digest_size=8)
    return SpanRef(ref.trace, digest.hexdigest(), sampled=ref.sampled)


class Span(NamedTuple):
    """A span that is over."""

    ref: SpanRef
    name: str
    start_ns: int
    end_ns: int
    parent: str = ""  # the id of a span of the same trace
    kind: Kind = "internal"
    attributes: Attributes = MappingProxyType({})
    error: str | None = None


class Tracer(Protocol):
    def samples(self, trace: str, parent: SpanRef | None, name: str) -> bool:
        """Whether a request is recorded that belongs to this trace; `parent` is its client's."""
        ...

    def record(self, span: Span) -> None: ...

    def close(self) -> None:
        """Send what is left."""
        ...


class _Process:
    """What this process records spans with."""

    tracer: Tracer | None = None


process = _Process()
current: ContextVar[SpanRef | None] = ContextVar("span", default=None)  # of what is done just now


def recorded() -> SpanRef | None:
    """The current span, if what is done below it is to be recorded."""
    if process.tracer is None:
        return None
    ref = current.get()
    return ref if ref is not None and ref.sampled else None


def record(
    name: str,
    *,
    below: SpanRef,
    times: tuple[int, int],
    kind: Kind = "internal",
    span: str = "",
    attributes: Attributes | None = None,
    error: str | None = None,
) -> None:
    """Record what was done below another span, from when to when by the clock (nanoseconds)."""
    if process.tracer is not None:
        process.tracer.record(
            Span(
                SpanRef(below.trace, span or new_span_id(), sampled=True),
                name,
                start_ns=times[0],
                end_ns=times[1],
                parent=below.span,
                kind=kind,
                attributes=attributes or {},
                error=error,
            )
        )


def wanted(environment: Mapping[str, str]) -> bool:
    """Whether the standard variables of OpenTelemetry ask for traces."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if exporter:
        return exporter != "none"
    return any(
        environment.get(name)
        for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    )
