"""Threads that work for the event loop, one thing after another.

An executor of the standard library hands a thing over and back by two futures and their locks,
which takes longer than SQLite takes to write what we have to say.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

_Job = tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]


class Threads:
    def __init__(self, count: int, name: str) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._count = count
        self._name = name
        self._started: list[threading.Thread] = []
        self._free = deque[None]()  # one for each thread that has nothing to do
        self._closed = False

    async def run(self, work: Callable[..., T], *args: Any) -> T:
        """What `work` returns or raises in a thread. It is not begun if nobody waits any more."""
        if self._closed:
            raise RuntimeError(f"{self._name} is closed")
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self._free:
            self._free.pop()
        elif len(self._started) < self._count:
            name = f"{self._name}-{len(self._started)}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            thread.start()
            self._started.append(thread)
        self._jobs.put((result, work, args))
        return await result

    def close(self) -> None:
        """Wait until everything is done, and take nothing more."""
        self._closed = True
        for _ in self._started:
            self._jobs.put(None)
        for thread in self._started:
            thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            result, work, args = job
            found, settle = None, result.set_result
            try:
                if not result.cancelled():
                    found = work(*args)
            except BaseException as exc:
                found, settle = exc, result.set_exception
            if self._jobs.empty():
                self._free.append(None)  # before anybody can hear of the result, and ask again
            with suppress(RuntimeError):  # nobody is left to hear it: the loop was closed
                result.get_loop().call_soon_threadsafe(_settle, result, settle, found)
            del job, result, work, args, settle, found  # not kept until the next comes


def _settle(result: asyncio.Future[Any], settle: Callable[[Any], None], found: Any) -> None:
    if not result.done():  # else who waited has left
        settle(found)
