"""To another release and back: who is told what, in which order, and what stops it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from opencode_a2a.deploy.layout import CURRENT, MANIFEST, RELEASES, Instance
from opencode_a2a.deploy.manifest import Manifest, Record
from opencode_a2a.deploy.operator import Operator
from opencode_a2a.deploy.release import Releases, Source
from opencode_a2a.deploy.resources import DeployError, Link
from opencode_a2a.deploy.switch import Switch
from tests.deploy.fake_host import FakeHost

NAMES = ("alpha", "beta", "gamma")


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


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "releases")


def test_one_instance_that_cannot_go_back_does_not_keep_the_others_from_it(site: Site) -> None:
    site.broken = "beta"
    with pytest.raises(DeployError, match="could not go back, or do not work: beta"):
        site.switch.rollback([])
    assert site.told == [f"one: update {name} --release one" for name in NAMES]


def test_all_go_back_and_new_instances_get_the_release_too(site: Site) -> None:
    replace(site.switch, question=False).rollback([])
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


def test_a_release_that_is_gone_is_not_gone_back_to(site: Site) -> None:
    (site.folder / "one" / "release.json").unlink()
    with pytest.raises(DeployError, match="the release one is not installed here"):
        site.switch.rollback([])
