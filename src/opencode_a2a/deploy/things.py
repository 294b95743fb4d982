"""What a deployment consists of, and the steps from what is there to what is wanted. Pure.

A thing is a user, a directory, a file or a link. A plan is a list of steps; nothing happens until
somebody performs them. What was made is written down (`manifest.py`), so that it can be removed.
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


Thing: TypeAlias = User | Directory | File | Link


@dataclass(frozen=True, slots=True)
class Make:
    thing: Thing

    def __str__(self) -> str:
        return f"+ {describe(self.thing)}"


@dataclass(frozen=True, slots=True)
class Change:
    thing: Thing

    def __str__(self) -> str:
        return f"~ {describe(self.thing)}"


@dataclass(frozen=True, slots=True)
class Remove:
    thing: Made

    def __str__(self) -> str:
        made = self.thing
        what = {"data": " and all data in it", "programs": " and everything in it"}
        more = what.get(made.holds, "") if made.kind == "directory" else ""
        return f"- {made.kind} {made.name}{more}"


@dataclass(frozen=True, slots=True)
class Run:
    command: tuple[str, ...]
    may_fail: bool = False  # for what may have been done before
    accepted: tuple[int, ...] = ()  # exit codes besides 0 that are no failure

    def __str__(self) -> str:
        return f"> {' '.join(self.command)}"


Step: TypeAlias = Make | Change | Remove | Run


@dataclass(frozen=True, slots=True)
class Made:
    """What is written down of a thing that was made."""

    kind: str
    name: str  # of a user; else the path
    holds: str = "nothing"

    @classmethod
    def of(cls, thing: Thing) -> Made:
        match thing:
            case User():
                return cls("user", thing.name, "data")  # its files would fall to the next user
            case Directory():
                return cls("directory", thing.path, thing.holds)
            case File():
                return cls("file", thing.path, "data" if thing.is_operators else "nothing")
            case Link():
                return cls("link", thing.path)

    @property
    def key(self) -> str:
        return f"user {self.name}" if self.kind == "user" else self.name

    @property
    def is_data(self) -> bool:
        return self.holds == "data"


def describe(thing: Thing) -> str:
    match thing:
        case User():
            return f"user {thing.name}"
        case Directory():
            return f"directory {thing.path} ({thing.mode:04o} {thing.owner})"
        case File():
            return f"file {thing.path} ({thing.mode:04o} {thing.owner})"
        case Link():
            return f"link {thing.path} -> {thing.target}"


def changes(wanted: Iterable[Thing], found: Mapping[str, Thing]) -> list[Make | Change]:
    """The steps that make of what was found what is wanted; none where all is as it should be."""
    steps: list[Make | Change] = []
    for thing in wanted:
        there = found.get(thing.key)
        if there is None:
            steps.append(Make(thing))
        elif not _is_as_wanted(thing, there):
            steps.append(Change(thing))
    return steps


def _is_as_wanted(thing: Thing, found: Thing) -> bool:
    match thing, found:
        case User(), User():
            return True
        case Directory(), Directory():
            return (thing.mode, thing.owner) == (found.mode, found.owner)
        case File(), File():
            same = thing.is_operators or thing.content == found.content
            return same and (thing.mode, thing.owner) == (found.mode, found.owner)
        case Link(), Link():
            return thing.target == found.target
        case _:
            return False


def check_ours(wanted: Iterable[Thing], found: Mapping[str, Thing], made: Iterable[Made]) -> None:
    """Refuse to take over users, files and links of others.

    Directories are all below directories of ours, and operators make that of the secrets.
    """
    ours = {each.key for each in made}
    foreign = [
        describe(thing)
        for thing in wanted
        if thing.key in found
        and thing.key not in ours
        and not isinstance(thing, Directory)
        and not (isinstance(thing, File) and thing.is_operators)
    ]
    if foreign:
        raise DeployError(
            "these exist already and were not made by `opencode-a2a deploy`: "
            + ", ".join(foreign)
            + ". Move or remove them, then try again; nothing was changed."
        )


def removals(made: Sequence[Made], *, purge: bool) -> list[Remove]:
    """The last first, so that directories are empty when their turn comes; data only to purge."""
    return [Remove(each) for each in reversed(made) if purge or not each.is_data]
