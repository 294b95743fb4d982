"""BeeAI: an agent elsewhere as `A2AAgent`."""

from __future__ import annotations

import a2a.types as a2a_types
from beeai_framework.adapters.a2a.agents.agent import (
    A2AAgent,
    A2AAgentParameters,
    HttpxAsyncClientParameters,
)
from beeai_framework.memory import UnconstrainedMemory

from tests.interop.driver import Lacking, Service, main


class BeeAI:
    def __init__(self, service: Service) -> None:
        client = HttpxAsyncClientParameters(headers=service.headers)
        self._agent = A2AAgent(
            url=service.url,
            memory=UnconstrainedMemory(),
            parameters=A2AAgentParameters(httpx_async_client=client),
        )

    async def discover(self) -> str:
        await self._agent.check_agent_exists()
        return self._agent.name

    async def ask(self, prompt: str) -> str:
        return (await self.converse([prompt]))[0]

    async def stream(self, prompt: str) -> list[str]:
        """The text of the artifact updates, which the agent's `update` events carry."""
        pieces: list[str] = []

        def collect(data: object, _: object) -> None:
            event = data.value[1] if isinstance(data.value, tuple) else None
            if isinstance(event, a2a_types.TaskArtifactUpdateEvent):
                parts = [part.root for part in event.artifact.parts]
                pieces.extend(p.text for p in parts if isinstance(p, a2a_types.TextPart))

        await self._agent.run(prompt).on("update", collect)
        return pieces

    async def converse(self, prompts: list[str]) -> list[str]:
        return [(await self._agent.run(prompt)).last_message.text for prompt in prompts]

    async def cancel(self, prompt: str) -> str:
        raise Lacking("`A2AAgent` cannot cancel")


if __name__ == "__main__":
    main(BeeAI)
