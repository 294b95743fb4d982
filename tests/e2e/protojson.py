"""The JSON form of the SDK's types, typed: protobuf itself comes without type hints."""

from __future__ import annotations

from typing import Any, TypeVar

from google.protobuf import json_format  # type: ignore[import-untyped]

M = TypeVar("M")


def to_json(message: Any) -> dict[str, Any]:
    body: dict[str, Any] = json_format.MessageToDict(message)
    return body


def from_json(body: Any, shape: type[M]) -> M:
    """Read strictly: a member that the shape does not know is an error."""
    message: M = json_format.ParseDict(body, shape(), ignore_unknown_fields=False)
    return message
