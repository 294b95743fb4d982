"""Counting, and the formats in which Prometheus gets it."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text

from opencode_a2a.observe import metrics
from opencode_a2a.observe.metrics import METRICS, Names, OwnProcess, render


def test_names_from_outside_are_bounded() -> None:
    names = Names(2)
    assert [names[each] for each in ("a", "b", "c", "a")] == ["a", "b", "other", "a"]
    assert len(names) == 2


def test_pairs_of_a_model_and_a_principal_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_payers", set())
    monkeypatch.setattr(metrics, "MAX_PAYERS", 2)
    pairs = [metrics.payer("acme/large", name) for name in ("a", "b", "c", "a")]
    assert pairs == [
        ("acme/large", "a"),
        ("acme/large", "b"),
        ("other", "other"),
        ("acme/large", "a"),
    ]


def test_a_gauge_is_read_only_while_somebody_knows_it() -> None:
    with metrics.reading({metrics.READERS: lambda: metrics.one(3)}):
        assert b"opencode_a2a_readers 3.0" in render("")[0]
    assert b"opencode_a2a_readers 3.0" not in render("")[0]


@pytest.mark.parametrize(
    ("accept", "parse", "kind"),
    [
        ("", parse_text, "text/plain"),
        ("application/openmetrics-text; version=1.0.0", parse_openmetrics, "openmetrics"),
    ],
)
def test_every_declared_metric_is_rendered_under_its_name(
    accept: str, parse: object, kind: str
) -> None:
    metrics.REQUEST_SECONDS.labels("GetTask", "1.0", "rest").observe(0.02)
    body, content_type = render(accept)
    assert kind in content_type
    families = {family.name: family for family in parse(body.decode())}  # type: ignore[operator]
    for name, metric in METRICS.items():
        family = families[name.removesuffix("_total")]
        assert (family.type, family.documentation) == (metric.kind, metric.help)
    sums = [s for s in families["opencode_a2a_request_duration_seconds"].samples if "sum" in s.name]
    assert any(s.labels["operation"] == "GetTask" and s.value >= 0.02 for s in sums)
    assert "process_resident_memory_bytes" in families


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_the_process_is_measured_where_proc_has_nothing_but_processes(tmp_path: Path) -> None:
    (tmp_path / "self").symlink_to(f"/proc/{os.getpid()}")
    process = OwnProcess(proc=str(tmp_path), registry=None)
    found = {family.name: family for family in process.collect()}
    assert found["process_resident_memory_bytes"].samples[0].value > 1e6
    assert found["process_start_time_seconds"].samples[0].value <= time.time()


def test_names_follow_the_conventions_of_prometheus() -> None:
    for name, metric in METRICS.items():
        assert name.startswith("opencode_a2a_")
        assert name.endswith("_total") is (metric.kind == "counter"), name
        assert metric.help.endswith("."), name
        assert "_ms" not in name, "durations are in seconds"
        assert len(set(metric.labels)) == len(metric.labels), name
