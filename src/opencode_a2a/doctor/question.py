"""One small question to the model: through a running service, or to OpenCode itself.

A question to OpenCode is asked in a session that is removed afterwards. A question to a service is
an ordinary task of the caller's, and stays as long as tasks are kept.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import uuid4

import httpx

from ..domain.events import BlockKind
from ..domain.turn import Turn
from ..domain.updates import BlockText
from ..domain.values import PermissionRule, Prompt, SessionRef, TaskState
from ..errors import UpstreamError
from ..opencode.agent import OpenCode
from ..opencode.api import Defaults
from ..opencode.http import Endpoint
from ..outbound.failures import PeerError
from .judgement import Answer, Arrival
from .web import refusal, web_client

PROMPT = "Answer with the single word: ready"
ANSWER_SECONDS = 60.0
CANCEL_SECONDS = 5.0
SILENCE_SECONDS = 1.0  # until it is read what became of the question
DENY_ALL = PermissionRule("*", "*", action="deny")  # a question needs no tools
TOO_LATE = f"There was no answer within {ANSWER_SECONDS:g} s."
ENDED = frozenset(
    f"TASK_STATE_{name}"
    for name in (
        *("COMPLETED", "FAILED", "CANCELED", "REJECTED"),
        *("INPUT_REQUIRED", "AUTH_REQUIRED"),  # nobody is here to answer
    )
)


async def ask_opencode(endpoint: Endpoint, defaults: Defaults, prompt: str) -> Answer:
    """Ask in a session of its own, and remove that."""
    began = asyncio.get_running_loop().time()
    try:
        async with OpenCode.connect([endpoint], defaults) as agent:
            await agent.available()
            ref = await agent.create("opencode-a2a doctor", "", rules=(DENY_ALL,))
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    answer = await _answer(agent, ref, prompt)
            finally:
                with suppress(UpstreamError, TimeoutError):
                    async with asyncio.timeout(CANCEL_SECONDS):
                        await agent.session(ref).abort(())
                        await agent.delete(ref)
    except TimeoutError:
        return Answer(prompt, problem=TOO_LATE)
    except UpstreamError as exc:
        return Answer(prompt, problem=exc.message)
    return replace(answer, seconds=asyncio.get_running_loop().time() - began)


async def _answer(agent: OpenCode, ref: SessionRef, prompt: str) -> Answer:
    session, message_id = agent.session(ref), agent.new_message_id()
    turn, blocks = Turn(ref.id, message_id), dict[str, str]()
    with await session.events() as events:
        await session.prompt(Prompt(message_id, (prompt,)))
        while turn.outcome is None:
            try:
                async with asyncio.timeout(SILENCE_SECONDS):
                    heard = await anext(events)
            except TimeoutError:
                heard = await session.read(message_id)
            for update in [update for event in heard for update in turn.feed(event)]:
                if isinstance(update, BlockText) and update.kind is BlockKind.TEXT:
                    before = blocks.get(update.block_id, "") if update.append else ""
                    blocks[update.block_id] = before + update.text
    if turn.outcome.state is not TaskState.COMPLETED:
        return Answer(prompt, problem=turn.outcome.message or "It did not answer.")
    return Answer(prompt, "".join(blocks.values()))


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
            return Answer(prompt, problem=TOO_LATE), streamed
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
