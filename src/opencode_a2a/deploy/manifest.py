"""What was made, written down before it is made: what can be listed, updated and removed. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from .layout import ETC, MANIFEST, Instance
from .resources import DeployError, Entry

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Record:
    """What there is of an instance. One that was removed without its data has only `made`."""

    instance: Instance | None = None
    made: tuple[Entry, ...] = ()
    started_with: Mapping[str, str] = field(default_factory=dict)  # by unit: a digest


@dataclass(frozen=True, slots=True)
class Manifest:
    host: tuple[Entry, ...] = ()
    records: Mapping[str, Record] = field(default_factory=dict)

    @property
    def instances(self) -> list[Instance]:
        return [r.instance for _, r in sorted(self.records.items()) if r.instance is not None]

    def instance(self, name: str) -> Instance:
        found = self.records.get(name, Record()).instance
        if found is None:
            known = ", ".join(each.name for each in self.instances) or "none"
            raise DeployError(f"there is no instance {name}. There are: {known}.")
        return found

    def made(self, name: str) -> tuple[Entry, ...]:
        return self.records.get(name, Record()).made

    def with_host(self, made: Iterable[Entry]) -> Manifest:
        return replace(self, host=_together(self.host, made))

    def with_record(self, name: str, record: Record) -> Manifest:
        made = _together(self.made(name), record.made)
        return replace(self, records={**self.records, name: replace(record, made=made)})

    def without_record(self, name: str, kept: tuple[Entry, ...]) -> Manifest:
        others = {key: record for key, record in self.records.items() if key != name}
        if kept:
            others[name] = Record(made=kept)
        return replace(self, records=others)

    def keeping(self, left: Collection[Entry], before: Manifest) -> Manifest:
        """With what was there before and could not be removed."""
        stays = {ETC, MANIFEST}
        host = [m for m in before.host if m in self.host or m in left or m.name in stays]
        records = dict(self.records)
        for name, old in before.records.items():
            if any(m in left for m in old.made):
                record = records.get(name, Record())
                made = tuple(m for m in old.made if m in record.made or m in left)
                records[name] = replace(record, made=made)
        return Manifest(tuple(host), records)

    def dump(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n"

    @classmethod
    def parse(cls, text: str) -> Manifest:
        try:
            raw = json.loads(text)
            if raw["format"] != FORMAT:
                raise DeployError("the manifest was written by another version of opencode-a2a.")
            records = {name: _record(each) for name, each in raw["records"].items()}
            return cls(_made(raw["host"]), records)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise DeployError(
                f"{MANIFEST} is damaged. Restore it from a backup: it says what was made."
            ) from None


def _record(raw: dict[str, Any]) -> Record:
    known = {each.name for each in fields(Instance)}
    instance = raw["instance"]
    if instance is not None:  # a later version may have added fields
        instance = Instance(**{name: value for name, value in instance.items() if name in known})
    return Record(instance, _made(raw["made"]), raw["started_with"])


def _made(raw: list[dict[str, str]]) -> tuple[Entry, ...]:
    return tuple(Entry(**each) for each in raw)


def _together(old: Iterable[Entry], new: Iterable[Entry]) -> tuple[Entry, ...]:
    """In the order in which they were made first."""
    by_key = {each.key: each for each in old}
    by_key |= {each.key: each for each in new}
    return tuple(by_key.values())
