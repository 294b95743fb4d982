"""What `make interop` tries, with the versions it installs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from opencode_a2a.domain.release import TRIED

STEPS = ("discover", "ask", "stream", "continue", "permission", "cancel")


@dataclass(frozen=True, slots=True)
class Client:
    """An A2A client, its driver `clients/<name>.py` or `.mjs`, and the packages it needs."""

    name: str
    title: str
    packages: tuple[str, ...]  # pinned; the first one is the client itself
    runtime: Literal["python", "node"] = "python"

    @property
    def driver(self) -> str:
        return f"{self.name}.py" if self.runtime == "python" else f"{self.name}.mjs"


CLIENTS = (
    Client("adk", "Google ADK, `RemoteA2aAgent`", ("google-adk[a2a]==2.13.0",)),
    Client(
        "agent_framework",
        "Microsoft Agent Framework, `A2AAgent`",
        ("agent-framework-a2a==1.0.0b261022",),
    ),
    Client("crewai", "CrewAI, A2A delegation", ("crewai[a2a]==1.15.30",)),
    Client("beeai", "BeeAI, `A2AAgent`", ("beeai-framework[a2a]==0.1.85",)),
    Client("litellm", "LiteLLM, `a2a/…` models", ("litellm==1.106.2", "a2a-sdk==1.3.0")),
    Client(
        "vercel",
        "Vercel AI SDK, `a2a-ai-provider`",
        ("a2a-ai-provider@0.5.0-alpha.1", "ai@6.0.202"),
        runtime="node",
    ),
)

OPENCODE_VERSIONS = TRIED  # package.json has the one of all other tests
