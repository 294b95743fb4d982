"""The command `doctor`: finds out what there is to look at, and shows what the checks say."""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TextIO, cast
from urllib.parse import urlsplit

from pydantic import SecretStr

from .. import __version__, logs
from ..config import ClientSettings, ConfigError, Server, Settings
from ..credentials import CredentialsFileError, StoredToken
from ..doctor.checks import examine_installation, examine_site
from ..doctor.examine import Report, examine, worst
from ..doctor.subject import Installation, Json, OpenCodeServer, Site
from ..doctor.verdict import Examination, Level, Verdict
from ..paths import folder_name, state_home
from ..peers import find_target
from ..redaction import secrets_in
from .call import client_settings, kept_token
from .executable import find
from .failure import CommandError
from .instances import RegisteredInstance, running_instances
from .outcome import COMPLETED, LEFT, USAGE
from .printer import printable
from .terminal import Terminal, has_cursor
from .token import FILE as TOKEN_FILE

DIM, RED, GREEN, YELLOW = "2", "31", "32", "33"  # of terminals
MARKS = {
    Level.OK: ("✓", GREEN),
    Level.UNKNOWN: ("?", DIM),
    Level.WARNING: ("!", YELLOW),
    Level.ERROR: ("✗", RED),
}
PROGRESS_SECONDS = 0.2
CONNECT_SECONDS = 1.0  # for somebody who listens at OpenCode's usual address
FAILED = 1


def run_doctor(arguments: argparse.Namespace) -> int:
    """The exit code: 1 if something is wrong. Warnings, and what is not known, are no failure."""
    logs.configure("critical")  # what the parts would log, the checks say
    logs.redactor.add(*secrets_in(os.environ))
    try:
        client = client_settings(arguments)
        return asyncio.run(_examine(arguments, client))
    except ConfigError as exc:
        for problem in exc.problems:
            print(f"opencode-a2a: {printable(problem)}", file=sys.stderr)
        return USAGE
    except BrokenPipeError:  # whoever read the output has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return COMPLETED
    except KeyboardInterrupt:
        return LEFT


async def _examine(arguments: argparse.Namespace, client: ClientSettings) -> int:
    asks = not arguments.no_model
    if arguments.url is not None:
        examinations = examine_site(_named_site(arguments.url, client), asks=asks)
    else:
        examinations = await _examine_installation(arguments, client, asks=asks)
    if arguments.json:
        reports = await examine(examinations)
        print(json.dumps(_document(reports), indent=2, ensure_ascii=False))
    else:
        async with Screen.open(examinations) as screen:
            reports = await examine(examinations, screen.take)
        screen.say(_summary(reports))
    return FAILED if worst(reports) is Level.ERROR else COMPLETED


# -- what there is to look at


async def _examine_installation(
    arguments: argparse.Namespace, client: ClientSettings, *, asks: bool
) -> list[Examination]:
    from .program import read_settings  # loads the service

    settings = read_settings(arguments)
    logs.redactor.add(*settings.secrets)
    instances = _instances()
    root = settings.upstream.workspace_root
    own = next((each for each in instances if Path(each.workspace) == root), None)
    token_file = _token_file(root)
    return examine_installation(
        Installation(settings, instances, own=own, peers=client.peers, token_file=token_file),
        await _server(settings, own),
        _own_site(settings, own, token_file),
        client=client,
        asks=asks,
    )


def _instances() -> list[RegisteredInstance]:
    try:
        return running_instances()
    except (OSError, RuntimeError):  # there is no directory for them
        return []


def _token_file(root: Path) -> Path | None:
    with suppress(RuntimeError):
        file = state_home() / folder_name(root) / TOKEN_FILE
        return file if file.is_file() else None
    return None


async def _server(settings: Settings, own: RegisteredInstance | None) -> OpenCodeServer:
    """The OpenCode that is configured, that a running service has, or that `serve` would take."""
    from ..app import endpoint_of
    from .serve import DEFAULT_OPENCODE

    upstream = settings.upstream
    managed_by = None
    if upstream.base_url is None and own is not None:
        upstream.base_url = own.opencode_url
        managed_by = own if own.command == "up" else None
    elif upstream.base_url is None and await _listens(DEFAULT_OPENCODE):
        upstream.base_url = DEFAULT_OPENCODE

    def find_executable() -> str:
        try:
            return find(upstream.command, upstream.workspace_root)
        except CommandError as exc:
            raise LookupError(str(exc)) from None

    return OpenCodeServer(
        upstream.workspace_root,
        endpoint_of(settings),
        find_executable,
        managed_by=managed_by,
        agent=upstream.agent,
        variant=upstream.variant,
    )


async def _listens(url: str) -> bool:
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


def _own_site(settings: Settings, own: RegisteredInstance | None, token_file: Path | None) -> Site:
    server = settings.server
    url = server.public_url or (own.url if own is not None else None)
    if url is None:
        return Site(None, why_not="No service of yours runs for this workspace.")
    if not server.enabled_secrets and token_file is not None:  # as `up` does it
        token = SecretStr(token_file.read_text().strip())
        logs.redactor.add(token.get_secret_value())
        server = server.model_copy(update={"bearer_token": token})
    return Site(
        url,
        headers=_login(server),
        own_card=_card(settings, server, url),
        certificate=server.tls_certificate,
    )


def _login(server: Server) -> tuple[tuple[str, str], ...]:
    """A credential that the service accepts, as a header."""
    if server.bearer_token is not None:
        return (("Authorization", f"Bearer {server.bearer_token.get_secret_value()}"),)
    for each in server.enabled_credentials:
        if each.token is not None and each.scheme == "api_key":
            return (("X-API-Key", each.token.get_secret_value()),)
        if each.token is not None:
            return (("Authorization", f"Bearer {each.token.get_secret_value()}"),)
        if each.password is not None:
            login = f"{each.username}:{each.password.get_secret_value()}"
            return (("Authorization", f"Basic {base64.b64encode(login.encode()).decode()}"),)
    return ()


def _card(settings: Settings, server: Server, url: str) -> Json:
    from ..access import stored_tokens
    from ..app import publication

    tokens: tuple[StoredToken, ...] = ()
    with suppress(CredentialsFileError):  # the service has logged that
        tokens = stored_tokens(settings)
    published = publication(replace(settings, server=server), url, tokens=tokens)
    return cast(Json, json.loads(published.card.hybrid.body))


def _named_site(word: str, client: ClientSettings) -> Site:
    target = find_target(client, word)
    headers = target.login.headers_for(target.url)
    if not headers and (token := kept_token(target.url)) is not None:
        logs.redactor.add(token)
        headers = (("Authorization", f"Bearer {token}"),)
    return Site(target.url, headers=headers)


# -- what is shown


def _clean(text: str) -> str:
    return logs.escaped(logs.redactor.known(text))


def _document(reports: Sequence[Report]) -> Json:
    return {
        "version": __version__,
        "verdict": worst(reports),
        "checks": [
            {
                "check": each.check,
                "verdict": each.verdict.level,
                "finding": each.verdict.finding,
                "says": _clean(each.verdict.says),
                "fix": _clean(each.verdict.fix) or None,
                "seconds": each.seconds,
            }
            for each in reports
        ],
    }


def _summary(reports: Sequence[Report]) -> str:
    counts = Counter(each.verdict.level for each in reports)
    words = []
    for level, count in ((level, counts[level]) for level in Level if counts[level]):
        many = level in (Level.WARNING, Level.ERROR) and count > 1
        words.append(f"{count} {level}{'s' if many else ''}")
    return ", ".join(words)


@dataclass(slots=True)
class Screen:
    """Shows reports in the order of the checks; a terminal also shows what is still looked at."""

    order: list[str]
    terminal: Terminal | None
    colours: bool
    _width: int = 0
    _last: Verdict | None = None  # that was shown
    _waiting: dict[str, Report] = field(default_factory=dict)

    @classmethod
    @asynccontextmanager
    async def open(cls, examinations: Sequence[Examination]) -> AsyncIterator[Screen]:
        cursor = has_cursor(sys.stdout)
        terminal = Terminal(sys.stdout) if cursor else None
        colours = cursor and not os.environ.get("NO_COLOR")
        names = [each.name for each in examinations]
        self = cls(names, terminal, colours=colours, _width=max(map(len, names)))
        showing = asyncio.create_task(self._show_progress())
        try:
            yield self
        finally:
            showing.cancel()
            await asyncio.gather(showing, return_exceptions=True)
            if terminal is not None:
                terminal.show([])

    @property
    def _out(self) -> TextIO:
        return sys.stdout if self.terminal is None else cast(TextIO, self.terminal)

    def say(self, text: str) -> None:
        self._out.write(text + "\n")
        self._out.flush()

    def take(self, report: Report) -> None:
        self._waiting[report.check] = report
        while self.order and (next_one := self._waiting.pop(self.order[0], None)):
            self.order.pop(0)
            self._print(next_one)

    def _print(self, report: Report) -> None:
        verdict = report.verdict
        if verdict.level is Level.UNKNOWN and verdict == self._last:
            verdict = Verdict(Level.UNKNOWN, "For the same reason.")
        else:
            self._last = verdict
        mark, colour = MARKS[verdict.level]
        name = report.check.ljust(self._width)
        self.say(f"{self._style(mark, colour)} {name}  {_clean(verdict.says)}")
        if verdict.fix:
            self.say(f"  {' ' * self._width}  {self._style(f'→ {_clean(verdict.fix)}', DIM)}")

    def _style(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colours else text

    async def _show_progress(self) -> None:
        clock = asyncio.get_running_loop().time
        began = clock()
        while self.terminal is not None:
            running = ", ".join(name for name in self.order if name not in self._waiting)
            self.terminal.show([f"… {clock() - began:.0f} s: {running}"])
            await asyncio.sleep(PROGRESS_SECONDS)
