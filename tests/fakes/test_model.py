"""The scripted model: what its markers mean, and what a client sees on the socket."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from tests.fakes.model import (
    STRUCTURED_OUTPUT,
    ChatRequest,
    Fault,
    Refusal,
    Reply,
    Script,
    ToolCall,
    app,
    opencode_config,
    parse_markers,
    plan,
    serve,
)

PATIENCE = 30.0


def reply_to(text: str, **more: Any) -> Reply:
    answer = plan(ChatRequest(text=text, **more))
    assert isinstance(answer, Reply)
    return answer


def refusal_of(text: str, **more: Any) -> Refusal:
    answer = plan(ChatRequest(text=text, **more))
    assert isinstance(answer, Refusal)
    return answer


def text_of(reply: Reply) -> str:
    return "".join(reply.deltas)


# -- markers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("hello", Script(said="hello")),
        ("a [[tokens:7]] b", Script(said="a  b", tokens=7)),
        ("[[tokens]]", Script(tokens=1)),
        ("[[text: some words ]]", Script(text="some words")),
        ("[[reason]]", Script(reason=5)),
        ("[[delay:10]][[start:20]][[toolms:5]]", Script(delay=10, start=20, toolms=5)),
        ("[[say:now]] [[parallel]]", Script(say="now", parallel=True)),
        ("[[finish:length]] [[usage:10:2]]", Script(finish="length", usage=(10, 2))),
        ("[[error:429:2]]", Script(error=Fault(429, 2))),
        ("[[error]] [[retryafter:1.5]]", Script(error=Fault(500), retryafter=1.5)),
        ("[[overflow]] [[hang]]", Script(overflow=True, hang=True)),
        ("[[hangmid]] [[cutmid:4:1]]", Script(hangmid=3, cutmid=Fault(4, 1))),
        ("[[cutmid]]", Script(cutmid=Fault(3))),
        ("[[tool:bash]]", Script(tools=(ToolCall("bash"),))),
        ('[[json {"a":[[1]]}]]', Script(json='{"a": [[1]]}')),
        ("[[tokens:1]] [[tokens:2]]", Script(tokens=1)),
    ],
)
def test_a_marker_becomes_its_field_and_leaves_the_text(text: str, script: Script) -> None:
    assert parse_markers(text) == script


@pytest.mark.parametrize(
    "text",
    [
        "[[tool.mypy.overrides]]",
        "[[ -f x ]] && echo",
        "a[[0]]",
        "[[wiki link]]",
        "[[tokens:many]]",
        "[[tokens:1000000000]]",
        "[[error:777]]",
        "[[usage]]",
        "[[text:never closed",
        "[[tool:bash {oops}]]",
        "[[json {oops]]",
        "[[tool:]]",
        "[[json " + "[" * 100_000,
    ],
)
def test_brackets_that_are_no_readable_marker_stay_text(text: str) -> None:
    assert parse_markers(text) == Script(said=text)


def test_tool_arguments_may_hold_markers_for_a_sub_agent() -> None:
    prompt = 'do [[tool:bash {"command":"ls"}]] [[tokens:5]]'
    outer = f"[[tool:task {json.dumps({'prompt': prompt})}]] then [[text:done]]"
    script = parse_markers(outer)
    assert script.said == "then" and script.text == "done" and script.tokens is None
    (call,) = script.tools
    assert json.loads(call.arguments) == {"prompt": prompt}
    assert parse_markers(prompt).tools == (ToolCall("bash", '{"command": "ls"}'),)


# -- plans ----------------------------------------------------------------------------------------


def test_without_a_marker_it_repeats_what_it_was_told() -> None:
    reply = reply_to("hello there", size=400)
    assert reply == Reply(deltas=("ECHO: hello ", "there"), tokens_in=100, tokens_out=2)


def test_reasoning_comes_before_the_first_tool_result_only() -> None:
    assert len(reply_to("[[reason:2]]").thoughts) == 2
    assert reply_to("[[reason:2]]", called=1, results=("x",)).thoughts == ()


def test_usage_is_counted_or_given() -> None:
    counted = reply_to("[[tokens:10]] [[reason:3]]", size=80)
    told = reply_to("[[tokens:10]] [[usage:7:8]]", size=80)
    half = reply_to("[[tokens:10]] [[usage:7]]", size=80)
    assert [(r.tokens_in, r.tokens_out) for r in (counted, told, half)] == [
        (20, 13),
        (7, 8),
        (7, 10),
    ]


def test_tools_play_one_per_round_and_then_the_answer_follows() -> None:
    text = '[[tool:a]] [[tool:b {"x":1}]] [[say:first]]'
    rounds = [
        reply_to(text),
        reply_to(text, called=1, results=("one",)),
        reply_to(text, called=2, results=("one", "two" * 200)),
    ]
    assert [r.calls for r in rounds] == [(ToolCall("a"),), (ToolCall("b", '{"x": 1}'),), ()]
    assert [r.finish for r in rounds] == ["tool_calls", "tool_calls", "stop"]
    assert text_of(rounds[0]) == "first"
    assert text_of(rounds[2]) == "TOOL RESULT: " + "two" * 100


def test_parallel_tools_share_a_round() -> None:
    assert len(reply_to("[[tool:a]] [[tool:b]] [[parallel]]").calls) == 2


def test_json_goes_through_the_structured_output_tool_when_it_is_offered() -> None:
    text, offered = '[[json {"n":1}]]', {STRUCTURED_OUTPUT: ()}
    assert reply_to(text, offered=offered).calls == (ToolCall(STRUCTURED_OUTPUT, '{"n": 1}'),)
    assert reply_to(text, offered=offered, called=1, results=("ok",)).calls == ()
    assert text_of(reply_to(text)) == '{"n": 1}'


def test_an_error_with_a_limit_is_over_after_that_many_requests() -> None:
    assert refusal_of("[[error:429]]", attempt=99).status == 429
    assert refusal_of("[[error:503:2]] [[retryafter:3]]", attempt=1).retry_after == 3
    assert text_of(reply_to("x [[error:503:2]]", attempt=2)) == "ECHO: x"


def test_an_overflow_names_itself() -> None:
    refusal = refusal_of("[[overflow]]")
    assert (refusal.status, refusal.code) == (400, "context_length_exceeded")


def test_a_broken_stream_tells_what_was_said_before_the_break() -> None:
    cut = reply_to("[[tokens:10]] [[cutmid:3:1]]")
    hanging = reply_to("[[tokens:10]] [[hangmid:4]]")
    assert (cut.ending, len(cut.deltas)) == ("cut", 3)
    assert (hanging.ending, len(hanging.deltas)) == ("hang", 4)
    assert reply_to("[[tokens:10]] [[cutmid:3:1]]", attempt=1).ending == "finish"


def test_a_short_answer_breaks_at_its_end_and_a_tool_round_does_not_break() -> None:
    assert reply_to("hi [[cutmid:3]]") == reply_to("hi [[cutmid:1]]")
    assert reply_to("hi [[cutmid:3]]").ending == "cut"
    assert reply_to("[[tool:a]] [[cutmid:3]]").ending == "finish"


def test_hanging_has_no_start() -> None:
    assert reply_to("[[hang]] [[error:500]] [[start:10]]").start is None
    assert reply_to("[[start:10]]").start == 0.01


@pytest.mark.parametrize(
    ("system", "kind", "text"),
    [
        ("You are a title generator.", "title", "Demo title"),
        ("You are a context summarization agent.", "summary", "Demo summary of the conversation."),
        ("You are a coding agent.", "chat", "ECHO: hi"),
    ],
)
def test_titles_and_summaries_are_told_from_chat(system: str, kind: str, text: str) -> None:
    request = ChatRequest(system=system, text="hi")
    assert request.kind == kind
    assert text_of(reply_to("hi", system=system)) == text
    assert replace(request, offered={"bash": ()}).kind == "chat"


def test_a_request_is_read_from_its_last_user_message() -> None:
    body = {
        "model": "demo-vision",
        "stream": True,
        "messages": [
            {"role": "system", "content": "be kind"},
            {"role": "user", "content": "old"},
            {"role": "assistant", "content": "x", "tool_calls": [{"id": "old"}]},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "new"},
                    {"type": "image_url", "image_url": {}},
                ],
            },
            {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}, {"id": "2"}]},
            {"role": "tool", "content": "done", "tool_call_id": "1"},
        ],
        "tools": [{"type": "function", "function": {"name": "bash"}}],
    }
    assert ChatRequest.parse(json.dumps(body).encode()) == ChatRequest(
        model="demo-vision",
        stream=True,
        system="be kind",
        text="new",
        parts=("text", "image_url"),
        called=2,
        results=("done",),
        offered={"bash": ()},
        size=18,
    )


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"messages": 1}', b'{"messages": [1]}'])
def test_anything_else_is_not_a_request(body: bytes) -> None:
    with pytest.raises(ValueError):
        ChatRequest.parse(body)


def test_opencode_is_told_of_every_model() -> None:
    config = opencode_config("http://127.0.0.1:1/v1")
    provider = config["provider"]["demo"]
    assert provider["options"]["baseURL"] == "http://127.0.0.1:1/v1"
    assert {f"demo/{name}" for name in provider["models"]} >= {
        config["model"],
        config["small_model"],
    }
    assert all(
        {"limit", "cost", "modalities"} <= model.keys() for model in provider["models"].values()
    )


# -- the socket -----------------------------------------------------------------------------------


class Client:
    def __init__(self, http: aiohttp.ClientSession) -> None:
        self.http = http

    @asynccontextmanager
    async def post(
        self, text: str, *after: dict[str, Any], stream: bool = True, session: str = "ses_1"
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        messages = [{"role": "user", "content": text}, *after]
        body = {"model": "demo", "stream": stream, "messages": messages}
        headers = {"x-session-id": session}
        async with self.http.post("/v1/chat/completions", json=body, headers=headers) as response:
            yield response

    async def whole(self, text: str) -> dict[str, Any]:
        async with self.post(text, stream=False) as response:
            answer: dict[str, Any] = await response.json()
            return answer

    async def chunks(self, text: str, *after: dict[str, Any]) -> list[dict[str, Any]]:
        async with self.post(text, *after) as response:
            assert response.content_type == "text/event-stream"
            events = [
                line.removeprefix(b"data: ") async for line in response.content if line.strip()
            ]
        assert events.pop().strip() == b"[DONE]"
        return [json.loads(event) for event in events]

    async def requests(self, method: str = "GET") -> list[dict[str, Any]]:
        async with self.http.request(method, "/requests") as response:
            seen: list[dict[str, Any]] = await response.json()
            return seen


@asynccontextmanager
async def model() -> AsyncIterator[Client]:
    async with serve() as url, aiohttp.ClientSession(url.removesuffix("/v1")) as http:
        async with asyncio.timeout(PATIENCE):
            yield Client(http)


def joined(chunks: list[dict[str, Any]], key: str) -> str:
    return "".join(chunk["choices"][0]["delta"].get(key) or "" for chunk in chunks)


def tool_calls(chunks: list[dict[str, Any]]) -> list[tuple[str, str, Any]]:
    """Each call as (id, name, arguments), put together again from its pieces."""
    calls: dict[int, tuple[str, str, str]] = {}
    for chunk in chunks:
        for piece in chunk["choices"][0]["delta"].get("tool_calls", ()):
            call_id, name, arguments = calls.get(piece["index"], ("", "", ""))
            calls[piece["index"]] = (
                call_id or piece["id"],
                name or piece["function"]["name"],
                arguments + piece["function"]["arguments"],
            )
    return [(call_id, name, json.loads(arguments)) for call_id, name, arguments in calls.values()]


async def test_text_and_reasoning_are_streamed_with_their_usage() -> None:
    async with model() as client:
        chunks = await client.chunks("[[reason:2]] [[tokens:3]] [[usage:11:5]]")
    assert joined(chunks, "reasoning_content") == "thought 0 thought 1 "
    assert joined(chunks, "content") == "river stone cloud "
    assert len(chunks) == 1 + 2 + 3 + 1
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["usage"]["total_tokens"] == 16
    assert chunks[-1]["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}
    assert not any("usage" in chunk for chunk in chunks[:-1])


async def test_without_streaming_the_answer_is_one_document() -> None:
    async with model() as client:
        answer = await client.whole('[[reason:1]] [[say:so]] [[tool:bash {"a":1}]] [[delay:1]]')
    (choice,) = answer["choices"]
    assert answer["object"] == "chat.completion"
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "so"
    assert choice["message"]["reasoning_content"] == "thought 0 "
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "bash", "arguments": '{"a": 1}'}


async def test_tool_rounds_end_in_the_answer() -> None:
    text = '[[tool:bash {"command":"echo hi"}]]'
    async with model() as client:
        first = await client.chunks(text)
        ((call_id, name, arguments),) = tool_calls(first)
        made = {"role": "assistant", "content": None, "tool_calls": [{"id": call_id}]}
        result = {"role": "tool", "tool_call_id": call_id, "content": "hi"}
        second = await client.chunks(text, made, result)
    assert (name, arguments) == ("bash", {"command": "echo hi"})
    assert first[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert joined(second, "content") == "TOOL RESULT: hi"


async def test_parallel_calls_have_ids_of_their_own_and_arguments_in_pieces() -> None:
    long = {"command": "echo " + "x" * 40}
    text = f"[[parallel]] [[toolms:1]] [[tool:bash {json.dumps(long)}]] [[tool:read]]"
    async with model() as client:
        chunks = await client.chunks(text)
        again = await client.chunks(text)
    calls = tool_calls(chunks)
    assert [(name, arguments) for _, name, arguments in calls] == [("bash", long), ("read", {})]
    assert len({call_id for call_id, *_ in calls + tool_calls(again)}) == 4
    assert len(chunks) > 2 + len(calls) * 2


async def test_errors_are_counted_per_message_and_forgotten_on_reset() -> None:
    text = "hello [[error:429:1]] [[retryafter:0.5]]"
    async with model() as client:
        async with client.post(text) as refused:
            assert (refused.status, refused.headers["retry-after"]) == (429, "0.5")
            assert (await refused.json())["error"]["code"] == "demo_429"
        assert joined(await client.chunks(text), "content") == "ECHO: hello"
        assert await client.requests("DELETE") == []
        async with client.post(text) as refused:
            assert refused.status == 429


@pytest.mark.parametrize("stream", [True, False])
async def test_a_cut_is_a_broken_body_and_nothing_is_logged(
    stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with model() as client:
        async with client.post("[[tokens:9]] [[cutmid:3:1]]", stream=stream) as response:
            heard = b""
            with pytest.raises(aiohttp.ClientPayloadError):
                async for data in response.content.iter_any():
                    heard += data
        assert heard.count(b'"content":') == (4 if stream else 0)
        assert len(await client.chunks("[[tokens:9]] [[cutmid:3:1]]")) == 11
    assert caplog.records == []


@pytest.mark.parametrize("text", ["[[hang]]", "[[start:60000]]", "[[delay:60000]] hello"])
async def test_nothing_goes_on_for_a_client_that_has_left(text: str) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": text}], "stream": True}).encode()
    messages = asyncio.Queue[dict[str, Any]]()
    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": []}
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    messages.put_nowait({"type": "http.request", "body": body, "more_body": False})
    messages.put_nowait({"type": "http.disconnect"})
    async with asyncio.timeout(PATIENCE):
        await app()(scope, messages.get, send)
    assert not any(message.get("more_body") is False for message in sent)


async def test_a_hanging_stream_is_released_when_its_client_disconnects() -> None:
    async with model() as client:
        before = asyncio.all_tasks()
        async with client.post("[[tokens:5]] [[hangmid:2]]") as response:
            assert (await response.content.readline()).startswith(b"data: ")
            playing = asyncio.all_tasks() - before
            response.close()
        assert playing
        await asyncio.wait(playing)


async def test_the_server_stops_at_once_under_hanging_requests() -> None:
    before = asyncio.all_tasks()
    async with aiohttp.ClientSession() as http, asyncio.TaskGroup() as hanging:

        async def wait_in_vain(text: str) -> None:
            body = {"messages": [{"role": "user", "content": text}], "stream": True}
            with pytest.raises(aiohttp.ClientError):
                async with http.post(f"{url}/chat/completions", json=body) as response:
                    entered.release()
                    await response.read()

        async with serve() as url:
            entered = asyncio.Semaphore(0)
            for text in ("[[hangmid:1]]", "[[delay:60000]] hi", "[[hang]]"):
                hanging.create_task(wait_in_vain(text))
            await entered.acquire()
            await entered.acquire()
            stopping = time.monotonic()
        assert time.monotonic() - stopping < 20
    assert asyncio.all_tasks() == before


async def test_it_tells_what_it_has_seen() -> None:
    async with model() as client:
        await client.chunks("one")
        async with client.post("two", session="ses_2") as response:
            await response.read()
        assert await client.requests() == [
            {"kind": "chat", "text": text, "session": session, "model": "demo", "parts": ["text"]}
            for text, session in (("one", "ses_1"), ("two", "ses_2"))
        ]
        async with client.http.post("/v1/chat/completions", data=b"nonsense") as response:
            assert response.status == 400
        assert len(await client.requests()) == 2
        async with client.http.get("/v1/models") as response:
            known = [entry["id"] for entry in (await response.json())["data"]]
    assert known == ["demo", "demo-small", "demo-vision"]
