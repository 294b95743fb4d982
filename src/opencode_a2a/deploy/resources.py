"""What a deployment consists of, and the steps from what is there to what is wanted. Pure.

A resource is a user, a directory, a file or a link. A plan is a list of steps; nothing happens
until somebody performs them. What was made is written down in the manifest (`manifest.py`), so that
it can be removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias


class DeployError(Exception):
    """An error for the operator: what is wrong, and what to do."""


@dataclass(frozen=True, slots=True)
class User:
    name: str
    home: str

    @property
    def key(self) -> str:
        return f"user {self.name}"


@dataclass(frozen=True, slots=True)
class Directory:
    path: str
    mode: int = 0o755
    owner: str = "root:root"
    # What may be removed together with it: nothing, what was installed there, or, only where the
    # operator asks for that, data.
    holds: Literal["nothing", "programs", "data"] = "nothing"
    is_operators: bool = False  # the operator may have made it before

    @property
    def key(self) -> str:
        return self.path


@dataclass(frozen=True, slots=True)
class File:
    path: str
    content: str = field(repr=False)  # may be a secret
    mode: int = 0o644
    owner: str = "root:root"
    # What is in it is the operator's, once it is there: only its rights are mended, and it is
    # removed only together with data.
    is_operators: bool = False

    @property
    def key(self) -> str:
        return self.path


@dataclass(frozen=True, slots=True)
class Link:
    path: str
    target: str

    @property
    def key(self) -> str:
        return self.path


Resource: TypeAlias = User | Directory | File | Link


@dataclass(frozen=True, slots=True)
class Make:
    resource: Resource

    def __str__(self) -> str:
        return f"+ {describe(self.resource)}"


@dataclass(frozen=True, slots=True)
class Change:
    resource: Resource

    def __str__(self) -> str:
        return f"~ {describe(self.resource)}"


@dataclass(frozen=True, slots=True)
class Remove:
    resource: Entry

    def __str__(self) -> str:
        made = self.resource
        what = {"data": " and all data in it", "programs": " and everything in it"}
        more = what.get(made.holds, "") if made.kind == "directory" else ""
        return f"- {made.kind} {made.name}{more}"


@dataclass(frozen=True, slots=True)
class Command:
    words: tuple[str, ...]
    may_fail: bool = False  # for what may have been done before
    accepted: tuple[int, ...] = ()  # exit codes besides 0 that are no failure

    def __str__(self) -> str:
        return f"> {' '.join(self.words)}"


Step: TypeAlias = Make | Change | Remove | Command


@dataclass(frozen=True, slots=True)
class Entry:
    """What is written down of a resource that was made."""

    kind: str
    name: str  # of a user; else the path
    holds: str = "nothing"

    @classmethod
    def of(cls, resource: Resource) -> Entry:
        match resource:
            case User():
                return cls("user", resource.name, "data")  # its files would fall to the next user
            case Directory():
                return cls("directory", resource.path, resource.holds)
            case File():
                return cls("file", resource.path, "data" if resource.is_operators else "nothing")
            case Link():
                return cls("link", resource.path)

    @property
    def key(self) -> str:
        return f"user {self.name}" if self.kind == "user" else self.name

    @property
    def is_data(self) -> bool:
        return self.holds == "data"


def describe(resource: Resource) -> str:
    match resource:
        case User():
            return f"user {resource.name}"
        case Directory():
            return f"directory {resource.path} ({resource.mode:04o} {resource.owner})"
        case File():
            return f"file {resource.path} ({resource.mode:04o} {resource.owner})"
        case Link():
            return f"link {resource.path} -> {resource.target}"


def changes(wanted: Iterable[Resource], found: Mapping[str, Resource]) -> list[Make | Change]:
    """The steps that make of what was found what is wanted; none where all is as it should be."""
    steps: list[Make | Change] = []
    for resource in wanted:
        there = found.get(resource.key)
        if there is None:
            steps.append(Make(resource))
        elif not _is_as_wanted(resource, there):
            steps.append(Change(resource))
    return steps


def _is_as_wanted(resource: Resource, found: Resource) -> bool:
    match resource, found:
        case User(), User():
            return True
        case Directory(), Directory():
            return (resource.mode, resource.owner) == (found.mode, found.owner)
        case File(), File():
            same = resource.is_operators or resource.content == found.content
            return same and (resource.mode, resource.owner) == (found.mode, found.owner)
        case Link(), Link():
            return resource.target == found.target
        case _:
            return False


def check_ours(
    wanted: Iterable[Resource], found: Mapping[str, Resource], made: Iterable[Entry]
) -> None:
    """Refuse to take over what others have made, and would then be removed with what is ours."""
    ours = {each.key for each in made}
    foreign = [
        describe(resource)
        for resource in wanted
        if resource.key in found and resource.key not in ours and not _may_exist(resource)
    ]
    if foreign:
        raise DeployError(
            "these exist already and were not made by `opencode-a2a deploy`: "
            + ", ".join(foreign)
            + ". Move or remove them, then try again; nothing was changed."
        )


def _may_exist(resource: Resource) -> bool:
    match resource:
        case Directory():  # one that must be empty to be removed takes nothing of others along
            return resource.is_operators or resource.holds == "nothing"
        case File():
            return resource.is_operators
        case _:
            return False


def removals(made: Sequence[Entry], *, purge: bool) -> list[Remove]:
    """The last first, so that directories are empty when their turn comes; data only to purge."""
    return [Remove(each) for each in reversed(made) if purge or not each.is_data]
