"""OpenCode is down, comes back, loses its events or its memory: what the caller sees."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes.opencode import expected_text
from tests.faults.steering import aborted, control, ready
from tests.load.client import FORMS, Client, Refused, Telling, connected, last
from tests.running import Service, Upstream, fake_opencode, service

TOKENS = 2_000
A_SECOND = f"[[tokens:{TOKENS}]] [[rate:2000]]"


async def half(telling: AsyncIterator[Telling]) -> Telling:
    """The task in the middle of its text."""
    async with asyncio.timeout(60):
        async for told in telling:
            if told.answer:  # how many pieces there will be depends on the machine
                return told
    raise AssertionError("it ended before its middle")


def whole(told: Telling) -> bool:
    assert (told.state, told.problem, told.ends) == ("completed", None, 1)
    assert told.session is not None
    return told.answer == expected_text(told.session, TOKENS)


async def test_while_opencode_is_down_a_send_is_refused_and_leaves_no_task(
    breakable: Upstream, service_on_it: Service, client: Client
) -> None:
    before = len(await client.list("failed"))
    await control(breakable, "fault", mode="down")
    checks = await ready(service_on_it, 503)  # who asks before it is noticed gets a failed task
    assert checks["checks"] == {"store": True, "opencode": False}
    async with connected(service_on_it) as clients:
        answers = await asyncio.gather(
            *(clients[form].send("hello") for form in FORMS), return_exceptions=True
        )
    for form, refusal in zip(FORMS, answers, strict=True):
        assert isinstance(refusal, Refused)
        assert refusal.reason == "UPSTREAM_UNREACHABLE"
        assert refusal.status == (200 if form.rpc else 503)
        assert refusal.code == (-32060 if form.rpc or form.line == "0.3" else 503)
        assert int(refusal.retry_after or 0) > 0
        assert "OPENCODE_BASE_URL" in refusal.message
    assert len(await client.list("failed")) == before
    assert not await client.list("submitted")
    await control(breakable, "fault", mode="ok")
    await ready(service_on_it)
    assert (await client.send("hello")).answer == "ECHO: hello"


async def test_a_service_without_opencode_starts_and_works_as_soon_as_there_is_one(
    tmp_path: Path,
) -> None:
    with socket.socket() as kept:  # nobody else gets its port, and one more may listen there
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
        await late_opencode(kept.getsockname()[1], tmp_path)


async def late_opencode(port: int, tmp_path: Path) -> None:
    nobody = Upstream(f"http://127.0.0.1:{port}", None, tmp_path)
    with service(nobody, tmp_path) as running:
        assert (await ready(running, 503))["status"] == "unavailable"
        with fake_opencode(tmp_path / "late", "--port", str(port)):
            assert (await ready(running))["status"] == "ready"
            async with connected(running) as clients:
                for client in clients.values():
                    assert (await client.send("hello")).answer == "ECHO: hello"


async def test_a_run_survives_a_short_absence(breakable: Upstream, client: Client) -> None:
    async with client.stream(A_SECOND) as telling:
        told = await half(telling)
        await control(breakable, "fault", mode="down")
        await asyncio.sleep(0.3)  # the absence
        await control(breakable, "fault", mode="ok")
        assert whole(await last(telling))
    again = await client.send("and now?", contextId=told.context)
    assert (again.answer, again.session) == ("ECHO: and now?", told.session)


@pytest.mark.parametrize("how", ["[[cutfeed]]", "drop"])
async def test_a_cut_event_stream_costs_no_text(
    breakable: Upstream, client: Client, how: str
) -> None:
    async with client.stream(f"{A_SECOND} {how}") as telling:
        if how == "drop":
            await half(telling)
            await control(breakable, "drop")
        assert whole(await last(telling))
    assert (await control(breakable, "stats"))["consumers"] == 1


async def test_a_run_that_opencode_forgot_fails_and_its_context_goes_on(
    breakable: Upstream, client: Client
) -> None:
    async with client.stream(f"{A_SECOND} [[hang]]") as telling:
        before = await half(telling)
        await control(breakable, "lose")
        told = await last(telling)
    assert (told.state, told.problem, told.ends) == ("failed", "UPSTREAM_INTERRUPTED", 1)
    assert "same context" in told.note
    assert told.answer, "what was said stays"
    again = await client.send("and now?", contextId=before.context)
    assert (again.answer, again.session) == ("ECHO: and now?", told.session)


async def test_an_idle_that_comes_before_the_message_is_no_end(client: Client) -> None:
    told = await client.told(f"{A_SECOND} [[latemessage]]")
    assert whole(told)


async def test_a_refused_prompt_fails_the_task_with_the_status(
    breakable: Upstream, client: Client
) -> None:
    await control(breakable, "fault", mode="refuse-prompt")
    told = await client.send("hello")
    assert (told.state, told.problem) == ("failed", "UPSTREAM_HTTP_ERROR")
    assert "500" in told.note
    assert "err_fake" not in told.note
    await control(breakable, "fault", mode="ok")
    again = await client.send("and now?", contextId=told.context)
    assert again.answer == "ECHO: and now?"


async def test_a_web_page_is_no_answer_and_the_message_says_what_to_check(
    breakable: Upstream, client: Client, tmp_path: Path
) -> None:
    await control(breakable, "fault", mode="html")
    told = await client.send("hello")
    assert (told.state, told.problem) == ("failed", "UPSTREAM_PAYLOAD_ERROR")
    for word in ("text/html", "OPENCODE_BASE_URL", "opencode serve"):
        assert word in told.note
    with service(breakable, tmp_path) as running:  # one that has never seen anything else
        async with connected(running) as clients:
            with pytest.raises(Refused) as refusal:
                await clients[client.form].send("hello")
    assert (refusal.value.status, refusal.value.reason) == (502, "UPSTREAM_PAYLOAD_ERROR")
    assert "OPENCODE_BASE_URL" in refusal.value.message


async def test_an_opencode_that_takes_too_long_fails_the_task(
    breakable: Upstream, tmp_path: Path
) -> None:
    """To answer a request, or with the whole of its work."""
    impatient = {"OPENCODE_TIMEOUT": "1", "OPENCODE_TIMEOUT_STREAM": "2"}
    with service(breakable, tmp_path, **impatient) as running:
        async with connected(running) as clients:
            client = clients[FORMS[0]]
            started = time.monotonic()
            late = await client.told("[[hang]]")
            took = time.monotonic() - started
            assert (late.state, late.problem) == ("failed", "DEADLINE_EXCEEDED")
            assert "OPENCODE_TIMEOUT_STREAM" in late.note
            assert took > 1.9
            assert await aborted(breakable, late.session)
            again = await client.send("and now?", contextId=late.context)
            assert again.answer == "ECHO: and now?"

            await control(breakable, "fault", mode="slow", seconds=60)
            try:
                slow = await asyncio.gather(
                    client.send("hello"), client.send("hello", contextId=late.context)
                )
            finally:
                await control(breakable, "fault", mode="ok")
    for task in slow:
        assert (task.state, task.problem) == ("failed", "UPSTREAM_TIMEOUT")


async def test_opencode_with_another_password_is_said_to_refuse_ours(tmp_path: Path) -> None:
    with fake_opencode(tmp_path, "--password", "right") as upstream:
        wrong = replace(upstream, password="wrong")
        with service(wrong, tmp_path) as running:
            async with connected(running) as clients:
                with pytest.raises(Refused) as refusal:
                    await clients[FORMS[0]].send("hello")
    assert (refusal.value.status, refusal.value.reason) == (502, "UPSTREAM_HTTP_ERROR")
    assert "OPENCODE_AUTH_PASSWORD" in refusal.value.message
