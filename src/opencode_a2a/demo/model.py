"""The demo model: it answers when a newcomer runs `opencode-a2a up` without a model provider.

OpenCode takes it for a provider with OpenAI's chat completions, on a free port of the loopback
interface. It greets the user and says how to configure a real model. A message that speaks of
files, commands or tools makes it list the files of the workspace; one that says "ask me" or speaks
of a question makes it ask the user one. `reply_to` decides and does no I/O; `serve` puts the reply
on the network.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from aiohttp import web
from pydantic import BaseModel, Field, ValidationError

PROVIDER = "demo"
WORD_PAUSE = 0.02  # seconds, so that a person sees the answer grow
SHUTDOWN_SECONDS = 1.0
QUOTE_CHARS, RESULT_CHARS = 200, 2000

ABOUT_TOOLS = re.compile(r"\b(tools?|commands?|files?|director(y|ies)|folders?|ls)\b", re.I)
ABOUT_QUESTIONS = re.compile(r"\b(ask me|questions?)\b", re.I)
# OpenCode adds words of its own to a user's message; they must not decide what happens.
ADDED_BY_OPENCODE = re.compile(
    r"<system-reminder>.*?</system-reminder>|Called the Read tool with[^\n]*|Attached file: .*",
    re.DOTALL,
)
# How OpenCode 2 asks for a summary: as a user, and again where the first heading is not there.
ASKS_FOR_SUMMARY = re.compile(r"You MUST summarize the conversation|The previous response did not")
SUMMARY = "## Objective\n- Try the demo model of opencode-a2a."
GREETING = (
    "Hello! I am the demo model of opencode-a2a. Message {number} of this conversation reached me: "
    "“{quote}” I cannot think, so please configure a model provider: stop the service, run "
    "`opencode auth login` or set a provider's key such as ANTHROPIC_API_KEY, and start it again. "
    "Until then, say “list the files” to see a tool call, or “ask me a question” to be asked one."
)
LISTINGS = {  # by the tool that OpenCode offers: 1.x, 2.x, and either where commands are denied
    "bash": {"command": "ls", "description": "Lists the files in the workspace"},
    "shell": {"command": "ls"},
    "glob": {"pattern": "*"},
}
QUESTION = {
    "question": "Which color do you like best?",
    "header": "Color",
    "options": [
        {"label": "Red", "description": "like a rose"},
        {"label": "Blue", "description": "like the sea"},
    ],
}
TEXT_MODEL = {
    "tool_call": True,
    "modalities": {"input": ["text"], "output": ["text"]},
    "limit": {"context": 200_000, "output": 8_000},
    "cost": {"input": 0, "output": 0},
}
VISION = {"attachment": True, "modalities": {"input": ["text", "image", "pdf"], "output": ["text"]}}
MODELS = {
    "demo": {**TEXT_MODEL, "name": "Demo"},
    "demo-small": {**TEXT_MODEL, "name": "Demo small"},
    "demo-vision": {**TEXT_MODEL, **VISION, "name": "Demo vision"},
}


class ContentPart(BaseModel):
    text: str = ""


class Message(BaseModel):
    role: str
    content: str | list[ContentPart] | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content if part.text)
        return self.content or ""


class Function(BaseModel):
    name: str


class Tool(BaseModel):
    function: Function


class ChatRequest(BaseModel):
    """The part of a chat completion request that decides the reply."""

    model: str
    messages: list[Message] = Field(min_length=1)
    tools: list[Tool] = []


@dataclass(frozen=True, slots=True)
class ToolCall:
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    text: str
    call: ToolCall | None = None


def reply_to(request: ChatRequest) -> Reply:
    offered = {tool.function.name for tool in request.tools}
    system = "\n".join(m.text for m in request.messages if m.role == "system").lower()
    if not offered and "title generator" in system:
        return Reply("A talk with the demo model")
    if not offered and "summariz" in system:
        return Reply(SUMMARY)
    last = request.messages[-1]
    if last.role == "tool":
        return Reply(f"The tool call gave this result:\n\n{last.text[:RESULT_CHARS]}")
    prompts = [message.text for message in request.messages if message.role == "user"]
    said = ADDED_BY_OPENCODE.sub("", prompts[-1] if prompts else "").strip()
    if ASKS_FOR_SUMMARY.match(said):
        return Reply(SUMMARY)
    if ABOUT_QUESTIONS.search(said) and "question" in offered:
        return Reply("I have a question.", ToolCall("question", {"questions": [QUESTION]}))
    tool = next((name for name in LISTINGS if name in offered), None)
    if ABOUT_TOOLS.search(said) and tool is not None:
        return Reply("I list the files.", ToolCall(tool, LISTINGS[tool]))
    return Reply(GREETING.format(number=len(prompts), quote=said[:QUOTE_CHARS]))


def chunks(request: ChatRequest, reply: Reply) -> Iterator[dict[str, Any]]:
    """The reply as OpenAI streams it: word by word, then the tool call, then the end."""

    def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        head = {"id": "demo", "object": "chat.completion.chunk", "model": request.model}
        return {**head, "choices": [choice]}

    words = re.findall(r"\S+\s*", reply.text)
    for word in words:
        yield chunk(role="assistant", content=word)
    if reply.call is not None:
        function = {"name": reply.call.name, "arguments": json.dumps(reply.call.arguments)}
        call = {"index": 0, "id": f"call_{uuid4().hex}", "type": "function"}
        yield chunk(tool_calls=[{**call, "function": function}])
    read = sum(len(message.text.split()) for message in request.messages)
    usage = {"prompt_tokens": read, "completion_tokens": len(words)}
    end = chunk("stop" if reply.call is None else "tool_calls")
    yield {**end, "usage": {**usage, "total_tokens": read + len(words)}}


async def chat_completions(http: web.Request) -> web.StreamResponse:
    try:
        request = ChatRequest.model_validate_json(await http.read())
    except ValidationError as exc:
        return web.json_response({"error": {"message": str(exc)}}, status=400)
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(http)
    for chunk in chunks(request, reply_to(request)):
        await response.write(b"data: %b\n\n" % json.dumps(chunk).encode())
        await asyncio.sleep(WORD_PAUSE)
    await response.write(b"data: [DONE]\n\n")
    return response


@asynccontextmanager
async def serve() -> AsyncIterator[str]:
    """Serve the model while the block lasts; yields its base URL."""
    app = web.Application(client_max_size=0)  # no limit: OpenCode sends files with each request
    app.router.add_post("/v1/chat/completions", chat_completions)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0]
        yield f"http://{host}:{port}/v1"
    finally:
        await runner.cleanup()


def opencode_config(base_url: str) -> dict[str, Any]:
    """The configuration (`OPENCODE_CONFIG_CONTENT`) that makes OpenCode use this model alone."""
    return {
        "model": "demo/demo",
        "small_model": "demo/demo-small",
        "enabled_providers": [PROVIDER],
        "provider": {
            PROVIDER: {
                "npm": "@ai-sdk/openai-compatible",  # part of the OpenCode binary
                "name": "Demo",
                "options": {"baseURL": base_url, "apiKey": "demo"},
                "models": MODELS,
            }
        },
    }
