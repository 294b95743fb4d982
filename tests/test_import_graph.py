"""Who may import whom: the table, and the tests that keep it true."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = "opencode_a2a"
ANYTHING = frozenset({"*"})

# A layer is a module or package directly below opencode_a2a. It may import itself, what its row
# names, and (where third-party code is allowed) `__version__`.
MAY_IMPORT: dict[str, frozenset[str]] = {
    "domain": frozenset(),
    "errors": frozenset(),
    "paths": frozenset(),
    "locks": frozenset(),
    "observe": frozenset({"domain"}),
    "service": frozenset({"domain", "errors", "locks", "observe", "paths"}),
    "opencode": frozenset({"domain", "errors", "locks", "observe", "paths"}),
    "store": frozenset({"domain", "errors", "observe", "paths"}),
    "outbound": frozenset({"domain", "errors", "locks", "observe"}),
    "toolserver": frozenset({"domain", "web"}),
    "web": frozenset({"domain.addresses", "domain.values", "errors", "observe", "redaction"}),
    "contract": frozenset({"domain.release", "errors"}),
    "extensions": frozenset({"contract", "service", "domain", "errors", "observe"}),
    "inbound": frozenset(
        {"extensions", "contract", "service", "domain", "errors", "observe", "web"}
    ),
    "demo": frozenset(),
    "deploy": frozenset({"domain.addresses", "paths"}),
    "data": frozenset({"domain", "inbound", "paths", "store"}),
    "config": frozenset({"domain", "errors", "paths"}),
    "credentials": frozenset({"paths"}),
    "access": frozenset({"config", "credentials", "domain", "inbound.security", "web"}),
    "peers": frozenset({"config", "domain.addresses", "outbound", "redaction"}),
    "doctor": frozenset(
        {
            *("config", "credentials", "deploy", "domain", "errors", "opencode", "outbound"),
            *("paths", "peers", "store", "web.connections"),
        }
    ),
    "redaction": frozenset(),
    "systemd": frozenset(),
    "logs": frozenset({"redaction", "systemd"}),
    "app": ANYTHING,
    "cli": ANYTHING,
    "__main__": frozenset({"cli"}),
}
# These are pure. Of all else they may import what follows: nothing that waits, reads or writes.
PURE = frozenset({"domain", "errors"})
HARMLESS = frozenset(
    {
        *("__future__", "base64", "bisect", "collections", "collections.abc", "contextlib"),
        *(
            "dataclasses",
            "datetime",
            "enum",
            "functools",
            "hashlib",
            "ipaddress",
            "itertools",
            "json",
            "math",
        ),
        *("re", "typing", "unicodedata", "urllib.parse"),
    }
)


@dataclass(frozen=True, slots=True)
class Import:
    """One import as written: both names are absolute and dotted."""

    importer: str
    target: str
    line: int

    def __str__(self) -> str:
        return f"{self.importer} imports {self.target} (line {self.line})"


def modules(root: Path) -> dict[str, Path]:
    """Every module below the package folder `root`; a package goes by the name of its folder."""
    found: dict[str, Path] = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(known: dict[str, Path]) -> Iterator[Import]:
    """Every import of every module, also those inside functions and under TYPE_CHECKING."""
    for importer, path in known.items():
        package = importer if path.name == "__init__.py" else importer.rpartition(".")[0]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))):
            if isinstance(node, ast.Import):
                for name in node.names:
                    yield Import(importer, name.name, node.lineno)
            elif isinstance(node, ast.ImportFrom):
                base = absolute(package, node.module, node.level)
                for name in node.names:
                    member = f"{base}.{name.name}"
                    yield Import(importer, member if member in known else base, node.lineno)


def absolute(package: str, module: str | None, level: int) -> str:
    """The dotted name that `from <level dots><module> import …` means inside `package`."""
    if level == 0:
        return module or ""
    parts = package.split(".")
    return ".".join([*parts[: len(parts) - level + 1], *([module] if module else [])])


def is_ours(name: str) -> bool:
    return name == PACKAGE or name.startswith(f"{PACKAGE}.")


def layer_of(name: str) -> str:
    """The layer of one of our modules; the empty string for the package itself."""
    return name.removeprefix(PACKAGE).removeprefix(".").partition(".")[0]


def may(found: Import) -> bool:
    layer = layer_of(found.importer)
    if not is_ours(found.target):
        return layer not in PURE or found.target in HARMLESS
    if layer_of(found.target) == layer:
        return True
    if found.target == PACKAGE:
        return layer not in PURE
    allowed = MAY_IMPORT.get(layer, frozenset())
    inner = found.target.removeprefix(f"{PACKAGE}.")
    return allowed == ANYTHING or any(inner == a or inner.startswith(f"{a}.") for a in allowed)


def trespasses(root: Path) -> list[str]:
    return [str(found) for found in imports(modules(root)) if not may(found)]


def cycle(root: Path) -> list[str]:
    """One import cycle as a list of modules, or nothing."""
    known = modules(root)
    graph: dict[str, set[str]] = {name: set() for name in known}
    for found in imports(known):
        if found.target in known:
            graph[found.importer].add(found.target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as exc:
        return list(reversed(exc.args[1]))  # graphlib names the imported module first
    return []


SOURCE = Path(__file__).resolve().parents[1] / "src" / PACKAGE


def test_every_layer_has_a_row_in_the_table() -> None:
    layers = {layer_of(name) for name in modules(SOURCE)} - {""}
    unknown = sorted(layers - MAY_IMPORT.keys())
    assert not unknown, f"say in MAY_IMPORT what these may import: {', '.join(unknown)}"


def test_every_import_is_allowed_by_the_table() -> None:
    found = trespasses(SOURCE)
    assert not found, "not allowed by MAY_IMPORT:\n  " + "\n  ".join(found)


def test_no_modules_import_each_other_in_a_circle() -> None:
    found = cycle(SOURCE)
    assert not found, "import cycle: " + " → ".join(found)


# The checker itself, on packages small enough to see.


def package(root: Path, **sources: str) -> Path:
    """A package with these modules; `domain__turn` is written to domain/turn.py."""
    home = root / PACKAGE
    home.mkdir()
    (home / "__init__.py").touch()
    for name, source in sources.items():
        path = home.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(source, encoding="utf-8")
    return home


@pytest.mark.parametrize(
    ("module", "source", "target"),
    [
        ("service__tasks", "from opencode_a2a.store import log", "store.log"),
        ("service__tasks", "import opencode_a2a.store.log as log", "store.log"),
        ("service__tasks", "from ..store.log import append", "store.log"),
        ("service__tasks", "def later():\n    from .. import store", "store"),
        ("web__auth", "from opencode_a2a.domain import Caller", "domain"),
        ("web__auth", "from opencode_a2a.domain.turn import Turn", "domain.turn"),
        ("domain__turn", "from opencode_a2a import __version__", ""),
    ],
)
def test_a_forbidden_import_of_ours_is_named(
    tmp_path: Path, module: str, source: str, target: str
) -> None:
    root = package(tmp_path, store__log="", domain__values="", **{module: source})
    importer = f"{PACKAGE}.{module.replace('__', '.')}"
    wanted = f"{PACKAGE}.{target}".rstrip(".")
    assert trespasses(root) == [f"{importer} imports {wanted} (line {len(source.splitlines())})"]


@pytest.mark.parametrize(
    "module",
    [
        *("pydantic.fields", "aiohttp", "asyncio", "http.client", "os", "pathlib", "socket"),
        *("sqlite3", "subprocess", "threading", "time", "urllib.request"),
    ],
)
def test_nothing_foreign_and_nothing_that_does_something_reaches_the_domain(
    tmp_path: Path, module: str
) -> None:
    source = f"import enum\nimport {module}"
    root = package(tmp_path, domain__turn=source, store__log=source)
    assert trespasses(root) == [f"{PACKAGE}.domain.turn imports {module} (line 2)"]


def test_what_the_table_allows_passes(tmp_path: Path) -> None:
    root = package(
        tmp_path,
        app="from . import cli, store, web",
        cli="from opencode_a2a import __version__",
        domain__values="from . import turn",
        domain__turn="",
        store__log="from opencode_a2a.domain import turn\nfrom ..errors import Expired",
        errors="",
        web__auth="from opencode_a2a.domain.values import Caller",
    )
    assert trespasses(root) == []
    assert cycle(root) == []


def test_a_cycle_is_shown_from_importer_to_imported(tmp_path: Path) -> None:
    root = package(
        tmp_path,
        domain__a="from .b import x",
        domain__b="from . import c",
        domain__c="import opencode_a2a.domain.a",
    )
    found = [name.rpartition(".")[2] for name in cycle(root)]
    assert found[0] == found[-1]
    assert "".join(found[:-1]) in {"abc", "bca", "cab"}
