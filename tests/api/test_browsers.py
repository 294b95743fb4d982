"""Web pages as clients: those that may, and those that try to use somebody's service."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import httpx
import pytest

from tests.api.forms import HOST_NOT_ALLOWED, ORIGIN_NOT_ALLOWED, REST_1, Form, line_to
from tests.running import Service, Upstream, service

APP = "https://app.example.com"
CARD = "/.well-known/agent-card.json"


@pytest.fixture(scope="module")
def shared(fake: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that pages of one origin may use."""
    with service(fake, tmp_path_factory.mktemp("shared"), A2A_ALLOWED_ORIGINS=APP) as running:
        yield running


@pytest.mark.parametrize("origin", ["https://evil.example", "http://127.0.0.1:3000", "null"])
@pytest.mark.parametrize("media_type", ["application/json", "text/plain"])
def test_a_page_cannot_use_a_login_that_the_browser_remembers(
    bob: httpx.Client, form: Form, origin: str, media_type: str
) -> None:
    context = str(uuid.uuid4())
    request = form.request(bob, "send", form.sending("Hello!", contextId=context))
    request.headers.update({"origin": origin, "content-type": media_type})
    form.refused(bob.send(request), ORIGIN_NOT_ALLOWED, rpc_id=None)
    found = bob.get("/tasks", params={"contextId": context}, headers={"a2a-version": "1.0"})
    assert found.json()["totalSize"] == 0


def test_a_name_that_was_rebound_leads_nowhere(client: httpx.Client, form: Form) -> None:
    request = form.request(client, "send", form.sending("Hello!"))
    request.headers["host"] = "evil.example:8000"
    form.refused(client.send(request), HOST_NOT_ALLOWED, rpc_id=None)


@pytest.mark.parametrize("path", [CARD, "/health"])
def test_a_rebound_name_reads_not_even_what_is_public(client: httpx.Client, path: str) -> None:
    REST_1.refused(client.get(path, headers={"host": "evil.example"}), HOST_NOT_ALLOWED)


def test_a_page_of_an_allowed_origin_is_a_client(shared: Service) -> None:
    page = {"origin": APP, "sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"}
    with line_to(shared, headers=page) as browser:
        asked = {
            "access-control-request-method": "POST",
            "access-control-request-headers": "a2a-version,authorization,content-type",
        }
        permission = browser.options("/message:stream", headers=asked)
        assert permission.status_code == 204
        assert permission.headers["access-control-allow-origin"] == APP
        refused = REST_1.call(browser, "get", {"id": "x"})
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == APP
        assert "WWW-Authenticate" in refused.headers["access-control-expose-headers"]
        request = REST_1.request(browser, "stream", REST_1.sending("Hello!"))
        request.headers.update(shared.headers)
        answer = browser.send(request)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["access-control-allow-origin"] == APP
    assert "TASK_STATE_COMPLETED" in answer.text


def test_long_answers_are_compressed_and_streams_are_not(client: httpx.Client) -> None:
    """As this client asks for by default."""
    for path in (CARD, "/openapi.json"):
        answer = client.get(path)
        assert answer.headers["content-encoding"] == "gzip"
        assert "Accept-Encoding" in answer.headers["vary"]
        plain = client.get(path, headers={"accept-encoding": "identity"})
        assert "content-encoding" not in plain.headers
        assert plain.content == answer.content
        assert plain.headers["etag"] == answer.headers["etag"]
    stream = REST_1.call(client, "stream", REST_1.sending("Hello!"))
    assert "content-encoding" not in stream.headers
    assert "TASK_STATE_COMPLETED" in stream.text
