"""Shell completion, written from the declared commands; the shells need no program to complete."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from .parser import COMMANDS, Command, Option, all_commands

BASH = """\
_opencode_a2a() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} words=
  COMPREPLY=()
  case $before in {takes_value}) return ;; esac
  case "${{COMP_WORDS[*]:1:COMP_CWORD-1}}" in
    '') words={commands} ;;
{cases}
  esac
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _opencode_a2a opencode-a2a
"""

ZSH = """\
{function}() {{
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
"""


def script(shell: str) -> str:
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell]()


def _bash() -> str:
    """Where nothing is offered bash completes file names."""
    commands = dict(all_commands())
    values = {o.name for c in commands.values() for o in c.options if o.value and _is_flag(o)}
    names = " ".join([*(command.name for command in COMMANDS), "--help", "--version"])
    # The longest first: `config show` is also what begins with `config`.
    cases = [
        f"    {shlex.quote(words)}|{shlex.quote(words + ' ')}*)"
        f" words={shlex.quote(' '.join(_words(command)))} ;;"
        for words, command in sorted(commands.items(), key=lambda item: -item[0].count(" "))
    ]
    return BASH.format(
        takes_value="|".join(sorted(values)), commands=shlex.quote(names), cases="\n".join(cases)
    )


def _words(command: Command) -> Iterator[str]:
    yield from (inner.name for inner in command.commands)
    for option in command.options:
        if _is_flag(option):
            yield option.name
        else:
            yield from option.choices
    yield "--help"


def _is_flag(option: Option) -> bool:
    return option.name.startswith("--")


def _zsh() -> str:
    return f"{_zsh_function('_opencode_a2a', COMMANDS)}compdef _opencode_a2a opencode-a2a\n"


def _zsh_function(name: str, commands: Sequence[Command]) -> str:
    """The function that completes these commands, after those for the groups among them."""
    inner, cases = "", []
    for command in commands:
        completes = f"_arguments {' '.join(shlex.quote(_zsh_option(o)) for o in command.options)}"
        if command.commands:
            completes = f"{name}_{command.name}"
            inner += _zsh_function(completes, command.commands)
        cases.append(f"    {command.name}) {completes} ;;")
    known = [f"    {shlex.quote(f'{c.name}:{c.help}')}" for c in commands]
    return inner + ZSH.format(function=name, commands="\n".join(known), cases="\n".join(cases))


def _zsh_option(option: Option) -> str:
    about = option.help.replace("[", "(").replace("]", ")").replace(":", "\\:")
    files = {"FILE": "_files", "DIR": "_directories"}.get(option.value or "", "")
    if option.choices:
        files = f"({' '.join(option.choices)})"
    if not _is_flag(option):
        return f"{'*' if option.many else '1'}:{option.name}:{files}"
    value = f":{option.value}:{files}" if option.value else ""
    return f"{'*' if option.many else ''}{option.name}[{about}]{value}"


def _fish() -> str:
    lines = ["complete -c opencode-a2a -f"]
    first = "complete -c opencode-a2a -n __fish_use_subcommand"
    lines += [f"{first} -l help", f"{first} -l version"]
    lines += [f"{first} -a {c.name} -d {shlex.quote(c.help)}" for c in COMMANDS]
    for words, command in all_commands():
        seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in words.split())
        here = f"complete -c opencode-a2a -n {shlex.quote(seen)}"
        lines += [f"{here} {_fish_option(option)}" for option in command.options]
        inner = " ".join(each.name for each in command.commands)
        group = f"{seen}; and not __fish_seen_subcommand_from {inner}"
        lines += [
            f"complete -c opencode-a2a -n {shlex.quote(group)} -a {c.name} -d {shlex.quote(c.help)}"
            for c in command.commands
        ]
    return "\n".join(lines) + "\n"


def _fish_option(option: Option) -> str:
    about = shlex.quote(option.help)
    offered = shlex.quote(" ".join(option.choices))
    if not _is_flag(option):
        directories = "'(__fish_complete_directories)'" if option.value == "DIR" else "''"
        return f"-a {offered} -d {about}" if option.choices else f"-a {directories}"
    value = {None: "", "FILE": " -r -F", "DIR": " -r -a '(__fish_complete_directories)'"}
    takes = f" -x -a {offered}" if option.choices else value.get(option.value, " -x")
    return f"-l {option.name[2:]}{takes} -d {about}"
