"""The command `up`: OpenCode and the service in front of it, for the person at the terminal."""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
import shutil
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import structlog
from pydantic import SecretStr

from ..app import public_url
from ..config import Settings
from ..opencode.process import Launch, ManagedOpenCode
from ..opencode.providers import ChosenProviders, chosen_providers
from . import executable
from .failure import CommandError
from .serve import Watch, open_listener, run_server
from .token import kept_token

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class MadeToken:
    """A token that nobody configured."""

    value: str
    kept: bool  # for the next start, and for `opencode-a2a token`

    @classmethod
    def of(cls, root: Path) -> MadeToken:
        try:
            return cls(kept_token(root), kept=True)
        except (OSError, RuntimeError) as exc:
            log.warning("token.not_kept", reason=str(exc))
            return cls(secrets.token_urlsafe(24), kept=False)


class MadeSecret(SecretStr):
    """The same, as a setting of the service that runs."""


def find_opencode(settings: Settings, *, install: bool) -> str:
    """The executable to start, installed first if that is asked for."""
    if settings.upstream.base_url is not None:
        raise CommandError(
            "OPENCODE_BASE_URL is set, and `up` starts an OpenCode of its own. Use `opencode-a2a "
            "serve` for that one, or take the setting away.",
            2,
        )
    if install:
        return executable.install(settings.upstream.workspace_root)
    return executable.find(settings.upstream.command, settings.upstream.workspace_root)


def complete(settings: Settings, running: Settings) -> Settings:
    """New settings as a running `up` needs them: with the kept token where none is configured."""
    if not settings.has_credentials:
        made = MadeToken.of(settings.upstream.workspace_root)
        present = running.server.bearer_token
        if made.kept:
            settings.server.bearer_token = MadeSecret(made.value)
        elif isinstance(present, MadeSecret):  # one that was configured may have been revoked
            settings.server.bearer_token = present
        else:
            raise CommandError("no credential is configured any more, and none can be kept", 2)
    return settings


async def up(settings: Settings, watch: Watch, opencode: str, *, count: int = 1) -> None:
    """The command `up`, with so many processes of this OpenCode."""
    made = None
    if not settings.has_credentials:
        made = MadeToken.of(settings.upstream.workspace_root)
        settings.server.bearer_token = MadeSecret(made.value)
    with open_listener(settings, watch.manager) as listener:
        async with _start_fleet(settings, watch, opencode, count=count) as (fleet, chosen):
            url = public_url(settings.server, listener.getsockname()[1])
            serving = asyncio.create_task(
                run_server(
                    settings,
                    fleet[0].endpoint,
                    more_opencodes=[managed.endpoint for managed in fleet[1:]],
                    listener=listener,
                    watch=watch,
                    welcome=welcome(settings, url, made=made, chosen=chosen),
                )
            )
            failing = [asyncio.create_task(managed.failed()) for managed in fleet]
            try:
                await asyncio.wait({serving, *failing}, return_when=asyncio.FIRST_COMPLETED)
                for failed in failing:
                    if failed.done():
                        raise failed.result()
                await serving
            finally:
                for task in (serving, *failing):
                    task.cancel()
                await asyncio.gather(serving, *failing, return_exceptions=True)


@asynccontextmanager
async def _start_fleet(
    settings: Settings, watch: Watch, command: str, *, count: int
) -> AsyncIterator[tuple[Sequence[ManagedOpenCode], ChosenProviders]]:
    """So many OpenCodes with the same configuration, and so the same sessions.

    It is the user's own or, where that names no provider, that of the demo model. Only OpenCode
    knows its providers: it is started to be asked.
    """
    root = settings.upstream.workspace_root
    launch = Launch(command, root, environment=os.environ)
    async with AsyncExitStack() as stack:
        watch.say("Starting OpenCode …")
        attempt = await stack.enter_async_context(AsyncExitStack())
        fleet = [await attempt.enter_async_context(ManagedOpenCode.start(launch))]
        chosen = await chosen_providers(fleet[0].endpoint, root)
        if not chosen.names:
            from ..demo import model as demo  # only few runs need it

            await attempt.aclose()
            watch.say("It has no model provider. Starting it with the demo model …")
            url = await stack.enter_async_context(demo.serve())
            launch = replace(launch, config=demo.opencode_config(url))
            fleet = [await stack.enter_async_context(ManagedOpenCode.start(launch))]
        for number in range(2, count + 1):
            watch.say(f"Starting OpenCode {number} of {count} …")
            fleet.append(await stack.enter_async_context(ManagedOpenCode.start(launch)))
        yield fleet, chosen


def welcome(
    settings: Settings, url: str, *, made: MadeToken | None, chosen: ChosenProviders
) -> str:
    from ..inbound.console import is_built  # loaded by now: the service is about to be built

    root = settings.upstream.workspace_root
    login, put_in = _login(settings, root, made)
    lines = ["", f"OpenCode answers A2A at {url}", f"It works in {root}"]
    lines += [f"Version: {chosen.release.version}"]
    if chosen.names:
        lines += [f"Model: {chosen}"]
    else:
        lines += [
            "Model: demo",
            "",
            "No model provider is configured, so a built-in demo model answers: it shows how",
            "answers, tool calls and questions arrive. For a real one run `opencode auth login`,",
            "or set a provider's key such as ANTHROPIC_API_KEY, and start again.",
        ]
    if settings.server.console and is_built():
        lines += ["", f"Console: {url}/console{_console_login(made)}"]
    elif settings.server.console:
        lines += ["", "Console: not part of this installation (`make console` before installing)"]
    if made and made.kept:
        lines += ["", f"Its token stays the same; to see it: {_token_command(root)}"]
    elif made:
        lines += ["", f"Token (only for this run, since it cannot be kept): {made.value}"]
    lines += [
        "",
        f"Try it{put_in}{'' if put_in else ', in another shell'}:",
        "",
        f"  curl -s {url}/message:send \\",
        f"    {login} \\",
        "    -H 'Content-Type: application/json' -H 'A2A-Version: 1.0' \\",
        '    -d \'{"message": {"messageId": "m1", "role": "ROLE_USER",'
        ' "parts": [{"text": "Hello!"}]}}\'',
        "",
        "Stop with Ctrl-C.",
        "",
    ]
    return "\n".join(lines)


def _console_login(made: MadeToken | None) -> str:
    """The token in the link, for a person at a terminal: never in a log, never a configured one."""
    return f"#token={made.value}" if made is not None and sys.stderr.isatty() else ""


def _login(settings: Settings, root: Path, made: MadeToken | None) -> tuple[str, str]:
    """The login for curl, and what the reader must replace: configured secrets are never shown."""
    server = settings.server
    bearer = '-H "Authorization: Bearer {}"'
    if made is not None:
        return bearer.format(f"$({_token_command(root)})" if made.kept else made.value), ""
    if server.bearer_token is not None:
        for name, value in os.environ.items():  # which overrides files
            if name.upper() == "A2A_BEARER_TOKEN" and value:
                return bearer.format(f"${name}"), f", where ${name} is set"
        return bearer.format("TOKEN"), ", with your A2A_BEARER_TOKEN for TOKEN"
    if not server.enabled_credentials:
        return bearer.format("TOKEN"), f", with a token of {settings.oidc.issuer} for TOKEN"
    credential = server.enabled_credentials[0]
    if credential.scheme == "api_key":
        return '-H "X-API-Key: KEY"', f", with the API key of {credential.principal} for KEY"
    if credential.scheme == "bearer":
        return bearer.format("TOKEN"), f", with the token of {credential.principal} for TOKEN"
    user = f"{credential.username}:PASSWORD"
    return f"-u {shlex.quote(user)}", f", with the password of {credential.principal} for PASSWORD"


def _token_command(root: Path) -> str:
    """As it works in any shell, in any directory."""
    return f"{_program()} token {shlex.quote(str(root))}"


def _program() -> str:
    """How to call this program again: by its name where that finds it, else by its path."""
    path = Path(sys.argv[0]).absolute()
    found = shutil.which(path.name)
    if found and path.exists() and path.samefile(found):
        return path.name
    if path.name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m opencode_a2a"
    return shlex.quote(str(path))
