"""Settings that people bring along from elsewhere: no start fails for a spelling."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel

from opencode_a2a.access import credentials_of
from opencode_a2a.cli import main
from opencode_a2a.config import ConfigError, Settings, load
from opencode_a2a.domain.scopes import DEFAULT_SCOPES, Scope
from opencode_a2a.spellings import database_url
from tests.cli.commands import called

SECRET = "a-secret-for-a-test"


@pytest.fixture(autouse=True)
def _nothing_else_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("A2A_", "OPENCODE_")):
            monkeypatch.delenv(name)


def loaded(monkeypatch: pytest.MonkeyPatch, **settings: str) -> Settings:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    return load()


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("INFO", "info"),
        ("Debug", "debug"),
        (" warning ", "warning"),
        ("WARN", "warning"),
        ("CRITICAL", "error"),
        ("error", "error"),
    ],
)
def test_a_log_level_may_be_written_in_any_case(
    monkeypatch: pytest.MonkeyPatch, said: str, meant: str
) -> None:
    assert loaded(monkeypatch, A2A_LOG_LEVEL=said).server.log_level == meant


@pytest.mark.parametrize(
    ("name", "said", "meant"),
    [
        ("A2A_TASK_STORE_BACKEND", "Memory", ("state", "backend", "memory")),
        ("A2A_PERMISSION_ALWAYS", "CONTEXT", ("server", "permission_always", "context")),
        ("A2A_ENABLE_SESSION_SHELL", "TRUE", ("server", "enable_session_shell", True)),
        ("A2A_ENABLE_SESSION_SHELL", "On", ("server", "enable_session_shell", True)),
        ("A2A_SHARED_SESSIONS", "No", ("server", "shared_sessions", False)),
        ("A2A_SANDBOX_MODE", "workspace-write", ("environment", "sandbox_mode", "workspace_write")),
        ("A2A_SANDBOX_MODE", "danger-full-access", ("environment", "sandbox_mode", "none")),
        ("A2A_NETWORK_ACCESS", "disabled", ("environment", "network_access", "none")),
        ("A2A_NETWORK_ACCESS", "Enabled", ("environment", "network_access", "unrestricted")),
        ("A2A_APPROVAL_POLICY", "on-request", ("environment", "approval_policy", "on_request")),
        ("A2A_APPROVAL_POLICY", "on-failure", ("environment", "approval_policy", "on_failure")),
        (
            "A2A_APPROVAL_ESCALATION_BEHAVIOR",
            "unsupported",
            ("environment", "approval_escalation_behavior", "none"),
        ),
        (
            "A2A_WRITE_ACCESS_SCOPE",
            "workspace_only",
            ("environment", "write_access_scope", "workspace"),
        ),
        (
            "A2A_WRITE_ACCESS_OUTSIDE_WORKSPACE",
            "disallowed",
            ("environment", "write_access_outside_workspace", "denied"),
        ),
        (
            "A2A_CLIENT_ALLOWED_HOSTS",
            "example.com, example.org",
            ("outbound", "allowed_hosts", ["example.com", "example.org"]),
        ),
        (
            "A2A_SANDBOX_WRITABLE_ROOTS",
            "/data,/more",
            ("environment", "sandbox_writable_roots", ["/data", "/more"]),
        ),
    ],
)
def test_words_and_lists_are_understood_as_they_are_written_elsewhere(
    monkeypatch: pytest.MonkeyPatch, name: str, said: str, meant: tuple[str, str, Any]
) -> None:
    group, field, value = meant
    assert getattr(getattr(loaded(monkeypatch, **{name: said}), group), field) == value


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("sqlite+aiosqlite:///./tasks.db", "sqlite:///./tasks.db"),
        ("sqlite+aiosqlite:////var/lib/tasks.db", "sqlite:////var/lib/tasks.db"),
        ("sqlite+pysqlite:////var/lib/tasks.db", "sqlite:////var/lib/tasks.db"),
        ("SQLite:////var/lib/tasks.db", "sqlite:////var/lib/tasks.db"),
        ("sqlite:////var/lib/tasks.db", "sqlite:////var/lib/tasks.db"),
    ],
)
def test_a_database_may_be_named_with_another_driver(
    monkeypatch: pytest.MonkeyPatch, said: str, meant: str
) -> None:
    assert loaded(monkeypatch, A2A_TASK_STORE_DATABASE_URL=said).state.database_url == meant


@pytest.mark.parametrize(
    "said",
    [
        "postgres://u:pass%40word@db/a2a",
        "postgresql://u:pass%40word@db/a2a",
        "postgresql+asyncpg://u:pass%40word@db/a2a?ssl=require",
        "postgresql+psycopg2://u:pass%40word@db/a2a",
    ],
)
def test_every_way_to_name_postgresql_means_the_driver_we_use(
    monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    if find_spec("psycopg") is None:
        with pytest.raises(ConfigError) as refused:
            loaded(monkeypatch, A2A_TASK_STORE_DATABASE_URL=said)
        (problem,) = refused.value.problems
        assert problem == (
            "A2A_TASK_STORE_DATABASE_URL: needs the Python package psycopg: "
            "pip install 'psycopg[binary]'"
        )
    else:
        found = loaded(monkeypatch, A2A_TASK_STORE_DATABASE_URL=said).state.database_url
        more = "?sslmode=require" if "ssl=" in said else ""
        assert found == f"postgresql+psycopg://u:pass%40word@db/a2a{more}"


@pytest.mark.parametrize(
    ("query", "mode"),
    [("ssl=true", "require"), ("ssl=prefer&ssl=true", "require"), ("ssl=true&ssl=false", "false")],
)
def test_the_last_of_several_values_counts(query: str, mode: str) -> None:
    class Database(BaseModel):
        url: Annotated[str, AfterValidator(database_url)]

    found = Database(url=f"postgresql+asyncpg://u@db/a2a?{query}").url
    assert found == f"postgresql+psycopg://u@db/a2a?sslmode={mode}"


def test_the_credentials_of_other_configurations_are_understood(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entries: list[dict[str, object]] = [
        {"credential_id": "one", "scheme": "Bearer", "token": SECRET, "principal": "ci"},
        {"credential_id": "two", "scheme": "basic", "username": "ada", "password": SECRET},
        {
            "scheme": "bearer",
            "token": f"{SECRET}-2",
            "principal": "ops",
            "capabilities": ["session_shell", "workspace_mutation"],
        },
        {"scheme": "bearer", "token": f"{SECRET}-3", "principal": "gone", "enabled": False},
    ]
    settings = loaded(monkeypatch, A2A_STATIC_AUTH_CREDENTIALS=json.dumps(entries))
    callers = {c.caller.principal: c.caller.scopes for c in credentials_of(settings).known}
    everything = {*DEFAULT_SCOPES, Scope.SESSIONS_SHELL, Scope.WORKSPACES_WRITE}
    assert callers == {"ci": {*DEFAULT_SCOPES}, "ada": {*DEFAULT_SCOPES}, "ops": everything}


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"scheme": "bearer", "token": SECRET}, ".0.principal: Field required"),
        (
            {"scheme": "bearer", "token": SECRET, "principal": "x", "capabilities": ["all"]},
            ".0.capabilities.0: must be 'session_shell' or 'workspace_mutation'",
        ),
        (
            {
                "scheme": "bearer",
                "token": SECRET,
                "principal": "x",
                "scopes": ["tasks:read"],
                "capabilities": ["session_shell"],
            },
            ".0: scopes and capabilities say the same; keep scopes",
        ),
    ],
)
def test_what_is_wrong_with_a_credential_is_still_said(
    monkeypatch: pytest.MonkeyPatch, entry: dict[str, object], problem: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        loaded(monkeypatch, A2A_STATIC_AUTH_CREDENTIALS=json.dumps([entry]))
    assert refused.value.problems == [f"A2A_STATIC_AUTH_CREDENTIALS{problem}"]


def test_only_switched_off_credentials_are_none(capsys: pytest.CaptureFixture[str]) -> None:
    off = [{"scheme": "bearer", "token": SECRET, "principal": "x", "enabled": False}]
    settings = {
        "OPENCODE_BASE_URL": "http://127.0.0.1:9",
        "A2A_STATIC_AUTH_CREDENTIALS": json.dumps(off),
    }
    ran = called(main, ["serve"], settings, capsys)
    assert ran.code == 2
    assert "no credential is configured" in ran.err


ELSEWHERE = (
    "A2A_ALLOWED_ORIGINS",
    "A2A_CLIENT_POLLING_FALLBACK_ENABLED",
    "A2A_METRICS_ENABLED",
    "A2A_PROTOCOL_VERSION",
    "A2A_RATE_LIMIT_ENABLED",
    "A2A_STREAM_MAX_BYTES",
    "A2A_VERSION",
)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_setting_that_is_not_ours_is_not_taken_for_a_misspelt_one(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """It used to be told to become another, such as the bearer token of everybody who calls."""
    loaded(monkeypatch, **{name: "x"})


def test_what_was_understood_differently_is_logged_without_a_secret(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    settings = {
        "OPENCODE_BASE_URL": "http://127.0.0.1:9",
        "A2A_LOG_LEVEL": "INFO",
        "A2A_TASK_STORE_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/{SECRET}.db",
        "A2A_NETWORK_ACCESS": "disabled",
    }
    ran = called(main, ["serve"], settings, capsys)
    told = [line for line in ran.err.splitlines() if "event=settings.adapted" in line]
    assert [line.partition("name=")[2] for line in told] == [
        "A2A_LOG_LEVEL note=\"'INFO' is taken as 'info'\"",
        'A2A_TASK_STORE_DATABASE_URL note="sqlite+aiosqlite is taken as sqlite"',
        "A2A_NETWORK_ACCESS note=\"'disabled' is taken as 'none'\"",
    ]
    assert SECRET not in ran.err


def test_a_database_of_another_program_is_left_alone(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Such as the one that the SDK's task store leaves where a brought-along URL points."""
    file = tmp_path / "tasks.db"
    with closing(sqlite3.connect(file)) as other, other:
        other.execute("CREATE TABLE tasks (id VARCHAR(36) PRIMARY KEY, kind VARCHAR(16))")
        other.execute("INSERT INTO tasks VALUES ('1', 'task')")
    settings = {
        "OPENCODE_BASE_URL": "http://127.0.0.1:9",
        "A2A_PORT": "0",
        "A2A_BEARER_TOKEN": SECRET,
        "A2A_LOG_LEVEL": "error",
        "A2A_TASK_STORE_DATABASE_URL": f"sqlite+aiosqlite:///{file}",
    }
    ran = called(main, ["serve"], settings, capsys)
    assert ran.code == 1
    (problem,) = ran.problems
    assert "another program" in problem
    assert "A2A_TASK_STORE_DATABASE_URL" in problem
    with closing(sqlite3.connect(file)) as other, other:
        assert other.execute("SELECT * FROM tasks").fetchall() == [("1", "task")]
        assert [name for (name,) in other.execute("SELECT name FROM sqlite_master")] == [
            "tasks",
            "sqlite_autoindex_tasks_1",
        ]
