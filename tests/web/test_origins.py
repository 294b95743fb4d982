"""Which web pages may send requests, as browsers describe them."""

from __future__ import annotations

import pytest

from opencode_a2a.config import ConfigError, load
from opencode_a2a.inbound.failures import failure
from opencode_a2a.web.origins import OriginCheck
from tests.web.asking import Answers, ask

OWN = "https://agent.example.com"
APP = "https://app.example.com"
EVIL = "https://evil.example"

PERMITTED = [
    {},  # a program
    {"sec_fetch_site": "none", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"},
    {"origin": "http://127.0.0.1:8000"},
    {"origin": "http://127.0.0.1:8000", "sec_fetch_site": "same-origin"},
    {"origin": OWN},  # behind a proxy that changes Host
    {"sec_fetch_site": "same-origin", "sec_fetch_mode": "cors"},
]
REFUSED = [
    {"origin": EVIL},
    {"origin": EVIL, "sec_fetch_site": "cross-site", "sec_fetch_mode": "cors"},
    {"origin": EVIL, "content_type": "text/plain", "sec_fetch_mode": "no-cors"},
    {"origin": EVIL, "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"},  # a form
    {"origin": "null"},
    {"origin": ""},
    {"origin": "http://["},
    {"origin": "http://127.0.0.1:3000", "sec_fetch_site": "same-site"},
    {"origin": "http://127.0.0.1:8000.evil.example"},
    {"origin": "https://agent.example.com.evil.example"},
    {"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors", "sec_fetch_dest": "image"},
    {"sec_fetch_site": "same-site", "sec_fetch_mode": "no-cors", "sec_fetch_dest": "script"},
    {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "iframe"},
]
LINK = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}


def check(inner: Answers, *allowed: str) -> OriginCheck:
    return OriginCheck(inner, own=OWN, allowed=allowed, on_error=failure)


@pytest.mark.parametrize("headers", PERMITTED)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_programs_people_and_own_pages_pass(method: str, headers: dict[str, str]) -> None:
    answer = await ask(check(Answers()), method, **headers)
    assert answer.status_code == 200
    assert not {"vary", "access-control-allow-origin"} & answer.headers.keys()


@pytest.mark.parametrize("headers", REFUSED)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
@pytest.mark.parametrize("allowed", [(), (APP,)])
async def test_no_other_page_gets_through(
    method: str, headers: dict[str, str], allowed: tuple[str, ...]
) -> None:
    inner = Answers()
    answer = await ask(check(inner, *allowed), method, "/message:send", **headers)
    assert answer.status_code == 403
    assert answer.json()["error"]["details"][0]["reason"] == "ORIGIN_NOT_ALLOWED"
    assert "A2A_ALLOWED_ORIGINS" in answer.json()["error"]["message"]
    assert "access-control-allow-origin" not in answer.headers
    assert inner.asked == 0


async def test_a_link_on_another_page_can_be_followed() -> None:
    assert (await ask(check(Answers()), **LINK)).status_code == 200
    assert (await ask(check(Answers()), "POST", **LINK)).status_code == 403


async def test_a_page_of_an_allowed_origin_can_read_the_answer() -> None:
    answer = await ask(check(Answers(), APP), "POST", origin=APP, sec_fetch_site="cross-site")
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == APP
    exposed = answer.headers["access-control-expose-headers"].lower().split(", ")
    assert {"a2a-extensions", "www-authenticate", "retry-after", "etag"} <= set(exposed)
    assert answer.headers["vary"] == "Origin"
    assert "access-control-allow-credentials" not in answer.headers


async def test_caches_keep_answers_to_pages_apart() -> None:
    assert (await ask(check(Answers(), APP))).headers["vary"] == "Origin"


async def test_a_browser_that_asks_is_answered_before_the_application() -> None:
    inner = Answers()
    wanted = "authorization,content-type,a2a-version"
    asked = {
        "origin": APP,
        "access_control_request_method": "POST",
        "access_control_request_headers": wanted,
    }
    answer = await ask(check(inner, APP), "OPTIONS", "/message:stream", **asked)
    assert (answer.status_code, answer.content, inner.asked) == (204, b"", 0)
    told = {name: value for name, value in answer.headers.items() if name.startswith("access")}
    assert told == {
        "access-control-allow-origin": APP,
        "access-control-allow-methods": "GET, HEAD, POST, DELETE",
        "access-control-allow-headers": wanted,
        "access-control-max-age": "600",
    }
    local = await ask(
        check(inner, APP), "OPTIONS", **asked, access_control_request_private_network="true"
    )
    assert local.headers["access-control-allow-private-network"] == "true"


@pytest.mark.parametrize(
    "origin",
    ["*", "app.example.com", "https://app.example.com/", "https://app.example.com:443", "null"],
)
def test_what_is_not_an_origin_stops_the_start(
    monkeypatch: pytest.MonkeyPatch, origin: str
) -> None:
    monkeypatch.setenv("A2A_ALLOWED_ORIGINS", f"{APP}, {origin}")
    with pytest.raises(ConfigError, match=r"A2A_ALLOWED_ORIGINS: .* must list origins such as"):
        load()


def test_origins_are_compared_as_browsers_write_them(monkeypatch: pytest.MonkeyPatch) -> None:
    given = '["HTTPS://App.example.com", "http://localhost:5173", "chrome-extension://abc"]'
    monkeypatch.setenv("A2A_ALLOWED_ORIGINS", given)
    expected = [APP, "http://localhost:5173", "chrome-extension://abc"]
    assert load().server.allowed_origins == expected
