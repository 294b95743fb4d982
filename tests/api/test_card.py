"""The Agent Card: what it says, how it is cached, and that it is true."""

from __future__ import annotations

import base64
import socket
from collections.abc import Iterator

import httpx
import pytest

from tests.api.forms import (
    CONTENT_TYPE_NOT_SUPPORTED,
    FORMS,
    PUSH_NOT_SUPPORTED,
    Form,
    Json,
)
from tests.running import Service, Upstream, service

CARD = "/.well-known/agent-card.json"
ONE = {"a2a-version": "1.0"}
IN_0_3_ONLY = {
    "protocolVersion",
    "url",
    "preferredTransport",
    "additionalInterfaces",
    "supportsAuthenticatedExtendedCard",
    "security",
}
PUBLIC_URL = "https://agents.example.org/opencode"


@pytest.fixture(scope="module")
def proxied(fake: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A service that clients know by another address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    settings = {
        "A2A_PORT": port,
        "A2A_PUBLIC_URL": PUBLIC_URL + "/",
        "A2A_TITLE": "Agent Ölaf",
        "A2A_DESCRIPTION": "Works.",
        "A2A_STATIC_AUTH_CREDENTIALS": '[{"scheme": "basic", "username": "u", '
        '"password": "a-long-password-of-u", "principal": "u"}]',
    }
    with (
        service(fake, tmp_path_factory.mktemp("proxied"), **settings),
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20) as found,
    ):
        yield found


def card(client: httpx.Client, **headers: str) -> Json:
    response = client.get(CARD, headers={name.replace("_", "-"): v for name, v in headers.items()})
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    found: Json = response.json()
    return found


def test_the_usual_card_serves_both_lines(client: httpx.Client, fake_service: Service) -> None:
    found = card(client)
    assert found.keys() >= IN_0_3_ONLY
    assert found["protocolVersion"] == "0.3.0"
    assert found["url"] == fake_service.url
    assert found["preferredTransport"] == "JSONRPC"
    assert {i["transport"] for i in found["additionalInterfaces"]} == {"JSONRPC", "HTTP+JSON"}
    assert found["supportsAuthenticatedExtendedCard"] is True
    assert found["security"] == [{"bearer": []}]
    scheme = found["securitySchemes"]["bearer"]
    assert (scheme["type"], scheme["scheme"]) == ("http", "bearer")
    assert scheme["httpAuthSecurityScheme"] == {"scheme": "bearer"}
    assert {k: v for k, v in found.items() if k not in IN_0_3_ONLY | {"securitySchemes"}} == {
        k: v for k, v in card(client, a2a_version="1.0").items() if k != "securitySchemes"
    }


@pytest.mark.parametrize("version", ["1.0", "1.0.1"])
def test_who_asks_for_1_0_gets_1_0_only(client: httpx.Client, version: str) -> None:
    found = card(client, a2a_version=version)
    asked_so = client.get("/.well-known/agent-card.json", params={"A2A-Version": version})
    assert asked_so.json() == found
    assert found.keys() == {
        "name",
        "description",
        "version",
        "supportedInterfaces",
        "capabilities",
        "securitySchemes",
        "securityRequirements",
        "defaultInputModes",
        "defaultOutputModes",
        "skills",
    }
    assert found["securitySchemes"] == {"bearer": {"httpAuthSecurityScheme": {"scheme": "bearer"}}}
    assert found["securityRequirements"] == [{"schemes": {"bearer": {"list": []}}}]
    for skill in found["skills"]:
        assert skill.keys() >= {"id", "name", "description", "tags"}
        assert skill["tags"]
    assert all(found[name] for name in ("skills", "defaultInputModes", "defaultOutputModes"))


@pytest.mark.parametrize("version", ["0.3", "0.3.0", ""])
def test_who_asks_for_0_3_gets_both(client: httpx.Client, version: str) -> None:
    assert card(client, a2a_version=version) == card(client)


def test_the_card_is_at_its_old_address_too(client: httpx.Client) -> None:
    old = client.get("/.well-known/agent.json")
    new = client.get(CARD)
    assert old.content == new.content
    assert old.headers["etag"] == new.headers["etag"]


def test_a_card_can_be_cached(client: httpx.Client) -> None:
    headers = client.get(CARD).headers
    assert headers["cache-control"] == "public, max-age=300"
    assert headers["vary"].lower() == "a2a-version, accept-encoding"
    assert headers["etag"].removeprefix("W/").strip('"')
    assert headers["last-modified"].endswith("GMT")
    assert client.get(CARD).headers["etag"] == headers["etag"]
    assert client.get(CARD, headers=ONE).headers["etag"] != headers["etag"]


@pytest.mark.parametrize("shape", ["{}", "W/{}", '"other", {}', '"other",W/{}', "*"])
@pytest.mark.parametrize("version", [{}, ONE], ids=["hybrid", "pure"])
@pytest.mark.parametrize("verb", ["GET", "HEAD"])
def test_a_card_one_has_is_not_sent_again(
    client: httpx.Client, shape: str, version: dict[str, str], verb: str
) -> None:
    first = client.get(CARD, headers=version)
    known = {"if-none-match": shape.format(first.headers["etag"].removeprefix("W/"))}
    again = client.request(verb, CARD, headers=version | known)
    assert again.status_code == 304
    assert again.content == b""
    for name in ("etag", "cache-control", "vary"):
        assert again.headers[name] == first.headers[name]


@pytest.mark.parametrize("known", ['"other"', "", "nonsense", 'W/""'])
def test_a_card_one_does_not_have_is_sent(client: httpx.Client, known: str) -> None:
    assert client.get(CARD, headers={"if-none-match": known}).status_code == 200


def test_the_tag_of_one_card_does_not_stand_for_the_other(client: httpx.Client) -> None:
    hybrid = client.get(CARD).headers["etag"]
    assert client.get(CARD, headers={**ONE, "if-none-match": hybrid}).status_code == 200


def test_a_card_has_a_head(client: httpx.Client) -> None:
    whole, head = client.get(CARD), client.head(CARD)
    assert head.status_code == 200
    assert head.content == b""
    for name in ("etag", "cache-control", "vary", "content-type", "content-length"):
        assert head.headers[name] == whole.headers[name]


def test_addresses_follow_the_public_one(proxied: httpx.Client) -> None:
    for found in (card(proxied), card(proxied, a2a_version="1.0")):
        assert {i["url"] for i in found["supportedInterfaces"]} == {PUBLIC_URL}
        assert found["name"] == "Agent Ölaf"
        assert found["description"] == "Works."
    hybrid = card(proxied)
    assert hybrid["url"] == PUBLIC_URL
    assert {i["url"] for i in hybrid["additionalInterfaces"]} == {PUBLIC_URL}


def test_only_configured_ways_to_log_in_are_declared(proxied: httpx.Client) -> None:
    found = card(proxied)
    assert found["securitySchemes"].keys() == {"basic"}
    assert found["security"] == [{"basic": []}]
    assert found["securityRequirements"] == [{"schemes": {"basic": {"list": []}}}]
    assert proxied.get("/tasks").headers["www-authenticate"] == 'Basic realm="opencode-a2a"'
    assert proxied.get("/tasks", auth=("u", "a-long-password-of-u")).status_code == 200


# -- what it declares is what happens


def test_every_declared_interface_answers(client: httpx.Client) -> None:
    declared = {
        (i["protocolBinding"], i["protocolVersion"]): i["url"]
        for i in card(client)["supportedInterfaces"]
    }
    bindings = {("JSONRPC" if form.rpc else "HTTP+JSON", form.line): form for form in FORMS}
    assert declared.keys() == bindings.keys()
    for binding, url in declared.items():
        form = bindings[binding]
        with httpx.Client(base_url=url, headers=client.headers, timeout=20) as there:
            assert form.send(there, "hello")["status"]["state"] == form.state("completed")


def test_declared_capabilities_are_what_works(client: httpx.Client, form: Form) -> None:
    able = card(client)["capabilities"]
    assert able["streaming"] is True
    with form.following(client, "stream", form.sending("hello")) as frames:
        assert next(frames).kind == "task"
    assert able["pushNotifications"] is False
    form.refused(form.call(client, "push.list", {"id": "x"}), PUSH_NOT_SUPPORTED)
    assert able["extendedAgentCard"] is True
    assert form.result(form.call(client, "card"))["name"] == card(client)["name"]
    assert not any(extension["required"] for extension in able["extensions"])


def test_declared_input_modes_are_accepted_and_others_are_not(
    client: httpx.Client, form: Form
) -> None:
    raw = base64.b64encode(b"content").decode()
    modes = card(client)["defaultInputModes"]
    for mode in modes:
        part = form.file(raw=raw, media_type=mode.replace("*", "markdown"))
        asked = {"message": form.message("read:", part)}
        assert form.sent(form.call(client, "send", asked))["status"]["state"] == form.state(
            "completed"
        )
    part = form.file(raw=raw, media_type="application/zip")
    asked = {"message": form.message("read:", part)}
    form.refused(form.call(client, "send", asked), CONTENT_TYPE_NOT_SUPPORTED)
