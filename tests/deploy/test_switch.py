"""To another release and back: who is told what, in which order, and what stops it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import pytest

from opencode_a2a.deploy.layout import CURRENT, MANIFEST, RELEASES, Instance
from opencode_a2a.deploy.manifest import Manifest, Record
from opencode_a2a.deploy.operator import Operator
from opencode_a2a.deploy.release import Releases, Source
from opencode_a2a.deploy.resources import DeployError, Link
from opencode_a2a.deploy.switch import Switch
from opencode_a2a.store.copies import Restorable
from tests.deploy.fake_host import FakeHost

NAMES = ("alpha", "beta", "gamma")
FILE = "/var/lib/opencode-a2a/alpha/state/opencode-a2a/workspace/tasks.db"
MIGRATED = Restorable(FILE, "0010", "0009", copied_at=0.0, newer_tasks=3)


@dataclass
class Site:
    """Three instances of the release two, which came from one; three is what new ones get."""

    folder: Path
    host: FakeHost = field(default_factory=FakeHost)
    said: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    broken: str = "nothing"  # the programs of releases fail where this is among their words

    def __post_init__(self) -> None:
        for name in ("one", "two", "three"):
            (self.folder / name).mkdir(parents=True)
            about = {"opencode": "x", "origin": name}
            (self.folder / name / "release.json").write_text(json.dumps(about))
        self.folder.with_name("current").symlink_to(self.folder / "three")
        manifest = Manifest()
        for number, name in enumerate(NAMES):
            instance = Instance(
                name=name, port=8010 + number, opencode_port=18010 + number, release="two"
            )
            manifest = manifest.with_record(name, Record(replace(instance, previous="one")))
        self.host.put(MANIFEST, manifest.dump())
        self.host.resources[CURRENT] = Link(CURRENT, f"{RELEASES}/three")

    @property
    def switch(self) -> Switch:
        releases = Releases(self.folder, self.folder.with_name("current"))
        operator = Operator(
            host=self.host,
            say=self.said.append,
            confirm=lambda: True,
            environment={},
            opencode_of=releases.opencode_of,
        )
        return Switch(operator, releases, self._delegate)

    def _delegate(self, release: str, *words: str) -> None:
        self.told.append(f"{release}: {' '.join(words)}")
        if self.broken in self.told[-1]:
            raise DeployError("it does not work")

    def migrate(self, found: Restorable) -> None:
        """The release before cannot read alpha's database."""
        self.host.outputs["-u oca-alpha"] = json.dumps([asdict(found)])


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "releases")


def test_one_instance_that_cannot_go_back_does_not_keep_the_others_from_it(site: Site) -> None:
    site.broken = "beta"
    with pytest.raises(DeployError, match="could not go back, or do not work: beta"):
        site.switch.rollback([], restore_database=False)
    assert site.told == [f"one: update {name} --release one" for name in NAMES]


def test_all_go_back_and_new_instances_get_the_release_too(site: Site) -> None:
    replace(site.switch, question=False).rollback([], restore_database=False)
    assert site.told == [
        *(f"one: update {name} --release one --no-question" for name in NAMES),
        "one: init --release one",
    ]


def test_the_upgrade_of_one_instance_leaves_the_current_release(site: Site) -> None:
    site.switch.upgrade(Source("one", "one", (), ()), [], ["gamma"])
    assert site.told == ["one: update gamma --release one"]
    assert not [words for words in site.host.ran if words[0] == "rm"]


def test_the_upgrade_of_all_removes_what_nobody_can_come_to_need(site: Site) -> None:
    site.switch.upgrade(Source("four", "four", (), ()), [], [])
    removed = [words[-1] for words in site.host.ran if words[0] == "rm"]
    assert removed == [str(site.folder / "one"), str(site.folder / "three")]


def test_nothing_is_changed_where_going_back_takes_data_from_sight(site: Site) -> None:
    site.migrate(MIGRATED)
    with pytest.raises(DeployError, match=r"3 tasks .* With --restore-database"):
        site.switch.rollback([], restore_database=False)
    site.migrate(replace(MIGRATED, copy_revision=None))
    with pytest.raises(DeployError, match=r"alpha cannot go back to one.* no copy"):
        site.switch.rollback([], restore_database=True)
    assert (site.told, site.host.ran) == ([], [])


def test_the_service_is_stopped_as_the_older_release_before_its_database_is_restored(
    site: Site,
) -> None:
    """A connection may start it at any time; the newer one would change the schema again."""
    site.migrate(MIGRATED)
    site.switch.rollback(["alpha"], restore_database=True)
    link = site.host.resources["/opt/opencode-a2a/instances/alpha"]
    assert link == Link("/opt/opencode-a2a/instances/alpha", f"{RELEASES}/one")
    stop, restore = site.host.ran
    assert stop == ("systemctl", "stop", "opencode-a2a@alpha.service")
    assert restore[:5] == ("runuser", "-u", "oca-alpha", "--", f"{RELEASES}/one/bin/python")
    assert restore[-2:] == ("restore", "/var/lib/opencode-a2a/alpha/state")
    assert site.told == ["one: update alpha --release one"]
    assert any(f"{FILE}.of-schema-0010 keeps them" in line for line in site.said)


def test_an_upgrade_that_fails_takes_its_database_back_too(site: Site) -> None:
    site.broken = "three: update"
    site.migrate(MIGRATED)
    with pytest.raises(DeployError, match="the upgrade was stopped at alpha"):
        site.switch.upgrade(Source("three", "three", (), ()), [], [])
    assert site.told == ["three: update alpha --release three", "two: update alpha --release two"]
    assert site.host.ran[-1][-2:] == ("restore", "/var/lib/opencode-a2a/alpha/state")
    assert site.switch.operator.manifest.instance("alpha").previous == "one"


def test_an_upgrade_that_fails_goes_back_even_if_its_database_cannot(site: Site) -> None:
    site.broken = "three: update"
    site.migrate(replace(MIGRATED, copy_revision=None))
    with pytest.raises(DeployError, match="the upgrade was stopped at alpha"):
        site.switch.upgrade(Source("three", "three", (), ()), [], [])
    assert site.told[-1] == "two: update alpha --release two"
    assert any("no copy from before the upgrade" in line for line in site.said)


def test_a_release_that_is_gone_is_not_gone_back_to(site: Site) -> None:
    (site.folder / "one" / "release.json").unlink()
    with pytest.raises(DeployError, match="the release one is not installed here"):
        site.switch.rollback([], restore_database=False)
