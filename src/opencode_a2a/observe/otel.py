"""Spans for an OpenTelemetry collector (OTLP over HTTP), by the standard `OTEL_*` variables.

Load it only where they ask for traces (`tracing.wanted`): the SDK takes half a second to load, and
comes with the extra `otel`. The SDK samples, and says what resource this is. To gather and encode
spans, it would take more than all else that tracing costs. So both are done here; spans are encoded
as the protocol buffers of OTLP (`opentelemetry/proto/trace/v1/trace.proto`).
"""

from __future__ import annotations

import gzip
import os
import ssl
import struct
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import structlog
from opentelemetry import trace as api
from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import DEFAULT_ON, Decision

from .. import __version__
from .tracing import Span, SpanRef

logger = structlog.get_logger()

SERVICE = "opencode-a2a"
TRIES, PAUSE_SECONDS = 3, 1.0  # to send spans to a collector that is busy
BUSY = frozenset({429, 502, 503, 504})
_KINDS = {"internal": b"\x30\x01", "server": b"\x30\x02", "client": b"\x30\x03"}  # field 6


class UnknownExporter(Exception):
    def __init__(self, name: str, setting: str, known: str) -> None:
        super().__init__(f"{setting}={name} is not supported here; use {known}")


class OtelTracer:
    """Implements `tracing.Tracer`. A thread sends what has gathered; what is too much is dropped.

    The SDK has such a thread too. It took four times as long for each span (6.6 against 1.6 us).
    """

    def __init__(self) -> None:
        resource = Resource.create({SERVICE_NAME: SERVICE, SERVICE_VERSION: __version__})
        if name := os.environ.get("OTEL_SERVICE_NAME"):  # `create` lets its argument win
            resource = resource.merge(Resource({SERVICE_NAME: name}))
        _check_exporter()
        self._sampler = TracerProvider(resource=resource, shutdown_on_exit=False).sampler
        self._exporter = Exporter(resource)
        self._seconds = _number("OTEL_BSP_SCHEDULE_DELAY", 5_000) / 1_000
        self._most = _number("OTEL_BSP_MAX_QUEUE_SIZE", 2_048)
        self._batch = min(_number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512), self._most)
        self._ended: list[Span] = []
        self._dropped = 0  # since the last batch
        self._is_closing = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._export_forever, name="traces", daemon=True)
        self._thread.start()

    @property
    def secrets(self) -> tuple[str, ...]:
        """What the collector's headers may hold."""
        return tuple(_headers().values())

    def samples(self, trace: str, parent: SpanRef | None, name: str) -> bool:
        if self._sampler is DEFAULT_ON:  # what follows would say the same, and take longer
            return parent is None or parent.sampled
        context = Context()
        if parent is not None:
            flags = api.TraceFlags(1 if parent.sampled else 0)
            remote = api.SpanContext(
                int(parent.trace, 16), int(parent.span, 16), is_remote=True, trace_flags=flags
            )
            context = api.set_span_in_context(api.NonRecordingSpan(remote), context)
        kind = api.SpanKind.SERVER
        result = self._sampler.should_sample(context, int(trace, 16), name, kind)
        return result.decision is Decision.RECORD_AND_SAMPLE

    def record(self, span: Span) -> None:
        if not span.ref.sampled:
            return
        gathered = len(self._ended)
        if gathered >= self._most:
            self._dropped += 1
            return
        self._ended.append(span)
        if gathered + 1 == self._batch:
            self._wake.set()

    def close(self) -> None:
        self._is_closing = True
        self._wake.set()
        self._thread.join()

    def _export_forever(self) -> None:
        closing = False
        while not closing:
            full = self._wake.wait(self._seconds)
            self._wake.clear()
            closing = self._is_closing
            least = self._batch if full and not closing else 1
            while len(self._ended) >= least:
                batch = self._ended[: self._batch]
                del self._ended[: len(batch)]  # others only append
                try:
                    self._exporter.export(batch)
                except Exception:
                    logger.exception("traces.internal_error", spans=len(batch))
            if self._dropped:
                dropped, self._dropped = self._dropped, 0
                reason = "more came than the collector took; see OTEL_BSP_MAX_QUEUE_SIZE"
                logger.warning("traces.lost", spans=dropped, reason=reason)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would take the headers, which may hold a credential, elsewhere."""

    def redirect_request(self, *_: object, **__: object) -> None:
        return None


class Exporter:
    """Encodes spans, many in one go, and sends them to the collector."""

    def __init__(self, resource: Resource) -> None:
        self._resource = _message(1, b"".join(_attribute(*each) for each in _plain(resource)))
        scope = _message(1, SERVICE.encode()) + _message(2, __version__.encode())
        self._scope = _message(1, scope)
        base = (_setting("ENDPOINT") or "http://localhost:4318").rstrip("/")
        exact = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
        self._url = exact or f"{base}/v1/traces"
        self._headers = {"content-type": "application/x-protobuf", **_headers()}
        self._gzip = _setting("COMPRESSION").lower() == "gzip"
        self._seconds = float(_setting("TIMEOUT") or 10)
        handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
        if self._url.startswith("https:"):
            tls = ssl.create_default_context(cafile=_setting("CERTIFICATE") or None)
            if certificate := _setting("CLIENT_CERTIFICATE"):
                tls.load_cert_chain(certificate, _setting("CLIENT_KEY") or None)
            handlers.append(urllib.request.HTTPSHandler(context=tls))
        self._opener = urllib.request.build_opener(*handlers)

    def export(self, spans: Sequence[Span]) -> None:
        encoded = b"".join([_message(2, encode(span)) for span in spans])
        body = _message(1, self._resource + _message(2, self._scope + encoded))
        headers = self._headers
        if self._gzip:
            body, headers = gzip.compress(body), headers | {"content-encoding": "gzip"}
        reason = ""
        for attempt in range(TRIES):
            time.sleep(PAUSE_SECONDS * attempt)
            try:
                request = urllib.request.Request(self._url, body, headers)
                with self._opener.open(request, timeout=self._seconds):
                    return
            except urllib.error.HTTPError as exc:
                exc.close()
                reason = f"the collector answered with status {exc.code}"
                if exc.code not in BUSY:
                    break
            except (OSError, ValueError) as exc:
                reason = str(getattr(exc, "reason", exc))
        logger.warning("traces.lost", spans=len(spans), url=self._url, reason=reason)


def _setting(name: str) -> str:
    """A variable of OTLP: what is said of traces counts more than what is said of all."""
    special = os.environ.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}")
    return (special or os.environ.get(f"OTEL_EXPORTER_OTLP_{name}") or "").strip()


def _number(name: str, usual: int) -> int:
    """A variable of the batch processor."""
    given = os.environ.get(name, "").strip()
    if given and not (given.isascii() and given.isdecimal() and int(given)):
        raise ValueError(f"{name}={given} is not a whole number above 0")
    return int(given or usual)


def _headers() -> dict[str, str]:
    fields = (field.partition("=") for field in _setting("HEADERS").split(",") if "=" in field)
    return {unquote(name.strip()).lower(): unquote(value.strip()) for name, _, value in fields}


def _check_exporter() -> None:
    name = os.environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() or "otlp"
    if name != "otlp":
        raise UnknownExporter(name, "OTEL_TRACES_EXPORTER", "otlp or none")
    protocol = _setting("PROTOCOL") or "http/protobuf"
    if protocol != "http/protobuf":
        raise UnknownExporter(protocol, "OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")


# -- protocol buffers


def encode(span: Span) -> bytes:
    """A span as OTLP has it."""
    ref, ended = span.ref, max(span.start_ns, span.end_ns)
    pieces = [
        b"\x0a\x10" + bytes.fromhex(ref.trace),
        b"\x12\x08" + bytes.fromhex(ref.span),
        b"\x22\x08" + bytes.fromhex(span.parent) if span.parent else b"",
        _name(span.name),
        _KINDS[span.kind],
        struct.pack("<BQBQ", 0x39, span.start_ns, 0x41, ended),  # fields 7 and 8
    ]
    pieces += [_attribute(name, value) for name, value in span.attributes.items()]
    if span.error is not None:
        pieces.append(_message(15, _message(2, _utf8(span.error)) + b"\x18\x02"))
    return b"".join(pieces)


@lru_cache(maxsize=1024)
def _name(name: str) -> bytes:
    return _message(5, _utf8(name))


@lru_cache(maxsize=1024, typed=True)  # True is not 1 there
def _attribute(name: str, value: Any, field: int = 9) -> bytes:
    match value:
        case bool():
            encoded = b"\x10" + (b"\x01" if value else b"\x00")
        case int():
            encoded = b"\x18" + _varint(value)
        case float():
            encoded = struct.pack("<Bd", 0x21, value)
        case _:
            encoded = _message(1, _utf8(str(value)))
    return _message(field, _message(1, name.encode()) + _message(2, encoded))


def _plain(resource: Resource) -> list[tuple[str, Any, int]]:
    """The attributes of a resource, whose field is another one."""
    return [(name, value, 1) for name, value in resource.attributes.items()]


def _utf8(text: str) -> bytes:
    return text.encode(errors="replace")  # half a character cannot be written


def _message(field: int, data: bytes) -> bytes:
    """Bytes, a text or a message, with the number of its field (below 16) and its length."""
    size = len(data)
    length = bytes((size,)) if size < 128 else _varint(size)
    return bytes((field << 3 | 2,)) + length + data


def _varint(number: int) -> bytes:
    number &= 0xFFFF_FFFF_FFFF_FFFF  # negative numbers have all ten bytes
    pieces = bytearray()
    while number >= 128:
        pieces.append(number & 127 | 128)
        number >>= 7
    pieces.append(number)
    return bytes(pieces)
