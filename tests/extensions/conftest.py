"""A real OpenCode with everything switched on, a service in front of it, and three callers."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from opencode_a2a.domain.scopes import Scope
from opencode_a2a.extensions import ALL
from tests.running import Service, Upstream, real_opencode, service

Json = dict[str, Any]
CALLERS = {
    "alice": [*Scope],
    "bob": [*Scope],
    "reader": [Scope.SESSIONS_READ],
}
EVERYTHING = {
    "A2A_ENABLE_SESSION_SHELL": "true",
    "A2A_ENABLE_WORKSPACE_MUTATIONS": "true",
    "A2A_PUSH": "true",
}
# The directory of the workspace in which OpenCode takes snapshots, without which it cannot tell or
# undo what a turn changed. They are half the work of a prompt, so elsewhere it takes none.
SNAPSHOTS = "snapshots"
PROMPTS = {"type": "local", "command": [sys.executable, "-m", "tests.extensions.prompts"]}
METHODS = {method.name: method for extension in ALL for method in extension.methods}


@dataclass
class Line:
    """A caller with its credential.

    What is asked with success, and each result, is held against what the service publishes.
    """

    http: httpx.Client

    @cached_property
    def published(self) -> Json:
        found: Json = self.http.get("/openapi.json").json()
        return found

    @cached_property
    def schemas(self) -> tuple[dict[str, Draft202012Validator], dict[str, Draft202012Validator]]:
        """Validators of requests and of responses, by method."""
        rpc = self.published["paths"]["/"]["post"]
        components = {"components": self.published["components"]}
        asked = rpc["requestBody"]["content"]["application/json"]["schema"]["oneOf"]
        told = rpc["responses"]["200"]["content"]["application/json"]["schema"]["anyOf"]
        requests, responses = (
            {each["title"]: Draft202012Validator(each | components) for each in listed}
            for listed in (asked, told)
        )
        return requests, responses

    def ask(self, method: str, params: Json | None = None, **headers: str) -> Json:
        body: Json = {"jsonrpc": "2.0", "id": 1, "method": method}
        if params is not None:
            body["params"] = params
        answer: Json = self.http.post("/", json=body, headers=headers).json()
        assert answer.keys() == {"jsonrpc", "id", "result"} or "error" in answer
        return answer

    def call(self, method: str, **params: Any) -> Json:
        answer = self.ask(method, params)
        assert "result" in answer, answer
        requests, responses = self.schemas
        requests[method].validate({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        responses[method].validate(answer)
        result: Json = answer["result"]
        return result

    def refused(self, method: str, **params: Any) -> Json:
        """The error's data; that the method declares such an error is checked on the way."""
        answer = self.ask(method, params)
        assert "error" in answer, answer
        error = answer["error"]
        declared = {kind.type: kind.rpc_code for kind in METHODS[method].all_errors}
        assert declared.get(error["data"]["type"]) == error["code"], f"undeclared: {error}"
        data: Json = error["data"]
        return data

    def converse(self, text: str, context: str, directory: str = ".") -> Json:
        """A task of this caller, to its end."""
        message = {"messageId": text, "role": "ROLE_USER", "parts": [{"text": text}]}
        params: Json = {"message": message | {"contextId": context}}
        if directory != ".":
            params["metadata"] = {"opencode": {"directory": directory}}
        answer = self.ask("SendMessage", params, **{"a2a-version": "1.0"})
        task: Json = answer["result"]["task"]
        assert task["status"]["state"] == "TASK_STATE_COMPLETED"
        return task

    def session(self, text: str, context: str) -> str:
        found: str = self.converse(text, context)["metadata"]["shared"]["session"]["id"]
        return found


@dataclass(frozen=True)
class Inside:
    """OpenCode itself, for what only its own users do."""

    http: httpx.Client
    workspace: Path

    @contextmanager
    def awaiting(self, kind: str, about: str = "") -> Iterator[None]:
        """Leave only when OpenCode has said that such a thing has happened since.

        A prompt that it has taken is not at work yet, nor even stored.
        """
        with self.http.stream("GET", "/global/event") as response:
            lines = (line for line in response.iter_lines() if line.startswith("data:"))
            next(lines)  # connected
            yield
            next(line for line in lines if f'"{kind}"' in line and about in line)

    def session(self, title: str, directory: Path | None = None) -> str:
        where = {"directory": str(directory or self.workspace)}
        answer = self.http.post("/session", params=where, json={"title": title})
        found: str = answer.json()["id"]
        return found


@pytest.fixture(scope="session")
def full_opencode(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
    directory = tmp_path_factory.mktemp("full")
    config = directory / "home" / ".config" / "opencode" / "opencode.json"
    config.parent.mkdir(parents=True)
    config.write_text(json.dumps({"snapshot": False}))
    with real_opencode(
        directory,
        {"OPENCODE_EXPERIMENTAL_WORKSPACES": "1"},
        share="disabled",
        command={
            "shout": {"template": "[[text:LOUD]] $ARGUMENTS", "description": "Say it loud"},
            "silent": {"template": "Say nothing"},
            "peek": {"template": "Look at @$1"},
            "tell": {"template": "It says !`echo told-$ARGUMENTS`"},
            "explain": {"template": "Explain `$ARGUMENTS` to me."},
            "compare": {"template": "Compare `$1` against $2 using `$3`."},
            "join": {"template": "!$1`$2`"},
        },
        mcp={"prompts": PROMPTS},
    ) as upstream:
        (upstream.workspace / SNAPSHOTS).mkdir()
        (upstream.workspace / SNAPSHOTS / "opencode.json").write_text(
            json.dumps({"snapshot": True})
        )
        yield upstream


@pytest.fixture(scope="session")
def inside(full_opencode: Upstream) -> Iterator[Inside]:
    login = ("opencode", full_opencode.password or "")
    with httpx.Client(base_url=full_opencode.base_url, auth=login, timeout=60) as http:
        yield Inside(http, full_opencode.workspace)


def settings(**more: str) -> dict[str, str]:
    known = [
        {"scheme": "bearer", "token": who, "principal": who, "scopes": scopes}
        for who, scopes in CALLERS.items()
    ]
    return {"A2A_STATIC_AUTH_CREDENTIALS": json.dumps(known), **more}


@pytest.fixture(scope="session")
def full_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the service has its home and its database."""
    return tmp_path_factory.mktemp("s")


@pytest.fixture(scope="session")
def full_service(full_opencode: Upstream, full_folder: Path) -> Iterator[Service]:
    """Everything switched on."""
    with service(full_opencode, full_folder, **settings(**EVERYTHING)) as running:
        yield running


@pytest.fixture(scope="session")
def plain_service(
    full_opencode: Upstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    """Nothing switched on, and nothing shared."""
    off = {"A2A_SHARED_SESSIONS": "false", "A2A_ALLOW_DIRECTORY_OVERRIDE": "false"}
    with service(full_opencode, tmp_path_factory.mktemp("p"), **settings(**off)) as running:
        yield running


@contextmanager
def line(running: Service, who: str) -> Iterator[Line]:
    headers = {"authorization": f"Bearer {who}"}
    with httpx.Client(base_url=running.url, headers=headers, timeout=60) as http:
        yield Line(http)


@pytest.fixture(scope="session")
def alice(full_service: Service) -> Iterator[Line]:
    with line(full_service, "alice") as caller:
        yield caller


@pytest.fixture(scope="session")
def bob(full_service: Service) -> Iterator[Line]:
    with line(full_service, "bob") as caller:
        yield caller


@pytest.fixture(scope="session")
def reader(full_service: Service) -> Iterator[Line]:
    with line(full_service, "reader") as caller:
        yield caller


@pytest.fixture(scope="session")
def plain(plain_service: Service) -> Iterator[Line]:
    with line(plain_service, "alice") as caller:
        yield caller
