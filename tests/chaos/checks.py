"""After a storm: what clients were shown, what the database holds, what OpenCode stored, agree."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from tests.chaos.ledger import TERMINAL, Ask, Json, Ledger, Record, Seen, View, state_of, task_in
from tests.chaos.upstreams import Upstream
from tests.chaos.wire import GET, SEND, SUBSCRIBE, Refused, Wire

SETTLE_SECONDS = 60.0
SAMPLES = 3
LOSSES = {"UPSTREAM_INTERRUPTED", "UPSTREAM_UNREACHABLE"}


class Checks:
    def __init__(
        self,
        url: str,
        http: aiohttp.ClientSession,
        database: Path,
        upstream: Upstream,
        ledger: Ledger,
        dice: random.Random,
    ) -> None:
        self._wires = {
            "1.0": Wire("1.0", False, url, http),
            "0.3": Wire("0.3", True, url, http),
        }
        self._database, self._upstream = database, upstream
        self._ledger, self._dice = ledger, dice

    async def all(self, losses_allowed: bool) -> None:
        """Everything that must hold of this round; what does not is blamed."""
        tasks = await self._settled()
        self._check_database(tasks)
        heard = await self._upstream.heard({s for t in tasks.values() if (s := _session(t))})
        stored: dict[str, list[Json]] = {}
        failed_contexts = []
        for record in self._ledger.records.values():
            task = tasks.get(record.id)
            if task is None:
                continue  # blamed already
            await self._check_replay(record, task)
            self._check_heard(record, state_of(task), heard, losses_allowed)
            match state_of(task):
                case "completed":
                    session = _session(task) or ""
                    if session not in stored:
                        stored[session] = await self._upstream.stored(session)
                    self._check_answer(record, task, session, stored[session], losses_allowed)
                case "failed":
                    self._check_failure(record, task, losses_allowed)
                    failed_contexts.append(task["contextId"])
                case "canceled" if not record.cancel_asked:
                    self._ledger.blame(f"{record.id}: canceled by nobody: {task['status']}")
                case _:
                    pass
        await self._check_keys()
        for context in self._dice.sample(failed_contexts, min(SAMPLES, len(failed_contexts))):
            await self._check_context(context)

    async def _settled(self) -> dict[str, Json]:
        """The tasks, once they rest; those that never do are blamed."""
        wire, began = self._wires["1.0"], time.monotonic()
        tasks: dict[str, Json] = {}
        for record in self._ledger.records.values():
            while True:
                try:
                    task = await wire.call(GET, {"id": record.id})
                except Refused as exc:
                    self._ledger.blame(f"{record.id}: acknowledged, and now {exc}")
                    break
                tasks[record.id] = task
                state = state_of(task)
                if state in TERMINAL or (state == "input-required" and record.asks[0].waits):
                    self._ledger.counts[f"tasks {state}"] += 1
                    break
                if time.monotonic() - began > SETTLE_SECONDS:
                    self._ledger.blame(f"{record.id}: still {state} {SETTLE_SECONDS:g} s later")
                    break
                await asyncio.sleep(0.1)
        self._ledger.took("settling after the storm", time.monotonic() - began)
        return tasks

    def _check_database(self, tasks: dict[str, Json]) -> None:
        numbers: dict[str, list[tuple[int, str]]] = defaultdict(list)
        with sqlite3.connect(f"file:{self._database}?mode=ro", uri=True) as db:
            for task_id, seq, kind in db.execute(
                "SELECT task_id, seq, kind FROM entries ORDER BY seq"
            ):
                numbers[task_id].append((seq, kind))
            states = dict(db.execute("SELECT id, state FROM tasks"))
        db.close()
        for task_id, task in tasks.items():
            entries = numbers[task_id]
            if [seq for seq, _ in entries] != list(range(1, len(entries) + 1)):
                self._ledger.blame(f"{task_id}: numbers are not 1..n: {entries}")
            ends = [seq for seq, kind in entries if kind == "Ended"]
            if ends != ([len(entries)] if state_of(task) in TERMINAL else []):
                self._ledger.blame(
                    f"{task_id}: is {state_of(task)}, ends at {ends} of {len(entries)}"
                )
            if states.get(task_id) != state_of(task):
                self._ledger.blame(
                    f"{task_id}: {states.get(task_id)} in the table, {task['status']}"
                )
        if ghosts := states.keys() - self._ledger.records.keys() - self._ledger.past:
            self._ledger.blame(f"tasks nobody was told of: {sorted(ghosts)[:5]}")

    async def _check_replay(self, record: Record, final: Json) -> None:
        for line, seen in record.seen.items():
            wire = self._wires[line]
            task = final if line == "1.0" else await wire.call(GET, {"id": record.id})
            if seen.final is not None:
                self._ledger.saw_final(record, line, task)
            if not seen.events and not seen.tasks:
                continue
            told = await self._replay(wire, record.id, 0)
            replayed = dict(told[1:])
            for seq, payload in seen.events.items():
                if replayed.get(seq) != payload:
                    self._ledger.blame(
                        f"{record.id}: event {seq} was {payload!r}, replayed {replayed.get(seq)!r}"
                    )
            self._check_views(record, seen, told, task)
            for seq in self._dice.sample(sorted(seen.tasks), min(SAMPLES, len(seen.tasks))):
                ((_, again), *_) = await self._replay(wire, record.id, seq, first_only=True)
                if again != seen.tasks[seq]:
                    self._ledger.blame(
                        f"{record.id}: the task at {seq} was {seen.tasks[seq]!r}, now {again!r}"
                    )

    def _check_views(
        self, record: Record, seen: Seen, told: list[tuple[int, bytes]], final: Json
    ) -> None:
        """Every task a client was shown is the fold of the events before it; so is the last."""
        begun = task_in(orjson.loads(told[0][1]))
        assert begun is not None
        view, shown = View(begun), dict(seen.tasks)
        for seq, payload in told[1:]:
            for early in [s for s in shown if s < seq]:
                self._compare(record, early, view, shown.pop(early))
            view.apply(orjson.loads(payload))
        if state_of(final) == "input-required":
            return  # the replay ends at the question; what the agent did beside it is in the task
        for seq in list(shown):
            self._compare(record, seq, view, shown.pop(seq))
        if state_of(final) == "completed" and view.open:
            self._ledger.blame(f"{record.id}: completed, and never closed {view.open}")
        whole = View(final)
        if (view.artifacts, view.state) != (whole.artifacts, whole.state):
            self._ledger.blame(f"{record.id}: {view.artifacts} replayed, {whole.artifacts} got")

    def _compare(self, record: Record, seq: int, view: View, payload: bytes) -> None:
        task = task_in(orjson.loads(payload))
        assert task is not None
        held = View(task)
        if (held.artifacts, held.state) != (view.artifacts, view.state):
            self._ledger.blame(
                f"{record.id}: at {seq} shown {held.state} {held.artifacts}, "
                f"the events give {view.state} {view.artifacts}"
            )

    async def _replay(
        self, wire: Wire, task_id: str, after: int, first_only: bool = False
    ) -> list[tuple[int, bytes]]:
        told: list[tuple[int, bytes]] = []
        async with wire.stream(SUBSCRIBE, {"id": task_id}, after) as stream:
            while chunk := await stream.content.readany():
                for seq, data in stream.frames.feed(chunk):
                    told.append((seq, wire.payload(data)))
                    if first_only:
                        return told
        self._ledger.counts["replays"] += 1
        return told

    def _check_heard(
        self, record: Record, state: str, heard: Counter[str], losses_allowed: bool
    ) -> None:
        for ask in record.asks:
            times = heard[ask.tag]
            answered = state == "completed" and (ask is record.asks[-1] or not losses_allowed)
            if times > 1 or (answered and times != 1):
                self._ledger.blame(
                    f"{record.id}: {state}, and the model was asked {times} times: {ask.text}"
                )
            self._ledger.counts["prompts heard"] += times

    def _check_answer(
        self,
        record: Record,
        task: Json,
        session: str,
        stored: list[dict[str, Any]],
        losses_allowed: bool,
    ) -> None:
        """Our text is OpenCode's text, and that is what was asked for.

        A task that was steered is what came of its last message: what was asked before may be
        lost, and then the beginning of its answer is all there is.
        """
        ours = [a["parts"][0]["text"] for a in task["artifacts"] if a["name"] == "answer"]
        theirs: list[str] = []
        lost: list[str] = []
        for ask in record.asks:
            texts = _texts(stored, ask)
            wanted = self._upstream.expected(session, ask.text)
            if "".join(texts[-1:]) == wanted:
                theirs += texts
            elif losses_allowed and ask is not record.asks[-1]:
                lost += [*texts, wanted]
            else:
                self._ledger.blame(f"{record.id}: {ask.text} gave {_brief(texts)}")
        missing, more = Counter(theirs) - Counter(ours), Counter(ours) - Counter(theirs)
        if missing or not all(any(whole.startswith(text) for whole in lost) for text in more):
            self._ledger.blame(
                f"{record.id}: answered {len(record.asks)} prompts with {_brief(ours)}, "
                f"OpenCode stored {_brief(theirs)}, and lost {_brief(lost)}"
            )

    def _check_failure(self, record: Record, task: Json, losses_allowed: bool) -> None:
        kind = task.get("metadata", {}).get("opencode", {}).get("error", {}).get("type")
        self._ledger.counts[f"failed with {kind}"] += 1
        if kind not in LOSSES or not losses_allowed:
            self._ledger.blame(f"{record.id}: failed with {kind}: {task['status']}")

    async def _check_keys(self) -> None:
        """A key still stands for its task."""
        known = [ask for ask in self._ledger.asks if ask.task_ids and ask.task is None]
        for ask in self._dice.sample(known, min(SAMPLES, len(known))):
            wire = self._wires["1.0"]
            task = await wire.call(
                SEND, wire.message(ask, blocking=False), **{"idempotency-key": ask.key}
            )
            self._ledger.told(ask, task["id"])

    async def _check_context(self, context: str) -> None:
        """A conversation that lost a run still answers."""
        ask = Ask(
            "#0-0-0#", f"and now? {time.monotonic_ns()}", f"again-{time.monotonic_ns()}", context
        )
        wire = self._wires["1.0"]
        task = await wire.call(SEND, wire.message(ask), **{"idempotency-key": ask.key})
        self._ledger.told(ask, task["id"])
        self._ledger.counts["contexts asked again"] += 1
        if state_of(task) != "completed":
            self._ledger.blame(f"context {context} does not answer any more: {task['status']}")


def _session(task: Json) -> str | None:
    session: str | None = task.get("metadata", {}).get("shared", {}).get("session", {}).get("id")
    return session


def _brief(texts: list[str]) -> list[str]:
    return [f"{text[:12]}…{text[-12:]} ({len(text)})" for text in texts]


def _texts(stored: list[dict[str, Any]], ask: Ask) -> list[str]:
    """What OpenCode has stored in answer to a prompt."""
    asked = {
        m["info"]["id"]
        for m in stored
        if m["info"]["role"] == "user" and any(ask.tag in p.get("text", "") for p in m["parts"])
    }
    return [
        part["text"]
        for m in stored
        if m["info"].get("parentID") in asked
        for part in m["parts"]
        if part["type"] == "text" and part["text"]
    ]
