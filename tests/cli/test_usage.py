"""What the programs say about themselves."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from opencode_a2a import __version__
from opencode_a2a.cli import main, server_main
from opencode_a2a.cli.completion import script
from opencode_a2a.cli.parser import SHELLS, Command, all_commands
from tests.cli.commands import Ran, called, command, run
from tests.running import ROOT

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(("words", "command"), list(all_commands()))
def test_a_command_explains_itself_with_an_example_to_copy(
    words: str, command: Command, capsys: Capture
) -> None:
    ran = called(main, [*words.split(), "--help"], {}, capsys)
    assert (ran.code, ran.err) == (0, "")
    assert re.search(rf"^  .*opencode-a2a {words}\b", ran.out, re.MULTILINE)
    for help in [part.help for part in command.options] + [c.help for c in command.commands]:
        assert help.split()[0] in ran.out
    assert ("A2A_BEARER_TOKEN   " in ran.out) is command.has_settings


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


def test_help_and_version_load_nothing_of_the_service() -> None:
    """So they answer at once."""
    code = """
import sys
from opencode_a2a import cli
try:
    cli.main(sys.argv[1:])
except SystemExit:
    print(*sys.modules, file=sys.stderr)
"""
    large = {"asyncio", "pydantic", "sqlalchemy", "structlog", "uvicorn", "opencode_a2a.config"}
    for word in ("--version", "--help"):
        ran = subprocess.run(
            [sys.executable, "-c", code, word], capture_output=True, text=True, check=True
        )
        assert not large & set(ran.stderr.split())


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["st"], {"status"}),
        (["up", "--in"], {"--install-opencode"}),
        (["completion", ""], {*SHELLS, "--help"}),
        (["status", "--"], {"--json", "--ready", "--help"}),
        (["config", ""], {"show", "check", "example", "--help"}),
        (["config", "show", "--config", "x", "--j"], {"--json"}),
        (["up", "--config", ""], set()),  # bash offers files
    ],
)
def test_bash_completes_commands_and_options(typed: list[str], offered: set[str]) -> None:
    words = " ".join(["opencode-a2a", *(word or "''" for word in typed)])
    ask = f"COMP_WORDS=({words}); COMP_CWORD={len(typed)}; _opencode_a2a; echo ${{COMPREPLY[@]}}"
    ran = subprocess.run(
        ["bash", "-c", f"{script('bash')}\n{ask}"], capture_output=True, text=True, check=True
    )
    assert (set(ran.stdout.split()), ran.stderr) == (offered, "")


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_can_read_its_completion(shell: str, capsys: Capture) -> None:
    main(["completion", shell])
    printed = capsys.readouterr().out
    assert all(command.name in printed for _, command in all_commands())
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    subprocess.run([shell, "-n"], input=printed, text=True, check=True)


def test_a_process_that_has_printed_a_result_is_not_ended_by_a_broken_pipe() -> None:
    """Python ignores SIGPIPE; a program that calls `main` and goes on relies on it."""
    main(["completion", "bash"])
    assert signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN


def test_a_reader_that_needs_only_the_first_line_ends_the_command_without_a_word() -> None:
    with subprocess.Popen(
        command("opencode-a2a", "completion", "bash"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as writer:
        assert writer.stdout is not None
        writer.stdout.close()
        assert writer.stderr is not None
        assert writer.stderr.read() == b""
    assert writer.returncode == -signal.SIGPIPE


@pytest.mark.parametrize("name", ["opencode-a2a", "opencode-a2a-server"])
def test_each_installed_program_says_its_version(tmp_path: Path, name: str) -> None:
    assert run(tmp_path, name, "--version") == Ran(0, f"opencode-a2a {__version__}\n", "")
