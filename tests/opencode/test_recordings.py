"""Recordings of a real `opencode serve`, replayed: what was sent in, what a client sees out.

A recording is a list of lines: the events OpenCode sent, and the requests and answers
around them. Every prompt in it becomes a `Turn` that hears what the shared feed would
give it from the request on. `STORIES` says what must come of each.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import orjson
import pytest

from opencode_a2a.domain.events import (
    AgentEvent,
    ChildStarted,
    Gap,
    ToolSnapshot,
)
from opencode_a2a.domain.turn import Turn
from opencode_a2a.domain.updates import (
    BlockPhase,
    BlockText,
    BlockTool,
    InterruptOpened,
    Progress,
)
from opencode_a2a.domain.values import (
    AnsweredBy,
    Failure,
    ModelRef,
    SessionRef,
    SubAgent,
    Usage,
)
from opencode_a2a.opencode.api import Defaults
from opencode_a2a.opencode.feed import Feed
from opencode_a2a.opencode.http import Http
from opencode_a2a.opencode.v1.catalog import Api1
from opencode_a2a.opencode.v1.wire import parent_of, session_of, translate
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

RECORDINGS = Path(__file__).parent.parent / "recordings"
PROMPTING = re.compile(r"/session/(ses_\w+)/(?:message|prompt_async|command|shell|summarize)")

Json = dict[str, Any]


# -- a recording and what is in it


@dataclass(frozen=True, slots=True)
class Line:
    raw: Json
    event: Json | None = None
    told: Sequence[AgentEvent] = ()

    @property
    def prompted(self) -> str | None:
        """The session that this request prompts."""
        if self.raw["src"] != "http-req" or self.raw["method"] != "POST":
            return None
        match = PROMPTING.fullmatch(self.raw["path"])
        return match[1] if match else None

    @property
    def answers(self) -> list[Json]:
        """The stored messages that this answer holds."""
        body = self.raw.get("body") if self.raw["src"] == "http-res" else None
        messages = body if isinstance(body, list) else [body]
        return [m for m in messages if isinstance(m, dict) and "parts" in m]


@dataclass(frozen=True, slots=True)
class Prompted:
    line: int
    session: str
    message_id: str


@lru_cache
def recorded(name: str) -> tuple[Line, ...]:
    lines = []
    for raw in map(orjson.loads, (RECORDINGS / f"{name}.jsonl").read_bytes().splitlines()):
        event = raw.get("event")
        event = event.get("payload", event) if event else None
        if event is None or event["type"] == "sync":
            lines.append(Line(raw))
        else:
            lines.append(Line(raw, event, tuple(translate(event))))
    return tuple(lines)


@lru_cache
def prompts(name: str) -> tuple[Prompted, ...]:
    """Each prompt, with the user message OpenCode made of it: the next new one of its session."""
    seen: set[str] = set()
    waiting: list[tuple[int, str]] = []
    found: list[Prompted] = []
    for number, line in enumerate(recorded(name)):
        if line.prompted is not None:
            waiting.append((number, line.prompted))
        if line.event is None or line.event["type"] != "message.updated":
            continue
        info = line.event["properties"]["info"]
        asked = next((w for w in waiting if w[1] == info["sessionID"]), None)
        if asked is not None and info["role"] == "user" and info["id"] not in seen:
            waiting.remove(asked)
            found.append(Prompted(asked[0], info["sessionID"], info["id"]))
        seen.add(info["id"])
    return tuple(sorted(found, key=lambda prompted: prompted.line))


# -- OpenCode's side: what it has stored, and how it answers when asked


class Stored:
    """What OpenCode would answer after some lines of a recording. Deltas are not stored."""

    def __init__(self) -> None:
        self.messages: dict[str, Json] = {}
        self.parts: dict[str, dict[str, Json]] = {}
        self._sessions: dict[str, Json] = {}
        self._status: dict[str, Json] = {}
        self._permissions: dict[str, Json] = {}
        self._questions: dict[str, Json] = {}

    def take(self, line: Line) -> None:
        for message in line.answers:
            self.messages[message["info"]["id"]] = message["info"]
            self.parts[message["info"]["id"]] = {part["id"]: part for part in message["parts"]}
        if line.event is None:
            return
        p = line.event["properties"]
        match line.event["type"]:
            case "session.created" | "session.updated":
                self._sessions[p["sessionID"]] = p["info"]
            case "message.updated":
                self.messages[p["info"]["id"]] = p["info"]
            case "message.part.updated":
                part = p["part"]
                self.parts.setdefault(part["messageID"], {})[part["id"]] = part
            case "session.status":
                self._status[p["sessionID"]] = p["status"]
            case "permission.asked":
                self._permissions[p["id"]] = p
            case "question.asked":
                self._questions[p["id"]] = p
            case "permission.replied" | "question.replied" | "question.rejected":
                self._permissions.pop(p["requestID"], None)
                self._questions.pop(p["requestID"], None)
            case _:
                pass

    def restart(self) -> None:
        """What a new process, or one that has done its work, has forgotten."""
        self._status.clear()
        self._permissions.clear()
        self._questions.clear()

    async def read(self, session: str, since: str) -> Sequence[AgentEvent]:
        http = cast(Http, self)
        ref = SessionRef(session, directory="/srv/demo")
        api = Api1(http, Feed(http), Defaults("/srv/demo"))
        return await api.open(ref, ()).read(since)

    async def call(self, method: str, *path: str, query: Any = None) -> Any:
        match method, *path:
            case "GET", "session", "status":
                return {s: now for s, now in self._status.items() if now["type"] != "idle"}
            case "GET", "session", session, "message":
                return [
                    {"info": info, "parts": list(self.parts.get(info["id"], {}).values())}
                    for info in self.messages.values()
                    if info["sessionID"] == session
                ]
            case "GET", "session", session, "children":
                return [i for i in self._sessions.values() if i.get("parentID") == session]
            case "GET", "permission":
                return list(self._permissions.values())
            case "GET", "question":
                return list(self._questions.values())
            case _:
                raise AssertionError(path)

    async def exchange(self, method: str, *path: str, query: Any = None) -> tuple[Any, Json]:
        return await self.call(method, *path, query=query), {}


# -- our side


@dataclass
class Replay(Seen):
    stored: Stored = field(default_factory=Stored)
    known_at_end: frozenset[str] = frozenset()
    family: set[str] = field(default_factory=set)

    def hear(self, line: Line) -> None:
        """Route by session, as the feed does: sub-agent sessions come with their root."""
        session = session_of(line.event) if line.event is not None else None
        if line.event is None or session is None:
            return
        if session not in self.family:
            born = line.event["type"] == "session.created"
            if not born or parent_of(line.event) not in self.family:
                return
            self.family.add(session)
        self.feed(line.told)

    def feed(self, events: Sequence[AgentEvent]) -> None:
        for event in events:
            if isinstance(event, ToolSnapshot) and event.child is not None:
                self.family.add(event.child.session)
            if isinstance(event, ChildStarted):
                self.family.add(event.session)
        super().feed(events)

    async def look(self) -> None:
        self.feed(await self.stored.read(self.turn.session, self.turn.message_id))

    def answer(self) -> Iterator[tuple[str, list[Json]]]:
        """The messages OpenCode stored in answer, each with its parts, as it tells them itself.

        Compaction summaries are left out, and so is what came after the end.
        """
        prompt = self.turn.message_id
        for info in self.stored.messages.values():
            if (
                info["role"] == "assistant"
                and info["sessionID"] == self.turn.session
                and info["id"] > prompt
                and info["id"] in self.known_at_end
                and info.get("summary") is not True
            ):
                yield info["id"], list(self.stored.parts.get(info["id"], {}).values())


@dataclass(frozen=True, slots=True)
class Loss:
    """Lines not heard, how many are heard before the look, and how far the look is ahead."""

    first: int
    after: int
    unread: int = 0
    ahead: int = 0


async def play(
    lines: Sequence[Line], prompted: Prompted, loss: Loss | None = None, look_at_end: bool = True
) -> Replay:
    replay = Replay(Turn(prompted.session, prompted.message_id), family={prompted.session})
    taken = 0
    for number, line in enumerate(lines):
        while taken <= number:
            replay.stored.take(lines[taken])
            taken += 1
        if number < prompted.line:
            continue
        if loss is None or not loss.first <= number < loss.after:
            replay.hear(line)
        elif number == loss.after - 1:
            replay.feed([Gap(prompted.session)])
        if loss is not None and number == loss.after - 1 + loss.unread:
            for later in lines[taken : taken + loss.ahead]:
                replay.stored.take(later)
                taken += 1
            await replay.look()
        if replay.turn.outcome is not None and not replay.known_at_end:
            replay.known_at_end = frozenset(replay.stored.messages)
    if replay.turn.outcome is None:
        replay.known_at_end = frozenset(replay.stored.messages)
        if look_at_end:  # the recording stopped a moment too early
            replay.stored.restart()
            await replay.look()
    return replay


# -- what must come of each prompt


# fmt: off
STORIES = (
    Story("01-plain-text", COMPLETED, ["text: ECHO: hello world"], (2399, 2, 0), STEP),
    Story("02-reasoning-and-stream", COMPLETED,
          ["reasoning: think0 think1 think2 ", f"text: {words(5)}"], (2412, 5, 3), STEP),
    # -- permissions and questions
    Story("03-permission-once", COMPLETED, ["bash: completed", "text: TOOL RESULT: hi\n"],
          (4821, 2, 0), TWO_STEPS, "bash? once"),
    Story("04-permission-always", COMPLETED, ["bash: completed", "text: TOOL RESULT: x"],
          (4819, 2, 0), TWO_STEPS, "bash? always"),
    Story("04-permission-always", COMPLETED, ["bash: completed", "text: TOOL RESULT: x"],
          (4854, 2, 0), TWO_STEPS, prompt=1),
    Story("05-permission-reject", CANCELED, ["bash: error"], (2408, 0, 0), STEP, "bash? reject"),
    Story("05b-permission-reject-with-message", COMPLETED,
          ["bash: error", "text: TOOL RESULT: The user rejected permission…"], (4844, 11, 0),
          TWO_STEPS, "bash? reject"),
    Story("05c-permission-once-old-route", COMPLETED,
          ["write: completed", "text: TOOL RESULT: Wrote file successfully."], (4830, 4, 0),
          TWO_STEPS, "edit? once", files=True),
    Story("06-question-answered", COMPLETED,
          ["question: completed", "text: TOOL RESULT: User has answered your questions:…"],
          (4947, 13, 0), TWO_STEPS, "question? answered"),
    Story("07-question-rejected", CANCELED, ["question: error"], (2457, 0, 0), STEP,
          "question? rejected"),
    # -- other ways to prompt; a shell call ends without a finish, as an aborted run does
    Story("08-shell", CANCELED, ["bash: completed"]),
    Story("09-command", COMPLETED,
          ["task: completed", "text: ECHO: Summarize the task tool output above…"], (6023, 7, 0),
          TWO_STEPS),
    # -- the provider fails
    Story("10-provider-error-400", FAILED, failure=Failure.PROVIDER_ERROR),
    Story("10-provider-error-401", FAILED, failure=Failure.PROVIDER_AUTH),
    Story("10-provider-error-403", FAILED, failure=Failure.PROVIDER_AUTH),
    Story("11-provider-429-then-ok", COMPLETED, ["text: recovered"], (2409, 1, 0),
          f"retry retry {STEP}"),
    Story("11b-provider-429-retry-after", COMPLETED, ["text: recovered"], (2413, 1, 0),
          f"retry {STEP}"),
    Story("12-provider-500-retries-exhausted", FAILED, progress="retry retry retry retry retry",
          failure=Failure.PROVIDER_ERROR),
    # -- aborted
    Story("13-abort-mid-stream", CANCELED, [f"text: {words(14)}"], progress="step-start"),
    Story("13b-abort-while-hanging-before-first-byte", CANCELED),
    Story("13c-abort-while-permission-pending", CANCELED, ["bash: error"], progress="step-start",
          interrupts="bash? ended"),
    Story("13d-abort-while-tool-running", CANCELED, ["bash: completed"], progress="step-start",
          interrupts="bash? once"),
    # -- several sessions
    Story("14-two-sessions-parallel", COMPLETED, [f"text: {words(8)}"], (2402, 8, 0), STEP),
    Story("14-two-sessions-parallel", COMPLETED, [f"text: {words(8)}"], (2402, 8, 0), STEP,
          prompt=1),
    Story("15-task-child-session", COMPLETED,
          ["task: completed", 'text: TOOL RESULT: <task id="ses_e1f94137dffeUzVw1FzuKUiAMF"…'],
          (7266, 16, 0), f"step-start {STEP} step-finish {STEP}"),
    Story("15b-task-child-permission", COMPLETED,
          ["task: completed", 'text: TOOL RESULT: <task id="ses_e1f940f9effe9EyNPAU9jtVzuO"…'],
          (9708, 13, 0),
          f"step-start step-start tool-call tool-call step-finish {STEP} step-finish {STEP}",
          "bash? once"),
    # -- files, structured answers, todos
    Story("16-file-input", COMPLETED, ["text: ECHO: look\nCalled…"], (2478, 28, 0), STEP),
    Story("17-structured-output", COMPLETED, ["StructuredOutput: completed"], (2464, 0, 0), STEP),
    Story("17b-structured-output-not-produced", FAILED, ["text: no json"], (2462, 1, 0), STEP,
          failure=Failure.PROVIDER_ERROR),
    Story("18-todo", COMPLETED,
          ["todowrite: completed", 'text: TOOL RESULT: [\n  {\n    "content": "x",…'],
          (4901, 15, 0), f"step-start todo step-finish {STEP}"),
    # -- a busy session
    Story("20-second-prompt-while-busy", COMPLETED, [f"text: {words(20)}", "text: answer three"],
          (4853, 21, 0), TWO_STEPS, merged=True),
    Story("20-second-prompt-while-busy", COMPLETED, ["text: answer three"], (2449, 1, 0), STEP,
          prompt=1, merged=True),
    Story("20-second-prompt-while-busy", COMPLETED, ["text: answer three"], (2449, 1, 0), STEP,
          prompt=2, merged=True),
    # -- the session is deleted under the run: what it says after that is not waited for
    Story("20b-busy-other-ops", None, ["text: alpha bravo "], progress="step-start"),
    Story("20c-client-disconnect", COMPLETED, [f"text: {words(20)}"], (2404, 20, 0), STEP),
    # -- compaction
    Story("22-summarize-manual-compaction", COMPLETED, ["text: ECHO: hello one"], (2398, 2, 0),
          STEP),
    Story("22-summarize-manual-compaction", COMPLETED, ["text: ECHO: hello two"], (2404, 2, 0),
          STEP, prompt=1),
    Story("22-summarize-manual-compaction", COMPLETED, [], (510, 4, 0),
          f"compaction {STEP} compaction", prompt=2),
    Story("22b-auto-compaction-by-usage", COMPLETED,
          ["text: big answer", "text: ECHO: Continue if you have next steps,…"], (192942, 23, 0),
          f"{STEP} compaction {STEP} compaction {STEP}"),
    Story("22c-context-overflow-error", COMPLETED, ["text: ECHO: earlier message"], (2400, 2, 0),
          STEP),
    Story("22c-context-overflow-error", COMPLETED,
          ["text: ECHO: The previous request exceeded the provider's size limit…"], (3752, 45, 0),
          f"compaction {STEP} compaction compaction {STEP} compaction {STEP}", prompt=1),
    # -- odd ends
    Story("23-finish-length-and-cut", FAILED, ["text: cut short"], (2405, 1, 0), STEP,
          failure=Failure.OUTPUT_LIMIT),
    Story("23-finish-length-and-cut", FAILED, ["text: blocked"], (2418, 1, 0), STEP,
          failure=Failure.PROVIDER_ERROR, prompt=1),
    Story("23-finish-length-and-cut", CANCELED, progress="retry retry", prompt=2),
    Story("24-stream-cut-then-retry", COMPLETED, [f"text: {words(10)}"], (2411, 10, 0),
          f"step-start retry {STEP}"),
    Story("24b-tool-args-streamed-and-parallel-tools", COMPLETED,
          ["text: I will read two files", "read: completed", "read: error",
           "text: TOOL RESULT: File not found: /srv/demo/a/project/nope.md"],
          (4924, 8, 0), TWO_STEPS),
    Story("24c-unknown-tool-and-bad-args", COMPLETED,
          ["invalid: completed", "text: TOOL RESULT: The arguments provided to the tool are…"],
          (4857, 19, 0), TWO_STEPS),
    Story("24c-unknown-tool-and-bad-args", COMPLETED,
          ["read: error", "text: TOOL RESULT: The read tool was called with invalid arguments:…"],
          (5068, 14, 0), TWO_STEPS, prompt=1),
    # -- OpenCode is killed, and started again
    Story("25-kill9-part1", None, [f"text: {words(22)}"], progress="step-start"),
    Story("25-kill9-part1", None, ["bash: running"], progress="step-start", interrupts="bash?",
          prompt=1),
    Story("25-kill9-part1", None, ["question: running"], progress="step-start",
          interrupts="question?", prompt=2),
    Story("25-kill9-part2-after-restart", COMPLETED, ["text: after restart"], (2408, 2, 0), STEP),
    Story("25-kill9-part2-after-restart", COMPLETED, ["text: after restart"], (2423, 2, 0), STEP,
          prompt=1),
    Story("25-kill9-part2-after-restart", COMPLETED, ["text: after restart"], (2438, 2, 0), STEP,
          prompt=2),
    # -- one stream for two directories, which says everything persisted twice
    Story("26-global-event-two-directories", COMPLETED,
          ["bash: completed", "text: TOOL RESULT: /srv/demo/p2\n"], (4805, 3, 0), TWO_STEPS,
          "bash? once"),
    Story("26-global-event-two-directories", COMPLETED, [f"text: {words(3)}"], (2399, 3, 0), STEP,
          prompt=1),
    # -- a session that is forked, reverted, archived, deleted between its runs
    Story("27-session-ops", COMPLETED,
          ["write: completed", "text: TOOL RESULT: Wrote file successfully."], (4824, 4, 0),
          TWO_STEPS, files=True),
    Story("27-session-ops", COMPLETED,
          ["write: completed", "text: TOOL RESULT: Wrote file successfully."], (4824, 4, 0),
          TWO_STEPS, prompt=1),
    Story("27-session-ops", COMPLETED, ["bash: completed", "text: TOOL RESULT: (no output)"],
          (4883, 2, 0), TWO_STEPS, files=True, prompt=2),
    Story("27-session-ops", COMPLETED, ["text: new branch"], (2429, 1, 0), STEP, prompt=3),
    Story("27-session-ops", COMPLETED, ["text: archived still works"], (2439, 2, 0), STEP,
          prompt=4),
    # -- tools of an MCP server: a failure of theirs is for the model to see, the run goes on
    Story("30-mcp-dynamic-tool", COMPLETED,
          ["a2a_a2a_call: completed",
           "text: TOOL RESULT: answer from http://peer: you said hello peer"],
          (4893, 5, 0), TWO_STEPS),
    Story("30-mcp-dynamic-tool", COMPLETED,
          ["a2a_a2a_call: error", "text: TOOL RESULT: Error executing tool a2a_call"],
          (4970, 4, 0), TWO_STEPS, prompt=1),
    Story("30-mcp-dynamic-tool", COMPLETED,
          ["a2a_big: completed", "text: TOOL RESULT: \n\n...300000 bytes truncated...…"],
          (5099, 27, 0), TWO_STEPS, prompt=2),
    Story("31-mcp-tool-permission-ask", COMPLETED,
          ["a2a_a2a_call: completed",
           "text: TOOL RESULT: answer from http://peer: you said ask me"],
          (4890, 5, 0), TWO_STEPS, "a2a_a2a_call? once"),
    Story("31-mcp-tool-permission-ask", COMPLETED, ["text: ECHO: hi"], (2396, 1, 0), STEP,
          prompt=1),
    Story("32-mcp-abort-and-timeout", CANCELED, ["a2a_a2a_call: error"], progress="step-start"),
    Story("32-mcp-abort-and-timeout", COMPLETED,
          ["a2a_a2a_call: error", "text: TOOL RESULT: MCP error -32001: Request timed out"],
          (4933, 4, 0), TWO_STEPS, prompt=1),
    Story("32-mcp-abort-and-timeout", COMPLETED,
          ["a2a_a2a_call: completed",
           "text: TOOL RESULT: answer from http://peer: you said sleep:9:progress"],
          (5014, 6, 0), TWO_STEPS, prompt=2),
    Story("33-mcp-lifecycle", COMPLETED,
          ["a2a_a2a_call: error", "text: TOOL RESULT: MCP error -32001: Request timed out"],
          (4905, 4, 0), TWO_STEPS),
    Story("33-mcp-lifecycle", COMPLETED,
          ["a2a-s1_a2a_call: completed", "text: TOOL RESULT: answer from u: you said scoped"],
          (4886, 4, 0), TWO_STEPS, prompt=1),
    Story("33-mcp-lifecycle", COMPLETED,
          ["invalid: completed", "text: TOOL RESULT: The arguments provided to the tool are…"],
          (5023, 27, 0), TWO_STEPS, prompt=2),
    Story("33-mcp-lifecycle", COMPLETED,
          ["a2a_a2a_call: error", "text: TOOL RESULT: Unable to connect.…"],
          (4960, 6, 0), TWO_STEPS, prompt=3),
    Story("33-mcp-lifecycle", COMPLETED,
          ["a2a_a2a_call: completed", "text: TOOL RESULT: answer from u: you said after restart"],
          (5049, 5, 0), TWO_STEPS, prompt=4),
    Story("33-mcp-lifecycle", COMPLETED,
          ["a2a_a2a_call: completed", "text: TOOL RESULT: answer from u: you said after reconnect"],
          (5124, 5, 0), TWO_STEPS, prompt=5),
    # -- a silent provider, and a person who takes eleven minutes
    Story("34-long-silent-provider-and-pending-question", CANCELED, progress="retry retry"),
    Story("34-long-silent-provider-and-pending-question", CANCELED, ["text: alpha "],
          progress="step-start retry step-start retry step-start", prompt=1),
    Story("34-long-silent-provider-and-pending-question", COMPLETED,
          ["question: completed", "text: TOOL RESULT: User has answered your questions:…"],
          (4859, 10, 0), TWO_STEPS, "question? answered", prompt=2),
    # -- how far a permission reaches; one refusal refuses all of the session
    Story("35-permission-scope", COMPLETED, ["bash: completed", "text: TOOL RESULT: 1\n2\n3\n"],
          (4819, 2, 0), TWO_STEPS, "bash? always"),
    Story("35-permission-scope", COMPLETED, ["bash: completed", "text: TOOL RESULT: 1\n2\n3\n"],
          (4819, 2, 0), TWO_STEPS, "bash? once", prompt=1),
    Story("35-permission-scope", COMPLETED, ["bash: completed", "text: TOOL RESULT: 1\n2\n3\n"],
          (4857, 2, 0), TWO_STEPS, prompt=2),
    Story("35-permission-scope", COMPLETED, ["bash: completed", "text: TOOL RESULT: 1\n2\n3\n"],
          (4819, 2, 0), TWO_STEPS, prompt=3),
    Story("35-permission-scope", CANCELED, ["bash: error", "bash: error"], (2425, 0, 0), STEP,
          "bash? bash? reject reject", prompt=4),
    Story("35-permission-scope", COMPLETED,
          ["read: completed", "text: TOOL RESULT: <path>/etc/hostname</path>…"], (4838, 10, 0),
          TWO_STEPS, "external_directory? once", prompt=5),
    Story("35-permission-scope", COMPLETED, ["bash: completed", "text: second"], (4822, 1, 0),
          TWO_STEPS, "bash? once", prompt=6, merged=True),
    Story("35-permission-scope", COMPLETED, ["text: second"], (2414, 1, 0), STEP, prompt=7,
          merged=True),
    # -- what is pending when a run is aborted
    Story("36-stale-permission-and-question-after-abort", CANCELED, ["bash: error"],
          progress="step-start", interrupts="external_directory? ended"),
    Story("36-stale-permission-and-question-after-abort", CANCELED, ["question: error"],
          progress="step-start", interrupts="question? ended", prompt=1),
    Story("37-cancel-properly-reject-then-abort", CANCELED, ["bash: error"],
          progress="step-start", interrupts="bash? ended"),
    Story("37-cancel-properly-reject-then-abort", CANCELED, ["bash: error"],
          progress="step-start", interrupts="bash? reject", prompt=1),
)
# fmt: on

ENDED = [story for story in STORIES if story.state is not None]
ALONE = [story for story in ENDED if not story.merged]


async def told(story: Story) -> Replay:
    prompted = prompts(story.recording)[story.prompt]
    return await play(recorded(story.recording), prompted, look_at_end=story.state is not None)


def test_every_recorded_prompt_has_its_story() -> None:
    recordings = {path.stem for path in RECORDINGS.glob("*.jsonl")}
    asked = {(name, number) for name in recordings for number in range(len(prompts(name)))}
    assert {(story.recording, story.prompt) for story in STORIES} == asked
    untold = recordings - {story.recording for story in STORIES}
    assert untold == {"21-sse-drop-part1", "21-sse-drop-part2"}  # see below


@pytest.mark.parametrize("story", STORIES, ids=str)
async def test_a_recorded_run_is_reported_as_it_happened(story: Story) -> None:
    story.check(await told(story))


@pytest.mark.parametrize("story", ENDED, ids=str)
async def test_the_texts_shown_are_the_texts_stored(story: Story) -> None:
    replay = await told(story)
    stored = [
        part["text"]
        for _, parts in replay.answer()
        for part in parts
        if part["type"] == "text" and "end" in part["time"]
    ]
    assert replay.texts == stored


@pytest.mark.parametrize("story", STORIES, ids=str)
async def test_nothing_of_the_user_an_attachment_or_a_compaction_is_ever_shown(
    story: Story,
) -> None:
    replay = await told(story)
    agents = {message_id for message_id, _ in replay.answer()}
    shown = {u.message_id for u in replay.updates if isinstance(u, BlockText | BlockTool)}
    assert shown <= agents


@pytest.mark.parametrize("story", ENDED, ids=str)
async def test_usage_is_the_sum_of_what_each_step_of_the_family_cost(story: Story) -> None:
    replay = await told(story)
    started = replay.stored.messages[replay.turn.message_id]["time"]["created"]
    spent = Usage()
    for message_id in replay.known_at_end:
        info = replay.stored.messages[message_id]
        if info["sessionID"] not in replay.family or info["time"]["created"] < started:
            continue
        for part in replay.stored.parts.get(message_id, {}).values():
            if part["type"] == "step-finish":
                tokens = part["tokens"]
                spent += Usage(tokens["input"], tokens["output"], tokens["reasoning"])
    assert replay.turn.usage.total_tokens == spent.total_tokens


@pytest.mark.parametrize(
    ("recording", "prompt", "steps"),
    [
        ("01-plain-text", 0, 0),
        ("13-abort-mid-stream", 0, 1),
        ("13b-abort-while-hanging-before-first-byte", 0, 0),
        ("13d-abort-while-tool-running", 0, 1),
        ("24-stream-cut-then-retry", 0, 1),
        ("34-long-silent-provider-and-pending-question", 1, 3),
    ],
)
async def test_a_step_whose_end_never_came_is_reported_missing_in_the_usage(
    recording: str, prompt: int, steps: int
) -> None:
    replay = await told(next(s for s in STORIES if (s.recording, s.prompt) == (recording, prompt)))
    assert replay.turn.usage.unreported_steps == steps


@pytest.mark.parametrize(
    ("recording", "agent", "call"),
    [
        ("09-command", "build", "01M7G6KXKD6ZTFBX66ZXQJJVF6"),
        ("15-task-child-session", "general", "call_53"),
        ("15b-task-child-permission", "general", "call_57"),
    ],
)
async def test_what_a_sub_agent_does_says_who_does_it(
    recording: str, agent: str, call: str
) -> None:
    replay = await told(next(story for story in STORIES if story.recording == recording))
    progress = [update for update in replay.updates if isinstance(update, Progress)]
    [child] = replay.family - {replay.turn.session}
    others = {update.subagent for update in progress if update.subagent is not None}
    assert others == {SubAgent(child, agent, call)}


async def test_what_a_sub_agent_asks_says_who_asks() -> None:
    replay = await told(next(s for s in STORIES if s.recording == "15b-task-child-permission"))
    [child] = replay.family - {replay.turn.session}
    opened = [u.interrupt for u in replay.updates if isinstance(u, InterruptOpened)]
    assert [ask.subagent for ask in opened] == [SubAgent(child, "general", "call_57")]


async def test_calls_tell_when_they_began_and_ended_and_answers_who_gave_them() -> None:
    replay = await told(next(s for s in STORIES if s.recording == "03-permission-once"))
    calls = [u.call for u in replay.updates if isinstance(u, BlockTool)]
    times = [(call.status, call.started_at, call.ended_at) for call in calls]
    assert times[0] == ("pending", None, None)
    assert times[-1] == ("completed", 1794766365664, 1794766366018)
    assert replay.turn.answered_by == AnsweredBy(ModelRef("stub", "stub-model"), agent="build")
    texts = {u.block_id for u in replay.sayings}
    phases = [u for u in replay.updates if isinstance(u, BlockPhase)]
    assert [(u.block_id in texts, u.phase) for u in phases] == [(True, "answer")]


async def test_a_retried_answer_replaces_what_the_cut_one_had_shown_in_its_block() -> None:
    replay = await told(next(s for s in STORIES if s.recording == "24-stream-cut-then-retry"))
    cut, retried = dict.fromkeys(update.part_id for update in replay.sayings)
    assert {update.block_id for update in replay.sayings} == {cut}
    assert "".join(u.text for u in replay.sayings if u.part_id == cut) == words(4)
    first, *rest = [update for update in replay.sayings if update.part_id == retried]
    assert not first.append
    assert all(update.append for update in rest)
    assert first.text + "".join(update.text for update in rest) == words(10)


# -- lost events


@pytest.mark.parametrize("story", ALONE, ids=str)
async def test_losing_events_anywhere_makes_no_difference_in_the_end(story: Story) -> None:
    """Any stretch of the run is lost; then what is stored is read, a bit earlier or later."""
    lines, prompted = _alone(story)
    whole = await play(lines, prompted)
    dice = random.Random(str(story))
    for _ in range(12):
        first = dice.randrange(prompted.line, len(lines))
        after = dice.randrange(first + 1, len(lines) + 1)
        loss = Loss(first, after, dice.choice([0, 0, 3]), dice.choice([0, 0, 3, 10]))
        check_same(await play(lines, prompted, loss), whole, loss)


@pytest.mark.parametrize("story", ALONE, ids=str)
async def test_looking_without_need_makes_no_difference_in_the_end(story: Story) -> None:
    lines, prompted = _alone(story)
    whole = await play(lines, prompted)
    dice = random.Random(str(story))
    for _ in range(6):
        at = dice.randrange(prompted.line + 1, len(lines) + 1)
        look = Loss(at, at, ahead=dice.choice([0, 0, 3, 10]))
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
        changes = raw["src"] == "http-req" and raw["method"] in ("POST", "DELETE")
        if changes and raw["path"].startswith(f"/session/{prompted.session}"):
            harmless = raw["path"].endswith("/abort") or "/permissions/" in raw["path"]
            if not harmless:
                return lines[:number], prompted
    return lines, prompted


async def test_after_a_lost_connection_the_closing_text_brings_what_was_missed() -> None:
    before, after = recorded("21-sse-drop-part1"), recorded("21-sse-drop-part2")
    user = next(line.event for line in before if line.event and _is_user(line.event))
    session, message_id = user["properties"]["sessionID"], user["properties"]["info"]["id"]
    replay = Replay(Turn(session, message_id), family={session})
    for line in before:
        replay.stored.take(line)
        replay.hear(line)
    assert replay.texts == [words(11)]

    replay.feed([Gap(session)])
    await replay.look()
    closing = next(n for n, line in enumerate(after) if line.event and _closes_text(line.event))
    for line in after[:closing]:
        replay.hear(line)
    assert replay.texts == [words(11)]  # later deltas would leave a hole

    for line in after[closing:]:
        replay.hear(line)
    assert replay.texts == [words(60)]
    assert replay.sayings[-1].append  # what was shown is its beginning, so nothing is repeated
    assert replay.state is COMPLETED


def _is_user(event: Json) -> bool:
    return event["type"] == "message.updated" and bool(
        event["properties"]["info"]["role"] == "user"
    )


def _closes_text(event: Json) -> bool:
    return event["type"] == "message.part.updated" and bool(event["properties"]["part"]["text"])


@pytest.mark.parametrize(
    ("number", "shown", "interrupts"),
    [
        (0, [f"text: {words(22)}"], ""),
        (1, ["bash: error"], "bash? elsewhere"),
        (2, ["question: error"], "question? elsewhere"),
    ],
)
async def test_a_run_that_died_with_its_process_fails_once_it_is_found_idle_twice(
    number: int, shown: list[str], interrupts: str
) -> None:
    before, after = recorded("25-kill9-part1"), recorded("25-kill9-part2-after-restart")
    replay = await play(before, prompts("25-kill9-part1")[number], look_at_end=False)
    replay.stored = Stored()
    for line in after:
        if line.prompted is not None:
            break
        replay.stored.take(line)

    replay.feed([Gap(replay.turn.session)])
    found = []
    for _ in range(2):  # an idle that only comes early looks the same at first
        await replay.look()
        found.append((replay.state, replay.failure))
    assert found == [(None, None), (FAILED, Failure.UPSTREAM_INTERRUPTED)]
    assert replay.blocks == shown
    assert replay.interrupts == interrupts


# -- what no recording has


async def test_a_sub_agent_below_one_of_an_earlier_turn_is_read_after_a_gap() -> None:
    """The turn asks a sub-agent again that is older, and that one starts another."""
    stored = Stored()
    for session, parent, created in (("ses_old", "ses_0", 1), ("ses_new", "ses_old", 20)):
        info = {"id": session, "parentID": parent, "time": {"created": created}}
        event = {"type": "session.created", "properties": {"sessionID": session, "info": info}}
        stored.take(Line({"src": "sse"}, event))
    for session, role, created in (
        ("ses_0", "user", 10),
        ("ses_0", "assistant", 11),
        ("ses_old", "assistant", 12),
        ("ses_new", "assistant", 21),
    ):
        message = f"msg_{created}"
        info = {"id": message, "sessionID": session, "role": role, "time": {"created": created}}
        stored.messages[message] = info | {"parentID": "msg_10"}
    names = {"status": "running", "metadata": {"sessionId": "ses_old"}}
    asks = {"type": "tool", "callID": "c", "tool": "task", "state": names}
    for message, session, part in (
        ("msg_11", "ses_0", asks),
        ("msg_21", "ses_new", {"type": "step-finish", "tokens": {"input": 7}}),
    ):
        where = {"id": f"prt_{message}", "messageID": message, "sessionID": session}
        stored.parts[message] = {"prt": part | where}
    replay = Replay(Turn("ses_0", "msg_10"), family={"ses_0"}, stored=stored)
    await replay.look()
    assert replay.turn.usage.input_tokens == 7
