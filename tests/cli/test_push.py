"""The commands about push notifications, as a person runs them."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.commands import command
from tests.receivers import receiver
from tests.running import TOKEN, Service, Upstream, isolated, running, service

Json = dict[str, Any]


@pytest.fixture(scope="module")
def pushing(fake: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    settings = {
        "A2A_PUSH": "true",
        "A2A_PUSH_PRIVATE_HOSTS": "127.0.0.1",
        "A2A_PUSH_RETRY_HOURS": "0.0001",
    }
    with service(fake, tmp_path_factory.mktemp("push-cli"), **settings) as found:
        yield found


def start(pushing: Service, config: Json) -> str:
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "Hello!"}]}
    configuration = {"returnImmediately": True, "taskPushNotificationConfig": config}
    body = {"message": message, "configuration": configuration}
    headers = pushing.headers | {"a2a-version": "1.0"}
    answer = httpx.post(f"{pushing.url}/message:send", json=body, headers=headers, timeout=60)
    task_id: str = answer.json()["task"]["id"]
    return task_id


def test_a_signing_key_that_cannot_be_used_is_told_at_the_start(
    fake: Upstream, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.pem"
    keys.write_text("no key")
    settings = {
        "A2A_PORT": "0",
        "A2A_PUSH": "true",
        "A2A_PUSH_SIGNING_KEYS": str(keys),
        "A2A_BEARER_TOKEN": TOKEN,
        "OPENCODE_BASE_URL": fake.base_url,
    }
    env = isolated(tmp_path, **settings)
    with running(command("opencode-a2a", "serve"), env) as starting:
        assert starting.process.wait(60) == 2
        starting.wait_for(r"A2A_PUSH_SIGNING_KEYS: .*keys\.pem: holds no private key")


def test_dead_letters_are_listed_and_sent_again(pushing: Service, tmp_path: Path) -> None:
    def push(*words: str) -> subprocess.CompletedProcess[str]:
        env = isolated(tmp_path, A2A_CLIENT_BEARER_TOKEN=TOKEN)
        return subprocess.run(
            command("opencode-a2a", "push", *words, "--service", pushing.url),
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    with receiver(lambda _: (500, {})) as webhook:
        task_id = start(pushing, {"url": webhook.url, "id": "mine"})
        listed = push("list", task_id, "--json")
        assert json.loads(listed.stdout) == [{"taskId": task_id, "id": "mine", "url": webhook.url}]
        _wait_for_letters(pushing, task_id)
        dead = json.loads(push("dead", task_id, "--json").stdout)
        assert [letter["error"] for letter in dead] == ["HTTP 500"] * 2
        failed = push("redeliver", task_id)
        assert (failed.returncode, failed.stdout) == (1, "0 delivered\n")
        assert "HTTP 500" in failed.stderr
        webhook.behaviour = lambda _: (204, {})
        done = push("redeliver", task_id)
        assert (done.returncode, done.stdout, done.stderr) == (0, "2 delivered\n", "")
    unknown = push("list", "no-such-task")
    assert unknown.returncode == 1
    assert "There is no task" in unknown.stderr


@pytest.mark.parametrize("words", [("list", "no-such-task"), ("dead",), ("redeliver",)])
def test_a_credential_does_not_go_to_a_proxy(
    pushing: Service, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """As with `call`: the commands speak with the service itself."""
    with receiver(lambda _: (502, {})) as proxy:
        proxies = dict.fromkeys(("HTTP_PROXY", "http_proxy", "ALL_PROXY"), proxy.url)
        env = isolated(tmp_path, A2A_CLIENT_BEARER_TOKEN=TOKEN, **proxies)
        asked = subprocess.run(
            command("opencode-a2a", "push", *words, "--service", pushing.url),
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert "no service answers" not in asked.stderr
        assert "not A2A" not in asked.stderr
    assert proxy.received == []


def _wait_for_letters(pushing: Service, task_id: str) -> None:
    method, params = "opencode.push.deadletters.list", {"task_id": task_id}
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    deadline = time.monotonic() + 60
    while True:
        answer = httpx.post(pushing.url, json=body, headers=pushing.headers, timeout=60).json()
        if len(answer["result"]["items"]) == 2:
            return
        assert time.monotonic() < deadline, answer
        time.sleep(0.05)
