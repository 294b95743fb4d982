"""What an operator sees of the service besides its log: traces, the audit log, metrics.

Nothing of these is loaded, or opened, that the settings or the environment do not ask for.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import structlog

from .. import logs
from ..config import Server
from ..domain.addresses import is_loopback, url_of_listener
from ..observe import audit, tracing
from ..web.metrics import PATH, listening
from .failure import CommandError

log = structlog.get_logger()

GOODBYE_SECONDS = 3.0  # for the last spans when the service stops


@asynccontextmanager
async def observing(server: Server) -> AsyncIterator[None]:
    """Record traces and the audit log, and serve metrics, while the block lasts."""
    with audit_log(server.audit_log):
        async with _traces(), _metrics_listener(server.metrics_listener):
            yield


@contextmanager
def audit_log(target: str | None) -> Iterator[None]:
    """Keep one, if it is wanted, while the block lasts."""
    if target is None:
        yield
        return
    try:
        output = audit.open_output(target)
    except OSError as exc:
        raise CommandError(f"A2A_AUDIT_LOG: {target} cannot be used: {exc.strerror}", 2) from None
    audit.process.log = audit.AuditLog(output, logs.redactor.value)
    try:
        yield
    finally:
        audit.process.log = None
        output.close()


def reopen_audit_log() -> None:
    """Go on in a new file, where the old one was moved away."""
    if audit.process.log is not None:
        try:
            audit.process.log.output.reopen()
        except OSError as exc:
            log.error("audit.not_reopened", reason=str(exc), setting="A2A_AUDIT_LOG")


@asynccontextmanager
async def _traces() -> AsyncIterator[None]:
    tracer = _tracer() if tracing.wanted(os.environ) else None
    tracing.process.tracer = tracer
    try:
        yield
    finally:
        tracing.process.tracer = None
        if tracer is not None:
            await _close(tracer)


def _tracer() -> tracing.Tracer | None:
    try:
        from ..observe.otel import OtelTracer, UnknownExporter
    except ImportError:
        advice = (
            "install it (pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http), or "
            "set OTEL_SDK_DISABLED=true"
        )
        log.warning("traces.off", reason="the extra otel is not installed", advice=advice)
        return None
    try:
        tracer = OtelTracer()
    except (UnknownExporter, OSError, ValueError) as exc:  # OSError: of a certificate
        log.warning("traces.off", reason=str(exc))
        return None
    logs.redactor.add(*tracer.secrets)
    log.info("traces.on")
    return tracer


async def _close(tracer: tracing.Tracer) -> None:
    """Send the last spans. A collector that does not answer must not delay the end for long."""
    loop, closed = asyncio.get_running_loop(), asyncio.Event()

    def close() -> None:
        tracer.close()
        with suppress(RuntimeError):  # nobody waits any more, and the loop is closed
            loop.call_soon_threadsafe(closed.set)

    threading.Thread(target=close, daemon=True).start()
    try:
        async with asyncio.timeout(GOODBYE_SECONDS):
            await closed.wait()
    except TimeoutError:
        log.warning("traces.lost", reason="the collector did not take the last spans in time")


@asynccontextmanager
async def _metrics_listener(address: tuple[str, int] | None) -> AsyncIterator[None]:
    if address is None:
        yield
        return
    host, port = address
    try:
        listener = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        )
    except OSError as exc:
        raise CommandError(
            f"A2A_METRICS: cannot listen on {host} port {port}: {exc.strerror}"
        ) from None
    with listener:
        url = url_of_listener(host, listener.getsockname()[1]) + PATH
        log.info("metrics.serving", url=url)
        if not is_loopback(host):
            advice = "whoever can reach this address gets them: let only Prometheus do that"
            log.warning("metrics.without_credential", url=url, advice=advice)
        async with listening(listener):
            yield
