"""The plans: what is wanted and what is there in, steps out. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from . import units
from .layout import MANIFEST, PROGRAM, UNITS, Instance, host_resources, instance_resources
from .manifest import Manifest, Record
from .resources import (
    Change,
    Command,
    Entry,
    File,
    Link,
    Make,
    Resource,
    Step,
    changes,
    check_ours,
    removals,
)

NOT_LOADED = 5  # systemctl: an interrupted removal may have taken the units away already


@dataclass(frozen=True, slots=True)
class HostState:
    """What is there."""

    resources: Mapping[str, Resource] = field(default_factory=dict)  # by key
    active: frozenset[str] = frozenset()  # units that run
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    opencode: str = ""  # which OpenCode the release has: a digest of the program


@dataclass(frozen=True, slots=True)
class Plan:
    steps: Sequence[Step]
    before: Manifest  # written down before the first step
    after: Manifest | None  # … and after the last; None: nothing is left to write down


def init(release: str, manifest: Manifest, found: HostState) -> Plan:
    wanted = _host(release, manifest, found)
    check_ours(wanted, found.resources, manifest.host)
    first, *rest = map(Entry.of, wanted)  # the manifest is removed last, with its directory
    after = manifest.with_host([first, Entry("file", MANIFEST), *rest])
    return Plan(_reloaded(changes(wanted, found.resources)), after, after)


def wanted_host(release: str) -> list[Resource]:
    return [*host_resources(release), *units.templates()]


def wanted_instance(
    instance: Instance, secrets: Sequence[str], made: Sequence[File] = ()
) -> list[Resource]:
    """`made`: secrets that are still to be written."""
    return [*instance_resources(instance), *made, *wanted_units(instance, secrets)]


def wanted_units(instance: Instance, secrets: Sequence[str]) -> list[Resource]:
    """What an instance has of its own beside the templates. `secrets`: their names."""
    enabled = f"{UNITS}/multi-user.target.wants/{instance.target}"
    return [
        *units.drop_in_resources(instance, secrets),
        Link(enabled, f"{UNITS}/opencode-a2a@.target"),
    ]


def _host(release: str, manifest: Manifest, found: HostState) -> list[Resource]:
    """A program of that name which somebody else has put there stays as it is."""
    ours = {each.key for each in manifest.host}
    is_foreign = PROGRAM in found.resources and PROGRAM not in ours
    return [t for t in wanted_host(release) if not (is_foreign and t.key == PROGRAM)]


def bring_up(
    instance: Instance, manifest: Manifest, found: HostState, secrets: Sequence[File] = ()
) -> Plan:
    """Create an instance, or make it again what it should be; restart only what has changed."""
    wanted = wanted_instance(instance, sorted(found.secrets), secrets)
    check_ours(wanted, found.resources, manifest.made(instance.name))
    templates = changes(units.templates(), found.resources)
    digests = _digests(instance, wanted, found)
    old = manifest.records.get(instance.name, Record())
    starts = _starts(instance, found.active, digests=digests, old=old.started_with)
    steps = _reloaded([*templates, *changes(wanted, found.resources)], starts)
    made = tuple(map(Entry.of, wanted))
    # If a restart fails, nobody knows what the unit runs: then the next plan restarts it.
    certain = {unit: d for unit, d in old.started_with.items() if digests.get(unit) == d}
    before = manifest.with_record(instance.name, Record(instance, made, certain))
    after = before.with_record(instance.name, Record(instance, made, digests))
    return Plan(steps, before, after)


def _reloaded(steps: Sequence[Make | Change], starts: Sequence[Step] = ()) -> list[Step]:
    """systemd reads units before it starts some: an interrupted command may have written them."""
    if starts or any(UNITS in step.resource.key for step in steps):
        return [*steps, Command(("systemctl", "daemon-reload")), *starts]
    return [*steps]


def _starts(
    instance: Instance,
    active: frozenset[str],
    *,
    digests: Mapping[str, str],
    old: Mapping[str, str],
) -> list[Step]:
    """OpenCode is restarted only if it must be: that ends the work it is at."""
    stale = [u for u in digests if u in active and digests[u] != old.get(u)]
    if instance.socket in stale:  # a service keeps the port it has got, so all must end first
        return [Command(("systemctl", "restart", instance.target))]
    steps: list[Step] = [Command(("systemctl", "restart", unit)) for unit in stale]
    if not active.issuperset({instance.target, *digests}):
        steps.append(Command(("systemctl", "start", instance.target, *digests)))
    return steps


def _digests(instance: Instance, wanted: Sequence[Resource], found: HostState) -> dict[str, str]:
    """By unit: what changes when it must be restarted."""
    opencode, service = instance.services
    drop_ins = units.drop_ins(instance, found.secrets)
    for_service, for_opencode = units.credentials(found.secrets)

    def now(path: str) -> str:
        resource = found.resources.get(path) or next(t for t in wanted if t.key == path)
        return resource.content if isinstance(resource, File) else ""

    def digest(*parts: str) -> str:
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]

    return {
        instance.socket: digest(drop_ins[instance.socket]),
        opencode: digest(
            drop_ins[opencode],
            found.opencode,
            now(f"{instance.etc}/opencode.json"),
            *(found.secrets[file] for file in for_opencode.values()),
        ),
        service: digest(
            drop_ins[service],
            instance.release,
            now(f"{instance.etc}/config.toml"),
            *(found.secrets[file] for file in for_service.values()),
        ),
    }


def remove(name: str, manifest: Manifest, *, purge: bool) -> Plan:
    made = manifest.made(name)
    units_of = [f"opencode-a2a@{name}.{kind}" for kind in ("target", "socket", "service")]
    every = (*units_of, f"opencode@{name}.service")
    steps: list[Step] = []
    if manifest.records[name].instance is not None:
        steps.append(Command(("systemctl", "stop", *every), accepted=(NOT_LOADED,)))
    steps += removals(made, purge=purge)
    steps.append(Command(("systemctl", "daemon-reload")))
    steps.append(Command(("systemctl", "reset-failed", *every), may_fail=True))
    kept = () if purge else tuple(each for each in made if each.is_data)
    return Plan(steps, manifest, manifest.without_record(name, kept))


def uninstall(manifest: Manifest, *, purge: bool) -> Plan:
    """Everything that was made; what holds kept data stays with it, and so does the manifest."""
    steps: list[Step] = []
    after: Manifest | None = manifest
    for name in manifest.records:
        assert after is not None
        plan = remove(name, after, purge=purge)
        steps += [step for step in plan.steps if step != Command(("systemctl", "daemon-reload"))]
        after = plan.after
    assert after is not None
    data = [each.name for record in after.records.values() for each in record.made]
    kept = tuple(
        each
        for each in manifest.host
        if data and (each.name == MANIFEST or any(d.startswith(f"{each.name}/") for d in data))
    )
    steps += [step for step in removals(manifest.host, purge=True) if step.resource not in kept]
    steps.append(Command(("systemctl", "daemon-reload")))
    return Plan(steps, manifest, replace(after, host=kept) if kept else None)
