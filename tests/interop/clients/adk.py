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
        return (await self.converse([prompt]))[0]

    async def stream(self, prompt: str) -> list[str]:
        return [_text(event) async for event in self._events(prompt) if event.partial]

    async def converse(self, prompts: list[str]) -> list[str]:
        shown = []
        for prompt in prompts:
            whole = [e async for e in self._events(prompt) if not e.partial]
            shown.append("".join(map(_text, whole)))
        return shown

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
    """What ADK's own interfaces show of an event: text that is not marked as a thought."""
    parts = (event.content and event.content.parts) or []
    return "".join(part.text for part in parts if part.text and not part.thought)


if __name__ == "__main__":
    main(Adk)
