"""The agent calls other agents: real models' harness on both sides, scripted models behind them.

`A` is a service whose agent may call `B`, a service on another OpenCode, which asks before it runs
a command, and `echo`, an agent on the SDK's server.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.seen import BASH
from tests.features import is_2
from tests.outbound.agents import Echo, sdk_agent
from tests.running import TOKEN, Service, Upstream, isolated, service

Json = dict[str, Any]
SECONDS = 120.0  # on a busy machine
pytestmark = pytest.mark.timeout(3 * SECONDS)
REFUSED = "This call was not announced by a task of opencode-a2a"
ENDS = ("TASK_STATE_COMPLETED", "TASK_STATE_FAILED", "TASK_STATE_CANCELED")


def calls(peer: str, message: str, tool: str = "a2a_call", **more: Any) -> str:
    """What makes the scripted model call a peer."""
    arguments = {"peer": peer, "message": message} if tool == "a2a_call" else {"peer": peer}
    return f"[[tool:{tool} {json.dumps(arguments | more)}]]"


def runs(command: str) -> str:
    """What makes the scripted model run a command."""
    return f"[[tool:bash {json.dumps({'command': command, 'description': 'Runs'})}]]"


@dataclass
class Person:
    """A caller of a service."""

    http: httpx.Client

    @classmethod
    @contextmanager
    def at(cls, running: Service, token: str = TOKEN) -> Iterator[Person]:
        headers = {"authorization": f"Bearer {token}", "a2a-version": "1.0"}
        with httpx.Client(base_url=running.url, headers=headers, timeout=SECONDS) as http:
            yield cls(http)

    def send(self, text: str, **more: str) -> Json:
        message = {"messageId": uuid.uuid4().hex, "role": "ROLE_USER", "parts": [{"text": text}]}
        body = {"message": message | more, "configuration": {"returnImmediately": True}}
        task: Json = self.http.post("/message:send", json=body).raise_for_status().json()["task"]
        return task

    def until(self, task: Json, *states: str) -> Json:
        deadline = time.monotonic() + SECONDS
        while task["status"]["state"] not in states:
            assert task["status"]["state"] not in ENDS, task
            assert time.monotonic() < deadline, task
            time.sleep(0.05)
            task = self.http.get(f"/tasks/{task['id']}").raise_for_status().json()
        return task

    def ask(self, text: str, **more: str) -> Json:
        """A task, to its completion."""
        return self.until(self.send(text, **more), "TASK_STATE_COMPLETED")

    def answer(self, text: str, **more: str) -> str:
        return answer_of(self.ask(text, **more))


def answer_of(task: Json) -> str:
    return "".join(part.get("text", "") for part in task["artifacts"][-1]["parts"])


def workspace(upstream: Upstream, folder: Path) -> Upstream:
    """A place of its own on a shared OpenCode: tools are registered for a directory."""
    folder.mkdir()
    (folder / "README.md").write_text("hello\n")
    for words in (("init", "-q"), ("add", "-A")):
        subprocess.run(["git", *words], cwd=folder, check=True, env=isolated(folder.parent / "git"))
    return replace(upstream, workspace=folder)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def echo() -> Iterator[tuple[str, Echo]]:
    """An agent on the SDK's server, in a thread: what it is asked to do, and what it knows."""
    agent, urls = Echo(), list[str]()
    started, stop = threading.Event(), threading.Event()

    async def run() -> None:
        async with sdk_agent("1.0", "JSONRPC", echo=agent) as url:
            urls.append(url)
            started.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    assert started.wait(SECONDS)
    yield urls[0], agent
    stop.set()
    thread.join(10)


@dataclass(frozen=True)
class House:
    a: Service
    upstream: Upstream  # of A
    start_b: Callable[[], AbstractContextManager[Service]]


@pytest.fixture(scope="module")
def house(
    opencode: Upstream,
    asking_opencode: Upstream,
    echo: tuple[str, Echo],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("peers")
    of_a, of_b = workspace(opencode, folder / "a"), workspace(asking_opencode, folder / "b")
    urls = {name: f"http://127.0.0.1:{free_port()}" for name in "ab"}
    known = {"a": {"b": urls["b"], "echo": echo[0]}, "b": {"a": urls["a"]}}
    for name, peers in known.items():
        tables = (
            f'[peers.{peer}]\nurl = "{url}"\nbearer_token = "env:PEER_TOKEN"\n'
            for peer, url in peers.items()
        )
        (folder / f"{name}.toml").write_text("".join(tables))
    credentials = [
        {"scheme": "bearer", "token": who, "principal": who} for who in (TOKEN, "alice", "bob")
    ]

    def start(name: str, upstream: Upstream) -> AbstractContextManager[Service]:
        return service(
            upstream,
            folder / f"service-{name}",
            config=str(folder / f"{name}.toml"),
            A2A_PORT=urls[name].rpartition(":")[2],
            A2A_MAX_CALL_DEPTH="1",
            A2A_STATIC_AUTH_CREDENTIALS=json.dumps(credentials),
            PEER_TOKEN=TOKEN,
        )

    for name in "ab":
        (folder / f"service-{name}").mkdir()
    with start("a", of_a) as running:
        yield House(running, of_a, lambda: start("b", of_b))


@pytest.fixture
def person(house: House) -> Iterator[Person]:
    with Person.at(house.a) as connected:
        yield connected


def test_a_peer_asks_the_caller_answers_and_loops_end(house: House, person: Person) -> None:
    with house.start_b():
        waiting = person.until(
            person.send(calls("b", runs("echo from-$((40 + 2))"))), "TASK_STATE_INPUT_REQUIRED"
        )
        [said] = waiting["status"]["message"]["parts"]
        assert (
            f"The peer b, which the agent has called, asks for permission: b:{BASH}" in said["text"]
        )
        assert "    echo from-$((40 + 2))\n" in said["text"]
        details = waiting["metadata"]["shared"]["interrupt"]["details"]
        assert (details["peer"], details["command"]) == ("b", "echo from-$((40 + 2))")
        person.send("yes", taskId=waiting["id"], contextId=waiting["contextId"])
        done = person.until(waiting, "TASK_STATE_COMPLETED")
        assert answer_of(done).startswith("TOOL RESULT: b: completed\n\nTOOL RESULT: from-42")
        assert done["metadata"]["shared"]["usage"]["peers"]["b"]["total_tokens"] > 0
        looped = person.answer(calls("b", calls("a", "hello")))
        assert "This would be call 2 in a row from agent to agent" in looped


def test_a_peer_that_is_killed_and_started_again_answers_in_the_end(
    house: House, person: Person
) -> None:
    with house.start_b() as peer:
        task = person.send(calls("b", f"{runs('true')} [[text:Survived.]]"))
        task = person.until(task, "TASK_STATE_INPUT_REQUIRED")
        peer.program.kill()
    with house.start_b():
        person.send("yes", taskId=task["id"], contextId=task["contextId"])
        assert "Survived." in answer_of(person.until(task, "TASK_STATE_COMPLETED"))


def test_equal_calls_at_once_keep_to_their_own_conversations(house: House) -> None:
    where = calls("echo", "where are we")

    def converse(who: str) -> list[str]:
        with Person.at(house.a, who) as person:
            first = person.ask(where)
            return [answer_of(first), person.answer(where, contextId=first["contextId"])]

    with ThreadPoolExecutor(6) as threads:
        told = list(threads.map(converse, ["alice", "bob"] * 3))
    assert all(first == second for first, second in told)  # a conversation goes on
    assert len({first for first, _ in told}) == len(told)  # and is nobody else's
    assert all("echo: completed" in first for first, _ in told)


def test_canceling_the_task_cancels_that_of_the_peer(
    house: House, person: Person, echo: tuple[str, Echo]
) -> None:
    agent, task = echo[1], person.send(calls("echo", "wait"))
    deadline = time.monotonic() + SECONDS
    while not agent.at_work:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    person.http.post(f"/tasks/{task['id']}:cancel").raise_for_status()
    person.until(task, "TASK_STATE_CANCELED")
    while agent.canceled != agent.at_work:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_call_that_fails_does_not_fail_the_task(house: House, person: Person) -> None:
    answer = person.answer(calls("b", "hello"))  # nobody is there now
    assert "Nobody accepts connections" in answer
    listed = person.answer("[[tool:a2a_peers {}]]")
    assert "echo: Echo. Says what you say." in listed
    assert "b: cannot be called now." in listed


def of_somebody_else(opencode: httpx.Client, where: dict[str, str], text: str) -> str:
    """The answer to a prompt in a session that was not made by the service."""
    if is_2():
        made = opencode.post("/api/session", json={"title": "x", "location": where}).json()["data"]
        opencode.post(f"/api/session/{made['id']}/prompt", json={"text": text}).raise_for_status()
        opencode.post(f"/api/experimental/session/{made['id']}/wait").raise_for_status()
        return opencode.get(f"/api/session/{made['id']}/message").text
    session = opencode.post("/session", json={"title": "of somebody else"}).json()["id"]
    parts = [{"type": "text", "text": text}]
    answer = opencode.post(f"/session/{session}/message", json={"parts": parts}).json()
    return "".join(part.get("text", "") for part in answer["parts"])


def test_tools_are_for_tasks_only_and_come_back_after_a_dispose(
    house: House, person: Person
) -> None:
    assert "echo: completed" in person.answer(calls("echo", "hello"))
    where = {"directory": str(house.upstream.workspace)}
    login = ("opencode", house.upstream.password or "")
    with httpx.Client(
        base_url=house.upstream.base_url, auth=login, params=where, timeout=SECONDS
    ) as opencode:
        assert REFUSED in of_somebody_else(opencode, where, calls("echo", "hello"))
        if is_2():
            away = {"location[directory]": where["directory"]}
            opencode.delete("/api/debug/location", params=away).raise_for_status()
        else:
            opencode.post("/instance/dispose").raise_for_status()
    assert "echo: completed" in person.answer(calls("echo", "hello again"))
