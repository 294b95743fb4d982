"""Tasks as they are kept: found again, listed page by page, with as much history as asked for."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
from a2a.types.a2a_pb2 import TaskState

from tests.e2e.clients import LINES, Line, PythonClient, Refusal, ask
from tests.e2e.gate import Gate
from tests.e2e.seen import BASH, SHELL, facts, shown, shows, state
from tests.features import no_output
from tests.running import Service


@pytest.fixture(params=LINES[:2], ids=str)
async def lister(
    request: pytest.FixtureRequest, real_service: Service
) -> AsyncIterator[PythonClient]:
    """The two lines that can list tasks."""
    line: Line = request.param
    async with PythonClient.connect(real_service, line) as connected:
        yield connected


async def test_history_is_as_long_as_asked_for(client: PythonClient, gate: Gate) -> None:
    async with client.stream(ask(f"first {gate}")) as stream:
        await stream.until(shows(SHELL, "running"))
        task_id = stream.task.id
        sent = await client.send(ask("second", task=task_id, history=1, now=True))
        gate.open()
        await stream.rest()
    words = [
        [message.parts[0].text for message in task.history]
        for task in (
            await client.get(task_id),
            await client.get(task_id, history=0),
            await client.get(task_id, history=1),
            await client.get(task_id, history=5),
            sent,
        )
    ]
    both = [f"first {gate}", "second"]
    nothing = [] if client.line.version == "1.0" else both  # where 0 means: no limit
    assert words == [both, nothing, ["second"], both, ["second"]]


async def test_history_length_counts_for_answers_and_streams(either: PythonClient) -> None:
    nothing = either.line.version == "1.0"
    request = ask("hello", history=0)
    async with either.stream(ask("hello", history=0)) as stream:
        streamed = await stream.rest()
    for task in (await either.send(request), streamed):
        assert state(task) == "completed"
        assert len(task.history) == (0 if nothing else 1)


async def test_accepted_output_modes_are_kept_with_the_task(
    client: PythonClient, gate: Gate
) -> None:
    task = await client.send(ask(f"{gate} [[text:Done.]]", modes=["text/plain"], now=True))
    async with client.resubscribe(task.id) as stream:
        await stream.next()
        gate.open()
        followed = await stream.rest()
    assert shown(followed) == [
        (SHELL, f"[{BASH}] completed: {gate.command}\n{no_output()}"),
        ("answer", "Done."),
    ]
    assert facts(await client.get(task.id)) == facts(followed)


async def test_tasks_are_listed_newest_first_page_by_page(lister: PythonClient) -> None:
    context = str(uuid.uuid4())
    started = datetime.now(UTC)
    made = [(await lister.send(ask(f"[[text:{n}]]", context=context))).id for n in range(4)]
    async with lister.stream(ask("[[hangmid:1]]", context=context)) as stream:
        await stream.until(shows("answer"))
        made.append(stream.task.id)
        working = await lister.list(context_id=context, status=TaskState.TASK_STATE_WORKING)
        assert [task.id for task in working.tasks] == [stream.task.id]
        await lister.cancel(stream.task.id)
    newest_first = made[::-1]

    first = await lister.list(context_id=context, page_size=2)
    second = await lister.list(context_id=context, page_size=2, page_token=first.next_page_token)
    third = await lister.list(context_id=context, page_size=2, page_token=second.next_page_token)
    pages = (first, second, third)
    assert [[task.id for task in page.tasks] for page in pages] == [
        newest_first[:2],
        newest_first[2:4],
        newest_first[4:],
    ]
    assert [(page.page_size, page.total_size) for page in pages] == [(2, 5)] * 3
    assert first.next_page_token
    assert not third.next_page_token
    assert not any(task.artifacts or task.history for page in pages for task in page.tasks)

    done = await lister.list(
        context_id=context,
        status=TaskState.TASK_STATE_COMPLETED,
        include_artifacts=True,
        history_length=1,
    )
    assert [task.id for task in done.tasks] == made[3::-1]
    assert [shown(task) for task in done.tasks] == [[("answer", str(n))] for n in (3, 2, 1, 0)]
    assert all(len(task.history) == 1 for task in done.tasks)

    since = await lister.list(status_timestamp_after=started, page_size=100)
    assert {task.id for task in since.tasks} == set(made)
    none = await lister.list(context_id="no such context")
    assert (list(none.tasks), none.total_size, none.next_page_token) == ([], 0, "")


async def test_a_wrong_page_is_refused(lister: PythonClient) -> None:
    for filters in ({"page_size": 101}, {"page_token": "nonsense"}, {"history_length": -1}):
        with pytest.raises(Refusal) as refused:
            await lister.list(**filters)
        assert refused.value.code == -32602


async def test_many_tasks_at_once_do_not_mix(clients: list[PythonClient]) -> None:
    words = [uuid.uuid4().hex for _ in range(16)]
    asked = zip(itertools.cycle(clients), words, strict=False)
    tasks = await asyncio.gather(*(client.send(ask(f"[[text:{word}]]")) for client, word in asked))
    assert [shown(task) for task in tasks] == [[("answer", word)] for word in words]
    assert len({task.context_id for task in tasks}) == len(words)
