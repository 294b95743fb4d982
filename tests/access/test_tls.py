"""The service with a certificate of its own."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
import time
from pathlib import Path

import httpx

from tests.fakes.certificates import Authority
from tests.running import Upstream, isolated, service

HEADERS = {"A2A-Version": "1.0"}


def test_it_serves_https_and_takes_a_renewed_certificate_without_ending_a_stream(
    fake: Upstream, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    pair = authority.sign("server", "127.0.0.1")
    trust = ssl.create_default_context(cafile=str(authority.certificate))
    files = {"A2A_TLS_CERTIFICATE": str(pair.certificate), "A2A_TLS_KEY": str(pair.key)}
    with (
        service(fake, tmp_path, **files) as running,
        httpx.Client(
            verify=trust, base_url=running.url, headers=running.headers | HEADERS, timeout=60
        ) as client,
    ):
        assert running.url.startswith("https://127.0.0.1:")
        card = client.get("/.well-known/agent-card.json").json()
        assert card["supportedInterfaces"][0]["url"] == running.url
        json_type = {"content-type": "application/json"}
        too_large = client.post("/message:send", content=b"x" * 17_000_000, headers=json_type)
        assert too_large.status_code == 413  # and it can be read
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "[[hang]] hello"}]}
        with client.stream("POST", "/message:stream", json={"message": message}) as response:
            lines = response.iter_lines()
            first = json.loads(next(each for each in lines if each.startswith("data:"))[5:])
            before = served_by(running.url, authority)
            authority.sign("server", "127.0.0.1")
            deadline = time.monotonic() + 60
            while served_by(running.url, authority) == before:
                assert time.monotonic() < deadline
                time.sleep(0.2)
            task = first["task"]["id"]
            client.post(f"/tasks/{task}:cancel", json={})
            assert "TASK_STATE_CANCELED" in "".join(lines)  # the stream has gone on
        assert is_ready(running.url, tmp_path, **files) == 0
        assert client.get("/tasks").status_code == 200
    assert running.program.process.returncode == 0


def served_by(url: str, authority: Authority) -> bytes:
    """The certificate that a new connection gets."""
    address = httpx.URL(url)
    found = ssl.get_server_certificate(
        (address.host, address.port or 443), ca_certs=str(authority.certificate), timeout=60
    )
    return found.encode()


def is_ready(url: str, folder: Path, **env: str) -> int:
    """The exit code of `status --ready`, as the health check of a container asks."""
    port = str(httpx.URL(url).port)
    command = [str(Path(sys.executable).parent / "opencode-a2a"), "status", "--ready"]
    asked = subprocess.run(
        command, env=isolated(folder / "home", A2A_PORT=port, **env), timeout=60, check=False
    )
    return asked.returncode


def test_a_certificate_that_cannot_be_used_stops_the_start(fake: Upstream, tmp_path: Path) -> None:
    pair = Authority(tmp_path).sign("server")
    other = Authority(tmp_path).sign("other")
    env = isolated(
        tmp_path / "home",
        OPENCODE_BASE_URL=fake.base_url,
        A2A_BEARER_TOKEN="a-token-that-is-long",
        A2A_PORT="0",
        A2A_TLS_CERTIFICATE=str(pair.certificate),
        A2A_TLS_KEY=str(other.key),
    )
    command = [str(Path(sys.executable).parent / "opencode-a2a"), "serve"]
    ran = subprocess.run(
        command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 2
    assert f"opencode-a2a: A2A_TLS_KEY: is not the key of {pair.certificate}" in ran.stderr
