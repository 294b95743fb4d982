"""Who is calling: bearer tokens and basic passwords, compared in constant time."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from ..domain.values import Caller
from ..errors import RateLimited, ServiceError, Unauthenticated
from .connections import CUT_OFF, MARK_KNOWN, network_of
from .logins import DELAY_SECONDS, LoginGuard, Verdict

logger = structlog.get_logger()

_EXAMPLES = {
    "bearer": "`Authorization: Bearer YOUR_TOKEN`",
    "basic": "`Authorization: Basic BASE64` with BASE64 made of `USERNAME:PASSWORD`",
}

OnError = Callable[[Scope, ServiceError], ASGIApp]


@dataclass(frozen=True, slots=True)
class Credential:
    """The digest of a secret, and the caller who has it. The secret itself is not kept."""

    scheme: str
    digest: bytes
    caller: Caller

    @classmethod
    def bearer(cls, token: str, caller: Caller) -> Credential:
        return cls(scheme="bearer", digest=_digest(token.encode()), caller=caller)

    @classmethod
    def basic(cls, username: str, password: str, *, caller: Caller) -> Credential:
        digest = _digest(f"{username}:{password}".encode())
        return cls(scheme="basic", digest=digest, caller=caller)


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()


@dataclass(frozen=True, slots=True)
class PresentedCredential:
    """The credential of an Authorization header; `digest` is empty where there is none."""

    scheme: str
    digest: bytes


@dataclass(frozen=True, slots=True)
class Credentials:
    known: Sequence[Credential]

    @property
    def schemes(self) -> list[str]:
        return [s for s in ("bearer", "basic") if any(c.scheme == s for c in self.known)]

    @property
    def challenge(self) -> str:
        return ", ".join(f'{scheme.title()} realm="opencode-a2a"' for scheme in self.schemes)

    @property
    def advice(self) -> str:
        """How to log in, for a person."""
        return f"Send {' or '.join(_EXAMPLES[scheme] for scheme in self.schemes)}."

    @staticmethod
    def parse(header: bytes) -> PresentedCredential:
        name, _, secret = header.strip().partition(b" ")
        scheme, secret = name.lower().decode("latin-1"), secret.strip()
        if scheme == "basic":
            try:
                secret = base64.b64decode(secret, validate=True)
            except (binascii.Error, ValueError):
                secret = b""
        return PresentedCredential(scheme, _digest(secret) if secret else b"")

    def caller(self, presented: PresentedCredential) -> Caller | None:
        """The caller who has this credential. Takes equally long for any wrong one."""
        found = None
        for credential in self.known:
            same = hmac.compare_digest(presented.digest, credential.digest)
            if same and credential.scheme == presented.scheme:
                found = credential.caller
        return found


@dataclass(frozen=True, slots=True, eq=False)
class _OpenRequest:
    """A request that is being answered, such as a stream."""

    presented: PresentedCredential
    caller: Caller
    cut_off: Callable[[], None]


class Authenticator:
    """Puts the caller into the request, or answers 401. Public paths pass in both cases.

    The credentials can be replaced while requests are being answered. Those whose credential does
    not allow them any more are cut off: nobody goes on reading with a revoked one.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        credentials: Credentials,
        public: frozenset[str],
        on_error: OnError,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._app = app
        self._credentials = credentials
        self._public = public
        self._on_error = on_error
        self._clock = clock
        self._sleep = sleep
        self._logins = LoginGuard()
        self._open: set[_OpenRequest] = set()

    def replace(self, credentials: Credentials) -> int:
        """Let these be known from now on; how many requests were cut off."""
        self._credentials = credentials
        revoked = [
            request
            for request in self._open
            if not _allows(credentials.caller(request.presented), request.caller)
        ]
        for request in revoked:
            request.cut_off()
        return len(revoked)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        mark_known, cut_off = (state.pop(hook, _do_nothing) for hook in (MARK_KNOWN, CUT_OFF))
        is_public = scope["path"] in self._public
        try:
            presented, caller = await self._login(scope, may_wait=not is_public)
        except ServiceError as refusal:
            state["caller"] = None
            respond = self._app if is_public else self._on_error(scope, refusal)
            await respond(scope, receive, send)
            return
        state["caller"] = caller
        mark_known()
        request = _OpenRequest(presented, caller, cut_off=cut_off)
        self._open.add(request)
        try:
            await self._app(scope, receive, send)
        finally:
            self._open.discard(request)

    async def _login(self, scope: Scope, *, may_wait: bool) -> tuple[PresentedCredential, Caller]:
        header = next((v for k, v in scope["headers"] if k == b"authorization"), None)
        if header is None:
            raise self._unauthenticated("This request needs a credential.")
        presented, address = self._credentials.parse(header), _address_of(scope)
        verdict = self._logins.verdict(address, presented, now=self._clock())
        if verdict is Verdict.WAIT and may_wait:
            self._logins.waits(address)
            try:
                await self._sleep(DELAY_SECONDS)
            finally:
                self._logins.waited(address)
        elif verdict is not Verdict.CHECK:
            raise RateLimited(
                "Too many logins from this address failed, so others have to wait. Try again in "
                f"{DELAY_SECONDS:.0f} seconds. {self._credentials.advice}",
                retry_after=math.ceil(DELAY_SECONDS),
                challenge=self._credentials.challenge,
            )
        caller = self._credentials.caller(presented)
        if caller is None:
            self._failed(address)
            raise self._unauthenticated("The credential in the Authorization header is not valid.")
        self._logins.accepted(address, presented)
        return presented, caller

    def _failed(self, address: str) -> None:
        if self._logins.failed(address, self._clock()):
            logger.warning("logins.slowed", address=address)

    def _unauthenticated(self, message: str) -> Unauthenticated:
        advice, challenge = self._credentials.advice, self._credentials.challenge
        return Unauthenticated(f"{message} {advice}", challenge=challenge)


def _allows(now: Caller | None, before: Caller) -> bool:
    """Whether a credential still stands for the same caller, who may do no less than before."""
    return now is not None and now.principal == before.principal and before.scopes <= now.scopes


def _do_nothing() -> None:
    """In the place of a hook, for a request that did not come over a connection of ours."""


def _address_of(scope: Scope) -> str:
    client = scope.get("client")
    return network_of(client[0]) if client else ""
