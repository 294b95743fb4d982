"""The token that `up` keeps for a workspace."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from opencode_a2a.cli import main, token
from opencode_a2a.paths import state_home
from tests.cli.commands import called

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "my project"
    (folder / "src").mkdir(parents=True)
    return folder


def printed(capsys: Capture, *words: str) -> str:
    main(["token", *words])
    return capsys.readouterr().out


def test_a_workspace_keeps_its_token_and_no_other_has_it(workspace: Path, tmp_path: Path) -> None:
    made = token.kept_token(workspace)
    assert len(made) >= 32
    assert token.kept_token(workspace) == made
    assert token.kept_token(tmp_path) != made


def test_only_its_user_can_read_the_token(workspace: Path) -> None:
    token.kept_token(workspace)
    (file,) = state_home().rglob("token*")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    file.chmod(0o644)  # restored from a backup, perhaps
    token.kept_token(workspace)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_token_is_shown_in_the_workspace_below_it_and_by_its_path(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    made = f"{token.kept_token(workspace)}\n"
    assert printed(capsys, str(workspace)) == made
    monkeypatch.chdir(workspace / "src")
    assert printed(capsys) == made
    monkeypatch.chdir("/")
    monkeypatch.setenv("OPENCODE_WORKSPACE_ROOT", str(workspace))
    assert printed(capsys) == made


def test_a_new_token_replaces_the_old_one(workspace: Path, capsys: Capture) -> None:
    before = token.kept_token(workspace)
    new = printed(capsys, "--new", str(workspace)).strip()
    assert new != before
    assert token.kept_token(workspace) == new


def test_a_new_token_below_the_workspace_replaces_the_one_of_the_workspace(
    workspace: Path, capsys: Capture
) -> None:
    before = token.kept_token(workspace)
    main(["token", "--new", str(workspace / "src")])
    shown = capsys.readouterr()
    assert token.kept_token(workspace) == shown.out.strip() != before
    assert f"a new token for {workspace}." in shown.err
    assert "restart `up`" in shown.err
    assert len(list(state_home().rglob("token*"))) == 1


def test_no_new_token_is_made_where_none_is_kept(workspace: Path, capsys: Capture) -> None:
    ran = called(main, ["token", "--new", str(workspace)], {}, capsys)
    assert (ran.code, ran.out) == (1, "")
    assert f"no token is kept for {workspace}" in ran.problems[0]
    assert not state_home().exists()


def test_an_empty_file_gets_a_token_that_stays(workspace: Path) -> None:
    token.kept_token(workspace)
    (file,) = state_home().rglob("token*")
    file.write_text("")  # after a power cut
    made = token.kept_token(workspace)
    assert token.kept_token(workspace) == made
    assert token.find_token(workspace) == made


def test_of_two_processes_that_start_at_once_both_have_the_token_of_the_first(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = token.kept_token(workspace)
    read = token._read
    answers = iter([None])  # the second one has looked before the first one wrote
    monkeypatch.setattr(token, "_read", lambda file: next(answers, read(file)))
    assert token.kept_token(workspace) == first
    assert len(list(state_home().rglob("token*"))) == 1


def test_where_no_token_is_kept_the_command_says_who_makes_one(
    workspace: Path, capsys: Capture
) -> None:
    ran = called(main, ["token", str(workspace)], {}, capsys)
    assert (ran.code, ran.out) == (1, "")
    (problem,) = ran.problems
    assert f"no token is kept for {workspace}" in problem
    assert "opencode-a2a up" in problem


def test_a_directory_that_is_not_there_is_named(tmp_path: Path, capsys: Capture) -> None:
    ran = called(main, ["token", str(tmp_path / "nowhere")], {}, capsys)
    assert ran.code == 2
    assert ran.problems == [f"{tmp_path}/nowhere: there is no such directory"]
