"""What every A2A client does, with every A2A client: Python and JavaScript, 1.0 and 0.3."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.e2e.behind import Behind
from tests.e2e.clients import Client, Line, Refusal, ask, every_way
from tests.e2e.gate import Gate
from tests.e2e.javascript import JavaScriptClient
from tests.e2e.seen import SHELL, facts, reaches, says, shared, shown, shows, state, tool
from tests.running import Service

WORDS = "river stone cloud maple ember north quiet light "


async def test_asking_and_streaming_end_alike_and_are_kept(anyone: Client) -> None:
    bash = '[[tool:bash {"command": "echo one", "description": "Says one"}]]'
    task, _ = await every_way(anyone, f"[[reason:3]] [[say:Let me see.]] {bash}")
    assert state(task) == "completed"
    assert shown(task) == [
        ("reasoning", "thought 0 thought 1 thought 2 "),
        ("answer", "Let me see."),
        tool(
            "bash",
            title="echo one",
            subtitle="Says one",
            input={"command": "echo one", "description": "Says one"},
            output="one\n",
        ),
        ("answer", "TOOL RESULT: one\n"),
    ]
    assert shared(task)["usage"]["reasoning_tokens"] == 3


async def test_a_client_that_knows_no_extension_gets_a_clean_answer(plain: Client) -> None:
    bash = '[[tool:bash {"command": "echo one", "description": "Says one"}]]'
    task, stream = await every_way(plain, f"[[reason:3]] [[say:Let\u2028me\x85see.]] {bash}")
    assert state(task) == "completed"
    assert shown(task) == [("answer", "Let\u2028me\x85see."), ("answer", "TOOL RESULT: one\n")]
    assert stream.all_progress == []
    assert not any(artifact.HasField("metadata") for artifact in task.artifacts)
    assert shared(task)["usage"]["reasoning_tokens"] == 3


async def test_a_context_is_one_conversation(anyone: Client, behind: Behind) -> None:
    first = await anyone.send(ask("My name is Ada."))
    async with anyone.stream(ask("What is my name?", context=first.context_id)) as stream:
        second = await stream.rest()
    assert second.id != first.id
    assert second.context_id == first.context_id
    session = shared(first)["session"]["id"]
    assert shared(second)["session"]["id"] == session
    assert await behind.said(session) == [
        ("user", "My name is Ada."),
        ("assistant", "ECHO: My name is Ada."),
        ("user", "What is my name?"),
        ("assistant", "ECHO: What is my name?"),
    ]


async def test_a_task_is_canceled_while_it_speaks(anyone: Client, behind: Behind) -> None:
    async with anyone.stream(ask("[[hangmid:3]]")) as stream:
        await stream.until(shows("answer"))
        canceled = await anyone.cancel(stream.task.id)
        streamed = await stream.rest()
    assert state(canceled) == state(streamed) == "canceled"
    assert says(canceled) == says(streamed) == "Canceled by the caller."
    assert facts(await anyone.get(canceled.id)) == facts(canceled) == facts(streamed)
    assert not await behind.busy(shared(canceled)["session"]["id"])
    with pytest.raises(Refusal) as refused:
        await anyone.cancel(canceled.id)
    assert refused.value.code == -32002


async def test_a_second_reader_sees_what_the_first_one_sees(anyone: Client, gate: Gate) -> None:
    async with anyone.stream(ask(f"{gate} [[say:Wait for it.]] [[tokens:24]]")) as first:
        await first.until(shows(SHELL, "running"))
        async with anyone.resubscribe(first.task.id) as second:
            await second.next()
            gate.open()
            views = await asyncio.gather(first.rest(), second.rest())
    assert shown(views[0]) == [("answer", "Wait for it."), gate.passed, ("answer", WORDS * 3)]
    assert facts(views[0]) == facts(views[1]) == facts(await anyone.get(first.task.id))


async def test_following_a_task_that_has_ended(anyone: Client) -> None:
    task = await anyone.send(ask("hello"))
    async with anyone.resubscribe(task.id) as stream:
        if anyone.line.version == "1.0":
            with pytest.raises(Refusal) as refused:
                await stream.next()
            assert refused.value.code == -32004
        else:
            assert facts(await stream.rest()) == facts(task)
            assert len(stream.events) == 1


async def test_an_impatient_client_comes_back_for_the_answer(anyone: Client) -> None:
    task = await anyone.send(ask("[[start:150]] [[text:Worth the wait.]]", now=True))
    assert state(task) in ("submitted", "working")
    assert shown(task) == []
    async with asyncio.timeout(30):
        while state(task) in ("submitted", "working"):
            await asyncio.sleep(0.05)
            task = await anyone.get(task.id)
    assert state(task) == "completed"
    assert shown(task) == [("answer", "Worth the wait.")]


async def test_a_question_of_the_agent_is_answered(anyone: Client) -> None:
    asked = '{"questions": [{"question": "Which one?", "header": "Pick", "options": []}]}'
    async with anyone.stream(ask(f"[[tool:question {asked}]]")) as stream:
        await stream.until(reaches("input-required"))
        task = await stream.rest()
    assert state(task) == "input-required"
    assert says(task).startswith("The agent asks:\n\nWhich one?\n\nAnswer in your own words")
    async with anyone.stream(ask("The red one", task=task.id, context=task.context_id)) as stream:
        done = await stream.rest()
    assert (state(done), done.id) == ("completed", task.id)
    assert "The red one" in shown(done)[-1][1]
    assert facts(await anyone.get(task.id)) == facts(done)


async def test_a_permission_is_given_in_words(anyone: Client, tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("from outside\n")
    task = await anyone.send(ask(f'[[tool:read {{"filePath": "{outside}"}}]]'))
    assert state(task) == "input-required"
    assert says(task).startswith("The agent asks for permission: external_directory")
    unclear = await anyone.send(ask("what for?", task=task.id))
    assert (state(unclear), unclear.id) == ("input-required", task.id)
    assert says(unclear).startswith("“what for?” is neither yes, always nor no.")
    done = await anyone.send(ask("Go ahead.", context=task.context_id))
    assert (state(done), done.id) == ("completed", task.id), "an answer need not name its task"
    assert "from outside" in shown(done)[-1][1]


async def test_what_is_not_there_is_not_found(anyone: Client) -> None:
    for call in (anyone.get("nosuch"), anyone.cancel("nosuch"), anyone.send(ask("x", task="no"))):
        with pytest.raises(Refusal) as refused:
            await call
        assert refused.value.code == -32001


async def test_the_javascript_clients_choose_what_they_should(
    real_service: Service, line: Line, tmp_path: Path
) -> None:
    async with JavaScriptClient.connect(real_service, line, tmp_path) as client:
        chosen = await client.who()
    names = {"JSONRPC": "JsonRpcTransport", "HTTP+JSON": "RestTransport"}
    name = line.binding if line.version == "1.0" else names[line.binding]
    assert chosen == [name, line.version]
