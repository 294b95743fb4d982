"""The demo model, on a port of choice; slow for `slowly`, and calls the peer beta when told to.

Runs with a release's Python.
"""

import asyncio
import json
import sys

from aiohttp import web

from opencode_a2a.demo import model

PAUSES = {False: 0.01, True: 1.0}


def reply_to(request: model.ChatRequest) -> model.Reply:
    last = request.messages[-1]
    offered = {tool.function.name for tool in request.tools}
    if last.role == "user" and "have beta" in last.text and "a2a_call" in offered:
        call = model.ToolCall("a2a_call", {"peer": "beta", "message": "Say hello."})
        return model.Reply("I have beta do it.", call)
    return model.reply_to(request)


async def answer(http: web.Request) -> web.StreamResponse:
    body = await http.read()
    request = model.ChatRequest.model_validate_json(body)
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(http)
    for chunk in model.chunks(request, reply_to(request)):
        await response.write(b"data: %b\n\n" % json.dumps(chunk).encode())
        await asyncio.sleep(PAUSES[b"slowly" in body])
    await response.write(b"data: [DONE]\n\n")
    return response


async def main(port: int) -> None:
    app = web.Application(client_max_size=0)
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
