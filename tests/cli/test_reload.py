"""SIGHUP, a socket that was handed over, and what the service manager hears of a real process."""

from __future__ import annotations

import json
import re
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.commands import command
from tests.running import Program, Upstream, isolated, running

# Hands descriptor argv[1] over as systemd does, and becomes the program.
HAND_OVER = """
import os, sys
os.dup2(int(sys.argv[1]), 3, inheritable=True)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}
os.execv(sys.argv[2], sys.argv[2:])
"""
SETTINGS = """
[a2a]
port = {port}
log_level = "{level}"
permission_rules = {rules}
static_auth_credentials = [
{credentials}
]
{peers}
"""
PEER = '[peers.{name}]\nurl = "http://127.0.0.1:9"\n'
FIRST_PEER = PEER.format(name="first")
HEALTH = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
Address = tuple[str, int]
ONE_RULE = '[{ permission = "bash", pattern = "git *", action = "deny" }]'


@dataclass
class Lab:
    """A service with a settings file that the test rewrites."""

    file: Path
    secret: Path  # the file with A2A_BEARER_TOKEN
    program: Program
    client: httpx.Client
    seen: int = 0  # how much of the log was looked at

    def write(
        self,
        *tokens: str,
        port: int | str = 0,
        level: str = "info",
        rules: str = "[]",
        basic: bool = False,
        peers: str = FIRST_PEER,
    ) -> None:
        text = settings(*tokens, port=port, level=level, rules=rules, basic=basic, peers=peers)
        self.file.write_text(text)

    def reload(self, said: str = r"event=settings\.(?:reloaded|not_reloaded)\b.*\n") -> str:
        """What the log says about it, from the signal on."""
        self.seen = len(self.program.output)
        self.program.process.send_signal(signal.SIGHUP)
        self.wait_for(said)
        return self.program.output[self.seen :]

    def wait_for(self, pattern: str) -> None:
        """Wait until the log says this, after the last reload began."""

        def said() -> bool:
            return re.search(pattern, self.program.output[self.seen :]) is not None

        with self.program.news:
            assert self.program.news.wait_for(said, 60), self.program.output

    def status(self, token: str) -> int:
        headers = {"authorization": f"Bearer {token}"}
        return self.client.get("/tasks", headers=headers).status_code


def settings(*tokens: str, port: int | str, level: str, rules: str, basic: bool, peers: str) -> str:
    entries = [
        f'  {{ scheme = "bearer", token = "{token}", principal = "{token.partition("-")[0]}" }},'
        for token in tokens
    ]
    if basic:
        entries.append('  { scheme = "basic", username = "bob", password = "bob-password" },')
    credentials = "\n".join(entries)
    return SETTINGS.format(
        port=port, level=level, rules=rules, credentials=credentials, peers=peers
    )


@pytest.fixture(scope="module")
def lab(fake: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("reload")
    file, secrets = folder / "settings.toml", folder / "secrets"
    secrets.mkdir()
    secret = secrets / "a2a_bearer_token"
    secret.write_text("secret-1")
    file.write_text(
        settings(
            *("alice-1", "bob-1"),
            port=0,
            level="info",
            rules="[]",
            basic=False,
            peers=FIRST_PEER,
        )
    )
    env = isolated(
        folder / "home",
        OPENCODE_BASE_URL=fake.base_url,
        A2A_TASK_STORE_BACKEND="memory",
        A2A_SHUTDOWN_GRACE_SECONDS="0",  # a task is left hanging
    )
    words = ["opencode-a2a", "serve", "--config", str(file), "--secrets", str(secrets)]
    with running(command(*words), env, fake.workspace) as program:
        url = program.wait_for(r"event=serving url=(\S+)")[1]
        with httpx.Client(base_url=url, timeout=60) as client:
            yield Lab(file, secret, program, client)


@dataclass
class OpenStream:
    """A stream that is read in the background."""

    response: httpx.Response
    lines: list[str] = field(default_factory=list)
    error: Exception | None = None
    news: threading.Condition = field(default_factory=threading.Condition)
    ended: bool = False

    def read(self) -> None:
        try:
            for line in self.response.iter_lines():
                with self.news:
                    self.lines.append(line)
                    self.news.notify_all()
        except httpx.HTTPError as exc:
            self.error = exc
        with self.news:
            self.ended = True
            self.news.notify_all()

    def wait(self, happened: Any) -> None:
        with self.news:
            assert self.news.wait_for(lambda: happened(self), 60), (self.lines, self.ended)

    @property
    def events(self) -> int:
        return sum(line.startswith("data:") for line in self.lines)

    @property
    def task(self) -> str:
        first = next(line for line in self.lines if line.startswith("data:"))
        found: str = json.loads(first.removeprefix("data:"))["task"]["id"]
        return found


@contextmanager
def streaming(client: httpx.Client, token: str, text: str) -> Iterator[OpenStream]:
    message = {"messageId": token + text, "role": "ROLE_USER", "parts": [{"text": text}]}
    headers = {"authorization": f"Bearer {token}", "a2a-version": "1.0"}
    with client.stream(
        "POST", "/message:stream", json={"message": message}, headers=headers
    ) as response:
        assert response.status_code == 200
        stream = OpenStream(response)
        reading = threading.Thread(target=stream.read, daemon=True)
        reading.start()
        stream.wait(lambda found: found.events >= 2)
        yield stream
        stream.wait(lambda found: found.ended)
        reading.join(60)


def test_a_reload_lets_streams_go_on_and_ends_those_of_a_revoked_credential(lab: Lab) -> None:
    endless = "[[tokens:5]] [[hang]]"
    with (
        streaming(lab.client, "alice-1", endless) as kept,
        streaming(lab.client, "bob-1", endless) as revoked,
    ):
        lab.write("alice-1", "carol-1")
        lab.secret.write_text("secret-2")
        said = lab.reload()
        revoked.wait(lambda found: found.ended)
        assert lab.status("bob-1") == 401
        assert lab.status("carol-1") == 200
        assert (lab.status("secret-1"), lab.status("secret-2")) == (401, 200)
        assert not kept.ended
        headers = {"authorization": "Bearer alice-1", "a2a-version": "1.0"}
        lab.client.post(f"/tasks/{kept.task}:cancel", headers=headers).raise_for_status()
    assert 'changed="A2A_BEARER_TOKEN A2A_STATIC_AUTH_CREDENTIALS" requests_ended=1' in said
    assert kept.error is None
    assert "TASK_STATE_CANCELED" in "".join(kept.lines), "it went on to its end"
    assert isinstance(revoked.error, httpx.RemoteProtocolError), "cut off in the middle"
    assert "secret-2" not in lab.program.output


def test_new_rules_are_for_new_sessions_and_are_published(lab: Lab, fake: Upstream) -> None:
    lab.write("alice-1", rules=ONE_RULE)
    assert "A2A_PERMISSION_RULES" in lab.reload()
    headers = {"authorization": "Bearer alice-1", "a2a-version": "1.0"}
    message = {"messageId": "ruled", "role": "ROLE_USER", "parts": [{"text": "Hello!"}]}
    sent = lab.client.post("/message:send", json={"message": message}, headers=headers).json()
    session = sent["task"]["metadata"]["shared"]["session"]["id"]
    rule = {"permission": "bash", "pattern": "git *", "action": "deny"}
    assert httpx.get(f"{fake.base_url}/session/{session}").json()["permission"] == [rule]
    card = lab.client.get("/extendedAgentCard", headers=headers).text
    assert json.dumps(rule, separators=(",", ":")) in card


def test_new_limits_hold_from_the_next_request_on(lab: Lab) -> None:
    one = FIRST_PEER + "[limits.alice]\nrequests_per_minute = 1\n"
    lab.write("alice-1", "carol-1", peers=one)
    assert "[limits.alice]" in lab.reload()
    assert [lab.status("alice-1"), lab.status("alice-1"), lab.status("carol-1")] == [200, 429, 200]
    lab.write("alice-1", "carol-1")
    lab.reload()
    assert lab.status("alice-1") == 200


def test_tasks_that_wait_for_a_limit_begin_when_it_is_raised(lab: Lab) -> None:
    one = FIRST_PEER + "[limits.alice]\nrunning_tasks = {n}\n"
    lab.write("alice-1", peers=one.format(n=1))
    lab.reload()
    headers = {"authorization": "Bearer alice-1", "a2a-version": "1.0"}
    tasks = []
    for text in ("[[hang]]", "[[hang]]"):
        message = {"messageId": f"{uuid.uuid4()}", "role": "ROLE_USER", "parts": [{"text": text}]}
        body = {"message": message, "configuration": {"returnImmediately": True}}
        sent = lab.client.post("/message:send", json=body, headers=headers).json()
        tasks.append(sent["task"]["id"])

    def states() -> list[str]:
        found = [lab.client.get(f"/tasks/{task}", headers=headers).json() for task in tasks]
        return [each["status"]["state"] for each in found]

    def wait_for(*wanted: str) -> None:
        deadline = time.monotonic() + 60
        while states() != [f"TASK_STATE_{state}" for state in wanted]:
            assert time.monotonic() < deadline, states()
            time.sleep(0.05)

    wait_for("WORKING", "SUBMITTED")
    lab.write("alice-1", peers=one.format(n=2))
    lab.reload()
    wait_for("WORKING", "WORKING")
    for task in tasks:
        lab.client.post(f"/tasks/{task}:cancel", json={}, headers=headers)


def test_a_new_way_to_log_in_is_in_the_card_at_once(lab: Lab) -> None:
    lab.write("alice-1", basic=True)
    lab.reload()
    card = lab.client.get("/.well-known/agent-card.json", headers={"a2a-version": "1.0"}).json()
    assert set(card["securitySchemes"]) == {"bearer", "basic"}
    assert lab.client.get("/tasks", auth=("bob", "bob-password")).status_code == 200


def test_the_agent_can_call_other_peers_after_a_reload(lab: Lab) -> None:
    def callable_peers() -> list[str]:
        card = lab.client.get("/extendedAgentCard", headers={"authorization": "Bearer alice-1"})
        [profile] = [
            each["params"]
            for each in card.json()["capabilities"]["extensions"]
            if each["uri"].endswith("#a2a-compatibility-profile-v1")
        ]
        found: list[str] = profile["runtime_features"]["peer_calls"]["peers"]
        return found

    lab.write("alice-1")
    lab.reload()
    assert callable_peers() == ["first"]
    second = PEER.format(name="second")
    lab.write("alice-1", peers=second + 'bearer_token = "env:NO_SUCH_VARIABLE"')
    said = lab.reload()
    assert "[peers.second]: NO_SUCH_VARIABLE is not set" in said
    assert callable_peers() == ["first"]
    lab.write("alice-1", peers=second)
    assert "[peers.first] [peers.second]" in lab.reload()
    assert callable_peers() == ["second"]


def test_the_log_level_changes_and_what_needs_a_restart_is_named(lab: Lab) -> None:
    lab.write("alice-1", level="debug", port=9)
    said = lab.reload(r"event=settings\.need_restart names=A2A_PORT\n")
    assert "A2A_LOG_LEVEL" in said
    assert lab.status("alice-1") == 200
    lab.wait_for("level=debug event=request.understood")
    lab.write("alice-1", level="info", port=9)
    said = lab.reload(r"event=settings\.need_restart names=A2A_PORT\n")
    assert "changed=A2A_LOG_LEVEL" in said


def test_a_broken_file_changes_nothing_and_each_problem_has_its_line(lab: Lab) -> None:
    lab.write("alice-1")
    lab.reload()
    lab.write("mallory-1", port='"x"', level="loud")
    said = lab.reload()
    problems = [line for line in said.splitlines() if "event=settings.wrong" in line]
    assert len(problems) == 2
    assert "A2A_PORT: is 'x', must be a valid integer" in said
    assert "A2A_LOG_LEVEL: is 'loud'" in said
    assert "event=settings.not_reloaded" in said
    assert (lab.status("alice-1"), lab.status("mallory-1")) == (200, 401)
    lab.write()
    lab.secret.unlink()
    assert "no credential is configured" in lab.reload()
    assert lab.status("alice-1") == 200


# -- the service manager


@contextmanager
def handed_over(
    listener: socket.socket, upstream: Upstream, folder: Path, **settings: str
) -> Iterator[Program]:
    env = isolated(
        folder / "home",
        OPENCODE_BASE_URL=upstream.base_url,
        A2A_TASK_STORE_BACKEND="memory",
        A2A_BEARER_TOKEN="test-token",
        **settings,
    )
    words = [sys.executable, "-c", HAND_OVER, str(listener.fileno())]
    words += command("opencode-a2a", "serve", "--port", "1")
    with running(words, env, upstream.workspace, descriptors=[listener.fileno()]) as program:
        yield program


def wait_until_told(manager: socket.socket, *facts: str) -> None:
    """Wait until the manager was told all of these, in whatever order."""
    missing = set(facts)
    while missing:
        missing -= set(manager.recv(4096).decode().splitlines())


def test_a_restart_refuses_nobody_and_the_manager_knows_what_happens(
    fake: Upstream, tmp_path: Path
) -> None:
    told = str(tmp_path / "notify")
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
    ):
        manager.bind(told)
        manager.settimeout(60)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        env = {"NOTIFY_SOCKET": told, "WATCHDOG_USEC": "1000000"}
        requests = CeaselessRequests(listener.getsockname())
        with handed_over(listener, fake, tmp_path, **env) as program:
            status = "STATUS=0 tasks are at work. OpenCode 1.18.33 is connected."
            wait_until_told(manager, "READY=1", "WATCHDOG=1", status)
            assert program.wait_for(r"event=serving url=(\S+)")[1] == url
            program.process.send_signal(signal.SIGHUP)
            wait_until_told(manager, "RELOADING=1", "READY=1")
            requests.begin()
            program.process.send_signal(signal.SIGTERM)
            wait_until_told(manager, "STOPPING=1")
            assert program.process.wait(60) == 0
        with (
            socket.create_connection(listener.getsockname(), timeout=60) as waiting,
            handed_over(listener, fake, tmp_path, **env),
        ):
            waiting.sendall(HEALTH)
            assert waiting.recv(4096).startswith(b"HTTP/1.1 200 OK")
            wait_until_told(manager, "READY=1")
            requests.end()
        assert requests.failures == []
        assert requests.answered > 4


def healthy(address: Address) -> bool:
    with socket.create_connection(address, timeout=60) as connection:
        time.sleep(0.02)  # as on a network: the service may stop before the request arrives
        connection.sendall(HEALTH)
        return connection.recv(4096).startswith(b"HTTP/1.1 200 OK")


class CeaselessRequests:
    """Requests over new connections, one after the other, from two threads."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.answered = 0
        self.failures: list[str] = []
        self._ends = threading.Event()
        self._news = threading.Condition()
        self._threads = [threading.Thread(target=self._ask, daemon=True) for _ in range(2)]

    def begin(self) -> None:
        for thread in self._threads:
            thread.start()
        self._wait_for(2)

    def end(self) -> None:
        self._wait_for(self.answered + 2)
        self._ends.set()
        for thread in self._threads:
            thread.join(60)

    def _ask(self) -> None:
        while not self._ends.is_set():
            try:
                failure = "" if healthy(self.address) else "another answer"
            except OSError as exc:
                failure = repr(exc)
            with self._news:
                self.answered += not failure
                self.failures += [failure] if failure else []
                self._news.notify_all()

    def _wait_for(self, count: int) -> None:
        with self._news:
            assert self._news.wait_for(lambda: self.answered >= count or self.failures, 60)


def test_what_is_no_listening_socket_is_refused(fake: Upstream, tmp_path: Path) -> None:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
        handed_over(datagrams, fake, tmp_path) as program,
    ):
        program.wait_for("opencode-a2a: the socket that was handed over does not listen on TCP")
        assert program.process.wait(60) == 2
