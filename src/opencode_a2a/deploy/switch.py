"""Take instances to another release, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .layout import Instance
from .operator import NotConfirmed, Operator
from .release import Releases, Source
from .resources import Command, DeployError, Step


class Delegate(Protocol):
    """Runs `deploy WORDS --yes` with the program of a release, which knows its own units."""

    def __call__(self, release: str, *words: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Switch:
    operator: Operator
    releases: Releases
    delegate: Delegate
    question: bool = True  # whether each instance must answer one

    def upgrade(self, source: Source, install: Sequence[Step], names: Sequence[str]) -> None:
        """One instance after the other; the first that does not work goes back, and stops it all.

        Without names: all, and new instances get the release, too.
        """
        manifest, say, host = self.operator.manifest, self.operator.say, self.operator.host
        chosen = [manifest.instance(name) for name in names] or manifest.instances
        removals = self._removals(source.name, chosen, is_for_all=not names)
        say(f"Plan: release {source.name}, beside those that are there")
        for step in install:
            say(f"  {step}")
        for each in chosen:
            asked = ", and ask it" if self.question else ""
            say(f"  then {each.name}: {each.release} -> {source.name}{asked}")
        for step in removals:
            say(f"  then {step}    (no instance runs it, or would go back to it)")
        self._confirm()
        for step in install:
            host.perform(step)
        for each in chosen:
            self._try_release(each, source.name)
        if not names:  # the operator's program is of it, too
            self.delegate(source.name, "init", "--release", source.name)
        for step in removals:
            host.perform(step)
        say(f"All of {', '.join(each.name for each in chosen) or 'nothing'} run {source.name}.")

    def _removals(self, to: str, chosen: Sequence[Instance], *, is_for_all: bool) -> list[Step]:
        """What can go when the instances are switched."""
        instances = self.operator.manifest.instances
        after = [each.switched_to(to) if each in chosen else each for each in instances]
        current = to if is_for_all else self.releases.current
        unused = self.releases.unused(after, kept=[current, to])
        return [Command(("rm", "-rf", str(self.releases.folder(name)))) for name in unused]

    def _try_release(self, before: Instance, to: str) -> None:
        try:
            self._update(before.name, to)
        except DeployError as exc:
            name, goal = before.name, before.release
            self.operator.say(f"{name} does not work with {to}: back to {goal}.")
            self._update(name, goal)
            self.operator.set_previous(name, before.previous)
            raise DeployError(f"the upgrade was stopped at {name}: {exc}") from None

    def rollback(self, names: Sequence[str]) -> None:
        """All that have a release before; one that fails does not keep the others from it."""
        manifest, say = self.operator.manifest, self.operator.say
        chosen = [manifest.instance(name) for name in names] or manifest.instances
        goals = {each.name: each.previous for each in chosen if each.previous is not None}
        if not goals:
            raise DeployError("there is no release before the present one.")
        for each in chosen:
            goal = goals.get(each.name)
            if goal is None:
                say(f"{each.name} has no release before the present one, and stays as it is.")
                continue
            say(f"Plan: {each.name}: {each.release} -> {goal}")
            if self.releases.opencode_of(goal) is None:
                raise DeployError(f"the release {goal} is not installed here.")
        self._confirm()
        failed = []
        for name, goal in goals.items():
            try:
                self._update(name, goal)
            except DeployError as exc:
                say(f"{name}: {exc}")
                failed.append(name)
        if failed:
            raise DeployError(f"these could not go back, or do not work: {', '.join(failed)}.")
        if not names and len(set(goals.values())) == 1:
            (goal,) = set(goals.values())
            self.delegate(goal, "init", "--release", goal)

    def _update(self, name: str, release: str) -> None:
        options = () if self.question else ("--no-question",)
        self.delegate(release, "update", name, "--release", release, *options)

    def _confirm(self) -> None:
        if not self.operator.confirm():
            raise NotConfirmed
