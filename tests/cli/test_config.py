"""`config show`, `config check` and `config example`; and `status --ready`."""

from __future__ import annotations

import http.server
import json
import re
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from opencode_a2a.cli import main
from opencode_a2a.cli.failure import CommandError
from opencode_a2a.cli.up import complete
from opencode_a2a.config import (
    PEERS_TABLE,
    ROLES_TABLE,
    TABLES,
    CallerLimits,
    ConfigError,
    PeerSetting,
    has_copied_credentials,
    load,
    setting_name,
)
from tests.cli.commands import Ran, called

Capture = pytest.CaptureFixture[str]
NAMES = [setting_name(kind, field) for kind in TABLES for field in kind.model_fields]
SECRETS = {
    "A2A_BEARER_TOKEN": "first-secret-0123456789",
    "A2A_STATIC_AUTH_CREDENTIALS": json.dumps(
        [
            {"scheme": "bearer", "token": "second-secret-0123456789", "principal": "alice"},
            {"scheme": "basic", "username": "bob", "password": "third-secret-0123456789"},
            {
                "scheme": "bearer",
                "token": "fourth-secret-0123456789",
                "principal": "carol",
                "enabled": False,
            },
        ]
    ),
    "OPENCODE_AUTH_PASSWORD": "fifth-secret-0123456789",
    "A2A_CLIENT_BASIC_AUTH": "me:sixth-secret-0123456789",
    "A2A_TASK_STORE_DATABASE_URL": "sqlite:///tasks.db?password=seventh-secret-0123456789",
    "OPENCODE_BASE_URL": "http://me:eighth-secret@127.0.0.1:4096",
}
PEER = """
[peers.reviewer]
url = "https://agent.example.com"
bearer_token = "env:REVIEWER_TOKEN"
headers = { x-key = "ninth-secret" }
"""


def shown(capture: Capture, *words: str, **settings: str) -> dict[str, tuple[object, str]]:
    """Value and origin of each setting."""
    ran = called(main, ["config", "show", "--json", *words], settings, capture)
    assert (ran.code, ran.err) == (0, "")
    return {each["name"]: (each["value"], each["origin"]) for each in json.loads(ran.out)}


def checked(capture: Capture, *words: str, **settings: str) -> Ran:
    return called(main, ["config", "check", *words], settings, capture)


def example(capture: Capture) -> str:
    ran = called(main, ["config", "example"], {}, capture)
    assert (ran.code, ran.err) == (0, "")
    return ran.out


# -- show


def test_every_setting_is_shown_with_its_default(capsys: Capture) -> None:
    found = shown(capsys)
    assert list(found) == NAMES
    assert {origin for _, origin in found.values()} == {"default"}
    assert found["A2A_PORT"] == (8000, "default")
    table = called(main, ["config", "show"], {}, capsys).out.splitlines()
    assert [line.split()[0] for line in table] == ["SETTING", *NAMES]
    assert "A2A_PORT" in "\n".join(table)


def test_each_value_says_where_it_comes_from(tmp_path: Path, capsys: Capture) -> None:
    toml, secrets = tmp_path / "settings.toml", tmp_path / "secrets"
    toml.write_text('[a2a]\nport = 1\ntitle = "toml"\ndescription = "toml"\n[client]\n' + PEER)
    secrets.mkdir()
    (secrets / "A2A_port").write_text("2")
    (secrets / "a2a_title").write_text("secret\n")
    words = ("--config", str(toml), "--secrets", str(secrets))
    found = shown(capsys, *words, "--changed", a2a_port="3", A2A_HOST="")
    assert found == {
        "A2A_PORT": (3, "environment"),
        "A2A_TITLE": ("secret", str(secrets / "a2a_title")),
        "A2A_DESCRIPTION": ("toml", str(toml)),
        "peers.reviewer.url": ("https://agent.example.com", str(toml)),
        "peers.reviewer.bearer_token": ("env:REVIEWER_TOKEN", str(toml)),
        "peers.reviewer.headers": ({"x-key": "**********"}, str(toml)),
    }


def test_no_secret_is_shown(tmp_path: Path, capsys: Capture) -> None:
    toml = tmp_path / "settings.toml"
    toml.write_text(PEER)
    for words in ([], ["--json"]):
        ran = called(main, ["config", "show", "--config", str(toml), *words], SECRETS, capsys)
        assert ran.code == 0
        assert "-secret" not in ran.out
        assert "carol" in ran.out, "also who is not enabled"


# -- check


def test_fine_settings_are_fine(capsys: Capture) -> None:
    settings = {"A2A_BEARER_TOKEN": "long-enough-a-token", "A2A_PEER_OTHER": "for [peers.other]"}
    assert checked(capsys, **settings) == Ran(0, "The settings are fine.\n", "")


def test_each_problem_has_a_line_and_unknown_settings_are_named(
    tmp_path: Path, capsys: Capture
) -> None:
    toml, secrets = tmp_path / "settings.toml", tmp_path / "secrets"
    toml.write_text("[a2a]\nprot = 1\n[clinet]\n")
    secrets.mkdir()
    (secrets / "a2a_baerer_token").write_text("x")
    words = ("--config", str(toml), "--secrets", str(secrets))
    ran = checked(capsys, *words, A2A_PORT="x", A2A_LOG_LEVL="info")
    assert ran.code == 2
    assert sorted(ran.problems) == [
        "A2A_LOG_LEVL: there is no such setting; did you mean A2A_LOG_LEVEL?",
        "A2A_PORT: is 'x', must be a valid integer",
        "[a2a] prot: there is no such setting; did you mean port?",
        "[clinet]: no such table; there are [a2a], [client], [environment], [limits], [node], "
        "[oidc], [opencode], [peers], [roles], [task_store]",
        "a2a_baerer_token: there is no such setting; did you mean A2A_BEARER_TOKEN?",
    ]


def test_what_the_service_would_start_with_is_a_warning(capsys: Capture) -> None:
    ran = checked(capsys, A2A_BEARER_TOKEN="short")
    assert ran.code == 0
    assert [line.split()[:2] for line in ran.problems] == [
        ["warning:", "A2A_BEARER_TOKEN:"],
    ]
    assert "`serve` refuses" in checked(capsys).err


# -- example


def uncommented(text: str) -> str:
    """With every setting switched on that has a value; secrets have none."""
    return re.sub(r"^#(?=\[|\w+ = (?!\"\"$))", "", text, flags=re.MULTILINE)


def test_the_example_has_every_setting_and_is_accepted_as_it_is(
    tmp_path: Path, capsys: Capture
) -> None:
    text = example(capsys)
    assert tomllib.loads(text) == {table: {} for table in TABLES.values()}
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if table := re.match(r"#?\[(\w+)", line):
            found.setdefault(table[1], [])
        elif setting := re.match(r"#(\w+) = ", line):
            list(found.values())[-1].append(setting[1])
    expected = {table: list(kind.model_fields) for kind, table in TABLES.items()}
    more = {ROLES_TABLE: ["auditor"], PEERS_TABLE: list(PeerSetting.model_fields)}
    more["limits"] = list(CallerLimits.model_fields)
    assert found == expected | more
    file = tmp_path / "settings.toml"
    file.write_text(text)
    ran = checked(capsys, "--config", str(file), A2A_BEARER_TOKEN="long-enough-a-token")
    assert ran == Ran(0, "The settings are fine.\n", "")


def test_the_values_of_the_example_are_the_defaults(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = uncommented(example(capsys))
    # A peer has one credential, and a file for its login.
    text = re.sub(r"^(?:basic_auth|api_key) = .*$", "", text, flags=re.MULTILINE)
    file = tmp_path / "settings.toml"
    file.write_text(text)
    default, given = load(), load(file)
    for before, after in zip(default.groups, given.groups, strict=True):
        for name, value in before:
            if value is not None:
                assert getattr(after, name) == value
    changed = set(default.changed(given))
    has_example = {
        setting_name(kind, name)
        for kind in TABLES
        for name, field in kind.model_fields.items()
        if (field.default is None and field.repr) or name == "database_url"
    }
    assert changed == has_example | {"[peers.NAME]", "[roles]", "[limits.NAME]"}


# -- status --ready


@contextmanager
def answering(status: int) -> Iterator[str]:
    """A service that answers every request with this status."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/ready" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def test_a_service_that_can_work_is_ready(capsys: Capture) -> None:
    with answering(200) as url:
        main(["status", "--ready", url])
        assert capsys.readouterr().out == "ready\n"


def test_it_is_found_by_the_settings_of_its_environment(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(200) as url:
        monkeypatch.setenv("A2A_HOST", "0.0.0.0")
        monkeypatch.setenv("A2A_PORT", url.rpartition(":")[2])
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
        main(["status", "--ready"])
        assert capsys.readouterr().out == "ready\n"


def test_a_service_that_cannot_work_or_answer_is_not_ready(capsys: Capture) -> None:
    with answering(503) as url:
        ran = called(main, ["status", "--ready", url], {}, capsys)
        assert (ran.code, ran.out) == (1, "")
        assert ran.problems == [f"{url} is not ready: it lacks its store or OpenCode"]
    ran = called(main, ["status", "--ready", url], {}, capsys)
    assert ran.code == 1
    assert ran.problems[0].startswith(f"{url} does not answer: ")
    ran = called(main, ["status", "--ready", "nonsense"], {}, capsys)
    assert ran.code == 1
    assert ran.problems[0].startswith("nonsense does not answer: ")


# -- what a running service takes over


def test_a_short_token_is_not_taken_over_where_others_reach_the_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The address would change with the token, but only at the next start."""
    monkeypatch.setenv("A2A_HOST", "0.0.0.0")
    monkeypatch.setenv("A2A_BEARER_TOKEN", "long-enough-a-token")
    running = load()
    monkeypatch.setenv("A2A_HOST", "127.0.0.1")
    monkeypatch.setenv("A2A_BEARER_TOKEN", "short")
    with pytest.raises(ConfigError, match="A2A_BEARER_TOKEN: is shorter than 16 characters"):
        running.reloaded(load())


def test_secrets_are_copies_where_systemd_hands_them_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not has_copied_credentials(None)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert has_copied_credentials(None)
    assert not has_copied_credentials(tmp_path)


def test_a_running_up_does_not_fall_back_to_a_token_that_was_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))  # so nothing can be kept
    monkeypatch.setenv("A2A_BEARER_TOKEN", "a-token-that-is-revoked")
    running = complete(load(), load())
    monkeypatch.delenv("A2A_BEARER_TOKEN")
    with pytest.raises(CommandError, match="no credential is configured any more"):
        complete(load(), running)


def test_a_running_up_takes_over_a_new_token_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    running = complete(load(), load())
    assert not running.changed(complete(load(), running)), "the token is kept"
    main(["token", "--new"])
    token = capsys.readouterr().out.split()[0]
    new = complete(load(), running)
    assert running.changed(new) == ["A2A_BEARER_TOKEN"]
    taken = running.reloaded(new).server.bearer_token
    assert taken is not None
    assert taken.get_secret_value() == token
