"""A real OpenCode with everything switched on, a service in front of it, and three callers."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
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
from tests.extensions.inside import Inside
from tests.features import release
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
METHODS = {method.name.removeprefix("opencode."): method for each in ALL for method in each.methods}
MISSING = {name for name, m in METHODS.items() if m.needs in release().lacks}
MODEL = {"providerID": "demo", "modelID": "demo"}
V1 = {"a2a-version": "1.0"}


def full_name(method: str) -> str:
    return method if method.startswith("a2a.") else f"opencode.{method}"


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
        """The result of an extension method."""
        method = full_name(method)
        answer = self.ask(method, params)
        assert "result" in answer, answer
        requests, responses = self.schemas
        requests[method].validate({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        responses[method].validate(answer)
        result: Json = answer["result"]
        return result

    def refused(self, method: str, **params: Any) -> Json:
        """The error's data; that the method declares such an error is checked on the way."""
        answer = self.ask(full_name(method), params)
        assert "error" in answer, answer
        error = answer["error"]
        declared = {kind.type: kind.rpc_code for kind in METHODS[method].all_errors}
        assert declared.get(error["data"]["type"]) == error["code"], f"undeclared: {error}"
        data: Json = error["data"]
        return data

    def refused_field(self, method: str, **params: Any) -> str:
        """The one field for whose sake a request is refused."""
        error = self.refused(method, **params)
        assert error["type"] == "INVALID_PARAMS", error
        [field] = error["fields"]
        return str(field)

    def send(self, text: str, context: str | None = None, **metadata: Any) -> Json:
        """The task that comes of a message with this metadata, or the error."""
        message: Json = {"messageId": fresh(), "role": "ROLE_USER", "parts": [{"text": text}]}
        message |= {"contextId": context} if context else {}
        modes = {"acceptedOutputModes": ["text/plain", "text/x-diff"]}
        params = {"message": message, "metadata": metadata, "configuration": modes}
        answer = self.ask("SendMessage", params, **V1)
        found: Json = answer["result"]["task"] if "result" in answer else answer["error"]
        return found

    def converse(self, text: str, context: str | None = None, **metadata: Any) -> Json:
        """A task of this caller, to its end."""
        task = self.send(text, context, **metadata)
        assert task["status"]["state"] == "TASK_STATE_COMPLETED", task
        return task

    def session(self, text: str, context: str | None = None) -> str:
        return session_of(self.converse(text, context))

    def listed(self, **params: Any) -> list[str]:
        """The ids of the sessions that it is shown."""
        items = self.call("sessions.list", limit=100, **params)["items"]
        return [item["id"] for item in items]


def fresh() -> str:
    return uuid.uuid4().hex


def session_of(task: Json) -> str:
    found: str = task["metadata"]["shared"]["session"]["id"]
    return found


def git(folder: Path, *words: str) -> str:
    author = ("-c", "user.name=test", "-c", "user.email=test@example.invalid")
    ran = subprocess.run(
        ["git", *author, *words], cwd=folder, check=True, capture_output=True, text=True
    )
    return ran.stdout.strip()


def tool(name: str, **arguments: Any) -> str:
    """Has the scripted model call a tool, by the names that 1.x has for it and its arguments."""
    return f"[[tool:{name} {json.dumps(arguments)}]]"


def sub_agent(prompt: str) -> str:
    return tool("task", description="sub", prompt=prompt, subagent_type="general")


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
    with Inside.of(full_opencode) as directly:
        yield directly


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


@contextmanager
def line(running: Service, who: str = "alice") -> Iterator[Line]:
    headers = {"authorization": f"Bearer {who}"}
    with httpx.Client(base_url=running.url, headers=headers, timeout=60) as http:
        yield Line(http)


@contextmanager
def line_of(upstream: Upstream, folder: Path, who: str = "alice", **more: str) -> Iterator[Line]:
    """A caller of another service on this OpenCode."""
    with service(upstream, folder, **settings(**more)) as running, line(running, who) as caller:
        yield caller


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
def plain(full_opencode: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    """Alice, where nothing is switched on, and nothing shared."""
    off = {"A2A_SHARED_SESSIONS": "false", "A2A_ALLOW_DIRECTORY_OVERRIDE": "false"}
    with line_of(full_opencode, tmp_path_factory.mktemp("p"), **off) as caller:
        yield caller
