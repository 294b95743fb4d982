"""One call, or several in a chat: shown, asked about, and remembered."""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..domain.addresses import origin_of
from ..outbound.client import Outgoing, Peer, PeerCall, Peers, PeerUpdate, Received
from ..outbound.downloads import save_files, write_file
from ..outbound.failures import (
    AuthRequired,
    InputRequired,
    PeerError,
    PeerTimeout,
    TaskCanceled,
)
from ..outbound.target import Target
from ..outbound.transcript import File, Json, Transcript
from . import last_conversations
from .failure import CommandError
from .keyboard import LineReader
from .outcome import LEFT
from .printer import Printer

PROMPT = "> "
CANCEL = "/cancel"  # instead of an answer


@dataclass(frozen=True, slots=True)
class First:
    """What a call begins with."""

    message: Outgoing | None = None  # None: watch the task
    task_id: str | None = None


class Conversation:
    def __init__(
        self,
        target: Target,
        printer: Printer,
        reader: LineReader | None,
        arguments: argparse.Namespace,
    ) -> None:
        self.target = target
        self.printer = printer
        self.reader = reader  # where a person answers
        self.how_to_save: str | None = None  # None: by another call
        self.files: list[File] = []  # that the agent has handed over
        self._arguments = arguments
        self._call: PeerCall | None = None  # while the peer works
        self._pressed = asyncio.Event()  # Ctrl-C, while the peer works
        self._main: asyncio.Task[Any] | None = None

    @asynccontextmanager
    async def connect(self, peers: Peers) -> AsyncIterator[Peer]:
        loop, self._main = asyncio.get_running_loop(), asyncio.current_task()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupt)
        async with peers.connect(self.target) as peer:
            if self.printer.details:
                self.printer.say(f"{peer.found.card.name}, A2A {peer.line} over {peer.transport}")
            if not peer.login_goes_there:
                self.printer.say(
                    f"Its card sends messages to {origin_of(peer.url)}, which does not get the "
                    f"credential for {origin_of(self.target.url)} (credential_origins)."
                )
            yield peer

    def call(self, peer: Peer) -> PeerCall:
        return peer.call(self._take)

    def _take(self, update: PeerUpdate) -> None:
        if isinstance(update, Received):
            self.files += [shown for shown in update.shown if isinstance(shown, File)]
        self.printer.update(update)

    def _interrupt(self) -> None:
        if self._pressed.is_set():
            self.printer.pause()
            os._exit(LEFT)
        if self._call is not None and self._call.transcript.task_id is not None:
            self._pressed.set()
        elif self._main is not None:
            self._main.cancel()

    async def until_done(self, call: PeerCall, first: First) -> None:
        """Run until it is done, or until Ctrl-C: then have the peer cancel its task."""
        self._call = call
        working = asyncio.create_task(self._exchange(call, first))
        pressed = asyncio.create_task(self._pressed.wait())
        animation = asyncio.create_task(self.printer.animate())
        try:
            await asyncio.wait({working, pressed}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
                return
            await self._cancel(call)
            call.transcript.check()
            raise TaskCanceled("The peer was asked to cancel the task.")
        except PeerTimeout:
            await self._cancel(call)
            raise
        finally:
            for task in (working, pressed, animation):
                task.cancel()
            await asyncio.gather(working, pressed, animation, return_exceptions=True)
            self.printer.end_answer()
            self._pressed.clear()
            self._call = None
            self._remember(call.transcript)

    async def _cancel(self, call: PeerCall) -> None:
        if call.transcript.task_id is None or call.transcript.ended:
            return
        self.printer.say("Canceling the task. Press Ctrl-C again to leave at once.")
        try:
            await call.cancel()
        except PeerError as exc:
            self.printer.say(f"The task could not be canceled: {exc.message}")

    async def _exchange(self, call: PeerCall, first: First) -> None:
        """One message with everything that follows from it, until nothing more can be done."""
        found, files_before = call.transcript, len(self.files)
        if first.message is None:
            assert first.task_id is not None
            await call.watch(first.task_id)
        else:
            await call.send(await self._complete(call, first.message))
        while found.paused and (reply := await self._reply(found)) is not None:
            if reply == {"text": CANCEL}:
                self._pressed.set()  # the same as Ctrl-C while the peer works, which ends this
                await asyncio.Event().wait()
            await call.send(Outgoing((reply,), task_id=found.task_id, context_id=found.context_id))
        self.printer.end_answer()
        if self.printer.output == "task":
            if found.task is not None and found.task_id is not None:
                await call.get(found.task_id)
            self.printer.print_json(found.task or found.message, indent=2)
        self.printer.usage(found.usage)
        if files := self.files[files_before:]:
            await self._save(call, files)
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
            asked = found.status_text.strip() or "The agent asks for permission."
            self.printer.say(f"{asked.splitlines()[0]} → {decision}")
            return {"data": {"reply": decision, "request_id": request.id}}
        if self.reader is None:
            return None
        self.printer.question(found.status_text or "The agent waits for an answer.")
        while (typed := await self.reader.line(PROMPT)) is not None:
            if typed.strip():
                return {"text": typed}
        return None

    async def _save(self, call: PeerCall, files: list[File]) -> None:
        if self._arguments.save is not None:
            await self.save(call.peer, files, self._arguments.save)
        else:
            again = self.how_to_save or self._command(call.transcript, "--save DIRECTORY")
            self.printer.say(f"To save what the agent has sent: {again}")

    async def save(self, peer: Peer, files: list[File], folder: Path) -> None:
        """Write the files, and say where they are; PeerError or CommandError if one is not."""
        try:
            saved = await save_files(peer, files, partial(write_file, folder))
        except OSError as exc:
            raise CommandError(f"{exc.filename}: {exc.strerror}") from None
        for _, path in saved:
            if isinstance(path, Path):
                self.printer.say(f"Saved {path} ({path.stat().st_size:,} bytes)")
        for file, problem in saved:
            if isinstance(problem, PeerError):
                problem.message = f"{file.name or 'A file'} was not saved. {problem.message}"
                raise problem

    def _check(self, found: Transcript) -> None:
        """Raise unless the task has completed, with a hint how to go on."""
        try:
            found.check()
        except (InputRequired, AuthRequired) as exc:
            answer = "ANSWER" if isinstance(exc, InputRequired) else ""
            exc.hint = f"To continue: {self._command(found, answer)}"
            raise

    def _command(self, found: Transcript, more: str) -> str:
        peer = shlex.quote(self._arguments.peer)
        task = f" --task {found.task_id}" if found.task_id else " TEXT"
        return f"opencode-a2a call {peer}{task} {more}".rstrip()

    def _remember(self, found: Transcript) -> None:
        if found.context_id is not None or found.task_id is not None:
            last_conversations.remember(
                self.target.url,
                context_id=found.context_id,
                task_id=found.task_id,
                waits=found.paused,
            )
