"""The commands `token create`, `list`, `rotate` and `revoke`: tokens in the credentials file."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from ..config import ConfigError, Settings, load, secrets_directory
from ..credentials import MAX_NAME, CredentialsFile, CredentialsFileError, StoredToken
from ..domain.scopes import DEFAULT_SCOPES, UnknownScope, resolve
from .failure import CommandError

UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 7 * 86_400}
MAX_SECONDS = 100 * 365 * UNITS["d"]
DEFAULT_OVERLAP = "1h"


def run_token(arguments: argparse.Namespace) -> Iterator[str]:
    """The lines to print. A new token is printed alone, so that a program can take it."""
    settings = _settings(arguments)
    file = CredentialsFile(_path(arguments, settings))
    now = int(time.time())
    try:
        match arguments.command:
            case "token create":
                yield _create(file, settings, arguments, now=now)
            case "token rotate":
                yield _rotate(file, arguments, now=now)
            case "token revoke":
                number = file.revoke(_name(arguments.name), now=now)
                _tell(f"{arguments.name}: {number} revoked. A running service ends its requests.")
            case _:
                yield from _list(file, as_json=arguments.json, now=now)
    except CredentialsFileError as exc:
        raise CommandError(str(exc)) from None


def _settings(arguments: argparse.Namespace) -> Settings:
    try:
        return load(arguments.config, secrets_directory(arguments.secrets))
    except ConfigError as exc:
        raise CommandError("\nopencode-a2a: ".join(exc.problems), 2) from None


def _path(arguments: argparse.Namespace, settings: Settings) -> Path:
    found: Path | None = arguments.file or settings.credentials_file
    if found is None:
        raise CommandError("there is no home directory; say --file or A2A_CREDENTIALS_FILE", 2)
    return found


def _create(
    file: CredentialsFile, settings: Settings, arguments: argparse.Namespace, *, now: int
) -> str:
    name = _name(arguments.name)
    scopes = [word for word in re.split(r"[\s,]+", arguments.scopes or "") if word]
    scopes = scopes or [str(scope) for scope in DEFAULT_SCOPES]
    try:
        resolve(scopes, settings.roles)
    except UnknownScope as exc:
        raise CommandError(f"--scopes: {exc}", 2) from None
    principal = _name(arguments.principal or name)
    token = file.create(
        name,
        principal=principal,
        scopes=scopes,
        now=now,
        expires_at=_end(arguments.expires, now),
    )
    _tell(
        f"a token for {principal} ({', '.join(scopes)}), shown this once. {file.path} keeps its "
        "hash."
    )
    return token


def _rotate(file: CredentialsFile, arguments: argparse.Namespace, *, now: int) -> str:
    overlap = _seconds("--overlap", arguments.overlap or DEFAULT_OVERLAP)
    end = _end(arguments.expires, now)
    token = file.rotate(_name(arguments.name), overlap=overlap, now=now, expires_at=end)
    until = f"until {_moment(now + overlap)}" if overlap else "no more"
    _tell(f"a new token for {arguments.name}, shown this once. The one before is valid {until}.")
    return token


def _list(file: CredentialsFile, *, as_json: bool, now: int) -> Iterator[str]:
    tokens, used = file.read(), file.last_used()
    if as_json:
        shown = [_shown(each, used, now=now) for each in tokens]
        yield json.dumps(shown, indent=2, ensure_ascii=False)
        return
    if not tokens:
        _tell(f"there are no tokens in {file.path}. To make one: opencode-a2a token create NAME")
        return
    rows = [("NAME", "PRINCIPAL", "CREATED", "EXPIRES", "LAST USED", "SCOPES")]
    for each in tokens:
        end = "never" if each.expires_at is None else _moment(each.expires_at)
        rows.append(
            (
                each.name,
                each.principal,
                _moment(each.created_at),
                end if each.is_valid(now) else "has expired",
                _moment(used[each.id]) if each.id in used else "-",
                " ".join(each.scopes),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    for row in rows:
        cells = [f"{cell:{width}}" for cell, width in zip(row, widths, strict=False)]
        yield "  ".join([*cells, row[5]])


def _shown(token: StoredToken, used: dict[str, int], *, now: int) -> dict[str, object]:
    facts = asdict(token)
    del facts["sha256"]
    return {**facts, "last_used_at": used.get(token.id), "valid": token.is_valid(now)}


def _name(text: str) -> str:
    if not text.strip() or not text.isprintable() or len(text) > MAX_NAME or text == "*":
        raise CommandError(f"a name has 1 to {MAX_NAME} printable characters, and is not *", 2)
    return text


def _end(expires: str | None, now: int) -> int | None:
    return now + _seconds("--expires", expires) if expires is not None else None


def _seconds(option: str, text: str) -> int:
    found = re.fullmatch(r"(\d{1,10})([smhdw])", text.strip())
    if found is None:
        raise CommandError(f"{option}: must be a time such as 90d, 12h, 30m or 45s", 2)
    return min(int(found[1]) * UNITS[found[2]], MAX_SECONDS)


def _moment(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _tell(text: str) -> None:
    """Beside the output, which is for programs."""
    print(f"opencode-a2a: {text}", file=sys.stderr)
