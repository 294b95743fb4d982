"""Where the agent needs a person, the task says so, and nothing happens behind its back."""

from __future__ import annotations

import json
import uuid
from typing import Any

from a2a.types.a2a_pb2 import StreamResponse

from tests.e2e.behind import Behind
from tests.e2e.clients import PythonClient, ask
from tests.e2e.protojson import to_json
from tests.e2e.seen import reaches, says, shared, shown, state
from tests.running import Upstream

QUESTIONS = [
    {
        "question": "Which color?",
        "header": "Color",
        "options": [
            {"label": "Red", "description": "like a rose"},
            {"label": "Blue", "description": "like the sea"},
        ],
    }
]


def interrupt(event: StreamResponse) -> dict[str, Any]:
    found: dict[str, Any] = to_json(event.status_update.metadata)["shared"]["interrupt"]
    return found


async def test_a_permission_is_asked_for_and_dies_with_the_task(
    asking: PythonClient, asking_opencode: Upstream, behind_asking: Behind
) -> None:
    mark = f"ran-{uuid.uuid4()}"
    call = json.dumps({"command": f"touch {mark}", "description": "Leaves a mark"})
    async with asking.stream(ask(f"[[tool:bash {call}]]")) as stream:
        event = await stream.until(reaches("input-required"))
        assert await stream.next() is None, "the stream ends where a person is needed"
    told = interrupt(event)
    assert told.pop("request_id").startswith("per_")
    assert told == {
        "type": "permission",
        "phase": "asked",
        "details": {
            "permission": "bash",
            "patterns": [f"touch {mark}"],
            "command": f"touch {mark}",
        },
    }
    task = await asking.get(stream.task.id)
    question = f"The agent asks for permission: bash\n\n    touch {mark}"
    assert (state(task), says(task)) == ("input-required", question)
    assert shared(task)["interrupt"]["type"] == "permission"
    session = shared(task)["session"]["id"]
    assert len(await behind_asking.waiting(session)) == 1

    canceled = await asking.cancel(task.id)
    assert state(canceled) == "canceled"
    assert "interrupt" not in shared(canceled)
    assert await behind_asking.waiting(session) == []
    assert not await behind_asking.busy(session)
    assert not (asking_opencode.workspace / mark).exists()


async def test_a_waiting_client_is_answered_when_a_permission_is_needed(
    asking: PythonClient, behind_asking: Behind
) -> None:
    name = f"note-{uuid.uuid4()}.txt"
    call = json.dumps({"filePath": name, "content": "hello\n"})
    task = await asking.send(ask(f"[[tool:write {call}]]"))
    assert state(task) == "input-required"
    assert says(task).startswith("The agent asks for permission: edit")
    assert "+hello" in says(task)
    details = shared(task)["interrupt"]["details"]
    assert details["permission"] == "edit"
    assert "+hello" in details["diff"]
    await asking.cancel(task.id)
    assert await behind_asking.waiting(shared(task)["session"]["id"]) == []


async def test_the_permission_of_a_sub_agent_is_asked_for_too(
    asking: PythonClient, behind_asking: Behind
) -> None:
    child = "[[tool:bash {'command': 'date', 'description': 'Looks'}]]".replace("'", '"')
    call = json.dumps({"description": "Look", "prompt": child, "subagent_type": "general"})
    task = await asking.send(ask(f"[[tool:task {call}]]"))
    assert state(task) == "input-required"
    assert says(task) == "The agent asks for permission: bash\n\n    date"
    child_session = (await behind_asking.waiting_anywhere())[0]["sessionID"]
    assert child_session != shared(task)["session"]["id"]
    assert state(await asking.cancel(task.id)) == "canceled"
    assert await behind_asking.waiting_anywhere() == []


async def test_a_question_is_asked_with_its_options(client: PythonClient, behind: Behind) -> None:
    asked = json.dumps({"questions": QUESTIONS})
    async with client.stream(ask(f"[[tool:question {asked}]]")) as stream:
        event = await stream.until(reaches("input-required"))
        task = await stream.rest()
    assert says(task) == (
        "The agent asks:\n\nWhich color?\n1. Red: like a rose\n2. Blue: like the sea"
    )
    told = interrupt(event)
    assert told.pop("request_id").startswith("que_")
    [question] = told["details"]["questions"]
    assert (told["type"], told["phase"]) == ("question", "asked")
    assert {name: question[name] for name in QUESTIONS[0]} == QUESTIONS[0]
    assert [name for name, _ in shown(task)] == ["tool:question"]
    stored = await client.get(task.id)
    assert (state(stored), says(stored)) == ("input-required", says(task))
    assert state(await client.cancel(task.id)) == "canceled"
    assert await behind.waiting(shared(stored)["session"]["id"]) == []
