"""Tokens of others: which are accepted, and what an attacker can try in vain."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import time
from collections.abc import Callable, Collection
from typing import Any

import pytest
from jwt.utils import base64url_decode

from opencode_a2a.errors import IssuerUnavailable
from opencode_a2a.web import oidc
from opencode_a2a.web.auth import Identity, TokenRefused
from opencode_a2a.web.oidc import Issuer, IssuerFault, OidcPolicy, fetch_document
from tests.fakes.issuer import (
    AUDIENCE,
    Json,
    Provider,
    b64,
    claims,
    ec_key,
    ed_key,
    rsa_key,
    sealed,
    serving,
    signed,
    with_hmac,
)

URL = "https://login.example.com"
MUTATIONS = 10_000


def now() -> int:
    return int(time.time())


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Judge:
    """An issuer as the service sees it, with a provider that is asked without a socket."""

    def __init__(self, **policy: Any) -> None:
        self.provider = Provider(URL)
        self.clock = Clock()
        self.meanings: Callable[[Collection[str]], frozenset[str]] = frozenset
        self.issuer = Issuer(
            OidcPolicy(URL, (AUDIENCE,), **policy),
            lambda words: self.meanings(words),
            fetch=self._fetch,
            elapsed=self.clock,
        )

    async def _fetch(self, url: str) -> bytes:
        document = self.provider.document(url)
        if document is None:
            raise IssuerFault("down")
        return document

    async def __call__(self, token: str | bytes) -> Identity:
        sent = token.encode() if isinstance(token, str) else token
        digest = hashlib.sha256(sent).digest()
        return self.issuer.known(digest) or await self.issuer.verify(sent, digest)

    async def refuses(self, token: str | bytes) -> str:
        with pytest.raises(TokenRefused) as refusal:
            await self(token)
        return str(refusal.value)


@pytest.fixture
def judge() -> Judge:
    return Judge()


@pytest.mark.parametrize("key", [rsa_key, ec_key, ed_key])
async def test_a_token_of_the_issuer_is_accepted(judge: Judge, key: Any) -> None:
    found = await judge(judge.provider.token(key()))
    assert found.caller.principal == "oidc:ada"
    assert found.caller.scopes == {"tasks:read", "tasks:write"}
    assert found.expires_at is not None
    assert 0 < found.expires_at - time.time() <= 331


@pytest.mark.parametrize("audience", [AUDIENCE, ["other", AUDIENCE]])
@pytest.mark.parametrize("kind", ["JWT", "at+jwt", "application/at+jwt", None])
async def test_tokens_may_differ_in_what_does_not_matter(
    judge: Judge, audience: object, kind: str | None
) -> None:
    payload = claims(URL, aud=audience, nbf=None, jti="1", extra={"a": [1, 2]})
    await judge(signed(rsa_key(), payload, typ=kind))
    await judge(signed(rsa_key(), {**payload, "typ": "Bearer", "nonce": "n"}, typ=kind))


# -- the attacks


def unsigned(**head: Any) -> str:
    return f"{b64({'typ': 'JWT', 'kid': 'rsa-1', **head})}.{b64(claims(URL))}."


# Made when they are tried: they are of that moment, and making keys takes a while.
ATTACKS: dict[str, Callable[[], str | bytes]] = {
    "alg none": lambda: unsigned(alg="none"),
    "alg None": lambda: unsigned(alg="None") + b64(b"x"),
    "alg nOnE with a signature": lambda: (
        f"{b64({'alg': 'nOnE', 'kid': 'rsa-1'})}.{b64(claims(URL))}.AAAA"
    ),
    "no alg": lambda: unsigned() + b64(b"x"),
    "alg is a list": lambda: unsigned(alg=["RS256"]) + b64(b"x"),
    "the public key as an HMAC secret": lambda: with_hmac(
        rsa_key().public_pem, claims(URL), kid="rsa-1"
    ),
    "the modulus as an HMAC secret": lambda: with_hmac(
        rsa_key().jwk["n"].encode(), claims(URL), kid="rsa-1"
    ),
    "an empty HMAC secret": lambda: with_hmac(b"", claims(URL), kid="rsa-1"),
    "RS256 that claims to be ES256": lambda: sealed(
        rsa_key(), b64({"alg": "ES256", "kid": "ec-1"}), b64(claims(URL)), "RS256"
    ),
    "ES256 with the key of RSA": lambda: sealed(
        ec_key(), b64({"alg": "ES256", "kid": "rsa-1"}), b64(claims(URL))
    ),
    "PS256 with a key for RS256": lambda: sealed(
        rsa_key(), b64({"alg": "PS256", "kid": "rsa-1"}), b64(claims(URL)), "PS256"
    ),
    "a key of its own": lambda: signed(rsa_key("other"), claims(URL)),
    "another's key under a known name": lambda: signed(rsa_key("other"), claims(URL), kid="rsa-1"),
    "a key in the token": lambda: signed(
        rsa_key("other"), claims(URL), jwk=rsa_key("other").jwk, kid="other"
    ),
    "a key at an address in the token": lambda: signed(
        rsa_key("other"), claims(URL), jku="https://evil.example/keys", kid="other"
    ),
    "a certificate at an address in the token": lambda: signed(
        rsa_key("other"), claims(URL), x5u="https://evil.example/cert", kid="other"
    ),
    "another audience": lambda: signed(rsa_key(), claims(URL, aud="https://other.example.com")),
    "an audience that begins alike": lambda: signed(
        rsa_key(), claims(URL, aud=AUDIENCE + ".evil.com")
    ),
    "no audience": lambda: signed(rsa_key(), claims(URL, aud=None)),
    "an empty list of audiences": lambda: signed(rsa_key(), claims(URL, aud=[])),
    "another issuer": lambda: signed(rsa_key(), claims("https://evil.example")),
    "an issuer with a slash more": lambda: signed(rsa_key(), claims(URL + "/")),
    "issuers in a list": lambda: signed(rsa_key(), claims(URL, iss=[URL])),
    "no issuer": lambda: signed(rsa_key(), claims(URL, iss=None)),
    "expired": lambda: signed(rsa_key(), claims(URL, exp=now() - 60)),
    "expired long ago": lambda: signed(rsa_key(), claims(URL, exp=0)),
    "no end": lambda: signed(rsa_key(), claims(URL, exp=None)),
    "an end that is text": lambda: signed(rsa_key(), claims(URL, exp=str(now() + 300))),
    "an end that is true": lambda: signed(rsa_key(), claims(URL, exp=True)),
    "an end without end": lambda: signed(rsa_key(), claims(URL, exp=1e300)),
    "not before later": lambda: signed(rsa_key(), claims(URL, nbf=now() + 600)),
    "issued in the future": lambda: signed(rsa_key(), claims(URL, iat=now() + 600)),
    "nobody": lambda: signed(rsa_key(), claims(URL, sub=None)),
    "an empty name": lambda: signed(rsa_key(), claims(URL, sub=" ")),
    "a name that is a number": lambda: signed(rsa_key(), claims(URL, sub=7)),
    "a name with a line break": lambda: signed(rsa_key(), claims(URL, sub="ada\nadmin")),
    "a very long name": lambda: signed(rsa_key(), claims(URL, sub="a" * 256)),
    "a critical extension": lambda: signed(rsa_key(), claims(URL), crit=["exp"], exp=1),
    "no critical extension": lambda: signed(rsa_key(), claims(URL), crit=[]),
    "a payload that is not encoded": lambda: signed(rsa_key(), claims(URL), b64=False),
    "compressed": lambda: signed(rsa_key(), claims(URL), zip="DEF"),
    "a token about a logout": lambda: signed(rsa_key(), claims(URL), typ="logout+jwt"),
    "an ID token": lambda: signed(rsa_key(), claims(URL, nonce="n")),
    "an ID token beside a token": lambda: signed(rsa_key(), claims(URL, at_hash="h")),
    "an ID token of Keycloak": lambda: signed(rsa_key(), claims(URL, typ="ID")),
    "a refresh token": lambda: signed(rsa_key(), claims(URL, typ="Refresh")),
    "a logout token with the type of others": lambda: signed(
        rsa_key(),
        claims(URL, events={"http://schemas.openid.net/event/backchannel-logout": {}}),
    ),
    "kid: a path": lambda: signed(rsa_key("other"), claims(URL), kid="../../../../dev/null"),
    "kid: SQL": lambda: signed(rsa_key("other"), claims(URL), kid="x' UNION SELECT 'key"),
    "kid: a URL": lambda: signed(rsa_key("other"), claims(URL), kid="https://evil.example/keys"),
    "kid: a command": lambda: signed(rsa_key("other"), claims(URL), kid="|/usr/bin/id"),
    "kid: a number": lambda: signed(rsa_key(), claims(URL), kid=1),
    "kid: a list": lambda: signed(rsa_key(), claims(URL), kid=["rsa-1"]),
    "kid: very long": lambda: signed(rsa_key(), claims(URL), kid="rsa-1" * 1_000),
    "too large": lambda: signed(rsa_key(), claims(URL, padding="x" * 16_000)),
    "nested too deeply": lambda: f"{b64(b'[' * 9_000)}.{b64(claims(URL))}.AAAA",
    "no object": lambda: signed(rsa_key(), b"[1]"),
    "not UTF-8": lambda: signed(rsa_key(), b'{"sub": "\xff"}'),
    "encrypted": lambda: ".".join([b64({"alg": "RSA-OAEP", "enc": "A256GCM"}), *["AAAA"] * 4]),
    "two parts": lambda: ".".join(signed(rsa_key(), claims(URL)).split(".")[:2]),
    "four parts": lambda: signed(rsa_key(), claims(URL)) + ".AAAA",
    "a space": lambda: signed(rsa_key(), claims(URL)).replace(".", ". ", 1),
    "not ASCII": lambda: signed(rsa_key(), claims(URL)).encode() + b"\xff",
    "nothing": lambda: "",
    "dots": lambda: "..",
}


@pytest.mark.parametrize("attack", ATTACKS)
async def test_an_attack_on_the_token_is_refused(judge: Judge, attack: str) -> None:
    judge.provider.keys.append(ec_key("ec-2"))
    await judge(judge.provider.token())  # the keys are there
    message = await judge.refuses(ATTACKS[attack]())
    assert "eve" not in message
    assert all(url.startswith(URL) for url in judge.provider.fetched)


async def test_a_little_time_between_the_clocks_is_allowed_and_no_more(judge: Judge) -> None:
    await judge(judge.provider.token(exp=now() - 20, iat=now() - 60, nbf=now() - 60))
    await judge(judge.provider.token(nbf=now() + 20, iat=now() + 20))


async def test_only_named_clients_may_have_asked_for_the_token() -> None:
    judge = Judge(authorized_parties=frozenset({"cli", "web"}))
    await judge(judge.provider.token(azp="cli"))
    await judge(judge.provider.token(client_id="web"))
    for party in ("other", "", None, ["cli"]):
        await judge.refuses(judge.provider.token(azp=party))


async def test_no_mutation_of_a_token_is_accepted() -> None:
    """10 000 of them: bits, bytes, characters, parts, of tokens of every kind of key."""
    judge, chance = Judge(), random.Random(20_260_101)
    originals = [judge.provider.token(key) for key in (rsa_key(), ec_key(), ed_key())]
    for token in originals:
        await judge(token)
    tried = 0
    while tried < MUTATIONS:
        sent = mutated(chance.choice(originals).encode(), chance)
        if any(means_the_same(sent, each.encode()) for each in originals):
            continue
        tried += 1
        await judge.refuses(sent)
    assert judge.provider.key_fetches <= 2


def means_the_same(token: bytes, original: bytes) -> bool:
    """Base64 has several forms of the same signature."""
    text, _, signature = token.rpartition(b".")
    known, _, expected = original.rpartition(b".")
    try:
        return text == known and base64url_decode(signature) == base64url_decode(expected)
    except ValueError:
        return False


def mutated(token: bytes, chance: random.Random) -> bytes:
    data = bytearray(token)
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        at = chance.randrange(len(data))
        match chance.randrange(6):
            case 0:
                data[at] ^= 1 << chance.randrange(8)
            case 1:
                data[at] = chance.choice(b"ABCDEFGHabcdefgh0123456789-_.=")
            case 2:
                del data[at]
            case 3:
                data.insert(at, chance.randrange(256))
            case 4:
                end = min(len(data), at + chance.randrange(1, 40))
                data[at:end] = data[at:end][::-1]
            case _:
                parts = bytes(data).split(b".")
                chance.shuffle(parts)
                data = bytearray(b".".join(parts))
        if not data:
            return b"."
    return bytes(data)


# -- keys


async def test_a_new_key_is_fetched_when_a_token_names_it(judge: Judge) -> None:
    await judge(judge.provider.token())
    judge.provider.keys = [ec_key("new")]
    judge.clock.now += oidc.REFETCH_SECONDS
    await judge(judge.provider.token())


async def test_a_flood_of_unknown_keys_costs_one_fetch_in_an_interval(judge: Judge) -> None:
    await judge(judge.provider.token())
    for seconds in (0.0, oidc.REFETCH_SECONDS):
        judge.clock.now += seconds
        before = judge.provider.key_fetches
        tokens = [signed(rsa_key(), claims(URL), kid=f"flood-{n}") for n in range(200)]
        await asyncio.gather(*(judge.refuses(token) for token in tokens))
        assert judge.provider.key_fetches - before == (1 if seconds else 0)


async def test_what_a_removed_key_has_signed_is_refused_once_that_is_known(judge: Judge) -> None:
    token = judge.provider.token()
    await judge(token)
    judge.provider.keys = [ec_key("new")]
    await judge(token)  # as was found out before
    judge.clock.now += oidc.REFETCH_SECONDS
    await judge(judge.provider.token())
    assert "unknown key" in await judge.refuses(token)


async def test_a_removed_key_is_noticed_though_everybody_is_known(judge: Judge) -> None:
    token = judge.provider.token()
    before = await judge(token)
    told: list[Identity | None] = []
    judge.issuer.on_keys = lambda: told.append(judge.issuer.current(before))

    class Over(Exception):
        pass

    async def sleep(seconds: float) -> None:
        """Instead of waiting; the key is removed at the first time."""
        if told:
            raise Over
        judge.provider.keys = [ec_key("new")]
        judge.clock.now += seconds
        assert seconds <= oidc.REFRESH_SECONDS

    with pytest.raises(Over):
        await judge.issuer.refresh(sleep)
    assert told == [None], "so that open requests can be cut off"
    assert "unknown key" in await judge.refuses(token)


async def test_the_keys_are_fetched_again_and_again_though_nobody_asks(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    often = asyncio.Event()

    async def fetch(url: str) -> bytes:
        if judge.provider.key_fetches == 3:
            often.set()
        await asyncio.sleep(0)
        return await judge._fetch(url)

    for name in ("REFETCH_SECONDS", "REFRESH_SECONDS"):
        monkeypatch.setattr(oidc, name, 0.0)
    monkeypatch.setattr(oidc, "fetch_document", fetch)
    async with Issuer.open(OidcPolicy(URL, (AUDIENCE,)), frozenset), asyncio.timeout(60):
        await often.wait()


USELESS_KEYS: dict[str, Callable[[], Any]] = {
    "a secret": lambda: {"kty": "oct", "k": "c2VjcmV0", "kid": "x"},
    "a short one": lambda: rsa_key("small", 1024).jwk,
    "for encryption": lambda: {**ec_key("enc").jwk, "use": "enc"},
    "with an algorithm of another kind": lambda: {**ec_key("alg").jwk, "alg": "HS256"},
    "with a list of curves": lambda: {**ec_key("curves").jwk, "crv": ["P-256"]},
    "on another curve": lambda: {**ec_key("curve").jwk, "crv": "secp256k1"},
    "not on its curve": lambda: {**ec_key("point").jwk, "x": "AAAA"},
    "without a value": lambda: {"kty": "EC"},
    "empty": dict,
    "text": lambda: "text",
}


@pytest.mark.parametrize("name", USELESS_KEYS)
async def test_a_key_that_is_not_for_signatures_is_not_used(judge: Judge, name: str) -> None:
    key = USELESS_KEYS[name]()
    judge.provider.more_keys = [key]
    await judge(judge.provider.token())
    if isinstance(key, dict) and key.get("kid") in ("small", "enc", "alg"):
        kid = key["kid"]
        signing = rsa_key("small", 1024) if kid == "small" else ec_key(kid)
        assert "unknown key" in await judge.refuses(judge.provider.token(signing))


async def test_two_keys_with_one_name_are_none(judge: Judge) -> None:
    judge.provider.keys = [rsa_key(), ec_key("same")]
    judge.provider.more_keys = [{**ec_key("another").jwk, "kid": "same"}]
    assert "unknown key" in await judge.refuses(judge.provider.token(ec_key("same")))


async def test_a_token_without_the_name_of_a_key_needs_an_issuer_with_one(judge: Judge) -> None:
    token = signed(rsa_key(), claims(URL), kid=None)
    await judge(token)
    judge.provider.keys.append(rsa_key("other"))
    judge.clock.now += oidc.STALE_SECONDS + 1
    assert await judge.refuses(signed(rsa_key(), claims(URL, jti="2"), kid=None))


# -- an issuer that does not answer


async def test_a_token_that_cannot_be_judged_is_not_said_to_be_wrong(judge: Judge) -> None:
    judge.provider.is_down = True
    with pytest.raises(IssuerUnavailable) as error:
        await judge(judge.provider.token())
    assert error.value.retry_after == oidc.RETRY_SECONDS
    assert error.value.http_status == error.value.rpc_http_status() == 503
    for _ in range(50):
        with pytest.raises(IssuerUnavailable):
            await judge(judge.provider.token())
    assert len(judge.provider.fetched) == 1
    judge.provider.is_down = False
    judge.clock.now += oidc.RETRY_SECONDS
    await judge(judge.provider.token())


async def test_known_keys_are_used_for_a_while_without_the_issuer(judge: Judge) -> None:
    await judge(judge.provider.token())
    judge.provider.is_down = True
    judge.clock.now += oidc.REFRESH_SECONDS + 1
    await judge(judge.provider.token(jti="2"))
    with pytest.raises(IssuerUnavailable):  # it may have been signed with a new key
        await judge(signed(ec_key("new"), claims(URL)))
    judge.clock.now += oidc.STALE_SECONDS
    for number in ("2", "3"):  # known before, and not
        with pytest.raises(IssuerUnavailable):
            await judge(judge.provider.token(jti=number))


@pytest.mark.parametrize(
    "configuration",
    [
        {"issuer": "https://other.example.com"},
        {"issuer": URL + "/"},
        {"jwks_uri": "http://login.example.com/keys"},
        {"jwks_uri": "file:///etc/passwd"},
        {"jwks_uri": 7},
        {"jwks_uri": None},
    ],
    ids=str,
)
async def test_an_issuer_that_is_not_as_it_should_be_is_not_believed(
    judge: Judge, configuration: Json
) -> None:
    judge.provider.configuration = configuration
    with pytest.raises(IssuerUnavailable):
        await judge(judge.provider.token())
    assert judge.provider.key_fetches == 0


async def test_what_the_issuer_answers_is_bounded() -> None:
    with serving() as provider:
        assert json.loads(await fetch_document(f"{provider.url}/keys"))
        provider.more_keys = [{"x": "y" * oidc.MAX_DOCUMENT_BYTES}]
        with pytest.raises(IssuerFault, match="more than"):
            await fetch_document(f"{provider.url}/keys")
        with pytest.raises(IssuerFault, match="status 503"):
            await fetch_document(f"{provider.url}/nothing")
    with pytest.raises(IssuerFault, match="does not answer"):
        await fetch_document(f"{provider.url}/keys")


# -- what is remembered


async def test_a_token_is_judged_once_and_remembered_until_it_expires(judge: Judge) -> None:
    token = judge.provider.token().encode()
    digest = hashlib.sha256(token).digest()
    assert judge.issuer.known(digest) is None
    first = await judge(token)
    assert judge.issuer.known(digest) is first
    late = Issuer(
        OidcPolicy(URL, (AUDIENCE,)), frozenset, fetch=judge._fetch, clock=lambda: time.time() + 999
    )
    await late.verify(token, digest)
    assert late.known(digest) is None


async def test_what_is_remembered_is_bounded(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oidc, "MAX_VERIFIED", 10)
    for number in range(30):
        await judge(judge.provider.token(ed_key(), jti=str(number)))
    assert len(judge.issuer._verified) == 10


async def test_who_is_forgotten_is_still_who_it_was(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oidc, "MAX_VERIFIED", 2)
    busy, idle, third = (judge.provider.token(ed_key(), jti=str(n)) for n in range(3))
    first, second = await judge(busy), await judge(idle)
    await judge(busy)
    await judge(third)
    digests = [hashlib.sha256(token.encode()).digest() for token in (busy, idle)]
    assert [judge.issuer.known(digest) for digest in digests] == [first, None]
    assert judge.issuer.current(second) == second


async def test_new_meanings_hold_for_tokens_that_are_known_already(judge: Judge) -> None:
    token = judge.provider.token()
    await judge(token)
    judge.meanings = lambda words: frozenset({"admin"} if "tasks:read" in words else ())
    judge.issuer.reload()
    assert (await judge(token)).caller.scopes == {"admin"}


@pytest.mark.parametrize(
    ("claim", "more", "words"),
    [
        ("scope", {"scope": "a b  c"}, {"a", "b", "c"}),
        ("scp", {"scp": ["a", "b c", 7]}, {"a", "b c"}),
        ("realm_access.roles", {"realm_access": {"roles": ["a"]}}, {"a"}),
        ("https://example.com/roles", {"https://example.com/roles": ["a"]}, {"a"}),
        ("scope", {"scope": None}, set()),
        ("scope", {"scope": {"a": 1}}, set()),
        ("a.b", {"a": "b"}, set()),
    ],
)
async def test_what_a_token_is_good_for_is_found_where_the_settings_say(
    claim: str, more: Json, words: set[str]
) -> None:
    judge = Judge(scopes_claim=claim)
    assert (await judge(judge.provider.token(**more))).caller.scopes == words
