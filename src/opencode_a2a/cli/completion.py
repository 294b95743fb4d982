"""Shell completion, written from the declared commands; the shells need no program to complete."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from .parser import COMMANDS, Command, Option

BASH = """\
_opencode_a2a() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} words=
  COMPREPLY=()
  case $before in {takes_value}) return ;; esac
  if ((COMP_CWORD == 1)); then words={commands}
  else case ${{COMP_WORDS[1]}} in
{cases}
  esac; fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _opencode_a2a opencode-a2a
"""

ZSH = """\
_opencode_a2a() {{
  local -a commands=(
{commands}
  )
  if ((CURRENT == 2)); then _describe command commands; return; fi
  local command=$words[2]
  shift words
  ((CURRENT--))
  case $command in
{cases}
  esac
}}
compdef _opencode_a2a opencode-a2a
"""


def script(shell: str) -> str:
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell]()


def _bash() -> str:
    """Where nothing is offered bash completes file names."""
    values = {o.name for c in COMMANDS for o in c.options if o.value and o.name.startswith("--")}
    names = " ".join([*(command.name for command in COMMANDS), "--help", "--version"])
    cases = [f"    {c.name}) words={shlex.quote(' '.join(_words(c)))} ;;" for c in COMMANDS]
    return BASH.format(
        takes_value="|".join(sorted(values)), commands=shlex.quote(names), cases="\n".join(cases)
    )


def _words(command: Command) -> Iterator[str]:
    for option in command.options:
        if option.name.startswith("--"):
            yield option.name
        else:
            yield from option.choices
    yield "--help"


def _zsh() -> str:
    commands = [f"    {shlex.quote(f'{c.name}:{c.help}')}" for c in COMMANDS]
    cases = [
        f"    {c.name}) _arguments {' '.join(shlex.quote(_zsh_option(o)) for o in c.options)} ;;"
        for c in COMMANDS
    ]
    return ZSH.format(commands="\n".join(commands), cases="\n".join(cases))


def _zsh_option(option: Option) -> str:
    about = option.help.replace("[", "(").replace("]", ")").replace(":", "\\:")
    files = {"FILE": "_files", "DIR": "_directories"}.get(option.value or "", "")
    if option.choices:
        files = f"({' '.join(option.choices)})"
    if not option.name.startswith("--"):
        return f"{'*' if option.many else '1'}:{option.name}:{files}"
    value = f":{option.value}:{files}" if option.value else ""
    return f"{'*' if option.many else ''}{option.name}[{about}]{value}"


def _fish() -> str:
    lines = ["complete -c opencode-a2a -f"]
    first = "complete -c opencode-a2a -n __fish_use_subcommand"
    lines += [f"{first} -l help", f"{first} -l version"]
    for command in COMMANDS:
        lines.append(f"{first} -a {command.name} -d {shlex.quote(command.help)}")
        here = f"complete -c opencode-a2a -n '__fish_seen_subcommand_from {command.name}'"
        lines += [f"{here} {_fish_option(option)}" for option in command.options]
    return "\n".join(lines) + "\n"


def _fish_option(option: Option) -> str:
    about = shlex.quote(option.help)
    offered = shlex.quote(" ".join(option.choices))
    if not option.name.startswith("--"):
        directories = "'(__fish_complete_directories)'" if option.value == "DIR" else "''"
        return f"-a {offered} -d {about}" if option.choices else f"-a {directories}"
    value = {None: "", "FILE": " -r -F", "DIR": " -r -a '(__fish_complete_directories)'"}
    takes = f" -x -a {offered}" if option.choices else value.get(option.value, " -x")
    return f"-l {option.name[2:]}{takes} -d {about}"
