"""Ids as OpenCode makes them: a prefix, 48 bits of time, and 14 random characters.

They are ours to make for messages and parts. OpenCode keys messages by id over
all sessions, so an id must never come from a caller.
"""

from __future__ import annotations

import itertools
import random
import re
import string
import time

_ALPHABET = string.digits + string.ascii_letters
_LETTERS = bytes(ord(_ALPHABET[byte % 62]) for byte in range(256))  # of each byte
_counter = itertools.count()
_DATED = re.compile(r"msg_[0-9a-f]{12}([0-9a-zA-Z]{14})([0-9a-f]{12})")


def new_id(prefix: str) -> str:
    ordered = (time.time_ns() // 1_000_000) * 0x1000 + next(_counter) % 0x1000
    # Not quite even, and easily guessed, which uniqueness can do without.
    tail = random.randbytes(14).translate(_LETTERS).decode()
    return f"{prefix}_{ordered % (1 << 48):012x}{tail}"


def part_id(message_id: str, index: int) -> str:
    """The same part of the same message always has the same id."""
    return f"prt_{message_id.removeprefix('msg_')}{index:03d}"


def dated_id(message_id: str) -> str:
    """The id of a prompt with the time of now; its own time follows at the end.

    Some versions of OpenCode take the greatest id for the newest message, and do not answer a
    prompt whose id is older than the last answer.
    """
    return f"{new_id('msg')[:16]}{message_id[16:]}{message_id[4:16]}"


def prompt_id(message_id: str) -> str:
    """The id of a prompt as this service knows it: without the time that `dated_id` gave it."""
    dated = _DATED.fullmatch(message_id) if len(message_id) == 42 else None
    return f"msg_{dated[2]}{dated[1]}" if dated else message_id
