"""No secret is left in what goes to the log, however it is written."""

from __future__ import annotations

import base64
import json
import sys
import time
from typing import Any
from urllib.parse import quote

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opencode_a2a.redaction import (
    MAX_DEPTH,
    MIN_SECRET_LENGTH,
    PLACEHOLDER,
    Redactor,
    is_secret_name,
    secrets_in,
)

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
        "api_keys",
        "secrets",
        "cookies",
        "passwords",
        "tokens",
        "pwd",
        "db_pwd",
        "token_value",
    ],
)
def test_what_goes_by_such_a_name_is_hidden(name: str) -> None:
    assert is_secret_name(name)
    for value in ("abc", ["abc"], {"inner": "abc"}, ["abc", 1], {"n": 1, "inner": ["abc"]}):
        body = json.dumps({"outer": [{name: value, "other": "visible"}]}).encode()
        shown = Redactor().body(body)
        assert "abc" not in shown
        assert orjson.loads(shown) == {"outer": [{name: PLACEHOLDER, "other": "visible"}]}


@pytest.mark.parametrize(
    "name",
    [
        "pageToken",
        "page_token",
        "nextPageToken",
        "text",
        "session_id",
        "author",
        "keyboard",
        "path",
        "PWD",
        "OLDPWD",
    ],
)
def test_what_is_no_secret_is_left(name: str) -> None:
    body = {name: "abc", "token": None, "max_token": 12, "password": ""}
    assert orjson.loads(Redactor().body(orjson.dumps(body))) == body


def test_numbers_are_hidden_unless_they_count_tokens() -> None:
    counts = {"input": 5, "output": 3.5, "cache": {"read": 0, "write": None}}
    body: dict[str, Any] = {"tokens": counts, "max_tokens": 9, "max_token": 9, "secret": True}
    hidden = {"password": 12345678, "api_key": 1.5, "pwd": -1}
    shown = orjson.loads(Redactor().body(orjson.dumps(body | hidden)))
    assert shown == body | dict.fromkeys(hidden, PLACEHOLDER)


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer abc",
        "Authorization: Token abc",
        "Authorization: ApiKey abc-0123456789, abc",
        'Authorization: Digest username="abc", response="abc"',
        "Cookie: a=1; session=abc",
        'Cookie: "a"=1; session=abc',
        "Set-Cookie: session=1; other=abc; Path=/",
        """curl -H 'Authorization: Token abc' http://host""",
        "{'Authorization': 'Token abc', 'x': 1}",
        '{\\"password\\": \\"abc\\", \\"n\\": 1',
        '{\\"password\\": \\"x y\\\\\\"abc\\"}',
        '{\\\\\\"token\\\\\\":\\\\\\"abc\\\\\\"}',
        '{\\"Authorization\\": \\"Token abc\\", \\"n\\": 1',
        '{"tokens": ["abc", "abc"], "cut',
        "passwords: abc",
        "Uid=u;Pwd=abc;",
        "DB_PWD=abc",
        "token_value=abc",
        "run --token abc",
        "run --api-key 'abc abc' x",
        "run --github-token\tabc",
        "curl -u u:abc http://host",
        "curl -su 'u:abc' http://host",
        "curl --user u:abc http://host",
        "OPENAI_KEY=abc",
        "tokens=abc",
        "tokens=12abc",
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
        assert PLACEHOLDER in shown


def test_the_text_around_a_secret_stays() -> None:
    text = "GET /x?token=abc&page=2, Tokens: 12.\nAuthorization: Bearer abc, more\nand more"
    shown = "GET /x?token=[redacted]&page=2, Tokens: 12.\nAuthorization: [redacted]\nand more"
    assert Redactor().text(text) == shown
    text = 'x = {"Cookie": "a=1; b=2", "n": 1} --token abc --n 1 curl -u me:abc -v'
    shown = 'x = {"Cookie": [redacted], "n": 1} --token [redacted] --n 1 curl -u me:[redacted] -v'
    assert Redactor().text(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        '{"url":"http://host:80","mail":"a@b"}',
        '{\\"url\\":\\"http://host:80\\",\\"mail\\":\\"a@b\\"}',
        "PWD=/home/somebody",
        "page_token=abc and nextPageToken: abc",
        'usage: {"tokens": {"input": 5}, "input_tokens": 1,000',
        "docker run -u 1000:1000",
        "sort_key=name",
        "--tokenizer abc --token --verbose",
    ],
)
def test_a_text_without_secrets_is_left(text: str) -> None:
    assert Redactor().text(text) == text
    assert orjson.loads(Redactor().body(orjson.dumps({"text": text}))) == {"text": text}


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
    assert PLACEHOLDER in shown
    for kind in FORMS.values():
        assert kind not in shown
    assert "p4ss" not in shown


@pytest.mark.parametrize(
    "text", ["://:x@", "xoxb-0123456789", "AKIA0123456789ABCDEF", "sk-0123456789abcdef"]
)
def test_a_secret_is_recognised_however_short_the_text(text: str) -> None:
    assert PLACEHOLDER in Redactor().known(text)


def test_the_longer_of_two_secrets_is_hidden_whole() -> None:
    redactor = Redactor("secret-one", "secret-one-and-more")
    assert redactor.known("x secret-one-and-more y secret-one z") == ("x [redacted] y [redacted] z")


def test_what_is_too_short_to_be_one_is_not_looked_for() -> None:
    assert Redactor("t", "x" * (MIN_SECRET_LENGTH - 1), "").known("text xxxxx") == "text xxxxx"


@given(
    before=st.text(max_size=50),
    secret=st.text(min_size=MIN_SECRET_LENGTH, max_size=20),
    after=st.text(max_size=50),
    limit=st.integers(1, 120),
)
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
        '\\"',
        'token=\\"',
        "cookie:",
        'cookie="a" ',
        "--token ",
        "--",
        "curl -u a:",
        "tokens: 1,",
        'tokens: ["',
    ],
)
@pytest.mark.parametrize("limit", [4096, 0])
def test_no_text_takes_long(piece: str, limit: int) -> None:
    """Made to keep a pattern busy: a quadratic one would take many minutes."""
    text = piece * (200_000 // len(piece))
    began = time.process_time()
    for body in (text.encode(), orjson.dumps({"text": text}), orjson.dumps([text[:99]] * 5000)):
        Redactor("a-secret").body(body, limit)
    assert time.process_time() - began < 30


@pytest.mark.parametrize("depth", [60, 900])
@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_the_work_does_not_grow_with_the_depth(depth: int, opening: str) -> None:
    """Counted in calls: each value used to pass through every level above it."""
    inner = [*range(1000)]
    closing = "]" if opening == "[" else "}"
    raw = f"{opening * depth}{inner}{closing * depth}".encode()
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        Redactor("a-secret").body(raw)
    finally:
        sys.setprofile(None)
    assert calls < 10 * (len(inner) + depth)


def test_what_lies_too_deep_is_not_shown() -> None:
    raw = f'{"[" * MAX_DEPTH}"shown",["hidden"],{{"hidden":1}},[],{{}},1{"]" * MAX_DEPTH}'.encode()
    shown = orjson.loads(Redactor().body(raw))
    for _ in range(MAX_DEPTH - 1):
        (shown,) = shown
    assert shown == ["shown", " …", " …", [], {}, 1]


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
        "MAX_TOKENS": "128000",
    }
    assert secrets_in(environment) == ["sk-ant-1", "or-1", "ghp-1"]
