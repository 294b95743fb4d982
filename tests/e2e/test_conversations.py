"""Tasks of one context: they share a conversation, wait for each other, and can be steered."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from a2a.types.a2a_pb2 import Task

from tests.e2e.behind import Behind
from tests.e2e.clients import PythonClient, Refusal, ask
from tests.e2e.gate import Gate
from tests.e2e.seen import PATIENCE, SHELL, error, facts, says, shared, shown, shows, state
from tests.features import is_2
from tests.running import Upstream


def session(task: Task) -> str:
    found: str = shared(task)["session"]["id"]
    return found


async def test_the_model_sees_the_history_of_its_context(
    either: PythonClient, behind: Behind
) -> None:
    context = str(uuid.uuid4())
    first = await either.send(ask("a very long story " * 500, context=context))
    second = await either.send(ask("And then?", context=context))
    alone = await either.send(ask("And then?"))
    assert first.context_id == second.context_id == context
    assert alone.context_id != context
    assert session(first) == session(second) != session(alone)
    assert [prompt["text"][:9] for prompt in await behind.prompts(session(first))] == [
        "a very lo",
        "And then?",
    ]
    told = [shared(task)["usage"]["input_tokens"] for task in (second, alone)]
    assert told[0] - told[1] > 2 * len("a very long story " * 500) / 4 - 100  # story and echo


async def test_a_message_to_a_working_task_steers_it(
    either: PythonClient, gate: Gate, behind: Behind
) -> None:
    async with either.stream(ask(f"{gate} [[text:The first answer.]]")) as stream:
        await stream.until(shows(SHELL, "running"))
        request = ask("[[text:The second answer.]]", task=stream.task.id)
        async with either.stream(request) as steering:
            await steering.next()
            gate.open()
            views = await asyncio.gather(stream.rest(), steering.rest())
    task = await either.get(stream.task.id)
    assert facts(views[0]) == facts(views[1]) == facts(task)
    assert state(task) == "completed"
    assert shown(task) == [
        gate.passed,
        ("answer", "The first answer."),
        ("answer", "The second answer."),
    ]
    assert [message.parts[0].text for message in task.history] == [
        f"{gate} [[text:The first answer.]]",
        "[[text:The second answer.]]",
    ]
    said = await behind.said(session(task))
    assert [text for role, text in said if role == "user"] == [
        f"{gate} [[text:The first answer.]]",
        "[[text:The second answer.]]",
    ]
    assert shared(task)["usage"]["output_tokens"] == 4, "both answers count"


async def test_a_steering_message_waits_for_its_answer(either: PythonClient, gate: Gate) -> None:
    async with either.stream(ask(f"{gate} [[text:First.]]")) as stream:
        await stream.until(shows(SHELL, "running"))
        more = ask("[[text:Second.]]", task=stream.task.id)
        last = ask("[[text:Third.]]", task=stream.task.id, now=True)
        waiting = asyncio.create_task(either.send(more))
        await either.send(last)
        gate.open()
        task = await stream.rest()
        assert facts(await waiting) == facts(task)
    assert state(task) == "completed"
    assert {text for name, text in shown(task)[1:]} == {"First.", "Second.", "Third."}


async def test_a_task_cannot_be_continued_in_another_context_or_after_its_end(
    either: PythonClient,
) -> None:
    async with either.stream(ask("[[hangmid:1]]")) as stream:
        await stream.until(shows("answer"))
        with pytest.raises(Refusal) as refused:
            await either.send(ask("x", task=stream.task.id, context="another"))
        assert refused.value.code == -32602
        ended = await either.cancel(stream.task.id)
    with pytest.raises(Refusal) as refused:
        await either.send(ask("x", task=ended.id))
    assert refused.value.code == -32004


async def test_tasks_of_one_context_wait_for_each_other(
    either: PythonClient, behind: Behind
) -> None:
    context = str(uuid.uuid4())
    async with either.stream(ask("[[hangmid:2]]", context=context)) as stream:
        await stream.until(shows("answer"))
        waiting = [
            await either.send(ask(f"[[text:{word}.]]", context=context, now=True))
            for word in ("Second", "Third", "Fourth")
        ]
        assert [state(await either.get(task.id)) for task in waiting] == ["submitted"] * 3
        _, third, fourth = waiting
        canceled = await either.cancel(third.id)
        assert (state(canceled), shown(canceled)) == ("canceled", [])
        assert state(await either.get(stream.task.id)) == "working"
        async with either.resubscribe(fourth.id) as last:
            await either.cancel(stream.task.id)
            await last.rest()
    done = [await either.get(task.id) for task in waiting]
    assert [state(task) for task in done] == ["completed", "canceled", "completed"]
    assert shown(done[0]) == [("answer", "Second.")]
    assert shown(done[2]) == [("answer", "Fourth.")]
    assert done[0].status.timestamp.ToMilliseconds() < done[2].status.timestamp.ToMilliseconds()
    asked = [text for role, text in await behind.said(session(done[0])) if role == "user"]
    assert asked == ["[[hangmid:2]]", "[[text:Second.]]", "[[text:Fourth.]]"]


async def test_a_running_command_is_stopped_with_its_task(
    either: PythonClient, opencode: Upstream, behind: Behind
) -> None:
    mark = f"ran-{uuid.uuid4()}"
    begun = opencode.workspace / f"begun-{mark}"
    runs = f"echo be$()gun; touch {begun.name}; sleep 20; touch {mark}"
    command = f'{{"command": "{runs}", "description": "Takes long"}}'
    async with either.stream(ask(f"[[say:Wait.]] [[tool:bash {command}]]")) as stream:
        await stream.until(shows(SHELL, "running" if is_2() else "begun\\n"))
        async with asyncio.timeout(PATIENCE):
            while not begun.exists():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        canceled = await either.cancel(stream.task.id)
        streamed = await stream.rest()
    assert state(canceled) == "canceled"
    assert says(canceled) == "Canceled by the caller."
    assert facts(canceled) == facts(streamed)
    assert [name for name, _ in shown(canceled)] == ["answer", SHELL]
    if is_2():
        assert shown(canceled)[1][1]["status"] == "error"
    else:
        assert "User aborted the command" in shown(canceled)[1][1]["output"]
    assert not await behind.busy(session(canceled))
    assert not (opencode.workspace / mark).exists()


async def test_a_context_whose_session_was_deleted_goes_on_in_a_new_one(
    either: PythonClient, behind: Behind
) -> None:
    first = await either.send(ask("[[text:Before.]]"))
    await behind.delete(session(first))
    tasks = [
        await either.send(ask(f"[[text:{word}.]]", context=first.context_id))
        for word in ("After", "Again")
    ]
    assert [(state(task), shown(task)) for task in tasks] == [
        ("completed", [("answer", "After.")]),
        ("completed", [("answer", "Again.")]),
    ]
    assert session(tasks[0]) == session(tasks[1]) != session(first)


@pytest.mark.parametrize("prompt", ["[[hangmid:2]]", "[[say:Wait.]] {gate}"])
async def test_a_task_whose_session_is_deleted_ends_and_says_why(
    either: PythonClient, behind: Behind, gate: Gate, prompt: str
) -> None:
    async with either.stream(ask(prompt.format(gate=gate))) as stream:
        await stream.until(shows(SHELL, "running") if "gate" in prompt else shows("answer"))
        await behind.delete(session(await either.get(stream.task.id)))
        task = await stream.rest()
    assert state(task) == "failed"
    assert error(task) == {"type": "UPSTREAM_INTERRUPTED"}
    assert "was deleted in OpenCode" in says(task)
    assert not await behind.busy(session(task))
    again = await either.send(ask("[[text:And now?]]", context=task.context_id))
    assert (state(again), shown(again)) == ("completed", [("answer", "And now?")])


async def test_a_context_goes_on_after_a_cancel(either: PythonClient) -> None:
    async with either.stream(ask("[[hangmid:2]]")) as stream:
        await stream.until(shows("answer"))
        canceled = await either.cancel(stream.task.id)
    task = await either.send(ask("[[text:Still here.]]", context=canceled.context_id))
    assert state(task) == "completed"
    assert session(task) == session(canceled)
    assert shown(task) == [("answer", "Still here.")]
