"""Work for the event loop in threads: its results, its order, and its end."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator

import pytest

from opencode_a2a.store.threads import Threads


@pytest.fixture
def one() -> Iterator[Threads]:
    threads = Threads(1, "one")
    yield threads
    threads.close()


async def test_what_the_work_returns_or_raises_arrives_in_order(one: Threads) -> None:
    def half(number: int) -> int:
        if number % 2:
            raise ValueError(number)
        return number // 2

    found = await asyncio.gather(*(one.run(half, i) for i in range(4)), return_exceptions=True)
    assert found[0::2] == [0, 1]
    assert [str(exc) for exc in found[1::2]] == ["1", "3"]


async def test_threads_are_started_when_all_others_are_busy() -> None:
    threads = Threads(2, "few")
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


async def test_work_nobody_waits_for_any_more_is_not_begun(one: Threads) -> None:
    held, done = threading.Event(), list[str]()
    first = asyncio.create_task(one.run(held.wait, 30))
    second = asyncio.create_task(one.run(done.append, "second"))
    await asyncio.sleep(0)  # both are asked for
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    first.cancel()  # it is under way: it ends, and nobody hears of it
    held.set()
    await one.run(done.append, "third")
    assert done == ["third"]


async def test_closing_waits_for_everything_that_was_asked() -> None:
    threads, done = Threads(1, "last"), list[int]()
    asked = [asyncio.create_task(threads.run(done.append, i)) for i in range(5)]
    await asyncio.sleep(0)
    threads.close()
    assert done == [0, 1, 2, 3, 4]
    await asyncio.gather(*asked)
    with pytest.raises(RuntimeError, match="last is closed"):
        await threads.run(done.append, 5)


async def test_a_thread_that_cannot_be_started_is_tried_again(
    one: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", no_more)
        with pytest.raises(RuntimeError, match="can't start"):
            await one.run(len, "abc")
    assert await one.run(len, "abc") == 3


async def test_nothing_is_kept_of_what_was_done(one: Threads) -> None:
    class Large:
        pass

    def give_back(large: Large) -> Large:
        return large

    large = Large()
    seen = weakref.ref(large)
    assert await one.run(give_back, large) is large
    del large
    await one.run(gc.collect)
    assert seen() is None


def test_work_that_outlives_its_loop_ends_in_silence(one: Threads) -> None:
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
