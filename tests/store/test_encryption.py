"""A PostgreSQL that wants TLS and a password: options in the URL and PGPASSFILE are honoured."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from opencode_a2a.errors import StoreUnavailable
from opencode_a2a.store.database import Database
from opencode_a2a.store.log import SqlTaskLog
from opencode_a2a.store.nodes import read_nodes
from tests.fakes.certificates import Authority
from tests.postgres import Postgres, why_not
from tests.store.support import HELLO, OWNER, head, soon

PASSWORD = "a-password-in-a-file"
HBA = """\
hostnossl all keeper 127.0.0.1/32 reject
hostssl all keeper 127.0.0.1/32 scram-sha-256
host all a2a 127.0.0.1/32 trust
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Postgres, Path]]:
    """A server that lets a user in by TLS and with a password only; the authority to trust."""
    if reason := why_not():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("authority")
    authority = Authority(folder)
    with Postgres.started() as server:
        data = server.folder / "data"
        pair = authority.sign("server", "127.0.0.1")
        for file in (pair.certificate, pair.key):
            target = data / file.name
            target.write_bytes(file.read_bytes())
            target.chmod(0o600)
            os.chown(target, data.stat().st_uid, data.stat().st_gid)
        (data / "pg_hba.conf").write_text(HBA)
        server.say(f"CREATE ROLE keeper LOGIN SUPERUSER PASSWORD '{PASSWORD}'")
        for name, value in (
            ("ssl_cert_file", pair.certificate.name),
            ("ssl_key_file", pair.key.name),
            ("ssl", "on"),
        ):
            server.say(f"ALTER SYSTEM SET {name} = '{value}'")
        server.say("SELECT pg_reload_conf()")
        yield server, authority.certificate


@pytest.fixture
def password_file(
    guarded: tuple[Postgres, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    file = tmp_path / "pgpass"
    file.write_text(f"127.0.0.1:{guarded[0].port}:*:keeper:{PASSWORD}\n")
    file.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(file))
    return file


def url(guarded: tuple[Postgres, Path], **options: str) -> str:
    server, authority = guarded
    given = {"sslmode": "verify-full", "sslrootcert": str(authority), **options}
    query = "&".join(f"{name}={value}" for name, value in given.items())
    return f"postgresql+psycopg://keeper@127.0.0.1:{server.port}/postgres?{query}"


async def test_every_connection_is_encrypted_and_logs_in_with_the_password_of_the_file(
    guarded: tuple[Postgres, Path], password_file: Path
) -> None:
    server, _ = guarded
    async with soon(), Database.open(url(guarded)) as database, SqlTaskLog.open(database) as log:
        await log.create(head("t"), [HELLO])
        assert (await log.get(OWNER, "t")).messages
        while not database.wakeups.connected:  # noqa: ASYNC110 (tells nobody)
            await asyncio.sleep(0.01)
        found = server.say(
            "SELECT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename = 'keeper'"
        )
        assert len(found) >= 2, "one that reads and writes, one that listens"
        assert {ssl for (ssl,) in found} == {True}
    assert read_nodes(url(guarded))[1] == []


async def test_a_server_that_cannot_be_trusted_gets_nothing(
    guarded: tuple[Postgres, Path], password_file: Path, tmp_path: Path
) -> None:
    other = Authority(tmp_path)
    async with soon():
        with pytest.raises(StoreUnavailable):
            async with Database.open(url(guarded, sslrootcert=str(other.certificate))):
                pass
        with pytest.raises(StoreUnavailable):  # the server insists
            async with Database.open(url(guarded, sslmode="disable")):
                pass


async def test_without_the_password_nobody_gets_in(
    guarded: tuple[Postgres, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "none"))
    async with soon():
        with pytest.raises(StoreUnavailable):
            async with Database.open(url(guarded)):
                pass
