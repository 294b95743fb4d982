"""Whether the units on this machine are those that this version writes. Changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from . import plans, units
from .host import Host
from .layout import MANIFEST
from .manifest import Manifest
from .resources import Change, Make, changes


@dataclass(frozen=True, slots=True)
class Drift:
    """The steps that would make the units what this version writes."""

    shared: Sequence[Make | Change] = ()  # for the units that all instances have in common
    own: Mapping[str, Sequence[Make | Change]] = field(default_factory=dict)  # by instance

    @property
    def missing(self) -> list[str]:
        return [step.resource.key for step in self._steps if isinstance(step, Make)]

    @property
    def other(self) -> list[str]:
        """What is there and is not as it should be."""
        return [step.resource.key for step in self._steps if isinstance(step, Change)]

    @property
    def _steps(self) -> list[Make | Change]:
        return [*self.shared, *(step for each in self.own.values() for step in each)]


def unit_drift(host: Host, release: str | None = None) -> Drift | None:
    """None where nothing is deployed. PermissionError: only root may read the manifest.

    `release`: that of this program, if it is of one. Instances of others have units of theirs.
    """
    text = host.read(MANIFEST)
    if text is None:
        return None
    manifest = Manifest.parse(text)
    templates = units.templates()
    if {each.key for each in manifest.host}.isdisjoint(each.key for each in templates):
        return None  # `uninstall` has left data and its manifest, and no units
    own = {}
    for instance in manifest.instances:
        if release not in (None, instance.release):
            continue
        wanted = plans.wanted_units(instance, sorted(host.secrets(instance.secrets)))
        own[instance.name] = changes(wanted, host.find(wanted))
    return Drift(changes(templates, host.find(templates)), own)
