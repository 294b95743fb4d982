"""What the methods of the extensions work on."""

from __future__ import annotations

from dataclasses import dataclass

from ..domain.catalog import Catalog
from ..domain.ports import Agent
from ..service.access import Access
from ..service.checks import Checks
from ..service.creator import Creator
from ..service.inputs import Inputs
from ..service.interrupts import Interrupts
from ..service.places import Places


@dataclass(frozen=True, slots=True)
class Services:
    agent: Agent
    catalog: Catalog
    access: Access
    places: Places
    creator: Creator
    checks: Checks
    inputs: Inputs
    interrupts: Interrupts
