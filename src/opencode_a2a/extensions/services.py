"""What the methods of the extensions work on."""

from __future__ import annotations

from dataclasses import dataclass

from ..domain.catalog import Catalog
from ..domain.ports import Agent, UsageStore
from ..service.creator import Creator
from ..service.inputs import Inputs
from ..service.interrupts import Interrupts
from ..service.isolation import ContextWorktrees
from ..service.limits import Limiter
from ..service.locations import Locations
from ..service.nodes import Nodes
from ..service.ownership import Ownership
from ..service.push import PushNotifications
from ..service.validator import Validator
from ..service.watching import TaskWatches


@dataclass(frozen=True, slots=True)
class Services:
    agent: Agent
    ownership: Ownership
    locations: Locations
    creator: Creator
    worktrees: ContextWorktrees
    validator: Validator
    inputs: Inputs
    interrupts: Interrupts
    limiter: Limiter
    usage: UsageStore
    watches: TaskWatches
    nodes: Nodes
    push: PushNotifications | None = None  # None where they are off

    @property
    def catalog(self) -> Catalog:
        return self.locations.catalog

    @property
    def notifications(self) -> PushNotifications:
        assert self.push is not None, "its methods are switched off with it"
        return self.push
