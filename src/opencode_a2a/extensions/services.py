"""What the methods of the extensions work on."""

from __future__ import annotations

from dataclasses import dataclass

from ..service.interrupts import Interrupts


@dataclass(frozen=True, slots=True)
class Services:
    interrupts: Interrupts
