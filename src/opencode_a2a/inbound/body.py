"""A request's body: bounded before it is parsed, JSON of bounded depth afterwards."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson
from starlette.requests import Request

from ..errors import ContentTypeNotSupported, InvalidRequest, ParseError, PayloadTooLarge
from .failures import A2A_JSON, JSON

MAX_DEPTH = 64
# Each value costs some microseconds, during which nobody else is answered, and memory. A
# file is one value, however large.
MAX_VALUES = 100_000
SETTING = "A2A_MAX_REQUEST_BODY_BYTES"


async def read_json(request: Request, limit: int, *, limited_by: str = SETTING) -> Any:
    """The JSON a request carries; None for an empty body."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in (JSON, A2A_JSON):
        raise ContentTypeNotSupported(
            f"Content-Type must be {JSON}, not {media_type or 'missing'}.", media_type=media_type
        )
    raw = await read_bytes(request, limit, limited_by=limited_by)
    if not raw:
        return None
    if _has_too_many_values(raw):
        raise InvalidRequest(
            f"The body has more than {MAX_VALUES} JSON values. Send large data as a file in base64."
        )
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        raise ParseError("The body is not valid JSON in UTF-8.") from None
    if _too_deep(body):
        raise InvalidRequest(f"The body is nested deeper than {MAX_DEPTH} levels.")
    return body


async def read_bytes(request: Request, limit: int, *, limited_by: str = SETTING) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise _too_large(limit, limited_by)
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise _too_large(limit, limited_by)
        chunks.append(chunk)
    return b"".join(chunks)


def _too_large(limit: int, limited_by: str) -> PayloadTooLarge:
    return PayloadTooLarge(f"The body is larger than {limit} bytes ({limited_by}).", limit=limit)


def _has_too_many_values(raw: bytes) -> bool:
    """Before it is parsed: millions of small values need many times the memory of their text."""
    if _count_values(raw) <= MAX_VALUES:
        return False
    without_escapes = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    if without_escapes.count(b'"') > 4 * MAX_VALUES:  # a member has a name besides its value
        return True
    outside_of_texts = without_escapes.split(b'"')[::2]
    return _count_values(b"".join(outside_of_texts)) > MAX_VALUES


def _count_values(raw: bytes) -> int:
    """At least as many as there are, apart from the outermost."""
    return sum(map(raw.count, (b",", b"[", b"{")))


def _too_deep(body: Any) -> bool:
    level: list[Any] = [body]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for value in level:
            inner: Iterable[Any] = ()
            if isinstance(value, dict):
                inner = value.values()
            elif isinstance(value, list):
                inner = value
            below.extend(item for item in inner if isinstance(item, dict | list))
        if not below:
            return False
        level = below
    return True
