"""Ids as OpenCode makes them: a prefix, 48 bits of time, and 14 random characters.

They are ours to make for messages and parts. OpenCode keys messages by id over
all sessions, so an id must never come from a caller.
"""

from __future__ import annotations

import itertools
import secrets
import string
import time

_ALPHABET = string.digits + string.ascii_letters
_counter = itertools.count()


def new_id(prefix: str) -> str:
    ordered = (time.time_ns() // 1_000_000) * 0x1000 + next(_counter) % 0x1000
    # Not quite even, which uniqueness can do without; one system call, not fourteen.
    tail = "".join(_ALPHABET[byte % 62] for byte in secrets.token_bytes(14))
    return f"{prefix}_{ordered % (1 << 48):012x}{tail}"


def part_id(message_id: str, index: int) -> str:
    """The same part of the same message always has the same id."""
    return f"prt_{message_id.removeprefix('msg_')}{index:03d}"
