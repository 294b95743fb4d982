"""The commands that speak with other agents: `call`, `peers`, and `card` with an address."""

from __future__ import annotations

import argparse
import asyncio
import base64
import gc
import json
import math
import mimetypes
import os
import shlex
import signal
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..config import ClientSettings, ConfigError, load_client
from ..contract.declare import SPECIFICATIONS
from ..domain.addresses import origin_of
from ..outbound.card import card_problems
from ..outbound.client import Outgoing, Peer, PeerCall, Peers
from ..outbound.failures import (
    AuthRequired,
    InputRequired,
    PeerError,
    PeerTimeout,
    TaskCanceled,
)
from ..outbound.target import Login, Target
from ..outbound.transcript import Json, Transcript
from ..peers import egress_of, find_target, limits_of, origins_of, target_of
from . import conversations
from .failure import CommandError
from .instances import running_instances
from .keyboard import TERMINAL, Keyboard
from .outcome import COMPLETED, INVALID_CARD, LEFT, USAGE, exit_code
from .printer import Printer, printable
from .token import find_token

MAX_FILE_BYTES = 32 * 1024 * 1024  # of all attachments together
STREAM_HINTS = f"{SPECIFICATIONS}#shared-stream-hints-v1"
PROMPT = "> "
CHAT_HELP = """\
/new begins another conversation, /file PATH attaches a file to the next message, /model
PROVIDER/MODEL chooses the model for the next ones, /quit or Ctrl-D leaves. A line that ends with
a backslash goes on in the next. Ctrl-C cancels what the agent is doing."""


def run_client(arguments: argparse.Namespace) -> int:
    """Run one of the commands; its exit code."""
    gc.enable()  # all is loaded
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
    secrets_dir = arguments.secrets
    if secrets_dir is None and "CREDENTIALS_DIRECTORY" in os.environ:  # systemd's
        secrets_dir = Path(os.environ["CREDENTIALS_DIRECTORY"])
    return load_client(config, secrets_dir)


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
    printer = Printer.of(output)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        with Keyboard.open(anyway=arguments.ask) as keyboard:
            first = _first(arguments, target, keyboard)
            conversation = _Conversation(target, printer, keyboard, arguments)
            peers = Peers(egress_of(settings.outbound), limits)
            return asyncio.run(conversation.run(peers, first))
    except OSError as exc:
        if arguments.ask and str(exc.filename) == str(TERMINAL):
            raise CommandError("--ask: there is no terminal to ask on", USAGE) from None
        raise


@dataclass(frozen=True, slots=True)
class _First:
    """What a call begins with."""

    message: Outgoing | None = None  # None: watch the task, or begin a chat
    task_id: str | None = None


def _first(
    arguments: argparse.Namespace, target: Target, keyboard: Keyboard | None
) -> _First | None:
    """None: a person is at the terminal and has not said anything yet."""
    task_id, context_id = arguments.task, arguments.context
    if arguments.last:
        kept = conversations.last(target.url)
        if kept is None:
            raise CommandError(f"--last: there was no conversation with {target.url} yet", USAGE)
        context_id = context_id or kept.context_id
        task_id = task_id or (kept.task_id if kept.waits else None)
    text = _text(arguments)
    parts = tuple(_parts(text, arguments.file))
    if not parts:
        if arguments.task:
            return _First(task_id=task_id)
        if keyboard is not None:
            return None
        raise CommandError("there is nothing to send: give TEXT, or write it to the input", USAGE)
    return _First(Outgoing(parts, _metadata(arguments), task_id, context_id), task_id)


def _text(arguments: argparse.Namespace) -> str:
    words = list(arguments.text)
    if "-" not in words:
        if words or arguments.file or arguments.task or sys.stdin is None or sys.stdin.isatty():
            return " ".join(words)
        words = ["-"]
    given = sys.stdin.buffer.read().decode(errors="replace").rstrip("\n")
    return "\n\n".join(filter(None, [" ".join(w for w in words if w != "-"), given]))


def _parts(text: str, files: list[Path]) -> list[Json]:
    parts: list[Json] = [{"text": text}] if text.strip() else []
    total = 0
    for file in files:
        try:
            content = file.read_bytes()
        except OSError as exc:
            raise CommandError(f"--file {file}: {exc.strerror}", USAGE) from None
        total += len(content)
        if total > MAX_FILE_BYTES:
            raise CommandError(f"--file {file}: more than {MAX_FILE_BYTES} bytes", USAGE)
        parts.append(
            {
                "raw": base64.b64encode(content).decode(),
                "filename": file.name,
                "mediaType": _media_type(file, content),
            }
        )
    return parts


def _media_type(file: Path, content: bytes) -> str:
    if known := mimetypes.guess_type(file.name)[0]:
        return known
    try:
        content.decode()
    except UnicodeDecodeError:
        return "application/octet-stream"
    return "text/plain"


def _metadata(arguments: argparse.Namespace) -> Json | None:
    """What services of this project read; others ignore it."""
    shared: Json = {}
    if arguments.session:
        shared["session"] = {"id": arguments.session}
    if arguments.model:
        provider, slash, model = arguments.model.partition("/")
        if not (provider and slash and model):
            raise CommandError(f"--model {arguments.model}: must be PROVIDER/MODEL", USAGE)
        shared["model"] = {"providerID": provider, "modelID": model}
    found = {"shared": shared, "opencode": {"agent": arguments.agent} if arguments.agent else {}}
    return {name: value for name, value in found.items() if value} or None


class _Conversation:
    """One call, or several in a chat: shown, asked about, and remembered."""

    def __init__(
        self,
        target: Target,
        printer: Printer,
        keyboard: Keyboard | None,
        arguments: argparse.Namespace,
    ) -> None:
        self._target = target
        self._printer = printer
        self._keyboard = keyboard
        self._arguments = arguments
        self._call: PeerCall | None = None  # while the peer works
        self._pressed = asyncio.Event()  # Ctrl-C, while the peer works
        self._main: asyncio.Task[Any] | None = None

    async def run(self, peers: Peers, first: _First | None) -> int:
        loop, self._main = asyncio.get_running_loop(), asyncio.current_task()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupt)
        async with peers.connect(self._target) as peer:
            if self._printer.details:
                self._printer.say(f"{peer.found.card.name}, A2A {peer.line} over {peer.transport}")
            if not peer.login_goes_there:
                self._printer.say(
                    f"Its card sends messages to {origin_of(peer.url)}, which does not get the "
                    f"credential for {origin_of(self._target.url)} (credential_origins)."
                )
            if first is None:
                return await self._chat(peer)
            await self._until_done(peer, first)
            return COMPLETED

    def _interrupt(self) -> None:
        if self._pressed.is_set():
            self._printer.end_line()
            os._exit(LEFT)
        if self._call is not None and self._call.transcript.task_id is not None:
            self._pressed.set()
        elif self._main is not None:
            self._main.cancel()

    async def _until_done(self, peer: Peer, first: _First) -> Transcript:
        """Run until it is done, or until Ctrl-C: then have the peer cancel its task."""
        call = self._call = peer.call(self._printer.update)
        working = asyncio.create_task(self._exchange(call, first))
        pressed = asyncio.create_task(self._pressed.wait())
        try:
            await asyncio.wait({working, pressed}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
                return call.transcript
            await self._cancel(call)
            call.transcript.check()
            raise TaskCanceled("The peer was asked to cancel the task.")
        except PeerTimeout:
            await self._cancel(call)
            raise
        finally:
            pressed.cancel()
            working.cancel()
            await asyncio.gather(working, pressed, return_exceptions=True)
            self._printer.end_answer()
            self._pressed.clear()
            self._call = None
            self._remember(call.transcript)

    async def _cancel(self, call: PeerCall) -> None:
        if call.transcript.task_id is None or call.transcript.ended:
            return
        self._printer.say("Canceling the task. Press Ctrl-C again to leave at once.")
        try:
            await call.cancel()
        except PeerError as exc:
            self._printer.say(f"The task could not be canceled: {exc.message}")

    async def _exchange(self, call: PeerCall, first: _First) -> None:
        """One message with everything that follows from it, until nothing more can be done."""
        found = call.transcript
        if first.message is None:
            assert first.task_id is not None
            await call.watch(first.task_id)
        else:
            await call.send(await self._complete(call, first.message))
        while found.paused and (reply := await self._reply(found)) is not None:
            await call.send(Outgoing((reply,), task_id=found.task_id, context_id=found.context_id))
        self._printer.end_answer()
        if self._printer.output == "task":
            if found.task is not None and found.task_id is not None:
                await call.get(found.task_id)
            self._printer.print_json(found.task or found.message, indent=2)
        self._printer.usage(found.usage)
        self._check(found)

    async def _complete(self, call: PeerCall, message: Outgoing) -> Outgoing:
        """Some agents begin a new context unless a message names both its task and its context."""
        if message.task_id is None or message.context_id is not None:
            return message
        asked = call.peer.call(lambda update: None)
        await asked.get(message.task_id)
        return replace(message, context_id=asked.transcript.context_id)

    async def _reply(self, found: Transcript) -> Json | None:
        """The answer to what the peer asks, as a part of a message; None if there is nobody."""
        if found.state == "AUTH_REQUIRED":
            return None
        request = found.requests[0] if found.requests else None
        decision = "once" if self._arguments.yes else "reject" if self._arguments.no else None
        if request is not None and request.type == "permission" and decision is not None:
            self._printer.say(f"{found.status_text.splitlines()[0]} → {decision}")
            return {"data": {"reply": decision, "request_id": request.id}}
        if self._keyboard is None:
            return None
        self._printer.question(found.status_text or "The agent waits for an answer.")
        while (typed := await self._keyboard.line(PROMPT)) is not None:
            if typed.strip():
                return {"text": typed}
        return None

    def _check(self, found: Transcript) -> None:
        """Raise unless the task has completed, with a hint how to go on."""
        try:
            found.check()
        except (InputRequired, AuthRequired) as exc:
            command = (
                f"opencode-a2a call {shlex.quote(self._arguments.peer)} --task {found.task_id}"
            )
            answer = " ANSWER" if isinstance(exc, InputRequired) else ""
            exc.hint = f"To continue: {command}{answer}"
            raise

    def _remember(self, found: Transcript) -> None:
        if found.context_id is not None or found.task_id is not None:
            conversations.remember(
                self._target.url,
                context_id=found.context_id,
                task_id=found.task_id,
                waits=found.paused,
            )

    # -- without a text: several messages

    async def _chat(self, peer: Peer) -> int:
        assert self._keyboard is not None
        self._printer.say("Type a message. /help says what else there is.")
        draft = _Draft(context_id=self._arguments.context)
        if self._arguments.last and (kept := conversations.last(self._target.url)) is not None:
            draft.context_id = draft.context_id or kept.context_id
        while (typed := await self._typed()) is not None:
            command, _, rest = typed.strip().partition(" ")
            if command in ("/quit", "/exit"):
                break
            if command.startswith("/"):
                self._printer.say(draft.command(command, rest.strip()))
                continue
            try:
                message = draft.message(typed, self._arguments)
            except CommandError as exc:
                _complain(str(exc))
                continue
            try:
                found = await self._until_done(peer, _First(message))
                draft.context_id = found.context_id
            except PeerError as exc:
                _complain(f"{exc.message} {exc.hint}".strip())
            draft.files.clear()
        return COMPLETED

    async def _typed(self) -> str | None:
        """What a person types; None at the end. A backslash at the end of a line continues it."""
        assert self._keyboard is not None
        lines: list[str] = []
        while (line := await self._keyboard.line("… " if lines else PROMPT)) is not None:
            lines.append(line.removesuffix("\\"))
            if not line.endswith("\\"):
                text = "\n".join(lines)
                if text.strip():
                    return text
                lines.clear()
        return None


@dataclass(slots=True)
class _Draft:
    """What the next message of a chat will have."""

    context_id: str | None = None
    model: str | None = None
    files: list[Path] = field(default_factory=list)

    def message(self, text: str, arguments: argparse.Namespace) -> Outgoing:
        chosen = argparse.Namespace(**vars(arguments))
        chosen.model = self.model or arguments.model
        parts = tuple(_parts(text, self.files))
        return Outgoing(parts, _metadata(chosen), context_id=self.context_id)

    def command(self, name: str, value: str) -> str:
        """Carry out a command; what to say about it."""
        if name == "/new":
            self.context_id = None
            return "The next message begins a new conversation."
        if name == "/file" and value:
            path = Path(value).expanduser()
            if not path.is_file():
                return f"{path}: there is no such file."
            self.files.append(path)
            return f"{path.name} goes with the next message."
        if name == "/model" and value.count("/"):
            self.model = value
            return f"The next messages go to {value}."
        return CHAT_HELP


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
