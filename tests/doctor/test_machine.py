"""What can be wrong with an installation, produced on real files, ports and databases."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from opencode_a2a.cli.instances import RegisteredInstance
from opencode_a2a.config import Settings, load
from opencode_a2a.credentials import CredentialsFile
from opencode_a2a.doctor.machine import MACHINE, PROGRAM, STORE, Store
from opencode_a2a.doctor.subject import Installation
from opencode_a2a.doctor.verdict import Level
from opencode_a2a.store.database import Database
from tests.chaos.disk import SmallDisk
from tests.doctor.looking import look

SECRET = "f3b1c09a77e2d845"
Load = Callable[..., Settings]


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Load:
    """Settings from this environment, and from files in the folder of the test."""
    for name in os.environ:
        if name.startswith(("A2A_", "OPENCODE_")):
            monkeypatch.delenv(name)
    root = tmp_path / "root"
    root.mkdir()
    monkeypatch.setenv("OPENCODE_WORKSPACE_ROOT", str(root))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def loading(config: Path | None = None, secrets: Path | None = None, **env: str) -> Settings:
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        return load(config, secrets)

    return loading


# -- this program


async def test_packages_of_another_version_and_missing_ones_are_found(
    loaded: Load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    subject = Installation(loaded())
    assert (await look(PROGRAM, "packages", subject)).level is Level.OK
    _install(tmp_path / "site", "orjson", "0.1")
    monkeypatch.syspath_prepend(tmp_path / "site")
    verdict = await look(PROGRAM, "packages", subject)
    assert verdict.finding == "packages.other_version"
    assert "orjson 0.1" in verdict.says
    _install(tmp_path / "site", "opencode_a2a", "1", "Requires-Dist: no-such-package>=2")
    verdict = await look(PROGRAM, "packages", subject)
    assert (verdict.finding, verdict.says) == (
        "packages.missing",
        "Not installed: no-such-package.",
    )


def _install(site: Path, name: str, version: str, *more: str) -> None:
    about = site / f"{name}-{version}.dist-info"
    about.mkdir(parents=True)
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *more, ""]
    (about / "METADATA").write_text("\n".join(lines))


# -- files and credentials


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory that every user can enter."""
    with TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


async def test_files_with_secrets_that_others_can_read_are_found(
    loaded: Load, folder: Path
) -> None:
    secrets = folder / "secrets"
    secrets.mkdir()
    token, other = secrets / "a2a_bearer_token", secrets / "notes"
    token.write_text(SECRET)
    other.write_text("not a setting")
    peer = folder / "peer-token"
    peer.write_text(SECRET)
    config = folder / "a2a.toml"
    plain = f'[peers.x]\nurl = "http://127.0.0.1:9"\nbearer_token = "file:{peer}"\n'
    config.write_text(plain)
    for file in (token, peer):
        file.chmod(0o600)
    for file in (other, config):  # neither holds a secret
        file.chmod(0o644)
    fine = await look(PROGRAM, "secret files", Installation(loaded(config, secrets)))
    assert (fine.level, fine.says) == (Level.OK, "2 files with secrets are for this user only.")
    config.write_text(f'{plain}[opencode]\nauth_password = "{SECRET}"\n')
    for file in (token, peer, config):
        for mode, finding in ((0o644, "files.readable"), (0o640, "files.group_readable")):
            for each in (token, peer, config):
                each.chmod(0o600)
            file.chmod(mode)
            verdict = await look(PROGRAM, "secret files", Installation(loaded(config, secrets)))
            assert verdict.finding == finding
            assert f"chmod 600 {file}" in verdict.fix
    token.chmod(0o644)
    secrets.chmod(0o700)
    verdict = await look(PROGRAM, "secret files", Installation(loaded(None, secrets)))
    assert verdict.level is Level.OK, "nobody else can enter its directory"


async def test_the_token_that_up_keeps_is_looked_at_too(loaded: Load, folder: Path) -> None:
    file = folder / "token"
    file.write_text("hush\n")
    file.chmod(0o604)
    subject = Installation(loaded(), token_file=file)
    assert (await look(PROGRAM, "secret files", subject)).finding == "files.readable"
    verdict = await look(PROGRAM, "credentials", subject)
    assert verdict.finding == "credentials.short"
    assert "hush" not in verdict.says


async def test_credentials_that_can_be_guessed_are_found(loaded: Load) -> None:
    login = {"scheme": "basic", "username": "u", "password": "short"}
    disabled = {"scheme": "bearer", "token": "x", "principal": "p", "enabled": False}
    for env, finding in (
        ({}, None),  # `up` makes one
        ({"OPENCODE_BASE_URL": "http://127.0.0.1:9"}, "credentials.none"),
        ({"A2A_BEARER_TOKEN": SECRET}, None),
        ({"A2A_STATIC_AUTH_CREDENTIALS": json.dumps([disabled])}, None),
        ({"OPENCODE_AUTH_PASSWORD": "hush"}, "credentials.short"),
        ({"OPENCODE_AUTH_PASSWORD": SECRET, "A2A_BEARER_TOKEN": "a" * 32}, "credentials.repeats"),
        ({"A2A_STATIC_AUTH_CREDENTIALS": json.dumps([login])}, "credentials.short"),
    ):
        verdict = await look(PROGRAM, "credentials", Installation(loaded(**env)))
        assert verdict.finding == finding, env


@pytest.mark.parametrize("how", ["oidc", "mtls", "token file"])
async def test_who_logs_in_otherwise_needs_no_static_credential(
    loaded: Load, folder: Path, how: str
) -> None:
    env = {"OPENCODE_BASE_URL": "http://127.0.0.1:9"}
    file = folder / "credentials.json"
    if how == "oidc":
        env |= {"A2A_OIDC_ISSUER": "https://login.example.com", "A2A_OIDC_AUDIENCE": "a2a"}
    elif how == "mtls":
        env |= {"A2A_MTLS_HEADER": "X-Client", "A2A_MTLS_SCOPES": '{"*": ["tasks:read"]}'}
        env |= {"A2A_TRUSTED_PROXIES": "10.0.0.1"}
    else:
        env |= {"A2A_CREDENTIALS_FILE": str(file)}
        verdict = await look(PROGRAM, "credentials", Installation(loaded(**env)))
        assert verdict.finding == "credentials.none"
        assert "opencode-a2a token create" in verdict.fix
        CredentialsFile(file).create("ci", scopes=["tasks:read"], principal="ci", now=0)
    verdict = await look(PROGRAM, "credentials", Installation(loaded(**env)))
    assert (verdict.level, verdict.finding) == (Level.OK, None)
    expected = {"oidc": "https://login.example.com", "mtls": "X-Client", "token file": str(file)}
    assert expected[how] in verdict.says


# -- the database


@dataclass(frozen=True)
class File:
    path: Path
    store: Callable[[], Store]

    def state(self) -> dict[str, tuple[int, bytes]]:
        """Every file of its folder."""
        return {
            each.name: (each.stat().st_mode, each.read_bytes())
            for each in self.path.parent.iterdir()
        }

    def execute(self, statement: str) -> None:
        with sqlite3.connect(self.path) as db:
            db.execute(statement)
        db.close()


@pytest.fixture
async def file(loaded: Load, tmp_path: Path) -> File:
    """A database as the service makes it."""
    path = tmp_path / "store" / "tasks.db"
    path.parent.mkdir()
    async with Database.open(f"sqlite:///{path}"):
        pass

    def store() -> Store:
        return Store(loaded(A2A_TASK_STORE_DATABASE_URL=f"sqlite:///{path}"))

    return File(path, store)


async def test_a_database_is_left_as_it_is(file: File) -> None:
    before = file.state()
    store = file.store()
    for check in STORE:
        assert (await look(STORE, check.name, store)).level is Level.OK
    assert file.state() == before


async def test_where_there_is_no_database_none_is_made(loaded: Load, tmp_path: Path) -> None:
    store = Store(loaded())
    for check in STORE:
        assert (await look(STORE, check.name, store)).level is Level.OK
    assert not (tmp_path / "state").exists()
    memory = Store(loaded(A2A_TASK_STORE_BACKEND="memory"))
    assert "in memory" in (await look(STORE, "database", memory)).says


@pytest.mark.parametrize("folder", ["/proc", "/no-such-folder"])
async def test_a_database_that_cannot_be_made_is_found(loaded: Load, folder: str) -> None:
    """Nobody can make a file in /proc, also not who may write everywhere else."""
    store = Store(loaded(A2A_TASK_STORE_DATABASE_URL=f"sqlite:///{folder}/tasks.db"))
    verdict = await look(STORE, "database", store)
    assert verdict.finding == "store.unusable"
    assert folder in verdict.says


async def test_a_database_that_another_process_holds_is_found(
    file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opencode_a2a.store.examine.WAIT_SECONDS", 0.05)
    with sqlite3.connect(file.path, isolation_level=None) as holder:
        holder.execute("BEGIN IMMEDIATE")
        verdict = await look(STORE, "database", file.store())
    holder.close()
    assert verdict.finding == "store.unusable"
    assert "locked" in verdict.says


async def test_a_file_that_is_no_database_is_found(file: File) -> None:
    file.path.write_bytes(b"a letter to a friend " * 100)
    store = file.store()
    assert (await look(STORE, "database", store)).finding == "store.damaged"
    assert (await look(STORE, "database schema", store)).level is Level.UNKNOWN


async def test_a_damaged_database_is_found(file: File) -> None:
    content = bytearray(file.path.read_bytes())
    content[4096 * 3 : 4096 * 6] = bytes(4096 * 3)
    file.path.write_bytes(content)
    assert (await look(STORE, "database", file.store())).finding == "store.damaged"


async def test_the_schema_tells_databases_of_others_and_of_other_versions(file: File) -> None:
    for version, age in ((0, "older"), (9999, "newer")):
        file.execute(f"UPDATE schema_version SET version = {version}")
        verdict = await look(STORE, "database schema", file.store())
        assert (verdict.finding, age in verdict.says) == ("store.schema", True)
    file.execute("DROP TABLE schema_version")
    assert (await look(STORE, "database schema", file.store())).finding == "store.foreign"


async def test_files_of_a_database_that_others_can_read_are_found(file: File) -> None:
    for mode in (0o644, 0o660, 0o602):
        file.path.chmod(mode)
        verdict = await look(STORE, "database rights", file.store())
        assert (verdict.finding, verdict.fix) == ("store.readable", f"chmod 600 {file.path}")
        assert file.path.stat().st_mode & 0o777 == mode, "it only says so"


async def test_a_large_database_is_found(file: File) -> None:
    os.truncate(file.path, 5_000_000_000)
    verdict = await look(STORE, "database size", file.store())
    assert (verdict.finding, verdict.says[:22]) == ("store.large", "The database has 5 GB,")


async def test_a_disk_that_is_full_or_nearly_is_found(loaded: Load, tmp_path: Path) -> None:
    if not SmallDisk.possible():
        pytest.skip("nothing can be mounted here")
    with SmallDisk.mounted(tmp_path / "disk") as disk:
        url = f"sqlite:///{disk.folder}/tasks.db"
        store = Store(loaded(A2A_TASK_STORE_DATABASE_URL=url))
        assert (await look(STORE, "database size", store)).finding == "store.nearly_full"
        disk.fill()
        store = Store(loaded(A2A_TASK_STORE_DATABASE_URL=url))
        assert (await look(STORE, "database size", store)).finding == "store.full"


# -- the machine


def _instance(url: str, pid: int) -> RegisteredInstance:
    return RegisteredInstance(
        url, "/w", pid, "serve", "1", opencode_url="http://127.0.0.1:9", started_at=0
    )


async def test_a_running_service_with_too_few_open_files_is_found(loaded: Load) -> None:
    process = await asyncio.create_subprocess_exec("sleep", "600")
    try:
        own = _instance("http://127.0.0.1:1", process.pid)
        subject = Installation(loaded(), own=own)
        assert (await look(MACHINE, "open files", subject)).level is Level.OK
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (300, 300))
        verdict = await look(MACHINE, "open files", subject)
    finally:
        process.kill()
        await process.wait()
    assert verdict.finding == "open_files.low"
    assert "At most 300 open files; 8448 are needed." in verdict.says


async def test_a_port_that_another_program_holds_is_found(loaded: Load) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        settings = loaded(A2A_PORT=str(port))
        verdict = await look(MACHINE, "port", Installation(settings))
        assert verdict.finding == "port.taken"
        own = _instance(f"http://127.0.0.1:{port}", 4711)
        verdict = await look(MACHINE, "port", Installation(settings, instances=[own]))
        assert (verdict.level, "your own `serve` (pid 4711)" in verdict.says) == (Level.OK, True)
    assert (await look(MACHINE, "port", Installation(settings))).level is Level.OK


@pytest.mark.parametrize("host", ["192.0.2.77", "no-such-host.invalid"])
async def test_an_address_that_is_none_of_this_machine_is_found(loaded: Load, host: str) -> None:
    settings = loaded(A2A_HOST=host, A2A_PORT="18999", A2A_BEARER_TOKEN=SECRET)
    verdict = await look(MACHINE, "port", Installation(settings))
    assert verdict.finding == "port.forbidden"
