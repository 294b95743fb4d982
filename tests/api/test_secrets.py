"""Secrets stay where they are: not in an answer, not in the log, whatever goes wrong."""

from __future__ import annotations

import base64
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.api.forms import FORMS, REST_1, RPC_1, Form, line_to
from tests.running import Service, Upstream, fake_opencode, service

TOKEN = "sk-inbound-5ecre7-token"
PASSWORD = "inbound-5ecre7-password"
UPSTREAM = "upstream-5ecre7-password"
GUESS = "guessed-5ecre7-token"
LOGIN = base64.b64encode(f"opencode:{UPSTREAM}".encode()).decode()
HIDDEN = (
    "5ecre7",  # in each of the above
    LOGIN,
    base64.b64encode(f"caller:{PASSWORD}".encode()).decode(),
    "fake-secret-key",  # what the fake's provider and its errors carry
    "secret body",
    "x-secret",
)


def settings(upstream_password: str) -> dict[str, str]:
    known = [
        {"scheme": "bearer", "principal": "a", "token": TOKEN},
        {"scheme": "basic", "principal": "b", "username": "caller", "password": PASSWORD},
    ]
    return {
        "A2A_STATIC_AUTH_CREDENTIALS": json.dumps(known),
        "A2A_LOG_LEVEL": "debug",
        "OPENCODE_AUTH_PASSWORD": upstream_password,
        "OPENCODE_TIMEOUT": "2",
    }


def ask(client: httpx.Client, form: Form, *texts: str) -> list[httpx.Response]:
    """Requests that work, and requests that do not."""
    return [
        *(form.call(client, "send", form.sending(text)) for text in texts),
        *(form.call(client, name, {"id": "x"}) for name in ("get", "cancel", "push.list", "card")),
        client.post("/", content=b"{", headers={"content-type": "application/json"}),
        client.get("/nothing"),
        client.get("/ready"),
    ]


def provoke(running: Service, upstream: Upstream) -> list[httpx.Response]:
    """Everything that can go wrong with a credential near it, several at a time."""
    bearer = line_to(running, headers={"authorization": f"Bearer {TOKEN}"})
    basic = line_to(running, headers={}, auth=("caller", PASSWORD))
    wrong = [
        line_to(running, headers={"authorization": f"Bearer {GUESS}"}),
        line_to(running, headers={}, auth=("caller", GUESS)),
    ]
    failing = ("[[error:400]]", "[[error:401]]", "[[error:500]]")
    with bearer, basic, wrong[0], wrong[1], ThreadPoolExecutor(20) as pool:
        jobs = [pool.submit(ask, basic, form, "hello") for form in FORMS]
        jobs += [pool.submit(ask, bearer, form, text) for form in FORMS for text in failing]
        jobs += [pool.submit(ask, client, RPC_1, "hello") for client in wrong]
        seen = [response for job in jobs for response in job.result()]
        for mode in ("refuse-prompt", "html", "down"):
            httpx.post(f"{upstream.base_url}/__fault", json={"mode": mode}, timeout=60)
            texts = () if mode == "down" else ("hello",)  # that would be waited for
            seen += ask(bearer, REST_1, *texts)
        for path in ("/.well-known/agent-card.json", "/openapi.json", "/health"):
            seen.append(bearer.get(path))
    return seen


@pytest.mark.parametrize("right", [True, False], ids=["right password", "wrong password"])
def test_no_secret_is_returned_or_logged(tmp_path: Path, right: bool) -> None:
    password = UPSTREAM if right else f"wrong-{UPSTREAM}"
    with (
        fake_opencode(tmp_path / "upstream", "--password", UPSTREAM) as upstream,
        service(upstream, tmp_path / "service", **settings(password)) as running,
    ):
        seen = provoke(running, upstream)
    completed = any('"state":"TASK_STATE_COMPLETED"' in response.text for response in seen)
    assert completed == right
    assert {response.status_code for response in seen} >= {200, 400, 401, 404}
    said = "\n".join(f"{response.headers}{response.text}" for response in seen)
    for where, text in (("an answer", said), ("the log", running.program.output)):
        for secret in HIDDEN:
            assert secret not in text, f"{secret} is in {where}"
    assert "event=request" in running.program.output
