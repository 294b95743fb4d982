"""The web console: files that `make console` has built into this package, and how to log in.

The files hold nothing secret, so everybody may read them. What the console shows it asks for with
the token of the person who uses it. Nothing of another host can be loaded or run in it.
"""

from __future__ import annotations

import asyncio
import gzip
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from ..contract.declare import Json
from ..domain.addresses import is_loopback
from ..errors import MethodNotFound
from .card import Document
from .failures import failure

PATH = "/console"
FOLDER = Path(__file__).parent.parent / "console"
SHELL = "index.html"
MEDIA_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}
IMMUTABLE = "public, max-age=31536000, immutable"  # the name of such a file has a hash of it
OFF = "The console is switched off here (A2A_CONSOLE=false)."
NOT_BUILT = (
    "The console is not part of this installation. In a checkout, build it with `make console` and "
    "start the service again."
)


def is_built() -> bool:
    return (FOLDER / SHELL).exists()


@dataclass(frozen=True, slots=True)
class ConsoleFacts:
    """What the page is told before anybody has logged in."""

    version: str
    title: str
    issuer: str | None = None  # whose login page can be used …
    client_id: str | None = None  # … and as whom
    scope: str = "openid"  # what is asked for there

    @property
    def config(self) -> Json:
        login: Json = {"token": True}
        if self.issuer is not None and self.client_id is not None:
            oidc = {"issuer": self.issuer, "client_id": self.client_id, "scope": self.scope}
            login["oidc"] = oidc
        return {"version": self.version, "title": self.title, "login": login}

    def headers(self, token_endpoint: str | None) -> dict[str, str]:
        """`token_endpoint` is the issuer's, which may be on another host."""
        connect = ["'self'"]
        if self.issuer is not None and self.client_id is not None:
            origins = (_origin(url) for url in (self.issuer, token_endpoint) if url is not None)
            connect += dict.fromkeys(origin for origin in origins if origin)
        policy = [
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self' data: blob:",
            "font-src 'self'",
            "manifest-src 'self'",
            "worker-src 'self'",
            f"connect-src {' '.join(connect)}",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types console",
        ]
        return {
            "content-security-policy": "; ".join(policy),
            "cross-origin-opener-policy": "same-origin",
            "cross-origin-resource-policy": "same-origin",
            "referrer-policy": "no-referrer",
            "vary": "Accept-Encoding",
            "x-content-type-options": "nosniff",
        }


_HOST = re.compile(r"[a-zA-Z0-9.\-\[\]:]+")  # nothing that could end the policy's line


def _origin(url: str) -> str:
    """Of an address; empty where it is none that a policy can name, or that a token may go to."""
    try:
        parts = urlsplit(url)
        safe = parts.scheme == "https" or (
            parts.scheme == "http" and is_loopback(parts.hostname or "")
        )
    except ValueError:
        return ""
    return f"{parts.scheme}://{parts.netloc}" if safe and _HOST.fullmatch(parts.netloc) else ""


class Console:
    def __init__(
        self,
        facts: ConsoleFacts | None,
        folder: Path = FOLDER,
        *,
        token_endpoint: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._folder = folder
        self._facts = facts  # None: it is switched off
        self._config = Document.of(facts.config) if facts is not None else None
        self._token_endpoint = token_endpoint

    @property
    def _headers(self) -> dict[str, str]:
        return self._facts.headers(self._token_endpoint()) if self._facts is not None else {}

    async def serve(self, request: Request) -> Response:
        name = request.path_params.get("path", "")
        if self._config is None:
            return failure(request.scope, MethodNotFound(OFF, path=request.scope["path"]))
        if name == "config.json":
            return self._config.answer(request, {**self._headers, "cache-control": "no-cache"})
        files = await asyncio.to_thread(_read, self._folder)
        if SHELL not in files:
            return failure(request.scope, MethodNotFound(NOT_BUILT, path=request.scope["path"]))
        if name not in files and (name.startswith("assets/") or Path(name).suffix in MEDIA_TYPES):
            gone = (
                "The console has no such file. Load the page again: there may be a newer version."
            )
            return failure(request.scope, MethodNotFound(gone, path=request.scope["path"]))
        return self._answer(request, files, name if name in files else SHELL)

    def _answer(self, request: Request, files: dict[str, _File], name: str) -> Response:
        file = files[name]
        headers = {**self._headers, "cache-control": "no-cache"}
        if name.startswith("assets/"):
            headers["cache-control"] = IMMUTABLE
        if name == "sw.js":
            headers["service-worker-allowed"] = PATH  # the page is there, without the slash, too
        response = file.document.answer(request, headers, MEDIA_TYPES[Path(name).suffix])
        accepted = "gzip" in request.headers.get("accept-encoding", "")
        if response.status_code == 200 and accepted and file.compressed is not None:
            response.body = file.compressed
            response.headers["content-encoding"] = "gzip"
            response.headers["content-length"] = str(len(file.compressed))
        return response


@dataclass(frozen=True, slots=True)
class _File:
    document: Document
    compressed: bytes | None  # None where that saves nothing


@cache
def _read(folder: Path) -> dict[str, _File]:
    """All files, by their path below /console; none if it is not built."""
    found: dict[str, _File] = {}
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file.suffix in MEDIA_TYPES:
            body = file.read_bytes()
            compressed = gzip.compress(body, 9, mtime=0)
            found[file.relative_to(folder).as_posix()] = _File(
                Document.of_bytes(body), compressed if len(compressed) < 0.9 * len(body) else None
            )
    return found
