"""Whether an instance works: it lives, it is ready, and a question is answered."""

from __future__ import annotations

import base64
import json
import ssl
import time
from collections.abc import Mapping
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import (
    BaseHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    build_opener,
)
from uuid import uuid4

from .resources import DeployError

QUESTION = "Answer with one word: are you ready?"
READY_SECONDS, ANSWER_SECONDS, PAUSE = 90.0, 120.0, 0.5


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *_: object, **__: object) -> None:
        return None


def direct_opener(*, verified: bool = True) -> OpenerDirector:
    """Opens an address itself: no proxy and no redirect may lead a credential elsewhere.

    With `verified` false any certificate will do.
    """
    handlers: list[BaseHandler | type[BaseHandler]] = [ProxyHandler({}), _NoRedirects]
    if not verified:
        handlers.append(HTTPSHandler(context=ssl._create_unverified_context()))
    return build_opener(*handlers)


def login(secrets: Mapping[str, str]) -> str | None:
    """The value of `Authorization` for one of the callers; None where no secret file has one."""
    if token := secrets.get("A2A_BEARER_TOKEN"):
        return f"Bearer {token.strip()}"
    try:
        callers = json.loads(secrets.get("A2A_STATIC_AUTH_CREDENTIALS") or "[]")
    except ValueError:
        return None
    for caller in callers if isinstance(callers, list) else []:
        if caller.get("enabled", True) and caller.get("token"):
            return f"Bearer {caller['token']}"
        if caller.get("enabled", True) and caller.get("password"):
            both = f"{caller.get('username')}:{caller['password']}"
            return f"Basic {base64.b64encode(both.encode()).decode()}"
    return None


def wait_until_ready(url: str, authorization: str | None, seconds: float = READY_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    last = ""
    while time.monotonic() < deadline:
        try:
            _request(f"{url}/ready", authorization, timeout=5)
            return
        except HTTPError as exc:
            last = f"{exc.code} {exc.read(500).decode(errors='replace')}"
        except (OSError, URLError) as exc:
            last = str(getattr(exc, "reason", exc))
        time.sleep(PAUSE)
    raise DeployError(f"{url} was not ready within {seconds:g} s. Its last answer: {last}")


def ask(url: str, authorization: str, seconds: float = ANSWER_SECONDS) -> str:
    """Ask the agent something; its answer."""
    message = {"messageId": str(uuid4()), "role": "ROLE_USER", "parts": [{"text": QUESTION}]}
    try:
        body = _request(
            f"{url}/message:send", authorization, content={"message": message}, timeout=seconds
        )
    except HTTPError as exc:
        said = exc.read(500).decode(errors="replace")
        raise DeployError(f"{url} refused a question: {exc.code} {said}") from None
    except (OSError, URLError) as exc:
        raise DeployError(f"{url} did not answer a question: {exc}") from None
    task = body.get("task") or {}
    state = task.get("status", {}).get("state")
    if state != "TASK_STATE_COMPLETED":
        parts = task["status"].get("message", {}).get("parts", [])
        why = " ".join(part.get("text", "") for part in parts)
        raise DeployError(f"the agent did not answer a question ({state}): {why}")
    texts = [part.get("text", "") for a in task.get("artifacts", []) for part in a["parts"]]
    return " ".join(" ".join(texts).split())


def _request(
    url: str, authorization: str | None, *, timeout: float, content: object = None
) -> dict[str, Any]:
    headers = {"A2A-Version": "1.0", "Content-Type": "application/json"}
    if authorization is not None:
        headers["Authorization"] = authorization
    data = None if content is None else json.dumps(content).encode()
    with direct_opener().open(Request(url, data, headers), timeout=timeout) as response:
        try:
            body = json.load(response)
        except ValueError:
            body = None
    if not isinstance(body, dict):
        raise URLError("what listens there is no opencode-a2a")
    return body
