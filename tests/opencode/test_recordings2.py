"""Recordings of a real OpenCode 2, replayed: what was sent in, what a client sees out.

Every prompt in them becomes a `Turn` that hears what the feed gives it from the request on, and
reads what is stored after each gap. `STORIES` says what must come of it. What is stored follows
from the events; where a recording has an answer about it, both must agree.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import orjson
import pytest

from opencode_a2a.domain.events import AgentEvent, Gap
from opencode_a2a.domain.ports import SessionGone
from opencode_a2a.domain.turn import Turn
from opencode_a2a.domain.updates import InterruptOpened, Progress
from opencode_a2a.domain.values import Failure, PermissionAsk, SessionRef, SubAgent
from opencode_a2a.opencode.api import Defaults
from opencode_a2a.opencode.feed import Feed, Subscription
from opencode_a2a.opencode.http import Http, NotFound
from opencode_a2a.opencode.v2 import wire
from opencode_a2a.opencode.v2.catalog import Api2
from tests.opencode.replay import (
    CANCELED,
    COMPLETED,
    FAILED,
    STEP,
    TWO_STEPS,
    Seen,
    Story,
    check_same,
    words,
)

RECORDINGS = Path(__file__).parent.parent / "recordings/opencode2"
ABOUT = re.compile(r"/api/session/(ses_\w+)/(prompt|message)(\?.*)?")
PAGE = 3  # messages in an answer

Json = dict[str, Any]


# -- a recording and what is in it


@dataclass(frozen=True, slots=True)
class Line:
    raw: Json

    @property
    def event(self) -> Json | None:
        return self.raw.get("event") if self.raw["src"] == "/api/event" else None

    def answer(self, to: str) -> tuple[str, Any] | None:
        """The session that a request was about, and what came of it, if all went well."""
        if self.raw["src"] != "http-res" or self.raw["status"] != 200:
            return None
        match = ABOUT.fullmatch(self.raw["path"])
        return (match[1], self.raw["body"]["data"]) if match and match[2] == to else None


@dataclass(frozen=True, slots=True)
class Prompted:
    line: int
    session: str
    message_id: str


@lru_cache
def recorded(name: str) -> tuple[Line, ...]:
    lines = (RECORDINGS / f"{name}.jsonl").read_bytes().splitlines()
    return tuple(Line(raw) for raw in map(orjson.loads, lines))


@lru_cache
def prompts(name: str) -> tuple[Prompted, ...]:
    """Each prompt that OpenCode has taken, from the request on."""
    found, asked = list[Prompted](), dict[str, int]()
    for number, line in enumerate(recorded(name)):
        if line.raw["src"] == "http-req":
            asked[line.raw["path"]] = number
        if (answer := line.answer("prompt")) is not None:
            session, admitted = answer
            found.append(Prompted(asked[line.raw["path"]], session, admitted["id"]))
    return tuple(found)


# -- OpenCode's side: what it has stored, and how it answers when asked


class Stored:
    """What OpenCode would answer after some lines of a recording. Deltas are not stored."""

    def __init__(self) -> None:
        self.messages: dict[str, dict[str, Json]] = {}  # by session
        self._sessions: dict[str, Json] = {}
        self._inbox: dict[str, Json] = {}
        self._active: set[str] = set()
        self._deleted: set[str] = set()
        self._asks: dict[str, tuple[str, Json]] = {}

    def take(self, line: Line) -> None:
        if (read := line.answer("message")) is not None and isinstance(read[1], list):
            for message in read[1]:
                self._of(read[0]).setdefault(message["id"], message)
        if line.event is not None and (session := wire.session_of(line.event)) is not None:
            self._happened(session, line.event, line.event["data"])

    def _of(self, session: str) -> dict[str, Json]:
        return self.messages.setdefault(session, {})

    def _happened(self, session: str, event: Json, d: Json) -> None:
        message = self._of(session).get(d.get("assistantMessageID", ""), {})
        own_id, at = f"msg_{event['id'].removeprefix('evt_')}", event["created"]
        match event["type"].removeprefix("session.").split("."):
            case ["created"]:
                self._sessions[session] = {"id": session, "time": {"created": at}, **d}
            case ["inbox", "enqueued"]:
                self._inbox[d["inboxID"]] = d["item"]
            case ["inbox", "delivered"]:
                item = self._inbox.pop(d["inboxID"], {"type": "user", "payload": {}})
                self._add(session, d["inboxID"], item["type"], at, **item["payload"])
            case ["synthetic"]:
                self._add(session, own_id, "synthetic", at, text=d["text"])
            case ["deleted"]:
                self._deleted.add(session)
            case ["execution", "started"]:
                self._active.add(session)
            case ["execution", outcome]:
                self._active.discard(session)
                for unfinished in self._unfinished(session):
                    unfinished.pop("retry", None)
                if d.get("reason") != "shutdown":
                    self._add(session, own_id, "idle", at, outcome=outcome)
            case ["compaction", "started"]:
                self._add(session, d.get("inputID") or own_id, "compaction", at, status="running")
            case ["compaction", "ended"]:
                begun = [m for m in self._of(session).values() if m["type"] == "compaction"]
                begun[-1].update(status="completed", cost=d["cost"], tokens=d["tokens"])
            case ["step" | "text" | "reasoning" | "tool" | "retry", *_]:
                self._worked(session, message, event)
            case ["permission" | "form", "asked" | "created"]:
                ask = d.get("form", d)
                self._asks[ask["id"]] = (event["type"].split(".")[0], ask)
            case ["permission" | "form", _]:
                self._asks.pop(d.get("requestID") or d["id"], None)
            case _:
                pass

    def _add(self, session: str, message_id: str, kind: str, at: int, **more: Any) -> None:
        message = {"id": message_id, "type": kind, "time": {"created": at}, **more}
        self._of(session)[message_id] = message

    def _worked(self, session: str, message: Json, event: Json) -> None:
        d, at = event["data"], event["created"]
        if not message and event["type"] != "session.step.started":
            return  # of an answer that the recording does not tell of
        block = self._block(message, d) if message else {}
        match event["type"].removeprefix("session.").split("."):
            case ["step", "started"]:
                message_id, began = d["assistantMessageID"], d["started"]
                if not message:
                    for earlier in self._unfinished(session):  # OpenCode was killed
                        earlier["time"]["completed"] = at
                    self._add(session, message_id, "assistant", began, content=[], snapshot={})
                known = self._of(session)[message_id]
                known |= {"agent": d["agent"], "model": d["model"]}
                known["time"]["created"] = began
                known.pop("retry", None)
            case ["step", "ended" | "failed" as how]:
                message["time"]["completed"] = at
                message["finish"] = d.get("finish", "error" if how == "failed" else None)
                message |= {key: d[key] for key in ("cost", "tokens", "error") if key in d}
                message["snapshot"] |= {"files": d.get("files", [])}
            case ["retry", "scheduled"]:
                message["retry"] = {key: d[key] for key in ("attempt", "at", "error")}
            case ["text" | "reasoning" as kind, "started"]:
                message["content"].append({"type": kind, "text": ""})
            case ["text" | "reasoning" as kind, "ended"]:
                of_kind = [each for each in message["content"] if each["type"] == kind]
                of_kind[d["ordinal"]]["text"] = d["text"]
            case ["tool", "input", "started"]:
                state: Json = {"status": "streaming", "input": ""}
                call = {
                    "type": "tool",
                    "id": d["id"],
                    "name": d["name"],
                    "state": state,
                    "time": {},
                }
                message["content"].append(call)
            case ["tool", "called"]:
                block["state"] = {"status": "running", "input": d["input"], "metadata": {}}
                block["time"]["ran"] = at
            case ["tool", "success"]:
                more = {key: d[key] for key in ("content", "metadata") if key in d}
                block["state"] = {**block["state"], "status": "completed", **more}
                block["time"]["completed"] = at
            case ["tool", "failed"]:
                given = block["state"]["input"]
                block["state"] = {"status": "error", "input": given, "error": d["error"]}
                block["time"]["completed"] = at
            case _:
                pass

    def _unfinished(self, session: str) -> list[Json]:
        answers = [each for each in self._of(session).values() if each["type"] == "assistant"]
        return [each for each in answers if "completed" not in each["time"]]

    def _block(self, message: Json, d: Json) -> Json:
        return next((each for each in message["content"] if each.get("id") == d.get("id")), {})

    def restart(self) -> None:
        """What a new process, or one that has done its work, has forgotten."""
        self._active.clear()
        self._asks.clear()

    async def call(self, method: str, *path: str, query: Any = None, **_: Any) -> Json:
        assert method == "GET"
        match path:
            case "api", "session", "active":
                return {"data": {session: {} for session in self._active}}
            case "api", "session":
                found = [
                    i for i in self._sessions.values() if i.get("parentID") == query["parentID"]
                ]
                return {"data": found[::-1]}
            case "api", "session", session, "message":
                if session in self._deleted:
                    raise NotFound("It is deleted.", upstream_status=404, name=None)
                begin = int(query.get("cursor", 0))
                newest = list(self._of(session).values())[::-1][begin : begin + PAGE]
                return {"data": newest, "cursor": {"next": str(begin + PAGE) if newest else None}}
            case "api", "session", session, "permission" | "form" as kind:
                asks = [ask for k, ask in self._asks.values() if k == kind]
                return {"data": [ask for ask in asks if ask["sessionID"] == session]}
            case _:
                raise AssertionError(path)


# -- our side


@dataclass
class Replay(Seen):
    """A turn behind the feed of a process."""

    stored: Stored = field(default_factory=Stored)

    def __post_init__(self) -> None:
        http, ref = cast(Http, self.stored), SessionRef(self.turn.session, directory="/srv/demo")
        self._feed = Feed(http)
        self.events = Subscription(ref.id, self._feed._routes)
        self._session = Api2(http, self._feed, Defaults("/srv/demo")).open(ref, ())
        self._session._subscription = self.events

    async def hear(self, line: Line) -> None:
        if line.event is not None:
            self._feed._route(orjson.dumps(line.event), wire)
            await self.drain()

    async def drain(self) -> None:
        while self.events._events:
            self.feed(told := await anext(self.events))
            if isinstance(told[-1], Gap):
                await self.look()

    async def look(self) -> None:
        with suppress(SessionGone):
            self.feed(await self._session.read(self.turn.message_id))


@dataclass(frozen=True, slots=True)
class Loss:
    """Lines not heard, and how far the look after them is ahead of what is heard then."""

    first: int
    after: int
    ahead: int = 0


async def play(
    lines: Sequence[Line], prompted: Prompted, loss: Loss | None = None, look_at_end: bool = True
) -> Replay:
    replay = Replay(Turn(prompted.session, prompted.message_id))
    taken = 0
    for number, line in enumerate(lines):
        while taken <= number:
            replay.stored.take(lines[taken])
            taken += 1
        if number < prompted.line:
            continue
        if loss is None or not loss.first <= number < loss.after:
            await replay.hear(line)
        if loss is not None and number == loss.after - 1:
            for later in lines[taken : taken + loss.ahead]:
                replay.stored.take(later)
                taken += 1
            replay.events.add_gap()
            await replay.drain()
    for _ in range(2 if look_at_end else 0):  # what an exchange does where it is in doubt
        if replay.turn.outcome is None:
            await replay.look()
    return replay


# -- what must come of each prompt

# fmt: off
STORIES = (
    Story("02-text-reasoning-stream", COMPLETED,
          ["reasoning: think0 think1 think2 think3 ", f"text: {words(30)}"], (3062, 30, 4), STEP),
    # -- permissions and questions
    Story("03-permission-once", COMPLETED,
          ["text: I will run it.", "shell: completed", "text: TOOL RESULT: hi\nthere\n"],
          (6162, 4, 0), TWO_STEPS, "shell? once"),
    Story("03-permission-reject-message", COMPLETED, ["text: I will run it.", "shell: error",
          'text: TOOL RESULT: {"error":{"type":"tool.execution","me…'], (6189, 13, 0), TWO_STEPS,
          "shell? reject"),
    Story("03-permission-reject", CANCELED, ["text: I will run it.", "shell: error"], (3078, 2, 0),
          STEP, "shell? reject"),
    Story("04-question-answered", COMPLETED, ["question: completed",
           'text: TOOL RESULT: User has answered your questions: "Wh…'], (6272, 13, 0), TWO_STEPS,
          "question? answered"),
    Story("04-question-cancelled", CANCELED, ["question: error"], (3119, 0, 0), STEP,
          "question? rejected"),
    # -- interrupted: while it answers, asks, uses a tool, waits for the model, or has just begun
    Story("05-interrupt", CANCELED, [f"text: {words(20)}"], progress="step-start"),
    Story("05-interrupt", CANCELED, ["shell: error"], (3066, 0, 0), STEP, "shell? ended", prompt=1),
    Story("05-interrupt", CANCELED, ["question: error"], (3079, 0, 0), STEP, "question? rejected",
          prompt=2),
    Story("05-interrupt", CANCELED, ["shell: error"], (3075, 0, 0), STEP, prompt=3),
    Story("05-interrupt", CANCELED, progress="step-start", prompt=4),
    *(Story("05-interrupt", CANCELED, prompt=n) for n in range(5, 10)),
    # -- the stream of events is cut
    Story("06-sse-drop-and-watermark", COMPLETED, [f"text: {words(60)}"], (3059, 60, 0), STEP),
    # -- OpenCode is killed, and started again: a bare repetition of a prompt begins nothing
    Story("07-kill9-part1", None, [f"text: {words(82)}"], progress="step-start"),
    Story("07-kill9-part1", None, ["shell: running"], progress="step-start", interrupts="shell?",
          prompt=1),
    Story("07-kill9-part1", None, ["question: running"], progress="step-start",
          interrupts="question?", prompt=2),
    Story("07-kill9-part1", None, prompt=3),
    Story("07-kill9-part1", None, ["shell: running"], progress="step-start", prompt=4),
    Story("07-kill9-part1", CANCELED, ["shell: error"], (3063, 0, 0), STEP, "shell? reject",
          prompt=5),
    Story("07-kill9-part1", None, [f"text: {words(46)}"], progress="step-start", prompt=6),
    Story("07-kill9-part1", None, prompt=7),
    *(Story("07-kill9-part2-after-restart", None, prompt=n) for n in range(3)),
    Story("07-kill9-part2-after-restart", COMPLETED, ["text: ECHO: go on"], (3092, 1, 0), STEP,
          prompt=3),
    *(Story("07-service-kill9-part2-after-restart", None, prompt=n) for n in range(3)),
    Story("07-service-kill9-part2-after-restart", COMPLETED, ["text: ECHO: go on"], (3149, 1, 0),
          STEP, prompt=3),
    *(Story("07-sigterm-part2-after-restart", None, prompt=n) for n in range(3)),
    Story("07-sigterm-part2-after-restart", COMPLETED, ["text: ECHO: go on"], (3090, 1, 0), STEP,
          prompt=3),
    # -- sub-agents: one asks, one is interrupted with its parent, one alone, one works beside it
    Story("08-subagent", COMPLETED, ["subagent: completed",
           'text: TOOL RESULT: <subagent sessionID="ses_e101b2ddbffe…'], (12348, 13, 0),
          f"step-start step-start tool-call tool-call step-finish {STEP} step-finish {STEP}",
          "shell? once"),
    Story("08-subagent", CANCELED, ["subagent: error"], (3078, 0, 0), f"step-start {STEP}",
          prompt=1),
    Story("08-subagent", COMPLETED,
          ["subagent: error", 'text: TOOL RESULT: {"error":{"type":"tool.execution","me…'],
          (6186, 12, 0), f"step-start {TWO_STEPS}", prompt=2),
    Story("08-subagent", COMPLETED, ["subagent: completed",
           "text: TOOL RESULT: The subagent is working in the backgr…",
           'text: ECHO: <subagent sessionID="ses_e101b1f42ffeafLc58e…'], (12679, 97, 0),
          f"{STEP} step-start {STEP} step-finish {STEP}", prompt=3),
    # -- a busy session, and the same prompt again
    Story("09-busy-steer-queue-idempotency", COMPLETED,
          [f"text: {words(40)}", "text: ECHO: second steer", "text: ECHO: third queue"],
          (9319, 44, 0), f"{STEP} {TWO_STEPS}", merged=True),
    Story("09-busy-steer-queue-idempotency", COMPLETED,
          ["text: ECHO: second steer", "text: ECHO: third queue"], (6259, 4, 0), TWO_STEPS,
          prompt=1, merged=True),
    Story("09-busy-steer-queue-idempotency", COMPLETED, ["text: ECHO: third queue"], (3133, 2, 0),
          STEP, prompt=2, merged=True),
    *(Story("09-busy-steer-queue-idempotency", None, prompt=n) for n in range(3, 6)),
    Story("09-busy-steer-queue-idempotency", COMPLETED, ["text: ECHO: later"], (3054, 1, 0), STEP,
          prompt=6, merged=True),
    Story("09-busy-steer-queue-idempotency", COMPLETED, ["text: ECHO: later"], (3054, 1, 0), STEP,
          prompt=7),
    *(Story("09-busy-steer-queue-idempotency", COMPLETED, ["text: ECHO: once"], (3053, 1, 0), STEP,
            prompt=n) for n in range(8, 13)),
    Story("09-busy-steer-queue-idempotency", COMPLETED, ["text: ECHO: once"], (3056, 1, 0), STEP,
          prompt=13),
    # -- the provider fails, is asked again, or ends an answer early
    Story("10-provider-errors", FAILED, progress="step-start", failure=Failure.PROVIDER_ERROR),
    Story("10-provider-errors", FAILED, progress="step-start", failure=Failure.PROVIDER_AUTH,
          prompt=1),
    Story("10-provider-errors", FAILED, progress="step-start", failure=Failure.PROVIDER_QUOTA,
          prompt=2),
    Story("10-provider-errors", FAILED, progress="step-start", failure=Failure.PROVIDER_AUTH,
          prompt=3),
    Story("10-provider-errors", COMPLETED, ["text: ECHO: "], (3056, 1, 0),
          "step-start retry step-finish", prompt=4),
    Story("10-provider-errors", COMPLETED, ["text: ECHO: "], (3060, 1, 0),
          "step-start retry step-finish", prompt=5),
    Story("10-provider-errors", COMPLETED,
          ["text: ECHO: <conversation-checkpoint>\nThe following is a…"], (7531, 477, 0),
          f"compaction {STEP} compaction {STEP}", prompt=6),
    Story("10-provider-errors", FAILED, [f"text: {words(5)}"], (3060, 5, 0), STEP,
          failure=Failure.OUTPUT_LIMIT, prompt=7),
    Story("10-provider-errors", FAILED, [f"text: {words(5)}"], (3062, 5, 0), STEP,
          failure=Failure.PROVIDER_ERROR, prompt=8),
    Story("10-provider-errors", COMPLETED, [f"text: {words(8)}",
           "text: ECHO: The previous response was interrupted. Conti…"], (3102, 10, 0),
          f"step-start retry {STEP}", prompt=9),
    Story("10-provider-errors", COMPLETED,
          ["nosuch: error", 'text: TOOL RESULT: {"error":{"type":"tool.execution","me…'],
          (6155, 15, 0), TWO_STEPS, prompt=10),
    Story("10-provider-errors", COMPLETED,
          ["shell: error", 'text: TOOL RESULT: {"error":{"type":"tool.execution","me…'],
          (6166, 18, 0), TWO_STEPS, prompt=11),
    Story("10-provider-errors", FAILED, failure=Failure.PROVIDER_ERROR, prompt=12),
    Story("10-provider-errors", FAILED, failure=Failure.PROVIDER_ERROR, prompt=13),
    Story("10b-provider-500-exhausted", FAILED, progress="step-start"+" retry" * 10,
          failure=Failure.PROVIDER_ERROR),
    Story("10b-provider-500-exhausted", CANCELED, progress="step-start retry", prompt=1),
    # -- a session that is forked, reverted, compacted, and deleted while it is at work
    Story("11-session-ops", COMPLETED,
          ["write: completed", "text: TOOL RESULT: Created file successfully: a.txt"], (6138, 4, 0),
          TWO_STEPS, files=True),
    Story("11-session-ops", COMPLETED, ["write: completed", "edit: completed",
          "text: TOOL RESULT: Edited a.txt (1 replacement)"], (9362, 4, 0), f"{STEP} {TWO_STEPS}",
          files=True, prompt=1),
    Story("11-session-ops", COMPLETED,
          ["shell: error", 'text: TOOL RESULT: {"error":{"type":"tool.execution","me…'],
          (6087, 15, 0), TWO_STEPS, prompt=2),
    Story("11-session-ops", COMPLETED, ["text: ECHO: hi"], (3224, 1, 0), STEP, prompt=3),
    Story("11-session-ops", COMPLETED, ["text: ECHO: hi again"], (5765, 2, 0), STEP, prompt=4),
    Story("11-session-ops", None, [f"text: {words(3)}"], progress="step-start", prompt=5),
    # -- how far a permission reaches
    Story("12-permission-always", COMPLETED, ["shell: completed", "text: TOOL RESULT: one\n"],
          (6125, 2, 0), TWO_STEPS, "shell? always"),
    Story("12-permission-always", COMPLETED, ["shell: completed", "text: TOOL RESULT: two\n"],
          (6125, 2, 0), TWO_STEPS, prompt=1),
    Story("12-permission-always", CANCELED, ["shell: error"], (3075, 0, 0), STEP, "shell? reject",
          prompt=2),
    Story("12-permission-always", COMPLETED,
          ["write: error", 'text: TOOL RESULT: {"error":{"type":"tool.execution","me…'],
          (6180, 8, 0), TWO_STEPS, "edit? reject", prompt=3),
    Story("12-permission-always", COMPLETED, ["read: completed",
           "text: TOOL RESULT: Read file /etc/hostname, lines 1-1\n1: vm"], (6276, 5, 0), TWO_STEPS,
          "external_directory? once", prompt=4),
    Story("12-permission-always", COMPLETED, ["shell: completed", "text: TOOL RESULT: free\n"],
          (6125, 2, 0), TWO_STEPS, prompt=5),
    Story("12-permission-always", COMPLETED,
          ["shell: error", 'text: TOOL RESULT: {"error":{"type":"permission.rejected…'],
          (6179, 9, 0), TWO_STEPS, prompt=6),
    # -- tools of an MCP server
    Story("13-mcp-tool", COMPLETED, ["a2a_call: completed", "text: TOOL RESULT: peer says hi"],
          (5869, 3, 0), TWO_STEPS),
    Story("13-mcp-tool", COMPLETED, ["a2a_call: completed", "text: TOOL RESULT: peer says hi"],
          (5869, 3, 0), TWO_STEPS, "a2a_call? once", prompt=1),
    Story("13-mcp-tool", CANCELED, ["a2a_call: error"], (2933, 0, 0), STEP, prompt=2),
    Story("13-mcp-tool", COMPLETED, ["text: ECHO: hi"], (2922, 1, 0), STEP, prompt=3),
    # -- files
    Story("14-files", COMPLETED, ["text: ECHO: see file\n\nAttached file: a.txt\n\nhello file"],
          (3063, 4, 0), STEP),
    Story("14-files", COMPLETED, ['text: ECHO: see file\n\nAttached file: a.json\n\n{"a":1}'],
          (3062, 4, 0), STEP, prompt=1),
    Story("14-files", COMPLETED, ["text: ECHO: see file"], (3054, 2, 0), STEP, prompt=2),
    Story("14-files", COMPLETED, ["text: ECHO: see file"], (3054, 2, 0), STEP, prompt=3),
    Story("14-files", COMPLETED, ["text: ECHO: see file\n\nAttached file: x.png\n\nnopng"],
          (3062, 4, 0), STEP, prompt=4),
    Story("14-files", COMPLETED, ['text: ECHO: see fileERROR: Cannot read "x.pdf" (this mod…'],
          (3075, 9, 0), STEP, prompt=5),
    Story("14-files", COMPLETED, ["text: ECHO: see file\n\nAttached file: hostname\n\nvm"],
          (3062, 4, 0), STEP, prompt=6),
    Story("14-files", COMPLETED, ["text: ECHO: see file\n\nAttached file: README.md\n\nhello"],
          (3063, 4, 0), STEP, prompt=7),
    Story("14-files", COMPLETED, ["text: ECHO: see file\n\nAttached directory: /srv/demo/proj…"],
          (3071, 7, 0), STEP, prompt=8),
    Story("14-files", COMPLETED,
          ["text: ECHO: see file\n\nAttached file: inline attachment\n\na,b"], (3064, 5, 0), STEP,
          prompt=9),
    # -- two calls at once of which one is refused; a sub-agent that must not; a title by the model
    Story("18-parallel-tools-and-child-rules", CANCELED, ["shell: completed", "shell: error"],
          (3078, 0, 0), STEP, "shell? shell? once reject"),
    Story("18-parallel-tools-and-child-rules", COMPLETED, ["subagent: completed",
           'text: TOOL RESULT: <subagent sessionID="ses_e100f779fffe…'], (12138, 38, 0),
          f"step-start step-start tool-call tool-call step-finish {STEP} step-finish {STEP}",
          prompt=1),
    Story("18-parallel-tools-and-child-rules", COMPLETED, ["text: ECHO: hello"], (3054, 1, 0), STEP,
          prompt=2),
    # -- a prompt that is withdrawn and sent again
    Story("19-withdraw-after-crash-part2", COMPLETED, [f"text: {words(4)}"], (3058, 4, 0), STEP),
    Story("19-withdraw-after-crash-part2", COMPLETED, [f"text: {words(4)}"], (3058, 4, 0), STEP,
          prompt=1),
    Story("19-withdraw-after-crash", None),
    Story("19-withdraw-after-crash", None, [f"text: {words(60)}"], progress="step-start", prompt=1),
    Story("19-withdraw-after-crash", None, prompt=2),
)
# fmt: on

ENDED = [story for story in STORIES if story.state is not None]
NOT_STORED = "10-provider-errors#13"  # why it failed, before it had begun
ALONE = [story for story in ENDED if not story.merged and str(story) != NOT_STORED]


async def told(story: Story) -> Replay:
    prompted = prompts(story.recording)[story.prompt]
    return await play(recorded(story.recording), prompted, look_at_end=story.state is not None)


def test_every_recorded_prompt_has_its_story() -> None:
    recordings = {path.stem for path in RECORDINGS.glob("*.jsonl")}
    asked = {(name, number) for name in recordings for number in range(len(prompts(name)))}
    assert {(story.recording, story.prompt) for story in STORIES} == asked


@pytest.mark.parametrize("name", sorted(path.stem for path in RECORDINGS.glob("*.jsonl")))
def test_what_is_stored_follows_from_the_events(name: str) -> None:
    def meaning(session: str, message: Json) -> list[AgentEvent]:
        return list(wire.stored_events(session, wire.Message.model_validate(message)))

    stored = Stored()
    for line in recorded(name):
        if (read := line.answer("message")) is not None and isinstance(read[1], list):
            session, messages = read
            known = stored.messages.get(session, {})
            for message in messages:
                if message["id"] in known:
                    assert meaning(session, known[message["id"]]) == meaning(session, message)
        stored.take(line)


@pytest.mark.parametrize("story", STORIES, ids=str)
async def test_a_recorded_run_is_reported_as_it_happened(story: Story) -> None:
    story.check(await told(story))


@pytest.mark.parametrize("story", ALONE, ids=str)
async def test_the_texts_shown_are_the_texts_stored(story: Story) -> None:
    replay = await play(*_alone(story))
    messages = list(replay.stored.messages[replay.turn.session].values())
    ids = [message["id"] for message in messages]
    since = ids.index(replay.turn.message_id) if replay.turn.message_id in ids else len(ids)
    blocks = [each for message in messages[since:] for each in message.get("content", [])]
    assert replay.texts == [each["text"] for each in blocks if each["type"] == "text"]


async def test_what_a_sub_agent_does_and_asks_says_who_it_is() -> None:
    replay = await told(next(story for story in STORIES if story.recording == "08-subagent"))
    [child] = replay.turn.family - {replay.turn.session}
    who = SubAgent(child, "general", "call_24")
    progress = [update for update in replay.updates if isinstance(update, Progress)]
    asked = [u.interrupt for u in replay.updates if isinstance(u, InterruptOpened)]
    assert {update.subagent for update in progress} == {None, who}
    [ask] = asked
    assert isinstance(ask, PermissionAsk)
    assert (ask.subagent, ask.command) == (who, "echo from child")


@pytest.mark.parametrize("story", ALONE, ids=str)
async def test_losing_events_anywhere_makes_no_difference_in_the_end(story: Story) -> None:
    """Any stretch of the run is lost; then what is stored is read, a bit earlier or later."""
    lines, prompted = _alone(story)
    whole = await play(lines, prompted)
    dice = random.Random(str(story))
    for _ in range(12):
        first = dice.randrange(prompted.line, len(lines))
        after = dice.randrange(first + 1, len(lines) + 1)
        loss = Loss(first, after, dice.choice([0, 0, 3, 10]))
        check_same(await play(lines, prompted, loss), whole, loss)


@pytest.mark.parametrize("story", ALONE, ids=str)
async def test_looking_without_need_makes_no_difference_in_the_end(story: Story) -> None:
    lines, prompted = _alone(story)
    whole = await play(lines, prompted)
    dice = random.Random(str(story))
    for _ in range(6):
        at = dice.randrange(prompted.line + 1, len(lines) + 1)
        look = Loss(at, at, dice.choice([0, 0, 3, 10]))
        replay = await play(lines, prompted, look)
        check_same(replay, whole, look)
        assert len(replay.progress) <= len(whole.progress), look


def _alone(story: Story) -> tuple[Sequence[Line], Prompted]:
    """The lines of a run up to the next thing anybody wants of its session.

    This service prompts a session again only when its turn is over.
    """
    lines, prompted = recorded(story.recording), prompts(story.recording)[story.prompt]
    for number in range(prompted.line + 1, len(lines)):
        raw = lines[number].raw
        changes = raw["src"] == "http-req" and raw["method"] != "GET"
        if changes and raw["path"].startswith(f"/api/session/{prompted.session}"):
            harmless = re.search(r"/(permission|form|interrupt|wait)", raw["path"])
            if not harmless:
                return lines[:number], prompted
    return lines, prompted
