"""Which model provider answers, as the real OpenCode of each generation says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from opencode_a2a.opencode.http import Endpoint
from opencode_a2a.opencode.process import Launch, ManagedOpenCode, ManagedProcessFailed
from opencode_a2a.opencode.providers import chosen_providers
from tests.running import isolated, opencode2_command, opencode_command

CUSTOM = {
    "npm": "@ai-sdk/openai-compatible",
    "options": {"baseURL": "http://x"},
    "models": {"m": {}},
}
GATEWAY = "opencode"
CHOICES: dict[str, tuple[dict[str, Any], tuple[str, ...], str | None]] = {
    "nothing but the built-in gateway": ({}, (), None),
    "nothing at all": ({"disabled_providers": [GATEWAY]}, (), None),
    "a custom provider": ({"provider": {"mine": CUSTOM}}, ("mine",), None),
    "a model of it": ({"provider": {"mine": CUSTOM}, "model": "mine/m"}, ("mine",), "mine/m"),
    "the gateway on purpose": ({"model": "opencode/big-pickle"}, (GATEWAY,), "opencode/big-pickle"),
    "the gateway with a key": (
        {"provider": {GATEWAY: {"options": {"apiKey": "hush"}}}},
        (GATEWAY,),
        None,
    ),
}


@asynccontextmanager
async def opencode(command: str | None, directory: Path, **more: str) -> AsyncIterator[Endpoint]:
    if command is None:
        pytest.skip("npm has no OpenCode 2 for this system")
    workspace = directory / "workspace"
    workspace.mkdir()
    launch = Launch(command, workspace, isolated(directory / "home", **more))
    async with ManagedOpenCode.start(launch) as managed:
        yield managed.endpoint


@pytest.mark.parametrize("command", [opencode_command, opencode2_command], ids=["1", "2"])
async def test_a_provider_counts_when_somebody_chose_it(command: Any, tmp_path: Path) -> None:
    found = {}
    key = {"ANTHROPIC_API_KEY": "hush"}
    async with opencode(command(), tmp_path, **key) as endpoint:
        for place, (config, _, _) in CHOICES.items():
            directory = tmp_path / place
            directory.mkdir()
            (directory / "opencode.json").write_text(json.dumps(config))
            chosen = await chosen_providers(endpoint, directory)
            names = tuple(name for name in chosen.names if name != "anthropic")
            assert chosen.names != names, "a key in the environment is a provider"
            assert "hush" not in str(chosen)
            configured = chosen.model if "model" in config else None
            found[place] = (config, names, configured)
            # OpenCode 2 says which model answers, also where none is configured.
            says_model = chosen.release.generation == 2 or "model" in config
            assert (chosen.model is not None) is says_model
            assert str(chosen).startswith("OpenCode chooses one of anthropic") is not says_model
            if chosen.model is not None and chosen.model.partition("/")[0] not in chosen.names:
                assert str(chosen).startswith(f"{chosen.model}; for one of anthropic")
    assert found == CHOICES


async def test_a_configuration_that_opencode_cannot_read_is_named_and_not_quoted(
    tmp_path: Path,
) -> None:
    async with opencode(opencode_command(), tmp_path) as endpoint:
        (tmp_path / "opencode.json").write_text('{"provider": {"x": {"apiKey": "hush", }')
        with pytest.raises(ManagedProcessFailed, match=r"opencode\.json") as failure:
            await chosen_providers(endpoint, tmp_path)
    assert "hush" not in str(failure.value)


HEALTH = {"/global/health": b'{"version": "1.18.33"}'}
INFO = {"/api/info": b'{"version": "2.0.15"}', "/api/plugin": b'{"data": [{}]}'}


@asynccontextmanager
async def answering(bodies: dict[str, bytes], otherwise: bytes) -> AsyncIterator[Endpoint]:
    """A server with these answers, by path."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode().partition("?")[0]
        body = bodies.get(path, otherwise)
        head = f"content-type: application/json\r\ncontent-length: {len(body)}"
        writer.write(f"HTTP/1.1 200 OK\r\nconnection: close\r\n{head}\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield Endpoint(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")


@pytest.mark.parametrize("known", [HEALTH, INFO | {"/global/health": b"[]"}], ids=["1", "2"])
@pytest.mark.parametrize("body", [b"{", b"[1]", b"{}", b'{"providers": [{}], "data": {}}', b"null"])
async def test_an_answer_about_providers_that_makes_no_sense_is_an_error(
    known: dict[str, bytes], body: bytes, tmp_path: Path
) -> None:
    async with answering(known, body) as endpoint:
        with pytest.raises(ManagedProcessFailed, match="which providers"):
            await chosen_providers(endpoint, tmp_path)


@pytest.mark.parametrize(
    ("path", "version", "says"),
    [
        ("/global/health", "1.16.2", r"1\.16\.2 is not supported.* 1\.17, 1\.18"),
        ("/api/info", "2.0.14", r"2\.0\.14 is not supported.* 2\.0\.15"),
        ("/", "2.0.15", "is not OpenCode"),
    ],
)
async def test_what_is_not_supported_is_named(
    path: str, version: str, says: str, tmp_path: Path
) -> None:
    known = {path: json.dumps({"version": version}).encode()}
    async with answering(known, b"[]") as endpoint:
        with pytest.raises(ManagedProcessFailed, match=says):
            await chosen_providers(endpoint, tmp_path)
