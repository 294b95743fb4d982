"""The commands `config show`, `config check` and `config example`."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pydantic.fields import FieldInfo

from .. import logs
from ..config import (
    MIN_SECRET_LENGTH,
    PEERS_TABLE,
    ROLES_TABLE,
    SECRET_COMMAND,
    TABLES,
    ConfigError,
    LimitSettings,
    PeerSetting,
    Server,
    Settings,
    allowed_words,
    load,
    origins,
    secrets_directory,
    setting_name,
)
from .output import print_result

if TYPE_CHECKING:
    import argparse

DEFAULT = "default"
MASK = "**********"  # as pydantic writes a secret
WIDTH = 96  # of the comments in the example

EXAMPLE_HEAD = """\
# The settings of opencode-a2a, for `--config FILE`.
#
# A line such as `#port = 8000` is a setting with its default: take the `#` away to change it. Where
# there is no default, the line has an example, or "" for a secret.
#
# Variables of the environment (A2A_PORT) and files in the secrets directory override this file.
# Secrets are better kept there. `opencode-a2a config check --config FILE` finds mistakes, and
# `opencode-a2a config show --config FILE` says which value comes from where.
"""

LIMITS_TABLE = TABLES[LimitSettings]
OWN_LIMITS_HEAD = (
    'A table such as `[limits."alice"]`, in the TOML file only, has other values of these for one '
    "caller, under the names that follow `A2A_LIMIT_` in small letters. What it does not name is "
    "as for everybody."
)
PEER_HEAD = "Agents that can be called by name: a table for each."
ROLES_HEAD = "Names for sets of scopes, which can stand wherever a scope can."


@dataclass(frozen=True, slots=True)
class ShownSetting:
    """A setting, its value without secrets, and where it comes from."""

    name: str
    value: Any
    origin: str


def run_config(arguments: argparse.Namespace) -> int:
    """Run one of the commands; its exit code."""
    if arguments.command == "config example":
        print_result("\n".join(example()))
        return 0
    secrets = secrets_directory(arguments.secrets)
    try:
        settings = load(arguments.config, secrets)
    except ConfigError as exc:
        _complain(exc.problems)
        return 2
    logs.redactor.add(*settings.secrets)
    if arguments.command == "config check":
        _complain(f"warning: {each}" for each in warnings(settings))
        print_result("The settings are fine.")
        return 0
    found = list(shown(settings, origins(arguments.config, secrets)))
    if arguments.changed:
        found = [each for each in found if each.origin != DEFAULT]
    lines = _json(found) if arguments.json else _table(found)
    print_result("\n".join(lines))
    return 0


def _complain(lines: Iterator[str] | Sequence[str]) -> None:
    for line in lines:
        print(f"opencode-a2a: {logs.escaped(logs.redactor.known(line))}", file=sys.stderr)


def warnings(settings: Settings) -> Iterator[str]:
    """What the service would start with all the same, and log."""
    for name in settings.unknown:
        yield f"{name}: there is no such setting; it is ignored"
    for name, note in settings.notes:
        yield f"{name}: {note}"
    for name in settings.server.short_secrets:
        yield f"{name}: has fewer than {MIN_SECRET_LENGTH} characters; better: {SECRET_COMMAND}"
    if not settings.has_credentials:
        yield "A2A_BEARER_TOKEN: no credential is configured; `up` makes one, `serve` refuses"


def shown(settings: Settings, found_in: dict[str, str]) -> Iterator[ShownSetting]:
    """Every setting. `found_in` names the origin of those that have not their default."""
    for group in settings.groups:
        values = group.model_dump(mode="json")
        if isinstance(group, Server):  # also those that are not enabled
            values["static_auth_credentials"] = [
                each.model_dump(mode="json", exclude_none=True) for each in group.all_credentials
            ]
        for field, value in values.items():
            name = setting_name(type(group), field)
            yield ShownSetting(name, _without_secrets(value), found_in.get(name, DEFAULT))
    for principal, limits in settings.limits_of.items():
        for field, value in limits.model_dump(mode="json").items():
            if getattr(limits, field) != getattr(settings.limits, field):
                name = f"{LIMITS_TABLE}.{principal}.{field}"
                yield ShownSetting(name, _without_secrets(value), found_in[LIMITS_TABLE])
    for role, scopes in settings.roles.items():
        yield ShownSetting(f"{ROLES_TABLE}.{role}", sorted(scopes), found_in[ROLES_TABLE])
    for peer, setting in settings.peers.items():
        for field, value in setting.model_dump(mode="json", exclude_unset=True).items():
            if field == "headers":
                value = dict.fromkeys(value, MASK)
            name = f"{PEERS_TABLE}.{peer}.{field}"
            yield ShownSetting(name, _without_secrets(value), found_in[PEERS_TABLE])


def _without_secrets(value: Any) -> Any:
    match value:
        case str():
            return logs.redactor.text(value)
        case list():
            return [_without_secrets(inner) for inner in value]
        case dict():
            return {name: _without_secrets(inner) for name, inner in value.items()}
        case _:
            return value


def _json(found: Sequence[ShownSetting]) -> list[str]:
    return json.dumps([asdict(each) for each in found], indent=2, ensure_ascii=False).splitlines()


def _table(found: Sequence[ShownSetting]) -> list[str]:
    """The value is the last column: it may be long."""
    rows = [("SETTING", "FROM", "VALUE")]
    rows += [(each.name, each.origin, _cell(each.value)) for each in found]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    return [f"{name:{widths[0]}}  {origin:{widths[1]}}  {value}" for name, origin, value in rows]


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return logs.escaped(shown)


def example() -> Iterator[str]:
    """The lines of a TOML file with every setting, at its default."""
    yield EXAMPLE_HEAD
    for kind, table in TABLES.items():
        yield f"[{table}]"
        yield from _comment(str(kind.__doc__))
        if kind is LimitSettings:
            yield from _comment(OWN_LIMITS_HEAD)
        for name, field in kind.model_fields.items():
            yield from ("", *_example_of(name, field))
        yield ""
    yield f"#[{ROLES_TABLE}]"
    yield from _comment(ROLES_HEAD)
    yield '#auditor = ["tasks:read", "admin"]'
    yield ""
    yield f"#[{PEERS_TABLE}.NAME]"
    yield from _comment(PEER_HEAD)
    for name, field in PeerSetting.model_fields.items():
        yield from ("", *_example_of(name, field))


def _example_of(name: str, field: FieldInfo) -> Iterator[str]:
    yield from _comment(describe(field))
    if field.default_factory is not None:  # the current directory
        value: Any = "."
    elif field.is_required() or field.default is None:
        value = next(iter(field.examples or ()), "")
    else:
        value = field.default
    # What settings have looks the same in TOML and JSON.
    yield f"#{name} = {json.dumps(value, ensure_ascii=False)}"


def describe(field: FieldInfo) -> str:
    """What a setting means, and what it may say where that is one of a few words."""
    allowed = " ".join(f"`{word}`" for word in allowed_words(field.annotation))
    return f"{field.description} One of {allowed}." if allowed else str(field.description)


def _comment(text: str) -> list[str]:
    prefix = "# "
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=prefix,
        subsequent_indent=prefix,
        break_long_words=False,
        break_on_hyphens=False,
    )
