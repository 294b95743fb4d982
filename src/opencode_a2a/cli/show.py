"""The commands `card` and `openapi`: what these settings would publish."""

from __future__ import annotations

import json

from ..app import public_url, publication
from ..config import Settings
from ..inbound.routes import document


def show(settings: Settings, what: str, *, extended: bool) -> str:
    published = publication(settings, public_url(settings.server, settings.server.port))
    if what == "openapi":
        found = document(published)
    elif extended:
        found = published.card.extended_hybrid
    else:
        found = json.loads(published.card.hybrid.body)
    return json.dumps(found, indent=2, ensure_ascii=False)
