"""Which extensions a client activates for its request, and the header that confirms them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from starlette.requests import Request
from starlette.responses import Response

from ..contract.declare import Extension

HEADERS = ("A2A-Extensions", "X-A2A-Extensions")  # as 1.0 writes it, and 0.3


def known(extensions: Iterable[Extension]) -> Mapping[str, str]:
    """The URI of each extension, by every name that a client may use for it."""
    return {name: e.uri for e in extensions for name in (e.uri, *e.aliases)}


def activated(request: Request, uris: Mapping[str, str]) -> frozenset[str]:
    """The extensions that the headers of a request name."""
    requested = (
        name.strip()
        for header in HEADERS
        for value in request.headers.getlist(header)
        for name in value.split(",")
    )
    return of_names(requested, uris)


def of_names(names: Iterable[str], uris: Mapping[str, str]) -> frozenset[str]:
    """Those of the named extensions that we have. Others are ignored, as A2A says."""
    return frozenset(uris[name] for name in names if name in uris)


def confirm(response: Response, request: Request, active: frozenset[str]) -> Response:
    """Name the active extensions in the header that the request used."""
    for header in HEADERS:
        if active and header in request.headers:
            response.headers[header] = ", ".join(sorted(active))
    return response
