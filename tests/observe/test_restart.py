"""One trace, from a client through a service that is killed, to the last tool call."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import httpx

from tests.observe.collector import collecting
from tests.running import Service, Upstream, service

TRACE, CLIENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
HEADERS = {"A2A-Version": "1.0", "traceparent": f"00-{TRACE}-{CLIENT}-01"}
SLOW = {"command": "sleep 6; echo slept", "description": "sleep"}
LAST = {"command": "echo done", "description": "say done"}
TEXT = f"[[tool:bash {json.dumps(SLOW)}]] [[tool:bash {json.dumps(LAST)}]] [[text:Finished.]]"


def begin(run: Service) -> str:
    """Send a message, and read its stream until a tool runs; the id of its task."""
    message = {"messageId": str(uuid.uuid4()), "role": "ROLE_USER", "parts": [{"text": TEXT}]}
    body = {"message": message, "configuration": {"returnImmediately": True}}
    with httpx.Client(base_url=run.url, headers=run.headers | HEADERS, timeout=60) as client:
        task: dict[str, Any] = client.post("/message:send", json=body).json()["task"]
        with client.stream("GET", f"/tasks/{task['id']}:subscribe") as answer:
            for line in answer.iter_lines():
                if "sleep 6" in line and "running" in line:
                    return str(task["id"])
    raise AssertionError("the tool never ran")


def until_ended(run: Service, task_id: str) -> dict[str, Any]:
    with httpx.Client(base_url=run.url, headers=run.headers | HEADERS, timeout=120) as client:
        client.get(f"/tasks/{task_id}:subscribe").read()  # lasts as long as the task
        task: dict[str, Any] = client.get(f"/tasks/{task_id}").json()
        return task


def test_a_task_keeps_its_trace_when_the_service_is_killed(
    opencode: Upstream, tmp_path: Path
) -> None:
    with collecting() as collector:
        settings = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "OTEL_BSP_SCHEDULE_DELAY": "200",
            "A2A_STREAM_BLOCKS": "all",
        }
        with service(opencode, tmp_path, **settings) as first:
            task_id = begin(first)
            collector.wait_for_names("SendMessage", "OpenCode POST /session/{id}/prompt_async")
            first.program.kill()
        with service(opencode, tmp_path, **settings) as second:
            assert until_ended(second, task_id)["status"]["state"] == "TASK_STATE_COMPLETED"
        spans = collector.wait_for(
            lambda spans: (
                len([each for each in spans if each.name == "tool bash"]) == 2
                and any(each.name == "task" for each in spans)
            )
        )
    assert {span.trace for span in spans} == {TRACE}
    by_name = {span.name: span for span in spans}
    request, task, turn = (by_name[name] for name in ("SendMessage", "task", "turn"))
    assert request.parent == CLIENT
    assert task.parent == request.span
    assert turn.parent == task.span
    tools = [span for span in spans if span.name == "tool bash"]
    assert {span.parent for span in tools} == {turn.span}
    assert tools[0].end - tools[0].start > 5e9, "with the times of OpenCode"
    prompt = by_name["OpenCode POST /session/{id}/prompt_async"]
    assert prompt.parent == turn.span
    assert by_name["OpenCode GET /session/status"].parent == turn.span, "by the second process"
    assert task.attributes["a2a.task.id"] == task_id
    assert "Finished" not in str(spans)
