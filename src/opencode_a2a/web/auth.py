"""Who is calling: bearer tokens and basic passwords, compared in constant time."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

from ..domain.values import Caller
from ..errors import RateLimited, ServiceError, Unauthenticated

FAILURES = 30  # wrong credentials an address may send …
WINDOW = 60.0  # … in so many seconds
ADDRESSES = 10_000  # remembered at most

OnError = Callable[[Scope, ServiceError], ASGIApp]


@dataclass(frozen=True, slots=True)
class Credential:
    """A secret, known to us as its digest only, and whom it stands for."""

    scheme: str
    digest: bytes
    caller: Caller

    @classmethod
    def bearer(cls, token: str, caller: Caller) -> Credential:
        return cls("bearer", _digest(token.encode()), caller)

    @classmethod
    def basic(cls, username: str, password: str, caller: Caller) -> Credential:
        return cls("basic", _digest(f"{username}:{password}".encode()), caller)


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()


@dataclass(frozen=True, slots=True)
class Credentials:
    known: Sequence[Credential]

    @property
    def schemes(self) -> list[str]:
        return [s for s in ("bearer", "basic") if any(c.scheme == s for c in self.known)]

    @property
    def challenge(self) -> str:
        return ", ".join(f'{scheme.title()} realm="opencode-a2a"' for scheme in self.schemes)

    def caller(self, header: bytes) -> Caller | None:
        """Whom an Authorization header stands for. Takes equally long for any wrong one."""
        scheme, _, secret = header.strip().partition(b" ")
        kind, secret = scheme.lower().decode("latin-1"), secret.strip()
        if kind == "basic":
            try:
                secret = base64.b64decode(secret, validate=True)
            except (binascii.Error, ValueError):
                return None
        if not secret:
            return None
        presented, found = _digest(secret), None
        for credential in self.known:
            same = hmac.compare_digest(presented, credential.digest)
            if same and credential.scheme == kind:
                found = credential.caller
        return found


class Throttle:
    """Counts failed logins per address in a fixed window."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: dict[str, tuple[float, int]] = {}

    def exceeded(self, address: str) -> bool:
        began, count = self._failures.get(address, (0.0, 0))
        return count >= FAILURES and self._clock() - began < WINDOW

    def failed(self, address: str) -> None:
        now = self._clock()
        began, count = self._failures.pop(address, (now, 0))
        if now - began >= WINDOW:
            began, count = now, 0
        self._failures[address] = (began, count + 1)
        if len(self._failures) > ADDRESSES:
            del self._failures[next(iter(self._failures))]


class Authenticate:
    """Puts the caller into the request, or answers 401. Public paths pass either way."""

    def __init__(
        self, app: ASGIApp, credentials: Credentials, public: frozenset[str], on_error: OnError
    ) -> None:
        self._app = app
        self._credentials = credentials
        self._public = public
        self._on_error = on_error
        self._throttle = Throttle()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        header = next((v for k, v in scope["headers"] if k == b"authorization"), None)
        caller = self._credentials.caller(header) if header is not None else None
        scope.setdefault("state", {})["caller"] = caller
        if caller is not None or scope["path"] in self._public:
            await self._app(scope, receive, send)
            return
        await self._on_error(scope, self._refusal(scope, header))(scope, receive, send)

    def _refusal(self, scope: Scope, header: bytes | None) -> ServiceError:
        address = (scope.get("client") or ("?",))[0]
        if self._throttle.exceeded(address):
            return RateLimited("Too many failed logins. Wait a minute.", retry_after=int(WINDOW))
        if header is None:
            message = "This needs a credential in the Authorization header."
        else:
            self._throttle.failed(address)
            message = "The credential in the Authorization header is not valid."
        return Unauthenticated(message, challenge=self._credentials.challenge)
