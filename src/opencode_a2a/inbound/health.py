"""Whether the service lives (public, says nothing else) and whether it can work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import orjson
from starlette.requests import Request
from starlette.responses import Response

from .failures import JSON

Check = Callable[[], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Health:
    checks: Mapping[str, Check]
    problem: Callable[[], str | None] = lambda: None  # why a check fails, where somebody knows

    async def live(self, request: Request) -> Response:
        return Response(b'{"status":"ok"}', media_type=JSON)

    async def ready(self, request: Request) -> Response:
        """200 or 503; what exactly is missing is for callers with a credential."""
        results = {name: await check() for name, check in self.checks.items()}
        fine = all(results.values())
        body: dict[str, object] = {"status": "ready" if fine else "unavailable"}
        if request.scope["state"]["caller"] is not None:
            body["checks"] = results
            if not fine and (problem := self.problem()) is not None:
                body["problem"] = problem
        return Response(orjson.dumps(body), 200 if fine else 503, media_type=JSON)
