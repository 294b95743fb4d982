"""What can be wrong with deployed instances, produced on real files."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from opencode_a2a.deploy import plans, units
from opencode_a2a.deploy.host import LocalHost
from opencode_a2a.deploy.layout import MANIFEST, UNITS, Instance
from opencode_a2a.deploy.manifest import Manifest, Record
from opencode_a2a.deploy.resources import Directory, Entry, File, Link, Make, Resource
from opencode_a2a.doctor.deployed import DEPLOYED
from opencode_a2a.doctor.verdict import Level
from tests.doctor.looking import look

ME = f"{pwd.getpwuid(os.getuid()).pw_name}:{grp.getgrgid(os.getgid()).gr_name}"
ALPHA = Instance(name="alpha", port=8010, opencode_port=18010, release="1.0")
BETA = Instance(name="beta", port=8011, opencode_port=18011, release="1.0")
UPDATE_BOTH = "sudo opencode-a2a deploy update alpha beta "


@dataclass(frozen=True)
class HostInFolder(LocalHost):
    """This machine, if its root were this folder and whoever runs the tests were root there."""

    root: Path

    def find(self, wanted: Iterable[Resource]) -> dict[str, Resource]:
        below = super().find(map(self._below, wanted))
        return {key.removeprefix(str(self.root)): _of_root(each) for key, each in below.items()}

    def read(self, path: str) -> str | None:
        return super().read(f"{self.root}{path}")

    def secrets(self, folder: str) -> dict[str, str]:
        return super().secrets(f"{self.root}{folder}")

    def put(self, resource: Resource) -> None:
        below = self._below(resource)
        Path(below.key).parent.mkdir(parents=True, exist_ok=True)
        self.perform(Make(below))

    def path(self, path: str) -> Path:
        return Path(f"{self.root}{path}")

    def _below(self, resource: Resource) -> Resource:
        match resource:
            case Directory() | File():
                return replace(resource, path=f"{self.root}{resource.path}", owner=ME)
            case Link():
                return replace(resource, path=f"{self.root}{resource.path}")
            case _:
                raise AssertionError("units are no users")


def _of_root(resource: Resource) -> Resource:
    if isinstance(resource, Directory | File) and resource.owner == ME:
        return replace(resource, owner="root:root")
    return resource


@pytest.fixture
def host(tmp_path: Path) -> HostInFolder:
    """A machine with two instances, as `deploy` leaves it."""
    host = HostInFolder(tmp_path / "machine")
    templates = units.templates()
    manifest = Manifest(tuple(map(Entry.of, templates)))
    for each in (ALPHA, BETA):
        manifest = manifest.with_record(each.name, Record(each))
    wanted = (resource for each in (ALPHA, BETA) for resource in plans.wanted_units(each, ()))
    for resource in (File(MANIFEST, manifest.dump(), 0o600), *templates, *wanted):
        host.put(resource)
    return host


async def test_units_that_are_missing_or_differ_are_found(host: HostInFolder) -> None:
    verdict = await look(DEPLOYED, "units", host)
    assert verdict.level is Level.OK
    assert verdict.says == "The units of 2 deployed instances are those of this version."

    drop_in = f"{UNITS}/opencode@beta.service.d/instance.conf"
    host.path(drop_in).write_text("[Service]\nMemoryMax=64G\n")
    verdict = await look(DEPLOYED, "units", host)
    assert verdict.finding == "units.other"
    assert verdict.says == f"Not as this version writes it: {drop_in}."
    assert verdict.fix.startswith("sudo opencode-a2a deploy update beta ")
    assert "64G" in host.path(drop_in).read_text(), "it only says so"

    template = f"{UNITS}/opencode-a2a@.service"
    host.path(template).unlink()
    verdict = await look(DEPLOYED, "units", host)
    assert verdict.finding == "units.missing"
    assert f"Not there: {template}. " in verdict.says
    assert drop_in in verdict.says
    assert verdict.fix.startswith(UPDATE_BOTH), "all instances share a template"


async def test_a_unit_that_others_can_write_is_found(host: HostInFolder) -> None:
    host.path(f"{UNITS}/opencode@.service").chmod(0o666)
    verdict = await look(DEPLOYED, "units", host)
    assert (verdict.finding, verdict.fix.startswith(UPDATE_BOTH)) == ("units.other", True)


async def test_a_machine_without_instances_has_only_the_shared_units(host: HostInFolder) -> None:
    manifest = Manifest(tuple(map(Entry.of, units.templates())))
    host.path(MANIFEST).write_text(manifest.dump())
    assert (await look(DEPLOYED, "units", host)).level is Level.OK
    host.path(f"{UNITS}/opencode@.service").unlink()
    verdict = await look(DEPLOYED, "units", host)
    assert verdict.finding == "units.missing"
    assert verdict.fix.startswith("sudo opencode-a2a deploy init ")
    host.path(MANIFEST).unlink()
    verdict = await look(DEPLOYED, "units", host)
    assert (verdict.level, verdict.says) == (Level.OK, "`deploy` has made no instance here.")


class HostOfAnotherUser(LocalHost):
    def read(self, path: str) -> str | None:
        raise PermissionError(13, "Permission denied", path)


async def test_units_that_cannot_be_compared_are_unknown(host: HostInFolder) -> None:
    verdict = await look(DEPLOYED, "units", HostOfAnotherUser())
    assert (verdict.level, verdict.fix) == (Level.UNKNOWN, "Run this as root.")
    assert MANIFEST in verdict.says
    host.path(MANIFEST).write_text('{"format": 2}')
    verdict = await look(DEPLOYED, "units", host)
    assert verdict.level is Level.UNKNOWN
    assert "written by another version" in verdict.says
