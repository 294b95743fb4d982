"""What the methods of the extensions work on."""

from __future__ import annotations

from dataclasses import dataclass

from ..domain.catalog import Catalog
from ..domain.ports import Agent
from ..service.creator import Creator
from ..service.inputs import Inputs
from ..service.interrupts import Interrupts
from ..service.isolation import ContextWorktrees
from ..service.locations import Locations
from ..service.ownership import Ownership
from ..service.validator import Validator


@dataclass(frozen=True, slots=True)
class Services:
    agent: Agent
    catalog: Catalog
    ownership: Ownership
    locations: Locations
    creator: Creator
    worktrees: ContextWorktrees
    validator: Validator
    inputs: Inputs
    interrupts: Interrupts
