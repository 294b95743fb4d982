"""The commands about stored data: `backup`, `restore`, `migrate` and `db …`.

They work on the database that `serve` would open with the same settings.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from .. import logs
from ..config import ConfigError, DatabaseUrl, Settings, load, secrets_directory
from ..data import backup, copying
from ..data.check import check as examine
from ..data.export import export_task
from ..data.opening import InUse, NoDatabase, opened, shared_lock, snapshot
from ..data.purge import Selection, preview
from ..data.purge import purge as remove
from ..observe import audit
from ..redaction import secrets_in
from ..store.clock import now_ms
from ..store.database import shown
from ..store.schema import SchemaError
from ..store.tables import DISOWNED
from .failure import CommandError
from .output import print_result

SERVICE_RUNS = "{what}: a service, or another program, works on it. Stop it first."


def run_data(arguments: argparse.Namespace) -> int:
    """Run one of the commands; its exit code."""
    logs.configure("error")
    try:
        settings = _settings(arguments)
        url = settings.state.url(settings.upstream.workspace_root)
        with _errors(_shown(url)):
            return _audited(arguments, url, settings)
    except ConfigError as exc:
        raise CommandError("\nopencode-a2a: ".join(exc.problems), 2) from None


def _audited(arguments: argparse.Namespace, url: str, settings: Settings) -> int:
    """Run the command. What changes callers' data is in the audit log."""
    run = COMMANDS[arguments.command]
    if settings.server.audit_log is None or arguments.command not in CHANGING:
        return run(arguments, url, settings)
    from .observing import audit_log  # only here: it loads the server

    outcome = "failed"
    with audit_log(settings.server.audit_log):
        try:
            code = run(arguments, url, settings)
            outcome = "ok" if code == 0 else "refused"
        finally:
            audit.record(
                arguments.command,
                outcome=outcome,
                by=audit.OPERATOR,
                database=_shown(url),
                target=getattr(arguments, "principal", None),
            )
    return code


def _settings(arguments: argparse.Namespace) -> Settings:
    if arguments.directory is not None:
        os.environ["OPENCODE_WORKSPACE_ROOT"] = str(arguments.directory)
    settings = load(arguments.config, secrets_directory(arguments.secrets))
    logs.redactor.add(*settings.secrets, *secrets_in(os.environ))
    return settings


@contextmanager
def _errors(where: str) -> Iterator[None]:
    """Errors of the store, as sentences for the person who gave the command."""
    try:
        yield
    except backup.HoldsData as exc:
        raise CommandError(
            f"{exc}: there is something in this database already. With --force the backup takes "
            "its place, and a backup of what is there now is made first."
        ) from None
    except (NoDatabase, backup.BackupError) as exc:
        raise CommandError(str(exc)) from exc
    except InUse:
        raise CommandError(SERVICE_RUNS.format(what=where)) from None
    except SchemaError as exc:
        raise CommandError(f"{where}: {exc}") from exc
    except (SQLAlchemyError, sqlite3.Error) as exc:
        reason = logs.redactor.known(logs.escaped(_first_line(exc)))
        raise CommandError(
            f"{where} (A2A_TASK_STORE_DATABASE_URL) cannot be used: {reason}"
        ) from exc
    except OSError as exc:
        raise CommandError(f"{exc.filename or where}: {exc.strerror or exc}") from exc


def _first_line(exc: Exception) -> str:
    """What a database says about an error, without the statement."""
    return str(getattr(exc, "orig", exc)).strip().partition("\n")[0]


def _shown(url: str) -> str:
    """A URL without its password; of SQLite, the file."""
    parsed = make_url(url)
    return str(parsed.database) if parsed.get_backend_name() == "sqlite" else shown(url)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Progress:
    """What a command is at, in one line of a terminal."""

    def __init__(self) -> None:
        self._shows = sys.stderr.isatty()

    def __call__(self, table: str, rows: int) -> None:
        if self._shows:
            sys.stderr.write(f"\r\x1b[K{table}: {rows} rows")
            sys.stderr.flush()

    def end(self) -> None:
        if self._shows:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


# -- backup, restore and copy


def back_up(arguments: argparse.Namespace, url: str, _: Settings) -> int:
    if arguments.file == "-":
        if sys.stdout.isatty():
            raise CommandError("refusing to write binary data to a terminal", 2)
        with tempfile.TemporaryDirectory(prefix="opencode-a2a-") as folder:
            file = Path(folder) / "backup"
            tasks = backup.backup(url, file)
            with file.open("rb") as content:
                shutil.copyfileobj(content, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    else:
        tasks = backup.backup(url, Path(arguments.file))
    _say(f"{arguments.file}: {tasks} tasks")
    return 0


def restore(arguments: argparse.Namespace, url: str, _: Settings) -> int:
    if make_url(url).database is None:
        raise NoDatabase("tasks are kept in memory only (A2A_TASK_STORE_BACKEND)")
    if arguments.file == "-":
        with tempfile.NamedTemporaryFile(prefix="opencode-a2a-") as spool:
            shutil.copyfileobj(sys.stdin.buffer, spool)
            spool.flush()
            tasks, kept = backup.restore(Path(spool.name), url, force=arguments.force)
    else:
        tasks, kept = backup.restore(Path(arguments.file), url, force=arguments.force)
    _say(f"{_shown(url)}: {tasks} tasks")
    if kept is not None:
        _say(f"What was there before: {kept}")
    return 0


def migrate(arguments: argparse.Namespace, url: str, _: Settings) -> int:
    target, progress = _target_url(arguments.to), Progress()
    if make_url(target) == make_url(url):
        raise CommandError("--to names the database that the data is in already", 2)
    try:
        with _errors(f"{_shown(url)} to {_shown(target)}"):
            copied = copying.copy(url, target, progress)
    except copying.NotEmpty:
        raise CommandError(f"{_shown(target)} is not empty. Name an empty database.") from None
    except copying.NotEqual as exc:
        raise CommandError(f"both sides differ in: {exc}. Nothing was changed.") from None
    progress.end()
    width = max(map(len, copied))
    lines = [f"{'TABLE':{width}}  {'ROWS':>9}  SHA-256, the same on both sides"]
    lines += [f"{name:{width}}  {rows:9}  {sha}" for name, (rows, sha) in copied.items()]
    print_result("\n".join(lines))
    _say(
        f"Everything is in {_shown(target)}. Set A2A_TASK_STORE_DATABASE_URL to it before you "
        "start the service again."
    )
    return 0


def _target_url(given: str) -> str:
    try:
        return TypeAdapter(DatabaseUrl).validate_python(given)
    except ValidationError as exc:
        reason = exc.errors()[0]["msg"].removeprefix("Value error, ")
        raise CommandError(f"--to: {reason}", 2) from None


# -- db


def check(_: argparse.Namespace, url: str, __: Settings) -> int:
    with opened(url) as engine, snapshot(engine) as db:
        report = examine(db)
    if report.problems:
        print_result("\n".join(logs.escaped(each) for each in report.problems))
        _say(f"{len(report.problems)} problems. `opencode-a2a restore` puts a backup in its place.")
        return 1
    print_result(f"{report.tasks} tasks and {report.entries} events: nothing is wrong.")
    return 0


def export(arguments: argparse.Namespace, url: str, _: Settings) -> int:
    with opened(url) as engine, snapshot(engine) as db:
        lines = export_task(db, arguments.task)
    if not lines:
        raise CommandError(f"there is no task {arguments.task}")
    print_result("\n".join(lines))
    return 0


def purge(arguments: argparse.Namespace, url: str, _: Settings) -> int:
    if arguments.before is None and not arguments.principal:
        raise CommandError("say what to remove: --before WHEN, --principal NAME, or both", 2)
    before = _moment(arguments.before) if arguments.before is not None else None
    selection, progress = Selection(before, arguments.principal), Progress()
    with opened(url) as engine, shared_lock(engine):
        with snapshot(engine) as db:
            found = preview(db, selection)
        if not found:
            print_result("There is nothing to remove.")
            return 0
        kept = {each.name for each in DISOWNED} if selection.whole_owner else set()
        for name, count in found.items():
            _say(f"{name}: {count} rows{' lose their owner' if name in kept else ''}")
        if not _agreed(arguments):
            return 1
        left = remove(engine, selection, progress)
    progress.end()
    if left:
        raise CommandError(
            f"{len(left)} tasks still run and were not removed: {', '.join(left[:5])}. They were "
            "asked to stop. Run this command again."
        )
    print_result("Removed.")
    if selection.whole_owner:
        _say("The budgets of this caller begin anew, with what was counted of them.")
    return 0


def _agreed(arguments: argparse.Namespace) -> bool:
    if arguments.yes:
        return True
    if not sys.stdin.isatty():
        raise CommandError("say --yes to remove this without being asked", 2)
    return input("Remove this for ever? [y/N] ").strip().lower() in ("y", "yes")


AGE = re.compile(r"(\d+)([dhm])")
UNITS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000}


def _moment(given: str) -> int:
    """A date, a time or an age, as milliseconds since 1970."""
    if age := AGE.fullmatch(given):
        return now_ms() - int(age[1]) * UNITS[age[2]]
    try:
        found = datetime.fromisoformat(given)
    except ValueError:
        raise CommandError(
            f"--before {given}: not a date (2026-11-01), a time (2026-11-01T12:00Z) or an age "
            "(90d, 12h, 30m)",
            2,
        ) from None
    return int((found if found.tzinfo else found.astimezone()).timestamp() * 1000)


COMMANDS: dict[str, Callable[[argparse.Namespace, str, Settings], int]] = {
    "backup": back_up,
    "restore": restore,
    "migrate": migrate,
    "db check": check,
    "db export": export,
    "db purge": purge,
}
CHANGING = frozenset({"restore", "migrate", "db purge"})
