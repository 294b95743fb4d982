"""The commands `token create`, `list`, `rotate` and `revoke`, and the older `token` beside them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from opencode_a2a.cli import main
from opencode_a2a.cli.parser import parse
from opencode_a2a.credentials import CredentialsFile

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def token(capsys: Capture, *words: str) -> tuple[str, str]:
    """What a command prints, and what it tells beside that."""
    main(["token", *words])
    said = capsys.readouterr()
    return said.out, said.err


def refused(capsys: Capture, *words: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(["token", *words])
    assert isinstance(ended.value.code, int)
    return ended.value.code, capsys.readouterr().err


def test_a_new_token_is_all_that_is_printed(capsys: Capture, tmp_path: Path) -> None:
    out, err = token(
        capsys, "create", "ci", "--scopes", "tasks:read, sessions:shell", "--expires", "90d"
    )
    assert re.fullmatch(r"oca_[\w-]{43}\n", out)
    assert "ci (tasks:read, sessions:shell)" in err
    assert out.strip() not in err
    [file] = (tmp_path / "state").rglob("credentials.json")
    [stored] = CredentialsFile(file).read()
    assert stored.scopes == ("tasks:read", "sessions:shell")
    assert (stored.expires_at or 0) - stored.created_at == 90 * 86_400


def test_the_list_has_everything_but_the_hashes(capsys: Capture, tmp_path: Path) -> None:
    token(capsys, "create", "ci", "--principal", "pipeline")
    token(capsys, "rotate", "ci", "--overlap", "2h")
    out, _ = token(capsys, "list")
    assert len(out.splitlines()) == 3
    assert out.splitlines()[0].split()[:2] == ["NAME", "PRINCIPAL"]
    shown, _ = token(capsys, "list", "--json")
    entries = json.loads(shown)
    assert [entry["principal"] for entry in entries] == ["pipeline"] * 2
    assert entries[0]["expires_at"] is not None
    assert not any("sha256" in entry for entry in entries)
    assert token(capsys, "revoke", "ci")[0] == ""
    out, err = token(capsys, "list")
    assert out == ""
    assert "there are no tokens" in err


def test_a_file_can_be_named(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "elsewhere" / "tokens.json"
    token(capsys, "create", "ci", "--file", str(file))
    assert [each.name for each in CredentialsFile(file).read()] == ["ci"]


def test_a_role_of_the_settings_can_be_given(capsys: Capture, tmp_path: Path) -> None:
    config = tmp_path / "settings.toml"
    config.write_text('[roles]\nreader = ["tasks:read"]\n')
    assert refused(capsys, "create", "ci", "--scopes", "reader")[0] == 2
    assert token(capsys, "create", "ci", "--scopes", "reader", "--config", str(config))[0]


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (["create", "ci", "--scopes", "nothing"], 2, "--scopes: must be 'tasks:read'"),
        (["create", "ci", "--expires", "soon"], 2, "--expires: must be a time such as 90d"),
        (["create", "*"], 2, "a name has 1 to 255 printable characters"),
        (["create", "a\nb"], 2, "a name has 1 to 255 printable characters"),
        (["rotate", "ci"], 1, "there is no token named ci"),
        (["rotate", "ci", "--overlap", "-1h"], 2, "expected one argument"),
        (["revoke", "ci"], 1, "there is no token named ci"),
        (["create"], 2, "the following arguments are required: NAME"),
    ],
)
def test_what_is_wrong_is_said(capsys: Capture, words: list[str], code: int, problem: str) -> None:
    ended, said = refused(capsys, *words)
    assert ended == code
    assert problem in said


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ([], "token show"),
        (["--new"], "token show"),
        (["."], "token show"),
        (["./create"], "token show"),
        (["show", "."], "token show"),
        (["list"], "token list"),
    ],
)
def test_the_word_show_may_be_left_out(words: list[str], command: str) -> None:
    assert parse(["token", *words]).command == command
