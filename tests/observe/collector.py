"""A collector for traces: what OpenTelemetry's exporter sends over HTTP, as spans by trace."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

SECONDS = 60.0


@dataclass(frozen=True)
class Seen:
    """A span as it arrived."""

    trace: str
    span: str
    parent: str
    name: str
    service: str
    attributes: dict[str, str | int]
    start: int
    end: int
    failed: bool


@dataclass
class Collector:
    url: str = ""
    spans: list[Seen] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    _news: threading.Condition = field(default_factory=threading.Condition)

    def take(self, body: bytes, headers: dict[str, str]) -> None:
        request = ExportTraceServiceRequest()
        request.ParseFromString(body)
        found = [
            _seen(span, {each.key: each.value.string_value for each in group.resource.attributes})
            for group in request.resource_spans
            for scope in group.scope_spans
            for span in scope.spans
        ]
        with self._news:
            self.spans += found
            self.headers.append(headers)
            self._news.notify_all()

    def wait_for(self, happened: Callable[[list[Seen]], bool]) -> list[Seen]:
        """All spans, once they are as they should be."""
        deadline = time.monotonic() + SECONDS
        with self._news:
            while not happened(self.spans):
                left = deadline - time.monotonic()
                assert left > 0, f"only these spans came: {[each.name for each in self.spans]}"
                self._news.wait(left)
            return list(self.spans)

    def wait_for_names(self, *names: str) -> list[Seen]:
        return self.wait_for(lambda spans: set(names) <= {span.name for span in spans})


def _seen(span: Span, resource: dict[str, str]) -> Seen:
    return Seen(
        trace=span.trace_id.hex(),
        span=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        name=span.name,
        service=resource.get("service.name", ""),
        attributes={
            each.key: each.value.string_value or each.value.int_value for each in span.attributes
        },
        start=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
        failed=span.status.code == 2,
    )


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.path == "/v1/traces":
                collector.take(body, {k.lower(): v for k, v in self.headers.items()})
            self.send_response(200 if self.path == "/v1/traces" else 404)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Not on the screen."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join(10)
