"""Which extensions a client has switched on for its request, and telling it which of them work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from starlette.requests import Request
from starlette.responses import Response

from ..contract.declare import Extension

HEADERS = ("A2A-Extensions", "X-A2A-Extensions")  # as 1.0 writes it, and 0.3


def known(extensions: Iterable[Extension]) -> Mapping[str, str]:
    """Every name an extension may be asked for by, and its present one."""
    return {name: e.uri for e in extensions for name in (e.uri, *e.aliases)}


def activated(request: Request, names: Mapping[str, str]) -> frozenset[str]:
    """Those of the extensions asked for that we have. Others are ignored, as A2A says."""
    asked = (
        name.strip()
        for header in HEADERS
        for value in request.headers.getlist(header)
        for name in value.split(",")
    )
    return frozenset(names[name] for name in asked if name in names)


def confirm(response: Response, request: Request, active: frozenset[str]) -> Response:
    """Say which are active, in the spelling of the request."""
    for header in HEADERS:
        if active and header in request.headers:
            response.headers[header] = ", ".join(sorted(active))
    return response
