"""For whom a proxy asks: what is believed, and of whom."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from opencode_a2a.web.proxies import (
    CERTIFICATE,
    EXTERNAL_URL,
    TrustedProxies,
    certificate_name,
)

TRUSTED = ["10.0.0.0/8", "fd00::/8", "192.0.2.7"]
PROXY, OTHER_PROXY, CLIENT = "10.0.0.1", "10.0.0.2", "203.0.113.9"


async def seen(*headers: tuple[str, str], peer: str = PROXY, **more: Any) -> Scope:
    """The request as the application sees it."""
    found: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        found.append(scope)

    proxies = TrustedProxies(app, trusted=TRUSTED, **more)
    fields = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]
    scope = {
        "type": "http",
        "client": (peer, 1234),
        "scheme": "http",
        "headers": [(b"host", b"inside:8000"), *fields],
    }
    await proxies(scope, None, None)  # type: ignore[arg-type]
    return found[0]


def host(scope: Scope) -> str:
    [value] = [value for name, value in scope["headers"] if name == b"host"]
    return str(value.decode())


@pytest.mark.parametrize(
    ("header", "client"),
    [
        (CLIENT, CLIENT),
        (f"1.2.3.4, {CLIENT}", CLIENT),  # the client wrote the first itself
        (f"1.2.3.4, {CLIENT}, {OTHER_PROXY}", CLIENT),
        (f"{CLIENT},{OTHER_PROXY},192.0.2.7", CLIENT),
        (f"{OTHER_PROXY}, 192.0.2.7", OTHER_PROXY),  # a proxy asks for itself
        (f"{CLIENT}:4711", CLIENT),
        ("[2001:db8::1]:4711", "2001:db8::1"),
        ("2001:db8::1", "2001:db8::1"),
        (f"::ffff:{OTHER_PROXY}", f"::ffff:{OTHER_PROXY}"),
        (f"{CLIENT}, unknown", "unknown"),  # what stands left of it may be anybody's
        ("nonsense", "nonsense"),
        ("", PROXY),
        (", ,", PROXY),
    ],
)
async def test_the_client_is_the_first_from_the_right_who_is_not_trusted(
    header: str, client: str
) -> None:
    scope = await seen(("X-Forwarded-For", header))
    address = scope["client"][0]
    assert address == client or address == client.replace(OTHER_PROXY, "a00:2")


async def test_several_fields_are_one_list() -> None:
    fields = (("X-Forwarded-For", "1.2.3.4"), ("X-Forwarded-For", CLIENT))
    assert (await seen(*fields))["client"][0] == CLIENT


@pytest.mark.parametrize("peer", [CLIENT, "11.0.0.1", "2001:db8::1", "not an address"])
async def test_nobody_else_is_believed(peer: str) -> None:
    fields = (
        ("X-Forwarded-For", "1.2.3.4"),
        ("X-Forwarded-Proto", "https"),
        ("X-Forwarded-Host", "evil.example"),
        ("X-Cert", "CN=root"),
    )
    scope = await seen(*fields, peer=peer, certificate_header="X-Cert")
    assert scope["client"] == (peer, 1234)
    assert scope["scheme"] == "http"
    assert host(scope) == "inside:8000"
    assert "state" not in scope


async def test_a_proxy_with_an_address_of_the_other_kind_is_recognised() -> None:
    scope = await seen(("X-Forwarded-For", CLIENT), peer=f"::ffff:{PROXY}")
    assert scope["client"][0] == CLIENT


async def test_the_url_is_the_one_that_the_client_used() -> None:
    fields = [("X-Forwarded-For", CLIENT), ("X-Forwarded-Proto", "https")]
    fields += [("X-Forwarded-Host", "agent.example.com:8443")]
    scope = await seen(*fields)
    assert scope["scheme"] == "https"
    assert host(scope) == "agent.example.com:8443"
    assert scope["state"][EXTERNAL_URL] == "https://agent.example.com:8443"


async def test_of_several_fields_the_last_is_the_proxys() -> None:
    fields = [("X-Forwarded-Proto", "http"), ("X-Forwarded-Proto", "https")]
    fields += [("X-Forwarded-Host", "evil.example"), ("X-Forwarded-Host", "agent.example.com")]
    scope = await seen(*fields)
    assert host(scope) == "agent.example.com"
    assert scope["state"][EXTERNAL_URL] == "https://agent.example.com"


@pytest.mark.parametrize("name", ["evil.example/path", "a b", "user@host", "<x>", "a:b", ""])
async def test_a_name_that_is_none_is_ignored(name: str) -> None:
    fields = [("X-Forwarded-For", CLIENT), ("X-Forwarded-Proto", "javascript")]
    scope = await seen(*fields, ("X-Forwarded-Host", name))
    assert (host(scope), scope["scheme"]) == ("inside:8000", "http")


@pytest.mark.parametrize(
    "hostile",
    [
        f'a={" " * 16_000}"',
        f'{" " * 16_000}"',
        f'a{" " * 16_000}"',
        f'a="{" " * 16_000}',
        f'a="{chr(92) * 16_000}',
        f"{'a' * 16_000}",
        f'a={"b" * 16_000}"',
    ],
    ids=range(7),
)
def test_a_header_that_cannot_be_read_is_given_up_at_once(hostile: str) -> None:
    # A pattern that tries the same spaces in several ways would not end this year.
    assert certificate_name(hostile, "X-Forwarded-Client-Cert") == ""


async def test_a_proxy_may_say_how_it_was_asked_and_not_by_whom() -> None:
    scope = await seen(("X-Forwarded-Proto", "https"))
    assert scope["client"][0] == PROXY
    assert scope["state"][EXTERNAL_URL] == "https://inside:8000"


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ('By=spiffe://a;Hash=ab;Subject="/C=US/CN=ada";URI=spiffe://a/ada', "spiffe://a/ada"),
        ('Hash=ab;Subject="CN=ada,O=\\"Quoted, Inc\\";x"', 'CN=ada,O="Quoted, Inc";x'),
        ("Subject=CN=eve,Hash=ab;Subject=CN=ada", "CN=ada"),  # the last proxy's client
        ('Hash=ab;Subject=""', ""),
        ("Hash=ab", ""),
        ('Subject="open', ""),
        ("", ""),
    ],
)
def test_a_certificate_is_named_by_its_uri_or_subject(header: str, name: str) -> None:
    assert certificate_name(header, "X-Forwarded-Client-Cert") == name


async def test_a_certificate_that_is_named_twice_is_not_believed() -> None:
    once = await seen(("X-Cert", "CN=ada"), certificate_header="X-Cert")
    assert once["state"][CERTIFICATE] == "CN=ada"
    twice = await seen(("X-Cert", "CN=ada"), ("X-Cert", "CN=eve"), certificate_header="X-Cert")
    assert CERTIFICATE not in twice["state"]


@pytest.mark.parametrize("name", ["X-Cert", "X-Forwarded-Client-Cert"])
async def test_a_name_that_is_not_utf_8_is_nobodys(name: str) -> None:
    for subject in ('Subject="CN=M\xfcller"', 'Subject="CN=M\xf6ller"'):  # in Latin-1
        scope = await seen((name, subject), certificate_header=name)
        assert CERTIFICATE not in scope["state"]
