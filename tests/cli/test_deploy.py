"""What `deploy` says where it cannot do what it is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from opencode_a2a.cli import deploy, main
from tests.cli.commands import Ran, called

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def empty_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run by systemd, with nothing on it; whoever runs the tests is root nowhere."""
    monkeypatch.setattr(deploy, "RUNNING_SYSTEMD", tmp_path)
    monkeypatch.setattr(deploy, "LOCKED", str(tmp_path))
    monkeypatch.setattr("opencode_a2a.deploy.operator.MANIFEST", str(tmp_path / "manifest.json"))
    monkeypatch.setattr("opencode_a2a.deploy.operator.CURRENT", str(tmp_path / "current"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def said(capsys: Capture, *words: str, **settings: str) -> Ran:
    return called(main, ["deploy", *words], settings, capsys)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (
            ["create", "alpha"],
            "this machine is not prepared: run `opencode-a2a deploy init` first.",
        ),
        (["update", "alpha"], "there is no instance alpha. There are: none."),
        (["status", "alpha"], "there is no instance alpha. There are: none."),
        (["remove", "alpha"], "there is no instance alpha. There are: none."),
        (["rollback"], "there is no release before the present one."),
        (["init", "--from", "nosuch"], "--from nosuch: must be a checkout, a wheel"),
        (["light", "stop", "../x"], "'../x' must be small letters, digits and `-`"),
        (["light", "restart", "demo"], "demo was never started."),
        (["light", "status", "demo"], "demo is not running."),
    ],
)
def test_a_problem_is_said_in_words(words: list[str], problem: str, capsys: Capture) -> None:
    ran = said(capsys, *words)
    assert ran.code == 1
    assert ran.problems[0].startswith(problem)


def test_secrets_are_written_only_with_the_explicit_setting(capsys: Capture) -> None:
    ran = said(capsys, "create", "alpha", "--secret", "KEY")
    assert ran.problems == [
        "--secret writes secrets to disk: set ENABLE_SECRET_PERSISTENCE=true for that."
    ]
    ran = said(capsys, "create", "alpha", "--secret", "KEY", ENABLE_SECRET_PERSISTENCE="true")
    assert "not prepared" in ran.problems[0]


def test_without_systemd_the_other_way_is_named(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(deploy, "RUNNING_SYSTEMD", tmp_path / "nosuch")
    assert "`deploy light` needs none" in said(capsys, "create", "alpha").err
