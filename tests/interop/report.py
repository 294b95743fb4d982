"""Keeps what was found in `results.json`, and shows it in `docs/compatibility.md`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.running import ROOT

from .declared import CLIENTS, OPENCODE_VERSIONS, STEPS, Client

RESULTS = Path(__file__).parent / "results.json"
PAGE = ROOT / "docs" / "compatibility.md"
SIGNS = {"yes": "✓", "partly": "(✓)", "no": "✗", "lacking": "–"}


def keep(part: str, found: Mapping[str, Any]) -> None:
    """Add what a run found; rows it did not try stay as they were."""
    results = read()
    rows = results.get(part, {}).get("rows", {}) | found["rows"]
    results[part] = {**found, "rows": rows}
    RESULTS.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")


def read() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    return found


def with_tables(page: str, results: Mapping[str, Any]) -> str:
    """The page with each table in its place: between `<!-- interop: part -->` and its end."""
    for part, table in (("clients", clients_table), ("opencode", opencode_table)):
        begin, end = f"<!-- interop: {part} -->", f"<!-- end of interop: {part} -->"
        place = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        found = place.search(page)
        if found is None:
            raise ValueError(f"There is no {begin} … {end} in {PAGE}.")
        if part in results:
            shown = f"{begin}\n{table(results[part])}\n{end}"
            page = page[: found.start()] + shown + page[found.end() :]
    return page


def clients_table(found: Mapping[str, Any]) -> str:
    on = ", ".join(f"{name} {version}" for name, version in found["on"].items())
    lines = [
        f"Written by `make interop` on {on}.",
        "",
        f"| client | {' | '.join(STEPS)} | remarks |",
        f"|---|{'---|' * len(STEPS)}---|",
    ]
    lines += [_client_row(client, found["rows"].get(client.name)) for client in CLIENTS]
    return "\n".join(lines)


def _client_row(client: Client, row: Mapping[str, Any] | None) -> str:
    name = f"{client.title} (`{client.packages[0]}`)"
    if row is None or "problem" in row:
        why = "could not be installed" if row else "not tried"
        return f"| {name} | {' | '.join('?' for _ in STEPS)} | {why} |"
    verdicts = row["steps"]
    signs = " | ".join(SIGNS[verdicts[step]["mark"]] for step in STEPS)
    remarks = "; ".join(
        f"{step}: {verdicts[step]['note']}" for step in STEPS if verdicts[step]["note"]
    )
    remarks = remarks.replace("|", "\\|")
    return f"| {name} | {signs} | {remarks} |"


def opencode_table(found: Mapping[str, Any]) -> str:
    lines = [
        f"Written by `make interop ARGS=opencode`, which runs `{found['tests']}` on each.",
        "",
        "| OpenCode | passed | failed | left out, and why |",
        "|---|---|---|---|",
    ]
    lines += [_opencode_row(version, found["rows"].get(version)) for version in OPENCODE_VERSIONS]
    return "\n".join(lines)


def _opencode_row(version: str, row: Mapping[str, Any] | None) -> str:
    if row is None or "problem" in row:
        why = "could not be installed" if row else "not tried"
        return f"| {version} | ? | ? | {why} |"
    left_out = "; ".join(f"{number}: {why}" for why, number in row["skipped"].items()) or "–"
    failed = ", ".join(f"`{name}`" for name in row["failed"]) or "–"
    return f"| {version} | {row['passed']} | {failed} | {left_out} |"
