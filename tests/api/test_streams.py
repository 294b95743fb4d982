"""Streams: their frames, their beginning and end, and everybody who reads along."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from tests.api.forms import FORMS, RPC_03, RPC_1, Form, Frame, Json, blocks

SLOW = "[[tokens:60]] [[rate:120]]"  # half a second of text


def said(frames: list[Frame]) -> str:
    """The answer as a client puts it together: what the task had, and every piece after it."""
    texts: dict[str, str] = {}

    def take(artifact: Json, append: bool) -> None:
        text = "".join(part["text"] for part in artifact["parts"])
        before = texts.get(artifact["artifactId"], "") if append else ""
        texts[artifact["artifactId"]] = before + text

    for frame in frames:
        if frame.kind == "task":
            for artifact in frame.body["artifacts"]:
                take(artifact, False)
        elif frame.kind == "artifact":
            take(frame.body["artifact"], frame.body.get("append", False))
    return "".join(texts.values())


def answer(task: Json) -> str:
    return "".join(part["text"] for artifact in task["artifacts"] for part in artifact["parts"])


def test_a_stream_is_the_task_then_its_events_to_the_end(client: httpx.Client, form: Form) -> None:
    with form.following(client, "stream", form.sending(SLOW)) as events:
        frames = list(events)
    first, *rest = frames
    assert first.kind == "task"
    assert first.body["status"]["state"] == form.state("submitted")
    assert first.body["artifacts"] == []
    assert {frame.kind for frame in rest} == {"status", "artifact"}
    for frame in rest:
        assert frame.body["taskId"] == first.body["id"]
        assert frame.body["contextId"] == first.body["contextId"]
    states = [frame.body["status"]["state"] for frame in rest if frame.kind == "status"]
    assert states[0] == form.state("working")
    assert states[-1] == form.state("completed")
    assert form.state("completed") not in states[:-1]
    assert rest[-1].kind == "status"
    finals = [frame.body.get("final") for frame in rest if frame.kind == "status"]
    if form.line == "0.3":
        assert finals == [False] * (len(finals) - 1) + [True]
    else:
        assert set(finals) == {None}
    pieces = [frame.body for frame in rest if frame.kind == "artifact"]
    assert len(pieces) > 1, "it was streamed"
    assert [piece.get("append", False) for piece in pieces] == [False] + [True] * (len(pieces) - 1)
    assert [i for i, piece in enumerate(pieces) if piece.get("lastChunk")] == [len(pieces) - 1]
    assert said(frames) == answer(form.get(client, first.body["id"]))


def test_a_stream_says_what_it_is(client: httpx.Client, form: Form) -> None:
    request = form.request(client, "stream", form.sending("hello"))
    response = client.send(request, stream=True)
    try:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["cache-control"] == "no-store"
        assert response.headers["x-accel-buffering"] == "no"
        assert "content-length" not in response.headers
        assert response.headers["x-request-id"]
        for block in blocks(response):
            number, data = block.split("\n")
            assert number.startswith("id: ")
            assert data.startswith("data: ")
            json.loads(data[6:])
    finally:
        response.close()


@pytest.mark.parametrize("form", [RPC_1, RPC_03], ids=lambda form: form.name)
@pytest.mark.parametrize("rpc_id", ["a", "", 'with "quotes" and \n', "ü", 0, -7, 2**62, None])
def test_every_frame_carries_the_id_of_its_request(
    client: httpx.Client, form: Form, rpc_id: Any
) -> None:
    with form.following(client, "stream", form.sending("hello"), rpc_id) as frames:
        first, *rest = frames
    assert rest
    hung = form.send(client, "[[hang]]", wait=False)
    with form.following(client, "subscribe", {"id": hung["id"]}, rpc_id) as frames:
        assert next(frames).body["id"] == hung["id"]
        form.result(form.call(client, "cancel", {"id": hung["id"]}))
        assert list(frames)
    assert first.body["id"] != hung["id"]


def test_text_with_line_breaks_stays_in_its_frame(client: httpx.Client, form: Form) -> None:
    text = "a\nb\n\nc\r\nd\re\u2028f data: g\n\ndata: {}\n\n"
    with form.following(client, "stream", form.sending(text)) as events:
        frames = list(events)
    assert said(frames) == f"ECHO: {text}"
    assert frames[0].body["history"][0][form.content] == [form.text(text)]


def test_all_readers_see_the_same(client: httpx.Client) -> None:
    """Whatever their form: the same numbers, and within one form the same bytes."""
    before = RPC_1.send(client, "[[hang]]", wait=False)
    asked = f"{SLOW} [[hang]]"  # nobody is too late for it
    task = RPC_1.send(client, asked, wait=False, contextId=before["contextId"])
    readers = FORMS + FORMS
    with ExitStack() as stack:

        def follow(form: Form) -> tuple[list[Frame], Iterator[Frame]]:
            following = form.following(client, "subscribe", {"id": task["id"]})
            stream = stack.enter_context(following)
            return [next(stream)], stream

        following = [follow(form) for form in FORMS]  # while it waits for its turn
        RPC_1.result(RPC_1.call(client, "cancel", {"id": before["id"]}))
        following += [follow(form) for form in FORMS]
        heard, stream = following[-1]
        while sum(bool(frame.body.get("append")) for frame in heard) < 3:
            heard.append(next(stream))
        RPC_1.result(RPC_1.call(client, "cancel", {"id": task["id"]}))
        seen = [[*heard, *stream] for heard, stream in following]
    start = max(frames[0].id for frames in seen)
    tails = [[frame for frame in frames if frame.id > start] for frames in seen]
    assert sum(bool(frame.body.get("append")) for frame in tails[0]) >= 3
    for form, frames, tail in zip(readers, seen, tails, strict=True):
        assert frames[0].kind == "task"
        assert [(f.id, f.kind) for f in tail] == [(f.id, f.kind) for f in tails[0]]
        assert frames[-1].body["status"]["state"] == form.state("canceled")
        assert said(frames) == answer(form.get(client, task["id"]))
    for one, other in zip(tails[: len(FORMS)], tails[len(FORMS) :], strict=True):
        assert one == other


def test_a_reader_that_comes_late_misses_nothing(client: httpx.Client, form: Form) -> None:
    asked = form.sending("[[tokens:60]] [[rate:120]] [[hang]]")
    with form.following(client, "stream", asked) as stream:
        first = next(stream)
        early = [first]
        for frame in stream:
            early.append(frame)
            if frame.body.get("append"):  # half way through a block
                break
        with form.following(client, "subscribe", {"id": first.body["id"]}) as late:
            seen = [next(late)]
            while len(said(early).encode()) < 60 * 6:
                early.append(next(stream))
            form.result(form.call(client, "cancel", {"id": first.body["id"]}))
            seen += late
        early += stream
    assert seen[0].kind == "task"
    assert said(seen) == said(early)
    assert [f for f in early if f.id > seen[0].id] == seen[1:]


def test_silence_is_broken_before_clients_give_up(client: httpx.Client) -> None:
    """A common client takes five seconds without a byte for the end."""
    form = RPC_1
    task = form.send(client, "[[hang]]", wait=False)
    request = form.request(client, "subscribe", {"id": task["id"]})
    request.extensions["timeout"] = httpx.Timeout(4.9).as_dict()
    response = client.send(request, stream=True)
    try:
        texts = response.iter_text()
        began = time.monotonic()
        heard = next(texts)
        while ": keep-alive\n\n" not in heard:
            heard += next(texts)
        assert time.monotonic() - began < 4.9
        assert heard.endswith("\n\n: keep-alive\n\n")
        form.result(form.call(client, "cancel", {"id": task["id"]}))
        rest = "".join(texts)
        assert "TASK_STATE_CANCELED" in rest
    finally:
        response.close()


def test_a_stream_ends_when_its_task_is_cancelled(client: httpx.Client, form: Form) -> None:
    with form.following(client, "stream", form.sending("[[hang]]")) as frames:
        task_id = next(frames).body["id"]
        canceled = form.result(form.call(client, "cancel", {"id": task_id}))
        last = list(frames)[-1]
    assert last.body["status"] == canceled["status"]
    assert last.body["status"]["state"] == form.state("canceled")


@pytest.mark.parametrize("marker", ["[[permission]]", "[[question]]"])
def test_a_stream_ends_where_a_person_is_needed(
    client: httpx.Client, form: Form, marker: str
) -> None:
    with form.following(client, "stream", form.sending(marker)) as events:
        frames = list(events)
    last = frames[-1]
    assert last.body["status"]["state"] == form.state("input-required")
    assert last.body["status"]["message"][form.content][0]["text"]
    assert last.body.get("final") == (True if form.line == "0.3" else None)
    task_id = frames[0].body["id"]
    assert form.get(client, task_id)["status"]["state"] == form.state("input-required")
    form.result(form.call(client, "cancel", {"id": task_id}))


def test_a_failing_task_says_so_in_words(client: httpx.Client, form: Form) -> None:
    with form.following(client, "stream", form.sending("[[error:400]]")) as events:
        frames = list(events)
    status = frames[-1].body["status"]
    assert status["state"] == form.state("failed")
    assert status["message"][form.content][0]["text"]
    error = frames[-1].body["metadata"]["opencode"]["error"]
    assert error["type"] == "PROVIDER_ERROR"


@pytest.mark.parametrize("frames_read", [1, 4])
def test_a_task_does_not_notice_who_leaves(
    client: httpx.Client, form: Form, frames_read: int
) -> None:
    with form.following(client, "stream", form.sending(SLOW)) as frames:
        task_id = next(frames).body["id"]
        for _ in range(frames_read - 1):
            next(frames)
    task = form.settled(client, task_id)
    assert task["status"]["state"] == form.state("completed")
    assert len(answer(task).encode()) == 60 * 6


def test_a_task_does_not_notice_who_stops_waiting(client: httpx.Client, form: Form) -> None:
    asked = form.sending(SLOW)
    context = f"left-{form.name}-{asked['message']['messageId']}"
    asked["message"]["contextId"] = context
    request = form.request(client, "send", asked)
    head = [f"{request.method} {request.url.raw_path.decode()} HTTP/1.1"]
    head += [f"{name}: {value}" for name, value in request.headers.items()]
    where = (request.url.host, request.url.port or 80)
    with socket.create_connection(where, timeout=60) as waiting:
        waiting.sendall("\r\n".join([*head, "", ""]).encode() + request.content)
        begun: list[Json] = []
        while not begun:  # who leaves earlier was never heard
            begun = RPC_1.result(RPC_1.call(client, "list", {"contextId": context}))["tasks"]
    (left,) = begun
    task = form.settled(client, left["id"])
    assert task["status"]["state"] == form.state("completed")


def test_one_reader_leaving_does_not_disturb_another(client: httpx.Client, form: Form) -> None:
    with form.following(client, "stream", form.sending(SLOW)) as stays:
        first = next(stays)
        with form.following(client, "subscribe", {"id": first.body["id"]}) as leaves:
            next(leaves)
        rest = list(stays)
    assert rest[-1].body["status"]["state"] == form.state("completed")
    assert said([first, *rest]) == answer(form.get(client, first.body["id"]))


def test_a_message_to_a_task_that_is_not_over_is_streamed_from_the_task_on(
    client: httpx.Client, form: Form
) -> None:
    before = form.send(client, "[[hang]]", wait=False)
    task = form.send(client, "this", wait=False, contextId=before["contextId"])
    asked = form.sending("and this", taskId=task["id"])
    with form.following(client, "stream", asked) as frames:
        first = next(frames)
        form.result(form.call(client, "cancel", {"id": before["id"]}))
        rest = list(frames)
    assert first.kind == "task"
    assert first.body["id"] == task["id"]
    assert first.body["contextId"] == task["contextId"], "inferred from the task"
    told = [message[form.content][0]["text"] for message in first.body["history"]]
    assert told == ["this", "and this"]
    assert rest[-1].body["status"]["state"] == form.state("completed")
    assert "ECHO: and this" in said([first, *rest])
