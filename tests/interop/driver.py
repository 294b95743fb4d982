"""What the Python drivers share: they run in the environment of their client, so only Python's own
library is used here.

A driver is a class with a method for each thing that a person does, made anew for each step with
the service's address. What is wrong although the outcome is right it notes in `remark`. One line of
JSON is printed for each step.
"""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, Protocol

STEP_SECONDS = 90


class Lacking(Exception):
    """The client has no way to do this; the message says what it has instead."""


@dataclass(frozen=True)
class Service:
    url: str
    token: str

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}


class Driver(Protocol):
    async def discover(self) -> str:
        """The agent's name, as the client has found it."""

    async def ask(self, prompt: str) -> str:
        """What the client shows as the answer."""

    async def stream(self, prompt: str) -> list[str]:
        """The pieces of the answer, as they come."""

    async def converse(self, prompts: list[str]) -> list[str]:
        """What the client shows after each message of one conversation."""

    async def cancel(self, prompt: str) -> str:
        """The state that the client sees after it has canceled a task at work."""


def main(make: type[Any]) -> None:
    """Run the steps named in the plan, the only argument, in order."""
    plan = json.loads(sys.argv[1])
    asyncio.run(_run(make, plan=plan))


async def _run(make: type[Any], *, plan: dict[str, Any]) -> None:
    for step in plan["steps"]:
        driver: Driver = make(Service(plan["url"], plan["token"]))
        outcome = await _outcome(_step(driver, step))
        if remark := getattr(driver, "remark", None):
            outcome["remark"] = remark
        sys.stdout.write("\n" + json.dumps({"step": step["name"], **outcome}) + "\n")
        sys.stdout.flush()


def _step(driver: Driver, step: dict[str, Any]) -> Awaitable[Any]:
    prompts = step["prompts"]
    match step["name"]:
        case "discover":
            return driver.discover()
        case "ask":
            return driver.ask(prompts[0])
        case "stream":
            return driver.stream(prompts[0])
        case "cancel":
            return driver.cancel(prompts[0])
        case _:
            return driver.converse(prompts)


async def _outcome(step: Awaitable[Any]) -> dict[str, Any]:
    try:
        async with asyncio.timeout(STEP_SECONDS):
            return {"shown": await step}
    except Lacking as exc:
        return {"lacking": str(exc)}
    except Exception as exc:  # whatever a framework raises is the outcome
        traceback.print_exc()
        return {"error": f"{type(exc).__name__}: {exc}"[:300]}
