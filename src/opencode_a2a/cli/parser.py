"""The commands and their options, declared once: for the parser, `--help` and shell completion."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import __version__

HELP = "Serve OpenCode, the coding agent, to any A2A client."
SHELLS = ("bash", "zsh", "fish")

UP_HELP = """\
Start OpenCode and the service together. Without a model provider of your own a
built-in demo model answers. Without a token of your own one is made, and kept for
the next time: `opencode-a2a token` shows it.

  cd your-project && opencode-a2a up
  opencode-a2a up path/to/project --port 9000
  opencode-a2a up --install-opencode

OpenCode is taken from PATH, from node_modules of the checkout this program runs
from, from where --install-opencode has put it, or from node_modules of the
workspace. OPENCODE_COMMAND names another one.
"""

SERVE_HELP = """\
Serve an OpenCode that runs already: the one at OPENCODE_BASE_URL, or at
http://127.0.0.1:4096, where `opencode serve` listens unless told otherwise.

  export A2A_BEARER_TOKEN=$(openssl rand -hex 24)
  opencode-a2a serve

If OpenCode has a password (OPENCODE_SERVER_PASSWORD), set OPENCODE_AUTH_PASSWORD too.
"""

CARD_HELP = """\
Print the Agent Card that these settings would publish. Nothing is started.

  opencode-a2a card --extended
"""

OPENAPI_HELP = """\
Print the OpenAPI document that these settings would publish. Nothing is started.

  opencode-a2a openapi > openapi.json
"""

TOKEN_HELP = """\
Print the token that `up` has made for a workspace, or for a directory inside it.
A token of your own (A2A_BEARER_TOKEN) is not shown.

  opencode-a2a token
  curl -H "Authorization: Bearer $(opencode-a2a token)" http://127.0.0.1:8000/tasks
  opencode-a2a token --new        # a new one instead; then restart `up`
"""

STATUS_HELP = """\
List the running instances of this user: address, workspace, process, version of
OpenCode, and how many tasks are at work.

  opencode-a2a status
  opencode-a2a status --json
"""

COMPLETION_HELP = """\
Print what makes the shell complete commands and options. Put one of these lines into
the file that your shell reads when it starts (for zsh after `compinit`):

  source <(opencode-a2a completion bash)      # ~/.bashrc
  source <(opencode-a2a completion zsh)       # ~/.zshrc
  opencode-a2a completion fish | source       # ~/.config/fish/config.fish
"""

SETTINGS_HELP = """\
Settings come from the environment, from files in a secrets directory, and from a
TOML file, in this order; docs/reference/settings.md has them all. The most useful:

  A2A_BEARER_TOKEN        the token clients must present
  A2A_HOST, A2A_PORT      where to listen (127.0.0.1, 8000)
  OPENCODE_BASE_URL       the OpenCode server to use with `serve`
  OPENCODE_WORKSPACE_ROOT the directory the agent works in (the current one)
"""


@dataclass(frozen=True, slots=True)
class Option:
    name: str  # without dashes it stands for itself
    help: str
    value: str | None = None  # what it takes; None: it is a switch
    type: Callable[[str], Any] = str
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    help: str
    about: str
    options: tuple[Option, ...]
    has_settings: bool = True


CONFIG = (
    Option("--config", "settings in TOML", value="FILE", type=Path),
    Option("--secrets", "directory with one file per secret", value="DIR", type=Path),
    Option("--host", "address to listen on (A2A_HOST)", value="HOST"),
    Option("--port", "port to listen on (A2A_PORT)", value="PORT", type=int),
)
DIRECTORY = Option("directory", "the workspace (the current directory)", value="DIR", type=Path)
COMMANDS = (
    Command(
        "up",
        "start OpenCode and the service together (the quick way)",
        UP_HELP,
        (
            *CONFIG,
            Option("--install-opencode", "install the OpenCode this version is tested with first"),
            DIRECTORY,
        ),
    ),
    Command("serve", "serve an OpenCode that runs already", SERVE_HELP, CONFIG),
    Command(
        "token",
        "show the token that `up` keeps for a workspace",
        TOKEN_HELP,
        (
            Option("--new", "replace it; then restart `up`"),
            DIRECTORY,
        ),
        has_settings=False,
    ),
    Command(
        "status",
        "list your running instances",
        STATUS_HELP,
        (Option("--json", "as JSON, for programs"),),
        has_settings=False,
    ),
    Command(
        "card",
        "print the Agent Card",
        CARD_HELP,
        (*CONFIG, Option("--extended", "what clients see who have logged in")),
    ),
    Command("openapi", "print the OpenAPI document", OPENAPI_HELP, CONFIG),
    Command(
        "completion",
        "print the completion for a shell",
        COMPLETION_HELP,
        (Option("shell", "which shell", value="SHELL", choices=SHELLS),),
        has_settings=False,
    ),
)


def parser() -> argparse.ArgumentParser:
    form = argparse.RawDescriptionHelpFormatter
    made = argparse.ArgumentParser(
        "opencode-a2a", description=HELP, epilog=SETTINGS_HELP, formatter_class=form
    )
    made.add_argument("--version", action="version", version=f"opencode-a2a {__version__}")
    commands = made.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for each in COMMANDS:
        command = commands.add_parser(
            each.name,
            help=each.help,
            description=each.about,
            epilog=SETTINGS_HELP if each.has_settings else None,
            formatter_class=form,
        )
        for option in each.options:
            _add(command, option)
    return made


def _add(command: argparse.ArgumentParser, option: Option) -> None:
    if option.value is None:
        command.add_argument(option.name, action="store_true", help=option.help)
    elif option.choices:
        command.add_argument(option.name, choices=option.choices, help=option.help)
    elif option.name.startswith("--"):
        command.add_argument(option.name, metavar=option.value, type=option.type, help=option.help)
    else:
        command.add_argument(
            option.name, metavar=option.value, type=option.type, help=option.help, nargs="?"
        )
