"""What the environment asks for, and OpenTelemetry's exporter on a real socket."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Proto
from structlog.testing import capture_logs

from opencode_a2a.cli.observing import _tracer
from opencode_a2a.observe import tracing
from opencode_a2a.observe.otel import OtelTracer, UnknownExporter, encode
from opencode_a2a.observe.tracing import Attributes, Span, SpanRef
from tests.observe.collector import collecting

TRACE, SPAN, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://localhost:4318/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, False),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, False),
        ({"OTEL_SERVICE_NAME": "mine"}, False),
    ],
)
def test_traces_are_recorded_where_the_standard_variables_ask_for_them(
    environment: dict[str, str], *, wanted: bool
) -> None:
    assert tracing.wanted(environment) is wanted


def test_a_span_reaches_a_collector_as_it_was_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=hidden")
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
        tracer = OtelTracer()
        tracer.record(
            Span(
                SpanRef(TRACE, SPAN, sampled=True),
                "tool bash",
                start_ns=1_000,
                end_ns=2_000,
                parent=PARENT,
                attributes={"gen_ai.tool.name": "bash"},
                error="error",
            )
        )
        tracer.record(Span(SpanRef(TRACE, PARENT), "not sampled", start_ns=1, end_ns=2))
        tracer.close()
        (seen,) = collector.spans
        (headers,) = collector.headers
    assert (seen.trace, seen.span, seen.parent) == (TRACE, SPAN, PARENT)
    assert (seen.name, seen.start, seen.end, seen.failed) == ("tool bash", 1_000, 2_000, True)
    assert seen.attributes == {"gen_ai.tool.name": "bash"}
    assert seen.service == "opencode-a2a"
    assert headers["x-key"] == "hidden"


@pytest.mark.parametrize(
    ("sampler", "parent", "sampled"),
    [
        (None, None, True),
        (None, SpanRef(TRACE, PARENT, sampled=False), False),
        ("always_off", SpanRef(TRACE, PARENT, sampled=True), False),
        ("parentbased_always_off", None, False),
        ("parentbased_always_off", SpanRef(TRACE, PARENT, sampled=True), True),
    ],
)
def test_the_standard_sampler_decides_about_a_request(
    monkeypatch: pytest.MonkeyPatch, sampler: str | None, parent: SpanRef | None, *, sampled: bool
) -> None:
    if sampler is not None:
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    tracer = OtelTracer()
    assert tracer.samples(TRACE, parent, "GetTask") is sampled
    tracer.close()


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 2**40, -1])
def test_spans_are_encoded_as_the_protocol_has_them(number: int) -> None:
    attributes: Attributes = {
        "n": number,
        "text": "é" * 200,
        "yes": True,
        "no": False,
        "share": 0.25,
    }
    ref = SpanRef(TRACE, SPAN, sampled=True)
    span = Span(
        ref,
        "n" * 299 + "\ud800",
        start_ns=2**62,
        end_ns=5,
        kind="client",
        attributes=attributes,
        error="E",
    )
    read = Proto()
    read.ParseFromString(encode(span))
    assert read.SerializeToString(deterministic=True) == encode(span)
    assert (read.trace_id.hex(), read.span_id.hex(), read.parent_span_id) == (TRACE, SPAN, b"")
    assert (read.name, read.kind) == ("n" * 299 + "?", Proto.SPAN_KIND_CLIENT)
    assert (read.start_time_unix_nano, read.end_time_unix_nano) == (2**62, 2**62)
    values = {each.key: each.value for each in read.attributes}
    assert values["n"].int_value == number
    assert (values["text"].string_value, values["share"].double_value) == ("é" * 200, 0.25)
    assert (values["yes"].bool_value, values["no"].bool_value) == (True, False)
    assert (read.status.code, read.status.message) == (2, "E")


def test_a_collector_that_refuses_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting() as collector, capture_logs() as logs:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{collector.url}/elsewhere")
        tracer = OtelTracer()
        tracer.record(_named("x"))
        tracer.close()
    (line,) = logs
    assert (line["event"], line["reason"]) == (
        *("traces.lost",),
        "the collector answered with status 404",
    )


def test_a_certificate_that_is_not_there_turns_traces_off_and_not_the_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "https://localhost:4318")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere/ca.pem")
    with capture_logs() as logs:
        assert _tracer() is None
    assert [line["event"] for line in logs] == ["traces.off"]


def test_a_full_batch_is_sent_at_once_and_the_rest_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "3")
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        tracer = OtelTracer()
        for number in range(3):
            tracer.record(_named(f"first {number}"))
        collector.wait_for(lambda spans: len(spans) == 3)
        tracer.record(_named("last"))
        tracer.close()
        assert [span.name for span in collector.spans][3:] == ["last"]


def test_spans_that_are_too_many_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "5")
    with _slow_collector() as (url, asked, go_on), capture_logs() as logs:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        tracer = OtelTracer()
        for number in range(5):
            tracer.record(_named(f"sent {number}"))
        assert asked.wait(60)
        for number in range(9):
            tracer.record(_named(f"later {number}"))
        go_on.set()
        tracer.close()
    assert [(line["event"], line["spans"]) for line in logs] == [("traces.lost", 4)]
    assert "OTEL_BSP_MAX_QUEUE_SIZE" in logs[0]["reason"]


def test_a_span_that_cannot_be_encoded_does_not_end_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1")
    with collecting() as collector, capture_logs() as logs:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        tracer = OtelTracer()
        tracer.record(
            _named("x")._replace(ref=SpanRef("no hexadecimal digits", SPAN, sampled=True))
        )
        tracer.record(_named("next"))
        collector.wait_for(lambda spans: [span.name for span in spans] == ["next"])
        tracer.close()
    assert [line["event"] for line in logs] == ["traces.internal_error"]


def test_a_size_that_is_no_number_turns_traces_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "0")
    with capture_logs() as logs:
        assert _tracer() is None
    assert logs[0]["reason"] == "OTEL_BSP_MAX_QUEUE_SIZE=0 is not a whole number above 0"


def _named(name: str) -> Span:
    return Span(SpanRef(TRACE, SPAN, sampled=True), name, start_ns=1, end_ns=2)


@contextmanager
def _slow_collector() -> Iterator[tuple[str, threading.Event, threading.Event]]:
    """Where it is; set when it is asked; what it waits for before its first answer."""
    asked, go_on = threading.Event(), threading.Event()

    class Slow(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            asked.set()
            go_on.wait(60)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Not on the screen."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", asked, go_on
        server.shutdown()


def test_a_redirect_takes_no_credential_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    class Redirects(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(302)
            self.send_header("location", "/login")
            self.send_header("content-length", "0")
            self.end_headers()

        def do_GET(self) -> None:
            seen.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Not on the screen."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Redirects) as server, capture_logs() as logs:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        tracer = OtelTracer()
        tracer.record(_named("x"))
        tracer.close()
        server.shutdown()
    assert seen == []
    assert [line["reason"] for line in logs] == ["the collector answered with status 302"]


def test_a_truth_is_not_encoded_as_the_number_before_it() -> None:
    spans = [
        encode(Span(SpanRef(TRACE, SPAN), "x", start_ns=1, end_ns=2, attributes={"same": value}))
        for value in (1, True)
    ]
    assert spans[0] != spans[1]


def test_an_exporter_that_is_not_here_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkin")
    with pytest.raises(UnknownExporter, match="OTEL_TRACES_EXPORTER=zipkin is not supported"):
        OtelTracer()
