"""Microsoft's Agent Framework: an agent elsewhere as `A2AAgent`."""

from __future__ import annotations

import httpx
from a2a.client import A2ACardResolver
from a2a.types import CancelTaskRequest, TaskState
from agent_framework import AgentSession
from agent_framework.a2a import A2AAgent

from tests.interop.driver import Service, main


class AgentFramework:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._client = httpx.AsyncClient(headers=service.headers, timeout=60)

    async def _agent(self) -> A2AAgent:
        card = await A2ACardResolver(self._client, self._service.url).get_agent_card()
        return A2AAgent(agent_card=card, http_client=self._client)

    async def discover(self) -> str:
        return (await self._agent()).name

    async def ask(self, prompt: str) -> str:
        return (await (await self._agent()).run(prompt)).text

    async def stream(self, prompt: str) -> list[str]:
        agent = await self._agent()
        return [update.text async for update in agent.run(prompt, stream=True) if update.text]

    async def converse(self, prompts: list[str]) -> list[str]:
        agent, session = await self._agent(), AgentSession()
        return [(await agent.run(prompt, session=session)).text for prompt in prompts]

    async def cancel(self, prompt: str) -> str:
        self.remark = "not by the agent itself, but by the A2A client that it holds"
        agent, session = await self._agent(), AgentSession()
        answer = await agent.run(prompt, session=session, background=True)
        task = await agent.client.cancel_task(
            CancelTaskRequest(id=answer.continuation_token["task_id"])
        )
        return TaskState.Name(task.status.state).removeprefix("TASK_STATE_").lower()


if __name__ == "__main__":
    main(AgentFramework)
