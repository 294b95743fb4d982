"""The published documents, read as strangers read them: from the root, by a common validator."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, cast
from urllib.parse import unquote

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

from opencode_a2a.app import publication
from opencode_a2a.config import load
from opencode_a2a.domain.release import Release
from opencode_a2a.extensions import ALL
from opencode_a2a.extensions.declared import COMPATIBILITY, STREAM_HINTS
from opencode_a2a.inbound import routes
from opencode_a2a.inbound.health import Health
from opencode_a2a.inbound.openapi import Api
from opencode_a2a.inbound.operations import Operations
from opencode_a2a.inbound.published import Published
from tests.running import ROOT

Json = dict[str, Any]
SECRET = "a-secret-for-a-test"
BOTH = [
    {"scheme": "bearer", "token": SECRET, "principal": "p"},
    {"scheme": "basic", "username": "u", "password": SECRET, "principal": "q"},
]
DEPLOYMENTS: dict[str, dict[str, str]] = {
    "plain": {"A2A_BEARER_TOKEN": SECRET},
    "everything": {
        "A2A_STATIC_AUTH_CREDENTIALS": json.dumps(BOTH),
        "A2A_ENABLE_SESSION_SHELL": "true",
        "A2A_ENABLE_WORKSPACE_MUTATIONS": "true",
        "A2A_PUBLIC_URL": "https://agent.example.com/base",
    },
    "careful": {
        "A2A_BEARER_TOKEN": SECRET,
        "A2A_SHARED_SESSIONS": "false",
        "A2A_ALLOW_DIRECTORY_OVERRIDE": "false",
        "A2A_STRICT_VERSION": "true",
        "A2A_TASK_STORE_BACKEND": "memory",
    },
}


@pytest.fixture(scope="module", params=DEPLOYMENTS)
def published(request: pytest.FixtureRequest) -> Published:
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name, value in DEPLOYMENTS[request.param].items():
            monkeypatch.setenv(name, value)
        return publication(load(), "http://127.0.0.1:8000")


@pytest.fixture(scope="module")
def document(published: Published) -> Json:
    found: Json = json.loads(json.dumps(routes.document(published)))
    return found


def strings(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every text in a document, and where it stands."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from strings(value, (*path, str(key)))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from strings(value, (*path, str(index)))
    elif isinstance(node, str):
        yield path, node


def at(document: Any, pointer: str) -> Any:
    """What a JSON pointer in a URI fragment leads to, from the root of its document."""
    for step in pointer.removeprefix("#").split("/")[1:]:
        key = unquote(step).replace("~1", "/").replace("~0", "~")
        document = document[int(key)] if isinstance(document, list) else document[key]
    return document


def dangling(document: Any) -> list[str]:
    """References, also those of a discriminator, that lead nowhere."""
    lost = []
    for path, text in strings(document):
        if path[-1] == "$ref" or text.startswith("#/"):
            try:
                at(document, text)
            except (KeyError, IndexError, ValueError):
                lost.append(f"{'/'.join(path)}: {text}")
    return lost


def test_an_ordinary_validator_accepts_the_openapi_document(document: Json) -> None:
    validate(document)


def test_every_reference_leads_somewhere_from_the_root(
    published: Published, document: Json
) -> None:
    assert dangling(document) == []
    card = published.card
    for found in (card.extended_hybrid, card.extended_pure):
        assert dangling(found) == []
    for public in (card.hybrid, card.pure):
        assert dangling(json.loads(public.body)) == []


def test_every_reference_in_the_committed_documents_leads_somewhere() -> None:
    for path in sorted((ROOT / "tests" / "published").glob("*.json")):
        assert dangling(json.loads(path.read_bytes())) == [], path.name


def test_a_schema_in_a_contract_says_the_same_as_the_one_in_the_components(
    document: Json,
) -> None:
    """Each stands for itself: what one allows or refuses, so does the other."""
    calls = document["paths"]["/"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    declared = {call["title"]: call["properties"]["params"] for call in calls["oneOf"]}
    samples: list[Any] = [
        {},
        {"session_id": "ses_1"},
        {"session_id": "../x"},
        {"session_id": "ses_1", "limit": 1000},
        {"session_id": "ses_1", "request": {"command": "x", "arguments": ""}},
        {"session_id": "ses_1", "request": {"parts": [{"type": "text", "text": "x"}]}},
        {"session_id": "ses_1", "request": {"parts": [{"type": "nonsense"}]}},
        {"metadata": {"opencode": {"directory": "/x", "workspace": {"id": "wrk_1"}}}},
        {"metadata": {"opencode": {"workspace": {"id": "nonsense"}}}},
        {"request_id": "per_1", "reply": "once"},
        {"nonsense": 1},
    ]
    for extension in ALL:
        methods = document["x-a2a-extension-contracts"][extension.uri].get("methods", {})
        for name, about in methods.items():
            Draft202012Validator.check_schema(about["params"])
            alone = Draft202012Validator(about["params"])
            within = Draft202012Validator({**declared[name], "components": document["components"]})
            for sample in samples:
                assert alone.is_valid(sample) == within.is_valid(sample), (name, sample)


VERSION = {"A2A-Version"}
ANY = VERSION | {"A2A-Extensions", "X-A2A-Extensions", "traceparent"}
STREAM, SEND = {"Last-Event-ID", "after"}, {"Idempotency-Key", "A2A-Call-Depth"}
HONOURED = {
    "POST /": ANY | STREAM | SEND | {"Prefer"},
    "POST /message:send": ANY | SEND | {"Prefer"},
    "POST /message:stream": ANY | STREAM | SEND,
    "POST /tasks/{id}:subscribe": ANY | STREAM,
    "GET /v1/tasks/{id}:subscribe": ANY | STREAM,
    "GET /v1/tasks/{id}": ANY,
    "GET /.well-known/agent-card.json": VERSION,
    "GET /health": set[str](),
}


@pytest.mark.parametrize("endpoint", HONOURED)
def test_every_header_that_is_honoured_is_declared(document: Json, endpoint: str) -> None:
    verb, path = endpoint.split()
    declared = document["paths"][path][verb.lower()].get("parameters", [])
    named = {each["name"] for each in declared if each["in"] == "header" or each["name"] == "after"}
    assert named == HONOURED[endpoint]


def test_what_is_shown_without_activation_follows_from_the_deployment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("A2A_BEARER_TOKEN", SECRET)
    for blocks, everything in (("answer", False), ("all", True)):
        monkeypatch.setenv("A2A_STREAM_BLOCKS", blocks)
        card = publication(load(), "http://127.0.0.1:8000").card
        for each in (json.loads(card.pure.body), card.extended_pure):
            extensions = each["capabilities"]["extensions"]
            (hints,) = (e["params"] for e in extensions if e["uri"] == STREAM_HINTS.uri)
            for name in ("block_types", "roots"):
                assert (hints[f"{name}_without_activation"] == hints[name]) is everything


def test_what_is_said_of_pages_is_what_the_parameters_allow(document: Json) -> None:
    for contract in document["x-a2a-extension-contracts"].values():
        for name, pages in contract.get("pagination", {}).items():
            limit = contract["methods"][name]["params"]["properties"]["limit"]
            assert pages["limit"] == {"default": limit["default"], "maximum": limit["maximum"]}


@pytest.mark.parametrize("metrics", ["scope", "open"])
def test_what_is_open_to_everybody_is_published_as_that(
    monkeypatch: pytest.MonkeyPatch, metrics: str
) -> None:
    monkeypatch.setenv("A2A_BEARER_TOKEN", SECRET)
    monkeypatch.setenv("A2A_METRICS", metrics)
    monkeypatch.setenv("A2A_PUSH", "true")
    api = Api(publication(load(), "http://127.0.0.1:8000"))
    routes.add_routes(api, cast(Operations, None), Health({}), body_limit=0)
    paths = api.openapi()["paths"]
    assert {route.path for route in api.routes if route.is_public} > {"/health"}
    for route in api.routes:
        for described in paths.get(route.path, {}).values():
            assert (described.get("security") == []) is route.is_public, route.path


@pytest.mark.parametrize("backend", ["database", "memory"])
def test_only_who_keeps_tasks_promises_to_go_on_with_them(
    monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    monkeypatch.setenv("A2A_BEARER_TOKEN", SECRET)
    monkeypatch.setenv("A2A_TASK_STORE_BACKEND", backend)
    profile = publication(load(), "http://127.0.0.1:8000").profile
    features = profile["runtime_features"]["service_features"]
    assert features["recovery_after_restart"] is (backend == "database")


def test_the_profile_says_what_the_connected_opencode_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("A2A_BEARER_TOKEN", SECRET)
    connected: list[Release | None] = [None]
    published = publication(load(), "http://127.0.0.1:8000", release=lambda: connected[0])
    shown = []
    for release in (None, Release("1.17.19"), Release("1.18.33")):
        connected[0] = release
        extensions = published.card.extended_pure["capabilities"]["extensions"]
        (profile,) = (e["params"] for e in extensions if e["uri"] == COMPATIBILITY.uri)
        assert profile["runtime_features"] == published.profile["runtime_features"]
        opencode = profile["runtime_features"]["opencode"]
        shown.append((opencode["version"], list(opencode["lacks"])))
    older = [feature.name for feature in Release("1.17.19").lacks]
    assert older
    assert shown == [(None, []), ("1.17.19", older), ("1.18.33", [])]
