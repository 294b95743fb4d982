"""Two services of one user, each with its own folder and OpenCode, killed at random.

    python -m tests.chaos.two_roots --minutes 60 --seed 7

Every task runs `pwd >> TAG.ran`, so the folders show afterwards where it ran and how often. No
task may have run in the folder of the other service, none may have run twice, and every task that
was acknowledged must have ended. Both have the same home directory, and so one OpenCode database
between them; in every other world they also share the database of tasks, by an explicit setting.

The last line says RESULT, `ok` or how many violations there were; those stand above it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from tests.chaos.upstreams import Real
from tests.chaos.victim import Victim
from tests.running import TOKEN

Json = dict[str, Any]

HEADERS = {"authorization": f"Bearer {TOKEN}", "a2a-version": "1.0"}
TERMINAL = {"TASK_STATE_COMPLETED", "TASK_STATE_FAILED", "TASK_STATE_CANCELED"}
PATIENCE = 240.0  # seconds until what was acknowledged must have ended, once all is calm
TROUBLE = ("Traceback", ".internal_error", "task.un")


@dataclass(frozen=True, slots=True)
class Plan:
    seconds: float = 300.0
    seed: int = 1
    round_seconds: float = 60.0  # of faults, then everything is checked
    rounds: int = 5  # then a fresh world
    between_tasks: float = 2.5  # seconds on average, for each service
    between_faults: float = 2.0
    loses_opencode: bool = True  # it is killed as well, and takes seconds to start again


@dataclass(eq=False, slots=True)
class Sent:
    """One message, however often it had to be sent."""

    tag: str
    context: str | None
    foreign: bool = False  # the context is one of the other service
    task_id: str | None = None  # once it was acknowledged
    state: str = ""


@dataclass(eq=False, slots=True)
class Side:
    """A service, its OpenCode and its folder; what was sent to it, and the contexts it knows."""

    name: str
    upstream: Real
    victim: Victim
    sent: list[Sent] = field(default_factory=list)
    contexts: list[str] = field(default_factory=list)

    @property
    def root(self) -> Path:
        return self.upstream.workspace


@dataclass(eq=False, slots=True)
class Report:
    say: Callable[[str], None]
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def blame(self, sentence: str) -> None:
        self.violations.append(sentence)
        self.say(f"VIOLATION {sentence}")

    def summary(self) -> str:
        rows = [f"{name:36} {count:>7}" for name, count in sorted(self.counts.items())]
        found = f"FAILED, {len(self.violations)} violations" if self.violations else "ok"
        return "\n".join([*rows, f"RESULT {found}"])


class World:
    def __init__(self, folder: Path, sides: list[Side], http: aiohttp.ClientSession) -> None:
        self.folder, self.sides, self._http = folder, sides, http

    @classmethod
    @asynccontextmanager
    async def open(cls) -> AsyncIterator[World]:
        async with AsyncExitStack() as stack:
            made = tempfile.TemporaryDirectory(prefix="two-roots-", ignore_cleanup_errors=True)
            folder = _resolved(stack.enter_context(made))
            home = folder / "home"
            connector = aiohttp.TCPConnector(limit=0, force_close=True)
            timeout = aiohttp.ClientTimeout(total=20)
            http = await stack.enter_async_context(
                aiohttp.ClientSession(connector=connector, timeout=timeout)
            )
            sides = []
            for name in ("alpha", "beta"):
                upstream = await stack.enter_async_context(Real.start(folder / name, http, home))
                database = folder / "unused.db"
                settings = {
                    "HOME": str(home),
                    "OPENCODE_MAX_CONCURRENT_STREAMS": "2",
                    "A2A_TASK_STORE_DATABASE_URL": "",
                }
                victim = await stack.enter_async_context(
                    Victim.open(upstream, upstream.url, folder / name, database, http, **settings)
                )
                sides.append(Side(name, upstream, victim))
            yield cls(folder, sides, http)

    def other(self, side: Side) -> Side:
        return next(each for each in self.sides if each is not side)

    # -- faults

    async def storm(self, dice: random.Random, until: float, plan: Plan, report: Report) -> None:
        faults = {self.kill_one: 6, self.kill_both: 3, self.terminate: 1}
        if plan.loses_opencode:
            faults[self.lose_opencode] = 1
        while True:
            await asyncio.sleep(dice.expovariate(1 / plan.between_faults))
            (fault,) = dice.choices(list(faults), list(faults.values()))
            await fault(dice, report)
            if time.monotonic() >= until:
                return

    async def kill_one(self, dice: random.Random, report: Report) -> None:
        await self._end(dice.choice(self.sides), signal.SIGKILL, dice, report)

    async def kill_both(self, dice: random.Random, report: Report) -> None:
        """The one that is started first finds everything of the other unattended."""
        for side in self.sides:
            await side.victim.end(signal.SIGKILL)
            report.counts["kills"] += 1
        await asyncio.sleep(dice.uniform(0, 1))
        for side in dice.sample(self.sides, 2):
            await side.victim.launch()
            await asyncio.sleep(dice.uniform(0, 4))
        for side in self.sides:
            await _patiently(side.victim.start, report)

    async def terminate(self, dice: random.Random, report: Report) -> None:
        await self._end(dice.choice(self.sides), signal.SIGTERM, dice, report)

    async def lose_opencode(self, dice: random.Random, report: Report) -> None:
        report.counts["losses of OpenCode"] += 1
        await _patiently(dice.choice(self.sides).upstream.lose, report)

    async def _end(
        self, side: Side, number: signal.Signals, dice: random.Random, report: Report
    ) -> None:
        try:
            await side.victim.end(number)
        except AssertionError:  # it was killed instead
            report.counts["slow goodbyes"] += 1
        report.counts["kills" if number is signal.SIGKILL else "terminations"] += 1
        await asyncio.sleep(dice.uniform(0, 5))
        while dice.random() < 0.2:  # once more, before it is ready
            await side.victim.launch()
            await asyncio.sleep(dice.uniform(0, 1))
            await side.victim.end(signal.SIGKILL)
            report.counts["kills"] += 1
        await _patiently(side.victim.start, report)

    # -- tasks

    async def send_tasks(
        self, side: Side, dice: random.Random, until: float, plan: Plan, report: Report
    ) -> None:
        sending = set()
        while time.monotonic() < until:
            sent = self._next(side, dice)
            side.sent.append(sent)
            words = f"[[tool:bash {json.dumps(_command(sent.tag, dice))}]] [[tokens:5]]"
            sending.add(asyncio.create_task(self._send(side, sent, words, report)))
            await asyncio.sleep(dice.expovariate(1 / plan.between_tasks))
        for task in sending:
            await task

    def _next(self, side: Side, dice: random.Random) -> Sent:
        tag, other = f"{side.name}-{len(side.sent)}", self.other(side)
        chance = dice.random()
        if chance < 0.15 and other.contexts:
            return Sent(tag, dice.choice(other.contexts), foreign=True)
        if chance < 0.5 and side.contexts:
            return Sent(tag, dice.choice(side.contexts[-5:]))
        return Sent(tag, None)

    async def _send(self, side: Side, sent: Sent, words: str, report: Report) -> None:
        message: Json = {"messageId": sent.tag, "role": "ROLE_USER", "parts": [{"text": words}]}
        if sent.context is not None:
            message["contextId"] = sent.context
        body = {"message": message, "configuration": {"returnImmediately": True}}
        headers = HEADERS | {"idempotency-key": sent.tag}
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            status, found = await self._ask(
                side, "POST", "/message:send", json=body, headers=headers
            )
            if status == 200:
                task = found["task"]
                sent.task_id, context = task["id"], task["contextId"]
                report.counts["acknowledged"] += 1
                if not sent.foreign:
                    side.contexts.append(context)
                return
            if status == 409 and sent.context is not None:
                reason = found["error"]["details"][0]["reason"]
                report.counts[f"refused: {reason}"] += 1
                report.blame(f"{sent.tag} was refused in its own root: {found}")
                return
            await asyncio.sleep(0.3)
        report.blame(f"{sent.tag} could not be sent in {PATIENCE:g} seconds")

    async def _ask(self, side: Side, method: str, path: str, **more: Any) -> tuple[int, Json]:
        """The answer, or status 0: the service may be down, or have been killed meanwhile."""
        with suppress(aiohttp.ClientError, TimeoutError, OSError):
            async with self._http.request(method, side.victim.url + path, **more) as answer:
                return answer.status, await answer.json()
        return 0, {}

    # -- the truth

    async def check(self, report: Report) -> None:
        for side in self.sides:
            for sent in side.sent:
                if sent.task_id is not None and sent.state not in TERMINAL:
                    await self._until_ended(side, sent, report)
            await self._check_list(side, report)
        self._check_folders(report)

    async def _until_ended(self, side: Side, sent: Sent, report: Report) -> None:
        deadline = time.monotonic() + PATIENCE
        found: Json = {}
        while time.monotonic() < deadline:
            status, found = await self._ask(side, "GET", f"/tasks/{sent.task_id}", headers=HEADERS)
            if status == 404:
                report.blame(f"{sent.tag} was acknowledged and is not known any more")
                return
            if status == 200 and found["status"]["state"] in TERMINAL:
                sent.state = found["status"]["state"]
                problem = found.get("metadata", {}).get("opencode", {}).get("error", {})
                name = sent.state.removeprefix("TASK_STATE_").lower()
                report.counts[" ".join(filter(None, ("ended:", name, problem.get("type"))))] += 1
                return
            await asyncio.sleep(0.1)
        report.blame(f"{sent.tag} has not ended in {PATIENCE:g} seconds: {found.get('status')}")

    async def _check_list(self, side: Side, report: Report) -> None:
        known = {sent.task_id for sent in side.sent}
        _, found = await self._ask(side, "GET", "/tasks?pageSize=100", headers=HEADERS)
        for task in found.get("tasks", []):
            if task["id"] not in known:
                report.blame(f"{side.name} lists {task['id']}, which was not sent to it")

    def _check_folders(self, report: Report) -> None:
        ran = {path.stem: path for path in self.folder.rglob("*.ran")}
        for path in self.folder.rglob("*.ran"):
            if path != ran[path.stem]:
                report.blame(f"{path.stem} ran in {path.parent} and in {ran[path.stem].parent}")
        report.counts["ran"] = report.counts["ran in earlier worlds"] + len(ran)
        for side in self.sides:
            for sent in side.sent:
                lines = ran[sent.tag].read_text().split() if sent.tag in ran else []
                if any(line != str(side.root) for line in lines):
                    report.blame(f"{sent.tag} belongs to {side.root} and ran in {lines}")
                if len(lines) > 1:
                    report.blame(f"{sent.tag} ran {len(lines)} times")
                if sent.state == "TASK_STATE_COMPLETED" and not lines:
                    report.blame(f"{sent.tag} is completed and never ran")
                if lines and sent.task_id is None:
                    report.blame(f"{sent.tag} ran and was never acknowledged")

    def check_logs(self, report: Report) -> None:
        for side in self.sides:
            told = side.victim.log.read_text(errors="replace")
            for trouble in TROUBLE:
                if trouble in told:
                    at = told.index(trouble)
                    around = told[max(0, at - 300) : at + 1500]
                    report.blame(f"{trouble} in the log of {side.name}: {around}")

    def keep(self, plan: Plan) -> Path:
        """What there is to look at after a violation."""
        kept = Path(tempfile.gettempdir()) / f"two-roots-{plan.seed}-{self.folder.name}"
        ignore = shutil.ignore_patterns("log", "cache", "*.sock")
        shutil.copytree(self.folder, kept, ignore=ignore, dirs_exist_ok=True)
        return kept


async def _patiently(start: Callable[[], Awaitable[object]], report: Report) -> None:
    """A busy machine may take longer than the storms of one service allow."""
    for _ in range(3):
        try:
            await start()
            return
        except TimeoutError:
            report.counts["slow starts"] += 1
    raise TimeoutError("three starts in a row took too long")


def _resolved(path: str) -> Path:
    """Where the shell says it is, also if the folder for temporary files is a link."""
    return Path(path).resolve()


def _command(tag: str, dice: random.Random) -> Json:
    return {
        "command": f"pwd >> {tag}.ran; sleep {dice.uniform(0, 1.5):.2f}",
        "description": "Note where this runs",
    }


async def run(plan: Plan, say: Callable[[str], None]) -> Report:
    """Worlds, one after the other, until the time is up."""
    report = Report(say)
    began, number = time.monotonic(), 0
    end = began + plan.seconds
    while time.monotonic() < end:
        number += 1
        async with World.open() as world:
            report.counts["worlds"] += 1
            report.counts["ran in earlier worlds"] = report.counts["ran"]
            blamed = len(report.violations)
            for turn in range(plan.rounds):
                until = time.monotonic() + plan.round_seconds
                dice = random.Random(f"{plan.seed}/{number}/{turn}")
                await asyncio.gather(
                    world.storm(dice, until, plan, report),
                    *(
                        world.send_tasks(
                            side, random.Random(f"{dice.random()}"), until, plan, report
                        )
                        for side in world.sides
                    ),
                )
                await world.check(report)
                counts = report.counts
                say(
                    f"{time.monotonic() - began:6.0f} s, world {number}: "
                    f"{counts['kills']} kills, {counts['acknowledged']} tasks, {counts['ran']} "
                    f"ran, {len(report.violations)} violations"
                )
                if time.monotonic() >= end:
                    break
            world.check_logs(report)
            if len(report.violations) > blamed:
                say(f"kept: {world.keep(plan)}")
    del report.counts["ran in earlier worlds"]
    return report


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.two_roots",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    report = asyncio.run(run(Plan(given.minutes * 60, given.seed), _say))
    _say(report.summary())
    return 1 if report.violations else 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
