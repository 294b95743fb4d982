"""How long a server asks to be left alone (RFC 9110)."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from time import time


def retry_after(value: str | None) -> float | None:
    """Seconds, from a number or a date."""
    if not value:
        return None
    try:
        return max(float(value), 0.0)
    except ValueError:
        pass
    try:
        return max(parsedate_to_datetime(value).timestamp() - time(), 0.0)
    except (ValueError, OverflowError):  # OverflowError: a year that no clock has
        return None
