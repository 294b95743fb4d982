"""The commands `card` and `openapi`: what these settings would publish."""

from __future__ import annotations

import json

from ..access import stored_tokens
from ..app import public_url, publication
from ..config import Settings
from ..credentials import CredentialsFileError
from ..inbound.console import is_built
from ..inbound.routes import document
from .failure import CommandError


def show(settings: Settings, what: str, *, extended: bool) -> str:
    try:
        tokens = stored_tokens(settings)
    except CredentialsFileError as exc:
        raise CommandError(f"A2A_CREDENTIALS_FILE: {exc}", 2) from None
    url = public_url(settings.server, settings.server.port)
    published = publication(settings, url, tokens=tokens, has_console=is_built())
    if what == "openapi":
        found = document(published)
    elif extended:
        found = published.card.extended_hybrid
    else:
        found = json.loads(published.card.hybrid.body)
    return json.dumps(found, indent=2, ensure_ascii=False)
