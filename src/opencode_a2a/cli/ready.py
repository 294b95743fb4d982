"""`status --ready`: whether a service can work, for the health check of a container.

It is asked now and then for as long as the container runs, so it loads little.
"""

from __future__ import annotations

import os
import urllib.error

from ..deploy.check import direct_opener
from ..domain.addresses import url_of_listener
from .failure import CommandError

SECONDS = 5.0


def check_ready(url: str | None) -> None:
    """Returns if the service at the address says that it can work; CommandError if not."""
    host, port = os.environ.get("A2A_HOST"), os.environ.get("A2A_PORT")
    own = url_of_listener(host or "127.0.0.1", port or 8000)
    if os.environ.get("A2A_TLS_CERTIFICATE"):
        own = own.replace("http://", "https://", 1)
    address = (url or own).rstrip("/")
    try:
        # Its own certificate is for the name that clients use, and nothing secret is sent.
        with direct_opener(verified=url is not None).open(f"{address}/ready", timeout=SECONDS):
            print("ready")
    except urllib.error.HTTPError as exc:
        exc.close()
        missing = "it lacks its store or OpenCode" if exc.code == 503 else f"status {exc.code}"
        raise CommandError(f"{address} is not ready: {missing}") from None
    except (OSError, ValueError) as exc:
        raise CommandError(f"{address} does not answer: {getattr(exc, 'reason', exc)}") from None
