"""The commands that speak with other agents: `call`, `peers`, and `card` with an address."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import sys
from dataclasses import replace
from pathlib import Path

from ..config import ClientSettings, ConfigError, load_client, secrets_directory
from ..contract.declare import SPECIFICATIONS
from ..domain.addresses import origin_of
from ..outbound.card import card_problems
from ..outbound.client import Outgoing, Peer, Peers
from ..outbound.failures import PeerError
from ..outbound.target import Login, Target
from ..outbound.transcript import Json
from ..peers import egress_of, find_target, limits_of, origins_of, target_of
from . import last_conversations
from .cards import CardFiles
from .conversation import Conversation, First
from .failure import CommandError
from .instances import running_instances
from .keyboard import TERMINAL, Keyboard
from .message import message_metadata, message_parts
from .outcome import COMPLETED, INVALID_CARD, LEFT, USAGE, exit_code
from .printer import PlainPrinter, Printer, printable
from .terminal import has_cursor
from .token import find_token

STREAM_HINTS = f"{SPECIFICATIONS}#shared-stream-hints-v1"


def run_client(arguments: argparse.Namespace) -> int:
    """Run one of the commands; its exit code."""
    try:
        settings = client_settings(arguments)
        if arguments.command == "peers":
            return asyncio.run(_peers(settings, as_json=arguments.json))
        target = _target(arguments, settings)
        if arguments.command == "card":
            return asyncio.run(_card(settings, target, extended=arguments.extended))
        return _call(arguments, settings, target)
    except ConfigError as exc:
        for problem in exc.problems:
            _complain(problem)
        return USAGE
    except PeerError as exc:
        _complain(exc.message)
        if exc.hint:
            _complain(exc.hint)
        return exit_code(exc)
    except asyncio.CancelledError:  # Ctrl-C, before the peer had a task
        return LEFT
    except BrokenPipeError:  # whoever read the output has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return COMPLETED


def _complain(text: str) -> None:
    print(f"opencode-a2a: {printable(text)}", file=sys.stderr)


def client_settings(arguments: argparse.Namespace) -> ClientSettings:
    config = arguments.config
    if config is None:
        home = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser()
        usual = home / "opencode-a2a" / "peers.toml"
        config = usual if usual.is_file() else None
    return load_client(config, secrets_directory(arguments.secrets))


def _target(arguments: argparse.Namespace, settings: ClientSettings) -> Target:
    target = find_target(settings, arguments.peer)
    if not target.login.headers and (token := kept_token(target.url)) is not None:
        header = ("Authorization", f"Bearer {token}")
        target = replace(target, login=Login(origins_of(target.url), (header,)))
    if arguments.command != "call":
        return target
    headers = tuple(_header(field) for field in arguments.header)
    return replace(
        target,
        login=replace(target.login, headers=(*target.login.headers, *headers)),
        streams=not arguments.no_stream,
        extensions=tuple(arguments.extension),
        welcome_extensions=(STREAM_HINTS,),
    )


def kept_token(url: str) -> str | None:
    """The token of an instance of this user that runs there."""
    try:
        for instance in running_instances():
            if origin_of(instance.url) in origins_of(url):
                return find_token(Path(instance.workspace))
    except (OSError, RuntimeError):
        pass
    return None


def _header(field: str) -> tuple[str, str]:
    name, colon, value = field.partition(":")
    fits = name.strip().isascii() and value.isprintable() and value.isascii()
    if not colon or not name.strip() or not fits or {" ", "\t"} & set(name.strip()):
        raise ConfigError([f"--header {field!r}: must be 'Name: value'"])
    return name.strip(), value.strip()


# -- call


def _call(arguments: argparse.Namespace, settings: ClientSettings, target: Target) -> int:
    if sum([arguments.yes, arguments.no]) > 1:
        raise CommandError("--yes and --no contradict each other", USAGE)
    output = "events" if arguments.json else arguments.output or "answer"
    limits = limits_of(settings.outbound)
    if arguments.timeout is not None:
        if not 0 < arguments.timeout < math.inf:
            raise CommandError("--timeout: must be more than 0 seconds", USAGE)
        limits = replace(limits, total_seconds=arguments.timeout)
    if arguments.save is not None:
        try:
            arguments.save.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise CommandError(f"--save {arguments.save}: {exc.strerror}", USAGE) from None
    printer = _printer(output)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        with Keyboard.open(anyway=arguments.ask) as keyboard:
            first = _first(arguments, target, keyboard)
            conversation = Conversation(target, printer, keyboard, arguments)
            peers = Peers(egress_of(settings.outbound), limits, CardFiles())
            return asyncio.run(_converse(conversation, peers, first=first, arguments=arguments))
    except OSError as exc:
        if arguments.ask and str(exc.filename) == str(TERMINAL):
            raise CommandError("--ask: there is no terminal to ask on", USAGE) from None
        raise


def _printer(output: str) -> Printer:
    """The printer for the streams of this process."""
    if output == "answer" and has_cursor(sys.stderr):
        from .rich_printer import RichPrinter  # loads rich, which takes a moment

        return RichPrinter.open()
    details, live = sys.stderr.isatty(), sys.stdout.isatty()
    return PlainPrinter(sys.stdout, sys.stderr, output=output, details=details, live=live)


async def _converse(
    conversation: Conversation, peers: Peers, first: First | None, arguments: argparse.Namespace
) -> int:
    async with conversation.connect(peers) as peer:
        if first is None:
            from .chat import Chat  # loads prompt_toolkit, which takes a moment

            await Chat(conversation, peer, arguments).run()
        else:
            await conversation.until_done(conversation.call(peer), first)
    return COMPLETED


def _first(
    arguments: argparse.Namespace, target: Target, keyboard: Keyboard | None
) -> First | None:
    """None: a person is at the terminal and has not said anything yet."""
    task_id, context_id = arguments.task, arguments.context
    if arguments.last:
        kept = last_conversations.find(target.url)
        if kept is None:
            raise CommandError(f"--last: there was no conversation with {target.url} yet", USAGE)
        context_id = context_id or kept.context_id
        task_id = task_id or (kept.task_id if kept.waits else None)
    text = _text(arguments)
    parts = tuple(message_parts(text, arguments.file))
    if not parts:
        if arguments.task:
            return First(task_id=task_id)
        if keyboard is not None:
            return None
        raise CommandError("there is nothing to send: give TEXT, or write it to the input", USAGE)
    return First(
        Outgoing(parts, message_metadata(arguments), task_id=task_id, context_id=context_id),
        task_id,
    )


def _text(arguments: argparse.Namespace) -> str:
    words = list(arguments.text)
    if "-" not in words:
        if words or arguments.file or arguments.task or sys.stdin is None or sys.stdin.isatty():
            return " ".join(words)
        words = ["-"]
    given = sys.stdin.buffer.read().decode(errors="replace").rstrip("\n")
    return "\n\n".join(filter(None, [" ".join(w for w in words if w != "-"), given]))


# -- peers and cards


async def _peers(settings: ClientSettings, *, as_json: bool) -> int:
    if not settings.peers:
        raise CommandError(
            "no peer is configured. Write a table [peers.NAME] with a url into "
            "~/.config/opencode-a2a/peers.toml; `opencode-a2a peers --help` shows one."
        )
    peers = Peers(egress_of(settings.outbound), limits_of(settings.outbound))
    found = await asyncio.gather(*(_look(peers, name, settings) for name in sorted(settings.peers)))
    if as_json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        table = [("NAME", "ADDRESS", "SPEAKS", "MODEL", "AGENT")]
        for each in found:
            about = each.get("agent") or f"✗ {each.get('problem')}"
            model = "may call" if each["model_may_call"] else "–"
            table.append((each["name"], each["url"], each.get("speaks", "–"), model, about))
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        for row in table:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            print(printable("  ".join(cells).rstrip()))
    return COMPLETED if all(each["ok"] for each in found) else 1


async def _look(peers: Peers, name: str, settings: ClientSettings) -> Json:
    setting = settings.peers[name]
    about: Json = {
        "name": name,
        "url": setting.url,
        "model_may_call": setting.model_may_call,
        "ok": False,
    }
    try:
        target = target_of(name, setting, settings.outbound)
        async with peers.connect(target) as peer:
            card = peer.found.card
            speaks = f"{peer.line} {peer.transport}"
            return about | {
                "ok": True,
                "speaks": speaks,
                "agent": card.name,
                "description": card.description,
                "skills": [skill.name for skill in card.skills],
            }
    except PeerError as exc:
        return about | {"problem": exc.message}
    except ConfigError as exc:
        return about | {"problem": exc.problems[0]}


async def _card(settings: ClientSettings, target: Target, *, extended: bool) -> int:
    peers = Peers(egress_of(settings.outbound), limits_of(settings.outbound))
    async with peers.connect(target) as peer:
        shown = await peer.extended_card() if extended else peer.found.raw
        text = json.dumps(shown, indent=2, ensure_ascii=False)
        print(printable(text) if sys.stdout.isatty() else text)
        problems = list(card_problems(peer.found.raw, peer.found.card))
        for problem in problems:
            _complain(problem)
        if sys.stderr.isatty() and not problems:
            print(f"Nothing is wrong with this card. {_speaks(peer)}", file=sys.stderr)
    return INVALID_CARD if problems else COMPLETED


def _speaks(peer: Peer) -> str:
    how = "streams" if peer.streams else "does not stream"
    return f"`call` would speak A2A {peer.line} over {peer.transport} with it; it {how}."
