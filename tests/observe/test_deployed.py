"""What operators deploy and read names only metrics that exist, and all of them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from opencode_a2a.observe.metrics import METRICS
from tests.running import ROOT

DASHBOARD = ROOT / "deploy/grafana/opencode-a2a.json"
ALERTS = ROOT / "deploy/alerts.yml"
PAGES = (ROOT / "docs/operate/observe.md", ROOT / "docs/reference/metrics.md")
PROMTOOL = os.environ.get("PROMTOOL") or shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not installed (Debian: apt install prometheus; PROMTOOL=)"
)
SAMPLES = {  # the names that Prometheus knows, and the metric of each
    f"{name}{suffix}": name
    for name, metric in METRICS.items()
    for suffix in ("_bucket", "_sum", "_count", "")
    if suffix == "" or metric.kind == "histogram"
}


def named_in(text: str) -> set[str]:
    return set(re.findall(r"\bopencode_a2a_[a-z_]*[a-z]\b", text))


def queries() -> list[str]:
    board: dict[str, Any] = json.loads(DASHBOARD.read_text())
    targets = [t["expr"] for panel in board["panels"] for t in panel.get("targets", [])]
    return targets + [v["definition"] for v in board["templating"]["list"] if "definition" in v]


@pytest.mark.parametrize("path", [DASHBOARD, ALERTS, *PAGES], ids=lambda path: path.name)
def test_every_metric_that_is_named_exists(path: Path) -> None:
    assert named_in(path.read_text()) <= SAMPLES.keys()


def test_every_metric_is_on_the_dashboard_or_raises_an_alert() -> None:
    named = named_in("\n".join(queries())) | named_in(ALERTS.read_text())
    assert {SAMPLES[name] for name in named} == METRICS.keys()


def test_labels_in_the_dashboard_and_in_alerts_are_those_of_their_metric() -> None:
    common = {"job", "instance", "le"}
    for query in [*queries(), ALERTS.read_text()]:
        for name, selector in re.findall(r"\b(opencode_a2a_\w+)\{([^}]*)\}", query):
            labels = set(re.findall(r"(\w+)\s*(?:=~|!=|=|!~)", selector))
            assert labels <= common | set(METRICS[SAMPLES[name]].labels), (name, labels)


def test_panels_do_not_overlap() -> None:
    board: dict[str, Any] = json.loads(DASHBOARD.read_text())
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


@needs_promtool
def test_promtool_finds_nothing_wrong_with_the_rules() -> None:
    assert PROMTOOL is not None
    subprocess.run([PROMTOOL, "check", "rules", ALERTS], check=True)


@needs_promtool
def test_alerts_are_raised_when_they_should_and_only_then(tmp_path: Path) -> None:
    assert PROMTOOL is not None
    shutil.copy(ALERTS, tmp_path / "alerts.yml")
    shutil.copy(Path(__file__).with_name("alerts_test.yml"), tmp_path / "test.yml")
    done = subprocess.run(
        [PROMTOOL, "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_promtool_can_read_every_query_of_the_dashboard(tmp_path: Path) -> None:
    assert PROMTOOL is not None
    asked = [q.replace("$__rate_interval", "5m") for q in queries() if "label_values" not in q]
    rules = [{"record": f"query:{i}", "expr": query} for i, query in enumerate(asked)]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    subprocess.run([PROMTOOL, "check", "rules", file], check=True)
