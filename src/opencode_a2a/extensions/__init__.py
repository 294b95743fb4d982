"""What we offer beyond A2A itself, one module per extension."""

from __future__ import annotations

from ..contract.declare import Extension

ALL: tuple[Extension, ...] = ()
