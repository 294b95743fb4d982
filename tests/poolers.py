"""A pgbouncer in front of a test's PostgreSQL, where one is installed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.postgres import SECONDS, Postgres, as_user, free_port, runs_as

CONFIG = """\
[databases]
postgres = host=127.0.0.1 port={server} dbname=postgres user=a2a

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = 40
max_client_conn = 200
"""


@dataclass(frozen=True)
class Pooler:
    port: int

    @classmethod
    @contextmanager
    def before(cls, postgres: Postgres, mode: str) -> Iterator[Pooler]:
        program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
        assert program is not None
        with tempfile.TemporaryDirectory(prefix="a2a-pooler-") as name:
            port = free_port()
            file = Path(name, "pgbouncer.ini")
            file.write_text(CONFIG.format(server=postgres.port, port=port, mode=mode))
            if (user := runs_as()) is not None:
                os.chown(name, user.pw_uid, user.pw_gid)
            with Path(name, "log").open("ab") as log:
                process = subprocess.Popen(
                    [program, "-q", str(file)], stdout=log, stderr=log, **as_user()
                )
            try:
                _wait_for(port, process)
                yield cls(port)
            finally:
                process.kill()
                process.wait(SECONDS)


def why_no_pooler() -> str | None:
    found = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    return None if found else "pgbouncer is not installed"


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert process.poll() is None, "pgbouncer has ended"
            assert time.monotonic() < deadline
            time.sleep(0.02)
