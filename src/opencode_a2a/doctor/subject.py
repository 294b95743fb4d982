"""What is examined: an installation, its OpenCode, the service as clients see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ..config import PeerSetting, Settings
from ..opencode.http import Endpoint

Json = dict[str, Any]


class RunningInstance(Protocol):
    """A service of this user that runs now."""

    @property
    def url(self) -> str: ...
    @property
    def workspace(self) -> str: ...
    @property
    def pid(self) -> int: ...
    @property
    def command(self) -> str: ...
    @property
    def opencode_url(self) -> str: ...
    @property
    def opencode_version(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Installation:
    settings: Settings
    instances: Sequence[RunningInstance] = ()
    own: RunningInstance | None = None  # the one of them that works in the same workspace
    peers: Mapping[str, PeerSetting] = field(default_factory=dict)  # that `call` knows, too
    token_file: Path | None = None  # where `up` keeps the token of this workspace


@dataclass(frozen=True, slots=True)
class OpenCodeServer:
    """The OpenCode that the service uses, or would use."""

    directory: Path
    endpoint: Endpoint | None  # None: `up` would start one
    find: Callable[[], str]  # the executable for `up`; LookupError says what to do
    managed_by: RunningInstance | None = None  # an `up`, which alone knows the password
    agent: str | None = None
    variant: str | None = None


@dataclass(frozen=True, slots=True)
class Site:
    """The address of a service, and how to log in there."""

    url: str | None
    why_not: str = ""  # there is no address to look at
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    own_card: Json | None = None  # what these settings would publish at that address
    certificate: Path | None = None  # of the service itself, where it has one
