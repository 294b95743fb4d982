"""The clients of a cluster: they ask through a load balancer, never give up, and write down what
they were told.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.chaos.history import Final, History, Wanted
from tests.chaos.linear import ENDS, Kind, Operation
from tests.chaos.upstreams import Upstream
from tests.running import TOKEN

Json = dict[str, Any]

PATIENCE = 180.0  # seconds for a request to be answered at last
TASK_PATIENCE = 300.0  # seconds for a task to end
ANSWER_SECONDS = 10.0  # after which a client asks again
POLL_SECONDS = 0.3
HEADERS = {"authorization": f"Bearer {TOKEN}", "a2a-version": "1.0"}
AGAIN = (429, 502, 503, 504)  # statuses after which a client asks again
UNKNOWN = ("OUTCOME_UNKNOWN", "UPSTREAM_TIMEOUT")  # … not knowing whether it was done
REFUSED = (
    "TASK_NOT_CANCELABLE",
    "INTERRUPT_REQUEST_NOT_FOUND",
    "INTERRUPT_REQUEST_EXPIRED",
    "UNSUPPORTED_OPERATION",
)
REASON = "not like this"  # told to the agent with a refusal


@dataclass(frozen=True, slots=True)
class Answered:
    """One request and its answer; status 0: there was none."""

    began: float
    ended: float
    status: int = 0
    body: Json = field(default_factory=dict)

    @property
    def problem(self) -> str:
        error = self.body.get("error", {})
        details = error.get("details") or error.get("data") or [{}]
        return str(details[0].get("reason", error.get("code", ""))) if error else ""


@dataclass
class Crowd:
    url: str
    upstream: Upstream  # any of them: what prompts look like, and their answers
    http: aiohttp.ClientSession
    dice: random.Random
    history: History = field(default_factory=History)
    counts: Counter[str] = field(default_factory=Counter)
    stopping: bool = False
    sessions: dict[str, str] = field(default_factory=dict)  # by task
    waits: bool = True  # whether prompts can make the agent ask
    _serial: int = 0

    async def client(self, number: int) -> None:
        contexts: list[str] = []
        while not self.stopping:
            self._serial += 1
            tag = f"#{number}-{self._serial}-0#"
            kind = self.dice.choices(("text", "permission", "cancel"), (6, 2, 2))[0]
            if kind == "text" or (kind == "permission" and not self.waits):
                await self._text(tag, contexts)
            elif kind == "permission":
                await self._permission(tag)
            else:
                await self._cancel(tag)

    # -- what they want

    async def _text(self, tag: str, contexts: list[str]) -> None:
        words = self.upstream.phrase(tag, self.dice, length=1.5)
        context = self.dice.choice([*contexts[-3:], None])
        sent = await self._send(words, Wanted(tag, time.monotonic()), contextId=context)
        contexts.append(sent["contextId"])
        readers = self.dice.choice((0, 1, 1, 2, 3))
        await asyncio.gather(*(self._follow(sent["id"]) for _ in range(readers)))
        await self._until(sent["id"], *ENDS)
        await self._finish(sent["id"], words)

    async def _permission(self, tag: str) -> None:
        words = self.upstream.waiting_phrase(tag) or ""
        counted = tag if tag in words else ""
        sent = await self._send(words, Wanted(counted, time.monotonic(), asks=True))
        task = sent["id"]
        found = await self._until(task, "input-required", *ENDS)
        request = found.get("metadata", {}).get("shared", {}).get("interrupt", {}).get("request_id")
        if request is not None:
            rivals = ("once", "reject") if self.dice.random() < 0.5 else ("once",)
            await asyncio.gather(*(self._answer(task, request, choice) for choice in rivals))
        await self._until(task, *ENDS)
        await self._finish(task, None)

    async def _cancel(self, tag: str) -> None:
        wanted = Wanted(tag, time.monotonic(), cancels=True)
        sent = await self._send(f"{tag} [[hang]]", wanted)
        task = sent["id"]
        if self.dice.random() < 0.7:
            await self._until(task, "working", *ENDS)
        both = (self._call_off(task) for _ in range(self.dice.choice((1, 2))))
        await asyncio.gather(*both)
        await self._until(task, *ENDS)
        await self._finish(task, None)

    # -- asking

    async def ask(
        self, method: str, path: str, body: Json | None = None, key: str = ""
    ) -> Answered:
        """Ask once."""
        headers = {"idempotency-key": key} if key else {}
        wait = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
        began = time.monotonic()
        self.counts["requests"] += 1
        try:
            async with self.http.request(
                method, self.url + path, json=body, headers=headers, timeout=wait
            ) as response:
                found = await response.json()
                answered = Answered(began, time.monotonic(), response.status, found)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            self.counts["not answered"] += 1
            return Answered(began, math.inf)
        if answered.status != 200:
            self.counts[f"answered {answered.status} {answered.problem}"] += 1
        return answered

    async def insist(self, method: str, path: str, body: Json | None = None, key: str = "") -> Json:
        """Ask until it is answered."""
        async with asyncio.timeout(PATIENCE):
            while True:
                answered = await self.ask(method, path, body, key)
                if answered.status and answered.status not in AGAIN:
                    assert answered.status == 200, (method, path, body, answered)
                    return answered.body
                await asyncio.sleep(POLL_SECONDS)

    async def _send(self, text: str, wanted: Wanted, **members: str | None) -> Json:
        key = str(uuid.uuid4())
        self.history.wanted[key] = wanted
        message = {"messageId": key, "role": "ROLE_USER", "parts": [{"text": text}]}
        message |= {name: value for name, value in members.items() if value is not None}
        body = {"message": message, "configuration": {"returnImmediately": True}}
        times = self.dice.choices((1, 2), (8, 2))[0]  # twice: at two nodes at once
        sending = [self.insist("POST", "/message:send", body, key) for _ in range(times)]
        tasks: list[Json] = [found["task"] for found in await asyncio.gather(*sending)]
        self.history.acknowledged += [(key, task["id"]) for task in tasks]
        self.counts["sent twice at once"] += times - 1
        return tasks[0]

    async def _decided(self, task: str, kind: Kind, choice: str, *request: Any) -> None:
        """Ask for a change until it is done or refused, and note each request."""
        async with asyncio.timeout(PATIENCE):
            while True:
                answered = await self.ask("POST", *request)
                problem, result = answered.problem, ""
                if answered.status == 200 and not problem:
                    result = "done"
                elif problem in REFUSED:
                    result = "refused"
                elif answered.status and problem not in UNKNOWN:
                    assert answered.status in (200, *AGAIN), (request, answered)
                ended = answered.ended if result else math.inf
                if result or not answered.status or problem in UNKNOWN:
                    noted = Operation(kind, answered.began, ended, result, choice)
                    self.history.operations[task].append(noted)
                    self.counts[f"{kind} {result or 'of unknown outcome'}"] += 1
                if result:
                    return
                await asyncio.sleep(POLL_SECONDS)

    async def _call_off(self, task: str) -> None:
        await self._decided(task, "cancel", "", f"/tasks/{task}:cancel", {})

    async def _answer(self, task: str, request: str, choice: str) -> None:
        params: Json = {"request_id": request, "reply": choice}
        if choice == "reject":
            params["message"] = REASON
        call = {"jsonrpc": "2.0", "id": 1, "method": "a2a.interrupt.permission.reply"}
        await self._decided(task, "answer", choice, "/", {**call, "params": params})

    async def _get(self, task: str) -> Json:
        async with asyncio.timeout(PATIENCE):
            while True:
                answered = await self.ask("GET", f"/tasks/{task}")
                if answered.status == 200:
                    break
                assert answered.status in (0, *AGAIN), answered
                await asyncio.sleep(POLL_SECONDS)
        found = answered.body
        state = found["status"]["state"].removeprefix("TASK_STATE_").lower().replace("_", "-")
        found["state"], found["at"] = state, answered.ended
        told = ""
        if state == "completed" and "TOOL RESULT" in (text := _text(found)):
            told = "reject" if REASON in text else "once"
        seen = Operation("get", answered.began, answered.ended, state, told)
        self.history.operations[task].append(seen)
        return found

    async def _until(self, task: str, *states: str) -> Json:
        async with asyncio.timeout(TASK_PATIENCE):
            while True:
                found = await self._get(task)
                if found["state"] in states:
                    return found
                await asyncio.sleep(POLL_SECONDS)

    async def _finish(self, task: str, words: str | None) -> None:
        found = await self._get(task)
        metadata = found.get("metadata", {})
        session = metadata.get("shared", {}).get("session", {}).get("id", "")
        problem = metadata.get("opencode", {}).get("error", {}).get("type")
        expected = self.upstream.expected(session, words) if words else None
        self.sessions[task] = session
        parts = found["status"].get("message", {}).get("parts", [])
        self.history.finals[task] = Final(
            found["state"],
            _text(found),
            problem=problem,
            expected=expected,
            at=found["at"],
            message=f"{session}: {''.join(part.get('text', '') for part in parts)}",
        )
        self.counts[f"tasks {found['state']}"] += 1

    # -- reading

    async def _follow(self, task: str, after: int | None = None) -> None:
        """Read its events, whoever sends them, from where the stream before was cut."""
        numbers: list[int] = [] if after is None else [after]
        async with asyncio.timeout(TASK_PATIENCE):
            while True:
                headers = {"last-event-id": str(numbers[-1])} if numbers else {}
                wait = aiohttp.ClientTimeout(total=None, sock_read=12, sock_connect=5)
                try:
                    path = f"{self.url}/tasks/{task}:subscribe"
                    async with self.http.get(path, headers=headers, timeout=wait) as response:
                        if response.status == 400:
                            break  # it has ended
                        if response.status == 200 and await self._read(task, response, numbers):
                            break
                except (aiohttp.ClientError, TimeoutError, OSError):
                    pass
                self.counts["streams resumed"] += 1
                await asyncio.sleep(0.1)
        self.history.streams.append((task, numbers))
        self.counts["streams"] += 1

    async def replay(self, task: str) -> None:
        """Read all events of a task that has ended, once more."""
        await self._follow(task, after=0)
        self.counts["replays"] += 1

    async def _read(self, task: str, response: aiohttp.ClientResponse, numbers: list[int]) -> bool:
        """Whether it was read to the end."""
        number, event = 0, ""
        async for line in response.content:
            if line.startswith(b"event:"):
                event = line[6:].strip().decode()
            elif line.startswith(b"id: "):
                number = int(line[4:])
            elif line.startswith(b"data: "):
                if event == "error":
                    return False
                body = json.loads(line[6:])
                if "task" in body:
                    if not numbers:
                        numbers.append(number)
                    continue
                numbers.append(number)
                self.history.frames.setdefault((task, number), set()).add(line)
                self.counts["events"] += 1
                state = body.get("statusUpdate", {}).get("status", {}).get("state", "")
                if state.removeprefix("TASK_STATE_").lower() in ENDS:
                    return True
        return False


def _text(task: Json) -> str:
    """The last answer."""
    texts = [
        "".join(part.get("text", "") for part in artifact["parts"])
        for artifact in task.get("artifacts", [])
        if artifact["name"] == "answer"
    ]
    return texts[-1] if texts else ""
