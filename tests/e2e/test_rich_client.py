"""What a client gets that activates stream hints, to show all of the agent's work."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest

from tests.api.forms import REST_1, RPC_1, Frame, Json, line_to
from tests.e2e.asks import bash, sub_agent
from tests.e2e.seen import BASH, TASK
from tests.running import Service

HINTS = "urn:a2a:stream-hints/v1"


@pytest.fixture
def hinted(asking_service: Service) -> Iterator[httpx.Client]:
    headers = asking_service.headers | {"a2a-extensions": HINTS}
    with line_to(asking_service, headers=headers) as client:
        yield client


def marks(frame: Frame) -> Json:
    found: Json = frame.body["metadata"]["shared"]
    return found


def decide(client: httpx.Client, request_id: str) -> None:
    params = {"request_id": request_id, "reply": "once"}
    body = {"jsonrpc": "2.0", "id": 1, "method": "a2a.interrupt.permission.reply"}
    assert "result" in client.post("/", json=body | {"params": params}).json()


def test_what_a_sub_agent_asks_is_in_the_history_and_the_answer_is_told_from_the_rest(
    asking_service: Service, hinted: httpx.Client
) -> None:
    work = sub_agent(bash("echo seen"))
    asked = REST_1.sending(f"[[say:Let me see.]] {work} [[text:Done.]]")
    with REST_1.following(hinted, "stream", asked) as events:
        frames = list(events)
    ask = marks(frames[-1])["interrupt"]
    parts = [frame.body["artifact"]["parts"][0] for frame in frames if frame.kind == "artifact"]
    [call] = {part["data"]["call_id"] for part in parts if "data" in part}
    who = ask["subagent"]
    assert (who["agent"], who["call_id"]) == ("general", call)
    text = frames[-1].body["status"]["message"]["parts"][0]["text"]
    assert text.startswith(f"The sub-agent general asks for permission: {BASH}")
    task_id = frames[0].body["id"]
    with REST_1.following(hinted, "subscribe", {"id": task_id}) as events:
        assert "history" in next(events).body, "and not what is still asked"
        decide(hinted, ask["request_id"])
        frames += events
    assert frames[-1].body["status"]["state"] == REST_1.state("completed")

    steps = [marks(f)["progress"] for f in frames if f.kind == "status" and "progress" in marks(f)]
    phases = {step["artifact_id"]: step["status"] for step in steps if step["type"] == "phase"}
    began = [step for step in steps if step["type"] == "step-start" and "subagent" not in step]
    answering = {"model": {"providerID": "demo", "modelID": "demo"}, "agent": "build"}
    assert all(answering.items() <= step.items() for step in began)
    usage = [step["usage"]["total_tokens"] for step in steps if step["type"] == "step-finish"]
    assert sum(usage) == marks(frames[-1])["usage"]["total_tokens"]
    assert len(usage) == 4, "two of the agent, two of its sub-agent"

    task = REST_1.get(hinted, task_id)
    assert answering.items() <= task["metadata"]["opencode"].items()
    shown = {a["parts"][0].get("text", a["name"]): a for a in task["artifacts"]}
    phase = {name: a["metadata"]["shared"]["stream"].get("phase") for name, a in shown.items()}
    assert phase == {"Let me see.": "commentary", TASK: None, "Done.": "answer"}
    ids = {a["artifactId"]: phase[text] for text, a in shown.items() if phase[text]}
    assert phases == ids, "the stream has said the same"
    tool = shown[TASK]["parts"][0]["data"]
    assert tool["started_at"] < tool["ended_at"]
    told = [(m["role"], m["parts"][0]["text"].partition("\n")[0]) for m in task["history"][1:]]
    assert told == [
        ("ROLE_AGENT", f"The sub-agent general asks for permission: {BASH}"),
        ("ROLE_AGENT", "Allowed once, by the caller."),
    ]
    assert task["history"][2]["metadata"]["shared"]["interrupt"]["by"] == "method"
    assert len(REST_1.get(hinted, task_id, historyLength=1)["history"]) == 1

    with line_to(asking_service) as plain:
        simple = RPC_1.get(plain, task_id)
    assert simple["metadata"]["opencode"] == task["metadata"]["opencode"]
    assert json.dumps(simple).count("ROLE_AGENT") == 0
    assert [a["parts"] for a in simple["artifacts"]] == [
        [{"text": "Let me see."}],
        [{"text": "Done."}],
    ]
