"""A real Prometheus scrapes a service at work, and answers what the dashboard asks it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from tests.observe.test_deployed import DASHBOARD
from tests.receivers import receiver
from tests.running import Service, Upstream, isolated, running, service

PROMETHEUS = os.environ.get("PROMETHEUS") or shutil.which("prometheus")
pytestmark = pytest.mark.skipif(
    PROMETHEUS is None, reason="prometheus is not installed (Debian: apt install prometheus)"
)
ABOUT_PEERS = "outbound_call"  # for these, an agent must have called another one
CONFIG = """
global: {{ scrape_interval: 1s }}
scrape_configs:
  - job_name: opencode-a2a
    authorization: {{ credentials: {token} }}
    static_configs: [{{ targets: ["{target}"] }}]
"""


@contextmanager
def prometheus(folder: Path, run: Service) -> Iterator[httpx.Client]:
    """A Prometheus that scrapes a service every second."""
    target = run.url.removeprefix("http://")
    (folder / "prometheus.yml").write_text(CONFIG.format(token=run.token, target=target))
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [
        str(PROMETHEUS),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
    ]
    with running(command, isolated(folder / "home"), folder) as program:
        program.wait_for("Server is ready to receive web requests")
        with httpx.Client(base_url=f"http://{address}", timeout=60) as client:
            yield client


def answer(client: httpx.Client, query: str) -> list[object]:
    for name, value in (("$__rate_interval", "1m"), ("$job", ".*"), ("$instance", ".*")):
        query = query.replace(name, value)
    found = client.get("/api/v1/query", params={"query": query}).json()
    assert found["status"] == "success", (query, found)
    result: list[object] = found["data"]["result"]
    return result


def work(run: Service, fake: Upstream, *, told: str) -> None:
    """A bit of everything; a receiver at `told` hears of it."""
    headers = run.headers | {"A2A-Version": "1.0"}
    with httpx.Client(base_url=run.url, headers=headers, timeout=60) as client:

        def send(text: str, **more: str) -> dict[str, str]:
            parts = [{"text": text}]
            message = {"messageId": str(uuid.uuid4()), "role": "ROLE_USER", "parts": parts}
            body = {
                "message": message | more,
                "configuration": {"taskPushNotificationConfig": {"url": told}},
            }
            sent = client.post("/message:send", json=body).json()
            task: dict[str, str] = sent["task"]
            return task

        send("[[tokens:50]] [[tool:bash]]")
        send("[[error:401]]")
        waits = send("[[permission]]")
        send("yes", taskId=waits["id"], contextId=waits["contextId"])
        link = {"parts": [{"url": f"{fake.base_url}/x"}]}
        client.post(
            "/message:send", json={"message": {"messageId": "f", "role": "ROLE_USER"} | link}
        )


def queries(*, about_peers: bool) -> list[str]:
    board = json.loads(DASHBOARD.read_text())
    found = [t["expr"] for panel in board["panels"] for t in panel.get("targets", [])]
    return [each for each in found if (ABOUT_PEERS in each) == about_peers]


def until_answered(client: httpx.Client, asked: list[str], act: Callable[[], None]) -> None:
    deadline = time.monotonic() + 120
    while True:  # a rate needs two scrapes with something between them
        act()
        empty = [query for query in asked if not answer(client, query)]
        if not empty:
            return
        assert time.monotonic() < deadline, empty
        time.sleep(1)  # until the next scrape


def test_prometheus_has_an_answer_to_every_query_of_the_dashboard(
    fake: Upstream, tmp_path: Path
) -> None:
    push = {"A2A_PUSH": "true", "A2A_PUSH_PRIVATE_HOSTS": "127.0.0.1"}
    with (
        receiver() as told,
        service(fake, tmp_path, **push) as run,
        prometheus(tmp_path, run) as client,
    ):
        asked = queries(about_peers=False)
        until_answered(client, asked, lambda: work(run, fake, told=told.url))
        assert answer(client, 'up{job="opencode-a2a"} == 1')
        spent = answer(client, "sum(opencode_a2a_cost_dollars_total)")
        assert len(spent) == 1


def test_and_to_those_about_other_agents(
    opencode: Upstream, fake_service: Service, tmp_path: Path
) -> None:
    config, workspace = tmp_path / "peers.toml", tmp_path / "workspace"
    config.write_text(
        f'[peers.helper]\nurl = "{fake_service.url}"\nbearer_token = "env:PEER_TOKEN"\n'
    )
    workspace.mkdir()  # of its own: tools are registered for a directory
    subprocess.run(["git", "init", "-q"], cwd=workspace, check=True, env=isolated(tmp_path))
    calling = replace(opencode, workspace=workspace)
    call = json.dumps({"peer": "helper", "message": "hello"})
    with (
        service(calling, tmp_path, config=str(config), PEER_TOKEN=fake_service.token) as run,
        prometheus(tmp_path, run) as client,
        httpx.Client(base_url=run.url, headers=run.headers, timeout=120) as caller,
    ):

        def ask() -> None:
            parts = [{"text": f"[[tool:a2a_call {call}]]"}]
            message = {"messageId": str(uuid.uuid4()), "role": "ROLE_USER", "parts": parts}
            headers = {"A2A-Version": "1.0"}
            sent = caller.post("/message:send", json={"message": message}, headers=headers)
            assert "helper: completed" in sent.text

        until_answered(client, queries(about_peers=True), ask)
