"""Who is calling: by bearer token, password, API key, or a certificate that a proxy has verified.

Secrets are found by their SHA-256, so a lookup costs the same whatever is sent and however many
credentials there are. What its time could tell is about the digest of what was sent.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog
from starlette.types import ASGIApp, Receive, Scope, Send
from structlog.contextvars import bind_contextvars

from ..domain.values import Caller
from ..errors import RateLimited, ServiceError, Unauthenticated
from ..observe import audit, metrics
from .connections import CUT_OFF, MARK_KNOWN, network_of
from .logins import DELAY_SECONDS, LoginGuard, Verdict
from .proxies import CERTIFICATE

logger = structlog.get_logger()

API_KEY_HEADER = b"x-api-key"
_EXAMPLES = {
    "bearer": "`Authorization: Bearer YOUR_TOKEN`",
    "basic": "`Authorization: Basic BASE64` with BASE64 made of `USERNAME:PASSWORD`",
    "api_key": "`X-API-Key: YOUR_TOKEN`",
}

OnError = Callable[[Scope, ServiceError], ASGIApp]


@dataclass(frozen=True, slots=True)
class Identity:
    """A caller as a credential names it."""

    caller: Caller
    expires_at: float | None = None  # seconds since 1970
    token_id: str | None = None  # of a token in the credentials file
    words: frozenset[str] = frozenset()  # what an issuer's token is good for, as it says itself …
    key: str | None = None  # … and the fingerprint of the key that has signed it


@dataclass(frozen=True, slots=True)
class Credential:
    """The digest of a secret, and the caller who has it. The secret itself is not kept."""

    scheme: str
    digest: bytes
    identity: Identity

    @property
    def caller(self) -> Caller:
        return self.identity.caller

    @classmethod
    def bearer(cls, token: str, caller: Caller) -> Credential:
        return cls(scheme="bearer", digest=_digest(token.encode()), identity=Identity(caller))

    @classmethod
    def api_key(cls, token: str, caller: Caller) -> Credential:
        return cls(scheme="api_key", digest=_digest(token.encode()), identity=Identity(caller))

    @classmethod
    def basic(cls, username: str, password: str, *, caller: Caller) -> Credential:
        digest = _digest(f"{username}:{password}".encode())
        return cls(scheme="basic", digest=digest, identity=Identity(caller))


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()


@dataclass(frozen=True, slots=True)
class PresentedCredential:
    """What a request presents; `digest` is empty where that is nothing."""

    scheme: str
    digest: bytes
    certificate: str = ""  # whose it is, with the scheme `mtls`


class TokenRefused(Exception):
    """A token is not valid; the message says why, to whoever has sent it."""


class TokenIssuer(Protocol):
    """Judges the tokens of somebody else."""

    def known(self, digest: bytes) -> Identity | None:
        """What was found before about the token with this SHA-256, as long as that holds."""
        ...

    async def verify(self, token: bytes, digest: bytes) -> Identity:
        """TokenRefused, or a ServiceError where it cannot be judged now."""
        ...

    def current(self, identity: Identity) -> Identity | None:
        """What an identity that was verified before means now; None if it counts no more."""
        ...


class Certificates(Protocol):
    def holder(self, name: str) -> Caller | None:
        """The caller with this certificate, by its subject or URI."""
        ...


class Credentials:
    """Everything by which a caller can be known."""

    def __init__(
        self,
        known: Sequence[Credential],
        *,
        issuer: TokenIssuer | None = None,
        certificates: Certificates | None = None,
    ) -> None:
        self.known = tuple(known)
        self.issuer = issuer
        self._certificates = certificates
        self._by_digest: Mapping[tuple[str, bytes], Credential] = {
            (credential.scheme, credential.digest): credential for credential in known
        }

    @property
    def schemes(self) -> list[str]:
        """In which ways a secret can be presented."""
        found = {credential.scheme for credential in self.known}
        if self.issuer is not None:
            found.add("bearer")
        return [scheme for scheme in _EXAMPLES if scheme in found]

    @property
    def takes_certificates(self) -> bool:
        return self._certificates is not None

    @property
    def challenge(self) -> str:
        named = [
            scheme for scheme in self.schemes if scheme != "api_key"
        ]  # HTTP has no name for it
        return ", ".join(f'{scheme.title()} realm="opencode-a2a"' for scheme in named)

    @property
    def advice(self) -> str:
        """How to log in, for a person."""
        ways = [f"Send {' or '.join(_EXAMPLES[each] for each in self.schemes)}."]
        if self.takes_certificates:
            ways.append("Or connect with a client certificate.")
        return " ".join(ways if self.schemes else ways[1:])

    @staticmethod
    def parse(header: bytes) -> PresentedCredential:
        return _of_header(header)[0]

    def identity(self, presented: PresentedCredential) -> Identity | None:
        """Whom a credential stands for, as far as that is known without asking anybody."""
        if presented.scheme == "mtls":
            holder = (
                self._certificates.holder(presented.certificate) if self._certificates else None
            )
            return Identity(holder) if holder is not None else None
        found = self._by_digest.get((presented.scheme, presented.digest))
        if found is not None and hmac.compare_digest(found.digest, presented.digest):
            return found.identity
        if self.issuer is not None and presented.scheme == "bearer":
            return self.issuer.known(presented.digest)
        return None

    def current(self, presented: PresentedCredential, before: Identity) -> Identity | None:
        """Whom a credential stands for now that stood for `before`."""
        if before.key is None:
            return self.identity(presented)
        return self.issuer.current(before) if self.issuer is not None else None

    def caller(self, presented: PresentedCredential) -> Caller | None:
        identity = self.identity(presented)
        return identity.caller if identity is not None else None


def _of_header(header: bytes) -> tuple[PresentedCredential, bytes]:
    """The credential in an Authorization header, and its secret."""
    name, _, secret = header.strip().partition(b" ")
    scheme, secret = name.lower().decode("latin-1"), secret.strip()
    if scheme == "basic":
        try:
            secret = base64.b64decode(secret, validate=True)
        except (binascii.Error, ValueError):
            secret = b""
    if scheme not in ("basic", "bearer"):  # no header can name our other schemes
        scheme, secret = "", b""
    return PresentedCredential(scheme, _digest(secret) if secret else b""), secret


def _presented(scope: Scope) -> tuple[PresentedCredential, bytes] | None:
    """What a request presents, and its secret. Whoever sends several is judged by the first."""
    api_key = None
    for name, value in scope["headers"]:
        if name == b"authorization":
            return _of_header(value)
        if name == API_KEY_HEADER and api_key is None:
            api_key = value.strip()
    if api_key is not None:
        return PresentedCredential("api_key", _digest(api_key) if api_key else b""), api_key
    if certificate := scope["state"].get(CERTIFICATE):
        digest = _digest(certificate.encode())
        return PresentedCredential("mtls", digest, certificate=certificate), b""
    return None


@dataclass(slots=True, eq=False)
class _OpenRequest:
    """A request that is being answered, such as a stream."""

    presented: PresentedCredential
    identity: Identity  # when it began
    cut_off: Callable[[], None]
    ending: asyncio.TimerHandle | None = None

    def end_in(self, seconds: float | None) -> None:
        """Cut it off then, if it lasts that long; None means never."""
        if self.ending is not None:
            self.ending.cancel()
        loop = asyncio.get_running_loop()
        self.ending = None if seconds is None else loop.call_later(seconds, self.cut_off)


class Authenticator:
    """Puts the caller into the request, or answers 401. What is public passes in both cases.

    `is_public` is asked about the request, not about its path alone: another method at the same
    path may belong to a route that is not public.

    The credentials can be replaced while requests are being answered. Those whose credential does
    not allow them any more are cut off: nobody goes on reading with one that was revoked, or has
    expired.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        credentials: Credentials,
        is_public: Callable[[Scope], bool],
        on_error: OnError,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._app = app
        self._credentials = credentials
        self._is_public = is_public
        self._on_error = on_error
        self._clock = clock
        self._sleep = sleep
        self._wall_clock = wall_clock
        self._logins = LoginGuard()
        self._open: set[_OpenRequest] = set()
        self.last_used: dict[str, int] = {}  # by the ids of tokens, since somebody took them away

    def replace(self, credentials: Credentials) -> int:
        """Let these be known from now on; how many requests were cut off."""
        self._credentials = credentials
        revoked = 0
        for request in tuple(self._open):
            now = credentials.current(request.presented, request.identity)
            if now is None or self._is_over(now) or not _allows(now.caller, request.identity):
                request.cut_off()
                revoked += 1
            else:  # it may end at another time now, as that of a token that is rotated
                request.end_in(self._left(now))
        return revoked

    def _left(self, identity: Identity) -> float | None:
        """For how many seconds it is valid."""
        end = identity.expires_at
        return end - self._wall_clock() if end is not None else None

    def _is_over(self, identity: Identity) -> bool:
        left = self._left(identity)
        return left is not None and left <= 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        mark_known, cut_off = (state.pop(hook, _do_nothing) for hook in (MARK_KNOWN, CUT_OFF))
        try:
            presented, identity = await self._login(scope)
        except ServiceError as refusal:
            state["caller"] = None
            respond = self._app if self._is_public(scope) else self._on_error(scope, refusal)
            await respond(scope, receive, send)
            return
        caller = state["caller"] = identity.caller
        bind_contextvars(principal=caller.principal)
        audit.actor.set(audit.Actor(caller.principal, _client_of(scope)))
        mark_known()
        request = _OpenRequest(presented, identity, cut_off=cut_off)
        self._open.add(request)
        request.end_in(self._left(identity))
        try:
            await self._app(scope, receive, send)
        finally:
            self._open.discard(request)
            request.end_in(None)

    async def _login(self, scope: Scope) -> tuple[PresentedCredential, Identity]:
        sent = _presented(scope)
        if sent is None:
            raise self._unauthenticated("This request needs a credential.")
        (presented, secret), address = sent, _address_of(scope)
        verdict = self._logins.verdict(address, presented, now=self._clock())
        if verdict is Verdict.WAIT and not self._is_public(scope):
            self._logins.waits(address)
            try:
                await self._sleep(DELAY_SECONDS)
            finally:
                self._logins.waited(address)
        elif verdict is not Verdict.CHECK:
            metrics.LOGINS_REFUSED.labels("slowed").inc()
            raise RateLimited(
                "Too many logins from this address failed, so others have to wait. Try again in "
                f"{DELAY_SECONDS:.0f} seconds. {self._credentials.advice}",
                retry_after=math.ceil(DELAY_SECONDS),
                challenge=self._credentials.challenge,
            )
        try:
            identity = await self._identity(presented, secret)
        except TokenRefused as refusal:
            self._failed(address, scope)
            raise self._unauthenticated(str(refusal)) from None
        self._logins.accepted(address, presented)
        if identity.token_id is not None:
            self.last_used[identity.token_id] = int(self._wall_clock())
        return presented, identity

    async def _identity(self, presented: PresentedCredential, secret: bytes) -> Identity:
        """TokenRefused: the credential stands for nobody, or not any more."""
        credentials = self._credentials
        identity = credentials.identity(presented)
        if identity is None and credentials.issuer is not None and presented.scheme == "bearer":
            identity = await credentials.issuer.verify(secret, presented.digest)
        if identity is None:
            if presented.scheme == "mtls":
                raise TokenRefused("The client certificate is of nobody who may use this service.")
            where = "X-API-Key" if presented.scheme == "api_key" else "Authorization"
            raise TokenRefused(f"The credential in the {where} header is not valid.")
        if self._is_over(identity):
            raise TokenRefused("This token has expired. Get a new one.")
        return identity

    def _failed(self, address: str, scope: Scope) -> None:
        metrics.LOGINS_REFUSED.labels("invalid").inc()
        by = audit.Actor(None, _client_of(scope))
        audit.record("login", outcome="refused", by=by, path=scope["path"])
        if self._logins.failed(address, self._clock()):
            logger.warning("logins.slowed", address=address)

    def _unauthenticated(self, message: str) -> Unauthenticated:
        advice, challenge = self._credentials.advice, self._credentials.challenge
        return Unauthenticated(f"{message} {advice}", challenge=challenge)


def _allows(now: Caller, before: Identity) -> bool:
    """Whether this is still the same caller, who may do no less than before."""
    return now.principal == before.caller.principal and before.caller.scopes <= now.scopes


def _do_nothing() -> None:
    """In the place of a hook, for a request that did not come over a connection of ours."""


def _client_of(scope: Scope) -> str | None:
    client = scope.get("client")
    return client[0] if client else None


def _address_of(scope: Scope) -> str:
    client = scope.get("client")
    return network_of(client[0]) if client else ""
