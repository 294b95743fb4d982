"""A small OpenID Connect provider: keys, tokens, and the two documents that tell of the keys."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

Json = dict[str, Any]
AUDIENCE = "https://agent.example.com"


def b64(data: bytes | Json) -> str:
    if isinstance(data, dict):
        data = json.dumps(data).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@dataclass(frozen=True)
class SigningKey:
    id: str
    algorithm: str
    private: Any = field(repr=False)

    @property
    def jwk(self) -> Json:
        public = self.private.public_key()
        made: Json
        if self.algorithm == "EdDSA":
            made = jwt.algorithms.OKPAlgorithm.to_jwk(public, as_dict=True)
        elif self.algorithm == "ES256":
            made = jwt.algorithms.ECAlgorithm.to_jwk(public, as_dict=True)
        else:
            made = jwt.algorithms.RSAAlgorithm.to_jwk(public, as_dict=True)
        return {**made, "kid": self.id, "use": "sig", "alg": self.algorithm}

    @property
    def public_pem(self) -> bytes:
        pem: bytes = self.private.public_key().public_bytes(
            Encoding.PEM, PublicFormat.SubjectPublicKeyInfo
        )
        return pem


@cache
def rsa_key(name: str = "rsa-1", bits: int = 2048) -> SigningKey:
    return SigningKey(name, "RS256", rsa.generate_private_key(65537, bits))


@cache
def ec_key(name: str = "ec-1") -> SigningKey:
    return SigningKey(name, "ES256", ec.generate_private_key(ec.SECP256R1()))


@cache
def ed_key(name: str = "ed-1") -> SigningKey:
    return SigningKey(name, "EdDSA", ed25519.Ed25519PrivateKey.generate())


def claims(issuer: str, **more: Any) -> Json:
    """Those of a token that is valid for five minutes; None leaves a claim out."""
    now = int(time.time())
    made = {
        "iss": issuer,
        "aud": AUDIENCE,
        "sub": "ada",
        "iat": now,
        "nbf": now,
        "exp": now + 300,
        "scope": "tasks:read tasks:write",
        **more,
    }
    return {name: value for name, value in made.items() if value is not None}


def signed(key: SigningKey, payload: Json | bytes, **header: Any) -> str:
    """A token with this payload, whatever that is."""
    head = {"alg": key.algorithm, "typ": "at+jwt", "kid": key.id, **header}
    head = {name: value for name, value in head.items() if value is not None}
    return sealed(key, b64(head), b64(payload))


def sealed(key: SigningKey, head: str, payload: str, algorithm: str | None = None) -> str:
    """A token of two parts that are encoded already."""
    method = jwt.algorithms.get_default_algorithms()[algorithm or key.algorithm]
    signature = method.sign(f"{head}.{payload}".encode(), key.private)
    return f"{head}.{payload}.{b64(signature)}"


def with_hmac(secret: bytes, payload: Json, **header: Any) -> str:
    """As of an attacker who hopes that a public key is taken for a shared secret."""
    parts = f"{b64({'alg': 'HS256', 'typ': 'JWT', **header})}.{b64(payload)}"
    return f"{parts}.{b64(hmac.new(secret, parts.encode(), hashlib.sha256).digest())}"


@dataclass
class Provider:
    """What the provider publishes, and how often it was asked."""

    url: str
    keys: list[SigningKey] = field(default_factory=lambda: [rsa_key(), ec_key(), ed_key()])
    more_keys: list[Json] = field(default_factory=list)
    is_down: bool = False
    configuration: Json = field(default_factory=dict)  # instead of what is right
    fetched: list[str] = field(default_factory=list)

    def document(self, path: str) -> bytes | None:
        self.fetched.append(path)
        if self.is_down:
            return None
        if path.endswith("/.well-known/openid-configuration"):
            right = {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}
            return json.dumps({**right, **self.configuration}).encode()
        if path.endswith("/keys"):
            return json.dumps({"keys": [*(k.jwk for k in self.keys), *self.more_keys]}).encode()
        return None

    @property
    def key_fetches(self) -> int:
        return sum(path.endswith("/keys") for path in self.fetched)

    def token(self, key: SigningKey | None = None, **more: Any) -> str:
        return signed(key or self.keys[0], claims(self.url, **more))


@contextmanager
def serving() -> Iterator[Provider]:
    """A provider at a real socket."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = provider.document(self.path)
            self.send_response(200 if body is not None else 503)
            self.send_header("content-length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    provider = Provider(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        thread.join(30)
        server.server_close()
