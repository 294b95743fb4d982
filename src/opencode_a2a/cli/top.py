"""The command `top`: what a running service does now, from its metrics and its readiness."""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.request import Request

from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..deploy.check import direct_opener
from ..domain.addresses import url_of_listener
from ..observe.metrics import PREFIX
from .failure import CommandError
from .instances import RegisteredInstance, running_instances
from .output import print_result
from .token import find_token

SECONDS = 5.0  # for one answer
INTERVAL_SECONDS = 2.0  # between two looks
MOST_MODELS = 8

Series = dict[tuple[tuple[str, str], ...], float]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All metrics at one moment, by name and labels."""

    at: float  # seconds, by a clock that only goes forward
    values: Mapping[str, Series] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str, at: float) -> Snapshot:
        values: dict[str, Series] = defaultdict(dict)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name = sample.name.removeprefix(PREFIX)
                values[name][tuple(sorted(sample.labels.items()))] = sample.value
        return cls(at, values)

    def total(self, name: str, **labels: str) -> float:
        """The sum of all series that have these labels."""
        found = self.values.get(name, {})
        return sum(value for key, value in found.items() if labels.items() <= dict(key).items())

    def by(self, name: str, label: str) -> dict[str, float]:
        """The sums of a metric by the value of one label."""
        found: dict[str, float] = defaultdict(float)
        for key, value in self.values.get(name, {}).items():
            found[dict(key).get(label, "")] += value
        return found

    def label(self, name: str, label: str) -> str:
        return next((dict(key).get(label, "") for key in self.values.get(name, {})), "")


@dataclass(frozen=True, slots=True)
class View:
    """Two looks at a service, and what it says about itself."""

    url: str
    before: Snapshot
    now: Snapshot
    checks: Mapping[str, bool] | None  # None where the service does not say
    is_ready: bool

    def rate(self, name: str, **labels: str) -> float:
        """How much it grows in a second. A service that has restarted begins at 0 again."""
        seconds = max(self.now.at - self.before.at, 1e-9)
        grown = self.now.total(name, **labels) - self.before.total(name, **labels)
        return max(grown, 0.0) / seconds

    def quantile(self, name: str, share: float) -> float | None:
        """The bound below which this share lies, since the start of the service."""
        buckets = self.now.by(f"{name}_bucket", "le")
        bounds = sorted((float(bound), count) for bound, count in buckets.items())
        if not bounds or not bounds[-1][1]:
            return None
        return next(bound for bound, count in bounds if count >= share * bounds[-1][1])


def rows(view: View) -> Iterator[tuple[str, str]]:
    """What is shown, a line for each subject."""
    now, states = view.now, view.now.by("tasks", "state")
    ended = view.now.by("tasks_ended_total", "state")
    yield "tasks", _join({**states, "ended": sum(ended.values()), "failed": ended.get("failed", 0)})
    queue = now.by("queue_depth", "reason")
    yield (
        "queue",
        f"{queue.get('slot', 0):.0f} of {now.total('queue_limit'):.0f} wait for a slot, "
        f"{queue.get('context', 0):.0f} for their context · waited {_seconds(view, 'task_queue')}",
    )
    yield (
        "tokens",
        f"{view.rate('tokens_total', kind='output'):.0f}/s out · "
        f"{view.rate('tokens_total', kind='input'):.0f}/s in · "
        f"first after {_seconds(view, 'task_first_token')}",
    )
    hourly = view.rate("cost_dollars_total") * 3600
    yield "cost", f"${now.total('cost_dollars_total'):.4f} since the start · ${hourly:.2f}/h now"
    yield "people", _join({f"{k}s open": v for k, v in now.by("interrupts_open", "kind").items()})
    yield (
        "streams",
        f"{now.total('streams'):.0f} open · {now.total('readers'):.0f} readers · "
        f"{now.total('connections'):.0f} connections · "
        f"{view.rate('stream_bytes_total') / 1000:.1f} kB/s",
    )
    failed = view.rate("requests_total") - view.rate("requests_total", outcome="ok")
    yield "requests", f"{view.rate('requests_total'):.1f}/s, of which {failed:.1f}/s refused"
    yield (
        "log",
        f"commits in {_seconds(view, 'log_commit_duration')} · "
        f"{now.total('log_pending_updates'):.0f} updates wait · "
        f"{now.total('store_errors_total'):.0f} errors",
    )
    yield (
        "OpenCode",
        f"{'connected' if now.total('opencode_connected') else 'NOT CONNECTED'} · answers in "
        f"{_seconds(view, 'opencode_request_duration')} · "
        f"{now.total('feed_reconnects_total'):.0f} reconnects · "
        f"{now.total('feed_gaps_total'):.0f} gaps",
    )
    yield (
        "process",
        f"{now.total('process_resident_memory_bytes') / 1e6:.0f} MB · "
        f"{view.rate('process_cpu_seconds_total') * 100:.0f} % CPU · "
        f"{now.total('process_open_fds'):.0f} files",
    )


def _join(numbers: Mapping[str, float]) -> str:
    return " · ".join(f"{value:.0f} {name}" for name, value in numbers.items())


def _seconds(view: View, name: str) -> str:
    """The usual and the long durations."""
    found = [view.quantile(f"{name}_seconds", share) for share in (0.5, 0.95)]
    if None in found:
        return "-"
    return " / ".join(f"≤{_duration(each)}" for each in found if each is not None)


def _duration(seconds: float) -> str:
    if seconds == float("inf"):
        return "∞"
    return f"{seconds * 1000:g} ms" if seconds < 1 else f"{seconds:g} s"


def _head(view: View) -> str:
    version = view.now.label("info", "version")
    opencode = view.now.label("info", "opencode_version") or "not reached"
    missing = [name for name, fine in (view.checks or {}).items() if not fine]
    state = "ready" if view.is_ready else f"NOT READY ({', '.join(missing) or 'it does not say'})"
    return f"opencode-a2a {version} at {view.url} · {state} · OpenCode {opencode}"


def as_text(view: View) -> str:
    lines = [_head(view), *(f"{name:<9} {text}" for name, text in rows(view))]
    for model, used in _models(view):
        lines.append(f"  {model}: {used}")
    return "\n".join(lines)


def _models(view: View) -> Iterator[tuple[str, str]]:
    spent = view.now.by("cost_dollars_total", "model")
    for model, cost in sorted(spent.items(), key=lambda each: -each[1])[:MOST_MODELS]:
        tokens = view.now.total("tokens_total", model=model)
        yield model, f"{tokens:.0f} tokens, ${cost:.4f}"


def as_table(view: View) -> RenderableType:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold cyan", no_wrap=True)
    table.add_column()
    for name, text in rows(view):
        table.add_row(name, Text(text, style="bold red" if "NOT" in text else ""))
    for model, used in _models(view):
        table.add_row("", Text(f"{model}: {used}", style="dim"))
    head = Text(_head(view), style="bold" if view.is_ready else "bold red")
    return Group(head, Text(""), table, Text("\nCtrl-C ends this.", style="dim"))


@dataclass(slots=True)
class Source:
    """A running service, and how to log in there."""

    url: str
    metrics_url: str
    token: str | None = None

    def look(self, before: Snapshot | None = None) -> View:
        status, body = self._get(f"{self.metrics_url}/metrics")
        if status != 200:
            raise CommandError(self._refusal(status))
        try:
            now = Snapshot.parse(body.decode(), time.monotonic())
        except ValueError:
            raise CommandError(f"{self.metrics_url}/metrics does not answer with metrics") from None
        ready, answer = self._get(f"{self.url}/ready")
        checks = _checks_of(answer)
        return View(self.url, before or now, now, checks=checks, is_ready=ready == 200)

    def _get(self, url: str) -> tuple[int, bytes]:
        headers = {"accept": "text/plain"}
        if self.token is not None and url.startswith(f"{self.url}/"):
            headers["authorization"] = f"Bearer {self.token}"
        try:
            try:
                found = direct_opener().open(Request(url, headers=headers), timeout=SECONDS)
            except urllib.error.HTTPError as exc:
                found = exc
            with found as answer:
                return int(answer.status), bytes(answer.read())
        except (OSError, ValueError, HTTPException) as exc:
            reason = getattr(exc, "reason", exc)
            raise CommandError(f"{url} does not answer: {reason}") from None

    def _refusal(self, status: int) -> str:
        match status:
            case 401 if self.token is None:
                return (
                    f"{self.url} wants a credential: set A2A_CLIENT_BEARER_TOKEN to a token with "
                    "the scope metrics:read."
                )
            case 401:
                return f"{self.url} does not know this token (A2A_CLIENT_BEARER_TOKEN)."
            case 403:
                return (
                    "this token lacks the scope metrics:read. Add it to the caller's `scopes` in "
                    "A2A_STATIC_AUTH_CREDENTIALS."
                )
            case 404:
                return (
                    f"{self.metrics_url} has no metrics. With A2A_METRICS=off nobody gets them; "
                    "with A2A_METRICS=HOST:PORT they are there: add --metrics http://HOST:PORT."
                )
            case _:
                return f"{self.metrics_url}/metrics answered with status {status}."


def _checks_of(answer: bytes) -> Mapping[str, bool] | None:
    """What the service says about its readiness, if that can be read."""
    try:
        said: Any = json.loads(answer)
    except ValueError:
        return None
    checks = said.get("checks") if isinstance(said, dict) else None
    return checks if isinstance(checks, dict) else None


def source(url: str | None, metrics_url: str | None, environment: Mapping[str, str]) -> Source:
    """The service at this address, or the only one of this user, or the one at A2A_PORT."""
    running = _running()
    if url is None:
        if len(running) > 1:
            known = ", ".join(each.url for each in running)
            raise CommandError(f"several instances are running: name one of {known}", 2)
        host, port = environment.get("A2A_HOST"), environment.get("A2A_PORT")
        default = url_of_listener(host or "127.0.0.1", port or 8000)
        url = running[0].url if running else default
    url = url.rstrip("/")
    token = environment.get("A2A_CLIENT_BEARER_TOKEN") or None
    if token is None:
        own = next((each for each in running if each.url.rstrip("/") == url), None)
        token = find_token(Path(own.workspace)) if own is not None else None
    return Source(url, (metrics_url or url).rstrip("/"), token)


def _running() -> list[RegisteredInstance]:
    try:
        return running_instances()
    except (OSError, RuntimeError):  # there is nothing to list them in
        return []


def top(url: str | None, metrics_url: str | None, *, once: bool, seconds: float) -> None:
    """Show a service until Ctrl-C, or once: then rates are those of a second."""
    if seconds <= 0:
        raise CommandError("--interval must be more than 0 seconds", 2)
    watched = source(url, metrics_url, os.environ)
    view = watched.look()
    if once or not sys.stdout.isatty():
        time.sleep(1.0)
        print_result(as_text(watched.look(view.now)))
        return
    with Live(as_table(view), console=Console(), screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(seconds)
            try:
                view = watched.look(view.now)
            except CommandError as exc:
                live.update(Text(f"{exc}\n\nTrying again.", style="bold red"), refresh=True)
                continue
            live.update(as_table(view), refresh=True)
