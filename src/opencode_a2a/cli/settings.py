"""The commands `config show`, `config check` and `config example`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import logs
from ..config import (
    MIN_SECRET_LENGTH,
    PEERS_TABLE,
    ROLES_TABLE,
    SECRET_COMMAND,
    TABLES,
    ConfigError,
    LimitSettings,
    Settings,
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
LIMITS_TABLE = TABLES[LimitSettings]


@dataclass(frozen=True, slots=True)
class ShownSetting:
    """A setting, its value without secrets, and where it comes from."""

    name: str
    value: Any
    origin: str


def run_config(arguments: argparse.Namespace) -> int:
    """Run one of the commands; its exit code."""
    if arguments.command == "config example":
        print_result(example().rstrip("\n"))
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
    for name in settings.server.short_secrets:
        yield f"{name}: has fewer than {MIN_SECRET_LENGTH} characters; better: {SECRET_COMMAND}"
    if not settings.has_credentials:
        yield "A2A_BEARER_TOKEN: no credential is configured; `up` makes one, `serve` refuses"


def shown(settings: Settings, found_in: dict[str, str]) -> Iterator[ShownSetting]:
    """Every setting. `found_in` names the origin of those that have not their default."""
    for group in settings.groups:
        for field, value in group.model_dump(mode="json").items():
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


def example() -> str:
    """A TOML file with every setting, at its default."""
    return (Path(__file__).parent.parent / "settings.toml").read_text(encoding="utf-8")
