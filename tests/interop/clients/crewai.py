"""CrewAI: what its agents call when they delegate a task to an A2A agent."""

from __future__ import annotations

from typing import Any

from crewai.a2a.auth.client_schemes import BearerTokenAuth
from crewai.a2a.utils.agent_card import afetch_agent_card
from crewai.a2a.utils.delegation import aexecute_a2a_delegation

from tests.interop.driver import Lacking, Service, main


class CrewAI:
    def __init__(self, service: Service) -> None:
        self._card = f"{service.url}/.well-known/agent-card.json"
        self._auth = BearerTokenAuth(token=service.token)

    async def discover(self) -> str:
        return (await afetch_agent_card(self._card, auth=self._auth)).name

    async def ask(self, prompt: str) -> str:
        return (await self.converse([prompt]))[0]

    async def stream(self, prompt: str) -> list[str]:
        """It reads a stream and hands out the answer of a task when that is complete."""
        return [await self.ask(prompt)]

    async def converse(self, prompts: list[str]) -> list[str]:
        shown, last = [], {}
        for prompt in prompts:
            answer = await self._delegate(prompt, **last)
            shown.append(answer.get("result") or answer.get("error") or "")
            about = answer["history"][-1] if answer["history"] else None
            waits = answer["status"].value == "input-required"
            last = {
                "context_id": about.context_id if about else None,
                "task_id": about.task_id if about and waits else None,
                "conversation_history": answer["history"],
            }
        return shown

    async def cancel(self, prompt: str) -> str:
        raise Lacking("delegation cannot be canceled")

    async def _delegate(self, prompt: str, **more: Any) -> dict[str, Any]:
        return await aexecute_a2a_delegation(
            endpoint=self._card, auth=self._auth, timeout=60, task_description=prompt, **more
        )


if __name__ == "__main__":
    main(CrewAI)
