"""Reverse proxies that do one thing wrong each, and certificates for servers."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import aiohttp
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Fault:
    """What a proxy does with an answer, or with a request."""

    holds_back: bool = False  # hands an answer on when all of it is there
    cuts: bool = False  # ends a stream after its first piece
    logs_in_as: str | None = None  # adds a credential to requests without one


@asynccontextmanager
async def proxy(upstream: str, fault: Fault = Fault()) -> AsyncIterator[str]:  # noqa: B008
    async with aiohttp.ClientSession(auto_decompress=False) as session:

        async def forward(request: web.Request) -> web.StreamResponse:
            headers = request.headers.copy()
            if fault.logs_in_as is not None:
                headers.setdefault("authorization", f"Bearer {fault.logs_in_as}")
            async with session.request(
                request.method,
                f"{upstream}{request.raw_path}",
                headers=headers,
                data=await request.read(),
            ) as found:
                kept = ("content-type", "content-encoding", "date")
                shown = {name: found.headers[name] for name in kept if name in found.headers}
                if fault.holds_back:
                    return web.Response(body=await found.read(), status=found.status, headers=shown)
                answer = web.StreamResponse(status=found.status, headers=shown)
                await answer.prepare(request)
                async for piece in found.content.iter_any():
                    await answer.write(piece)
                    if fault.cuts and "event-stream" in shown["content-type"]:
                        break
                await answer.write_eof()
                return answer

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", forward)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()
            await asyncio.sleep(0)  # aiohttp closes its transports in the next turn


_SIGNS = x509.KeyUsage(
    digital_signature=True,
    key_cert_sign=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    crl_sign=False,
    encipher_only=False,
    decipher_only=False,
)


def certificate(folder: Path, days: float) -> tuple[ssl.SSLContext, Path]:
    """For a server at 127.0.0.1: what it presents, and the file that a client has to trust."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=60))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        # Newer Pythons want these of every authority.
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False
        )
        .add_extension(_SIGNS, critical=True)
        .sign(key, hashes.SHA256())
    )
    chain, secret = folder / "server.pem", folder / "server.key"
    chain.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, secret)
    return context, chain
