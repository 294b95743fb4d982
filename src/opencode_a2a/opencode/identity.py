"""Asks OpenCode for its version, and logs what that version lacks.

The version is read after every connection: an OpenCode that was away may be another one now.
"""

from __future__ import annotations

import hmac
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import structlog

from ..domain.addresses import is_loopback
from ..domain.release import TRIED, Release
from .feed import PROBE_TIMEOUT, Feed
from .http import Endpoint, Http

logger = structlog.get_logger()


def opencode_name(endpoint: Endpoint, root: Path) -> str:
    """A name for an OpenCode that stays when it or this process is started again.

    A session is known to one OpenCode alone, so this says which processes can work in it. An
    OpenCode that this service starts gets another port each time; the root it works in stays.
    Callers see the name, so it has no password, and not the id of the machine, which is secret.
    """
    url = urlsplit(endpoint.base_url)
    if not is_loopback(url.hostname or ""):
        return f"{url.scheme}://{url.netloc.rpartition('@')[2]}"
    return f"{_machine()}:{root if endpoint.managed else url.port or 80}"


def _machine() -> str:
    """This machine or container: names may be used twice, and a copied machine has the same id."""
    with suppress(OSError):
        machine_id = Path("/etc/machine-id").read_bytes().strip()
        digest = hmac.new(machine_id, b"the name of an OpenCode", "sha256").hexdigest()
        return f"{socket.gethostname()}-{digest[:12]}"
    return socket.gethostname()


class Identity:
    """Which OpenCode is connected; `release` is None until it has told its version."""

    def __init__(self, http: Http) -> None:
        self._http = http
        self.release: Release | None = None
        self._asked = False  # OpenCode has answered, whether or not with a version

    @classmethod
    @asynccontextmanager
    async def open(cls, http: Http, feed: Feed) -> AsyncIterator[Identity]:
        self = cls(http)
        async with feed.after_each_connection(self._ask):
            yield self

    async def known(self) -> Release:
        """The version of the connected OpenCode; one that does not tell is taken for the newest."""
        if not self._asked:
            await self._ask()
        return self.release or Release(TRIED[-1])

    async def _ask(self) -> None:
        if self._http.health is None:  # not a probe, but another answer woke the feed
            await self._http.probe(PROBE_TIMEOUT)
        self._learn(self._http.health)
        self._http.health, self._asked = None, True

    def _learn(self, health: Any) -> None:
        version = health.get("version") if isinstance(health, dict) else None
        if not isinstance(version, str) or (release := Release(version)) == self.release:
            return
        self.release = release
        lacks = [f"{feature.name} (since {feature.since})" for feature in release.lacks]
        logger.info("opencode.version", version=version, lacks=", ".join(lacks) or "nothing")
        if release.is_newer_than_tried:
            self._warn(f"It is newer than {TRIED[-1]}, the newest that was tried.")
        if release.is_older_than_tried:
            self._warn(f"It is older than {TRIED[0]}, the oldest that was tried: update it.")

    def _warn(self, advice: str) -> None:
        logger.warning("opencode.version.untried", advice=advice)
