"""Google's Agent Development Kit: an agent elsewhere as `RemoteA2aAgent`."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator

import httpx
from google.adk.agents.remote_a2a_agent import RemoteA2aAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.events import Event
from google.adk.runners import InMemoryRunner
from google.genai import types

from tests.interop.driver import Lacking, Service, main

warnings.simplefilter("ignore")


class Adk:
    def __init__(self, service: Service) -> None:
        client = httpx.AsyncClient(headers=service.headers, timeout=60)
        card = f"{service.url}/.well-known/agent-card.json"
        self._agent = RemoteA2aAgent("remote", card, httpx_client=client)
        self._runner = InMemoryRunner(self._agent, app_name="interop")
        self._session: str | None = None

    async def discover(self) -> str:
        await self._agent._ensure_resolved(None)  # as it does before its first message
        return self._agent._agent_card.name

    async def ask(self, prompt: str) -> str:
        return "".join(await self.stream(prompt))

    async def stream(self, prompt: str) -> list[str]:
        pieces = [text async for event in self._events(prompt) if (text := _text(event))]
        session = await self._runner.session_service.get_session(
            app_name="interop", user_id="ada", session_id=self._session
        )
        kept = "".join(_text(event) for event in session.events if event.author != "user")
        if not kept.endswith("".join(pieces)):
            self.remark = "shown whole, but its session keeps only the last piece of an answer"
        return pieces

    async def converse(self, prompts: list[str]) -> list[str]:
        return ["".join(await self.stream(prompt)) for prompt in prompts]

    async def cancel(self, prompt: str) -> str:
        raise Lacking("`RemoteA2aAgent` cannot cancel")

    async def _events(self, prompt: str) -> AsyncIterator[Event]:
        if self._session is None:
            made = await self._runner.session_service.create_session(
                app_name="interop", user_id="ada"
            )
            self._session = made.id
        content = types.Content(role="user", parts=[types.Part(text=prompt)])
        config = RunConfig(streaming_mode=StreamingMode.SSE)
        async for event in self._runner.run_async(
            user_id="ada", session_id=self._session, new_message=content, run_config=config
        ):
            if event.error_message:
                raise RuntimeError(event.error_message)
            yield event


def _text(event: Event) -> str:
    """What ADK's own interfaces show: text that is no thought, and what a person is asked for."""
    parts = (event.content and event.content.parts) or []
    texts = [part.text for part in parts if part.text and not part.thought]
    calls = [part.function_call.args for part in parts if part.function_call]
    return "".join(texts + [args["input_required"] for args in calls if "input_required" in args])


if __name__ == "__main__":
    main(Adk)
