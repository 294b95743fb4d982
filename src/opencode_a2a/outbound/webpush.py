"""Web Push: what a browser's push service asks of a notification.

The body is encrypted for the browser (RFC 8291, `aes128gcm`), so that its push service cannot read
it, and the request says who sends it (VAPID, RFC 8292). The keys of the browser come with the push
config, as credentials of the scheme `WebPush`: its public key and its secret, `p256dh.auth`, as
`PushSubscription.toJSON()` writes them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..domain.ports import Refused
from ..domain.push import BrowserKeys

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

TTL_SECONDS = 86_400  # how long the push service keeps it for a browser that is away
_RECORD_BYTES = 4_096


def encrypted(
    body: bytes,
    keys: BrowserKeys,
    *,
    own: EllipticCurvePrivateKey | None = None,
    salt: bytes = b"",
) -> bytes:
    """The body for this browser only; a key and a salt of its own are made for each."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    curve = ec.SECP256R1()
    own = own or ec.generate_private_key(curve)
    salt = salt or os.urandom(16)
    try:
        browser = ec.EllipticCurvePublicKey.from_encoded_point(curve, keys.public)
    except ValueError:
        raise Refused("the public key of the browser is no point of P-256") from None
    point = own.public_key().public_bytes(
        serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
    )
    shared = own.exchange(ec.ECDH(), browser)
    info = b"WebPush: info\0" + keys.public + point
    secret = _derived(shared, salt=keys.secret, info=info, length=32)
    key = _derived(secret, salt=salt, info=b"Content-Encoding: aes128gcm\0", length=16)
    nonce = _derived(secret, salt=salt, info=b"Content-Encoding: nonce\0", length=12)
    record = AESGCM(key).encrypt(nonce, body + b"\x02", None)  # 2: the last record
    head = salt + _RECORD_BYTES.to_bytes(4, "big") + bytes([len(point)]) + point
    return head + record


def _derived(secret: bytes, *, salt: bytes, info: bytes, length: int) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), length=length, salt=salt, info=info).derive(secret)
