"""Threads that run functions for the event loop.

`ThreadPoolExecutor` passes a call and its result on by two futures, a condition and their locks.
That takes longer than SQLite takes for a small transaction: the transactions of a task alone, in
`make bench`, take 1.63 ms of CPU time with these threads and 2.05 ms with an executor.
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

_Job = tuple[asyncio.Future[Any], Callable[[], Any]]


class WorkerThreads:
    def __init__(self, count: int, name: str) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._count = count
        self._name = name
        self._threads: list[threading.Thread] = []
        # One entry for each thread without a job, while threads can still be started. A job that
        # comes as another ends may leave one too many, but only when all threads are there: until
        # then it gets a thread of its own. After that nobody needs to know.
        self._idle = deque[None]()
        self._closed = False

    async def run(self, work: Callable[[], T]) -> T:
        """Call `work` in a thread. If the caller leaves before a thread is free, it is not called.

        Raises, without calling it, when no thread can be started.
        """
        if self._closed:
            raise RuntimeError(f"{self._name} is closed")
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self._idle:
            self._idle.pop()
        elif len(self._threads) < self._count:
            name = f"{self._name}-{len(self._threads)}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)
        self._jobs.put((result, work))
        return await result

    def close(self) -> None:
        """Wait until all jobs are done, and accept no more."""
        self._closed = True
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            result, work = job
            value, settle = None, result.set_result
            try:
                if not result.cancelled():
                    value = work()
            except BaseException as exc:
                value, settle = exc, result.set_exception
            if self._jobs.empty():
                self._idle.append(None)  # before the caller gets the result and submits again
            with suppress(RuntimeError):  # the event loop is closed, so nobody waits
                result.get_loop().call_soon_threadsafe(_settle, result, settle, value)
            del job, result, work, settle, value  # or they would be kept until the next job


def _settle(result: asyncio.Future[Any], settle: Callable[[Any], None], value: Any) -> None:
    if not result.done():  # the caller may have left
        settle(value)
