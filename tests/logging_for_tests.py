"""How tests log: what a test logs is seen only when it fails."""

from __future__ import annotations

import structlog


def configure() -> None:
    """Plain lines. Colours would cost more than most tests, and structlog's own default prints the
    local variables of every frame of an exception, which takes minutes where they are large."""
    structlog.reset_defaults()
    structlog.configure(
        [structlog.processors.format_exc_info, structlog.dev.ConsoleRenderer(colors=False)]
    )
