"""Files and data reach the model, and nothing that it must not see does."""

from __future__ import annotations

import asyncio
import base64
import functools
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from a2a.types.a2a_pb2 import Part

from tests.e2e.behind import Behind
from tests.e2e.clients import Client, Line, PythonClient, Refusal, ask
from tests.e2e.protojson import from_json
from tests.e2e.seen import answer, shared, shown, state
from tests.features import is_2
from tests.running import Service, Upstream, service

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def data(value: Any) -> Part:
    return from_json({"data": value}, Part)


async def seen_by_model(behind: Behind, task: Any) -> tuple[str, list[str], str]:
    """The text, the kinds of parts and the model of the last prompt of a task's session."""
    last = (await behind.prompts(shared(task)["session"]["id"]))[-1]
    return last["text"], last["parts"], last["model"]


async def test_a_text_file_is_read_to_the_model(client: PythonClient, behind: Behind) -> None:
    file = Part(raw=b"remember the milk\n", media_type="text/markdown", filename="todo.md")
    task = await client.send(ask("What is in here? [[text:Milk.]]", file))
    assert state(task) == "completed"
    assert shown(task) == [("answer", "Milk.")]
    text, _, _ = await seen_by_model(behind, task)
    assert "remember the milk" in text
    assert "What is in here?" in text
    sent = task.history[0].parts[1]
    assert (sent.raw, sent.media_type, sent.filename) == (
        b"remember the milk\n",
        "text/markdown",
        "todo.md",
    )


async def test_a_text_that_is_base64_reaches_the_model_as_it_is(
    anyone: Client, behind: Behind
) -> None:
    note, secret = b"remember the milk", base64.b64encode(b"a text in base64")
    files = [Part(raw=raw, media_type="text/plain", filename="f.txt") for raw in (note, secret)]
    task = await anyone.send(ask("[[text:Noted.]]", *files))
    assert state(task) == "completed"
    text, _, _ = await seen_by_model(behind, task)
    assert note.decode() in text
    assert secret.decode() in text
    assert "a text in base64" not in text


async def test_a_json_file_is_read_to_the_model(either: PythonClient, behind: Behind) -> None:
    file = Part(raw=b'{"milk": "two liters"}', media_type="application/json", filename="todo.json")
    task = await either.send(ask("[[text:Milk.]]", file))
    assert state(task) == "completed"
    text, _, _ = await seen_by_model(behind, task)
    assert '"milk": "two liters"' in text


async def test_data_is_given_to_the_model_as_json(client: PythonClient, behind: Behind) -> None:
    task = await client.send(ask("[[text:Noted.]]", data({"shopping": ["milk", {"of": "oats"}]})))
    assert state(task) == "completed"
    assert shown(task) == [("answer", "Noted.")]
    text, _, _ = await seen_by_model(behind, task)
    assert "Data (application/json):" in text
    assert '"shopping": [' in text
    assert '"of": "oats"' in text


async def test_a_picture_is_explained_away_to_a_model_without_eyes(
    either: PythonClient, behind: Behind
) -> None:
    file = Part(raw=PNG, media_type="image/png", filename="dot.png")
    task = await either.send(ask("[[text:I cannot see.]]", file))
    assert state(task) == "completed"
    text, parts, _ = await seen_by_model(behind, task)
    assert set(parts) == {"text"}
    assert "does not support image input" in text
    assert task.history[0].parts[1].raw == PNG


async def test_a_picture_that_a_tool_reads_is_handed_over(
    client: PythonClient, opencode: Upstream
) -> None:
    name = f"dot-{uuid.uuid4()}.png"
    (opencode.workspace / name).write_bytes(PNG)
    read = f'[[tool:read {{"filePath": "{opencode.workspace / name}"}}]] [[text:There it is.]]'
    async with client.stream(ask(read)) as stream:
        await stream.rest()
    for task in (stream.task, await client.get(stream.task.id)):
        assert [found for found, _ in shown(task)] == [
            "tool:read",
            f"file:{name}" if is_2() else "file",
            "answer",
        ]
        assert shown(task)[1][1] == (PNG, "image/png", name if is_2() else "")
    plain = await client.send(ask(read, modes=["text/plain"]))
    assert [found for found, _ in shown(plain)] == ["tool:read", "answer"]


async def test_a_screenshot_of_several_megabytes_is_taken(
    client: PythonClient, behind: Behind
) -> None:
    picture = PNG + bytes(6_000_000)
    file = Part(raw=picture, media_type="image/png", filename="screen.png")
    task = await client.send(ask("[[text:I cannot see.]]", file))
    assert state(task) == "completed"
    text, _, _ = await seen_by_model(behind, task)
    assert "screen.png" in text
    assert task.history[0].parts[1].raw == picture


@pytest.mark.parametrize("media_type", ["application/zip", "audio/mpeg", "video/mp4"])
async def test_what_no_model_can_read_is_refused(client: PythonClient, media_type: str) -> None:
    with pytest.raises(Refusal) as refused:
        await client.send(ask("x", Part(raw=b"PK", media_type=media_type, filename="x.bin")))
    assert refused.value.code == -32005
    assert media_type in refused.value.message


async def test_a_file_of_the_workspace_is_read_and_no_other(
    either: PythonClient, opencode: Upstream, behind: Behind, tmp_path: Path
) -> None:
    inside = opencode.workspace / f"inside-{uuid.uuid4()}.txt"
    inside.write_text("the inner truth\n")
    task = await either.send(ask("[[text:Read.]]", Part(url=inside.as_uri())))
    text, _, _ = await seen_by_model(behind, task)
    assert "the inner truth" in text

    outside = tmp_path / "outside.txt"
    outside.write_text("the outer secret\n")
    link = opencode.workspace / f"link-{uuid.uuid4()}.txt"
    link.symlink_to(outside)
    for url in (outside.as_uri(), link.as_uri(), f"{inside.parent.as_uri()}/../outside.txt"):
        with pytest.raises(Refusal) as refused:
            await either.send(ask("x", Part(url=url, media_type="text/plain")))
        assert refused.value.code == -32602
        assert "inside the workspace" in refused.value.message


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A web server on this machine, with a text file and a picture."""
    directory = tmp_path_factory.mktemp("files")
    (directory / "page.txt").write_text("words from the web\n")
    (directory / "dot.png").write_bytes(PNG)
    handler = functools.partial(_Quiet, directory=str(directory))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join(5)


@pytest.fixture(scope="module")
def seeing_service(
    opencode: Upstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    """A service that may fetch from private hosts and uses an agent with a model that sees."""
    with service(
        opencode,
        tmp_path_factory.mktemp("seeing"),
        A2A_CLIENT_ALLOW_PRIVATE_HOSTS="true",
        OPENCODE_AGENT="seer",
    ) as running:
        yield running


@pytest.fixture
async def seeing(seeing_service: Service, line: Line) -> AsyncIterator[PythonClient]:
    async with PythonClient.connect(seeing_service, line) as connected:
        yield connected


async def test_a_private_host_is_not_asked_for_files(client: PythonClient, files: str) -> None:
    for host in (files, files.replace("127.0.0.1", "localhost")):
        with pytest.raises(Refusal) as refused:
            await client.send(ask("x", Part(url=f"{host}/page.txt", media_type="text/plain")))
        assert refused.value.code == -32602
        assert "not on the public network" in refused.value.message


async def test_files_from_the_web_and_pictures_reach_the_model(
    seeing: PythonClient, behind: Behind, files: str
) -> None:
    page, picture, linked = await asyncio.gather(
        seeing.send(ask("[[text:Read.]]", Part(url=f"{files}/page.txt"))),
        seeing.send(ask("[[text:Seen.]]", Part(raw=PNG, media_type="image/png"))),
        seeing.send(ask("[[text:Seen.]]", Part(url=f"{files}/dot.png"))),
    )
    assert [answer(task) for task in (page, picture, linked)] == ["Read.", "Seen.", "Seen."]
    text, _, _ = await seen_by_model(behind, page)
    assert "words from the web" in text
    for task in (picture, linked):
        _, parts, model = await seen_by_model(behind, task)
        assert model == "demo-vision"
        assert "image_url" in parts
    with pytest.raises(Refusal) as refused:
        await seeing.send(ask("x", Part(url=f"{files}/nosuch.txt")))
    assert refused.value.code == -32602
    assert "HTTP 404" in refused.value.message
