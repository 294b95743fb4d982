"""The messages that a person has sent in chats, one file for each peer."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from prompt_toolkit.history import History, InMemoryHistory

from ..paths import (
    folder_name,
    keep_newest_files,
    make_private_directory,
    state_home,
    write_private_file,
)

MAX_MESSAGES = 500  # the newest
MAX_CHARS = 10_000  # of a message that is kept
MAX_PEERS = 200


class MessageHistory(History):
    """One message per line, as JSON, for this user only. A full disk is no reason to fail."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file

    def load_history_strings(self) -> Iterable[str]:
        """The newest first."""
        messages = list(_messages(self._file))
        if len(messages) > MAX_MESSAGES:
            messages = messages[-MAX_MESSAGES:]
            with suppress(OSError):
                write_private_file(self._file, "".join(map(_line, messages)))
        return reversed(messages)

    def store_string(self, string: str) -> None:
        if len(string) > MAX_CHARS:
            return
        with suppress(OSError):
            is_new = not self._file.exists()
            make_private_directory(self._file.parent)
            flags = os.O_CREAT | os.O_APPEND | os.O_WRONLY
            with os.fdopen(os.open(self._file, flags, 0o600), "w") as out:
                out.write(_line(string))
            if is_new:
                keep_newest_files(self._file.parent, MAX_PEERS)


def history_of(url: str) -> History:
    """What was sent to the peer at this address."""
    try:
        return MessageHistory(state_home() / "history" / f"{folder_name(Path(url))}.jsonl")
    except RuntimeError:  # there is no home directory
        return InMemoryHistory()


def _messages(file: Path) -> Iterable[str]:
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        with suppress(ValueError):
            if isinstance(message := json.loads(line), str):
                yield message


def _line(message: str) -> str:
    return json.dumps(message) + "\n"
