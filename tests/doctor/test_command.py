"""`opencode-a2a doctor` as an operator uses it, and what a service says when it starts."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from opencode_a2a import __version__
from opencode_a2a.cli import executable, main
from opencode_a2a.cli.parser import DOCTOR_CODES_HELP
from opencode_a2a.doctor.checks import ALL
from opencode_a2a.doctor.question import PROMPT
from tests.cli.commands import Ran, called, command
from tests.cli.test_terminal import on_terminal
from tests.doctor.looking import nobody
from tests.running import TOKEN, Service, Upstream, isolated, service

Capture = pytest.CaptureFixture[str]
Doctor = Callable[..., Ran]
SECRET = "f3b1c09a77e2d845-secret"


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """A user with a project and an OpenCode that says its version, and nothing else."""
    (tmp_path / "project").mkdir()
    opencode = tmp_path / "opencode"
    opencode.write_text("#!/bin/sh\necho 1.18.33\n")
    opencode.chmod(0o755)
    return {
        "OPENCODE_COMMAND": str(opencode),
        "OPENCODE_WORKSPACE_ROOT": str(tmp_path / "project"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "A2A_PORT": "0",
    }


@pytest.fixture
def doctor(home: dict[str, str], capsys: Capture) -> Doctor:
    def run(*words: str, **settings: str) -> Ran:
        return called(main, ["doctor", *words], home | settings, capsys)

    return run


def checks(ran: Ran) -> dict[str, dict[str, Any]]:
    found = json.loads(ran.out)
    return {each["check"]: each for each in found["checks"]}


def test_every_check_is_made_and_nothing_is_changed(
    doctor: Doctor, fake: Upstream, tmp_path: Path
) -> None:
    before = set(tmp_path.rglob("*"))
    ran = doctor("--json", "--no-model", OPENCODE_BASE_URL=fake.base_url, A2A_BEARER_TOKEN=SECRET)
    document = json.loads(ran.out)
    assert (ran.code, ran.err, document["version"]) == (1, "", __version__)
    found = checks(ran)
    assert list(found) == [check.name for check in ALL]
    assert document["verdict"] == "error"
    wrong = {each["finding"] for each in found.values() if each["verdict"] == "error"}
    assert wrong == {"opencode.open_here"}
    assert {each["verdict"] for each in found.values()} == {"ok", "unknown", "error"}
    assert found["model"]["says"] == "No model is asked (--no-model)."
    assert set(tmp_path.rglob("*")) == before


def test_what_is_wrong_is_shown_with_what_to_do_and_without_secrets(
    doctor: Doctor, fake: Upstream, tmp_path: Path
) -> None:
    file = tmp_path / "tasks.db"
    file.touch(mode=0o600)
    file.chmod(0o644)
    ran = doctor(
        OPENCODE_BASE_URL=fake.base_url,
        OPENCODE_AUTH_PASSWORD=SECRET,
        A2A_BEARER_TOKEN=SECRET,
        A2A_TASK_STORE_DATABASE_URL=f"sqlite:///{file}",
    )
    assert (ran.code, ran.err) == (1, "")
    lines = ran.out.splitlines()
    position, password = (n for n, line in enumerate(lines) if line.startswith("✗"))
    assert "OpenCode answers without a password" in lines[password]
    assert lines[position] == f"✗ database rights      Other users can use {file}."
    assert lines[position + 1].strip() == f"→ chmod 600 {file}"
    (model,) = (line for line in lines if line.startswith("✓ model "))
    assert f"Asked “{PROMPT}”; it said “ECHO: {PROMPT}”" in model
    assert lines.count("? card                 For the same reason.") == 1
    assert re.fullmatch(r"\d+ ok, \d+ unknown, 2 errors", lines[-1])
    assert "\x1b" not in ran.out
    assert SECRET not in ran.out


@pytest.mark.parametrize("upstream", ["configured", "none"])
def test_no_program_of_the_workspace_is_run(
    doctor: Doctor,
    home: dict[str, str],
    fake: Upstream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    upstream: str,
) -> None:
    project, marker = tmp_path / "project", tmp_path / "ran"
    # The state directory of a deployed instance belongs to the user of its agent.
    own = tmp_path / "state" / "opencode-a2a" / "opencode" if upstream == "configured" else project
    for folder in (project, project / "node_modules" / ".bin", own / "node_modules" / ".bin"):
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("opencode", "git", "node", "ps", "systemctl"):
            (folder / name).write_text(f"#!/bin/sh\ntouch {marker}\necho 1.18.33\n")
            (folder / name).chmod(0o755)
    monkeypatch.chdir(project)
    monkeypatch.setattr(executable, "CHECKOUT", project)
    del home["OPENCODE_COMMAND"]
    bins = f"{project}/node_modules/.bin"
    settings = {"PATH": f".::node_modules/.bin:{bins}:/usr/bin:/bin", "A2A_BEARER_TOKEN": SECRET}
    if upstream == "configured":
        settings["OPENCODE_BASE_URL"] = fake.base_url
    found = checks(doctor("--json", "--no-model", **settings))
    assert not marker.exists()
    verdict = "ok" if upstream == "configured" else "error"
    assert found["opencode executable"]["verdict"] == verdict


def test_a_running_service_is_looked_at_from_outside(doctor: Doctor, fake_service: Service) -> None:
    ran = doctor("--url", fake_service.url, "--json", A2A_CLIENT_BEARER_TOKEN=TOKEN)
    found = checks(ran)
    assert {"database", "port", "opencode"}.isdisjoint(found)
    assert found["login"]["says"] == "The credential is accepted, and needed."
    assert f"it said “ECHO: {PROMPT}”" in found["model"]["says"]
    ran = doctor(
        "--url", fake_service.url, "--no-model", A2A_CLIENT_BEARER_TOKEN="not-the-token-7c1"
    )
    assert ran.code == 1
    assert "✗ login            The credential is refused (HTTP 401)." in ran.out
    with nobody() as url:
        ran = doctor("--url", url, "--json")
    assert (ran.code, checks(ran)["service"]["finding"]) == (1, "service.unreachable")


def test_a_public_address_with_another_service_behind_it_is_found(
    doctor: Doctor, fake: Upstream, fake_service: Service
) -> None:
    ran = doctor(
        "--json",
        "--no-model",
        OPENCODE_BASE_URL=fake.base_url,
        A2A_BEARER_TOKEN=TOKEN,
        A2A_PUBLIC_URL=fake_service.url,
        A2A_TITLE="Not that one",
    )
    found = checks(ran)
    assert (ran.code, found["card"]["finding"]) == (1, "service.other_card")
    assert found["card"]["says"] == "The card there differs from ours in name."
    for name in ("login", "readiness"):
        assert found[name]["verdict"] == "unknown", "a stranger does not get the credential"


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        (["--url", "ftp://x"], {}),
        (["--url", "no-such-peer"], {}),
        (["--config", "no-such-file"], {}),
        ([], {"A2A_MAX_QUEUED_TASKS": "few"}),
        (["--nonsense"], {}),
    ],
)
def test_wrong_usage_or_settings_end_with_2(
    doctor: Doctor, words: list[str], settings: dict[str, str]
) -> None:
    ran = doctor(*words, **settings)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err


def test_the_help_says_what_the_exit_codes_mean() -> None:
    codes = re.findall(r"\b(\d+) \w", DOCTOR_CODES_HELP)
    assert codes == ["0", "1", "2", "130"]


def test_a_terminal_shows_what_is_still_looked_at(home: dict[str, str], tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    go = tmp_path / "go"
    os.mkfifo(go)
    slow.write_text(f"#!/bin/sh\nread line < {go}\necho 1.18.33\n")
    slow.chmod(0o755)
    more = {"OPENCODE_COMMAND": str(slow), "TERM": "xterm"}
    env = isolated(tmp_path / "home", **(home | more))
    words = command("opencode-a2a", "doctor", "--no-model")
    with on_terminal(words, env, tmp_path) as screen:
        screen.wait_for(r"\x1b\[32m✓\x1b\[0m python ")
        screen.wait_for(r"… \d+ s: opencode executable\r\n")
        go.write_text("go\n")
        screen.wait_for(r"✓\x1b\[0m opencode executable ")
        screen.wait_for(r"\d+ ok, \d+ unknown\r\n$")
        assert screen.process.wait(30) == 0
    with on_terminal(words, env, tmp_path) as screen:
        screen.wait_for(r"… \d+ s: opencode executable\r\n")
        screen.process.send_signal(signal.SIGINT)
        assert screen.process.wait(30) == 130


def test_a_service_that_starts_logs_what_it_finds_once(fake: Upstream, tmp_path: Path) -> None:
    with TemporaryDirectory() as secrets:
        Path(secrets).chmod(0o755)
        token = Path(secrets, "a2a_bearer_token")
        token.write_text(SECRET)
        token.chmod(0o644)
        settings = {"CREDENTIALS_DIRECTORY": secrets, "A2A_BEARER_TOKEN": ""}
        with service(fake, tmp_path, **settings) as running:
            line = running.program.wait_for(r".*event=doctor\.found.*\n")[0]
            running.program.stop()
            output = running.program.output
    assert "level=error" in line
    assert "finding=files.readable" in line
    assert f'fix="chmod 600 {token}"' in line
    assert output.count("doctor.found") == 1
    assert SECRET not in output
