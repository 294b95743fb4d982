"""The OpenAPI document, for those with a credential, and a page on which a person can try it.

The page needs nothing from elsewhere, and holds nothing about this deployment: it asks for a
credential and fetches the document with it. So everybody may open it.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response

from ..contract.declare import Json
from .card import Document

PAGE_HEADERS = {
    "cache-control": "no-cache",
    "referrer-policy": "no-referrer",
    "vary": "Accept-Encoding",
    "x-content-type-options": "nosniff",
}


@dataclass(slots=True)
class Docs:
    make_document: Callable[[], Json]  # the same object until something in it changes
    _made: Json | None = field(default=None, init=False)
    _document: Document | None = field(default=None, init=False)

    async def document(self, request: Request) -> Response:
        made = self.make_document()
        if self._document is None or made is not self._made:
            self._made, self._document = made, Document.of(made)
        headers = {"cache-control": "private, no-cache", "vary": "Accept-Encoding"}
        return self._document.answer(request, headers)

    async def page(self, request: Request) -> Response:
        page, policy = _page()
        headers = {"content-security-policy": policy, **PAGE_HEADERS}
        return page.answer(request, headers, "text/html")


@cache
def _page() -> tuple[Document, str]:
    """The page, and a policy under which only its own script and style are in effect."""
    text = resources.files(__package__).joinpath("docs.html").read_text(encoding="utf-8")
    policy = [
        "default-src 'none'",
        "connect-src 'self'",
        f"script-src {_digest('script', text)}",
        f"style-src {_digest('style', text)}",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    ]
    return Document.of_bytes(text.encode()), "; ".join(policy)


def _digest(element: str, text: str) -> str:
    content = re.search(rf"<{element}>(.*?)</{element}>", text, re.DOTALL)
    assert content is not None
    digest = hashlib.sha256(content[1].encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
