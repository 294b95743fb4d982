"""One real OpenCode, one fake one, and one service on each, shared by the tests of a run."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from opencode_a2a import logs
from tests import logging_for_tests
from tests.postgres import Postgres, why_not
from tests.running import ROOT, Service, Upstream, fake_opencode, real_opencode, service
from tests.units import UnitScheduling, place_of

# Time says something about the machine, not about a test. An ordinary run tries the same examples
# every time; FUZZ_EXAMPLES=5000 looks longer, and at other ones.
settings.register_profile(
    "busy machine",
    deadline=None,
    derandomize="FUZZ_EXAMPLES" not in os.environ,
    max_examples=int(os.environ.get("FUZZ_EXAMPLES", "50")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("busy machine")
logging_for_tests.configure()

# The tests here start OpenCode or a service, and those on PostgreSQL (all in tests/store) start its
# server. All others are the quick part (`make quick`).
STORE = f"{ROOT}/tests/store/"
PROCESSES = tuple(
    f"{ROOT}/tests/{name}"
    for name in (
        "access/",
        "api/",
        "bench/",
        "budgets/",
        "chaos/",
        "cli/test_call.py",
        "cli/test_push.py",
        "cli/test_reload.py",
        "cli/test_serve.py",
        "cli/test_start.py",
        "cli/test_terminal.py",
        "console/",
        "cli/test_up.py",
        "cli/test_usage.py",
        "conformance/",
        "deploy/test_light.py",
        "doctor/test_command.py",
        "doctor/test_service.py",
        "e2e/",
        "exhaustion/",
        "extensions/",
        "fakes/test_fake_opencode.py",
        "faults/",
        "load/",
        "observe/test_prometheus.py",
        "observe/test_restart.py",
        "observe/test_service.py",
        "opencode/test_agent.py",
        "opencode/test_guard.py",
        "opencode/test_process.py",
        "store/test_encryption.py",
    )
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", choices=("quick", "processes"), help="run only this part")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the other part without importing it; None lets pytest decide as usual."""
    part = config.getoption("part")
    if part is None or collection_path.is_dir() or str(collection_path).startswith(STORE):
        return None
    return None if _starts_processes(collection_path) is (part == "processes") else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The same for single tests, and for files that are named as arguments."""
    part = config.getoption("part")
    if part is not None:
        wanted = part == "processes"
        items[:] = [i for i in items if (_starts_processes(i.path) or _on_postgres(i)) is wanted]
    if part == "processes":
        items.sort(key=lambda item: place_of(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object | None:
    return UnitScheduling(config, log) if config.getoption("part") == "processes" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Count no lines while hypothesis tries examples: they run the same ones thousands of times.

    The marker `no_cover` of pytest-cov would do, but not in a worker of xdist: there a second
    tracer takes the place of the one it stops.
    """
    assert isinstance(item, pytest.Function)
    tracer = sys.gettrace()
    if tracer is None or not hasattr(item.obj, "is_hypothesis_test"):
        return (yield)
    sys.settrace(None)
    try:
        return (yield)
    finally:
        sys.settrace(tracer)


def pytest_configure() -> None:
    """Shells let what they run in the background ignore Ctrl-C, and so would all it starts.

    The same is so of hangups, with nohup.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def forget_secrets() -> Iterator[None]:
    """What one test makes a secret is an ordinary word in the next."""
    before = dict(vars(logs.redactor))
    before["_forms"] = set(before["_forms"])
    yield
    vars(logs.redactor).update(before)


def pytest_runtest_teardown() -> None:
    """A test that lets SIGPIPE end this process fails here, and not whichever cuts a connection.

    Nothing would be told of the end of a worker but which test it was at.
    """
    if signal.getsignal(signal.SIGPIPE) is not signal.SIG_IGN:
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        pytest.fail("SIGPIPE would end this process: Python ignores it, and so must the test")


def _starts_processes(path: Path) -> bool:
    return str(path).startswith(PROCESSES)


def _on_postgres(item: pytest.Item) -> bool:
    assert isinstance(item, pytest.Function)
    params = item.callspec.params if hasattr(item, "callspec") else {}
    return "postgres" in item.fixturenames or "postgres" in params.values()


@pytest.fixture(scope="session")
def opencode(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
    """The real OpenCode on the scripted model; bash and edits are allowed, and `seer` can see.

    Without snapshots, which are half the work of a prompt, it cannot tell what a turn changed.
    """
    seer = {"mode": "primary", "model": "demo/demo-vision"}
    with real_opencode(
        tmp_path_factory.mktemp("opencode"), agent={"seer": seer}, snapshot=False
    ) as upstream:
        yield upstream


@pytest.fixture(scope="session")
def asking_opencode(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
    """A real OpenCode that asks before it runs a command or edits a file; without snapshots."""
    permission = dict.fromkeys(("bash", "edit", "external_directory"), "ask")
    with real_opencode(
        tmp_path_factory.mktemp("asking"), permission=permission, snapshot=False
    ) as upstream:
        yield upstream


@pytest.fixture(scope="session")
def real_service(opencode: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """`opencode-a2a serve` on the real OpenCode."""
    with service(opencode, tmp_path_factory.mktemp("service")) as running:
        yield running


@pytest.fixture(scope="session")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
    """A fast fake OpenCode, for speed and faults."""
    with fake_opencode(tmp_path_factory.mktemp("fake")) as upstream:
        yield upstream


@pytest.fixture(scope="session")
def fake_service(fake: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """`opencode-a2a serve` on the fake OpenCode."""
    with service(fake, tmp_path_factory.mktemp("service-on-fake")) as running:
        yield running


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL server, if one can be had here."""
    if reason := why_not():
        pytest.skip(reason)
    with Postgres.started() as server:
        yield server
