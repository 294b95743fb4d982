"""TLS of our own: what is refused at the start, and a renewal under way."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from pathlib import Path

import pytest
from cryptography import x509
from structlog.testing import capture_logs

from opencode_a2a.web.tls import ServerTls, TlsNotUsable
from tests.fakes.certificates import Authority, Pair


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def pair(authority: Authority) -> Pair:
    return authority.sign("server", "localhost")


def test_an_old_version_of_tls_is_not_spoken(pair: Pair) -> None:
    context = ServerTls(pair.certificate, pair.key).context
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda pair: pair.key.unlink(), "A2A_TLS_KEY: .* cannot be read"),
        (lambda pair: pair.certificate.unlink(), "A2A_TLS_CERTIFICATE: .* cannot be read"),
        (lambda pair: pair.certificate.write_text("x"), "must be a PEM certificate"),
        (lambda pair: pair.key.write_text("x"), "must be a PEM certificate"),
        (
            lambda pair: pair.key.write_bytes(
                Authority(pair.key.parent).sign("other").key.read_bytes()
            ),
            "is not the key of",
        ),
    ],
)
def test_a_pair_that_cannot_be_used_is_refused_with_the_reason(
    pair: Pair, spoil: object, problem: str
) -> None:
    spoil(pair)  # type: ignore[operator]
    with pytest.raises(TlsNotUsable, match=problem):
        ServerTls(pair.certificate, pair.key)


def test_a_key_with_a_password_is_refused_and_nobody_is_asked(pair: Pair) -> None:
    command = ["openssl", "pkcs8", "-topk8", "-in", str(pair.key), "-passout", "pass:hush"]
    made = subprocess.run(command, check=True, capture_output=True, timeout=60)
    pair.key.write_bytes(made.stdout)
    with pytest.raises(TlsNotUsable, match="needs a password"):
        ServerTls(pair.certificate, pair.key)


def test_what_could_not_be_loaded_is_tried_again(
    authority: Authority, pair: Pair, tmp_path: Path
) -> None:
    tls = ServerTls(pair.certificate, pair.key)
    authority.sign("server", "localhost")  # renewed
    secret = tmp_path / "away"
    pair.key.rename(secret)
    with capture_logs() as logs:
        assert not tls.look()
        assert not tls.look()
    assert [entry["event"] for entry in logs] == ["tls.not_reloaded"]
    secret.rename(pair.key)
    assert tls.look()
    assert not tls.look()


async def test_a_change_of_the_rights_is_a_change(pair: Pair) -> None:
    tls = ServerTls(pair.certificate, pair.key)
    pair.key.chmod(0o640)
    assert tls.look()


async def test_new_connections_get_a_renewed_certificate_and_open_ones_go_on(
    authority: Authority, pair: Pair
) -> None:
    tls = ServerTls(pair.certificate, pair.key)

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=tls.context)
    port = server.sockets[0].getsockname()[1]
    trust = ssl.create_default_context(cafile=str(authority.certificate))

    async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter, int]:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=trust, server_hostname="localhost"
        )
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return reader, writer, x509.load_der_x509_certificate(shown).serial_number

    async with server:
        reader, writer, first = await connect()
        assert not tls.look()
        authority.sign("server", "localhost")  # renewed
        assert tls.look()
        _, other, second = await connect()
        assert second != first
        writer.write(b"still here\n")
        assert await asyncio.wait_for(reader.readline(), 60) == b"still here\n"
        pair.certificate.write_text("half writ")
        assert not tls.look()
        _, third, same = await connect()
        assert same == second
        for each in (writer, other, third):
            each.close()
            await each.wait_closed()
