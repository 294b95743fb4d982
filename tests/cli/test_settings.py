"""Wrong settings and wrong usage: every problem in a line, no secret in any, and exit code 2."""

from __future__ import annotations

import json
import socket
import stat
import subprocess
from pathlib import Path

import pytest

from opencode_a2a.app import public_url
from opencode_a2a.cli import main
from opencode_a2a.config import ConfigError, Server, State, load
from tests.cli.commands import called, run

Capture = pytest.CaptureFixture[str]
SECRET = "s3cret-t0ken"
FINE = {
    "OPENCODE_BASE_URL": "http://127.0.0.1:9",
    "A2A_BEARER_TOKEN": "long-enough-a-token",
    "A2A_PORT": "0",
}


def test_every_problem_has_its_line_with_name_value_and_what_is_allowed(tmp_path: Path) -> None:
    ran = run(
        tmp_path,
        "opencode-a2a",
        "serve",
        A2A_STATIC_AUTH_CREDENTIALS=f'[{{"scheme": "bearer", "token": "{SECRET}"',
        A2A_PORT="99999",
        A2A_LOG_LEVEL="loud",
        A2A_MAX_QUEUED_TASKS="many",
        A2A_CLIENT_ALLOWED_HOSTS='["example.com"',
        A2A_TASK_STORE_DATABASE_URL=f"nonsense:{SECRET}",
        OPENCODE_BASE_URL="ftp://host",
        OPENCODE_TIMEOUT="-1",
        OPENCODE_WORKSPACE_ROOT="/nowhere",
    )
    assert ran.code == 2
    assert sorted(ran.problems) == [
        "A2A_CLIENT_ALLOWED_HOSTS: is '[\"example.com\"', must be JSON; at character 14: Expecting "
        "',' delimiter",
        "A2A_LOG_LEVEL: is 'loud', must be 'debug', 'info', 'warning' or 'error'",
        "A2A_MAX_QUEUED_TASKS: is 'many', must be a valid integer",
        "A2A_PORT: is '99999', must be less than or equal to 65535",
        "A2A_STATIC_AUTH_CREDENTIALS: must be JSON; at character 45: Expecting ',' delimiter",
        "A2A_TASK_STORE_DATABASE_URL: must be a URL such as sqlite:////var/lib/a2a/tasks.db",
        "OPENCODE_BASE_URL: is 'ftp://host', must be an http or https URL",
        "OPENCODE_TIMEOUT: is '-1', must be greater than 0",
        "OPENCODE_WORKSPACE_ROOT: is '/nowhere', must be an existing directory",
    ]


def bearer(**members: object) -> dict[str, object]:
    return {"scheme": "bearer", "token": SECRET, "principal": "someone", **members}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (json.dumps([bearer()])[:-2], ": must be JSON; at character "),
        (json.dumps(bearer()), ": must be a valid list"),
        (json.dumps(SECRET), ": must be a valid list"),
        (json.dumps([bearer(), bearer(principal="other")]), ": the same token stands for two"),
        (json.dumps([bearer(scopes=[SECRET])]), ".0.scopes.0: must be 'tasks:read', 'tasks"),
        (json.dumps([bearer(tokn=SECRET)]), ".0.tokn: there is no such setting"),
        (
            json.dumps([{**bearer(), "scheme": SECRET}]),
            ".0.scheme: must be 'bearer', 'basic' or 'api_key'",
        ),
        (json.dumps([{**bearer(), "token": [SECRET]}]), ".0.token: must be a valid string"),
        (json.dumps([{**bearer(), "scheme": "basic"}]), ".0: a basic credential needs a username"),
    ],
)
def test_credentials_are_never_repeated(
    monkeypatch: pytest.MonkeyPatch, value: str, problem: str
) -> None:
    monkeypatch.setenv("A2A_STATIC_AUTH_CREDENTIALS", value)
    with pytest.raises(ConfigError) as error:
        load()
    (line,) = error.value.problems
    assert line.startswith(f"A2A_STATIC_AUTH_CREDENTIALS{problem}")
    assert SECRET not in line


def test_a_login_of_the_console_needs_an_issuer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A2A_CONSOLE_OIDC_CLIENT_ID", "console")
    with pytest.raises(ConfigError) as error:
        load()
    (line,) = error.value.problems
    assert line.startswith("A2A_CONSOLE_OIDC_CLIENT_ID: needs A2A_OIDC_ISSUER")


def test_a_settings_file_is_read_strictly(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(
        f"""
        loose = 1
        [a2a]
        prot = 1
        port = "x"
        bearer_token = ["{SECRET}"]
        _env_file = ".env"
        [nosuch]
        a = 1
        [client]
        allowed_hosts = '"example.com"'
        """
    )
    ran = called(main, ["serve", "--config", str(file)], {}, capsys)
    assert ran.code == 2
    assert sorted(ran.problems) == [
        f"{file}: loose stands outside any table",
        "A2A_BEARER_TOKEN: must be a valid string",
        "A2A_CLIENT_ALLOWED_HOSTS: is 'example.com', must be a valid list",
        "A2A_PORT: is 'x', must be a valid integer",
        "[a2a] _env_file: there is no such setting",
        "[a2a] prot: there is no such setting; did you mean port?",
        "[nosuch]: no such table; there are [a2a], [client], [environment], [limits], [node], "
        "[oidc], [opencode], [peers], [roles], [task_store]",
    ]


def test_files_that_cannot_be_read_are_named(tmp_path: Path, capsys: Capture) -> None:
    none, broken = str(tmp_path / "none"), tmp_path / "broken.toml"
    ran = called(main, ["serve", "--config", none, "--secrets", none], {}, capsys)
    assert ran.code == 2
    assert ran.problems == [
        f"{none}: cannot be read (No such file or directory)",
        f"secrets directory {none}: does not exist",
    ]
    broken.write_text("[a2a\nport = 1\n")
    ran = called(main, ["serve", "--config", str(broken)], {}, capsys)
    assert ran.code == 2
    (problem,) = ran.problems
    assert problem.startswith(f"{broken}: ")
    assert "line 1" in problem


def test_secret_files_that_cannot_be_read_are_named(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "a2a_bearer_token").write_bytes(b"\xff\xfe")
    (tmp_path / "OPENCODE_AUTH_PASSWORD").mkdir()
    (tmp_path / "another_services").write_bytes(b"\xff\xfe")
    ran = called(main, ["serve", "--secrets", str(tmp_path)], FINE, capsys)
    assert ran.code == 2
    assert ran.problems == [
        f"{tmp_path}/OPENCODE_AUTH_PASSWORD: cannot be read (Is a directory)",
        f"{tmp_path}/a2a_bearer_token: must be UTF-8 text",
    ]


@pytest.mark.parametrize("port", ["99999", "abc", "-1"])
def test_a_port_that_cannot_be_is_refused_in_a_url(port: str, capsys: Capture) -> None:
    url = f"http://127.0.0.1:{port}"
    ran = called(main, ["serve"], FINE | {"OPENCODE_BASE_URL": url}, capsys)
    assert ran.code == 2
    assert ran.problems == [
        f"OPENCODE_BASE_URL: is '{url}', must have a port from 0 to 65535, or none"
    ]


def test_a_state_directory_that_cannot_be_had_is_a_problem_in_a_line(
    tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "file").touch()
    settings = FINE | {"XDG_STATE_HOME": str(tmp_path / "file"), "A2A_LOG_LEVEL": "error"}
    ran = called(main, ["serve"], settings, capsys)
    assert ran.code == 2
    assert ran.problems == [
        "A2A_TASK_STORE_DATABASE_URL: is not set, and the default directory cannot be used: "
        f"{tmp_path}/file/opencode-a2a: Not a directory"
    ]


@pytest.mark.parametrize("part", [".git", ".git/hooks", "bare"])
def test_a_git_directory_is_no_workspace(tmp_path: Path, capsys: Capture, part: str) -> None:
    for folder in (".git/hooks", "bare/objects", "bare/refs"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "bare" / "HEAD").touch()
    named = {"OPENCODE_WORKSPACE_ROOT": str(tmp_path / part)}
    ran = called(main, ["serve"], FINE | named, capsys)
    assert ran.code == 2
    (problem,) = ran.problems
    assert problem.startswith("OPENCODE_WORKSPACE_ROOT: is ")
    assert "inside a git directory" in problem


def test_the_state_of_a_root_is_in_a_private_folder_that_a_person_recognises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    roots = [
        Path(name) for name in ("/home/ann/my project", "/home/bob/my project", "/", "/語言/Straße")
    ]
    folders = [State().folder(root) for root in roots]
    names = [folder.name for folder in folders]
    assert [name.rpartition("-")[0] for name in names] == [
        "my-project",
        "my-project",
        "root",
        "Straße",
    ]
    assert len(set(names)) == len(roots)
    assert all(stat.S_IMODE(folder.stat().st_mode) == 0o700 for folder in folders)
    assert State().url(roots[0]) == f"sqlite:///{folders[0]}/tasks.db"
    folders[0].chmod(0o755)
    assert stat.S_IMODE(State().folder(roots[0]).stat().st_mode) == 0o700


def test_a_name_that_is_no_setting_stops_the_start(capsys: Capture) -> None:
    unknown = {"A2A_FROBNICATE": SECRET, "OPENCODE_BASE_ULR": "OpenCode's own, for all we know"}
    ran = called(main, ["serve"], FINE | unknown | {"A2A_PROT": "1", "a2a_titel": SECRET}, capsys)
    assert ran.code == 2
    assert ran.problems == [
        "A2A_FROBNICATE: there is no such setting",
        "A2A_PROT: there is no such setting; did you mean A2A_PORT?",
        "a2a_titel: there is no such setting; did you mean A2A_TITLE?",
    ]
    assert SECRET not in ran.err


def test_serving_needs_a_credential(capsys: Capture) -> None:
    anyone = called(main, ["serve"], FINE | {"A2A_BEARER_TOKEN": ""}, capsys)
    assert anyone.code == 2
    assert "A2A_BEARER_TOKEN" in anyone.problems[0]
    assert "A2A_STATIC_AUTH_CREDENTIALS" in anyone.problems[0]


@pytest.mark.parametrize(
    ("host", "url"),
    [("::1", "http://[::1]:80"), ("::", "http://[::1]:80"), ("0.0.0.0", "http://127.0.0.1:80")],
)
def test_the_address_in_the_card_can_be_connected_to(host: str, url: str) -> None:
    assert public_url(Server(host=host), 80) == url


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_a_secret_that_can_be_guessed_is_refused_beyond_loopback(
    host: str, capsys: Capture
) -> None:
    credentials = [
        {"scheme": "bearer", "principal": "a", "token": "x" * 15},
        {"scheme": "bearer", "principal": "b", "token": "x" * 16},
        {"scheme": "basic", "principal": "c", "username": "c", "password": "hush"},
    ]
    settings = {
        "A2A_HOST": host,
        "A2A_BEARER_TOKEN": "short-token",
        "A2A_STATIC_AUTH_CREDENTIALS": json.dumps(credentials),
    }
    ran = called(main, ["serve"], FINE | settings, capsys)
    assert ran.code == 2
    names = [
        "BEARER_TOKEN",
        "STATIC_AUTH_CREDENTIALS.0.token",
        "STATIC_AUTH_CREDENTIALS.2.password",
    ]
    assert [problem.partition(": ")[0] for problem in ran.problems] == [
        f"A2A_{name}" for name in names
    ]
    for problem in ran.problems:
        assert "shorter than 16 characters" in problem
        assert f"A2A_HOST is {host}" in problem
    (command,) = {problem.partition("Make a better one: ")[2] for problem in ran.problems}
    made = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert len(made.stdout.strip()) >= 32
    assert not {"short-token", "hush", "x" * 15} & set(ran.err.split())


@pytest.mark.parametrize("url", ["https://agent.example.com", "http://192.0.2.1:8000/base"])
def test_a_secret_that_can_be_guessed_is_refused_behind_a_proxy(url: str, capsys: Capture) -> None:
    settings = {
        "A2A_HOST": "127.0.0.1",
        "A2A_PUBLIC_URL": url,
        "A2A_BEARER_TOKEN": "short",
    }
    ran = called(main, ["serve"], FINE | settings, capsys)
    assert ran.code == 2
    (problem,) = ran.problems
    assert problem.startswith("A2A_BEARER_TOKEN: is shorter than 16 characters")
    assert f"A2A_PUBLIC_URL is {url} rather than a loopback address" in problem
    for local in ("http://localhost:8000", "http://127.0.0.1:8000", "http://[::1]:8000"):
        ran = called(main, ["up"], FINE | settings | {"A2A_PUBLIC_URL": local}, capsys)
        assert "event=credentials.short" in ran.err


def test_padding_makes_no_secret_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    login = {"scheme": "basic", "username": "c", "password": " " * 8 + "hush" + " " * 8}
    monkeypatch.setenv("A2A_STATIC_AUTH_CREDENTIALS", json.dumps([login]))
    assert load().server.short_secrets == ["A2A_STATIC_AUTH_CREDENTIALS.0.password"]


@pytest.mark.parametrize("token", [f" {SECRET}", f"{SECRET}\n", f"\t{SECRET} "])
def test_a_token_that_no_header_can_carry_is_refused(
    monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setenv("A2A_BEARER_TOKEN", token)
    monkeypatch.setenv("A2A_STATIC_AUTH_CREDENTIALS", json.dumps([bearer(token=token)]))
    with pytest.raises(ConfigError) as error:
        load()
    must = "must not begin or end with a space or a line break"
    assert error.value.problems == [
        f"A2A_BEARER_TOKEN: {must}",
        f"A2A_STATIC_AUTH_CREDENTIALS.0.token: {must}",
    ]


def test_a_disabled_credential_counts_where_it_stands_and_its_secret_is_kept_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entries = [bearer(token="disabled", enabled=False), bearer(token="short")]
    monkeypatch.setenv("A2A_STATIC_AUTH_CREDENTIALS", json.dumps(entries))
    settings = load()
    assert len(settings.server.enabled_credentials) == 1
    assert settings.server.short_secrets == ["A2A_STATIC_AUTH_CREDENTIALS.1.token"]
    assert {"disabled", "short"} <= set(settings.secrets)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:p@ss:w0rdSECRET@host/db",
        "postgresql+psycopg://user:p@ss:w0rdSECRET@host/db",
    ],
)
def test_a_database_url_that_is_split_wrongly_shows_nothing_of_its_password(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("A2A_TASK_STORE_DATABASE_URL", url)
    with pytest.raises(ConfigError) as error:
        load()
    assert error.value.problems == [
        "A2A_TASK_STORE_DATABASE_URL: the port must be a number; percent-encode @ : / in the "
        "password"
    ]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_a_secret_that_can_be_guessed_is_warned_about_on_loopback(
    host: str, capsys: Capture
) -> None:
    settings = {"A2A_HOST": host, "A2A_BEARER_TOKEN": "hush"}
    ran = called(main, ["up"], FINE | settings, capsys)
    warning, problem = ran.err.splitlines()
    assert "level=warning event=credentials.short names=A2A_BEARER_TOKEN" in warning
    assert "secrets.token_urlsafe(32)" in warning
    assert "OPENCODE_BASE_URL is set" in problem
    assert "hush" not in ran.err
    ran = called(main, ["up"], FINE | {"A2A_HOST": host}, capsys)
    assert len(ran.err.splitlines()) == 1


def test_up_does_not_pretend_to_use_an_opencode_that_runs(capsys: Capture) -> None:
    ran = called(main, ["up"], FINE, capsys)
    assert ran.code == 2
    (problem,) = ran.problems
    assert "OPENCODE_BASE_URL" in problem
    assert "opencode-a2a serve" in problem


def test_a_port_in_use_is_said_with_what_to_do(capsys: Capture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ran = called(main, ["serve"], FINE | {"A2A_PORT": port}, capsys)
    assert ran.code == 1
    (problem,) = ran.problems
    assert port in problem
    assert "ddress already in use" in problem
    assert "A2A_PORT" in problem


def test_a_store_that_cannot_be_opened_is_said_with_what_to_do(capsys: Capture) -> None:
    store = {"A2A_TASK_STORE_DATABASE_URL": "sqlite:////nowhere/tasks.db"}
    ran = called(main, ["serve"], FINE | store, capsys)
    assert ran.code == 1
    assert "unable to open database file" in ran.err
    assert "A2A_TASK_STORE_DATABASE_URL" in ran.err
    assert "Traceback" not in ran.err


def test_an_opencode_that_is_not_installed_is_said_with_what_to_do(capsys: Capture) -> None:
    settings = {"A2A_PORT": "0", "OPENCODE_COMMAND": "/nowhere/opencode"}
    ran = called(main, ["up"], settings, capsys)
    assert ran.code == 1
    for words in ("/nowhere/opencode", "npm install", "OPENCODE_COMMAND"):
        assert words in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_payloads_that_the_level_hides_are_warned_about(level: str, capsys: Capture) -> None:
    settings = FINE | {"A2A_BEARER_TOKEN": "", "A2A_LOG_PAYLOADS": "true", "A2A_LOG_LEVEL": level}
    ran = called(main, ["serve"], settings, capsys)
    assert ("event=payloads.not_logged" in ran.err) == (level == "warning")
