"""Access tokens (JWT) of an OpenID Connect provider: whether one is valid, and for whom.

PyJWT parses and verifies them, once. What is added here:

- Keys come from the configured issuer alone. What a token says about keys (`jku`, `x5u`, `jwk`) is
  not looked at; its `kid` is a name in a list.
- A key is good for the algorithm that it names. Secrets shared with the issuer are none.
- An unknown `kid` may be that of a new key, so the keys are fetched again, but not more often than
  every REFETCH_SECONDS, whatever is sent. PyJWT's own client would fetch them for each such token.

What was found out is remembered until the token expires, so a request costs no signature check.
Hence a token that the issuer revokes stays valid until then, or until its key is gone. So that this
is noticed, the keys are fetched every REFRESH_SECONDS, whoever asks.

PyJWT and its cryptography are large: this module is loaded only where an issuer is configured.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import jwt
import structlog
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from ..domain.addresses import discovery_url, is_loopback
from ..domain.values import MAX_PRINCIPAL, Caller, named_principal
from ..errors import IssuerUnavailable
from .auth import Identity, TokenRefused

logger = structlog.get_logger()

MAX_TOKEN_BYTES = 16_384
MAX_VERIFIED = 10_000  # tokens that are remembered
MAX_DOCUMENT_BYTES = 262_144  # of what the issuer answers
MAX_KEYS = 64
MIN_RSA_BITS = 2048
LAST_SECOND = 253_402_300_799  # of the year 9999
FETCH_SECONDS = 5.0
REFETCH_SECONDS = 30.0  # between two attempts to fetch the keys, at least …
RETRY_SECONDS = 5.0  # … and if the first has failed
REFRESH_SECONDS = 600.0  # after which the keys are fetched again
STALE_SECONDS = 3600.0  # after which keys are not used any more, if they cannot be fetched again

ALGORITHMS = frozenset(
    {
        *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
        *("ES256", "ES384", "ES512", "EdDSA"),
    }
)
# As access tokens are marked; others, such as those that tell of a logout, are no credentials.
# Many issuers write `JWT` for all of them, which then differ in their claims.
_TYPES = frozenset({"jwt", "at+jwt", "application/jwt", "application/at+jwt"})
_CLAIMS_OF_OTHERS = frozenset({"at_hash", "c_hash", "s_hash", "events"})
_TYPES_OF_OTHERS = frozenset({"id", "refresh", "offline", "logout"})

Json = dict[str, Any]
Fetch = Callable[[str], Awaitable[bytes]]
Resolve = Callable[[Collection[str]], frozenset[str]]


LEEWAY_SECONDS = 30.0  # by which clocks may differ
PRINCIPAL_PREFIX = "oidc:"  # so that nobody gets the name of another kind of caller


@dataclass(frozen=True, slots=True)
class OidcPolicy:
    """Which tokens are accepted, and what they mean."""

    issuer: str
    audience: tuple[str, ...]
    authorized_parties: frozenset[str] = frozenset()
    principal_claim: str = "sub"
    scopes_claim: str = "scope"


@dataclass(frozen=True)
class Keys:
    found: tuple[jwt.PyJWK, ...]
    fetched_at: float

    def find(self, head: Json) -> jwt.PyJWK | None:
        """The one key with this name and algorithm; a token that names none needs a single one."""
        name = head.get("kid")
        fitting = [
            key
            for key in self.found
            if key.algorithm_name == head["alg"] and (name is None or key.key_id == name)
        ]
        named = [key for key in self.found if name is not None and key.key_id == name]
        return fitting[0] if len(fitting) == 1 and len(named) <= 1 else None

    @cached_property
    def fingerprints(self) -> frozenset[str]:
        return frozenset(map(fingerprint, self.found))


def fingerprint(key: jwt.PyJWK) -> str:
    public = key.key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(public).hexdigest()


class IssuerFault(Exception):
    """The issuer does not answer, or not as it should."""


# -- rules


def read_head(token: bytes) -> Json:
    """What a token says about its signature. TokenRefused: it is none that is judged here."""
    if len(token) > MAX_TOKEN_BYTES:
        raise TokenRefused(f"The token is larger than {MAX_TOKEN_BYTES} bytes.")
    try:
        head: Json = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, RecursionError):
        words = "The credential in the Authorization header is not valid."
        raise TokenRefused(words) from None
    algorithm, kind = head.get("alg"), head.get("typ", "JWT")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise TokenRefused("The token is signed with an algorithm that is not accepted here.")
    if not head.keys().isdisjoint(("crit", "b64", "zip", "enc")):
        raise TokenRefused("The token needs an extension that is not supported.")
    if not isinstance(kind, str) or kind.lower() not in _TYPES:
        raise TokenRefused("The token is no access token.")
    return head


def read_claims(token: bytes, key: jwt.PyJWK, policy: OidcPolicy) -> Json:
    """The claims of a token that is signed with the key, and valid now."""
    try:
        claims: Json = jwt.decode(
            token,
            key,
            algorithms=[key.algorithm_name],
            issuer=policy.issuer,
            audience=policy.audience,
            leeway=LEEWAY_SECONDS,
            options={"require": ["exp", "iss", "aud", policy.principal_claim]},
        )
    except jwt.ExpiredSignatureError:
        raise TokenRefused("This token has expired. Get a new one.") from None
    except jwt.ImmatureSignatureError:
        raise TokenRefused("This token is not valid yet.") from None
    except jwt.InvalidAudienceError:
        raise TokenRefused("This token was made for another service.") from None
    except jwt.InvalidIssuerError:
        raise TokenRefused("This token is of another issuer.") from None
    except jwt.MissingRequiredClaimError as exc:
        raise TokenRefused(f"The token lacks the claim {exc.claim}.") from None
    except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError):
        raise TokenRefused("The token is not valid.") from None
    if claims["iss"] != policy.issuer:
        raise TokenRefused("This token is of another issuer.")
    if not _is_for_access(claims):
        raise TokenRefused("The token is no access token.")
    if not all(_is_time(claims[name]) for name in ("exp", "nbf", "iat") if name in claims):
        raise TokenRefused("The token is not valid.")
    party = claims.get("azp", claims.get("client_id"))
    if policy.authorized_parties and str(party) not in policy.authorized_parties:
        raise TokenRefused("This token was given to a client that may not use this service.")
    return claims


def _is_for_access(claims: Json) -> bool:
    """Not for a client that wants to know who has logged in: such tokens lie about everywhere."""
    kind = str(claims.get("typ", "")).lower()
    if kind in _TYPES_OF_OTHERS or not _CLAIMS_OF_OTHERS.isdisjoint(claims):
        return False
    return "nonce" not in claims or kind == "bearer"  # so Keycloak marks its access tokens


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= LAST_SECOND


def principal_of(claims: Json, policy: OidcPolicy) -> str:
    name = claims.get(policy.principal_claim)
    principal = named_principal(PRINCIPAL_PREFIX, name) if isinstance(name, str) else None
    if principal is None:
        raise TokenRefused(
            f"The claim {policy.principal_claim} of the token names nobody: it must be text that "
            f"can be printed, and with {PRINCIPAL_PREFIX!r} no longer than {MAX_PRINCIPAL}."
        )
    return principal


def words_of(claims: Json, claim: str) -> frozenset[str]:
    """What a token is good for, in its issuer's words."""
    value: Any = claims.get(claim)
    if value is None:
        value = claims
        for name in claim.split("."):
            value = value.get(name) if isinstance(value, dict) else None
    if isinstance(value, str):
        return frozenset(value.split())
    words = value if isinstance(value, list) else []
    return frozenset(each for each in words if isinstance(each, str))


def read_keys(document: bytes, *, at: float) -> Keys:
    """The public keys of a JWKS that are for signatures of an algorithm that is accepted."""
    try:
        given = jwt.PyJWKSet.from_json(document.decode()).keys
    except (jwt.PyJWTError, ValueError, TypeError, AttributeError, RecursionError):
        raise IssuerFault("its keys are no JWKS, or none of them can be used") from None
    found = tuple(filter(_is_usable, given[:MAX_KEYS]))
    if not found:
        raise IssuerFault("it has no key that can be used")
    return Keys(found, fetched_at=at)


def _is_usable(key: jwt.PyJWK) -> bool:
    if key.algorithm_name not in ALGORITHMS or key.public_key_use not in (None, "sig"):
        return False
    if not hasattr(key.key, "public_bytes"):  # it is a private one, that everybody knows
        return False
    return key.key_type != "RSA" or key.key.key_size >= MIN_RSA_BITS


# -- effects


class Issuer:
    """Implements `web.auth.TokenIssuer`."""

    def __init__(
        self,
        policy: OidcPolicy,
        resolve: Resolve,
        *,
        fetch: Fetch | None = None,
        clock: Callable[[], float] = time.time,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        self._policy = policy
        self._resolve = resolve  # what the words of a token mean
        self._fetch = fetch or fetch_document
        self._clock = clock
        self._elapsed = elapsed
        self._keys: Keys | None = None
        self._tried_at = -math.inf
        self._is_failing = False
        self._fetching: asyncio.Task[None] | None = None
        self._verified: dict[bytes, Identity] = {}
        self.on_keys: Callable[[], None] = lambda: None  # called when a key is gone
        self.token_endpoint: str | None = None  # as its configuration says, once that is known

    @classmethod
    @asynccontextmanager
    async def open(cls, policy: OidcPolicy, resolve: Resolve) -> AsyncIterator[Issuer]:
        """The keys are fetched at once, so that the log says early if that does not work."""
        issuer = cls(policy, resolve)
        refreshing = asyncio.create_task(issuer.refresh())
        try:
            yield issuer
        finally:
            tasks = [task for task in (refreshing, issuer._fetching) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def refresh(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Keep the keys fresh until it is canceled."""
        while True:
            await self._fetch_keys()
            await sleep(REFETCH_SECONDS if self._is_failing else REFRESH_SECONDS)

    def known(self, digest: bytes) -> Identity | None:
        found = self._verified.pop(digest, None)
        if found is None or (found.expires_at or 0) <= self._clock():
            return None
        self._verified[digest] = found  # the last one now: the first ones are forgotten first
        return found if self._has_keys else None

    async def verify(self, token: bytes, digest: bytes) -> Identity:
        head = read_head(token)
        key = await self._key(head)
        claims = read_claims(token, key, self._policy)
        principal = principal_of(claims, self._policy)
        words = words_of(claims, self._policy.scopes_claim)
        identity = Identity(
            Caller(principal, self._resolve(words)),
            expires_at=claims["exp"] + LEEWAY_SECONDS,
            words=words,
            key=fingerprint(key),
        )
        self._verified[digest] = identity
        if len(self._verified) > MAX_VERIFIED:
            del self._verified[next(iter(self._verified))]
        return identity

    def current(self, identity: Identity) -> Identity | None:
        if self._keys is None or identity.key not in self._keys.fingerprints:
            return None
        caller = Caller(identity.caller.principal, self._resolve(identity.words))
        return replace(identity, caller=caller)

    def reload(self) -> None:
        """The words of tokens may have another meaning now, or a key may be gone."""
        judged = {digest: self.current(found) for digest, found in self._verified.items()}
        self._verified = {digest: found for digest, found in judged.items() if found is not None}

    @property
    def _has_keys(self) -> bool:
        """Whether there are keys that may be used."""
        keys = self._keys
        return keys is not None and self._elapsed() - keys.fetched_at <= STALE_SECONDS

    async def _key(self, head: Json) -> jwt.PyJWK:
        if not self._has_keys:
            await self._fetch_keys()
        if self._keys is None or not self._has_keys:
            raise self._unavailable()
        found = self._keys.find(head)
        if found is None:  # it may be newer than what we have
            await self._fetch_keys()
            found = self._keys.find(head)
        if found is None and self._is_failing:
            raise self._unavailable()
        if found is None:
            raise TokenRefused("The token is signed with an unknown key.")
        return found

    def _unavailable(self) -> IssuerUnavailable:
        left = self._tried_at + self._interval - self._elapsed()
        return IssuerUnavailable(retry_after=max(1, math.ceil(left)))

    @property
    def _interval(self) -> float:
        return RETRY_SECONDS if self._is_failing else REFETCH_SECONDS

    async def _fetch_keys(self) -> None:
        """Wait for the keys; it is not an error if they cannot be had, or were a moment ago."""
        self._begin_fetch()
        if self._fetching is not None:
            await asyncio.shield(self._fetching)

    def _begin_fetch(self) -> None:
        if self._fetching is not None or self._elapsed() - self._tried_at < self._interval:
            return
        self._tried_at = self._elapsed()
        self._fetching = asyncio.create_task(self._update_keys())

    async def _update_keys(self) -> None:
        try:
            self._take(await self._current_keys())
            self._is_failing = False
        except IssuerFault as exc:
            self._is_failing = True
            logger.warning("oidc.no_keys", issuer=self._policy.issuer, reason=str(exc))
        except Exception:
            self._is_failing = True
            logger.exception("oidc.internal_error", issuer=self._policy.issuer)
        finally:
            self._fetching = None

    def _take(self, keys: Keys) -> None:
        before, self._keys = self._keys, keys
        if before is not None and not before.fingerprints <= keys.fingerprints:
            self.reload()
            self.on_keys()

    async def _current_keys(self) -> Keys:
        issuer = self._policy.issuer
        document = await self._fetch(discovery_url(issuer))
        try:
            configuration = json.loads(document)
            named, keys_at = configuration["issuer"], configuration["jwks_uri"]
            parts = urlsplit(keys_at)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise IssuerFault("its configuration is not that of OpenID Connect") from None
        if named != issuer:
            raise IssuerFault(
                "its configuration names another issuer; A2A_OIDC_ISSUER must be "
                "written as there, to the letter"
            )
        if parts.scheme != "https" and not (
            parts.scheme == "http" and is_loopback(parts.hostname or "")
        ):
            raise IssuerFault("its keys are not at an https URL")
        token_endpoint = configuration.get("token_endpoint")
        self.token_endpoint = token_endpoint if isinstance(token_endpoint, str) else None
        return read_keys(await self._fetch(keys_at), at=self._elapsed())


async def fetch_document(url: str) -> bytes:
    """What is at this address; bounded in time and size, without following redirects."""
    timeout = aiohttp.ClientTimeout(total=FETCH_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(
                timeout=timeout, trust_env=True, auto_decompress=False
            ) as session,
            session.get(
                url, allow_redirects=False, headers={"accept-encoding": "identity"}
            ) as response,
        ):
            if response.status != 200:
                raise IssuerFault(f"{url} answers with status {response.status}")
            body = await response.content.read(MAX_DOCUMENT_BYTES + 1)
            while len(body) <= MAX_DOCUMENT_BYTES and not response.content.at_eof():
                body += await response.content.read(MAX_DOCUMENT_BYTES + 1 - len(body))
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as exc:
        raise IssuerFault(f"{url} does not answer ({type(exc).__name__})") from None
    if len(body) > MAX_DOCUMENT_BYTES:
        raise IssuerFault(f"{url} answers with more than {MAX_DOCUMENT_BYTES} bytes")
    return body
