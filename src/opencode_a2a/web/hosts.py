"""Answers only requests for a host name of this service.

The name is how a web page of a stranger is told apart: it can let its own name lead to a loopback
address (DNS rebinding), so that a browser takes the service for a part of that page.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

from starlette.types import ASGIApp, Receive, Scope, Send

from ..domain.addresses import host_name, is_loopback
from ..errors import HostNotAllowed, ServiceError


class HostCheck:
    """Loopback names and addresses are always allowed. Programs without a Host pass, too."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        allowed: Collection[str],
        on_error: Callable[[Scope, ServiceError], ASGIApp],
    ) -> None:
        self._app = app
        self._allowed = frozenset(allowed)
        self._on_error = on_error

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "http":
            for name, value in scope["headers"]:
                if name == b"host" and not self._allows(host_name(value.decode("latin-1"))):
                    refusal = HostNotAllowed(value.decode("latin-1"))
                    return self._on_error(scope, refusal)(scope, receive, send)
        return self._app(scope, receive, send)

    def _allows(self, host: str) -> bool:
        return host in self._allowed or is_loopback(host)
