"""A fake `opencode serve` for load and fault injection, as a program or in-process.

    python -m tests.fakes.opencode --port 0 [--password SECRET] [--sync]
    async with serve() as fake: ...  # fake.base_url

It plays the part of the v1 API that an adapter uses, with the event order and the fields of the
real server; claims about behaviour belong to the real one. A prompt says what its run shall do:

    [[tokens:N]] [[size:K]] [[rate:R]]  N text deltas of K bytes (6), R per second (unlimited);
                                        the text is expected_text(session, N, K)
    [[reason:N]] [[tool:NAME]]          N reasoning deltas, a tool round before the answer
    [[permission]] [[question]]         a tool round that waits for a reply
    [[error:STATUS]] [[hang]]           the provider fails, or is silent (after the tokens, if any)
    [[noidle]] [[latemessage]]          no idle at the end; idle before the message is completed
    [[cutfeed]]                         all event streams are cut half way through the text
    (nothing)                           ECHO: <text>

Tests steer it with GET /__stats, POST /__fault {"mode"}, /__drop, /__stall {"on"} and /__lose, in
every mode and without a password; see FakeOpenCode.control.
"""

import argparse
import asyncio
import base64
import inspect
import itertools
import random
import re
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast
from urllib.parse import parse_qsl

import orjson
import uvicorn
import uvloop

Json = dict[str, Any]
Receive = Callable[[], Awaitable[Json]]
Send = Callable[[Json], Awaitable[None]]

DIRECTORY = b"/project"  # where a request runs that names no directory
BATCH = 64  # deltas in a row; then other runs and the sockets have their turn
BACKLOG = 50_000  # events waiting for one consumer; runs slow down beyond, but never stop
MODES = ("", "ok", "down", "html", "slow", "refuse-prompt", "starting")
SETTLE, LATE = 0.02, 0.2  # first idle to final message: after a failure, for [[latemessage]]
MARK = re.compile(r"\[\[(\w+)(?::([^\]]*))?\]\]")
ID = re.compile(r"/((?:ses|msg|per|que)_[^/]*)")
PERSISTED = re.compile(r"session\.(created|updated|deleted)|message\.(part\.)?updated")
GLYPHS = 'abcdefghijklmnopqrstuvwxyz    "\\\néßñø語€\u2028🙂🚀'
HTML = b"<!doctype html><html><body>fake web app</body></html>"
BUSY, IDLE = {"type": "busy"}, {"type": "idle"}
UNTITLED, SNAPSHOT = "New session - 2026-01-01T00:00:00.000Z", "5e1f" * 10
REJECTED = "The user rejected permission to use this specific tool call."  # clients look for these
DISMISSED = "The user dismissed this question"
TOKENS: Json = {"input": 0, "output": 0, "reasoning": 0, "cache": {"read": 0, "write": 0}}
SECRETS = {"responseHeaders": {"x-secret": "header"}, "responseBody": "secret body"}
COMMAND: Json = {"command": "echo hi", "description": "say hi"}
PERMISSION: Json = {"permission": "bash", "patterns": ["echo hi"], "always": ["echo *"]}
PERMISSION["metadata"] = {"command": "echo hi"}
OPTIONS = [{"label": "A", "description": "first"}, {"label": "B", "description": "second"}]
QUESTIONS: Json = {"questions": [{"question": "Which?", "header": "Pick", "options": OPTIONS}]}
CHOICE = {"providerID": "fake", "modelID": "fake-model"}
ABILITIES = {"reasoning": True, "attachment": False, "toolcall": True, "input": {"text": True}}
MODEL: Json = {"id": "fake-model", "providerID": "fake", "name": "Fake", "variants": {"high": {}}}
MODEL |= {"capabilities": ABILITIES, "limit": {"context": 100_000, "output": 10_000}}
PROVIDER: Json = {"id": "fake", "name": "Fake", "source": "config", "env": []}
PROVIDER |= {"options": {"apiKey": "fake-secret-key"}, "models": {"fake-model": MODEL}}
AGENTS = [
    {"name": name, "mode": mode, "description": f"Can {name}.", "permission": [], "options": {}}
    for name, mode in (("build", "primary"), ("plan", "primary"), ("general", "subagent"))
]


def expected_text(session_id: str, tokens: int, size: int = 6) -> str:
    """What `[[tokens:N]] [[size:K]]` says in that session."""
    return said(pieces_of(session_id, size), tokens)


def said(pieces: tuple[str, ...], count: int) -> str:
    turns, rest = divmod(count, len(pieces))
    return "".join(pieces) * turns + "".join(pieces[:rest])


@lru_cache(maxsize=4096)
def pieces_of(session_id: str, size: int) -> tuple[str, ...]:
    """A few deltas of exactly `size` bytes, said in turn over and over."""
    dice, pieces = random.Random(f"{session_id}/{size}"), []
    for _ in range(max(3, min(61, 65536 // size))):
        text = "".join(dice.choices(GLYPHS, k=size)).encode()[:size].decode(errors="ignore")
        pieces.append(text + "." * (size - len(text.encode())))
    return tuple(pieces)


def now() -> int:
    return time.time_ns() // 1_000_000


def new_id(prefix: str, counter: Iterator[int] = itertools.count()) -> str:  # noqa: B008
    """48 bits of time, falling for sessions and rising for the rest, then 14 digits."""
    ticks = (~now() if prefix == "ses" else now()) << 12
    return f"{prefix}_{ticks & (1 << 48) - 1:012x}{next(counter):014d}"


def problem(name: str, message: str, **data: Any) -> Json:
    return {"name": name, "data": {"message": message, **data}}


def hang_up(send: Send) -> None:
    """Close without a word. ASGI cannot say it, the transport behind uvicorn's `send` can."""
    cast(Any, send).__self__.transport.abort()


async def gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Refusal(Exception):
    """An error answer; status 0 closes the connection without one."""

    def __init__(self, status: int, body: object = b"") -> None:
        self.status, self.body = status, body


@dataclass(eq=False, slots=True)
class Session:
    id: str
    directory: str
    info: Json
    messages: list[Json] = field(default_factory=list)
    seq: Iterator[int] = field(default_factory=itertools.count)


@dataclass(eq=False, slots=True)
class Run:
    """A busy session, from the prompt to the last idle."""

    session: Session
    user: Json
    text: str
    done: asyncio.Future[Json]  # the assistant's last message; cancelled when the run is lost
    task: asyncio.Task[None] = field(init=False)
    message: Json = field(default_factory=dict)
    status: Json | None = None
    saying: tuple[Json, tuple[str, ...]] | None = None  # a part on the stream but not stored,
    sent: int = 0  # and how many of its pieces were said, in turn


Ask = tuple[Json, Session, asyncio.Future[tuple[bool, str]]]  # request, whose, (granted, words)


@dataclass(eq=False, slots=True)
class Stream:
    """One consumer of events, of one directory or (None) of the whole process."""

    directory: str | None
    send: Send
    frames: list[bytes] = field(default_factory=list)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    open: bool = True

    def push(self, frame: bytes) -> None:
        self.frames.append(frame)
        self.wake.set()

    def cut(self, *_: object) -> None:
        self.open = False
        hang_up(self.send)
        self.wake.set()


class FakeOpenCode:
    """The server as an ASGI application."""

    base_url = ""

    def __init__(self, password: str | None, sync: bool) -> None:
        login = base64.b64encode(f"opencode:{password}".encode())
        self.login, self.sync = b"Basic " + login if password else None, sync
        self.mode, self.delay, self.stalled = "ok", 30.0, False
        self.version = "1.18.33"
        self.swallowed: asyncio.Queue[str] = asyncio.Queue()
        self.delayed: list[str] = []
        self.sessions: dict[str, Session] = {}
        self.runs: dict[str, Run] = {}
        self.asks: dict[str, Ask] = {}
        self.streams: set[Stream] = set()
        self.counts: Json = {"prompts": [], "deltas": 0, "consumers_max": 0}

    def control(self, name: str, mode: str = "", seconds: float = 30.0, on: bool = True) -> Json:
        """Do what is asked, and say how things are.

        fault: answer as one of the MODES says. drop: end the event
        streams. stall: leave them open, but lose their events. lose: forget what a killed and
        restarted process forgets.
        """
        if name not in ("stats", "fault", "drop", "stall", "lose") or mode not in MODES:
            raise ValueError(name, mode)
        if name == "fault":
            self.mode, self.delay = mode, seconds
        if name == "stall":
            self.stalled = on
        if name == "lose":
            for run in self.runs.values():
                run.task.cancel()
                run.done.cancel()
            self.runs, self.asks = {}, {}
        if name in ("drop", "lose") or mode == "down":
            for stream in self.streams:
                stream.cut()
        return self.counts | {"consumers": len(self.streams), "delayed": self.delayed}

    def emit(self, session: Session, kind: str, **properties: Any) -> None:
        event_id, data = new_id("evt"), {"sessionID": session.id, **properties}
        event: Json = {"id": event_id, "type": kind, "properties": data}
        self.publish(session, event, self.streams)
        if self.sync and PERSISTED.fullmatch(kind):
            twin = {"id": event_id, "type": f"{kind}.1", "seq": next(session.seq)}
            twin |= {"aggregateID": session.id, "data": data}
            event = {"type": "sync", "syncEvent": twin, "id": event_id}
            self.publish(session, event, [s for s in self.streams if s.directory is None])

    def publish(self, session: Session | None, event: Json, streams: Iterable[Stream]) -> None:
        """Frame an event, of a session or of the server itself, for each kind of stream."""
        raw, here = orjson.dumps(event), session and session.directory
        place = b'"directory":%b,"project":"global",' % orjson.dumps(here) if here else b""
        for stream in () if self.stalled else streams:
            if stream.directory is None:
                stream.push(b'data: {%b"payload":%b}\n\n' % (place, raw))
            elif here in (None, stream.directory):
                stream.push(b"data: %b\n\n" % raw)

    async def beat(self) -> None:
        while True:
            await asyncio.sleep(10)
            event = {"id": new_id("evt"), "type": "server.heartbeat", "properties": {}}
            self.publish(None, event, self.streams)

    async def _stream(self, directory: str | None, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        stream = Stream(directory, send)
        self.streams.add(stream)
        self.counts["consumers_max"] = max(self.counts["consumers_max"], len(self.streams))
        event = {"id": new_id("evt"), "type": "server.connected", "properties": {}}
        self.publish(None, event, [stream])
        watch = asyncio.create_task(gone(receive))
        watch.add_done_callback(stream.cut)
        while stream.open:
            await stream.wake.wait()
            stream.wake.clear()
            frames, stream.frames = b"".join(stream.frames), []
            await send({"type": "http.response.body", "body": frames, "more_body": True})
        self.streams.discard(stream)
        await watch

    def create(self, body: Json, directory: str) -> Json:
        info: Json = {"title": UNTITLED} | body | {"id": new_id("ses"), "slug": "fake"}
        info |= {"projectID": "global", "directory": directory, "path": directory.strip("/")}
        info |= {"cost": 0, "tokens": TOKENS, "version": "1.18.33"}
        info["time"] = {"created": now(), "updated": now()}
        self.sessions[info["id"]] = session = Session(info["id"], directory, info)
        self.emit(session, "session.created", info=info)
        return info

    def update(self, session: Session, **fields: Any) -> Json:
        session.info |= fields
        self.emit(session, "session.updated", info=session.info)
        return session.info

    def children(self, session: Session) -> list[Session]:
        return [s for s in self.sessions.values() if s.info.get("parentID") == session.id]

    def delete(self, session: Session) -> bool:
        for child in self.children(session):
            self.delete(child)
        del self.sessions[session.id]
        self.emit(session, "session.deleted", info=session.info)
        return True

    def prompt(self, session: Session, body: Json) -> asyncio.Future[Json]:
        """Store a prompt and have it answered; one for a busy session joins the run under way."""
        if not isinstance(body.get("parts"), list):
            raise Refusal(400, problem("BadRequest", "Missing key", kind="Payload"))
        text = "\n".join(part.get("text", "") for part in body["parts"])
        message_id = body.get("messageID") or new_id("msg")
        self.counts["prompts"].append([session.id, message_id, text])
        done: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        user = next((m for m in session.messages if m["info"]["id"] == message_id), None)
        if user and "completed" in session.messages[-1]["info"]["time"]:
            done.set_result(session.messages[-1])  # a repetition gets the same answer
            return done
        user = user or self._store(session, message_id, body)
        if session.id not in self.runs:
            run = self.runs[session.id] = Run(session, user, text, done)
            self._open(run)
            run.task = asyncio.create_task(self._play(run, dict(MARK.findall(text))))
        return self.runs[session.id].done

    def _store(self, session: Session, message_id: str, body: Json) -> Json:
        model, agent = body.get("model", CHOICE), body.get("agent", "build")
        info = {"id": message_id, "role": "user", "sessionID": session.id, "model": model}
        info |= {"agent": agent, "time": {"created": now()}}
        if not session.messages:
            chosen = {"id": model["modelID"], "providerID": model["providerID"]}
            self.update(session, agent=agent, model=chosen | {"variant": "default"})
        keys = {"sessionID": session.id, "messageID": message_id}
        parts = [{"id": new_id("prt"), **part, **keys} for part in body["parts"]]
        session.messages.append({"info": info, "parts": parts})
        self.emit(session, "message.updated", info=info)
        for part in parts:
            self.emit(session, "message.part.updated", part=part, time=now())
        self.update(session)
        return session.messages[-1]

    async def _play(self, run: Run, marks: dict[str, str]) -> None:
        """One round, or two with a tool, as the prompt says; then idle."""
        await asyncio.sleep(0)
        text, stopped = f"ECHO: {run.text}", False
        if run.session.info["title"] == UNTITLED:
            self.update(run.session, title="Fake title")
        self._status(run, BUSY)
        self._summarise(run)
        if code := int(marks.get("error", 0)):
            facts = {"statusCode": code, "isRetryable": code >= 429}
            await self._fail(run, problem("APIError", "fake error", **facts, **SECRETS))
            return
        if "hang" in marks and "tokens" not in marks:
            await asyncio.Future()
        if thoughts := tuple(f"think{i} " for i in range(int(marks.get("reason", 0)))):
            await self._say(run, "reasoning", thoughts, len(thoughts), {})
        if marks.keys() & {"tool", "permission", "question"}:
            stopped, result = await self._use_tool(run, marks)
            text = f"TOOL RESULT: {result}"
            self._close(run, "tool-calls")
            if not stopped:
                self._complete(run)
                self._open(run)
                self._summarise(run)
                self._status(run, BUSY)
        if not stopped:
            pieces = tuple(text[at : at + 12] for at in range(0, len(text), 12))
            if "tokens" in marks:
                pieces = pieces_of(run.session.id, int(marks.get("size", 6)))
            await self._say(run, "text", pieces, int(marks.get("tokens", len(pieces))), marks)
            self._close(run, "stop")
        if "latemessage" in marks:
            self._status(run, IDLE)
            await asyncio.sleep(LATE)
        self._complete(run)
        self._over(run)
        if not marks.keys() & {"latemessage", "noidle"}:
            for status in (IDLE,) if stopped else (BUSY, IDLE):
                self._status(run, status)
            self._summarise(run)

    async def _say(
        self, run: Run, kind: str, pieces: tuple[str, ...], count: int, marks: dict[str, str]
    ) -> None:
        """Say that many pieces, in turn; only the closing update stores them."""
        part = self._part(run, kind, text="", time={"start": now()})
        run.saying, run.sent = (part, pieces), 0
        keys = {"messageID": part["messageID"], "partID": part["id"], "field": "text"}
        clock, rate = asyncio.get_running_loop().time, int(marks.get("rate", 0))
        start, cut = clock(), count // 2 if "cutfeed" in marks else count
        while (sent := run.sent) < count:
            due = max(sent + 1, int((clock() - start) * rate)) if rate else count
            run.sent = min(count, due, sent + BATCH, cut if sent < cut else count)
            for i in range(sent, run.sent):
                self.emit(run.session, "message.part.delta", **keys, delta=pieces[i % len(pieces)])
            self.counts["deltas"] += run.sent - sent
            if run.sent == cut < count:
                self.control("drop")
            ahead = any(len(stream.frames) > BACKLOG for stream in self.streams)
            pause = max(0.005, start + run.sent / rate - clock()) if rate else ahead / 20
            await asyncio.sleep(pause)
        if "hang" in marks:
            await asyncio.Future()
        self._stored(run)

    def _stored(self, run: Run) -> None:
        if run.saying:
            (part, pieces), run.saying = run.saying, None
            ended = part["time"] | {"end": now()}
            self._part(run, part, text=said(pieces, run.sent), time=ended)

    async def _use_tool(self, run: Run, marks: dict[str, str]) -> tuple[bool, str]:
        """One tool call: whether a refusal stops the run, and what the model gets to read."""
        kind = next((kind for kind in ("permission", "question") if kind in marks), "")
        name = marks.get("tool") or ("bash" if kind == "permission" else kind)
        call_id, given = f"call_{new_id('')[-6:]}", QUESTIONS if kind == "question" else COMMAND
        state: Json = {"status": "pending", "input": {}, "raw": ""}
        part = self._part(run, "tool", tool=name, callID=call_id, state=state)
        state = {"status": "running", "input": given, "time": {"start": now()}}
        answer: asyncio.Future[tuple[bool, str]] = asyncio.get_running_loop().create_future()
        if kind:
            request: Json = {"id": new_id(kind[:3]), "sessionID": run.session.id}
            request |= QUESTIONS if kind == "question" else PERMISSION
            request["tool"] = {"messageID": part["messageID"], "callID": call_id}
            self.asks[request["id"]] = (request, run.session, answer)
            self.emit(run.session, f"{kind}.asked", **request)
        self._part(run, part, state=state)
        granted, output = await answer if kind else (True, f"{name} done\n")
        facts = {"output": output, "title": name, "metadata": {"output": output}}
        ended = {"status": "completed"} | facts if granted else {"status": "error", "error": output}
        self._part(run, part, state=state | ended | {"time": state["time"] | {"end": now()}})
        return output in (REJECTED, DISMISSED), output

    def decide(self, ask_id: str, here: str, **reply: Any) -> bool:
        """Answer a permission or a question; no reply at all rejects the question."""
        kind = "question" if ask_id.startswith("que") else "permission"
        if ask_id not in self.asks or self.asks[ask_id][1].directory != here:
            tag, why = f"{kind.title()}NotFoundError", f"{kind.title()} request not found: {ask_id}"
            raise Refusal(404, {"_tag": tag, "requestID": ask_id, "message": why})
        _, session, answer = self.asks.pop(ask_id)
        message, verb = reply.pop("message", ""), "replied" if reply else "rejected"
        self.emit(session, f"{kind}.{verb}", requestID=ask_id, **reply)
        words = "hi\n" if kind == "permission" else f"Answers: {reply.get('answers')}"
        if rejected := not reply or reply.get("reply") == "reject":
            words = message or (REJECTED if kind == "permission" else DISMISSED)
        if not answer.done():
            answer.set_result((not rejected, words))
        return True

    async def abort(self, session_id: str) -> bool:
        run, session = self.runs.get(session_id), self.sessions.get(session_id)
        if run and not run.task.cancelling():
            run.task.cancel()
            await self._fail(run, problem("MessageAbortedError", "Aborted"))
        elif run:
            await asyncio.wait([run.done])
        elif session:
            self.emit(session, "session.status", status=IDLE)
            self.emit(session, "session.idle")
        return True

    async def _fail(self, run: Run, error: Json) -> None:
        """End as failures and aborts do: idle first, the message a little later, idle again."""
        self.emit(run.session, "session.error", error=error)
        self._status(run, IDLE)
        await asyncio.sleep(SETTLE)
        if self.runs.get(run.session.id) is not run:
            return
        self._stored(run)
        for part in run.message["parts"]:
            if part.get("state", {}).get("status") in ("pending", "running"):
                ended: Json = {"status": "error", "error": "Tool execution aborted"}
                ended |= {"metadata": {"interrupted": True}, "time": {"start": now(), "end": now()}}
                self._part(run, part, state=part["state"] | ended)
        self._complete(run, error=error)
        self._status(run, IDLE)
        self._over(run)

    def _over(self, run: Run) -> None:
        del self.runs[run.session.id]
        run.done.set_result(run.message)

    def _open(self, run: Run) -> None:
        """Begin a round: a new, empty assistant message."""
        self._status(run, BUSY)
        asked, here = run.user["info"], run.session.directory
        info = {"id": new_id("msg"), "parentID": asked["id"], "role": "assistant", "cost": 0}
        info |= {"mode": asked["agent"], "agent": asked["agent"], "tokens": TOKENS}
        info |= {"path": {"cwd": here, "root": here}, "time": {"created": now()}}
        run.message = {"info": info | asked["model"] | {"sessionID": run.session.id}, "parts": []}
        run.session.messages.append(run.message)
        self._change(run)

    def _change(self, run: Run, **fields: Any) -> None:
        run.message["info"] |= fields
        self.emit(run.session, "message.updated", info=run.message["info"])

    def _close(self, run: Run, reason: str) -> None:
        tokens = TOKENS | {"total": 9 + run.sent, "input": 9, "output": run.sent}
        self._part(run, "step-finish", reason=reason, snapshot=SNAPSHOT, tokens=tokens, cost=0.1)
        self._change(run, finish=reason, tokens=tokens, cost=0.1)

    def _complete(self, run: Run, **fields: Any) -> None:
        self._change(run, time=run.message["info"]["time"] | {"completed": now()}, **fields)

    def _status(self, run: Run, status: Json) -> None:
        run.status = None if status is IDLE else status
        self.emit(run.session, "session.status", status=status)
        if status is IDLE:
            self.emit(run.session, "session.idle")

    def _summarise(self, run: Run) -> None:
        self.update(run.session, summary={"additions": 0, "deletions": 0, "files": 0})
        self.emit(run.session, "session.diff", diff=[])
        run.user["info"]["summary"] = {"diffs": []}
        self.emit(run.session, "message.updated", info=run.user["info"])

    def _part(self, run: Run, part: Json | str, **fields: Any) -> Json:
        """Change a part, or begin one of that type; the first of a message is its step-start."""
        if isinstance(part, str):
            if part != "step-start" and not run.message["parts"]:
                self._part(run, "step-start", snapshot=SNAPSHOT)
            keys = {"messageID": run.message["info"]["id"], "sessionID": run.session.id}
            part = {"id": new_id("prt"), **keys, "type": part}
            run.message["parts"].append(part)
        part |= fields
        self.emit(run.session, "message.part.updated", part=part, time=now())
        return part

    async def __call__(self, scope: Json, receive: Receive, send: Send) -> None:
        raw, more = b"", True
        while more:
            message = await receive()
            raw, more = raw + message.get("body", b""), message.get("more_body", False)
        path, method, headers = scope["path"], scope["method"], dict(scope["headers"])
        query = dict(parse_qsl(scope["query_string"].decode()))
        here = query.get("directory", headers.get(b"x-opencode-directory", DIRECTORY).decode())
        status, value = 200, cast(object, None)
        try:
            body = dict(orjson.loads(raw or b"{}"))
            if path.startswith("/__"):
                value = self.control(path[3:], **body)
            else:
                if self.mode == "slow":
                    self.delayed.append(f"{method} {path}")
                    leaving = asyncio.create_task(gone(receive))
                    if (await asyncio.wait({leaving}, timeout=self.delay))[0]:
                        return  # done later, it would surprise the next test
                    leaving.cancel()
                if self.mode == "starting":  # as the real one: accepted, and never answered
                    self.swallowed.put_nowait(f"{method} {path}")
                    await gone(receive)
                    return
                if self.mode in ("down", "html"):
                    raise Refusal(*{"down": (0, b""), "html": (200, HTML)}[self.mode])
                if self.login not in (None, headers.get(b"authorization")):
                    raise Refusal(401)
                if method == "GET" and path in ("/event", "/global/event"):
                    await self._stream(here if path == "/event" else None, receive, send)
                    return
                value = self._route(method, path, int(query.get("limit", 0)), here, body)
                value = await value if inspect.isawaitable(value) else value
        except Refusal as refusal:
            status, value = refusal.status, refusal.body
        except (TypeError, ValueError):
            status, value = 400, {"_tag": "BadRequest"}
        if status == 0:
            hang_up(send)
            await gone(receive)
            return
        content = value if isinstance(value, bytes) else orjson.dumps(value)
        kind = b"text/html;charset=UTF-8" if value is HTML else b"application/json"
        answer = {b"content-type": kind, b"content-length": b"%d" % len(content)}
        answer |= {b"www-authenticate": b'Basic realm="Secure Area"'} if status == 401 else {}
        if value is None:
            status, answer, content = 204, {}, b""
        start = {"type": "http.response.start", "status": status, "headers": [*answer.items()]}
        await send(start)
        await send({"type": "http.response.body", "body": content})

    def _route(self, method: str, path: str, limit: int, here: str, body: Json) -> object:
        """The answer of a route, or a coroutine for it."""
        key, ids = f"{method} {ID.sub('/*', path)}", [*ID.findall(path), "", ""]
        session = self.sessions.get(ids[0]) or Session(ids[0], here, {})
        if "/session/*" in key and not session.info and not key.endswith("/abort"):
            raise Refusal(404, problem("NotFoundError", f"Session not found: {session.id}"))
        message = [m for m in session.messages if m["info"]["id"] == ids[1]]
        if ids[1] and not message:
            raise Refusal(404, problem("NotFoundError", f"Message not found: {ids[1]}"))
        asks = [request for request, whose, _ in self.asks.values() if whose.directory == here]
        runs = [run for run in self.runs.values() if run.session.directory == here]
        default = {"default": {"fake": "fake-model"}}
        routes: dict[str, Callable[[], object]] = {
            "GET /global/health": lambda: {"healthy": True, "version": self.version},
            "GET /provider": lambda: {"all": [PROVIDER], "connected": ["fake"]} | default,
            "GET /config": dict,
            "GET /config/providers": lambda: {"providers": [PROVIDER]} | default,
            "GET /agent": lambda: AGENTS,
            "GET /permission": lambda: [ask for ask in asks if ask["id"].startswith("per")],
            "GET /question": lambda: [ask for ask in asks if ask["id"].startswith("que")],
            "POST /permission/*/reply": lambda: self.decide(ids[0], here, **body),
            "POST /question/*/reply": lambda: self.decide(ids[0], here, **body),
            "POST /question/*/reject": lambda: self.decide(ids[0], here),
            "GET /session/status": lambda: {r.session.id: r.status for r in runs if r.status},
            "GET /session": lambda: [s.info for s in reversed(self.sessions.values())][:limit],
            "POST /session": lambda: self.create(body, here),
            "GET /session/*": lambda: session.info,
            "PATCH /session/*": lambda: self.update(session, **body),
            "DELETE /session/*": lambda: self.delete(session),
            "GET /session/*/children": lambda: [s.info for s in self.children(session)],
            "POST /session/*/abort": lambda: self.abort(session.id),
            "POST /session/*/prompt_async": lambda: self._answer(session, body, wait=False),
            "POST /session/*/message": lambda: self._answer(session, body, wait=True),
            "GET /session/*/message": lambda: session.messages[-limit:],
            "GET /session/*/message/*": lambda: message[0],
        }
        return routes.get(key, lambda: HTML)()

    async def _answer(self, session: Session, body: Json, wait: bool) -> Json | None:
        if self.mode == "refuse-prompt" and not wait:
            raise Refusal(500, problem("UnknownError", "Unexpected error", ref="err_fake"))
        done = self.prompt(session, body)
        if not wait:
            return None
        await asyncio.wait([done])
        if done.cancelled():
            raise Refusal(0)
        return done.result()


@asynccontextmanager
async def serve(
    port: int = 0, password: str | None = None, sync: bool = False, host: str = "127.0.0.1"
) -> AsyncIterator[FakeOpenCode]:
    """Run the fake inside this event loop."""
    fake, listener = FakeOpenCode(password, sync), socket.create_server((host, port))
    fake.base_url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    quiet: Json = {"log_config": None, "log_level": "critical", "access_log": False}
    patience: Json = {"timeout_keep_alive": 75, "timeout_graceful_shutdown": 1}
    server = uvicorn.Server(uvicorn.Config(fake, lifespan="off", ws="none", **quiet, **patience))
    server.capture_signals = nullcontext  # type: ignore[method-assign, assignment]
    running, beat = asyncio.create_task(server.serve([listener])), asyncio.create_task(fake.beat())
    try:
        while not server.started:  # noqa: ASYNC110 (uvicorn has no event for it)
            await asyncio.sleep(0.01)
        yield fake
    finally:
        server.should_exit = True
        fake.control("lose")
        beat.cancel()
        await running


async def main() -> None:
    parser = argparse.ArgumentParser(description="A fake `opencode serve`.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--password")
    parser.add_argument("--sync", action="store_true", help="repeat persisted events as `sync`")
    async with serve(**vars(parser.parse_args())) as fake:
        print(f"fake opencode listening on {fake.base_url}", flush=True)  # noqa: T201
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await stop.wait()


if __name__ == "__main__":
    uvloop.run(main())
