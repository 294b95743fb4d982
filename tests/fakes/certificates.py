"""A certificate authority of the tests, and what it signs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

_USES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
    *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)
_SIGNS = x509.KeyUsage(**{use: use == "key_cert_sign" for use in _USES})


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, in files."""

    certificate: Path
    key: Path


class Authority:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())

    @cached_property
    def certificate(self) -> Path:
        """Its own, by which others recognise what it has signed."""
        file = self._folder / "authority.pem"
        builder = self._builder("test authority", self._key.public_key())
        basic = x509.BasicConstraints(ca=True, path_length=0)
        signed = (
            builder.add_extension(basic, critical=True)
            .add_extension(_SIGNS, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        file.write_bytes(signed.public_bytes(Encoding.PEM))
        return file

    def sign(self, name: str, *hosts: str, days: int = 30) -> Pair:
        """A new pair; one of the same name replaces the files of the one before, as a renewal."""
        key = ec.generate_private_key(ec.SECP256R1())
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        builder = self._builder(name, key.public_key(), days=days)
        if hosts:
            names = [_general_name(host) for host in hosts]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        signed = builder.sign(self._key, hashes.SHA256())
        secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        pair.key.write_bytes(secret)
        pair.certificate.write_bytes(signed.public_bytes(Encoding.PEM))
        return pair

    def _builder(
        self, name: str, key: ec.EllipticCurvePublicKey, days: int = 30
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        # Python 3.13 accepts no certificate without these two identifiers.
        identifier = x509.SubjectKeyIdentifier.from_public_key(key)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(_name("test authority"))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(identifier, critical=False)
            .add_extension(issuer, critical=False)
        )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)
