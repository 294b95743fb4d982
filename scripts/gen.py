"""Write what is generated from the code: reference pages and published documents.

python scripts/gen.py [DIRECTORY]     DIRECTORY: where to write (the repository)
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from fastapi import FastAPI

from opencode_a2a import errors
from opencode_a2a.config import Environment, Group, Outbound, Server, State, Upstream
from opencode_a2a.contract.dispatch import Contract
from opencode_a2a.domain.values import Failure
from opencode_a2a.extensions import ALL
from opencode_a2a.inbound.card import Card, CardFacts, hybrid, pure
from opencode_a2a.inbound.health import Health
from opencode_a2a.inbound.operations import RPC_METHODS, SUPPORTED_METHODS, Operations
from opencode_a2a.inbound.routes import REST_ROUTES, add_routes
from opencode_a2a.service.inputs import INPUT_MODES

ROOT = Path(__file__).parent.parent
NOTE = "<!-- Written by `make gen`; change the code instead. -->\n\n"
FACTS = CardFacts(
    "https://agent.example.com",
    Server.model_fields["title"].default,
    Server.model_fields["description"].default,
    "0.0.0",
    ("bearer",),
    INPUT_MODES,
)


def settings_page() -> str:
    lines = [
        "# Settings",
        "",
        "Environment variables. The same names, in any case, are file names in a secrets",
        "directory (`--secrets`, or systemd's `CREDENTIALS_DIRECTORY`); in a TOML file",
        "(`--config`) each group is a table. The environment wins over secret files, and those",
        "win over the TOML file.",
        "",
        "A wrong setting stops the start with one line per problem and exit code 2.",
    ]
    tables = (
        ("opencode", Upstream),
        ("a2a", Server),
        ("task_store", State),
        ("client", Outbound),
        ("environment", Environment),
    )
    for table, group in tables:
        lines += ["", f"## {str(group.__doc__).rstrip('.')} (`[{table}]`)", ""]
        lines += ["| variable | default | meaning |", "|---|---|---|"]
        lines += [_setting(group, name) for name in group.model_fields]
    return NOTE + "\n".join(lines) + "\n"


def _setting(group: type[Group], name: str) -> str:
    field = group.model_fields[name]
    variable = f"{group.model_config['env_prefix']}{name.upper()}"
    default = "the current directory" if field.default_factory else _default(field.default)
    return f"| `{variable}` | {default} | {field.description} |"


def _default(value: object) -> str:
    return "–" if value is None or value == [] else f"`{json.dumps(value)}`"


def errors_page() -> str:
    lines = [
        "# Errors",
        "",
        "Every error answer carries a stable `type`: in 1.0 as `reason` of a",
        "`google.rpc.ErrorInfo` in `error.data` (JSON-RPC) or `error.details` (REST), in 0.3 as",
        "`data.type`. Wrong fields are named in a `google.rpc.BadRequest` (1.0) or `data.fields`",
        "(0.3). Over JSON-RPC the HTTP status is 200, except 401, 403, 413 and 429.",
        "",
        "| type | JSON-RPC code | HTTP status (REST) | whose |",
        "|---|---|---|---|",
    ]
    for kind in _errors(errors.ServiceError):
        whose = "protocol" if kind.protocol else "ours"
        lines.append(f"| `{kind.type}` | {kind.rpc_code} | {kind.http_status} | {whose} |")
    lines += [
        "",
        "## Why a task failed",
        "",
        "A failed task says why in its status message, for people, and in",
        "`metadata.opencode.error.type`, for machines:",
        "",
        *[f"- `{failure.value}`" for failure in Failure],
    ]
    return NOTE + "\n".join(lines) + "\n"


def _errors(kind: type[errors.ServiceError]) -> Iterator[type[errors.ServiceError]]:
    for child in kind.__subclasses__():
        if "type" in vars(child):
            yield child
        yield from _errors(child)


def methods_page() -> str:
    lines = [
        "# Methods and routes",
        "",
        "JSON-RPC on `POST /`:",
        "",
        "| method | line |",
        "|---|---|",
    ]
    for name, (dialect, _) in RPC_METHODS.items():
        note = "" if name in SUPPORTED_METHODS else " (answers that it is not supported)"
        lines.append(f"| `{name}`{note} | {dialect.version} |")
    lines += ["", "REST:", "", "| route | lines |", "|---|---|"]
    for route in REST_ROUTES:
        where = [
            f"{dialect.version} `{'/v1' if dialect.version == '0.3' else ''}{route.path}`"
            for dialect in route.lines
        ]
        lines.append(f"| {'/'.join(route.methods)} {route.summary} | {', '.join(where)} |")
    return NOTE + "\n".join(lines) + "\n"


def openapi() -> str:
    app = FastAPI(title=FACTS.title, version=FACTS.version)
    contract = Contract(ALL, ())
    add_routes(app, Operations.__new__(Operations), contract, Card(FACTS), Health({}), 0)
    return _pretty(app.openapi())


def _pretty(document: object) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def documents() -> dict[str, str]:
    return {
        "docs/reference/settings.md": settings_page(),
        "docs/reference/errors.md": errors_page(),
        "docs/reference/methods.md": methods_page(),
        "tests/published/card.hybrid.json": _pretty(hybrid(FACTS)),
        "tests/published/card.pure.json": _pretty(pure(FACTS)),
        "tests/published/openapi.json": openapi(),
    }


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT
    for name, text in documents().items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text(text, encoding="utf-8")
