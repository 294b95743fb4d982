"""`call` without a message, on a terminal: several of them, one after the other."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.history import DummyHistory, History
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output, create_output

from ..outbound.client import Outgoing, Peer
from ..outbound.failures import InputRequired, PeerError
from . import last_conversations
from .conversation import CANCEL, PROMPT, Conversation, First
from .failure import CommandError
from .history import history_of
from .message import message_metadata, message_parts
from .outcome import USAGE
from .printer import file_line

COMMANDS = {
    "/new": "begin another conversation",
    "/file": "PATH: attach a file to the next message",
    "/files": "DIRECTORY: save what the agent has sent; without it: list all files",
    "/model": "PROVIDER/MODEL: choose the model for the next messages",
    CANCEL: "cancel the task that waits for an answer",
    "/help": "show this",
    "/quit": "leave, like Ctrl-D",
}
KEYS = "Alt-Enter (or Esc, Enter) begins a new line, Ctrl-C cancels the agent's task."
WAITS = f"The agent waits for an answer. The next message is one; {CANCEL} cancels the task."
HELP = "\n".join([*(f"{name:<8} {about}" for name, about in COMMANDS.items()), KEYS])


class Chat:
    def __init__(
        self, conversation: Conversation, peer: Peer, arguments: argparse.Namespace
    ) -> None:
        self._conversation = conversation
        self._peer = peer
        self._arguments = argparse.Namespace(**vars(arguments))  # /model changes it
        self._context_id: str | None = arguments.context
        self._task_id: str | None = None  # of a task that waits for an answer
        self._files: list[Path] = []  # for the next message
        self._say = conversation.printer.say
        self._prompt = ChatPrompt(history_of(conversation.target.url))
        conversation.reader = self._prompt
        conversation.how_to_save = "/files DIRECTORY"

    async def run(self) -> None:
        """Until the person leaves."""
        self._say(f"Type a message, or /help. Ctrl-D leaves.\n{KEYS}")
        if self._arguments.last:
            self._continue_last()
        while (typed := await self._prompt.message()) is not None:
            name, _, value = typed.strip().partition(" ")
            try:
                if name == "/quit":
                    return
                if re.fullmatch(r"/[a-z]+", name):
                    self._say(await self._command(name, value.strip()))
                else:
                    await self._send(typed)
            except InputRequired:
                self._say(WAITS)
            except PeerError as exc:
                self._say(f"{exc.message} {exc.hint}".strip())
            except CommandError as exc:
                self._say(str(exc))

    def _continue_last(self) -> None:
        kept = last_conversations.find(self._conversation.target.url)
        if kept is not None:
            self._context_id = self._context_id or kept.context_id
            self._task_id = kept.task_id if kept.waits else None
        if self._task_id is not None:
            self._say(WAITS)

    async def _send(self, text: str) -> None:
        parts = tuple(message_parts(text, self._files))
        metadata = message_metadata(self._arguments)
        message = Outgoing(parts, metadata, task_id=self._task_id, context_id=self._context_id)
        call = self._conversation.call(self._peer)
        self._files, self._task_id = [], None
        try:
            await self._conversation.until_done(call, First(message))
        finally:
            found = call.transcript
            self._context_id = found.context_id or self._context_id
            self._task_id = found.task_id if found.paused else None

    async def _command(self, name: str, value: str) -> str:
        """Carry out a command; what to say about it."""
        if name == "/new":
            self._context_id = self._task_id = None
            return "The next message begins a new conversation."
        if name == "/file" and value:
            return self._attach(_path(value))
        if name == "/files" and value:
            files = self._conversation.files
            await self._conversation.save(self._peer, files, _path(value))
            return "That is all." if files else "The agent has not sent any file."
        if name == "/files":
            lines = [f"{path} goes with the next message." for path in self._files]
            lines += map(file_line, self._conversation.files)
            return "\n".join(lines) or "There are no files yet."
        if name == "/model":
            return self._choose_model(value)
        if name == CANCEL:
            return await self._cancel()
        return HELP if name in COMMANDS else f"There is no command {name}.\n{HELP}"

    def _attach(self, path: Path) -> str:
        if not path.is_file():
            raise CommandError(f"{path}: there is no such file.", USAGE)
        self._files.append(path)
        return f"{path.name} goes with the next message."

    def _choose_model(self, name: str) -> str:
        before = self._arguments.model
        if not name:
            return f"The model is {before}." if before else "The agent chooses the model."
        self._arguments.model = name
        try:
            message_metadata(self._arguments)
        except CommandError:
            self._arguments.model = before
            raise CommandError(f"/model {name}: must be PROVIDER/MODEL", USAGE) from None
        return f"The next messages go to {name}."

    async def _cancel(self) -> str:
        if self._task_id is None:
            return "No task waits for an answer."
        call = self._peer.call(lambda update: None)
        await call.get(self._task_id)
        self._task_id = None
        await call.cancel()
        return "The task was canceled."


class ChatPrompt:
    """Lines with history, completion and several lines; implements `LineReader` for answers."""

    def __init__(self, history: History, output: Output | None = None) -> None:
        shown = output or create_output(stdout=sys.stderr)
        self._messages: PromptSession[str] = PromptSession(
            f"\n{PROMPT}",
            history=history,
            multiline=True,
            prompt_continuation="… ",
            key_bindings=_keys(),
            completer=_Commands(),
            output=shown,
        )
        self._answers: PromptSession[str] = PromptSession(history=DummyHistory(), output=shown)

    async def message(self) -> str | None:
        """What a person wants to send; None if they leave. Ctrl-C discards what was typed."""
        while True:
            try:
                typed = await self._messages.prompt_async(handle_sigint=False)
            except KeyboardInterrupt:
                continue
            except EOFError:
                return None
            if typed.strip():
                return typed

    async def line(self, prompt: str) -> str | None:
        """An answer; Ctrl-C cancels what the agent waits for it with."""
        try:
            return await self._answers.prompt_async(prompt, handle_sigint=False)
        except KeyboardInterrupt:
            return CANCEL
        except EOFError:
            return None


def _path(typed: str) -> Path:
    return Path(typed).expanduser()


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def begin_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys


class _Commands(Completer):
    """Completes commands, and the paths that some of them take."""

    def __init__(self) -> None:
        self._paths = {
            "/file": PathCompleter(expanduser=True),
            "/files": PathCompleter(expanduser=True, only_directories=True),
        }

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
        name, blank, value = document.text_before_cursor.partition(" ")
        if blank:
            if name in self._paths:
                yield from self._paths[name].get_completions(Document(value), event)
        elif name.startswith("/"):
            for command, about in COMMANDS.items():
                if command.startswith(name):
                    yield Completion(command, -len(name), display_meta=about)
