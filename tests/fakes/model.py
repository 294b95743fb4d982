"""A scripted language model for the real OpenCode, as a program or in-process.

    python -m tests.fakes.model [--port 0]
    async with serve() as base_url: ...

It serves OpenAI's chat completions and gives the same answer every time. Without a marker it
repeats the message. Markers in the last user message, combined freely, make it do anything else
that a model does to an agent, its failures included:

    [[tokens:N]]                 N short text deltas
    [[text:words]]               exactly these words
    [[json {…}]]                 this JSON, through the StructuredOutput tool if offered
    [[reason:N]]                 N reasoning deltas, before the first tool result only
    [[tool:NAME {json}]]         call a tool; several play one per round, then the answer follows.
                                 What is named as in OpenCode 1.x is called as it is offered.
    [[parallel]]                 … all remaining ones in one round
    [[say:words]]                … with this text before the call
    [[toolms:MS]]                … arguments in 16-character pieces, MS apart
    [[delay:MS]] [[start:MS]]    wait after each delta; before the response
    [[finish:REASON]]            another finish_reason
    [[usage:IN:OUT]]             other token counts
    [[error:STATUS:K]]           refuse; with K only the first K times for this exact message
    [[retryafter:S]]             … with a Retry-After header
    [[overflow]]                 refuse because the context is too long
    [[hang]] [[hangmid:N]]       never answer; fall silent after N deltas
    [[cutmid:N:K]]               break the connection after N deltas; with K only the first K times

MODEL_SCRIPTS in its environment, a JSON object, says for messages without markers which they
stand for.

Brackets that are not a readable marker are ordinary text. The upper half decides (`parse_markers`,
`plan`) and needs no event loop; the lower half puts what was decided on a socket.
"""

import argparse
import asyncio
import json
import logging
import os
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import count
from typing import Any, Literal, TypeAlias

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from opencode_a2a.demo import model as demo
from tests import tools

WORDS = ("river ", "stone ", "cloud ", "maple ", "ember ", "north ", "quiet ", "light ")
STRUCTURED_OUTPUT = "StructuredOutput"  # the tool OpenCode offers for answers with a schema
MOST = 1_000_000  # deltas or milliseconds a marker can ask for
REQUESTS_KEPT = 1000
SCRIPTS: dict[str, str] = json.loads(os.environ.get("MODEL_SCRIPTS", "{}"))
KEEP_ALIVE = 600  # an idle connection closed under a client about to use it looks like a cut
CUT_PAUSE = 0.05  # clients forget what arrived together with the break
STOP_GRACE = 1.0
MODELS: dict[str, dict[str, Any]] = {
    "demo": {
        "name": "Demo",
        "reasoning": True,
        "interleaved": {"field": "reasoning_content"},
        "limit": {"context": 200_000, "output": 32_000},
        "cost": {"input": 1, "output": 2},
    },
    "demo-small": {"name": "Demo small"},
    "demo-vision": {
        "name": "Demo vision",
        "attachment": True,
        "modalities": {"input": ["text", "image", "pdf"], "output": ["text"]},
    },
}
ANY_MODEL = {
    "tool_call": True,
    "modalities": {"input": ["text"], "output": ["text"]},
    "limit": {"context": 200_000, "output": 8_000},
    "cost": {"input": 0, "output": 0},
}


@dataclass(frozen=True, slots=True)
class ToolCall:
    name: str
    arguments: str = "{}"


@dataclass(frozen=True, slots=True)
class Fault:
    value: int
    times: int | None = None

    def due(self, attempt: int) -> bool:
        return self.times is None or attempt < self.times


def _marker(read: Callable[[str], Any], default: Any = None) -> Any:
    return field(default=default, metadata={"read": read})


def _whole(default: int, allowed: range = range(MOST + 1)) -> Callable[[str], int]:
    def read(argument: str) -> int:
        if (value := int(argument or default)) not in allowed:
            raise ValueError(argument)
        return value

    return read


def _fault(whole: Callable[[str], int]) -> Callable[[str], Fault]:
    def read(argument: str) -> Fault:
        value, limited, times = argument.partition(":")
        return Fault(whole(value), int(times) if limited else None)

    return read


@dataclass(frozen=True, slots=True)
class Script:
    """What a message asks for: its text without the markers, and a field per marker."""

    said: str = ""
    tools: tuple[ToolCall, ...] = ()
    json: str | None = None
    tokens: int | None = _marker(_whole(1))
    text: str | None = _marker(str)
    reason: int = _marker(_whole(5), 0)
    parallel: bool = _marker(lambda _: True, False)
    say: str = _marker(str, "")
    toolms: int = _marker(_whole(0), 0)
    delay: int = _marker(_whole(0), 0)
    start: int = _marker(_whole(0), 0)
    finish: str | None = _marker(str)
    usage: tuple[int, ...] = _marker(lambda figures: tuple(map(int, figures.split(":"))), ())
    error: Fault | None = _marker(_fault(_whole(500, range(400, 600))))
    retryafter: float | None = _marker(float)
    overflow: bool = _marker(lambda _: True, False)
    hang: bool = _marker(lambda _: True, False)
    hangmid: int | None = _marker(_whole(3))
    cutmid: Fault | None = _marker(_fault(_whole(3)))


_READERS = {marker.name: marker.metadata["read"] for marker in fields(Script) if marker.metadata}
_OPENING = re.compile(r"\[\[\s*([a-z]+)(?=[\s:{\]])\s*:?\s*")
_TOOL_NAME = re.compile(r"([\w.-]+)\s*")
_JSON = json.JSONDecoder()


def parse_markers(text: str) -> Script:
    said: list[str] = []
    tools: list[ToolCall] = []
    found: dict[str, Any] = {}
    at = 0
    while opening := _OPENING.search(text, at):
        said.append(text[at : opening.start()])
        name, at = opening[1], opening.end()
        try:
            value, at = _read(name, text, at)
        except (LookupError, ValueError, RecursionError):
            said.append(opening[0])
        else:
            if name == "tool":
                tools.append(value)
            else:
                found.setdefault(name, value)
    return Script(said="".join((*said, text[at:])).strip(), tools=tuple(tools), **found)


def _read(name: str, text: str, at: int) -> tuple[Any, int]:
    """A marker's value and where the text goes on; raises when it is not a marker after all."""
    value: Any
    if name == "tool" and (tool := _TOOL_NAME.match(text, at)):
        value, at = ToolCall(tool[1]), tool.end()
        if text.startswith("{", at):  # decoded, not searched: arguments may hold markers
            arguments, at = _JSON.raw_decode(text, at)
            value = ToolCall(tool[1], json.dumps(arguments))
    elif name == "json":
        content, at = _JSON.raw_decode(text, at)
        value = json.dumps(content)
    else:
        value = _READERS[name](text[at : text.index("]]", at)].strip())
    return value, text.index("]]", at) + 2


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """The part of a chat completion request that decides the answer."""

    model: str = "demo"
    stream: bool = False
    system: str = ""
    text: str = ""
    parts: tuple[str, ...] = ()
    called: int = 0  # tool calls since the last user message …
    results: tuple[str, ...] = ()  # … and what they gave
    offered: Mapping[str, Collection[str]] = field(default_factory=dict)  # arguments by tool
    size: int = 0
    attempt: int = 0  # how often this very message was seen before

    @classmethod
    def parse(cls, body: bytes) -> "ChatRequest":
        """Raises ValueError for anything that is not a chat completion request."""
        try:
            data = orjson.loads(body)
            messages = [(m["role"], m.get("content"), m) for m in data["messages"]]
            asked = max((i for i, (role, *_) in enumerate(messages) if role == "user"), default=-1)
            content = messages[asked][1] if asked >= 0 else []
            after = messages[asked + 1 :]
            return cls(
                model=data.get("model", "demo"),
                stream=data.get("stream") is True,
                system="\n".join(_text(c) for role, c, _ in messages if role == "system"),
                text=_text(content),
                parts=tuple(p["type"] for p in content) if isinstance(content, list) else ("text",),
                called=sum(len(m.get("tool_calls") or ()) for _, _, m in after),
                results=tuple(_text(c) for role, c, _ in after if role == "tool"),
                offered=dict(_offer(tool["function"]) for tool in data.get("tools") or ()),
                size=sum(len(_text(c)) for _, c, _ in messages),
            )
        except (AttributeError, KeyError, TypeError) as exc:
            raise ValueError("not a chat completion request") from exc

    @property
    def kind(self) -> Literal["chat", "title", "summary"]:
        """OpenCode asks for titles and summaries with system prompts of their own, no tools."""
        opening = "" if self.offered else self.system[:200].lower()
        if "title generator" in opening:
            return "title"
        if not self.offered and self.text.startswith("You MUST summarize the conversation"):
            return "summary"
        return "summary" if "summariz" in opening else "chat"


def _offer(function: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
    return function["name"], tuple(function.get("parameters", {}).get("properties", ()))


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content if part["type"] == "text")
    return content or ""


@dataclass(frozen=True, slots=True)
class Refusal:
    status: int
    message: str
    code: str
    retry_after: float | None = None
    start: float = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """Thoughts and deltas, then the ending; calls and finish belong to the ending "finish"."""

    thoughts: tuple[str, ...] = ()
    deltas: tuple[str, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    finish: str = "stop"
    ending: Literal["finish", "hang", "cut"] = "finish"
    tokens_in: int = 0
    tokens_out: int = 0
    start: float | None = 0  # None: never
    pause: float = 0
    argument_pause: float = 0


Answer: TypeAlias = Refusal | Reply


def plan(request: ChatRequest) -> Answer:
    match request.kind:
        case "title":
            return _reply(request, Script(text="Demo title"))
        case "summary":
            return _reply(request, Script(text="Demo summary of the conversation."))
        case "chat":
            script = parse_markers(SCRIPTS.get(request.text.strip(), request.text))
            return _refusal(request, script) or _reply(request, script)


def _refusal(request: ChatRequest, script: Script) -> Refusal | None:
    if script.hang:
        return None
    if script.overflow:
        message = f"{request.size} characters exceed the maximum context length of 8192 tokens."
        status, code = 400, "context_length_exceeded"
    elif script.error and script.error.due(request.attempt):
        status = script.error.value
        message, code = f"demo error {status}", f"demo_{status}"
    else:
        return None
    return Refusal(status, message, code, script.retryafter, script.start / 1000)


def _reply(request: ChatRequest, script: Script) -> Reply:
    calls = _calls(request, script)
    deltas = _pieces(script.say) if calls else _deltas(request, script)
    thoughts = () if request.results else tuple(f"thought {n} " for n in range(script.reason))
    tokens = dict(enumerate(script.usage))
    reply = Reply(
        thoughts=thoughts,
        deltas=deltas,
        calls=calls,
        finish=script.finish or ("tool_calls" if calls else "stop"),
        tokens_in=tokens.get(0, request.size // 4),
        tokens_out=tokens.get(1, len(deltas) + len(thoughts)),
        start=None if script.hang else script.start / 1000,
        pause=script.delay / 1000,
        argument_pause=script.toolms / 1000,
    )
    cut = script.cutmid if script.cutmid and script.cutmid.due(request.attempt) else None
    heard = cut.value if cut else script.hangmid
    if heard is None or (calls and heard >= len(deltas)):  # break the answer, not a tool round
        return reply
    return replace(reply, deltas=deltas[:heard], ending="cut" if cut else "hang")


def _calls(request: ChatRequest, script: Script) -> tuple[ToolCall, ...]:
    if due := [_as_offered(call, request.offered) for call in script.tools[request.called :]]:
        return tuple(due if script.parallel else due[:1])
    if script.json is None or STRUCTURED_OUTPUT not in request.offered:
        return ()
    structured = ToolCall(STRUCTURED_OUTPUT, script.json)
    return (structured,) if request.called == len(script.tools) else ()


def _as_offered(call: ToolCall, offered: Mapping[str, Collection[str]]) -> ToolCall:
    """A call of a tool of OpenCode 1.x, as OpenCode 2 understands it if it offers the tools."""
    name = tools.NAMES.get(call.name, call.name)
    if call.name in offered or name not in offered:
        name = call.name
    given = json.loads(call.arguments)
    renamed = tools.renamed(given)
    takes = offered.get(name, ())
    return ToolCall(name, json.dumps(renamed) if set(renamed) <= set(takes) else call.arguments)


def _deltas(request: ChatRequest, script: Script) -> tuple[str, ...]:
    if script.json is not None and STRUCTURED_OUTPUT not in request.offered:
        return _pieces(script.json)
    if script.tokens is not None:
        return tuple(WORDS[n % len(WORDS)] for n in range(script.tokens))
    if script.text is not None:
        return _pieces(script.text)
    if request.results:
        return _pieces(f"TOOL RESULT: {request.results[-1][:300]}")
    return _pieces(f"ECHO: {script.said}")


def _pieces(text: str, size: int = 12) -> tuple[str, ...]:
    return tuple(text[at : at + size] for at in range(0, len(text), size))


def frames(reply: Reply, head: dict[str, Any], stream: bool) -> Iterator[tuple[bytes, float]]:
    """The pieces of the response body, each with the pause that follows it."""
    tool_calls = [
        {"id": f"call_{head['id']}_{n}", "type": "function", "function": asdict(call)}
        for n, call in enumerate(reply.calls)
    ]
    usage = {
        "prompt_tokens": reply.tokens_in,
        "completion_tokens": reply.tokens_out,
        "total_tokens": reply.tokens_in + reply.tokens_out,
        "completion_tokens_details": {"reasoning_tokens": len(reply.thoughts)},
        "prompt_tokens_details": {"cached_tokens": 0},
    }

    def chunk(finish: str | None = None, /, **delta: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        event = {**head, "object": "chat.completion.chunk", "choices": [choice]}
        return b"data: %b\n\n" % orjson.dumps({**event, "usage": usage} if finish else event)

    if not stream:
        yield b"", reply.pause * len(reply.deltas)
        message: dict[str, Any] = {"role": "assistant", "content": "".join(reply.deltas) or None}
        if reply.thoughts:
            message["reasoning_content"] = "".join(reply.thoughts)
        if reply.calls:
            message["tool_calls"] = tool_calls
        choice = {"index": 0, "message": message, "finish_reason": reply.finish}
        whole = {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
        yield orjson.dumps(whole) if reply.ending == "finish" else b"", 0
        return
    yield chunk(role="assistant", content=""), 0
    for thought in reply.thoughts:
        yield chunk(reasoning_content=thought), reply.pause
    for delta in reply.deltas:
        yield chunk(content=delta), reply.pause
    if reply.ending != "finish":
        return
    for index, (call, wire) in enumerate(zip(reply.calls, tool_calls, strict=True)):
        opening = {**wire, "index": index, "function": {"name": call.name, "arguments": ""}}
        yield chunk(tool_calls=[opening]), 0
        for piece in _pieces(call.arguments, 16 if reply.argument_pause else len(call.arguments)):
            more = {"index": index, "function": {"arguments": piece}}
            yield chunk(tool_calls=[more]), reply.argument_pause
    yield chunk(reply.finish), 0
    yield b"data: [DONE]\n\n", 0


@dataclass(frozen=True, slots=True)
class _Playback:
    """An answer as an ASGI response; it ends when its client leaves."""

    answer: Answer
    head: dict[str, Any]
    stream: bool

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def listen() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        async with asyncio.TaskGroup() as both:
            speaking = both.create_task(self._speak(scope, receive, send))
            listening = both.create_task(listen())
            speaking.add_done_callback(lambda _: listening.cancel())
            listening.add_done_callback(lambda _: speaking.cancel())

    async def _speak(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self.answer
        await (asyncio.Event().wait() if answer.start is None else asyncio.sleep(answer.start))
        if isinstance(answer, Refusal):
            await _refuse(answer)(scope, receive, send)
            return
        kind = b"text/event-stream" if self.stream else b"application/json"
        headers = [(b"content-type", kind), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for body, pause in frames(answer, self.head, self.stream):
            await send({"type": "http.response.body", "body": body, "more_body": True})
            await asyncio.sleep(pause)  # even 0: others live on this loop
        match answer.ending:
            case "finish":
                await send({"type": "http.response.body"})
            case "hang":
                await asyncio.Event().wait()
            case "cut":
                await asyncio.sleep(CUT_PAUSE)  # uvicorn drops what returns unfinished


class _Endpoints:
    def __init__(self) -> None:
        self._seen: deque[dict[str, Any]] = deque(maxlen=REQUESTS_KEPT)
        self._serial = count(1)

    async def chat(self, http: Request) -> ASGIApp:
        try:
            request = ChatRequest.parse(await http.body())
        except (ValueError, ClientDisconnect) as exc:
            return _refuse(Refusal(400, str(exc), "invalid_request"))
        message = {"kind": request.kind, "text": request.text}
        attempt = sum(message.items() <= seen.items() for seen in self._seen)
        session = http.headers.get("x-session-id")
        parts = request.parts
        self._seen.append({**message, "session": session, "model": request.model, "parts": parts})
        answer = plan(replace(request, attempt=attempt))
        serial, now = f"demo-{next(self._serial)}", int(time.time())
        head = {"id": serial, "created": now, "model": request.model}
        return _Playback(answer, head, request.stream)

    async def models(self, _: Request) -> Response:
        known = [{"id": name, "object": "model", "owned_by": "demo"} for name in MODELS]
        return JSONResponse({"object": "list", "data": known})

    async def requests(self, http: Request) -> Response:
        if http.method == "DELETE":
            self._seen.clear()
        return JSONResponse(list(self._seen))


def app() -> ASGIApp:
    endpoints = _Endpoints()
    return Starlette(
        routes=[
            Route("/v1/chat/completions", endpoints.chat, methods=["POST"]),
            Route("/v1/models", endpoints.models),
            Route("/requests", endpoints.requests, methods=["GET", "DELETE"]),
        ]
    )


def _refuse(refusal: Refusal) -> Response:
    error = {"message": refusal.message, "type": "demo_error", "code": refusal.code}
    later = None if refusal.retry_after is None else {"retry-after": f"{refusal.retry_after:g}"}
    return JSONResponse({"error": error}, refusal.status, later)


def opencode_config(base_url: str) -> dict[str, Any]:
    """As for the demo model, whose provider this one stands in for, with the models here."""
    config = demo.opencode_config(base_url)
    models = {name: {**ANY_MODEL, **model} for name, model in MODELS.items()}
    config["provider"]["demo"]["models"] = models
    return config


_WIRE_LOG = logging.getLogger(__name__)
_WIRE_LOG.addFilter(lambda record: record.exc_info is not None)  # cuts are meant; crashes are not


@asynccontextmanager
async def serve(host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """The model's base URL, for as long as the block lasts.

    `uvicorn.Server` would take over signals and loggers of a process that is not its own, so only
    its connections are used.
    """
    config = uvicorn.Config(app(), log_config=None, ws="none", timeout_keep_alive=KEEP_ALIVE)
    state = ServerState()

    def connection() -> HttpToolsProtocol:
        protocol = HttpToolsProtocol(config, state, {})
        protocol.logger, protocol.access_log = _WIRE_LOG, False
        return protocol

    listener = await asyncio.get_running_loop().create_server(connection, host, port)
    try:
        yield f"http://{host}:{listener.sockets[0].getsockname()[1]}/v1"
    finally:
        listener.close()
        for open_connection in list(state.connections):
            open_connection.transport.abort()
        await asyncio.sleep(0)
        if state.tasks:  # each of them is just losing its client
            await asyncio.wait(state.tasks, timeout=STOP_GRACE)


async def main() -> None:
    parser = argparse.ArgumentParser(description="A scripted language model for tests.")
    parser.add_argument("--port", type=int, default=0)
    async with serve(port=parser.parse_args().port) as url:
        print(f"scripted model on {url}", flush=True)  # noqa: T201
        await asyncio.Event().wait()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main())
