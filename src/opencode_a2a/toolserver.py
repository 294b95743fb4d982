"""The agent's tools, as an MCP server on a loopback port of its own.

Only OpenCode is to use it, which gets its address and a secret of this process. The MCP package is
loaded with this module, so only a service that offers tools imports it.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from mcp import types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from . import __version__
from .domain.peer_calls import SERVER, Report, ToolResult, ToolSpec
from .web.server import QuietServer

HOST, PATH = "127.0.0.1", "/mcp"
SESSION = "ai.opencode/sessionID"  # in what a call says about itself
# Longer than OpenCode keeps a connection: a call on one that is being closed would be lost.
KEEP_ALIVE_SECONDS = 86_400
Specify = Callable[[], Sequence[ToolSpec]]  # the tools as the model is told of them now
# The last is the session of OpenCode that calls; OpenCode 1.x does not tell it.
Serve = Callable[[str, Mapping[str, Any], Report, str | None], Awaitable[ToolResult]]


@dataclass(frozen=True, slots=True)
class ToolServer:
    """Where the tools are, and what to log in with."""

    url: str
    secret: str = field(repr=False)

    @property
    def headers(self) -> Mapping[str, str]:
        return {"authorization": f"Bearer {self.secret}"}

    @classmethod
    @asynccontextmanager
    async def open(cls, tools: Specify, serve: Serve) -> AsyncIterator[ToolServer]:
        with socket.create_server((HOST, 0)) as listener:
            host = f"{HOST}:{listener.getsockname()[1]}"
            # No page of a browser has a reason to be here, so no origin is allowed.
            security = TransportSecuritySettings(allowed_hosts=[host])
            manager = StreamableHTTPSessionManager(
                _server(tools, serve), security_settings=security
            )
            opened = cls(f"http://{host}{PATH}", secrets.token_urlsafe(32))
            app = _Login(manager.asgi_app, opened.headers["authorization"].encode())
            config = uvicorn.Config(
                app,
                loop="none",
                lifespan="off",
                ws="none",
                log_config=None,
                log_level="critical",
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
            )
            server = QuietServer(config)
            async with manager.run():
                serving = asyncio.create_task(server.serve(sockets=[listener]))
                try:
                    yield opened
                finally:
                    server.should_exit = server.force_exit = True
                    await serving


class _Login:
    """Lets only those in who know the secret."""

    def __init__(self, app: ASGIApp, login: bytes) -> None:
        self._app = app
        self._login = login

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = dict(scope["headers"]).get(b"authorization", b"")
        app = self._app
        if not secrets.compare_digest(given, self._login):
            app = PlainTextResponse("This is for OpenCode only.\n", 401)
        elif scope["path"] != PATH:
            app = PlainTextResponse(f"The tools are at {PATH}.\n", 404)
        await app(scope, receive, send)


def _server(tools: Specify, serve: Serve) -> Server[Any]:
    async def list_tools(
        _: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=each.name, description=each.description, input_schema=dict(each.arguments)
                )
                for each in tools()
            ]
        )

    async def call_tool(
        context: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        reports = 0

        async def report(note: str) -> None:
            nonlocal reports
            reports += 1
            await context.session.report_progress(reports, message=note)

        session: object = (params.meta or {}).get(SESSION)
        caller = session if isinstance(session, str) else None
        result = await serve(params.name, params.arguments or {}, report, caller)
        text = types.TextContent(type="text", text=result.text)
        return types.CallToolResult(content=[text], is_error=result.failed)

    return Server(SERVER, version=__version__, on_list_tools=list_tools, on_call_tool=call_tool)
