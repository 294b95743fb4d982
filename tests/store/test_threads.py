"""Functions that threads run for the event loop: their results, their order, and the end."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator
from functools import partial

import pytest

from opencode_a2a.store.threads import WorkerThreads


@pytest.fixture
def one() -> Iterator[WorkerThreads]:
    threads = WorkerThreads(1, "one")
    yield threads
    threads.close()


async def test_results_and_exceptions_arrive_in_order(one: WorkerThreads) -> None:
    def half(number: int) -> int:
        if number % 2:
            raise ValueError(number)
        return number // 2

    found = await asyncio.gather(
        *(one.run(partial(half, i)) for i in range(4)), return_exceptions=True
    )
    assert found[0::2] == [0, 1]
    assert [str(exc) for exc in found[1::2]] == ["1", "3"]


async def test_threads_are_started_when_all_others_are_busy() -> None:
    threads = WorkerThreads(2, "few")
    meeting = threading.Barrier(2, timeout=30)

    def where() -> str:
        return threading.current_thread().name

    def meet() -> str:
        meeting.wait()
        return where()

    assert [await threads.run(where) for _ in range(3)] == ["few-0"] * 3
    together = await asyncio.gather(threads.run(meet), threads.run(meet))
    assert set(together) == {"few-0", "few-1"}
    many = await asyncio.gather(*(threads.run(where) for _ in range(20)))
    assert set(many) <= {"few-0", "few-1"}
    threads.close()


async def test_a_function_whose_caller_has_left_is_not_called(one: WorkerThreads) -> None:
    held, done = threading.Event(), list[str]()
    first = asyncio.create_task(one.run(partial(held.wait, 30)))
    second = asyncio.create_task(one.run(partial(done.append, "second")))
    await asyncio.sleep(0)  # both are submitted
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    first.cancel()  # it runs already: it ends, and its result is dropped
    held.set()
    await one.run(partial(done.append, "third"))
    assert done == ["third"]


async def test_closing_waits_for_all_jobs() -> None:
    threads, done = WorkerThreads(1, "last"), list[int]()
    submitted = [asyncio.create_task(threads.run(partial(done.append, i))) for i in range(5)]
    await asyncio.sleep(0)
    threads.close()
    assert done == [0, 1, 2, 3, 4]
    await asyncio.gather(*submitted)
    with pytest.raises(RuntimeError, match="last is closed"):
        await threads.run(partial(done.append, 5))


async def test_a_thread_that_cannot_be_started_is_tried_again(
    one: WorkerThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", no_more)
        with pytest.raises(RuntimeError, match="can't start"):
            await one.run(partial(len, "abc"))
    assert await one.run(partial(len, "abc")) == 3


async def test_nothing_is_kept_of_a_job_that_is_done(one: WorkerThreads) -> None:
    class Large:
        pass

    def give_back(large: Large) -> Large:
        return large

    large = Large()
    seen = weakref.ref(large)
    assert await one.run(partial(give_back, large)) is large
    del large
    await one.run(gc.collect)
    assert seen() is None


def test_a_job_that_outlives_its_event_loop_harms_nobody(one: WorkerThreads) -> None:
    begun, held = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        held.wait(30)

    async def leave() -> None:
        task = asyncio.create_task(one.run(work))
        await asyncio.sleep(0)
        begun.wait(30)
        task.cancel()

    asyncio.run(leave())
    held.set()
    assert asyncio.run(one.run(lambda: "still there")) == "still there"
