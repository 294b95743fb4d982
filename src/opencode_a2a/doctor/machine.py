"""Checks of this program and of the machine it runs on. None needs the network."""

from __future__ import annotations

import asyncio
import errno
import re
import resource
import socket
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit

from packaging.requirements import Requirement

from .. import __version__
from ..config import Settings
from ..credentials import CredentialsFile, CredentialsFileError
from ..paths import folder_name, state_home
from ..store.examine import StoreFacts
from ..store.examine import examine as examine_store
from ..web.connections import MAX_CONNECTIONS, RESERVED_FILES
from . import judgement as j
from .subject import Installation, RunningInstance
from .verdict import Check, Examination, NotTried, Once, Verdict, fine, found

DISTRIBUTION = "opencode-a2a"


async def look_at_python(_: Installation) -> Verdict:
    return j.judge_python((sys.version_info.major, sys.version_info.minor, sys.version_info.micro))


async def look_at_packages(_: Installation) -> Verdict:
    return j.judge_packages(__version__, await asyncio.to_thread(_installed_packages))


def _installed_packages() -> dict[str, str | None]:
    try:
        requirements = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        raise NotTried(
            "This program runs from its sources, without having been installed."
        ) from None
    found: dict[str, str | None] = {}
    for each in requirements:
        required = Requirement(each)
        if required.marker is not None and not required.marker.evaluate({"extra": ""}):
            continue  # an optional one, or one that not every system has
        try:
            found[each] = metadata.version(required.name)
        except metadata.PackageNotFoundError:
            found[each] = None
    return found


async def look_at_secret_files(subject: Installation) -> Verdict:
    files = [*subject.settings.secret_files, *_peer_files(subject)]
    if subject.token_file is not None:
        files.append(subject.token_file)
    modes: dict[Path, int] = {}
    for file in files:
        with suppress(OSError):
            modes[file] = _mode_for_others(file)
    return j.judge_secret_files(modes)


def _mode_for_others(file: Path) -> int:
    """The rights of a file, without those that need a directory which others cannot enter."""
    path = file.resolve()
    mode = stat.S_IMODE(path.stat().st_mode)
    for folder in path.parents:
        enter = stat.S_IMODE(folder.stat().st_mode)
        mode &= ~(0 if enter & 0o010 else 0o070) & ~(0 if enter & 0o001 else 0o007)
    return mode


def _peer_files(subject: Installation) -> Iterator[Path]:
    for peer in {**subject.settings.peers, **subject.peers}.values():
        for reference in (peer.bearer_token, peer.basic_auth, peer.api_key):
            if reference is not None and reference.startswith("file:"):
                yield Path(reference.removeprefix("file:")).expanduser()


async def look_at_credentials(subject: Installation) -> Verdict:
    server, upstream = subject.settings.server, subject.settings.upstream
    secrets = {name: value.get_secret_value() for name, value in server.enabled_secrets.items()}
    if not secrets and subject.token_file is not None and subject.token_file.is_file():
        secrets[f"the token in {subject.token_file}"] = subject.token_file.read_text().strip()
    others = await asyncio.to_thread(lambda: list(_other_logins(subject.settings)))
    if (secrets or others) and upstream.auth_password is not None:
        secrets["OPENCODE_AUTH_PASSWORD"] = upstream.auth_password.get_secret_value()
    makes_one = upstream.base_url is None
    return j.judge_credentials(secrets, makes_one=makes_one, others=others)


def _other_logins(settings: Settings) -> Iterator[str]:
    if settings.oidc.issuer is not None:
        yield f"tokens of {settings.oidc.issuer}"
    if settings.server.mtls_header:
        yield f"certificates, which a proxy names in {settings.server.mtls_header}"
    if settings.credentials_file is not None:
        with suppress(CredentialsFileError, OSError):  # the service has logged that
            now = int(time.time())
            tokens = CredentialsFile(settings.credentials_file).read()
            if count := sum(each.is_valid(now) for each in tokens):
                yield f"{count} token{'s' if count > 1 else ''} of {settings.credentials_file}"


class Store:
    """The database of an installation, looked at once for all checks of it."""

    def __init__(self, settings: Settings, *, opens: bool = True) -> None:
        self._settings = settings
        self._opens = opens  # rather than look at its files alone
        self.facts = Once(lambda: asyncio.to_thread(self._examine))

    def _examine(self) -> StoreFacts:
        state, root = self._settings.state, self._settings.upstream.workspace_root
        if state.backend == "memory" or state.database_url is not None:
            return examine_store(state.url(root), makes_folder=False, opens=self._opens)
        try:
            folder = state_home() / folder_name(root)  # `State.url` would make it
        except RuntimeError as exc:
            return StoreFacts(exists=False, problem=f"There is no directory for it: {exc}")
        url = f"sqlite:///{folder / 'tasks.db'}"
        return examine_store(url, makes_folder=True, opens=self._opens)


async def look_at_store_access(store: Store) -> Verdict:
    return j.judge_store_access(await store.facts.get())


async def look_at_schema(store: Store) -> Verdict:
    return j.judge_schema(await _readable(store))


async def look_at_store_rights(store: Store) -> Verdict:
    return j.judge_store_rights(await store.facts.get())


async def look_at_store_size(store: Store) -> Verdict:
    return j.judge_store_size(await _readable(store))


async def _readable(store: Store) -> StoreFacts:
    facts = await store.facts.get()
    if facts.damage is not None or (facts.problem is not None and facts.free is None):
        raise NotTried("The database cannot be read.")
    return facts


async def look_at_open_files(subject: Installation) -> Verdict:
    limit = _hard_limit(subject.own)
    return j.judge_open_files(limit, MAX_CONNECTIONS + RESERVED_FILES)


def _hard_limit(own: RunningInstance | None) -> int | None:
    """What the running service may have, or else what one started here would have."""
    if own is not None:
        with suppress(OSError, AttributeError):
            limits = Path(f"/proc/{own.pid}/limits").read_text()
            row = re.search(r"^Max open files\s+\S+\s+(\S+)", limits, re.MULTILINE)
            assert row is not None
            return None if row[1] == "unlimited" else int(row[1])
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return None if hard == resource.RLIM_INFINITY else hard


async def look_at_port(subject: Installation) -> Verdict:
    server = subject.settings.server
    where = f"{server.host} port {server.port}"
    if server.port == 0:
        return fine("Any free port will be taken (A2A_PORT=0).")
    for each in subject.instances:
        if urlsplit(each.url).port == server.port:
            return fine(f"{where} is held by your own `{each.command}` (pid {each.pid}).")
    family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((server.host, server.port))
        except OSError as exc:
            if isinstance(exc, socket.gaierror) or exc.errno != errno.EADDRINUSE:
                return found(j.PORT_FORBIDDEN, f"Cannot listen on {where}: {exc.strerror}.")
            return found(j.PORT_TAKEN, f"Another program listens on {where}.")
    return fine(f"{where} is free.")


def installed_at() -> float:
    """When this program came to this machine, as far as its files tell."""
    return (Path(__file__).parents[1] / "__init__.py").stat().st_mtime


PROGRAM: tuple[Check[Installation], ...] = (
    Check(
        "python",
        "the version of Python",
        look=look_at_python,
        findings=(j.PYTHON_UNTESTED,),
        at_start=True,
    ),
    Check(
        "packages",
        "the version of this program and of the packages it needs",
        look=look_at_packages,
        findings=(j.PACKAGE_MISSING, j.PACKAGE_OTHER),
        at_start=True,
    ),
    Check(
        "secret files",
        "who can read the files that hold secrets: settings, the secrets directory, the token "
        "that `up` keeps, credentials for peers",
        look=look_at_secret_files,
        findings=(j.FILE_READABLE, j.FILE_GROUP_READABLE),
        at_start=True,
    ),
    Check(
        "credentials",
        "whether tokens and passwords are hard to guess (a service that starts names short ones by "
        "itself: `credentials.short`)",
        look=look_at_credentials,
        findings=(j.CREDENTIAL_NONE, j.CREDENTIAL_SHORT, j.CREDENTIAL_REPEATS),
    ),
)
STORE: tuple[Check[Store], ...] = (
    Check(
        "database",
        "whether the database can be read and written (a write is tried and taken back)",
        look=look_at_store_access,
        findings=(j.STORE_UNUSABLE, j.STORE_DAMAGED),
    ),
    Check(
        "database schema",
        "which version of this program has written the database",
        look=look_at_schema,
        findings=(j.STORE_FOREIGN, j.STORE_SCHEMA),
    ),
    Check(
        "database rights",
        "who can read the files of the database",
        look=look_at_store_rights,
        findings=(j.STORE_READABLE,),
    ),
    Check(
        "database size",
        "how large the database is, and how much room its disk has",
        look=look_at_store_size,
        findings=(j.STORE_FULL, j.STORE_NEARLY_FULL, j.STORE_LARGE),
        at_start=True,
    ),
)
MACHINE: tuple[Check[Installation], ...] = (
    Check(
        "open files",
        "how many files the service may open; each connection is one (a service that starts says "
        "this by itself: `connections.limited`)",
        look=look_at_open_files,
        findings=(j.FILES_LOW,),
    ),
    Check(
        "port",
        "whether the service can listen on its address, or who does",
        look=look_at_port,
        findings=(j.PORT_TAKEN, j.PORT_FORBIDDEN),
    ),
)


def examine_start(settings: Settings) -> list[Examination]:
    """What a service looks at when it starts, beyond what would keep it from starting."""
    installation, store = Installation(settings), Store(settings, opens=False)
    return [
        *(check.on(installation) for check in (*PROGRAM, *MACHINE) if check.at_start),
        *(check.on(store) for check in STORE if check.at_start),
    ]
