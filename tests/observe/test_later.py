"""What is observed is worked out a moment later."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from opencode_a2a.observe import later


async def test_it_is_done_within_a_moment_and_in_order() -> None:
    done: list[int] = []
    over = asyncio.Event()
    for number in (1, 2, 3):
        later.do(lambda number=number: done.append(number))  # type: ignore[misc]
    later.do(over.set)
    assert done == []
    async with asyncio.timeout(30):
        await over.wait()
    assert done == [1, 2, 3]


async def test_whoever_looks_can_have_it_done_at_once_and_it_is_done_once() -> None:
    done: list[str] = []
    later.do(lambda: done.append("first"))
    later.catch_up()
    later.do(lambda: done.append("second"))
    assert done == ["first"]
    later.catch_up()
    later.catch_up()
    assert done == ["first", "second"]


async def test_what_fails_does_not_keep_the_others_from_being_done() -> None:
    done: list[str] = []

    def fail() -> None:
        raise ValueError("this cannot be counted")

    later.do(fail)
    later.do(lambda: done.append("next"))
    with capture_logs() as logs:
        later.catch_up()
    assert done == ["next"]
    assert [line["event"] for line in logs] == ["observe.internal_error"]


def test_what_an_event_loop_has_left_is_done_in_the_next_one() -> None:
    done: list[str] = []

    async def leave() -> None:
        later.do(lambda: done.append("left"))

    async def go_on() -> None:
        over = asyncio.Event()
        later.do(over.set)
        async with asyncio.timeout(30):
            await over.wait()

    asyncio.run(leave())
    assert done == []
    asyncio.run(go_on())
    assert done == ["left"]


def test_it_needs_an_event_loop() -> None:
    with pytest.raises(RuntimeError):
        later.do(lambda: None)
