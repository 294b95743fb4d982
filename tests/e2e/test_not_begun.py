"""OpenCode takes a prompt and drops it: the service has it answered all the same, once."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from a2a.types import Part
from aiohttp import web

from tests.e2e.behind import Behind
from tests.e2e.clients import LINES, PythonClient, ask
from tests.e2e.seen import shared, shown, state
from tests.faults.steering import ready
from tests.features import is_2
from tests.running import Upstream, service

NOTE = Part(raw=b"a note", media_type="text/plain", filename="note.txt")


@asynccontextmanager
async def dropping_the_first_prompt(opencode: Upstream, *, stored: bool) -> AsyncIterator[str]:
    """The address of a proxy before OpenCode. OpenCode stores that prompt, or does not get it.

    The proxy cuts the events then: otherwise it would be silence that tells.
    """
    prompts, listening = 0, list[web.Request]()

    def cut_events() -> None:
        for request in listening:
            if request.transport is not None:
                request.transport.abort()

    async def pass_on(request: web.Request) -> web.StreamResponse:
        nonlocal prompts
        path, body = request.path_qs, await request.read()
        prompts += (is_prompt := path.partition("?")[0].endswith(("/prompt_async", "/prompt")))
        if drops := is_prompt and prompts == 1:
            if not stored:
                cut_events()
                return web.Response(status=204)
            path = path.replace("/prompt_async", "/message")
            more = {"resume": False} if is_2() else {"noReply": True}
            body = json.dumps({**json.loads(body), **more}).encode()
        headers = {
            "authorization": request.headers["authorization"],
            "content-type": "application/json",
        }
        async with http.request(
            request.method, opencode.base_url + path, headers=headers, data=body
        ) as answer:
            if drops:
                assert answer.status == 200
                cut_events()
                return web.Response(status=204)
            response = web.StreamResponse(
                status=answer.status, headers={"content-type": answer.content_type}
            )
            if "/event" in path:
                listening.append(request)
            with suppress(ConnectionError):  # the service has gone, or was cut off
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
            return response

    app = web.Application(client_max_size=1 << 24)
    app.router.add_route("*", "/{path:.*}", pass_on)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as http:
        await site.start()
        try:
            host, port = runner.addresses[0][:2]
            yield f"http://{host}:{port}"
        finally:
            await runner.cleanup()


@pytest.mark.parametrize("stored", [True, False], ids=("stored", "not stored"))
async def test_a_prompt_that_opencode_takes_and_does_not_begin_is_sent_again(
    opencode: Upstream, behind: Behind, tmp_path: Path, stored: bool
) -> None:
    async with dropping_the_first_prompt(opencode, stored=stored) as address:
        with service(replace(opencode, base_url=address), tmp_path) as run:
            await ready(run)
            async with PythonClient.connect(run, LINES[0]) as client:
                task = await client.send(ask("[[text:Here I am.]]", NOTE))
    assert (state(task), shown(task)) == ("completed", [("answer", "Here I am.")])
    session = shared(task)["session"]["id"]
    assert len(await behind.prompts(session)) == 1
    (role, asked), (answerer, _) = await behind.said(session)
    assert (role, answerer, asked.count("a note")) == ("user", "assistant", 1)
