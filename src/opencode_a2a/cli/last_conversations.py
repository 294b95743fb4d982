"""The last conversation with each peer, for `call --last`."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..paths import state_home, write_private_file

MAX_PEERS = 200  # the newest; one conversation each


@dataclass(frozen=True, slots=True)
class Conversation:
    context_id: str | None
    task_id: str | None
    waits: bool  # whether the task waits for an answer
    at: float


def find(url: str) -> Conversation | None:
    found = _read().get(url)
    try:
        return None if found is None else Conversation(**found)
    except TypeError:  # another version has written it
        return None


def remember(url: str, *, context_id: str | None, task_id: str | None, waits: bool) -> None:
    """Keep it as the last one. A full disk is no reason to fail."""
    known = _read()
    known[url] = asdict(Conversation(context_id, task_id, waits=waits, at=time.time()))
    newest = sorted(known.items(), key=lambda item: item[1].get("at", 0.0))[-MAX_PEERS:]
    with suppress(OSError, RuntimeError):
        write_private_file(_file(), json.dumps(dict(newest)))


def _read() -> dict[str, dict[str, Any]]:
    try:
        found = json.loads(_file().read_text())
    except (OSError, ValueError, RuntimeError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {url: entry for url, entry in found.items() if isinstance(entry, dict)}


def _file() -> Path:
    return state_home() / "conversations.json"
