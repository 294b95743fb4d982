"""No secret is left in what goes to the log, however it is written."""

from __future__ import annotations

import base64
import json
import time
from typing import Any
from urllib.parse import quote

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opencode_a2a.redaction import HIDDEN, SHORTEST, Redactor, is_secret_name, secrets_in

SECRET = 'p4ss"wörd\\ /+='


@pytest.mark.parametrize(
    "name",
    [
        "Authorization",
        "proxy-authorization",
        "token",
        "accessToken",
        "refresh_token",
        "A2A_BEARER_TOKEN",
        "password",
        "OPENCODE_SERVER_PASSWORD",
        "api_key",
        "x-api-key",
        "ANTHROPIC_API_KEY",
        "clientSecret",
        "AWS_SECRET_ACCESS_KEY",
        "privateKey",
        "credentials",
        "Set-Cookie",
        "auth",
        "key",
    ],
)
def test_what_goes_by_such_a_name_is_hidden(name: str) -> None:
    assert is_secret_name(name)
    for value in ("abc", ["abc"], {"inner": "abc"}):
        body = json.dumps({"outer": [{name: value, "other": "visible"}]}).encode()
        shown = Redactor().body(body)
        assert "abc" not in shown
        assert orjson.loads(shown) == {"outer": [{name: HIDDEN, "other": "visible"}]}


@pytest.mark.parametrize(
    "name",
    [
        "input_tokens",
        "total_tokens",
        "cache_tokens",
        "pageToken",
        "nextPageToken",
        "text",
        "session_id",
        "author",
        "keyboard",
        "path",
        "PWD",
    ],
)
def test_what_is_no_secret_is_left(name: str) -> None:
    body = {name: "abc", "token": None, "max_token": 12, "password": ""}
    assert orjson.loads(Redactor().body(orjson.dumps(body))) == body


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer abc",
        "authorization: basic abc",
        "see Bearer 0123456789abc here",
        '{"password": "abc", "cut',
        "password=abc&user=x",
        "export API_KEY=abc",
        "api-key: 'abc'",
        "client_secret : abc",
        "postgresql://user:abc@host/db",
        "https://x:abc@host/path?q=1",
        "sk-abc0123456789abcdef",
        "sk-ant-api03-abc0123456789abcdef",
        "ghp_abc01234567890123456789012345",
        "github_pat_abc0123456789012345678",
        "xoxb-abc-0123456789",
        "AIzaabc456789012345678901234567890123",
        "eyJabcdefgh.eyJabcdefgh.abc",
        "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\nabc and cut",
    ],
)
def test_a_secret_in_a_text_is_recognised(text: str) -> None:
    for written in (text.encode(), orjson.dumps({"text": f"so: {text}"}), f"data: {text}".encode()):
        shown = Redactor().body(written)
        assert "abc" not in shown
        assert HIDDEN in shown


def test_the_text_around_a_secret_stays() -> None:
    text = "GET /x?token=abc&page=2 with Authorization: Bearer abc, then more. Tokens: 12."
    shown = "GET /x?token=[redacted]&page=2 with Authorization: [redacted] then more. Tokens: 12."
    assert Redactor().text(text) == shown


FORMS = {
    "plain": SECRET,
    "JSON": json.dumps(SECRET),
    "JSON in UTF-8": json.dumps(SECRET, ensure_ascii=False),
    "a part of a URL": quote(SECRET, safe=""),
    "a path": quote(SECRET),
    "JSON in JSON": json.dumps({"text": json.dumps({"inner": SECRET})}),
    "a value": json.dumps({"text": f"before {SECRET} after"}),
    "a name": json.dumps({SECRET: 1}),
    "an event": f"id: 1\ndata: {json.dumps({'text': SECRET})}\n\n",
    "a login": f"x {base64.b64encode(f'u:{SECRET}'.encode()).decode()} y",
}


@pytest.mark.parametrize("form", FORMS)
def test_a_known_secret_is_hidden_in_every_form(form: str) -> None:
    redactor = Redactor(SECRET, base64.b64encode(f"u:{SECRET}".encode()).decode())
    shown = redactor.body(FORMS[form].encode())
    assert HIDDEN in shown
    for kind in FORMS.values():
        assert kind not in shown
    assert "p4ss" not in shown


def test_the_longer_of_two_secrets_is_hidden_whole() -> None:
    redactor = Redactor("secret-one", "secret-one-and-more")
    assert redactor.known("x secret-one-and-more y secret-one z") == ("x [redacted] y [redacted] z")


def test_what_is_too_short_to_be_one_is_not_looked_for() -> None:
    assert Redactor("t", "x" * (SHORTEST - 1), "").known("text xxxxx") == "text xxxxx"


@given(
    before=st.text(max_size=50),
    secret=st.text(min_size=SHORTEST, max_size=20),
    after=st.text(max_size=50),
    limit=st.integers(1, 120),
)
@settings(deadline=None)
def test_no_cut_leaves_a_part_of_a_secret(before: str, secret: str, after: str, limit: int) -> None:
    """Hidden first, cut then: what is shown is the beginning of what would be shown uncut."""
    redactor = Redactor(secret)
    body = (
        orjson.dumps({"text": before + secret + after})
        if _is_unicode(before + secret + after)
        else (before + secret + after).encode(errors="replace")
    )
    whole, cut = redactor.body(body), redactor.body(body, limit)
    assert cut == whole or (cut.endswith(" …") and whole.startswith(cut[:-2]))
    assert len(cut.encode()) <= limit + len(" …".encode())


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@pytest.mark.parametrize(
    "piece",
    [
        "eyJ-",
        "sk-",
        "token ",
        "token=",
        'token="',
        "bearer ",
        "://",
        "://a:",
        "-----BEGIN PRIVATE KEY",
        "AKIA",
        "a",
        "\\",
        '"',
    ],
)
@pytest.mark.parametrize(("size", "limit"), [(1_000_000, 4096), (200_000, 0)])
def test_no_text_takes_long(piece: str, size: int, limit: int) -> None:
    """Made to keep a pattern busy: a quadratic one would take hours."""
    text = piece * (size // len(piece))
    began = time.process_time()
    for body in (text.encode(), orjson.dumps({"text": text}), orjson.dumps([text[:99]] * 5000)):
        Redactor("a-secret").body(body, limit)
    assert time.process_time() - began < 30


@pytest.mark.parametrize("raw", [b"", b"\xff\xfe", b"[" * 2000, b"null", b"\x00" * 10])
def test_any_bytes_can_be_shown(raw: bytes) -> None:
    assert isinstance(Redactor("a-secret").body(raw, 10), str)


def test_secrets_of_the_environment_go_by_their_names() -> None:
    environment: dict[str, Any] = {
        "ANTHROPIC_API_KEY": "sk-ant-1",
        "OPENROUTER_KEY": "or-1",
        "GITHUB_TOKEN": "ghp-1",
        "PATH": "/bin",
        "PWD": "/home/somebody",
        "HOME": "/home/somebody",
    }
    assert secrets_in(environment) == ["sk-ant-1", "or-1", "ghp-1"]
