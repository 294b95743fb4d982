"""How a notification reaches its receiver: signed, to a checked address, and within limits.

A name is resolved for every new connection, every address it has must be allowed, and redirects are
not followed. So neither a rebound name nor an answer leads to a private network.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import secrets
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import aiohttp
from yarl import URL

from ..domain.addresses import is_host, origin_of
from ..domain.ports import Refused
from ..domain.push import HMAC_SCHEMES, Answer, BrowserKeys, Notification, PushConfig
from .egress import Egress
from .fetch import GuardedResolver, lookup_owner
from .retry_after import retry_after
from .webpush import TTL_SECONDS, encrypted

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

Json = dict[str, Any]

CONNECT_SECONDS = 5.0
CHALLENGE_BYTES = 1_024
JWT_SECONDS = 300
MAX_CONNECTIONS = 256
USER_AGENT = "opencode-a2a"
AWAY = (502, 503, 504)  # what a proxy says about the server; another error is about the request
GONE = (404, 410)  # said by a push service of a browser that has unsubscribed
MEDIA_TYPES = {"1.0": "application/a2a+json", "0.3": "application/json"}

TOKEN_HEADER = "X-A2A-Notification-Token"
JWT_HEADER = "A2A-Notification-JWT"  # where the client has its own use for Authorization
ATTEMPT_HEADER = "A2A-Notification-Attempt"
VALIDATION_PARAMETER = "validationToken"


def signature(secret: str, event_id: str, *, timestamp: int, body: bytes) -> str:
    """As Standard Webhooks defines it. A secret that is not written `whsec_…` is taken as text."""
    key = secret.encode()
    if secret.startswith("whsec_"):
        with suppress(binascii.Error):
            key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    signed = f"{event_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(key, signed, "sha256")).decode()


class SigningKeys:
    """The keys that notifications are signed with. The first signs; all are published."""

    def __init__(self, keys: Sequence[SigningKey]) -> None:
        self._keys = keys

    @classmethod
    async def load(cls, read: Callable[[], str]) -> SigningKeys:
        """OSError or ValueError if that is not possible."""
        # In a thread: the library takes a quarter of a second.
        return cls(await asyncio.to_thread(_load_keys, read))

    def published(self) -> Json:
        """The JSON Web Key Set, without anything private."""
        return {"keys": [key.jwk for key in self._keys]}

    @property
    def public_point(self) -> str:
        """The public key that signs, as browsers write it: an uncompressed point."""
        jwk = self._keys[0].jwk
        x, y = (base64.urlsafe_b64decode(jwk[name] + "=") for name in ("x", "y"))
        return base64.urlsafe_b64encode(b"\x04" + x + y).rstrip(b"=").decode()

    def token(self, claims: Mapping[str, Any]) -> str:
        import jwt

        key = self._keys[0]
        headers = {"kid": key.jwk["kid"]}
        return jwt.encode(dict(claims), key.private, algorithm="ES256", headers=headers)


class SigningKey(NamedTuple):
    private: EllipticCurvePrivateKey
    jwk: Json  # of the public key


def new_key() -> str:
    """A new private key, as PEM."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    return (
        ec.generate_private_key(ec.SECP256R1())
        .private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        .decode()
    )


def _load_keys(read: Callable[[], str]) -> list[SigningKey]:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from jwt.algorithms import ECAlgorithm

    found = []
    end = "-----END PRIVATE KEY-----"
    for pem in read().split(end)[:-1]:
        try:
            key = load_pem_private_key((pem + end).strip().encode(), None)
        except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: it needs a password
            raise ValueError("holds a private key that cannot be read") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != "secp256r1":
            raise ValueError("must hold private keys of the curve P-256, in PKCS #8")
        jwk: Json = ECAlgorithm(ECAlgorithm.SHA256).to_jwk(key.public_key(), as_dict=True)
        thumbprint = {name: jwk[name] for name in ("crv", "kty", "x", "y")}  # RFC 7638
        canonical = json.dumps(thumbprint, separators=(",", ":"))
        digest = hashlib.sha256(canonical.encode()).digest()
        key_id = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        found.append(SigningKey(key, {**jwk, "kid": key_id, "alg": "ES256", "use": "sig"}))
    if not found:
        raise ValueError("holds no private key in PKCS #8")
    return found


class Webhooks:
    """Implements `domain.push.Receivers`."""

    def __init__(self, egress: Egress, keys: SigningKeys, *, issuer: str, seconds: float) -> None:
        self._egress = egress
        self._keys = keys
        self._issuer = issuer
        self._seconds = seconds
        self._resolver = GuardedResolver(egress)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                resolver=self._resolver, use_dns_cache=False, limit=MAX_CONNECTIONS
            ),
            timeout=aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS),
            trust_env=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )

    @classmethod
    @asynccontextmanager
    async def open(
        cls, egress: Egress, keys: SigningKeys, *, issuer: str, seconds: float
    ) -> AsyncIterator[Webhooks]:
        self = cls(egress, keys, issuer=issuer, seconds=seconds)
        try:
            yield self
        finally:
            await self._session.close()

    def _target(self, url: str) -> URL:
        """The URL as the connection will understand it, if it may be used."""
        try:
            target = URL(url)
            host = target.raw_host
            _ = target.port, origin_of(url)  # the sender reads it too
        except ValueError:
            raise Refused("this is not a URL") from None
        if target.scheme not in ("http", "https"):
            raise Refused("must be an https URL")
        if target.user is not None or target.password is not None:
            raise Refused("must not hold a login; use `authentication`")
        if host and not is_host(host.removesuffix(".")):
            raise Refused("the host is neither a name nor an address")
        self._egress.check_host(host)
        if target.scheme == "http" and not self._egress.is_named(host or ""):
            raise Refused(
                f"must be https; http is for hosts in {self._egress.private_setting} only"
            )
        return target.with_fragment(None)

    async def check(self, url: str, *, owner: str) -> None:
        """A name that does not resolve now may do so later: each attempt looks again."""
        target = self._target(url)
        lookup_owner.set(owner)
        with suppress(OSError, TimeoutError, UnicodeError):  # UnicodeError: no name for the DNS
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._resolver.resolve(target.raw_host or "", target.port or 0)

    async def challenge(self, url: str, *, owner: str) -> None:
        lookup_owner.set(owner)
        token = secrets.token_urlsafe(24)
        target = self._target(url).update_query({VALIDATION_PARAMETER: token})
        refusal = Refused(
            f"the receiver must answer GET with the value of the query parameter "
            f"{VALIDATION_PARAMETER} (A2A_PUSH_VALIDATE)"
        )
        headers = {"User-Agent": USER_AGENT, "Accept-Encoding": "identity"}
        try:
            async with self._session.get(
                target, allow_redirects=False, headers=headers
            ) as response:
                body = await _read(response.content, CHALLENGE_BYTES)
                if response.status != 200 or body.decode(errors="replace").strip() != token:
                    raise refusal
        except (aiohttp.ClientError, OSError, TimeoutError) as exc:
            if isinstance(exc.__cause__, Refused):
                raise exc.__cause__ from None
            raise refusal from None

    async def post(self, config: PushConfig, notification: Notification) -> Answer:
        lookup_owner.set(config.head.owner)
        try:
            target, body = self._target(config.target.url), notification.body
            if config.target.is_browser:
                headers = self._web_push_headers(target)
                body = encrypted(body, BrowserKeys.read(config.target.credentials))
            else:
                headers = self._headers(config, notification)
            async with self._session.post(
                target, data=body, headers=headers, allow_redirects=False
            ) as response:
                if config.target.is_browser and response.status in GONE:
                    return Answer("the browser wants nothing more", gone=True)
                return _answer(response)
        except Refused as exc:
            return Answer(f"not allowed: {exc}")
        except TimeoutError:
            return Answer(f"no answer within {self._seconds:g} s", unwell=True)
        except (aiohttp.ClientError, OSError) as exc:
            if isinstance(exc.__cause__, Refused):
                return Answer(f"not allowed: {exc.__cause__}")
            return Answer(_problem(exc), unwell=True)

    def _web_push_headers(self, target: URL) -> dict[str, str]:
        """What a push service may know: who sends it (VAPID), and nothing of the task."""
        claims: dict[str, str | int] = {"aud": str(target.origin())}
        if self._issuer.startswith("https:"):  # push services accept no other contact
            claims["sub"] = self._issuer
        token = self._keys.token({**claims, "exp": int(time.time()) + JWT_SECONDS})
        return {
            "Authorization": f"vapid t={token}, k={self._keys.public_point}",
            "Content-Encoding": "aes128gcm",
            "Content-Type": "application/octet-stream",
            "TTL": str(TTL_SECONDS),
            "Urgency": "high",
            "User-Agent": USER_AGENT,
        }

    def _headers(self, config: PushConfig, sent: Notification) -> dict[str, str]:
        target, now = config.target, int(time.time())
        headers = {
            "Content-Type": MEDIA_TYPES[target.line],
            "User-Agent": USER_AGENT,
            "webhook-id": sent.id,
            "webhook-timestamp": str(now),
            ATTEMPT_HEADER: str(sent.attempt),
        }
        if target.line == "1.0":
            headers["A2A-Version"] = "1.0"
        if (secret := target.signing_secret) is not None:
            headers["webhook-signature"] = signature(secret, sent.id, timestamp=now, body=sent.body)
        if target.token is not None:
            headers[TOKEN_HEADER] = target.token
        token = self._keys.token(
            {
                "iss": self._issuer,
                "aud": target.url,
                "iat": now,
                "exp": now + JWT_SECONDS,
                "jti": secrets.token_hex(16),
                "taskId": config.head.id,
                "eventId": sent.id,
                "request_body_sha256": hashlib.sha256(sent.body).hexdigest(),
            }
        )
        scheme = target.scheme or ""
        if target.credentials is not None and scheme.lower() not in HMAC_SCHEMES:
            headers["Authorization"] = f"{scheme} {target.credentials}"
            headers[JWT_HEADER] = token
        elif scheme.lower() == "bearer":
            headers["Authorization"] = f"Bearer {token}"
        else:
            headers[JWT_HEADER] = token
        return headers


async def _read(content: aiohttp.StreamReader, most: int) -> bytes:
    """The first bytes of a body, which may come in pieces."""
    found = b""
    while len(found) < most and (piece := await content.read(most - len(found))):
        found += piece
    return found


def _answer(response: aiohttp.ClientResponse) -> Answer:
    """The status says all; the body is not read."""
    status = response.status
    if 200 <= status < 300:
        return Answer()
    if 300 <= status < 400:
        return Answer(f"HTTP {status}: redirects are not followed")
    return Answer(
        f"HTTP {status}",
        retry_after=retry_after(response.headers.get("retry-after")),
        unwell=status in AWAY,
    )


def _problem(exc: Exception) -> str:
    """In our words: the text of the library may hold the URL, and that a secret."""
    if isinstance(exc, aiohttp.ClientConnectorCertificateError | ssl.SSLCertVerificationError):
        return "the certificate is not valid"
    if isinstance(exc, aiohttp.ClientConnectorDNSError | socket.gaierror):
        return "the name of the host does not resolve"
    if isinstance(exc, aiohttp.ClientConnectorError):
        return "nobody accepts connections there"
    return "the connection was lost"
