"""A host of dictionaries: what a plan would have made of an empty machine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from opencode_a2a.deploy.things import (
    Change,
    DeployError,
    Directory,
    File,
    Made,
    Make,
    Remove,
    Run,
    Step,
    Thing,
)


@dataclass
class FakeHost:
    things: dict[str, Thing] = field(default_factory=dict)
    units: set[str] = field(default_factory=set)  # that run
    ran: list[tuple[str, ...]] = field(default_factory=list)
    held: set[int] = field(default_factory=set)  # ports of others
    fails_at: str | None = None  # a step that cannot be performed

    def find(self, wanted: Iterable[Thing]) -> dict[str, Thing]:
        return {t.key: self.things[t.key] for t in wanted if t.key in self.things}

    def active(self, units: Iterable[str]) -> frozenset[str]:
        return frozenset(self.units & set(units))

    def secrets(self, folder: str) -> dict[str, str]:
        files = [t for t in self.things.values() if isinstance(t, File)]
        return {
            PurePosixPath(file.path).name: file.content
            for file in files
            if str(PurePosixPath(file.path).parent) == folder
        }

    def read(self, path: str) -> str | None:
        thing = self.things.get(path)
        return thing.content if isinstance(thing, File) else None

    def why_not_listen(self, host: str, port: int) -> str | None:
        return "Address already in use" if port in self.held else None

    def perform(self, step: Step) -> str | None:
        if self.fails_at is not None and self.fails_at in str(step):
            raise DeployError(f"cannot: {step}")
        match step:
            case Change(thing=File(is_operators=True) as file):
                old = self.things[file.key]
                assert isinstance(old, File)
                self.things[file.key] = replace(file, content=old.content)
            case Make(thing=thing) | Change(thing=thing):
                self.things[thing.key] = thing
            case Remove(thing=made):
                return self._remove(made)
            case Run(command=command):
                self.ran.append(command)
                if command[:2] in (("systemctl", "start"), ("systemctl", "restart")):
                    self.units |= set(command[2:])
                if command[:2] == ("systemctl", "stop"):
                    self.units -= set(command[2:])
        return None

    def _remove(self, made: Made) -> str | None:
        inside = [key for key in self.things if key.startswith(f"{made.name}/")]
        if made.kind == "directory" and made.holds == "nothing" and inside:
            return f"{made.name} is left"
        for key in [made.key, *(inside if made.kind == "directory" else [])]:
            self.things.pop(key, None)
        return None

    def put(self, path: str, content: str, mode: int = 0o600) -> None:
        """What the operator does."""
        self.things[path] = File(path, content, mode)

    def paths(self) -> set[str]:
        return {t.key for t in self.things.values() if not isinstance(t, Directory)}
