"""A host of dictionaries: what a plan would have made of an empty machine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from opencode_a2a.deploy.resources import (
    Change,
    Command,
    DeployError,
    Directory,
    Entry,
    File,
    Make,
    Remove,
    Resource,
    Step,
)


@dataclass
class FakeHost:
    resources: dict[str, Resource] = field(default_factory=dict)
    units: set[str] = field(default_factory=set)  # that run
    ran: list[tuple[str, ...]] = field(default_factory=list)
    held: set[int] = field(default_factory=set)  # ports of others
    fails_at: str | None = None  # a step that cannot be performed
    outputs: dict[str, str] = field(default_factory=dict)  # by a part of the command

    def find(self, wanted: Iterable[Resource]) -> dict[str, Resource]:
        return {t.key: self.resources[t.key] for t in wanted if t.key in self.resources}

    def active(self, units: Iterable[str]) -> frozenset[str]:
        return frozenset(self.units & set(units))

    def secrets(self, folder: str) -> dict[str, str]:
        files = [t for t in self.resources.values() if isinstance(t, File)]
        return {
            PurePosixPath(file.path).name: file.content
            for file in files
            if str(PurePosixPath(file.path).parent) == folder
        }

    def read(self, path: str) -> str | None:
        resource = self.resources.get(path)
        return resource.content if isinstance(resource, File) else None

    def why_not_listen(self, host: str, port: int) -> str | None:
        return "Address already in use" if port in self.held else None

    def output(self, words: tuple[str, ...]) -> str:
        found = [text for part, text in self.outputs.items() if part in " ".join(words)]
        return found[0] if found else "[]"

    def perform(self, step: Step) -> str | None:
        if self.fails_at is not None and self.fails_at in str(step):
            raise DeployError(f"cannot: {step}")
        match step:
            case Change(resource=File(is_operators=True) as file):
                old = self.resources[file.key]
                assert isinstance(old, File)
                self.resources[file.key] = replace(file, content=old.content)
            case Make(resource=resource) | Change(resource=resource):
                self.resources[resource.key] = resource
            case Remove(resource=made):
                return self._remove(made)
            case Command(words=words):
                self.ran.append(words)
                if words[:2] in (("systemctl", "start"), ("systemctl", "restart")):
                    self.units |= set(words[2:])
                if words[:2] == ("systemctl", "stop"):
                    self.units -= set(words[2:])
        return None

    def _remove(self, made: Entry) -> str | None:
        inside = [key for key in self.resources if key.startswith(f"{made.name}/")]
        if made.kind == "directory" and made.holds == "nothing" and inside:
            return f"{made.name} is left"
        for key in [made.key, *(inside if made.kind == "directory" else [])]:
            self.resources.pop(key, None)
        return None

    def put(self, path: str, content: str, mode: int = 0o600) -> None:
        """What the operator does."""
        self.resources[path] = File(path, content, mode)

    def paths(self) -> set[str]:
        return {t.key for t in self.resources.values() if not isinstance(t, Directory)}
