"""Spans for an OpenTelemetry collector (OTLP over HTTP), by the standard `OTEL_*` variables.

Load it only where they ask for traces (`tracing.wanted`): the SDK takes half a second to load, and
comes with the extra `otel`. The SDK samples, gathers and sends; our spans are over when it gets
them, because they follow from the log.
"""

from __future__ import annotations

import os

import requests
from opentelemetry import trace as api
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.util.re import parse_env_headers

from .. import __version__
from .tracing import Span, SpanRef

SERVICE = "opencode-a2a"
_KINDS = {
    "internal": api.SpanKind.INTERNAL,
    "server": api.SpanKind.SERVER,
    "client": api.SpanKind.CLIENT,
}


class UnknownExporter(Exception):
    def __init__(self, name: str, setting: str, known: str) -> None:
        super().__init__(f"{setting}={name} is not supported here; use {known}")


class OtelTracer:
    """Implements `tracing.Tracer`."""

    def __init__(self) -> None:
        _check_exporter()
        name = os.environ.get("OTEL_SERVICE_NAME") or SERVICE
        self._resource = Resource.create({SERVICE_NAME: name, SERVICE_VERSION: __version__})
        self._scope = InstrumentationScope(SERVICE, __version__)
        self._sampler = TracerProvider(resource=self._resource, shutdown_on_exit=False).sampler
        session = requests.Session()
        session.max_redirects = 0  # one would take the headers, which may hold a credential, along
        self._processor = BatchSpanProcessor(OTLPSpanExporter(session=session))

    @property
    def secrets(self) -> tuple[str, ...]:
        """What the collector's headers may hold."""
        return tuple(parse_env_headers(_setting("HEADERS"), liberal=True).values())

    def samples(self, trace: str, parent: SpanRef | None, name: str) -> bool:
        context = Context()
        if parent is not None:
            remote = _context(parent.trace, parent.span, sampled=parent.sampled, is_remote=True)
            context = api.set_span_in_context(api.NonRecordingSpan(remote), context)
        kind = api.SpanKind.SERVER
        result = self._sampler.should_sample(context, int(trace, 16), name, kind)
        return result.decision is Decision.RECORD_AND_SAMPLE

    def record(self, span: Span) -> None:
        ref = span.ref
        status = api.Status(api.StatusCode.ERROR, span.error) if span.error else api.Status()
        ended = ReadableSpan(
            span.name,
            context=_context(ref.trace, ref.span, sampled=ref.sampled),
            parent=_context(ref.trace, span.parent) if span.parent else None,
            resource=self._resource,
            attributes=span.attributes,
            kind=_KINDS[span.kind],
            status=status,
            start_time=span.start_ns,
            end_time=max(span.start_ns, span.end_ns),
            instrumentation_scope=self._scope,
        )
        self._processor.on_end(ended)

    def close(self) -> None:
        self._processor.shutdown()  # type: ignore[no-untyped-call]


def _context(
    trace: str, span: str, *, sampled: bool = True, is_remote: bool = False
) -> api.SpanContext:
    flags = api.TraceFlags(api.TraceFlags.SAMPLED if sampled else api.TraceFlags.DEFAULT)
    return api.SpanContext(int(trace, 16), int(span, 16), is_remote=is_remote, trace_flags=flags)


def _setting(name: str) -> str:
    """A variable of OTLP: what is said of traces counts more than what is said of all."""
    special = os.environ.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}")
    return (special or os.environ.get(f"OTEL_EXPORTER_OTLP_{name}") or "").strip()


def _check_exporter() -> None:
    name = os.environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() or "otlp"
    if name != "otlp":
        raise UnknownExporter(name, "OTEL_TRACES_EXPORTER", "otlp or none")
    protocol = _setting("PROTOCOL") or "http/protobuf"
    if protocol != "http/protobuf":
        raise UnknownExporter(protocol, "OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
