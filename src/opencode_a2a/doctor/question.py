"""One small question to the model: through a running service, or to OpenCode itself.

A question to OpenCode is asked in a session that is removed afterwards. A question to a service is
an ordinary task of the caller's, and stays as long as tasks are kept.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from ..errors import UpstreamError
from ..opencode.answers import read
from ..opencode.http import Endpoint, Http
from ..opencode.v1 import wire
from ..opencode.v1.session import StoredMessage
from ..outbound.failures import PeerError
from .judgement import Answer, Arrival
from .web import refusal, web_client

PROMPT = "Answer with the single word: ready"
ANSWER_SECONDS = 60.0
CANCEL_SECONDS = 5.0
DENY_ALL = {"permission": "*", "pattern": "*", "action": "deny"}  # a question needs no tools
ENDED = frozenset(
    f"TASK_STATE_{name}"
    for name in (
        *("COMPLETED", "FAILED", "CANCELED", "REJECTED"),
        *("INPUT_REQUIRED", "AUTH_REQUIRED"),  # nobody is here to answer
    )
)


async def ask_opencode(
    endpoint: Endpoint, directory: Path, *, prompt: str, more: Mapping[str, str]
) -> Answer:
    """Ask in a session of its own, and remove that."""
    began = asyncio.get_running_loop().time()
    where = {"directory": str(directory)}
    title = {"title": "opencode-a2a doctor", "permission": [DENY_ALL]}
    try:
        async with Http.open(endpoint, timeout=ANSWER_SECONDS) as http:
            made = await http.call("POST", "session", query=where, body=title)
            session = read(wire.SessionInfo, made).id
            try:
                body = {"parts": [{"type": "text", "text": prompt}], **more}
                answer = await http.call("POST", "session", session, "message", body=body)
            finally:
                with suppress(UpstreamError):
                    await http.call("POST", "session", session, "abort", timeout=CANCEL_SECONDS)
                    await http.call("DELETE", "session", session, timeout=CANCEL_SECONDS)
        message = read(StoredMessage, answer)
    except UpstreamError as exc:
        return Answer(prompt, problem=exc.message)
    if message.info.error is not None:
        return Answer(prompt, problem=wire.problem(message.info.error).message)
    text = "".join(part.text for part in message.parts if part.type == "text")
    return Answer(prompt, text, seconds=asyncio.get_running_loop().time() - began)


@dataclass(slots=True)
class StreamedTask:
    """A streamed task, as far as it has arrived."""

    arrivals: list[Arrival] = field(default_factory=list)
    task_id: str | None = None
    state: str = ""
    said: str = ""  # with the last state
    text: str = ""

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    def take(self, event: Mapping[str, Any], at: float) -> None:
        """An event in the JSON of A2A 1.0."""
        task, update = event.get("task") or {}, event.get("statusUpdate") or {}
        status = task.get("status") or update.get("status") or {}
        self.task_id = self.task_id or task.get("id") or update.get("taskId")
        self.arrivals.append(Arrival(at, _seconds(status.get("timestamp"))))
        if status:
            self.state = str(status.get("state", ""))
            self.said = _text((status.get("message") or {}).get("parts"))
        artifact = (event.get("artifactUpdate") or {}).get("artifact") or {}
        self.text += _text(artifact.get("parts"))


def _seconds(timestamp: Any) -> float | None:
    try:
        return datetime.fromisoformat(timestamp).timestamp()
    except (TypeError, ValueError):
        return None


def _text(parts: Any) -> str:
    return "".join(str(part.get("text", "")) for part in parts or [] if isinstance(part, dict))


async def ask_service(
    url: str, headers: tuple[tuple[str, str], ...], prompt: str
) -> tuple[Answer, StreamedTask]:
    """Ask as any client does, and note when each event arrives. PeerError: there is no stream."""
    streamed, clock = StreamedTask(), asyncio.get_running_loop().time
    began = clock()
    message = {"messageId": str(uuid4()), "role": "ROLE_USER", "parts": [{"text": prompt}]}
    async with web_client() as http:
        http.headers.update(dict(headers))
        try:
            async with (
                asyncio.timeout(ANSWER_SECONDS),
                http.stream(
                    "POST",
                    f"{url}/message:stream",
                    json={"message": message},
                    headers={"a2a-version": "1.0"},
                    timeout=httpx.Timeout(10.0, read=ANSWER_SECONDS),
                ) as response,
            ):
                if response.status_code != 200:
                    raise refusal(response.status_code, url)
                async for event in _events(response):
                    streamed.take(event, clock())
        except TimeoutError:
            problem = f"There was no answer within {ANSWER_SECONDS:g} s."
            return Answer(prompt, problem=problem), streamed
        finally:
            if streamed.task_id is not None and not streamed.ended:
                with suppress(PeerError, httpx.HTTPError):
                    path = f"{url}/tasks/{streamed.task_id}:cancel"
                    await http.post(path, json={}, timeout=CANCEL_SECONDS)
    if streamed.state != "TASK_STATE_COMPLETED":
        state = streamed.state.removeprefix("TASK_STATE_").lower().replace("_", "-") or "unknown"
        return Answer(prompt, problem=streamed.said or f"The task is {state}."), streamed
    return Answer(prompt, streamed.text, seconds=clock() - began), streamed


async def _events(response: httpx.Response) -> AsyncIterator[Mapping[str, Any]]:
    async for line in response.aiter_lines():
        if line.startswith("data:"):
            with suppress(ValueError):
                event = json.loads(line[5:])
                if isinstance(event, dict):
                    yield event
