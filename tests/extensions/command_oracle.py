"""Asks the real OpenCode what it does with random templates and arguments of commands.

    python -m tests.extensions.command_oracle --pairs 20000 --seed 1

Each pair of template and arguments tries to create a file of its own (the canary) and to read
others, `secret.txt` among them. A plugin inside OpenCode writes down the prompt that it makes of
the pair and ends the run there, before any model is asked. A pair whose prompt has a file is sent
again without arguments: a file that this prompt does not refer to was read because of the
arguments. It is an error if a pair that `refusal` lets pass creates its canary or reads such a
file, or if the prompt is not the one that `expand` foretells. Whatever pair creates its canary or
reads such a file, the comparison alone (`changes_actions`) must have seen it.

The pairs that `refusal` refuses are sent to OpenCode as well (all, or a share of them): many of
them must create their canary, or the check would prove nothing. So only `touch` and harmless words
may stand in the fragments below, and no brackets, with which a shell function could be written.
No fragment begins with a slash, and the workspace lies deeper than `../` can lead out of.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import httpx

from opencode_a2a.domain.commands import changes_actions, expand, refusal
from tests.running import Upstream, real_opencode

AT_ONCE = 8
PATIENCE = 120.0
SECRET = "secret.txt"
PREFIX = "pair-"
DEPTH = ("a",) * 12  # directories around the workspace

PLUGIN = """
import { appendFileSync } from "node:fs"
export const Oracle = async () => ({
  "command.execute.before": async ({ command }, { parts }) => {
    if (!command.startsWith("%s")) return
    appendFileSync(%s, JSON.stringify({ command, parts }) + "\\n")
    throw new Error("The oracle has what it wanted.")
  },
})
"""

# Templates as people write them, those of the first attacks among them.
WRITTEN = (
    "Explain `$ARGUMENTS` to me.",
    "Compare `$1` against $2 using `$3`.",
    "Create a component named $ARGUMENTS.",
    "Say nothing",
    "Run `echo hi` and tell about $1, then $2.",
    "Look at @README.md and then $ARGUMENTS",
    "Look at @$1",
    "Look at @../$1",
    "!`echo hi`@$1",
    "See:!`echo hi`(@../$1",
    "!`echo @`!`true`$ARGUMENTS",
    "Status: !`echo hi` $ARGUMENTS",
    "It says !`echo hi $ARGUMENTS`",
    "!`$ARGUMENTS`",
    "Output:\n!`echo @`$1",
    "```\n$ARGUMENTS\n```\nand `$1`!",
    "$1`$2`$3",
    "Input: $ARGUMENTS\n\n- Run: `echo $ARGUMENTS`\n- Run: `echo $ARGUMENTS...HEAD` in @notes/\n",
    "$$1 `x` $ARG$1",
)
TEMPLATE_FRAGMENTS = (
    *("Explain ", "with ", "alpha", " ", " ", "\n", "\r\n", "\t", ".", ",", "é", "漢", "𝒳"),
    *("`", "`", "`", "!`", "!", "``", "```\n", "$ARGUMENTS", "$ARGUMENTS", "$1", "$1", "$2", "$3"),
    *("$0", "$10", "$01", "$", "$$", "$&", "$'", "$ARG", "@", "@README.md", "@notes/", "@$1"),
    *("@../", "@../", "../", "..", "!`true`"),
    *(
        "!`echo hi`",
        "!`echo @`",
        "!`echo x$1`",
        "'",
        '"',
        "\u00a0",
        "\ufeff",
        "\u2028",
        "\x1f",
        "|",
    ),
)
TAME = (
    *("x", "alpha", " ", " ", "é", "漢", "HEAD~1", ".", ",", "-", "notes/", "#", "ARGUMENTS"),
    *(SECRET, "..", "../", f"../workspace/{SECRET}", f"workspace/{SECRET}"),
)
PLAIN = (
    *("!", "!", "'", '"', "\n", "\r", "\t", "me@example.com", ";", "|", "&&", "<", ">", "\\", "?"),
    *("\u00a0", "\ufeff", "\u2028", "\u0085", "\u200d", "[Image 1]", "[image\u00a02]", "𝒳", "*"),
)
NASTY = (
    *("`", "`", "!`", "$", "$'", "$`", "$&", "$$", "$1", "$2", "$ARGUMENTS", "@", f"@{SECRET}"),
    *("@~", "@../", "@general", "!$'", "\x1b", "`!", "$<x>", "$0"),
)


# What OpenCode 1.18 runs and reads in a text; \w and \s are JavaScript's.
_SHELL = re.compile(r"!`([^`]+)`")
_SPACE = r"\t-\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_IN_NAME = rf"[^{_SPACE}`,.]"
_FILE = re.compile(rf"(?<![A-Za-z0-9_`])@(\.?{_IN_NAME}*(?:\.{_IN_NAME}+)*)")
_ENDS = re.compile(rf"\A[{_SPACE}]+|[{_SPACE}]+\Z")


def shell_commands(text: str) -> list[str]:
    return _SHELL.findall(text)


def with_outputs(text: str, outputs: Sequence[str]) -> str:
    """The prompt; `outputs` are what the shell commands print, in order."""
    remaining = iter(outputs)
    return _ENDS.sub("", _SHELL.sub(lambda _: next(remaining), text))


def file_references(prompt: str) -> list[str]:
    """What OpenCode takes for names of files, directories or agents."""
    return [name for name in _FILE.findall(prompt) if name]


Parts: TypeAlias = Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Pair:
    number: int
    template: str
    arguments: str

    @property
    def command(self) -> str:
        return f"{PREFIX}{self.number:06}"


def pairs(count: int, seed: int, canaries: Path) -> list[Pair]:
    source = random.Random(seed)
    return [
        Pair(number, _template(source), _arguments(source, str(canaries / f"{number:06}")))
        for number in range(count)
    ]


def _template(source: random.Random) -> str:
    if source.random() < 0.3:
        return source.choice(WRITTEN)
    return "".join(source.choices(TEMPLATE_FRAGMENTS, k=source.randint(1, 10)))


def _arguments(source: random.Random, canary: str) -> str:
    """A third each of plain words, of text, and of anything; nearly all try to run something."""
    touch = f"touch {canary}"
    shell = (touch, f"| {touch} |", f'"| {touch} |"', f"; {touch};", f"\n{touch}\n", f"&& {touch}")
    kind = source.randrange(3)
    if kind == 0:
        fragments: Sequence[str] = (*TAME, touch, touch)
    elif kind == 1:
        fragments = (*TAME, *PLAIN, *shell)
    else:
        fragments = (*TAME, *PLAIN, *NASTY, *NASTY, *shell, f"$({touch})", f"!`{touch}`")
    chosen = source.choices(fragments, k=source.randint(1, 7))
    if source.random() < 0.8:
        chosen.insert(source.randint(0, len(chosen)), source.choice(fragments[-2:]))
    return "".join(chosen)


@dataclass(slots=True)
class Report:
    pairs: int = 0
    allowed: int = 0
    refused: int = 0
    asked_refused: int = 0
    canaries_allowed: list[str] = field(default_factory=list)
    canaries_refused: int = 0
    reads_allowed: list[str] = field(default_factory=list)
    reads_refused: int = 0
    compared: int = 0
    mismatches: list[str] = field(default_factory=list)
    unforeseen: list[str] = field(default_factory=list)
    unanswered: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"pairs {self.pairs}: allowed {self.allowed}, refused {self.refused}\n"
            f"allowed, with a canary {len(self.canaries_allowed)}, "
            f"with a file of the arguments {len(self.reads_allowed)}\n"
            f"refused and asked all the same {self.asked_refused}: "
            f"with a canary {self.canaries_refused}, "
            f"with a file of the arguments {self.reads_refused}\n"
            f"prompts compared {self.compared}, mismatches {len(self.mismatches)}, "
            f"without a prompt {len(self.unanswered)}, "
            f"canaries and files that the comparison alone would let pass {len(self.unforeseen)}"
        )

    @property
    def faults(self) -> list[str]:
        return [
            *(f"canary: {each}" for each in self.canaries_allowed),
            *(f"file: {each}" for each in self.reads_allowed),
            *(f"mismatch: {each}" for each in self.mismatches),
            *(f"not foreseen: {each}" for each in self.unforeseen),
            *(f"no prompt: {each}" for each in self.unanswered),
        ]


@dataclass(frozen=True, slots=True)
class Oracle:
    upstream: Upstream
    canaries: Path
    prompts: Path
    known: Sequence[Pair]

    @classmethod
    @contextmanager
    def start(
        cls,
        directory: Path,
        count: int,
        seed: int,
        examples: Sequence[tuple[str, str]] = (),
        **config: Any,
    ) -> Iterator[Oracle]:
        """The real OpenCode with a command for each pair, beside those of `config`."""
        canaries, prompts = directory / "canaries", directory / "prompts.jsonl"
        canaries.mkdir(parents=True)
        prompts.touch()
        plugin = directory / "oracle.js"
        plugin.write_text(PLUGIN % (PREFIX, json.dumps(str(prompts))))
        known = pairs(count, seed, canaries)
        known += [Pair(count + i, *example) for i, example in enumerate(examples)]
        commands = {pair.command: {"template": pair.template} for pair in known}
        more = directory / "commands.json"
        more.write_text(json.dumps({"command": commands}))
        with real_opencode(
            directory.joinpath(*DEPTH),
            {"OPENCODE_CONFIG": str(more)},
            plugin=[plugin.as_uri()],
            snapshot=False,
            **config,
        ) as upstream:
            (upstream.workspace / SECRET).write_text("4711")
            (upstream.workspace / "notes").mkdir()
            yield cls(upstream, canaries, prompts, known)

    def judge(
        self, share_of_refused: float = 1.0, progress: Callable[[int], None] = lambda _: None
    ) -> Report:
        return asyncio.run(self._judge(share_of_refused, progress))

    async def _judge(self, share_of_refused: float, progress: Callable[[int], None]) -> Report:
        allowed = {p.number for p in self.known if refusal(p.template, p.arguments) is None}
        source = random.Random(len(self.known))
        asked = [
            pair
            for pair in self.known
            if pair.number in allowed or source.random() < share_of_refused
        ]
        seen = await self._ask([(pair, pair.arguments) for pair in asked], progress)
        with_files = [pair for pair in asked if _files(seen.get(pair.command, ()))]
        alone = await self._ask([(pair, "") for pair in with_files], lambda _: None)
        created = {int(path.name[:6]) for path in self.canaries.iterdir()}
        report = Report(len(self.known), len(allowed), len(self.known) - len(allowed))
        report.asked_refused = len(asked) - len(allowed)
        for pair in asked:
            parts = seen.get(pair.command)
            own = file_references(_text(alone[pair.command])) if pair.command in alone else ()
            read = not _files(parts or ()) <= set(own)
            if pair.number in allowed:
                if pair.number in created:
                    report.canaries_allowed.append(repr(pair))
                if read:
                    report.reads_allowed.append(repr(pair))
            else:
                report.canaries_refused += pair.number in created
                report.reads_refused += read
            acted = read or pair.number in created
            if acted and not changes_actions(pair.template, pair.arguments):
                report.unforeseen.append(repr(pair))
            if parts is None:
                report.unanswered.append(repr(pair))
                continue
            report.compared += 1
            if not _foretold(pair, parts):
                report.mismatches.append(f"{pair!r} became {parts!r}")
        return report

    async def _ask(
        self, calls: Sequence[tuple[Pair, str]], progress: Callable[[int], None]
    ) -> dict[str, Parts]:
        """The prompts that OpenCode makes of these pairs, called with these arguments."""
        remaining, done = iter(calls), 0
        self.prompts.write_text("")
        async with httpx.AsyncClient(
            base_url=self.upstream.base_url,
            auth=("opencode", self.upstream.password or ""),
            params={"directory": str(self.upstream.workspace)},
            timeout=PATIENCE,
        ) as http:
            # OpenCode shows every template as it was written.
            shown = {each["name"]: each["template"] for each in (await http.get("/command")).json()}
            assert all(shown[pair.command] == pair.template for pair in self.known)

            async def work() -> None:
                nonlocal done
                session = (await http.post("/session", json={})).json()["id"]
                for pair, arguments in remaining:
                    body = {"command": pair.command, "arguments": arguments}
                    await http.post(f"/session/{session}/command", json=body)
                    done += 1
                    progress(done)

            async with asyncio.TaskGroup() as workers:
                for _ in range(AT_ONCE):
                    workers.create_task(work())
        lines = filter(None, self.prompts.read_text().split("\n"))
        return {told["command"]: told["parts"] for told in map(json.loads, lines)}


def _text(parts: Parts) -> str:
    return str(next(part["text"] for part in parts if part["type"] == "text"))


def _files(parts: Parts) -> set[str]:
    """The names of files, directories and agents. Only what exists becomes a part."""
    named = (part.get("filename", part.get("name")) for part in parts if part["type"] != "text")
    return {name for name in named if name}


def _foretold(pair: Pair, parts: Parts) -> bool:
    """Whether OpenCode's prompt is the model's, with whatever its shell commands printed."""
    expanded, text = expand(pair.template, pair.arguments), _text(parts)
    if not _files(parts) <= set(file_references(text)):
        return False
    shell = shell_commands(expanded)
    if not shell:
        return text == with_outputs(expanded, [])
    # Where nothing is printed at an end, OpenCode trims more: ignore all spaces.
    unknown = "\ue000"
    pattern = re.escape(_without_spaces(with_outputs(expanded, [unknown] * len(shell))))
    return bool(re.fullmatch(pattern.replace(unknown, ".*"), _without_spaces(text)))


def _without_spaces(text: str) -> str:
    return re.sub(r"[\s\ufeff]+", "", text)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.extensions.command_oracle")
    parser.add_argument("--pairs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ask-refused", type=float, default=1.0, help="share of those asked")
    chosen = parser.parse_args()
    start = time.monotonic()

    def progress(done: int) -> None:
        if done % 500 == 0:
            sys.stdout.write(f"{done} asked, {time.monotonic() - start:.0f} s\n")
            sys.stdout.flush()

    with tempfile.TemporaryDirectory(prefix="command-oracle-") as directory:
        permission = {"bash": "ask"}
        with Oracle.start(
            Path(directory), chosen.pairs, chosen.seed, permission=permission
        ) as oracle:
            report = oracle.judge(chosen.ask_refused, progress)
    for fault in report.faults[:20]:
        sys.stdout.write(f"{fault}\n")
    sys.stdout.write(f"seed {chosen.seed}, {time.monotonic() - start:.0f} s\n{report}\n")
    sys.exit(bool(report.faults))


if __name__ == "__main__":
    main()
