"""The command `nodes`: the services that share a PostgreSQL database, and how to drain one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..config import ConfigError, load, secrets_directory
from ..domain.nodes import Node
from .failure import CommandError
from .output import print_result

if TYPE_CHECKING:
    import argparse

COLUMNS = ("NAME", "STATE", "TASKS", "OPENCODE", "ROOT", "LABELS", "VERSION", "SEEN")


def run_nodes(arguments: argparse.Namespace) -> int:
    try:
        settings = load(arguments.config, secrets_directory(arguments.secrets))
    except ConfigError as exc:
        raise CommandError("\nopencode-a2a: ".join(exc.problems), 2) from None
    url = settings.state.database_url
    if url is None or not settings.state.is_shared:
        raise CommandError(
            "only services that share a PostgreSQL database are nodes: set "
            "A2A_TASK_STORE_DATABASE_URL as they have it.",
            2,
        )
    from sqlalchemy.exc import SQLAlchemyError  # slow to load

    from ..store.nodes import change_draining, read_nodes

    action = arguments.command.partition(" ")[2]
    try:
        if action == "list":
            now, nodes = read_nodes(url)
            found = _json(nodes, now) if arguments.json else _table(nodes, now)
            print_result(found)
            return 0
        changed = change_draining(url, arguments.node, draining=action == "drain")
    except SQLAlchemyError as exc:
        reason = str(getattr(exc, "orig", exc)).strip().splitlines()
        raise CommandError(f"the database cannot be used: {reason[0] if reason else exc}") from None
    if not changed:
        raise CommandError(
            f"there is no running node {arguments.node}: see `opencode-a2a nodes list`."
        )
    said = "gets no new work and stops when its tasks have ended"
    print_result(f"{arguments.node} {said if action == 'drain' else 'gets new work again'}.")
    return 0


def _json(nodes: Sequence[Node], now: int) -> str:
    found: list[dict[str, Any]] = [
        {**asdict(node), "labels": sorted(node.labels), "state": node.state(now)} for node in nodes
    ]
    for each in found:
        del each["silent"], each["draining"]  # the state says both
    return json.dumps(found, indent=2)


def _table(nodes: Sequence[Node], now: int) -> str:
    rows = [COLUMNS]
    for node in nodes:
        tasks = f"{node.load}/{node.capacity or '∞'}"
        version = f"{node.version} on {node.opencode_version or '?'}"
        seen = f"{max(0, now - node.seen_at) / 1000:.0f} s ago"
        labels = ",".join(sorted(node.labels)) or "-"
        state = node.state(now)
        rows.append((node.name, state, tasks, node.opencode, node.root, labels, version, seen))
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    return "\n".join(
        "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
