"""The demo model: what it replies to which message, and what OpenCode receives."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO
from typing import Any

import aiohttp
import pytest

from opencode_a2a.demo.model import (
    LISTINGS,
    QUESTION,
    SUMMARY,
    ChatRequest,
    Reply,
    ToolCall,
    opencode_config,
    reply_to,
    serve,
)

ALL_TOOLS = ("bash", "glob", "question", "read")


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def body(*messages: dict[str, Any], tools: tuple[str, ...] = ALL_TOOLS) -> dict[str, Any]:
    offered = [{"type": "function", "function": {"name": name}} for name in tools]
    return {"model": "demo", "stream": True, "messages": messages, "tools": offered}


def reply(*messages: dict[str, Any], tools: tuple[str, ...] = ALL_TOOLS) -> Reply:
    return reply_to(ChatRequest.model_validate(body(*messages, tools=tools)))


def test_a_plain_message_is_answered_with_who_answers_and_what_to_do() -> None:
    greeting = reply({"role": "system", "content": "You are a coding agent."}, user("Hello!"))
    assert greeting.call is None
    assert "I am the demo model of opencode-a2a" in greeting.text
    assert "Message 1 of this conversation reached me: “Hello!”" in greeting.text
    assert "`opencode auth login`" in greeting.text


def test_the_conversation_is_counted_and_a_long_message_is_cut() -> None:
    answer = {"role": "assistant", "content": "Hello!"}
    greeting = reply(user("Hello!"), answer, user("x" * 10_000))
    assert "Message 2 of" in greeting.text
    assert len(greeting.text) < 1000


@pytest.mark.parametrize("text", ["List the FILES", "run a command", "use a tool", "which folder?"])
def test_a_message_about_files_or_tools_leads_to_a_harmless_tool_call(text: str) -> None:
    assert reply(user(text)).call == ToolCall("bash", LISTINGS["bash"])
    assert reply(user(text), tools=("glob", "shell")).call == ToolCall("shell", {"command": "ls"})
    assert reply(user(text), tools=("glob",)).call == ToolCall("glob", {"pattern": "*"})
    assert reply(user(text), tools=()).call is None


@pytest.mark.parametrize("text", ["Ask me something about files", "a question, please"])
def test_a_message_about_questions_leads_to_a_question_if_opencode_offers_it(text: str) -> None:
    assert reply(user(text)).call == ToolCall("question", {"questions": [QUESTION]})
    assert reply(user("a question, please"), tools=("bash",)).call is None


def test_words_within_words_lead_to_nothing() -> None:
    assert reply(user("My profile is questionable; stools are calls.")).call is None


def test_words_that_opencode_adds_lead_to_nothing() -> None:
    parts = [
        {"type": "text", "text": "Plan!"},
        {"type": "text", "text": "<system-reminder>\nUse no tool.\n</system-reminder>"},
        {"type": "text", "text": 'Called the Read tool with the following input: {"filePath": 1}'},
        {"type": "image_url", "image_url": {"url": "data:"}},
        {"type": "text", "text": "Attached file: tools.txt\n\nuse a tool"},
    ]
    planned = reply({"role": "user", "content": parts})
    assert planned.call is None
    assert "“Plan!”" in planned.text


def test_a_tool_result_is_shown_and_calls_no_tool_again() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    result = {"role": "tool", "tool_call_id": "1", "content": "notes.txt\n"}
    shown = reply(user("List the files"), call, result)
    assert shown == Reply("The tool call gave this result:\n\nnotes.txt\n")


@pytest.mark.parametrize("agent", ["title generator", "summarization agent"])
def test_titles_and_summaries_do_not_greet(agent: str) -> None:
    system = {"role": "system", "content": f"You are a {agent}."}
    assert "Hello" not in reply(system, user("List the files"), tools=()).text


def test_a_summary_that_opencode_asks_for_as_a_user_calls_no_tool() -> None:
    asked = user("You MUST summarize the conversation above.\n\nList the files and directories.")
    assert reply(user("Hello!"), asked) == Reply(SUMMARY)
    assert reply(asked, user("The previous response did not fill in the template.")).call is None


def test_opencode_is_told_of_every_model() -> None:
    config = opencode_config("http://127.0.0.1:1/v1")
    provider = config["provider"]["demo"]
    assert provider["options"]["baseURL"] == "http://127.0.0.1:1/v1"
    assert list(provider["models"]) == ["demo", "demo-small", "demo-vision"]
    assert (config["model"], config["small_model"]) == ("demo/demo", "demo/demo-small")


@asynccontextmanager
async def posted(sent: bytes) -> AsyncIterator[aiohttp.ClientResponse]:
    async with (
        serve() as url,
        aiohttp.ClientSession() as http,
        http.post(f"{url}/chat/completions", data=BytesIO(sent)) as response,
    ):
        yield response


async def test_the_reply_is_streamed_word_by_word_with_call_and_usage() -> None:
    async with posted(json.dumps(body(user("use a tool"))).encode()) as response:
        assert response.content_type == "text/event-stream"
        *events, done, rest = (await response.text()).split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    words = [delta["content"] for delta in deltas if "content" in delta]
    assert words == ["I ", "list ", "the ", "files."]
    (call,) = deltas[-2]["tool_calls"]
    assert call["function"]["name"] == "bash"
    assert json.loads(call["function"]["arguments"]) == LISTINGS["bash"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert chunks[-1]["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}


@pytest.mark.parametrize("sent", [b"", b"[]", b"{}", b'{"model": "demo", "messages": []}'])
async def test_anything_but_a_chat_request_is_refused(sent: bytes) -> None:
    async with posted(sent) as response:
        assert response.status == 400


async def test_a_large_request_is_taken() -> None:
    async with posted(json.dumps(body(user("x" * 3_000_000))).encode()) as response:
        assert response.status == 200
