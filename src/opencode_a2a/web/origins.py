"""Which web pages may send requests: those of this service, and those of allowed origins (CORS).

A browser sends some requests of any page (forms, images, `text/plain`) without asking first, and
adds a password that it remembers. So the requests of other pages are refused whatever they hold.
Programs send neither `Origin` nor `Sec-Fetch-Site`, and are not concerned.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import OriginNotAllowed, ServiceError

METHODS = "GET, HEAD, POST, DELETE"
EXPOSED = "A2A-Extensions, X-A2A-Extensions, ETag, Retry-After, WWW-Authenticate, X-Request-Id"
MAX_AGE = "600"  # seconds for which a browser need not ask again
VARY = (b"vary", b"Origin")


class OriginCheck:
    """Refuses the requests of other pages, and gives those of allowed origins what CORS asks for.

    A page has to send its credential itself: none that a browser adds is allowed.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        own: str,
        allowed: Collection[str],
        on_error: Callable[[Scope, ServiceError], ASGIApp],
    ) -> None:
        self._app = app
        self._own = own
        self._allowed = frozenset(allowed)
        self._on_error = on_error

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "http":
            return self._app(scope, receive, send)
        headers = dict(scope["headers"])
        if b"origin" not in headers and b"sec-fetch-site" not in headers:  # of a program
            return self._pass_on(scope, receive, send)
        texts = {name: value.decode("latin-1") for name, value in headers.items()}
        return self._to_page(scope, receive, send, headers=texts)

    def _to_page(
        self, scope: Scope, receive: Receive, send: Send, *, headers: dict[bytes, str]
    ) -> Awaitable[None]:
        origin = headers.get(b"origin")
        if origin in self._allowed:
            if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
                return _permission(origin, headers)(scope, receive, send)
            permitted = [
                (b"access-control-allow-origin", origin.encode("latin-1")),
                (b"access-control-expose-headers", EXPOSED.encode()),
                VARY,
            ]
            return self._app(scope, receive, _with_headers(send, permitted))
        if not self._is_own(scope["method"], origin, headers):
            refusal = OriginNotAllowed(origin)
            return self._on_error(scope, refusal)(scope, receive, send)
        return self._pass_on(scope, receive, send)

    def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if self._allowed:  # a cache must not pass this answer to a page of an allowed origin
            send = _with_headers(send, [VARY])
        return self._app(scope, receive, send)

    def _is_own(self, method: str, origin: str | None, headers: dict[bytes, str]) -> bool:
        """Whether the request is of a program, of a person, or of a page of this service."""
        site = headers.get(b"sec-fetch-site")
        if site == "same-origin":
            return True
        if origin is not None:
            # Behind a proxy the Host may be another than the browser's.
            return origin == self._own or origin.partition("://")[2] == headers.get(b"host")
        # Without an Origin: typed by a person, or a link, which may stand on any page.
        is_link = method in ("GET", "HEAD") and headers.get(b"sec-fetch-dest") == "document"
        return site in (None, "none") or is_link


def _permission(origin: str, headers: dict[bytes, str]) -> Response:
    """The answer to a browser that asks whether it may send a page's request."""
    answer = {
        "access-control-allow-origin": origin,
        "access-control-allow-methods": METHODS,
        "access-control-allow-headers": headers.get(b"access-control-request-headers", ""),
        "access-control-max-age": MAX_AGE,
        "vary": "Origin, Access-Control-Request-Headers",
    }
    if b"access-control-request-private-network" in headers:
        answer["access-control-allow-private-network"] = "true"
    return Response(status_code=204, headers=answer)


def _with_headers(send: Send, more: list[tuple[bytes, bytes]]) -> Send:
    def sent(message: Message) -> Awaitable[None]:
        # Returned, not awaited: that would cost a coroutine more for every event of a stream.
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *more]}
        return send(message)

    return sent
