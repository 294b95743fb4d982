"""The commands about stored data: `backup`, `restore`, `migrate` and `db …`.

They work on the database that `serve` would open with the same settings.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Engine
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from .. import logs
from ..config import ConfigError, DatabaseUrl, Settings, load, secrets_directory
from ..observe import audit
from ..redaction import secrets_in
from ..store import backup
from ..store.check import check as examine
from ..store.clock import now_ms
from ..store.database import shown
from ..store.log import Retention
from ..store.migrate import ForeignDatabase, SchemaTooNew
from ..store.moving import FinishedElsewhere, Move, Moved, NotEmpty, NotEqual, TargetInUse
from ..store.purge import Selection, earlier_copies, preview
from ..store.purge import purge as remove
from ..store.rows import (
    InUse,
    NoDatabase,
    SchemaTooOld,
    beside_services,
    first_line,
    known_revision,
    opened,
    require_current,
    snapshot,
)
from ..store.stats import stats as measure
from ..store.stats import total_size
from ..store.stats import vacuum as make_smaller
from ..store.tables import DISOWNED
from .export import export_task
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
    except (NoDatabase, backup.NotABackup) as exc:
        raise CommandError(str(exc)) from exc
    except InUse:
        raise CommandError(SERVICE_RUNS.format(what=where)) from None
    except (SchemaTooNew, SchemaTooOld, ForeignDatabase) as exc:
        raise CommandError(f"{where}: {exc}") from exc
    except (SQLAlchemyError, sqlite3.Error) as exc:
        reason = logs.redactor.known(logs.escaped(first_line(exc)))
        raise CommandError(
            f"{where} (A2A_TASK_STORE_DATABASE_URL) cannot be used: {reason}"
        ) from exc
    except OSError as exc:
        raise CommandError(f"{exc.filename or where}: {exc.strerror or exc}") from exc


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


# -- backup and restore


def back_up(arguments: argparse.Namespace, url: str, _: Settings) -> int:
    progress = Progress()
    with opened(url) as engine:
        if arguments.file == "-":
            if sys.stdout.isatty():
                raise CommandError("a backup is no text: send it to a file or a pipe", 2)
            content = backup.write_backup(engine, sys.stdout.buffer, progress)
            sys.stdout.buffer.flush()
            size = ""
        else:
            file = Path(arguments.file)
            content = backup.save(engine, file, progress)
            size = f", {_bytes(file.stat().st_size)}"
    progress.end()
    tasks, _digest = content.tables["tasks"]
    _say(f"{arguments.file}: {tasks} tasks, {content.rows} rows{size}, as of {_time_of(content)}")
    return 0


def restore(arguments: argparse.Namespace, url: str, settings: Settings) -> int:
    if make_url(url).database is None:
        raise NoDatabase("tasks are kept in memory only (A2A_TASK_STORE_BACKEND)")
    progress = Progress()
    with _file_of(arguments.file) as file:
        try:
            done = backup.restore(file, url, force=arguments.force, report=progress)
        except backup.HoldsData as exc:
            raise CommandError(
                f"{exc}: there is something in this database already. With --force the backup "
                "takes its place, and what is there now is kept beside it."
            ) from None
    progress.end()
    tasks, _digest = done.content.tables["tasks"]
    _say(f"{_shown(url)}: {tasks} tasks, {done.content.rows} rows, as of {_time_of(done.content)}")
    if done.kept is not None:
        _say(f"What was there before: {done.kept}")
    root = str(settings.upstream.workspace_root)
    if any(done.content.manifest.roots) and root not in done.content.manifest.roots:
        _say(
            f"warning: these tasks belong to {', '.join(done.content.manifest.roots)}. A service "
            f"for {root} (OPENCODE_WORKSPACE_ROOT) shows them and does not go on with them."
        )
    return 0


@contextmanager
def _file_of(name: str) -> Iterator[Path]:
    """The backup as a file that can be read twice."""
    if name != "-":
        yield Path(name)
        return
    with tempfile.NamedTemporaryFile(prefix="opencode-a2a-") as spool:
        shutil.copyfileobj(sys.stdin.buffer, spool)
        spool.flush()
        yield Path(spool.name)


def _time_of(content: backup.Content) -> str:
    return _time(content.manifest.made_at)


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _bytes(size: int) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"


# -- migrate


def migrate(arguments: argparse.Namespace, url: str, _: Settings) -> int:
    target, progress = _target_url(arguments.to), Progress()
    if make_url(target) == make_url(url):
        raise CommandError("--to names the database that the data is in already", 2)
    move = Move(url, target, progress)
    try:
        with _errors(f"{_shown(url)} to {_shown(target)}"), opened(url) as source:
            move.copy(source)
            progress.end()
            _say(f"Copied {move.changes} rows in {move.passes} passes while the service may work.")
            done = _finish(move, source, waits=arguments.wait)
    except TargetInUse:
        raise CommandError(SERVICE_RUNS.format(what=_shown(target))) from None
    except NotEmpty:
        raise CommandError(
            f"{_shown(target)} holds something else already. Name an empty database, or remove "
            "what is in it."
        ) from None
    except FinishedElsewhere:
        raise CommandError(
            "another `opencode-a2a migrate` has finished this move. Nothing was changed since then."
        ) from None
    except NotEqual as exc:
        raise CommandError(f"both sides differ in: {exc}. Run the command again.") from None
    progress.end()
    width = max(map(len, done.tables))
    lines = [f"{'TABLE':{width}}  {'ROWS':>9}  SHA-256, the same on both sides"]
    lines += [f"{name:{width}}  {rows:9}  {sha}" for name, (rows, sha) in done.tables.items()]
    print_result("\n".join(lines))
    _say(
        f"Everything is in {_shown(target)}; the last part took {done.last_seconds:.1f} s. Start "
        "the service with A2A_TASK_STORE_DATABASE_URL set to it. "
        f"No service starts on {_shown(url)} any more."
    )
    return 0


def _finish(move: Move, source: Engine, *, waits: bool) -> Moved:
    advised = False

    def waiting() -> None:
        nonlocal advised
        if not advised:
            _say("Stop the service now. Until it stops, its changes are copied; then this ends.")
        advised = True

    if waits:
        return move.finish_when_stopped(source, waiting)
    source.dispose()
    try:
        return move.finish()
    except InUse:
        raise CommandError(
            "nearly everything is copied, and the service still works on the old database. Stop "
            "it and run this command again, or let it wait for that with --wait. Until then no "
            "service starts on the new database."
        ) from None


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


def stats(arguments: argparse.Namespace, url: str, settings: Settings) -> int:
    with opened(url) as engine, snapshot(engine) as db:
        found = measure(db, _retention(settings))
    if arguments.json:
        print_result(json.dumps(asdict(found), indent=2))
        return 0
    rows = [("TABLE", "ROWS", "BYTES", "OLDEST", "NEWEST")]
    rows += [
        (
            each.name,
            str(each.rows),
            _bytes(each.bytes) if each.bytes is not None else "?",
            _time(each.oldest) if each.oldest else "-",
            _time(each.newest) if each.newest else "-",
        )
        for each in found.tables
    ]
    lines = _columns(rows)
    lines += ["", f"size: {_bytes(found.size)}, of which {_bytes(found.free)} are free"]
    states = [f"{count} {state}" for state, count in sorted(found.states.items())]
    lines.append(f"tasks: {', '.join(states) or 'none'}")
    lines += [
        f"retention removes {due.what}: {due.now} now, {due.within_a_day} within a day"
        for due in found.due
    ]
    print_result("\n".join(lines))
    return 0


def _retention(settings: Settings) -> Retention:
    state = settings.state
    return Retention(
        replay=state.replay_seconds, tasks=state.retention_seconds, keys=state.idempotency_seconds
    )


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, each)) for each in zip(*rows, strict=True)]
    return [
        "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def vacuum(_: argparse.Namespace, url: str, __: Settings) -> int:
    with opened(url) as engine:
        with snapshot(engine) as db:
            known_revision(db)
        before = _size(engine)
        whole = make_smaller(url, engine)
        after = _size(engine)
    beside = "" if whole else " A service works on it; more can be had when it is stopped."
    print_result(f"{_bytes(before)} before, {_bytes(after)} now.{beside}")
    return 0


def _size(engine: Engine) -> int:
    with snapshot(engine) as db:
        return total_size(db)


def export(arguments: argparse.Namespace, url: str, _: Settings) -> int:
    with opened(url) as engine, snapshot(engine) as db:
        require_current(db)
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
    with opened(url) as engine, beside_services(engine):
        with snapshot(engine) as db:
            require_current(db)
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
        copies = earlier_copies(engine)
    progress.end()
    if left:
        raise CommandError(
            f"{len(left)} tasks still run and were not removed: {', '.join(left[:5])}. They were "
            "asked to stop. Run this command again."
        )
    print_result("Removed.")
    if selection.whole_owner:
        _say("The budgets of this caller begin anew, with what was counted of them.")
    if copies:
        _say("\n".join(["These copies still hold what they held; remove them yourself:", *copies]))
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
    "db stats": stats,
    "db vacuum": vacuum,
    "db export": export,
    "db purge": purge,
}
CHANGING = frozenset({"restore", "migrate", "db purge"})
