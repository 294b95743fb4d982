"""Which OpenCode this is: a name that stays, and what the log says of its version."""

from __future__ import annotations

import hmac
import socket
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import structlog

from ..domain.addresses import is_loopback
from ..domain.release import Release
from .http import Endpoint

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


def log_release(release: Release) -> None:
    """Say which version is connected, and what it lacks."""
    lacks = ", ".join(feature.name for feature in release.lacks)
    logger.info("opencode.version", version=release.version, lacks=lacks or "nothing")
    if release.is_newer_than_tried:
        logger.warning(
            "opencode.version.untried",
            advice=f"It is newer than {release.newest_tried}, the newest that was tried.",
        )
