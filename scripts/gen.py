"""Write what is generated from the code: reference pages and published documents."""

from __future__ import annotations

import ast
import json
import os
import re
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from dashboard import dashboard  # type: ignore[import-not-found]  # beside this program

from opencode_a2a import errors
from opencode_a2a.app import publication
from opencode_a2a.cli.settings import example
from opencode_a2a.config import TABLES, load, reloadable, setting_name
from opencode_a2a.contract.declare import COMMON_ERRORS
from opencode_a2a.contract.publish import markdown
from opencode_a2a.doctor.checks import ALL as CHECKS
from opencode_a2a.domain.values import Failure
from opencode_a2a.extensions import ALL
from opencode_a2a.inbound.operations import A2A
from opencode_a2a.inbound.published import JWKS_PATH, PUBLIC_ENDPOINTS, Published
from opencode_a2a.inbound.routes import document
from opencode_a2a.observe.metrics import MAX_NAMES, METRICS, OTHER

ROOT = Path(__file__).parent.parent
PROCESS_METRICS = (
    *("cpu_seconds_total", "resident_memory_bytes", "virtual_memory_bytes", "start_time_seconds"),
    *("open_fds", "max_fds"),
)
NOTE = "<!-- Written by `make gen`; change the code instead. -->\n\n"
URL = "https://agent.example.com"


def published() -> Published:
    """What a deployment with one token and every switch on publishes."""
    names = [name for name in os.environ if name.startswith(("A2A_", "OPENCODE_"))]
    for name in names:
        del os.environ[name]
    os.environ |= {
        "A2A_BEARER_TOKEN": "x",
        "A2A_ENABLE_SESSION_SHELL": "true",
        "A2A_ENABLE_WORKSPACE_MUTATIONS": "true",
        "A2A_PUSH": "true",
        "A2A_TASK_STORE_DATABASE_URL": "postgresql://db.example.com/a2a",
    }
    found = publication(load(), URL)
    return replace(found, facts=replace(found.facts, version="0.0.0"))


def settings_page() -> str:
    lines = [
        "# Settings",
        "",
        "Environment variables. The same names, in any case, are file names in a secrets",
        "directory (`--secrets`, or systemd's `CREDENTIALS_DIRECTORY`); in a TOML file",
        "(`--config`) each group is a table. The environment wins over secret files, and those",
        "win over the TOML file.",
        "",
        "A wrong setting stops the start with one line per problem and exit code 2; so does an",
        "`A2A_…` variable that is no setting. Lists are JSON or have commas.",
        "",
        "[settings.toml](../../src/opencode_a2a/settings.toml) has them all as a file to",
        "begin with, which `opencode-a2a config example` prints. `config check` finds",
        "mistakes, and `config show` says which value comes from where.",
        "",
        "A running service takes over new values of these settings, of limits, roles and peers,",
        "at SIGHUP; all others need a restart:",
        f"{_code(setting_name(kind, name) for kind in TABLES for name in reloadable(kind))}.",
    ]
    names = {table: kind for kind, table in TABLES.items()}
    for table, head, fields in _tables(example()):
        kind = names.get(table)
        lines += ["", f"## `[{table}]`", "", head, ""]
        lines += [f"| {'variable' if kind else 'in the table'} | in the file | meaning |"]
        lines += ["|---|---|---|"]
        for name, value, meaning in fields:
            shown = setting_name(kind, name) if kind else name
            lines.append(f"| `{shown}` | `{value}` | {meaning} |")
    return NOTE + "\n".join(lines) + "\n"


def _tables(text: str) -> Iterator[tuple[str, str, list[tuple[str, str, str]]]]:
    """The tables of the example: name, what is said of it, and its settings with their value."""
    for part in re.split(r"(?m)^#?(?=\[)", text)[1:]:
        head, *settings = re.split(r"\n\n", part.strip())
        title, _, said = head.partition("\n")
        yield title.strip("[]"), _prose(said), [_setting(each) for each in settings]


def _setting(text: str) -> tuple[str, str, str]:
    said, _, line = text.rpartition("\n")
    name, _, value = line.removeprefix("#").partition(" = ")
    return name, value, _prose(said)


def _prose(comment: str) -> str:
    return " ".join(line.removeprefix("# ") for line in comment.splitlines())


def _code(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def errors_page() -> str:
    lines = [
        "# Errors",
        "",
        "Every error answer carries a stable `type`: in 1.0 as `reason` of a",
        "`google.rpc.ErrorInfo` in `error.data` (JSON-RPC) or `error.details` (REST), in 0.3 as",
        "`data.type`. Wrong fields are named in a `google.rpc.BadRequest` (1.0) or `data.fields`",
        "(0.3). Over JSON-RPC the HTTP status is 200, except 401, 403, 408, 413, 429 and 431, and",
        "503 of `ISSUER_UNAVAILABLE`.",
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
        "JSON-RPC on `POST /`. Methods beyond A2A, such as `opencode.sessions.list`, are in",
        "[extensions.md](extensions.md).",
        "",
        "| method | line | scope |",
        "|---|---|---|",
    ]
    for name, (line, operation) in A2A.methods.items():
        note = f" (where `{operation.needs}` is on)" if operation.needs else ""
        scope = f"`{operation.scope}`" if operation.scope is not None else "any credential"
        scope += "; `admin` for everybody's" if operation.admin else ""
        lines.append(f"| `{name}`{note} | {line} | {scope} |")
    lines += ["", "REST:", "", "| route | lines |", "|---|---|"]
    verbs: dict[tuple[str, str], list[str]] = {}
    for route, operation in A2A.routes:
        where = ", ".join(f"{line} `{route.path_in(line)}`" for line in route.lines)
        verbs.setdefault((operation.summary, where), []).extend(route.verbs)
    lines += [f"| {'/'.join(v)} {summary} | {where} |" for (summary, where), v in verbs.items()]
    public = ", ".join(f"`{endpoint}`" for endpoint in PUBLIC_ENDPOINTS)
    lines += [
        "",
        "Every 1.0 route has a twin below `/{tenant}`. How the line of a request is found, and",
        "what differs between the lines, is in [compatibility.md](../compatibility.md).",
        "",
        f"Without a credential: {public}; where `A2A_PUSH` is on, `GET {JWKS_PATH}`.",
        "With one, also `GET /openapi.json`.",
    ]
    return NOTE + "\n".join(lines) + "\n"


def producing_tests() -> dict[str, str]:
    """By string: the first test of the doctor that has it, one on real parts if there is one."""
    found: dict[str, str] = {}
    files = (ROOT / "tests" / "doctor").glob("test_*.py")
    for path in sorted(files, key=lambda path: (path.stem == "test_judgement", path.stem)):
        for node in ast.parse(path.read_text()).body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if node.name.startswith("test_"):
                for each in ast.walk(node):
                    if isinstance(each, ast.Constant) and isinstance(each.value, str):
                        found.setdefault(each.value, f"{path.stem}::{node.name}")
    return found


def doctor_page() -> str:
    tests = producing_tests()
    lines = [
        "# What `opencode-a2a doctor` finds",
        "",
        "Each check ends with a verdict: `ok`; `warning`, where it works and something deserves a",
        "look; `error`, where it does not work or is not safe; `unknown`, where it could not be",
        "tried, and why. The names of findings are stable: `--json` has them as `finding`. How to",
        "use it is in [the guide](../guide.md#finding-out-what-is-wrong).",
        "",
        "Each finding is produced by a test in `tests/doctor`, which its row names: on real files,",
        "sockets, databases, certificates and proxies, a service that runs, and a stand-in for",
        "OpenCode that speaks its API. Only those in `test_judgement` hand in a value.",
    ]
    for check in CHECKS:
        looks_at = check.looks_at[0].upper() + check.looks_at[1:]
        lines += ["", f"## {check.name}", "", f"{looks_at}."]
        if check.at_start:
            lines[-1] += " A service looks at it when it starts, too."
        lines += ["", "| finding | verdict | means | what to do | test |", "|---|---|---|---|---|"]
        lines += [
            f"| `{each.name}` | {each.level} | {each.means} | {each.fix} | `{tests[each.name]}` |"
            for each in check.findings
        ]
    return NOTE + "\n".join(lines) + "\n"


def extensions_page() -> str:
    lines = [
        "# Extension methods",
        "",
        "JSON-RPC on `POST /`, in either line. What is marked with `?` may be left out. A request",
        "without an `id` is answered with 204. What each extension is for is in",
        "[extension-specifications.md](../extension-specifications.md).",
        "",
        "Every method can answer " + ", ".join(f"`{error.type}`" for error in COMMON_ERRORS) + ".",
    ]
    for extension in ALL:
        if extension.methods:
            lines += ["", *markdown(extension)]
    return NOTE + "\n".join(lines) + "\n"


def metrics_page() -> str:
    lines = [
        "# Metrics",
        "",
        "What `/metrics` has for Prometheus. Who gets it says `A2A_METRICS`; what to look at first",
        "is in [observe.md](../operate/observe.md). Counters begin at 0 with every start.",
        "",
        f"Where the values of a label come from outside, the first {MAX_NAMES} are kept apart and",
        f"all others are called `{OTHER}`.",
        "",
        "| metric | kind | labels | means |",
        "|---|---|---|---|",
    ]
    for metric in METRICS.values():
        lines.append(
            f"| `{metric.name}` | {metric.kind} | {_code(metric.labels)} | {metric.help} |"
        )
    lines += [
        "",
        "Of the process, as everywhere: "
        + _code(f"process_{name}" for name in PROCESS_METRICS)
        + ".",
    ]
    return NOTE + "\n".join(lines) + "\n"


def _pretty(document: object) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def documents() -> dict[str, str]:
    found = published()
    return {
        "docs/reference/settings.md": settings_page(),
        "docs/reference/errors.md": errors_page(),
        "docs/reference/methods.md": methods_page(),
        "docs/reference/extensions.md": extensions_page(),
        "docs/reference/doctor.md": doctor_page(),
        "docs/reference/metrics.md": metrics_page(),
        "deploy/grafana/opencode-a2a.json": _pretty(dashboard()),
        "tests/published/card.hybrid.json": _pretty(json.loads(found.card.hybrid.body)),
        "tests/published/card.pure.json": _pretty(json.loads(found.card.pure.body)),
        "tests/published/card.extended.json": _pretty(found.card.extended_pure),
        "tests/published/openapi.json": _pretty(document(found)),
    }


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__)
    parser.add_argument(
        "directory", type=Path, nargs="?", default=ROOT, help="where to write (the repository)"
    )
    target: Path = parser.parse_args().directory
    for name, text in documents().items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text(text, encoding="utf-8")
