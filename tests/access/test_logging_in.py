"""Every way to log in, at a running service."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import httpx
import pytest

from tests.access.conftest import Guarded

V1 = {"A2A-Version": "1.0"}


def until(condition: Callable[[], bool]) -> None:
    """A change of the credentials file counts within a second; the machine may be busy."""
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_token_of_the_issuer_is_let_in(guarded: Guarded) -> None:
    token = guarded.provider.token(scope="agent.run other")
    assert guarded.get("/tasks", token).status_code == 200
    assert guarded.get("/tasks", token).json()["tasks"] == []


def test_what_it_may_do_is_what_the_map_says(guarded: Guarded) -> None:
    token = guarded.provider.token(scope="tasks:read admin")  # names of ours mean nothing there
    refused = guarded.get("/tasks", token)
    assert refused.status_code == 403
    assert "tasks:read" in refused.text
    auditor = guarded.provider.token(scope="agent.audit")
    assert guarded.get("/tasks?principal=*", auditor).status_code == 200


@pytest.mark.parametrize("path", ["/tasks", "/"])
def test_a_token_that_is_not_valid_gets_401_and_why(guarded: Guarded, path: str) -> None:
    token = guarded.provider.token(exp=1)
    refused = httpx.post(guarded.url + path, headers={"authorization": f"Bearer {token}", **V1})
    assert refused.status_code == 401
    assert "has expired" in refused.text
    assert token not in refused.text
    assert token not in guarded.service.program.output


def test_an_api_key_goes_into_its_own_header(guarded: Guarded) -> None:
    assert guarded.get("/tasks", x_api_key="key-of-carol").status_code == 200
    assert guarded.get("/tasks", "key-of-carol").status_code == 401
    assert guarded.get("/tasks", x_api_key="alice-token").status_code == 401


def test_a_certificate_counts_where_a_trusted_proxy_names_it(guarded: Guarded) -> None:
    assert guarded.get("/tasks", x_client_subject="CN=dora").status_code == 200
    assert guarded.get("/tasks", x_client_subject="CN=eve").status_code == 401
    transport = httpx.HTTPTransport(local_address="127.0.3.1")
    with httpx.Client(transport=transport, base_url=guarded.url, timeout=60) as stranger:
        refused = stranger.get("/tasks", headers={"X-Client-Subject": "CN=dora"})
    assert refused.status_code == 401


def test_tokens_are_made_rotated_and_revoked_while_the_service_runs(guarded: Guarded) -> None:
    assert guarded.token("create", "ci", "--scopes", "auditor", "--expires", "1d").returncode == 0
    assert guarded.token("create", "ci").returncode == 1
    first = guarded.token("rotate", "ci").stdout.strip()
    until(lambda: guarded.get("/tasks?principal=*", first).status_code == 200)
    second = guarded.token("rotate", "ci", "--overlap", "1h").stdout.strip()
    until(lambda: guarded.get("/tasks", second).status_code == 200)
    assert guarded.get("/tasks", first).status_code == 200  # both, for an hour
    assert guarded.get("/tasks", x_api_key=second).status_code == 200
    assert guarded.token("revoke", "ci").returncode == 0
    until(lambda: guarded.get("/tasks", second).status_code == 401)
    assert guarded.get("/tasks", first).status_code == 401
    kept = guarded.file.read_text() + guarded.service.program.output
    assert first not in kept
    assert second not in kept


def test_a_stream_ends_when_its_token_is_revoked(guarded: Guarded) -> None:
    token = guarded.token("create", "watcher").stdout.strip()
    until(lambda: guarded.get("/tasks", token).status_code == 200)
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "[[hang]] hello"}]}
    headers = {"authorization": f"Bearer {token}", **V1}
    url = f"{guarded.url}/message:stream"
    with httpx.stream("POST", url, json={"message": message}, headers=headers, timeout=60) as sent:
        events = sent.iter_lines()
        first = json.loads(next(line for line in events if line.startswith("data:"))[5:])
        guarded.token("revoke", "watcher")
        with pytest.raises(httpx.RemoteProtocolError):
            for _ in events:
                pass
    ops = {"authorization": "Bearer ops-token", **V1}
    task = first["task"]["id"]
    httpx.post(f"{guarded.url}/tasks/{task}:cancel", headers=ops, json={}, timeout=60)


def test_a_file_that_is_broken_revokes_nobody(guarded: Guarded) -> None:
    token = guarded.token("create", "steady").stdout.strip()
    until(lambda: guarded.get("/tasks", token).status_code == 200)
    good = guarded.file.read_text()
    guarded.file.write_text("{")
    guarded.service.program.wait_for("event=credentials.not_read")
    assert guarded.get("/tasks", token).status_code == 200
    guarded.file.write_text(good)
    assert guarded.token("revoke", "steady").returncode == 0
    until(lambda: guarded.get("/tasks", token).status_code == 401)


def test_the_card_says_how_to_log_in(guarded: Guarded) -> None:
    card = guarded.get("/.well-known/agent-card.json").json()
    kinds = {name: scheme["type"] for name, scheme in card["securitySchemes"].items()}
    assert kinds == {
        "bearer": "http",
        "apiKey": "apiKey",
        "openIdConnect": "openIdConnect",
        "mutualTLS": "mutualTLS",
    }
    assert card["security"] == [{name: []} for name in kinds]
    url = card["securitySchemes"]["openIdConnect"]["openIdConnectUrl"]
    assert httpx.get(url, timeout=60).json()["issuer"] == guarded.provider.url


def test_an_issuer_that_does_not_answer_is_503_and_nobody_is_refused_for_it(
    guarded: Guarded,
) -> None:
    guarded.provider.is_down = True
    try:
        known = guarded.provider.token(scope="agent.run")
        assert guarded.get("/tasks", known).status_code == 200  # its key is known
        unknown = known.split(".")
        unknown[0] = "eyJhbGciOiJSUzI1NiIsImtpZCI6Im5ldyJ9"  # {"alg":"RS256","kid":"new"}
        # The keys were fetched when the service started, so they may be fetched again by now.
        until(lambda: guarded.get("/tasks", ".".join(unknown)).status_code == 503)
        refused = guarded.get("/tasks", ".".join(unknown))
        assert refused.headers["retry-after"].isdigit()
        assert "ISSUER_UNAVAILABLE" in refused.text
    finally:
        guarded.provider.is_down = False
