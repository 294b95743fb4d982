"""The databases of an instance, for going back to a release that cannot read them as they are.

    python -I -m opencode_a2a.deploy.database examine|restore DIRECTORY

The Python of the release to go back to runs this, which knows what it can read, as the user of the
instance: root must not follow links there, nor leave files that the service could not open.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ..store.copies import Restorable, restorable, restore
from .layout import INSTANCES, RELEASES, Instance
from .resources import Change, Command, DeployError, Link, Step


def examine_words(instance: Instance, goal: str) -> tuple[str, ...]:
    return _words(instance, goal, "examine")


def parse(text: str) -> list[Restorable]:
    """What the command has printed."""
    return [Restorable(**each) for each in json.loads(text)]


def restore_steps(instance: Instance, goal: str) -> list[Step]:
    """A connection may start the service at any time: then it must be the release that refuses the
    newer schema, and not the one that would change it again."""
    return [
        Change(Link(f"{INSTANCES}/{instance.name}", f"{RELEASES}/{goal}")),
        Command(("systemctl", "stop", instance.services[1])),
        Command(_words(instance, goal, "restore")),
    ]


def _words(instance: Instance, goal: str, command: str) -> tuple[str, ...]:
    python = (f"{RELEASES}/{goal}/bin/python", "-I", "-m", "opencode_a2a.deploy.database")
    return ("runuser", "-u", instance.user, "--", *python, command, f"{instance.data}/state")


def check_restorable(name: str, goal: str, found: Sequence[Restorable], *, agreed: bool) -> None:
    """Refuse to go back where a database cannot, or where the operator has not said that it may."""
    for each in found:
        if each.copy_revision is None:
            raise DeployError(
                f"{name} cannot go back to {goal}, which does not know schema {each.revision} of "
                f"{each.file}, and there is no copy from before the upgrade that it knows. Restore "
                "a backup of yours in its place, or stay with the present release."
            )
        if not agreed:
            raise DeployError(
                f"{name} can go back to {goal} only with the database that it had before. "
                f"{describe(each)} With --restore-database that is done."
            )


def describe(found: Restorable) -> str:
    newer = "all tasks" if found.newer_tasks is None else f"{found.newer_tasks} tasks"
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found.copied_at))
    return (
        f"{found.file} goes from schema {found.revision} back to {found.copy_revision}, as it was "
        f"on {when}. {newer} that were made since then, and what became of older ones, are not "
        f"seen any longer; {found.file}.of-schema-{found.revision} keeps them."
    )


def main(command: str, directory: str) -> None:
    files = sorted(Path(directory).rglob("tasks.db"))
    found = [each for file in files if (each := restorable(file)) is not None]
    if command == "restore":
        for each in found:
            restore(Path(each.file))
    sys.stdout.write(json.dumps([asdict(each) for each in found]) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
