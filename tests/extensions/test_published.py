"""What is published is what can be called, and the other way round."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from a2a.compat.v0_3 import types as v03
from a2a.types.a2a_pb2 import AgentCard

from opencode_a2a.app import publication
from opencode_a2a.config import load
from opencode_a2a.contract.declare import SPECIFICATIONS
from opencode_a2a.extensions import ALL
from opencode_a2a.inbound.console import Console, ConsoleFacts, is_built
from opencode_a2a.inbound.health import Health
from opencode_a2a.inbound.openapi import Api
from opencode_a2a.inbound.operations import A2A, Operations
from opencode_a2a.inbound.routes import add_routes
from tests.api.forms import FORMS, Form
from tests.cli.commands import run
from tests.e2e.protojson import from_json
from tests.extensions.conftest import EVERYTHING, METHODS, MISSING, Json, Line, settings
from tests.features import release
from tests.running import ROOT, TOKEN

CARD = "/.well-known/agent-card.json"
NAMES = {method.name for method in METHODS.values()}
CONDITIONAL = {method.name for name, method in METHODS.items() if method.toggle or name in MISSING}


def uri(anchor: str) -> str:
    return f"{SPECIFICATIONS}#{anchor}"


def extended(line: Line, form: Form = FORMS[0]) -> Json:
    found: Json = form.result(form.call(line.http, "card"))
    return found


def params(card: Json) -> dict[str, Json]:
    return {e["uri"]: e.get("params", {}) for e in card["capabilities"]["extensions"]}


def wire(line: Line) -> Json:
    return params(extended(line))[uri("a2a-wire-contract-v1")]


def profile(line: Line) -> Json:
    return params(extended(line))[uri("a2a-compatibility-profile-v1")]


# -- the cards


def test_the_public_card_says_no_more_than_everybody_should_know(alice: Line) -> None:
    card = httpx.get(str(alice.http.base_url) + CARD, timeout=60).json()
    told = params(card)
    assert list(told) == [extension.uri for extension in ALL]
    for extension in ALL:
        assert told[extension.uri] == dict(extension.public)
        if extension.scope != "shared":
            assert not extension.public
    assert "opencode.sessions" not in json.dumps(card)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_the_extended_card_is_served_in_every_form(alice: Line, form: Form) -> None:
    card = extended(alice, form)
    if form.line == "1.0":
        assert from_json(card, AgentCard).capabilities.extended_agent_card
    else:
        assert v03.AgentCard.model_validate(card).supports_authenticated_extended_card
    told = params(card)
    for extension in ALL:
        assert told[extension.uri].items() >= dict(extension.public).items()
        assert set(told[extension.uri].get("methods", {})) == {m.name for m in extension.methods}
    public = httpx.get(
        str(alice.http.base_url) + CARD, headers=form.version, timeout=60, verify=False
    ).json()
    assert {k: v for k, v in card.items() if k != "capabilities"} == {
        k: v for k, v in public.items() if k != "capabilities"
    }


# -- the wire contract and what answers


def known_at_runtime(line: Line) -> list[str]:
    """What the service itself says when it is asked for something that is not there."""
    error = line.ask("nonsense.method")["error"]
    assert error["code"] == -32601
    assert error["data"].keys() == set(wire(line)["unsupported_method_error"]["data_fields"])
    found: list[str] = error["data"]["supported_methods"]
    return found


@pytest.mark.parametrize("who", ["alice", "plain"])
def test_every_method_that_is_declared_is_there_and_no_other(
    who: str, request: pytest.FixtureRequest
) -> None:
    line: Line = request.getfixturevalue(who)
    contract = wire(line)
    assert contract["all_jsonrpc_methods"] == known_at_runtime(line)
    assert contract["all_jsonrpc_methods"] == [
        *contract["core"]["jsonrpc_methods"],
        *contract["extensions"]["jsonrpc_methods"],
    ]
    conditional = contract["extensions"]["conditionally_available_methods"]
    assert set(conditional) == CONDITIONAL
    requests, responses = line.schemas  # also of what is off
    assert requests.keys() == responses.keys() - {"error"}
    assert requests.keys() == {*contract["all_jsonrpc_methods"], *conditional}
    for name in {*A2A.methods, *NAMES}:
        error = line.ask(name, {"nonsense": 1}).get("error", {"code": 0, "data": {}})
        assert error["code"] != -32601
        disabled = error["code"] == -32055
        refused = error["code"] == -32003  # push: known to A2A, not offered here
        assert (name in contract["all_jsonrpc_methods"]) is not (disabled or refused), name
        if name in conditional:
            assert conditional[name]["availability"] == ("disabled" if disabled else "enabled")


def test_every_endpoint_that_is_declared_answers_and_no_other(alice: Line) -> None:
    declared = set(wire(alice)["core"]["http_endpoints"])
    for endpoint in declared:
        verb, path = endpoint.split()
        answer = alice.http.request(verb, re.sub("{.*?}", "x", path), json={})
        explained = "no task with this id" in answer.text
        missing = answer.status_code == 404 and not explained
        assert not missing, endpoint
        assert answer.status_code != 405, endpoint
    described = {
        f"{verb.upper()} {path}"
        for path, verbs in alice.published["paths"].items()
        for verb, about in verbs.items()
        if "200" in about["responses"]
    }
    pages = {"GET /openapi.json"}
    if is_built():  # otherwise there is nothing to declare
        pages |= {"GET /console", "GET /console/{path}"}
    assert described | pages == declared


async def test_no_route_is_there_that_is_not_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that do something: a method of push answers that there is no such thing here."""
    monkeypatch.setenv("A2A_BEARER_TOKEN", TOKEN)
    published = publication(load(), "http://127.0.0.1:8000")
    api = Api(published)
    stopping = asyncio.get_running_loop().create_future()
    operations = Operations(cast(Any, None), published.card, stopping)
    console = Console(ConsoleFacts("1", "Agent"))
    add_routes(api, operations, Health({}), 1024, console=console)
    served = {
        f"{verb} {route.path.removeprefix('/{tenant}').replace(':path}', '}')}"
        for route in api.routes
        for verb in route.methods or ()
        if verb != "HEAD" and "pushNotificationConfigs" not in route.path
    }
    assert served == set(published.wire_contract["core"]["http_endpoints"])


# -- the profile


def test_the_profile_follows_the_settings(alice: Line, plain: Line) -> None:
    on, off = profile(alice), profile(plain)
    for found, enabled in ((on, True), (off, False)):
        assert found["profile_id"] == "opencode-a2a-single-tenant-coding-v1"
        assert found["deployment"]["shared_sessions"] is enabled
        features = found["runtime_features"]
        for name in ("directory_binding", "session_shell", "workspace_mutations"):
            assert features[name]["enabled"] is enabled
        shell = found["method_retention"]["opencode.sessions.shell"]
        assert shell["availability"] == ("enabled" if enabled else "disabled")
        assert shell["toggle"] == "A2A_ENABLE_SESSION_SHELL"
    kept = on["method_retention"]
    there = {name for name, about in kept.items() if about["availability"] != "disabled"}
    assert there == {*known_at_runtime(alice)}
    assert set(on["extension_retention"]) == {extension.uri for extension in ALL}


def test_what_this_opencode_lacks_is_declared_and_refused_with_the_reason(alice: Line) -> None:
    told = profile(alice)["runtime_features"]["opencode"]
    conditional = wire(alice)["extensions"]["conditionally_available_methods"]
    assert told["version"] == release().version
    assert told["lacks"] == {each.name: {"effect": each.effect} for each in release().lacks}
    for name in MISSING:
        method = METHODS[name]
        assert method.needs is not None
        reason = method.needs.effect
        assert conditional[method.name] == {"availability": "disabled", "reason": reason}
        error = alice.ask(method.name, {})["error"]
        assert (error["data"]["type"], error["message"]) == ("METHOD_DISABLED", reason)


# -- on the command line


def without_opencode(node: Any) -> Any:
    """A document without what only a running service knows: the version of its OpenCode."""
    if isinstance(node, list):
        return [without_opencode(each) for each in node]
    if not isinstance(node, dict):
        return node
    return {
        key: {name: about for name, about in value.items() if name != "opencode"}
        if key == "runtime_features"
        else without_opencode(value)
        for key, value in node.items()
    }


def test_the_command_line_prints_what_is_served(alice: Line, tmp_path: Path) -> None:
    """It does not ask OpenCode, so it prints what the newest version of 1.x has."""
    here = str(alice.http.base_url).rstrip("/")
    env = settings(A2A_PUBLIC_URL=here, **EVERYTHING)
    documents = (
        (["card"], httpx.get(here + CARD, timeout=60).json()),
        (["card", "--extended"], alice.ask("agent/getAuthenticatedExtendedCard")["result"]),
        (["openapi"], alice.published),
    )
    for words, served in documents[: 1 if MISSING else None]:
        ran = run(tmp_path, "opencode-a2a", *words, **env)
        assert (ran.code, ran.err) == (0, "")
        assert without_opencode(json.loads(ran.out)) == without_opencode(served)


# -- the pages


def test_every_extension_has_its_section() -> None:
    page = (ROOT / "docs" / "extension-specifications.md").read_text()
    headings = {
        line.removeprefix("## ").lower().replace(" ", "-")
        for line in page.splitlines()
        if line.startswith("## ")
    }
    for extension in ALL:
        assert extension.anchor in headings
        assert extension.uri in page
        for method in extension.methods:
            prefix, _, last = method.name.rpartition(".")
            assert f"`{method.name}`" in page or (f"`{prefix}." in page and f"`{last}`" in page)
