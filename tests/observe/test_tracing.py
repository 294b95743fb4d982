"""What the environment asks for, and OpenTelemetry's exporter on a real socket."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from opencode_a2a.observe import tracing
from opencode_a2a.observe.otel import OtelTracer, UnknownExporter
from opencode_a2a.observe.tracing import Span, SpanRef
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


def test_a_collector_that_refuses_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{collector.url}/elsewhere")
        tracer = OtelTracer()
        tracer.record(_named("x"))
        tracer.close()
    assert "404" in caplog.text


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


def _named(name: str) -> Span:
    return Span(SpanRef(TRACE, SPAN, sampled=True), name, start_ns=1, end_ns=2)


def test_a_redirect_takes_no_credential_elsewhere(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
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

    with ThreadingHTTPServer(("127.0.0.1", 0), Redirects) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        tracer = OtelTracer()
        tracer.record(_named("x"))
        tracer.close()
        server.shutdown()
    assert seen == []
    assert "Failed to export" in caplog.text


def test_an_exporter_that_is_not_here_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkin")
    with pytest.raises(UnknownExporter, match="OTEL_TRACES_EXPORTER=zipkin is not supported"):
        OtelTracer()
