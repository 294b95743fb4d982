"""Checks of OpenCode: the executable, the server, its login, events and provider."""

from __future__ import annotations

import asyncio
import re
import socket
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from ..domain.addresses import is_loopback
from ..domain.release import Release
from ..errors import UpstreamError, UpstreamHttpError, UpstreamPayloadError
from ..opencode.api import Defaults
from ..opencode.feed import Feed
from ..opencode.http import Endpoint, Http
from ..opencode.process import ManagedProcessFailed
from ..opencode.providers import chosen_providers
from ..paths import program_path
from . import judgement as j
from .question import ask_opencode
from .subject import OpenCodeServer
from .verdict import Check, NotTried, Once, Verdict, fine, found

ANSWER_SECONDS = 6.0  # for a request that OpenCode answers at once
EVENT_SECONDS = 12.0  # for the first event
ELSEWHERE = ("192.0.2.1", 9)  # an address of no machine; nothing is sent there


class OpenCodeLook:
    """What several checks need to know of one OpenCode."""

    def __init__(self, server: OpenCodeServer) -> None:
        self.server = server
        self.without_password = Once(lambda: self._ask(password=None))
        self.with_password = Once(lambda: self._ask(password=self.endpoint.password))

    @property
    def endpoint(self) -> Endpoint:
        if self.server.endpoint is None:
            raise NotTried(
                "No OpenCode runs for this workspace; `opencode-a2a up` would start one.",
                "Run this again while `opencode-a2a up` runs.",
            )
        return self.server.endpoint

    @property
    def login_endpoint(self) -> Endpoint:
        """Where to log in."""
        if self.server.managed_by is not None:
            raise NotTried(
                "Only the `up` that has started this OpenCode knows its password; `readiness` and "
                "`model` ask it."
            )
        return self.endpoint

    async def _ask(self, password: str | None) -> Release | None:
        return await ask_release(replace(self.endpoint, password=password))

    async def version(self) -> Release:
        """What it says once this service has logged in."""
        release = await self.tried(self.with_password)
        if release is None:
            raise NotTried("OpenCode does not let this service in.")
        return release

    async def log_in(self) -> Endpoint:
        """Where it can be talked to."""
        endpoint = self.login_endpoint
        if not (await self.version()).is_supported:
            raise NotTried("This version of OpenCode is not supported.")
        return endpoint

    async def tried(self, answer: Once[Release | None]) -> Release | None:
        try:
            return await answer.get()
        except UpstreamError:
            raise NotTried("OpenCode does not answer.") from None


async def ask_release(endpoint: Endpoint) -> Release | None:
    """None: it wants another password. UpstreamError: there is no answer of OpenCode's."""
    async with Http.open(endpoint) as http:
        try:
            return await http.identify(ANSWER_SECONDS)
        except UpstreamHttpError as exc:
            if exc.facts["upstream_status"] == 401:
                return None
            raise


async def look_for_executable(look: OpenCodeLook) -> Verdict:
    server = look.server
    if server.endpoint is not None and server.managed_by is None:
        # Nor is one run to see its version: a deployed instance looks with its credentials.
        return fine("None is needed: one runs already.")
    try:
        path = await asyncio.to_thread(server.find)
    except LookupError as exc:
        if server.endpoint is not None:
            return fine("None was found here, and none is needed: one runs already.")
        return found(j.OPENCODE_MISSING, "OpenCode was not found.", str(exc))
    version = await _version_of(path, server.directory)
    if version is None:
        return found(j.OPENCODE_BROKEN, f"`{path} --version` does not say a version.")
    if not Release.named(version).is_supported:
        says = f"{path} is version {version}, which is not supported."
        return found(j.OPENCODE_BROKEN, says, j.OPENCODE_UNSUPPORTED.fix)
    return fine(f"{path} is version {version}.")


async def _version_of(path: str, workspace: Path) -> str | None:
    """What the executable says. Whatever it writes goes to a home that is removed."""
    with tempfile.TemporaryDirectory(prefix="opencode-a2a-doctor-") as home:
        plain = {"PATH": program_path(outside=workspace), "HOME": home}
        try:
            process = await asyncio.create_subprocess_exec(
                path,
                "--version",
                env=plain,
                cwd=home,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
        except OSError:
            return None
        try:
            printed, _ = await process.communicate()
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    said = re.search(r"\d+\.\d+[\w.+-]*", printed.decode(errors="replace"))
    return said[0] if said and process.returncode == 0 else None


async def look_at_address(look: OpenCodeLook) -> Verdict:
    url = look.endpoint.base_url
    try:
        await look.without_password.get()
    except UpstreamPayloadError:
        return found(j.OPENCODE_OTHER, f"{url} answers, but not as OpenCode does.")
    except UpstreamHttpError as exc:
        status = exc.facts["upstream_status"]
        return found(j.OPENCODE_OTHER, f"{url} answers HTTP {status}, not as OpenCode does.")
    except UpstreamError:
        return found(j.OPENCODE_UNREACHABLE, f"Nobody answers at {url}.")
    return fine(f"{url} answers.")


async def look_at_password(look: OpenCodeLook) -> Verdict:
    endpoint, managed = look.endpoint, look.server.managed_by is not None
    is_open = await look.tried(look.without_password) is not None
    let_in = None
    if not is_open and not managed and endpoint.password is not None:
        let_in = await look.tried(look.with_password) is not None
    beyond = is_open and (
        not is_loopback(urlsplit(endpoint.base_url).hostname or "")
        or await _is_open_elsewhere(endpoint)
    )
    return j.judge_password(j.Doors(is_open, let_in, beyond, managed=managed))


async def _is_open_elsewhere(endpoint: Endpoint) -> bool:
    """Whether the same port answers without a password at this machine's outer address."""
    parts = urlsplit(endpoint.base_url)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(ELSEWHERE)  # which only chooses the address to send from
        except OSError:
            return False  # there is no way to other machines
        outer = probe.getsockname()[0]
    elsewhere = Endpoint(f"{parts.scheme}://{outer}:{parts.port or 80}")
    try:
        return await ask_release(elsewhere) is not None
    except UpstreamError:
        return False


async def look_at_version(look: OpenCodeLook) -> Verdict:
    if look.server.managed_by is not None and look.server.managed_by.opencode_version:
        return j.judge_version(Release.named(look.server.managed_by.opencode_version))
    _ = look.login_endpoint
    return j.judge_version(await look.version())


async def look_at_events(look: OpenCodeLook) -> Verdict:
    endpoint = await look.log_in()
    async with Http.open(endpoint, timeout=ANSWER_SECONDS) as http, Feed.open(http) as feed:
        try:
            await feed.ready(within=EVENT_SECONDS)
        except UpstreamError as exc:
            return found(j.OPENCODE_NO_EVENTS, f"OpenCode's events do not arrive. {exc.message}")
    return fine("OpenCode's events arrive.")


async def look_at_provider(look: OpenCodeLook) -> Verdict:
    endpoint = await look.log_in()
    try:
        chosen = await chosen_providers(endpoint, look.server.directory)
    except ManagedProcessFailed as exc:
        return found(j.PROVIDER_UNREADABLE, str(exc))
    if not chosen.names:
        return found(j.PROVIDER_NONE, "No model provider is configured in OpenCode.")
    return fine(f"Model: {chosen}.")


async def ask_model(look: OpenCodeLook, prompt: str) -> j.Answer:
    endpoint, server = await look.log_in(), look.server
    defaults = Defaults(str(server.directory), agent=server.agent, variant=server.variant)
    return await ask_opencode(endpoint, defaults, prompt)


OPENCODE: tuple[Check[OpenCodeLook], ...] = (
    Check(
        "opencode executable",
        "whether there is an OpenCode that `up` can start",
        look=look_for_executable,
        findings=(j.OPENCODE_MISSING, j.OPENCODE_BROKEN),
        seconds=30.0,
    ),
    Check(
        "opencode",
        "whether OpenCode answers",
        look=look_at_address,
        findings=(j.OPENCODE_UNREACHABLE, j.OPENCODE_OTHER),
    ),
    Check(
        "opencode password",
        "whether OpenCode has a password, and whether it is ours",
        look=look_at_password,
        findings=(j.OPENCODE_REFUSES, j.OPENCODE_OPEN, j.OPENCODE_OPEN_HERE),
        seconds=30.0,
    ),
    Check(
        "opencode version",
        "whether this version works with that of OpenCode",
        look=look_at_version,
        findings=(j.OPENCODE_UNSUPPORTED, j.OPENCODE_UNTESTED, j.OPENCODE_LACKS),
    ),
    Check(
        "opencode events",
        "whether OpenCode's events arrive",
        look=look_at_events,
        findings=(j.OPENCODE_NO_EVENTS,),
        seconds=30.0,
    ),
    Check(
        "provider",
        "whether OpenCode has a model provider",
        look=look_at_provider,
        findings=(j.PROVIDER_NONE, j.PROVIDER_UNREADABLE),
        seconds=75.0,
    ),
)
