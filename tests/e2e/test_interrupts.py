"""Where the agent needs a person, the task says so, takes an answer, and goes on."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

from tests.e2e.asks import (
    HITL,
    HOW,
    INTERACTIVE,
    Callbacks,
    Mark,
    data,
    interrupt,
    kagent,
    reply,
    request_id,
    sub_agent,
    tool,
)
from tests.e2e.behind import Behind
from tests.e2e.clients import (
    LINES,
    Line,
    PythonClient,
    ask,
    connect_all,
    extensions_header,
    on_every_line,
)
from tests.e2e.protojson import to_json
from tests.e2e.seen import BASH, PATIENCE, answer, reaches, says, shared, shown, state
from tests.features import is_2
from tests.running import Service, Upstream

COLOUR = {
    "question": "Which color?",
    "header": "Color",
    "options": [
        {"label": "Red", "description": "like a rose"},
        {"label": "Blue", "description": "like the sea"},
    ],
}
SIZES = {**COLOUR, "question": "Which ones?", "header": "Several", "multiple": True}
NAME = {"question": "What name?", "header": "Name", "options": []}


# -- asked


async def test_a_permission_is_asked_for_and_dies_with_the_task(
    asking: PythonClient, asking_opencode: Upstream, behind_asking: Behind
) -> None:
    mark = Mark(asking_opencode)
    async with asking.stream(ask(str(mark))) as stream:
        event = await stream.until(reaches("input-required"))
        assert await stream.next() is None, "the stream ends where a person is needed"
    told = interrupt(event)
    assert told.pop("request_id").startswith("per_")
    assert told.pop("expires_at").endswith("Z")
    assert told == {
        "type": "permission",
        "phase": "asked",
        "details": {
            "permission": BASH,
            "patterns": [mark.command],
            "title": "Leaves a mark",
            "command": mark.command,
            "always": ["touch *"],
        },
    }
    task = await asking.get(stream.task.id)
    assert (state(task), says(task)) == (
        "input-required",
        f"The agent asks for permission: {BASH}\n\n    {mark.command}\n\n"
        "The agent says: Leaves a mark\n\n"
        f"Answer yes for this once, always (from now on also touch *), or no. {HOW}",
    )
    assert says(stream.task) == says(task)
    assert shared(task)["interrupt"]["type"] == "permission"
    session = shared(task)["session"]["id"]
    assert len(await behind_asking.waiting(session)) == 1

    canceled = await asking.cancel(task.id)
    assert state(canceled) == "canceled"
    assert "interrupt" not in shared(canceled)
    assert await behind_asking.waiting(session) == []
    assert not await behind_asking.busy(session)
    assert not mark.made


async def test_a_question_is_asked_with_its_options(client: PythonClient, behind: Behind) -> None:
    async with client.stream(ask(tool("question", questions=[COLOUR]))) as stream:
        event = await stream.until(reaches("input-required"))
        task = await stream.rest()
    assert says(task) == (
        "The agent asks:\n\nWhich color?\n1. Red: like a rose\n2. Blue: like the sea\n\n"
        "Answer with an option (its name or its number), or in your own words, or with reject to "
        "stop the agent."
    )
    told = interrupt(event)
    assert told.pop("request_id").startswith("frm_" if is_2() else "que_")
    [question] = told["details"]["questions"]
    assert (told["type"], told["phase"]) == ("question", "asked")
    assert {name: question[name] for name in COLOUR} == COLOUR
    assert [name for name, _ in shown(task)] == ["tool:question"]
    stored = await client.get(task.id)
    assert (state(stored), says(stored)) == ("input-required", says(task))
    assert state(await client.cancel(task.id)) == "canceled"
    assert await behind.waiting(shared(stored)["session"]["id"]) == []


# -- answered by an ordinary message


async def test_a_yes_lets_it_happen_and_a_stream_tells_the_rest(
    asking: PythonClient, asking_opencode: Upstream, behind_asking: Behind
) -> None:
    mark = Mark(asking_opencode)
    paused = await asking.send(ask(f"{mark} [[text:All done.]]"))
    assert (state(paused), mark.made) == ("input-required", False)
    unclear = await asking.send(reply(paused, "yes, but not there"))
    assert (state(unclear), mark.made) == ("input-required", False)
    assert says(unclear).startswith("“yes, but not there” is neither yes, always nor no.")
    assert says(unclear).endswith(says(paused)), "what is asked is asked again"
    async with asking.stream(reply(paused, "Yes.")) as stream:
        done = await stream.rest()
    assert (state(done), answer(done)) == ("completed", "All done.")
    assert mark.made
    assert done.id == paused.id
    assert "interrupt" not in shared(done)
    session = shared(done)["session"]["id"]
    assert len([role for role, _ in await behind_asking.said(session) if role == "user"]) == 1
    kept = await asking.get(done.id)
    _, asked, *replies = [message.parts[0].text for message in kept.history]
    assert asked.startswith(f"The agent asks for permission: {BASH}")
    assert replies == ["yes, but not there", "Yes."]


async def test_an_edit_is_shown_and_always_holds_for_its_context_only(
    asking_either: PythonClient, asking_opencode: Upstream
) -> None:
    def write(name: str) -> str:
        return tool("write", filePath=name, content="hello\n")

    asking = asking_either
    one, two, three = (f"note-{uuid.uuid4()}.txt" for _ in range(3))
    paused = await asking.send(ask(write(one)))
    assert state(paused) == "input-required"
    assert says(paused).startswith("The agent asks for permission: edit")
    assert one in says(paused)
    assert "\n+hello\n" in says(paused)
    details = shared(paused)["interrupt"]["details"]
    assert details["permission"] == "edit"
    assert "\n+hello\n" in details["diff"]
    assert state(await asking.send(reply(paused, "always"))) == "completed"
    again = await asking.send(ask(write(two), context=paused.context_id))
    assert state(again) == "completed", "it is not asked again"
    other = await asking.send(ask(write(three)))
    assert state(other) == "input-required", "but in another context it is"
    made = [(asking_opencode.workspace / name).exists() for name in (one, two, three)]
    assert made == [True, True, False]
    await asking.cancel(other.id)


async def test_questions_are_answered_line_by_line_or_as_data(asking_either: PythonClient) -> None:
    questions = tool("question", questions=[COLOUR, SIZES, NAME])
    first, second = await asyncio.gather(
        asking_either.send(ask(questions)), asking_either.send(ask(questions))
    )
    assert state(first) == state(second) == "input-required"
    assert "1. Red: like a rose" in says(first)
    assert "Answer with one line for each question" in says(first)
    short = await asking_either.send(reply(first, "Red"))
    assert state(short) == "input-required"
    assert "needs 3 lines" in says(short)
    by_lines = await asking_either.send(reply(first, "2\nRed, blue\nAda Lovelace"))
    answers = [["Blue"], ["Red", "Blue"], ["Ada Lovelace"]]
    by_data = await asking_either.send(reply(second, data({"answers": answers})))
    for done in (by_lines, by_data):
        assert state(done) == "completed"
        for words in ("Blue", "Red, Blue", "Ada Lovelace"):
            assert words in answer(done)
    assert answer(by_lines) == answer(by_data)


async def test_a_sub_agent_is_answered_in_its_parents_task(
    asking_either: PythonClient, asking_opencode: Upstream, behind_asking: Behind
) -> None:
    asking = asking_either
    mark = Mark(asking_opencode)
    paused = await asking.send(ask(sub_agent(str(mark))))
    assert state(paused) == "input-required"
    assert f"\n\n    {mark.command}\n\n" in says(paused)
    session = shared(paused)["session"]["id"]
    waiting = [w for w in await behind_asking.waiting_anywhere() if w["id"] == request_id(paused)]
    assert waiting[0]["sessionID"] != session
    done = await asking.send(reply(paused, data({"reply": "once"})))
    assert (state(done), mark.made) == ("completed", True)


async def test_a_refusal_stops_the_run_and_one_with_a_reason_does_not(
    asking_either: PythonClient, asking_opencode: Upstream
) -> None:
    asking = asking_either
    mark = Mark(asking_opencode)
    first, second = await asyncio.gather(asking.send(ask(str(mark))), asking.send(ask(str(mark))))
    stopped = await asking.send(reply(first, "no"))
    assert (state(stopped), says(stopped)) == (
        "canceled",
        "The run stopped because a request of the agent was refused.",
    )
    went_on = await asking.send(reply(second, "No, use another name."))
    assert state(went_on) == "completed"
    assert "use another name." in answer(went_on)
    assert not mark.made


async def test_two_at_once_are_both_shown_and_answered_by_id(
    asking_either: PythonClient, asking_opencode: Upstream
) -> None:
    one, two = Mark(asking_opencode), Mark(asking_opencode)
    async with asking_either.stream(ask(f"[[parallel]] {one} {two}")) as stream:
        await stream.until(reaches("input-required"))
        await stream.rest()
    task = await asking_either.get(stream.task.id)
    async with asyncio.timeout(PATIENCE):
        while "interrupts" not in shared(task):  # the second may be asked a moment later
            await asyncio.sleep(0.02)
            task = await asking_either.get(task.id)
    asked = {i["details"]["command"]: i["request_id"] for i in shared(task)["interrupts"]}
    assert says(task).startswith("The agent waits for 2 decisions.")
    for mark in (one, two):
        assert f"[{asked[mark.command]}] The agent asks for permission: {BASH}" in says(task)
    async with asking_either.stream(reply(task, f"{asked[two.command]}: yes")) as rest:
        half = await rest.rest()
    assert (state(half), one.made, request_id(half)) == (
        "input-required",
        False,
        asked[one.command],
    )
    done = await asking_either.send(reply(task, f"{asked[one.command]} yes"))
    assert (state(done), one.made, two.made) == ("completed", True, True)


# -- by extension


async def test_who_activates_the_extension_keeps_the_stream(
    asking_service: Service, asking_opencode: Upstream, line: Line
) -> None:
    mark = Mark(asking_opencode)
    name = extensions_header(line)
    activated: dict[str, Any] = {name.replace("-", "_"): INTERACTIVE}
    async with (
        PythonClient.connect(asking_service, line, **activated) as client,
        Callbacks.of(asking_service) as callbacks,
        client.stream(ask(f"{mark} {mark}")) as stream,
    ):
        for _ in range(2):
            event = await stream.until(reaches("input-required"))
            asked = interrupt(event)
            assert asked["phase"] == "asked"
            taken = await callbacks.permit(asked["request_id"], "once")
            assert taken == {"ok": True, "request_id": asked["request_id"]}
            resolved = await stream.until(interrupt)
            assert interrupt(resolved)["request_id"] == asked["request_id"]
            assert (interrupt(resolved)["phase"], interrupt(resolved)["resolution"]) == (
                "resolved",
                "once",
            )
        done = await stream.rest()
        assert (state(done), mark.made) == ("completed", True)
        echoed = client.wire.exchanges[-1].response.headers[name]
        assert INTERACTIVE in echoed.split(", ")


async def test_kagents_form_is_spoken(
    asking_service: Service, asking_opencode: Upstream, line: Line
) -> None:
    mark = Mark(asking_opencode)
    async with PythonClient.connect(asking_service, line, a2a_extensions=HITL) as client:
        paused = await client.send(ask(f"{mark} {tool('question', questions=[COLOUR])}"))
        asked = to_json(paused.status.message.metadata)[HITL]
        assert asked["type"] == "tool_approval_request"
        assert asked["hint"] == says(paused)
        [call] = asked["tools"]
        assert (call["id"], call["name"]) == (request_id(paused), BASH)
        assert call["args"]["command"] == mark.command
        assert call["call_id"].startswith("call_")
        assert list(paused.status.message.extensions) == [HITL]
        approved = {
            "type": "tool_approval_response",
            "approvals": [{"id": call["id"], "approved": True}],
        }
        async with client.stream(kagent(paused, approved)) as stream:
            paused = await stream.rest()  # it may begin when the question is there already
        assert (state(paused), mark.made) == ("input-required", True)
        asked = to_json(paused.status.message.metadata)[HITL]
        [question] = asked["questions"]
        assert (asked["type"], question["choices"]) == ("ask_user_request", ["Red", "Blue"])
        answers = [{"answer": ["Green"]}]
        response = {"type": "ask_user_response", "id": asked["id"], "answers": answers}
        done = await client.send(kagent(paused, response))
        assert state(done) == "completed"
        assert "Green" in answer(done)


async def test_a_stream_that_is_kept_for_a_person_is_not_cut(
    asking_service: Service, asking_opencode: Upstream
) -> None:
    """For longer than two signs of life: a common client gives up after five seconds of silence."""

    async def think(client: PythonClient) -> None:
        mark = Mark(asking_opencode)
        async with client.stream(ask(str(mark))) as stream:
            await stream.until(reaches("input-required"))
            heard, reading = client.wire.exchanges[-1], asyncio.create_task(stream.rest())
            async with asyncio.timeout(PATIENCE):
                while heard.body.count(b": keep-alive") < 2:
                    heard.news.clear()
                    await heard.news.wait()
            assert not reading.done()
            await client.send(reply(stream.task, "yes"))
            assert (state(await reading), mark.made) == ("completed", True)

    async with (
        PythonClient.connect(asking_service, LINES[0], a2a_extensions=INTERACTIVE) as one,
        PythonClient.connect(asking_service, LINES[3], x_a2a_extensions=INTERACTIVE) as two,
    ):
        await on_every_line([one, two], think)


# -- what may be asked


async def test_a_place_outside_the_workspace_is_asked_for_before_the_edit(
    asking_service: Service, tmp_path: Path
) -> None:
    async def body(client: PythonClient) -> None:
        outside = tmp_path / f"{client.line}.txt"
        paused = await client.send(
            ask(tool("write", filePath=str(outside), content="a word from outside\n"))
        )
        assert says(paused).startswith("The agent asks for permission: external_directory ")
        assert str(tmp_path) in says(paused)
        again = await client.send(reply(paused, "yes"))
        assert state(again) == "input-required"
        assert says(again).startswith("The agent asks for permission: edit")
        assert request_id(again) != request_id(paused)
        done = await client.send(reply(again, "yes"))
        assert (state(done), outside.read_text()) == ("completed", "a word from outside\n")

    async with connect_all(asking_service) as clients:
        await on_every_line((clients[0], clients[3]), body)
