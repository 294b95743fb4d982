"""What OpenCode says reaches the client whole, in order, and the same by every way of asking."""

from __future__ import annotations

import asyncio
import json
import uuid
from contextlib import AsyncExitStack

import pytest

from tests.e2e.clients import LINES, PythonClient, ask, every_way, on_every_line
from tests.e2e.gate import Gate
from tests.e2e.protojson import to_json
from tests.e2e.seen import BASH, SHELL, TASK, facts, reaches, shared, shown, shows, state, tool
from tests.features import is_2, require, tool_input
from tests.running import Service, Upstream

THINKING = "thought 0 thought 1 thought 2 "
WORDS = "river stone cloud maple ember north quiet light "


def bash(words: str) -> str:
    return f'[[tool:bash {{"command": "echo {words}", "description": "Says {words}"}}]]'


def echoed(words: str) -> tuple[str, object]:
    return tool(
        "bash",
        title=f"echo {words}",
        subtitle=f"Says {words}",
        input={"command": f"echo {words}", "description": f"Says {words}"},
        output=f"{words}\n",
    )


async def test_plain_text(client: PythonClient) -> None:
    task, _ = await every_way(client, "[[usage:1000:20]] [[text:Hello, world.]]")
    assert state(task) == "completed"
    assert shown(task) == [("answer", "Hello, world.")]
    told = shared(task)
    assert told["usage"] == {
        "input_tokens": 1000,
        "output_tokens": 20,
        "total_tokens": 1020,
        "cost": pytest.approx(0.00104),
    }
    assert told["session"]["id"].startswith("ses_")
    assert told["session"]["title"].startswith("[[usage:1000:20]]")


async def test_reasoning_and_many_deltas(client: PythonClient) -> None:
    task, stream = await every_way(client, "[[reason:3]] [[tokens:400]] [[usage:1000:403]]")
    assert shown(task) == [("reasoning", THINKING), ("answer", WORDS * 50)]
    assert shared(task)["usage"] == {
        "input_tokens": 1000,
        "output_tokens": 400,
        "reasoning_tokens": 3,
        "total_tokens": 1403,
        "cost": pytest.approx(0.001806),
    }
    for artifact, kind in zip(stream.task.artifacts, ("reasoning", "text"), strict=True):
        told = to_json(artifact.metadata)["shared"]["stream"]
        assert (told["block_type"], told["source"], told["role"]) == (kind, "opencode", "agent")
        assert told["message_id"].startswith("msg_")
        assert told["event_id"] == f"{stream.task.id}:{told['sequence']:g}"


async def test_several_tool_calls_with_text_between_them(clients: list[PythonClient]) -> None:
    asked = f"[[usage:1000:20]] [[say:Let me see.]] {bash('one')} {bash('two')}"
    said = ("answer", "Let me see.")

    async def body(client: PythonClient) -> None:
        task, stream = await every_way(client, asked)
        assert shown(task) == [
            *(said, echoed("one")),
            *(said, echoed("two")),
            ("answer", "TOOL RESULT: two\n"),
        ]
        assert shared(task)["usage"]["total_tokens"] == 3 * 1020
        seen = [e.artifact_update.artifact for e in stream.events if e.HasField("artifact_update")]
        statuses = [to_json(a.parts[0].data)["status"] for a in seen if a.name == SHELL]
        assert statuses[0] in ("pending", "running")
        assert statuses.count("completed") == 2

    await on_every_line(clients, body)


async def test_parallel_tool_calls(either: PythonClient) -> None:
    task, _ = await every_way(either, f"[[parallel]] {bash('one')} {bash('two')} {bash('three')}")
    assert shown(task) == [
        echoed("one"),
        echoed("two"),
        echoed("three"),
        ("answer", "TOOL RESULT: three\n"),
    ]


async def test_a_failed_tool_call_is_shown_as_such(
    either: PythonClient, opencode: Upstream
) -> None:
    task, _ = await every_way(
        either, '[[tool:read {"filePath": "nosuch.txt"}]] [[text:Never mind.]]'
    )
    named = "nosuch.txt" if is_2() else f"{opencode.workspace}/nosuch.txt"
    missing = f"File not found: {named}"
    assert shown(task) == [
        tool("read", "error", input={"filePath": "nosuch.txt"}, error=missing),
        ("answer", "Never mind."),
    ]


async def test_a_sub_agent_works_for_the_answer_but_does_not_speak_in_it(
    clients: list[PythonClient],
) -> None:
    given = {
        "description": "Look around",
        "prompt": "[[usage:500:7]] [[text:The child speaks.]]",
        "subagent_type": "general",
    }
    asked = ask(f"[[tool:task {json.dumps(given)}]] [[usage:1000:20]] [[text:The parent speaks.]]")

    async def body(client: PythonClient) -> None:
        async with client.stream(asked) as stream:
            tasks = await asyncio.gather(client.send(asked), stream.rest())
        for task in tasks:
            [(name, child), spoken] = shown(task)
            assert name == TASK
            assert child["status"] == "completed"
            assert child["input"] == tool_input(**given)
            assert "The child speaks." in child["output"]
            assert spoken == ("answer", "The parent speaks.")
            usage = shared(task)["usage"]
            assert (usage["input_tokens"], usage["output_tokens"]) == (2500, 47)
            assert facts(await client.get(task.id)) == facts(task)

    await on_every_line(clients, body)


async def test_what_a_sub_agent_does_is_reported_with_its_name_from_its_beginning(
    either: PythonClient,
) -> None:
    look = {"command": "echo seen", "description": "Looks around"}
    given = {
        "description": "Explore",
        "prompt": f"[[tool:bash {json.dumps(look)}]] [[text:I saw it.]]",
        "subagent_type": "general",
    }
    async with either.stream(ask(f"[[tool:task {json.dumps(given)}]] [[text:Done.]]")) as stream:
        task = await stream.rest()
    told = stream.all_progress
    others = [progress for progress in told if "subagent" in progress]
    assert [(p["type"], p["status"]) for p in others] == [
        ("step-start", "started"),
        ("tool-call", "running"),
        ("tool-call", "completed"),
        ("step-finish", "completed"),
        ("step-start", "started"),
        ("step-finish", "completed"),
    ]
    [called] = [a for a in task.artifacts if a.name == TASK]
    call = to_json(called.parts[0].data)
    for progress in others:
        who = progress["subagent"]
        assert (who["agent"], who["call_id"]) == ("general", call["call_id"])
        assert who["session_id"] in call["output"]
        assert who["session_id"] != shared(task)["session"]["id"]
    assert {(p["tool"], p["title"]) for p in others if "tool" in p} >= {(BASH, "Looks around")}
    [running, completed] = [p for p in others if p["type"] == "tool-call"]
    assert "ended_at" not in running
    assert running["started_at"] == completed["started_at"] <= completed["ended_at"]
    own = [(p["type"], p["message_id"]) for p in told if "subagent" not in p]
    begun, ended = ([m for kind, m in own if kind == k] for k in ("step-start", "step-finish"))
    assert begun == ended, "a step and its end name the same message"
    assert len(begun) == 2


async def test_usage_is_reported_however_a_task_ends(either: PythonClient, gate: Gate) -> None:
    first = '[[tool:bash {"command": "echo one", "description": "d"}]]'
    async with either.stream(ask(f"{first} {gate} [[usage:1000:20]]")) as stream:
        await stream.until(shows(SHELL, gate.command))
        canceled = await either.cancel(stream.task.id)
        streamed = await stream.rest()
    assert state(canceled) == "canceled"
    one = {"input_tokens": 1000, "output_tokens": 20, "total_tokens": 1020, "cost": 0.00104}
    # OpenCode 2 tells also what a step has used whose call is interrupted.
    told = {name: 2 * figure for name, figure in one.items()} if is_2() else one
    assert shared(canceled)["usage"] == told | ({} if is_2() else {"unreported_steps": 1})
    assert shared(streamed)["usage"] == shared(canceled)["usage"]
    nothing = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
    failed = await either.send(ask("[[error:400]]"))
    # OpenCode 2 begins a step before it asks the model.
    unknown = {"unreported_steps": 1} if is_2() else {}
    assert (state(failed), shared(failed)["usage"]) == ("failed", nothing | unknown)
    async with either.stream(ask("[[hangmid:1]] Hello")) as stream:
        await stream.until(shows("answer"))
        stopped = await either.cancel(stream.task.id)
    assert shared(stopped)["usage"] == nothing | {"unreported_steps": 1}


async def test_todos_are_progress(either: PythonClient) -> None:
    require("todos")
    todos = (
        '[{"content": "Look", "status": "completed", "priority": "high"},'
        ' {"content": "Leap", "status": "pending", "priority": "low"}]'
    )
    _, stream = await every_way(either, f'[[tool:todowrite {{"todos": {todos}}}]] [[text:Noted.]]')
    assert [name for name, _ in shown(stream.task)] == ["tool:todowrite", "answer"]
    assert stream.progress == [
        {
            "type": "todo",
            "status": "updated",
            "todos": [
                {"content": "Look", "status": "completed", "priority": "high"},
                {"content": "Leap", "status": "pending", "priority": "low"},
            ],
        }
    ]


async def test_changed_files_are_shown_as_a_diff(
    editing_either: PythonClient, snapshot_opencode: Upstream
) -> None:
    name = f"notes/greeting-{uuid.uuid4()}.txt"
    file = snapshot_opencode.workspace / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("one\ntwo\nthree\n")
    read = f'[[tool:read {{"filePath": "{name}"}}]]'
    edit = f'[[tool:edit {{"filePath": "{name}", "oldString": "two", "newString": "TWO"}}]]'
    async with editing_either.stream(ask(f"{read} {edit} [[text:Done.]]")) as stream:
        task = await stream.rest()
    assert [name for name, _ in shown(task)] == ["tool:read", "tool:edit", "changes", "answer"]
    diff, files = shown(task)[-2][1]
    before, after = (f"a/{name}", f"b/{name}") if is_2() else (f"{name}\t", f"{name}\t")
    assert diff.splitlines()[2 if not is_2() else -7 :] == [
        f"--- {before}",
        f"+++ {after}",
        "@@ -1,3 +1,3 @@",
        " one",
        "-two",
        "+TWO",
        " three",
    ]
    assert files == {
        "files": [{"file": name, "status": "modified", "additions": 1, "deletions": 1}]
    }
    if editing_either.line.version == "1.0":
        assert task.artifacts[-2].parts[0].media_type == "text/x-diff"
    assert facts(await editing_either.get(task.id)) == facts(task)
    assert file.read_text() == "one\nTWO\nthree\n"


async def test_a_new_file_is_a_change_too(editing_either: PythonClient) -> None:
    name = f"notes/new-{uuid.uuid4()}.txt"
    write = f'[[tool:write {{"filePath": "{name}", "content": "first\\nsecond\\n"}}]]'
    task = await editing_either.send(ask(f"{write} [[text:Done.]]"))
    diff, files = shown(task)[-2][1]
    assert diff.endswith("@@ -0,0 +1,2 @@\n+first\n+second\n")
    assert files == {"files": [{"file": name, "status": "added", "additions": 2, "deletions": 0}]}


async def test_the_changes_of_a_steered_task_are_shown_together_at_the_end(
    snapshot_service: Service,
) -> None:
    names = [f"notes/{word}-{uuid.uuid4()}.txt" for word in ("one", "two")]
    one, two = (f'[[tool:write {{"filePath": "{n}", "content": "x\\n"}}]]' for n in names)
    async with PythonClient.connect(snapshot_service, LINES[0]) as client:
        async with client.stream(ask(f"[[start:1000]] {one} [[text:One.]]")) as stream:
            await stream.until(reaches("working"))
            await client.send(ask(f"{two} [[text:Two.]]", task=stream.task.id))
            task = await stream.rest()
        assert facts(await client.get(task.id)) == facts(task)
    [*_, (name, (_, files)), answer] = shown(task)
    assert (name, answer) == ("changes", ("answer", "Two."))
    assert [file["file"] for file in files["files"]] == names


async def test_who_takes_only_text_gets_tool_calls_as_text(client: PythonClient) -> None:
    task, stream = await every_way(client, bash("one"), modes=["text/plain"])
    assert shown(task) == [
        (SHELL, f"[{BASH}] completed: echo one\none\n"),
        ("answer", "TOOL RESULT: one\n"),
    ]
    for event in stream.events:
        for part in event.artifact_update.artifact.parts:
            assert part.WhichOneof("content") == "text"


async def test_a_task_reads_the_same_on_every_line(clients: list[PythonClient]) -> None:
    task = await clients[0].send(ask(f"[[reason:2]] [[say:Look.]] {bash('one')}"))
    views = [facts(await client.get(task.id)) for client in clients]
    assert views == [facts(task)] * len(LINES)


async def test_all_lines_follow_one_task_to_the_same_end(
    clients: list[PythonClient], gate: Gate
) -> None:
    async with clients[0].stream(ask(f"{gate} [[tokens:64]] [[delay:5]]")) as stream:
        await stream.until(reaches("working"))
        async with AsyncExitStack() as stack:
            following = [
                await stack.enter_async_context(client.resubscribe(stream.task.id))
                for client in clients
            ]
            await asyncio.gather(*(reader.next() for reader in following))
            gate.open()
            views = await asyncio.gather(*(reader.rest() for reader in (stream, *following)))
    assert shown(views[0]) == [gate.passed, ("answer", WORDS * 8)]
    assert [facts(view) for view in views] == [facts(views[0])] * (1 + len(LINES))
