"""Backups that are taken during a storm, and what each must hold when it is restored."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from opencode_a2a.data.backup import restore
from opencode_a2a.data.check import check
from opencode_a2a.data.opening import opened, snapshot
from tests.chaos.checks import SETTLE_SECONDS
from tests.chaos.ledger import TERMINAL, Ledger, state_of
from tests.chaos.upstreams import Upstream
from tests.chaos.victim import Victim
from tests.chaos.wire import GET, Refused, Wire
from tests.running import TOKEN

Log = dict[str, list[tuple[int, str, bytes]]]  # the events of each task


@dataclass(frozen=True, slots=True)
class Taken:
    """A backup, and what clients had been told before it began."""

    file: Path
    acknowledged: frozenset[str]
    shown: dict[str, int]  # the last event of a task that a client had seen

    @property
    def database(self) -> Path:
        """Where it is restored to."""
        return self.file.with_suffix(".db")


@dataclass(slots=True)
class Backups:
    victim: Victim
    ledger: Ledger
    every: float  # seconds
    taken: list[Taken] = field(default_factory=list)

    @asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        stop = asyncio.Event()
        taking = asyncio.create_task(self._take_until(stop))
        try:
            yield
        finally:
            stop.set()
            await taking

    async def _take_until(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self._take()
            with suppress(TimeoutError):
                async with asyncio.timeout(self.every):
                    await stop.wait()

    async def _take(self) -> None:
        file = self.victim.log.parent / f"{self.ledger.counts['backups']}.backup"
        records = self.ledger.records
        shown = {
            record.id: max((seq for seen in record.seen.values() for seq in seen.events), default=0)
            for record in records.values()
        }
        taken = Taken(file, frozenset(records) | self.ledger.past_here, shown)
        began = time.monotonic()
        code, said = await self.victim.command("backup", str(file))
        self.ledger.took("backup", time.monotonic() - began)
        self.ledger.counts["backups"] += 1
        if code:
            self.ledger.blame(f"a backup failed with exit code {code}: {said}")
        else:
            self.taken.append(taken)

    async def check(self, upstream: Upstream, http: aiohttp.ClientSession) -> None:
        """Restore each, and start a service on it."""
        truth = _log(self.victim.database)
        for taken in self.taken:
            await asyncio.to_thread(self._check, taken, truth)
            await self._serve(taken, upstream, http)
        for taken in self.taken:
            for file in (taken.file, taken.database):
                file.unlink(missing_ok=True)
        self.taken.clear()

    def _check(self, taken: Taken, truth: Log) -> None:
        url = f"sqlite:///{taken.database}"
        restore(taken.file, url)
        with opened(url) as engine, snapshot(engine) as db:
            for problem in check(db).problems:
                self.ledger.blame(f"{taken.file.name}: {problem}")
        held = _log(taken.database)
        if missing := taken.acknowledged - held.keys():
            self.ledger.blame(f"{taken.file.name}: acknowledged and missing: {sorted(missing)[:5]}")
        for task_id, events in held.items():
            if truth.get(task_id, [])[: len(events)] != events:
                self.ledger.blame(f"{taken.file.name}: {task_id} is not as it was")
            if len(events) < taken.shown.get(task_id, 0):
                self.ledger.blame(
                    f"{taken.file.name}: {task_id} ends at {len(events)}, and a client had seen "
                    f"{taken.shown[task_id]}"
                )
        self.ledger.counts["backups restored"] += 1
        self.ledger.counts["tasks in backups"] += len(held)

    async def _serve(self, taken: Taken, upstream: Upstream, http: aiohttp.ClientSession) -> None:
        """A service on a restored database lists all tasks, and brings all of them to rest."""
        unfinished = _unfinished(taken.database)
        folder = self.victim.log.parent / "restored"
        folder.mkdir(exist_ok=True)
        async with Victim.open(upstream, upstream.url, folder, taken.database, http) as service:
            if missing := taken.acknowledged - await _listed(service.url, http):
                self.ledger.blame(f"{taken.file.name}: not in its list: {sorted(missing)[:5]}")
            wire, until = Wire("1.0", False, service.url, http), time.monotonic() + SETTLE_SECONDS
            for task_id in unfinished:
                state = ""
                while state not in TERMINAL | {"input-required"}:
                    try:
                        state = state_of(await wire.call(GET, {"id": task_id}))
                    except Refused as exc:
                        self.ledger.blame(f"{task_id}: restored, and now {exc}")
                        break
                    if time.monotonic() > until:
                        self.ledger.blame(f"{task_id}: restored, and still {state}")
                        break
                    await asyncio.sleep(0.05)
        self.ledger.counts["services on a restored database"] += 1
        self.ledger.counts["tasks that went on there"] += len(unfinished)


async def _listed(url: str, http: aiohttp.ClientSession) -> set[str]:
    """The ids of all tasks that a service lists."""
    headers = {"authorization": f"Bearer {TOKEN}", "a2a-version": "1.0"}
    found, page = set[str](), ""
    while True:
        asked = {"pageSize": "100", "pageToken": page}
        async with http.get(f"{url}/tasks", params=asked, headers=headers) as response:
            response.raise_for_status()
            listed = await response.json()
        found |= {task["id"] for task in listed["tasks"]}
        page = listed["nextPageToken"]
        if not page:
            return found


def _unfinished(database: Path) -> list[str]:
    left = "SELECT id FROM tasks WHERE state IN ('submitted', 'working', 'input-required')"
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as db:
        found = [task_id for (task_id,) in db.execute(left)]
    db.close()
    return found


def _log(database: Path) -> Log:
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as db:
        log: Log = {task_id: [] for (task_id,) in db.execute("SELECT id FROM tasks")}
        for task_id, *event in db.execute(
            "SELECT task_id, seq, kind, body FROM entries ORDER BY 2"
        ):
            log.setdefault(task_id, []).append((event[0], event[1], event[2]))
    db.close()
    return log
