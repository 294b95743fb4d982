"""A mapping that forgets what was not used for the longest time, so it cannot grow for ever."""

from __future__ import annotations

from typing import Generic, TypeVar

V = TypeVar("V")

DIRECTORIES = 1_000  # of which something is remembered; what is forgotten is found out again


class Recent(Generic[V]):
    def __init__(self, most: int = DIRECTORIES) -> None:
        self._most = most
        self._values: dict[str, V] = {}  # the one that was used last is at the end

    def get(self, key: str) -> V | None:
        if (value := self._values.pop(key, None)) is not None:
            self._values[key] = value
        return value

    def put(self, key: str, value: V) -> None:
        self._values.pop(key, None)
        self._values[key] = value
        if len(self._values) > self._most:
            del self._values[next(iter(self._values))]

    def forget(self, key: str) -> None:
        self._values.pop(key, None)
