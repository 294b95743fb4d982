"""Callers with and without budgets, tasks of every kind, and a service that is killed at random.

In the end what the service says everybody has used must be what OpenCode has stored, to the token,
and nobody may have gone on after the step that used up its budget. OpenCode works on while the
service is dead: steps of that time are counted, but nobody was there to stop them.
"""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from opencode_a2a.opencode.process import free_port
from tests.running import Service, Upstream, real_opencode, service

Json = dict[str, Any]
CALLERS = ("alice", "bob", "carol", "dave", "erin")
ENDED = ("TASK_STATE_COMPLETED", "TASK_STATE_FAILED", "TASK_STATE_CANCELED")
STOP_MS = 3_000  # after a start: until what OpenCode did meanwhile is read, and then stopped
FIGURES = ("input_tokens", "output_tokens", "reasoning_tokens")


@dataclass(frozen=True)
class Plan:
    tasks: int = 200
    kills: int = 20
    seed: int = 1
    budgets: tuple[tuple[str, int], ...] = (("dave", 900), ("erin", 2_500))  # tokens per day
    most_seconds: float = 3_600
    calm: float = 4.0  # seconds between two kills, at most
    # How long after a budget is reached steps may still end. What is to be stopped begins its next
    # step at once, and on a busy machine that one may end before it is stopped.
    late_ms: int = 0


@dataclass
class Outcome:
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    downtimes: list[tuple[int, int]] = field(default_factory=list)  # in milliseconds since 1970


@dataclass(frozen=True)
class Step:
    """A step as OpenCode has stored it."""

    part_id: str
    ended: int  # milliseconds since 1970
    figures: tuple[int, int, int]
    model: str

    @property
    def tokens(self) -> int:
        return sum(self.figures)


def prompt(kind: str, number: int) -> str:
    """What a task asks of the scripted model, which takes a while for each answer."""
    usage = f"[[start:120]] [[usage:{20 + number % 17}:{5 + number % 7}]] task {number}"
    shell = json.dumps({"command": "true", "description": "nothing"})
    sub = {"description": "part", "prompt": usage, "subagent_type": "general"}
    match kind:
        case "tools":
            return f"[[tool:bash {shell}]] [[tool:bash {shell}]] {usage}"
        case "sub-agent":
            return f"[[tool:task {json.dumps(sub)}]] {usage}"
        case "retry":
            return f"[[error:500:1]] {usage}"
        case "cut":
            return f"[[tokens:6]] [[delay:20]] [[cutmid:2:1]] {usage}"
        case _:
            return f"[[tokens:8]] [[delay:20]] {usage}"


KINDS = ("plain", "plain", "tools", "tools", "tools", "sub-agent", "sub-agent", "retry", "cut")


class Victim:
    """The service, killed and started again, always at the same address."""

    def __init__(self, upstream: Upstream, folder: Path, plan: Plan, outcome: Outcome) -> None:
        self._upstream, self._folder, self._outcome = upstream, folder, outcome
        self._port = str(free_port())
        self.url = f"http://127.0.0.1:{self._port}"
        self._stack = ExitStack()
        self._service: Service | None = None
        credentials = [
            {"scheme": "bearer", "token": f"token-of-{name}-0123456789", "principal": name}
            for name in CALLERS
        ]
        self._settings = {
            "A2A_PORT": self._port,
            "A2A_STATIC_AUTH_CREDENTIALS": json.dumps(credentials),
            "A2A_MAX_QUEUED_TASKS": "1000",
        }
        self._config = folder / "limits.toml"
        self._config.write_text(
            "".join(f'[limits."{name}"]\ntokens_per_day = {most}\n' for name, most in plan.budgets)
        )

    def start(self) -> None:
        self._service = self._stack.enter_context(
            service(self._upstream, self._folder, config=str(self._config), **self._settings)
        )

    def kill(self) -> None:
        assert self._service is not None
        died = _now()
        self._service.program.kill()
        self._stack.close()
        self.start()
        self._outcome.downtimes.append((died, _now()))
        self._outcome.counts["kills"] += 1

    def stop(self) -> None:
        self._stack.close()


class Client:
    """One caller, which asks again when nobody answers: with the same key, for the same task."""

    def __init__(self, name: str, url: str) -> None:
        headers = {"authorization": f"Bearer token-of-{name}-0123456789", "a2a-version": "1.0"}
        self.name = name
        self._http = httpx.AsyncClient(base_url=url, headers=headers, timeout=30)

    async def close(self) -> None:
        await self._http.aclose()

    async def call(self, method: str, params: Json, **headers: str) -> httpx.Response:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        while True:
            with suppress(httpx.HTTPError):
                answer = await self._http.post("/", json=body, headers=headers)
                code = answer.json().get("error", {}).get("code")
                if code not in (-32060, -32061, -32072, -32074):  # OpenCode or the store is away
                    return answer
            await asyncio.sleep(0.2)

    async def result(self, method: str, params: Json) -> Json:
        answer = (await self.call(method, params)).json()
        assert "result" in answer, answer
        found: Json = answer["result"]
        return found

    async def send(self, text: str, context: str) -> httpx.Response:
        message = {
            "messageId": uuid.uuid4().hex,
            "contextId": context,
            "role": "ROLE_USER",
            "parts": [{"text": text}],
        }
        params = {"message": message, "configuration": {"returnImmediately": True}}
        return await self.call("SendMessage", params, **{"idempotency-key": uuid.uuid4().hex})

    async def ended(self, task_id: str) -> Json:
        while True:
            task = await self.result("GetTask", {"id": task_id})
            if task["status"]["state"] in ENDED:
                return task
            await asyncio.sleep(0.3)


async def run(plan: Plan, folder: Path, say: Callable[[str], None]) -> Outcome:
    outcome = Outcome()
    with real_opencode(folder / "opencode", snapshot=False) as upstream:
        (folder / "service").mkdir()
        victim = Victim(upstream, folder / "service", plan, outcome)
        await asyncio.to_thread(victim.start)
        try:
            async with asyncio.timeout(plan.most_seconds):
                await _play(plan, victim, upstream=upstream, outcome=outcome, say=say)
        finally:
            await asyncio.to_thread(victim.stop)
    return outcome


async def _play(
    plan: Plan,
    victim: Victim,
    *,
    upstream: Upstream,
    outcome: Outcome,
    say: Callable[[str], None],
) -> None:
    clients = [Client(name, victim.url) for name in CALLERS]
    sessions: dict[str, set[str]] = {name: set() for name in CALLERS}
    working = asyncio.gather(
        *(_work(plan, client, sessions[client.name], outcome) for client in clients)
    )
    chances, killed = random.Random(plan.seed), 0
    while not working.done():
        await asyncio.wait({working}, timeout=chances.uniform(0.5, plan.calm))
        if not working.done() and killed < plan.kills:
            await asyncio.to_thread(victim.kill)
            killed += 1
            say(f"killed {killed}, {outcome.counts['tasks']} tasks have ended")
    await working
    for client in clients:
        await _compare(plan, client, sessions[client.name], upstream=upstream, outcome=outcome)
        await client.close()


async def _work(plan: Plan, client: Client, sessions: set[str], outcome: Outcome) -> None:
    """Send tasks, some in one context, some at the same time, some to be canceled."""
    chances = random.Random(f"{plan.seed} {client.name}")
    at_once = asyncio.Semaphore(3)
    contexts = [uuid.uuid4().hex for _ in range(4)]

    async def one(number: int) -> None:
        async with at_once:
            text = prompt(chances.choice(KINDS), number)
            answer = await client.send(text, chances.choice(contexts))
            found = answer.json()
            if "error" in found:
                _check_refusal(plan, client.name, answer, outcome)
                return
            task_id = found["result"]["task"]["id"]
            if chances.random() < 0.1:
                await asyncio.sleep(chances.random())
                await client.call("CancelTask", {"id": task_id})
            task = await client.ended(task_id)
            outcome.counts["tasks"] += 1
            outcome.counts[task["status"]["state"]] += 1
            error = task.get("metadata", {}).get("opencode", {}).get("error", {})
            outcome.counts[error.get("type", "no error")] += 1
            if session := task.get("metadata", {}).get("shared", {}).get("session"):
                sessions.add(session["id"])

    await asyncio.gather(*(one(number) for number in range(plan.tasks // len(CALLERS))))


def _check_refusal(plan: Plan, name: str, answer: httpx.Response, outcome: Outcome) -> None:
    error = answer.json()["error"]
    outcome.counts["refused"] += 1
    facts = error["data"][0]["metadata"] if isinstance(error["data"], list) else {}
    if name not in dict(plan.budgets) or answer.status_code != 429 or error["code"] != -32086:
        outcome.violations.append(f"{name} was refused: {answer.status_code} {error}")
    elif facts.get("limit") != "tokens_per_day" or "retry-after" not in answer.headers:
        outcome.violations.append(f"{name}: the refusal does not say what and until when: {error}")


async def _compare(
    plan: Plan, client: Client, sessions: set[str], *, upstream: Upstream, outcome: Outcome
) -> None:
    """What the service has counted for a caller, and what OpenCode has stored for it."""
    steps = await stored_steps(upstream, sessions)
    said = await client.result("opencode.usage.get", {"by": ["model", "principal"]})
    counted = Counter[str]()
    for item in said["items"]:
        if item["principal"] != client.name:
            outcome.violations.append(f"{client.name} sees the usage of {item['principal']}")
        for figure in ("steps", *FIGURES):
            counted[f"{item['model']} {figure}"] += item[figure]
    stored = Counter[str]()
    for step in steps:
        stored[f"{step.model} steps"] += 1
        for figure, amount in zip(FIGURES, step.figures, strict=True):
            stored[f"{step.model} {figure}"] += amount
    outcome.counts["steps"] += len(steps)
    outcome.counts["tokens"] += sum(step.tokens for step in steps)
    if +counted != +stored:
        outcome.violations.append(f"{client.name}: counted {counted}, but OpenCode has {stored}")
    if client.name in dict(plan.budgets):
        _check_budget(plan, client.name, steps=steps, outcome=outcome)


def _check_budget(plan: Plan, name: str, *, steps: list[Step], outcome: Outcome) -> None:
    most = dict(plan.budgets)[name]
    used, reached_at, over = 0, 0, list[Step]()
    for step in sorted(steps, key=lambda each: each.ended):
        dead = any(died <= step.ended <= back + STOP_MS for died, back in outcome.downtimes)
        if used >= most and dead:
            outcome.counts[f"steps of {name} that nobody could stop"] += 1
        elif used >= most and step.ended > reached_at + plan.late_ms:
            over.append(step)
        elif used < most:
            reached_at = step.ended
        used += step.tokens
    outcome.counts[f"used by {name} of {most}"] = used
    outcome.counts[f"largest step of {name}"] = max((each.tokens for each in steps), default=0)
    if over:
        outcome.violations.append(f"{name} used {used} of {most}: {len(over)} steps too many")


async def stored_steps(upstream: Upstream, sessions: set[str]) -> list[Step]:
    """Every step of these sessions and of their sub-agents, as OpenCode tells it."""
    login = ("opencode", upstream.password) if upstream.password else None
    found: dict[str, Step] = {}
    async with httpx.AsyncClient(base_url=upstream.base_url, auth=login, timeout=60) as http:
        waiting = list(sessions)
        while waiting:
            session = waiting.pop()
            waiting += [c["id"] for c in (await http.get(f"/session/{session}/children")).json()]
            for message in (await http.get(f"/session/{session}/message")).json():
                info = message["info"]
                for part in message["parts"]:
                    if part["type"] == "step-finish":
                        t = part["tokens"]
                        found[part["id"]] = Step(
                            part["id"],
                            ended=info["time"].get("completed") or info["time"]["created"],
                            figures=(t["input"], t["output"], t["reasoning"]),
                            model=f"{info['providerID']}/{info['modelID']}",
                        )
    return list(found.values())


def noted_steps(folder: Path) -> set[str]:
    """The ids of the steps that the service has counted."""
    with sqlite3.connect(folder / "service" / "tasks.db") as db:
        return {part for (part,) in db.execute("SELECT part_id FROM usage_steps")}


def _now() -> int:
    return time.time_ns() // 1_000_000
