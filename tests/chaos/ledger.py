"""What the clients asked for and were shown: the evidence to compare with the truth."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import orjson

Json = dict[str, Any]
TERMINAL = {"completed", "failed", "canceled"}


@dataclass(eq=False, slots=True)
class Ask:
    """One message of a client, however often it had to be sent."""

    tag: str
    text: str
    key: str
    context: str | None = None
    task: str | None = None  # steers this one
    waits: bool = False  # the agent will wait for a person
    task_ids: set[str] = field(default_factory=set)  # what it was answered with

    @property
    def message_id(self) -> str:
        return f"message-{self.key}"


@dataclass(eq=False, slots=True)
class Seen:
    """What was shown of a task in one line of the protocol, by number."""

    events: dict[int, bytes] = field(default_factory=dict)
    tasks: dict[int, bytes] = field(default_factory=dict)
    final: bytes | None = None  # the task itself, once it had ended


@dataclass(eq=False, slots=True)
class Record:
    """A task somebody was told of."""

    id: str
    asks: list[Ask] = field(default_factory=list)
    seen: dict[str, Seen] = field(default_factory=dict)  # by line
    cancel_asked: bool = False


class Ledger:
    def __init__(self) -> None:
        self.asks: list[Ask] = []
        self.records: dict[str, Record] = {}
        self.past: set[str] = set()  # tasks of earlier rounds, checked already
        self.past_here: set[str] = set()  # those that are in the database of now
        self.violations: list[str] = []
        self.counts: Counter[str] = Counter()
        self.longest: dict[str, float] = {}

    def blame(self, sentence: str) -> None:
        self.counts["violations"] += 1
        if len(self.violations) < 200:
            self.violations.append(sentence)

    def turn_page(self) -> None:
        """Another round: its tasks are other tasks."""
        self.past |= self.records.keys()
        self.past_here |= self.records.keys()
        self.records, self.asks = {}, []

    def change_database(self) -> None:
        """Another database, in which there is nothing yet."""
        self.past_here = set()

    def took(self, what: str, seconds: float) -> None:
        self.longest[what] = max(self.longest.get(what, 0.0), seconds)

    def told(self, ask: Ask, task_id: str) -> Record:
        """An ask was answered with this task: always the same one."""
        record = self.records.setdefault(task_id, Record(task_id))
        if ask not in record.asks:
            record.asks.append(ask)
        ask.task_ids.add(task_id)
        if len(ask.task_ids) > 1:
            self.blame(f"{ask.tag}: one key, several tasks: {sorted(ask.task_ids)}")
        return record

    def saw(self, record: Record, line: str, seq: int, payload: bytes, is_task: bool) -> None:
        seen = record.seen.setdefault(line, Seen())
        shown = seen.tasks if is_task else seen.events
        if shown.setdefault(seq, payload) != payload:
            kind = "task" if is_task else "event"
            self.blame(f"{record.id}: {kind} {seq} changed\n  {shown[seq]!r}\n  {payload!r}")

    def saw_final(self, record: Record, line: str, task: Json) -> None:
        seen = record.seen.setdefault(line, Seen())
        raw = orjson.dumps(task, option=orjson.OPT_SORT_KEYS)
        if seen.final is None:
            seen.final = raw
        elif seen.final != raw:
            self.blame(f"{record.id}: changed after its end\n  {seen.final!r}\n  {raw!r}")


def state_of(task_or_status: Json) -> str:
    """The same word in every line."""
    state: str = task_or_status["status"]["state"]
    return state.removeprefix("TASK_STATE_").lower().replace("_", "-")


class View:
    """What a client holds of a task: appended and replaced as the protocol says."""

    def __init__(self, task: Json) -> None:
        self.state = state_of(task)
        self._artifacts: dict[str, Json] = {a["artifactId"]: a for a in task.get("artifacts", ())}
        self.open: set[str] = set()  # artifacts of which more was to come

    def apply(self, event: Json) -> None:
        event = event.get("statusUpdate") or event.get("artifactUpdate") or event
        if "status" in event:
            self.state = state_of(event)
            progress = event.get("metadata", {}).get("shared", {}).get("progress", {})
            if progress.get("type") == "phase":
                self._set_phase(progress["artifact_id"], progress["status"])
            return
        artifact = event["artifact"]
        if event.get("lastChunk"):
            self.open.discard(artifact["artifactId"])
        else:
            self.open.add(artifact["artifactId"])
        held = self._artifacts.get(artifact["artifactId"])
        if event.get("append") and held is not None:
            artifact = _appended(held, artifact)
        elif event.get("append"):
            artifact = {**artifact, "appended_to": "nothing"}  # will not match
        self._artifacts[artifact["artifactId"]] = artifact

    def _set_phase(self, artifact_id: str, phase: str) -> None:
        held = self._artifacts[artifact_id]
        marks = {**held["metadata"]["shared"]["stream"], "phase": phase}
        self._artifacts[artifact_id] = {**held, "metadata": {"shared": {"stream": marks}}}

    @property
    def artifacts(self) -> list[Json]:
        """Without those that were emptied, and by their ids: their order changes at the end."""
        held = sorted(self._artifacts.values(), key=lambda artifact: str(artifact["artifactId"]))
        return [a for a in held if not all(p.get("text") == "" for p in a["parts"])]


def _appended(held: Json, piece: Json) -> Json:
    """An artifact and one more piece of it, which repeats only some of the metadata."""
    (before,), (more,) = held["parts"], piece["parts"]
    if "data" in more:
        call = before["data"]
        more = {"data": {**call, "output": call.get("output", "") + more["data"]["output"]}}
    else:
        more = {**more, "text": before["text"] + more["text"]}
    marks = held["metadata"]["shared"]["stream"] | piece["metadata"]["shared"]["stream"]
    return {
        **piece,
        "parts": [more],
        "metadata": {"shared": {"stream": marks}},
    }


def task_in(payload: Json) -> Json | None:
    """The task, when the first event of a stream is one."""
    if payload.get("kind") == "task":
        return payload
    task: Json | None = payload.get("task")
    return task
