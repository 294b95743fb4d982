"""A browser's side of Web Push: its keys, and how it reads a notification."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

CURVE = ec.SECP256R1()


def text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def content(encoded: str) -> bytes:
    return base64.urlsafe_b64decode(encoded + "==")


def private_key(encoded: str) -> ec.EllipticCurvePrivateKey:
    return ec.derive_private_key(int.from_bytes(content(encoded), "big"), CURVE)


@dataclass(frozen=True)
class Subscription:
    private: ec.EllipticCurvePrivateKey = field(
        default_factory=lambda: ec.generate_private_key(CURVE)
    )
    auth: bytes = b"sixteen bytes of"

    @property
    def public(self) -> bytes:
        form = serialization.PublicFormat.UncompressedPoint
        return self.private.public_key().public_bytes(serialization.Encoding.X962, form)

    @property
    def credentials(self) -> str:
        return f"{text(self.public)}.{text(self.auth)}"

    def read(self, body: bytes) -> bytes:
        """What a notification says (RFC 8291)."""
        salt, length = body[:16], body[20]
        sender, record = body[21 : 21 + length], body[21 + length :]
        point = ec.EllipticCurvePublicKey.from_encoded_point(CURVE, sender)
        shared = self.private.exchange(ec.ECDH(), point)
        info = b"WebPush: info\0" + self.public + sender
        secret = derived(shared, self.auth, info, 32)
        key = derived(secret, salt, b"Content-Encoding: aes128gcm\0", 16)
        nonce = derived(secret, salt, b"Content-Encoding: nonce\0", 12)
        return AESGCM(key).decrypt(nonce, record, None).rstrip(b"\0").removesuffix(b"\x02")


def derived(secret: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    return HKDF(SHA256(), length=length, salt=salt, info=info).derive(secret)
