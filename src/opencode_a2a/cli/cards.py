"""Agent Cards that `call` has found, in the user's cache directory.

A card is used again only if the peer says that it is still the same. Cards for those who have
logged in are never among them.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path

from ..outbound.card import FoundCard, read_card
from ..outbound.failures import PeerError
from ..outbound.target import Target
from ..paths import cache_home, keep_newest_files, write_private_file

MAX_CARD_BYTES = 262_144
MAX_CARDS = 200  # the newest; one for each address


class CardFiles:
    """Implements `outbound.card.CardCache`. A broken or missing file is no card."""

    def get(self, target: Target) -> FoundCard | None:
        try:
            file = _file(target)
            if file.stat().st_size > MAX_CARD_BYTES:
                return None
            kept = json.loads(file.read_bytes())
            url, etag = str(kept["url"]), str(kept["etag"])
            raw, card = read_card(json.dumps(kept["card"]).encode(), where=url)
        except (OSError, RuntimeError, ValueError, KeyError, TypeError, PeerError):
            return None
        return FoundCard(url, raw, card=card, etag=etag)

    def put(self, target: Target, found: FoundCard) -> None:
        """Keep it, if the peer can be asked whether it is still the same."""
        text = json.dumps({"url": found.url, "etag": found.etag, "card": found.raw})
        if found.etag is None or len(text) > MAX_CARD_BYTES:
            return
        with suppress(OSError, RuntimeError):  # a full disk is no reason to fail
            file = _file(target)
            write_private_file(file, text)
            keep_newest_files(file.parent, MAX_CARDS)


def _file(target: Target) -> Path:
    return cache_home() / "cards" / f"{hashlib.sha256(target.url.encode()).hexdigest()[:32]}.json"
