"""A PostgreSQL for a test run, where one is installed, and a wire to it that can be cut."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

SECONDS = 60.0  # for the server to start or to stop
COLUMNS = (
    "SELECT table_name, column_name, data_type FROM information_schema.columns "
    "WHERE table_schema = 'public' ORDER BY 1, 2"
)
OTHER_SCHEMAS = (
    "SELECT nspname FROM pg_namespace WHERE nspname NOT LIKE 'pg\\_%' "
    "AND nspname NOT IN ('public', 'information_schema')"
)
USERS = ("postgres", "nobody")  # one of these runs it if we are root, whom it refuses


def binaries() -> Path | None:
    """Where the server's programs are."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return installed[-1].parent if installed else None


def why_not() -> str | None:
    """Why no PostgreSQL can be started here."""
    if binaries() is None:
        return "no PostgreSQL server is installed (no initdb in PATH or /usr/lib/postgresql)"
    if os.geteuid() == 0 and _user() is None:
        return f"PostgreSQL refuses to run as root, and there is no user {' or '.join(USERS)}"
    return None


def _user() -> pwd.struct_passwd | None:
    for name in USERS:
        with suppress(KeyError):
            return pwd.getpwnam(name)
    return None


class HasPort(Protocol):
    @property
    def port(self) -> int: ...


@dataclass
class Postgres:
    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None
    _columns: list[tuple[object, ...]] | None = None  # of the tables of this version

    @classmethod
    @contextmanager
    def started(cls) -> Iterator[Postgres]:
        """A server with one database, on loopback."""
        with tempfile.TemporaryDirectory(prefix="a2a-postgres-") as name:
            server = cls(Path(name), free_port())
            if (user := runs_as()) is not None:
                os.chown(name, user.pw_uid, user.pw_gid)
            cluster = ("-D", f"{name}/data", "-A", "trust", "-U", "a2a", "-E", "UTF8")
            server._run("initdb", *cluster, "--locale=C", "--no-instructions", "-N")
            server.start()
            try:
                yield server
            finally:
                server.stop(signal.SIGQUIT)

    def url(self, wire: HasPort | None = None, standby: Postgres | None = None) -> str:
        """For SQLAlchemy; along a wire if one is named, or to whichever of two takes writes."""
        where = f"127.0.0.1:{wire.port if wire else self.port}"
        plain = "sslmode=disable&gssencmode=disable"
        if standby is not None:
            both = f"host=127.0.0.1:{self.port}&host=127.0.0.1:{standby.port}"
            plain = f"{both}&target_session_attrs=read-write&{plain}"
            where = ""
        return f"postgresql+psycopg://a2a@{where}/postgres?{plain}"

    @contextmanager
    def with_standby(self) -> Iterator[Postgres]:
        """Another server that has what this one has; a commit waits until both have it."""
        with tempfile.TemporaryDirectory(prefix="a2a-standby-") as name:
            standby = Postgres(Path(name), free_port())
            if (user := runs_as()) is not None:
                os.chown(name, user.pw_uid, user.pw_gid)
            source = f"host=127.0.0.1 port={self.port} user=a2a application_name=standby"
            self._run("pg_basebackup", "-D", f"{name}/data", "-R", "-X", "stream", "-d", source)
            standby.start()
            self.say("ALTER SYSTEM SET synchronous_standby_names = 'standby'")
            self.say("SELECT pg_reload_conf()")
            try:
                yield standby
            finally:
                standby.stop(signal.SIGQUIT)

    def promote(self) -> None:
        """A standby becomes a server that takes writes."""
        self.say("SELECT pg_promote()")

    def start(self) -> None:
        log = (self.folder / "log").open("ab")
        # A killed process must not cost an event; a power cut is not tested, so nothing is synced.
        options = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": "off",
            "max_connections": "100",
        }
        more = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        command = self._command("postgres", "-D", f"{self.folder}/data", "-p", str(self.port))
        self.process = subprocess.Popen([*command, *more], stdout=log, stderr=log, **as_user())
        log.close()
        self._wait_until_ready()

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT ends connections in an orderly way, SIGQUIT at once."""
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(SECONDS)
            self.process = None

    def kill(self) -> None:
        """SIGKILL to all of its processes, at whatever they are."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        for pid in (self.process.pid, *map(int, children.split())):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(SECONDS)
        self.process = None

    def say(self, statement: str) -> list[tuple[object, ...]]:
        """Run a statement outside of a transaction."""
        import psycopg

        to = f"host=127.0.0.1 port={self.port} user=a2a dbname=postgres sslmode=disable"
        more = "-c default_transaction_read_only=off"
        with psycopg.connect(to, options=more, autocommit=True) as connection:
            found = connection.execute(statement.encode())
            return found.fetchall() if found.description else []

    @contextmanager
    def locked(self, statement: str) -> Iterator[None]:
        """A transaction that runs a statement, and stays open while the block lasts."""
        import psycopg

        to = f"host=127.0.0.1 port={self.port} user=a2a dbname=postgres sslmode=disable"
        with psycopg.connect(to) as connection:
            connection.execute(statement.encode())
            yield

    def emptied(self) -> str:
        """The URL of its database, in which there is nothing."""
        self.say("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        self._drop_other_schemas()
        return self.url()

    def without_tasks(self) -> str:
        """The URL of its database, in which there are the tables of this version, all empty."""
        if self._columns is not None and self.say(COLUMNS) == self._columns:
            tables = {str(table) for table, _, _ in self._columns} - {"schema_version"}
            self.say(f"TRUNCATE {', '.join(sorted(tables))} RESTART IDENTITY")
            self._drop_other_schemas()
        else:  # the first time, or a test has changed the tables: making them takes a while
            from opencode_a2a.store.database import Database

            async def make_tables() -> None:
                async with Database.open(self.emptied()):
                    pass

            with ThreadPoolExecutor(1) as apart:  # this thread may have an event loop already
                apart.submit(lambda: asyncio.run(make_tables())).result()
            self._columns = self.say(COLUMNS)
        return self.url()

    def _drop_other_schemas(self) -> None:
        """Those that a test has made."""
        for (name,) in self.say(OTHER_SCHEMAS):
            self.say(f'DROP SCHEMA "{name}" CASCADE')

    def _wait_until_ready(self) -> None:
        import psycopg

        deadline = time.monotonic() + SECONDS
        while True:
            try:
                self.say("SELECT 1")
                return
            except psycopg.OperationalError:
                assert self.process is not None
                said = (self.folder / "log").read_text()
                assert self.process.poll() is None, f"it ended:\n{said}"
                assert time.monotonic() < deadline, f"it is not ready:\n{said}"
                time.sleep(0.02)

    def _command(self, program: str, *words: str) -> list[str]:
        folder = binaries()
        assert folder is not None
        return [str(folder / program), *words]

    def _run(self, program: str, *words: str) -> None:
        command: Sequence[str] = self._command(program, *words)
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, **as_user()
        )
        assert done.returncode == 0, done.stdout.decode()


def runs_as() -> pwd.struct_passwd | None:
    return _user() if os.geteuid() == 0 else None


def as_user() -> dict[str, Any]:
    user = runs_as()
    more: dict[str, Any] = {"cwd": "/"}
    if user is not None:
        more |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    return more


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


# What happens to the next COMMIT that comes along a wire.
# before: the connection is cut, and the server never gets it.
# after: the server commits, then the connection is cut, and the client never hears of it.
# between: the connection is cut, and the server gets it when it is let go.
# silence: the server commits, and the client hears nothing until it is let go.
Cut = Literal["before", "after", "between", "silence"]


@dataclass
class Wire:
    """A TCP connection to a server that breaks when it is told to."""

    to: int
    port: int = 0
    cut: Cut | None = None
    only: bytes = b""  # … of a transaction that says this
    away: bool = False  # nobody is connected any more
    away_after: bool = False  # … from the next cut on
    cuts: int = 0  # so many were made
    let_go: threading.Event = field(default_factory=threading.Event)  # what is held between
    _closing: bool = False
    _open: set[socket.socket] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    @contextmanager
    def laid(cls, to: int) -> Iterator[Wire]:
        wire = cls(to)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            wire.port = listening.getsockname()[1]
            accepting = threading.Thread(target=wire._accept, args=(listening,), daemon=True)
            accepting.start()
            try:
                yield wire
            finally:
                wire._closing = True
                wire.let_go.set()
                wire.drop_all()
                with suppress(OSError), socket.create_connection(("127.0.0.1", wire.port)):
                    pass  # wakes who accepts
                accepting.join(SECONDS)

    def drop_all(self) -> None:
        with self._lock:
            for each in self._open:
                _drop(each)

    def _accept(self, listening: socket.socket) -> None:
        while not self._closing:
            client, _ = listening.accept()
            if self.away or self._closing:
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self.to))
            except OSError:
                client.close()
                continue
            with self._lock:
                self._open |= {client, server}
            link = _Link(self, client, server)
            for pump in (link.forth, link.back):
                threading.Thread(target=pump, daemon=True).start()


@dataclass
class _Link:
    wire: Wire
    client: socket.socket
    server: socket.socket
    deaf: threading.Event = field(default_factory=threading.Event)  # the client hears no more
    heard: threading.Event = field(default_factory=threading.Event)  # what the server said since

    def forth(self) -> None:
        said = b""
        with suppress(OSError):
            while data := self.client.recv(65_536):
                said += data
                if b"COMMIT\0" in data:
                    if cut := self._take_cut(said):
                        self._cut(cut, data)
                        return
                    said = b""
                self.server.sendall(data)
        self._end()

    def back(self) -> None:
        with suppress(OSError):
            while data := self.server.recv(65_536):
                if self.deaf.is_set():
                    self.heard.set()
                else:
                    self.client.sendall(data)
        self._end()

    def _take_cut(self, said: bytes) -> Cut | None:
        with self.wire._lock:
            if self.wire.only not in said:
                return None
            cut, self.wire.cut = self.wire.cut, None
            if cut is not None:
                self.wire.cuts += 1
                self.wire.away |= self.wire.away_after
                self.wire.away_after = False
        return cut

    def _cut(self, cut: Cut, data: bytes) -> None:
        self.deaf.set()
        with suppress(OSError):
            if cut == "between":
                _drop(self.client)
                self.wire.let_go.wait(SECONDS)
            if cut != "before":
                self.server.sendall(data)
                self.heard.wait(SECONDS)
            if cut == "silence":
                self.wire.let_go.wait(SECONDS)
        self._end()

    def _end(self) -> None:
        for each in (self.client, self.server):
            _drop(each)
        with self.wire._lock:
            self.wire._open -= {self.client, self.server}


def _drop(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
