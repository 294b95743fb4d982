"""What we offer beyond A2A itself, one module per extension."""

from __future__ import annotations

from ..contract.declare import Extension
from .interrupts import HUMAN_IN_THE_LOOP, INTERACTIVE, RECOVERY

ALL: tuple[Extension, ...] = (INTERACTIVE, RECOVERY, HUMAN_IN_THE_LOOP)
