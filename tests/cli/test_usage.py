"""What the programs say about themselves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from opencode_a2a import __version__
from opencode_a2a.cli import main, server_main
from tests.cli.commands import Ran, called, run
from tests.running import ROOT

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize("command", ["up", "serve", "card", "openapi"])
def test_a_command_explains_itself_with_an_example_to_copy(command: str, capsys: Capture) -> None:
    ran = called(main, [command, "--help"], {}, capsys)
    assert (ran.code, ran.err) == (0, "")
    assert f"\n  {'cd your-project && ' * (command == 'up')}opencode-a2a {command}" in ran.out
    for option in ("--config FILE", "--secrets DIR", "--host HOST", "--port PORT"):
        assert option in ran.out


def test_help_names_every_command_and_the_settings_one_needs_first(capsys: Capture) -> None:
    ran = called(main, ["--help"], {}, capsys)
    assert (ran.code, ran.err) == (0, "")
    for word in ("up ", "serve ", "--version", "A2A_BEARER_TOKEN", "OPENCODE_BASE_URL", "A2A_PORT"):
        assert word in ran.out
    (page,) = re.findall(r"docs/\S+\.md", ran.out)
    assert (ROOT / page).is_file()


def test_the_older_program_has_the_same_help(capsys: Capture) -> None:
    assert called(server_main, ["--help"], {}, capsys) == called(main, ["--help"], {}, capsys)


@pytest.mark.parametrize("words", [[], ["nosuch"], ["serve", "--nosuch"], ["up", "--port", "x"]])
def test_wrong_usage_is_answered_with_the_right_one(words: list[str], capsys: Capture) -> None:
    ran = called(main, words, {}, capsys)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("usage: opencode-a2a")


@pytest.mark.parametrize("name", ["opencode-a2a", "opencode-a2a-server"])
def test_each_installed_program_says_its_version(tmp_path: Path, name: str) -> None:
    assert run(tmp_path, name, "--version") == Ran(0, f"opencode-a2a {__version__}\n", "")
