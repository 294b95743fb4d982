"""Plays the clients, one after the other, against one service on one real OpenCode."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from tests.running import Service, Upstream, isolated, real_opencode, service

from .declared import Client
from .environments import NotInstalled, command, install_client
from .steps import Step, Verdict, judge, steps

CLIENT_SECONDS = 600
SETTLE_SECONDS = 20
# It asks before it runs a command, and not before it writes below notes/.
PERMISSION = {"bash": "ask", "edit": {"*": "ask", "notes/*": "allow"}}
# None of them may call home or fetch anything.
QUIET = {
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "OTEL_SDK_DISABLED": "true",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "BEEAI_TELEMETRY_ENABLED": "false",
}


@dataclass(frozen=True, slots=True)
class Setting:
    """The service that the clients use, and what is behind it."""

    service: Service
    upstream: Upstream
    home: Path

    def agent_name(self) -> str:
        card = httpx.get(f"{self.service.url}/.well-known/agent-card.json").json()
        return str(card["name"])

    def opencode_version(self) -> str:
        return str(self._opencode("global/health")["version"])

    def sessions_given(self, prompts: Iterable[str]) -> list[str]:
        """The session in which OpenCode was given each of these; an empty name for none."""
        assert self.upstream.model_url is not None
        seen = httpx.get(f"{self.upstream.model_url.removesuffix('/v1')}/requests").json()
        calls = [call for call in seen if call["kind"] == "chat"]
        return [
            next((call["session"] for call in calls if prompt in call["text"]), "")
            for prompt in prompts
        ]

    def is_idle(self, session: str) -> bool:
        """Does OpenCode come to rest there?"""
        until = time.monotonic() + SETTLE_SECONDS
        while session in self._opencode("session/status"):
            if time.monotonic() > until:
                return False
            time.sleep(0.1)
        return True

    def _opencode(self, path: str) -> Any:
        auth = ("opencode", self.upstream.password or "")
        query = {"directory": str(self.upstream.workspace)}
        return httpx.get(f"{self.upstream.base_url}/{path}", params=query, auth=auth).json()


@contextmanager
def set_up() -> Iterator[Setting]:
    with (
        TemporaryDirectory(prefix="interop-") as name,
        real_opencode(Path(name) / "opencode", permission=PERMISSION) as upstream,
        service(upstream, Path(name) / "service") as running,
    ):
        yield Setting(running, upstream, Path(name) / "home")


def run(clients: Iterable[Client]) -> dict[str, Any]:
    """What each client could do, and on what this was found."""
    with set_up() as setting:
        found = {client.name: _row(setting, client) for client in clients}
        node = subprocess.run(["node", "--version"], check=True, capture_output=True, text=True)
        on = {
            "OpenCode": setting.opencode_version(),
            "Python": platform.python_version(),
            "Node.js": node.stdout.strip().removeprefix("v"),
        }
    return {"on": on, "rows": found}


def _row(setting: Setting, client: Client) -> dict[str, Any]:
    row: dict[str, Any] = {"packages": list(client.packages)}
    try:
        install_client(client)
    except NotInstalled as exc:
        return row | {"problem": str(exc)}
    planned = steps(client.name, setting.agent_name())
    outcomes = play(setting, client, planned=planned)
    verdicts = {}
    for step in planned:
        outcome = outcomes.get(step.name, {"error": "the driver ended before this step"})
        verdict = _judge(setting, step, outcome=outcome)
        verdicts[step.name] = asdict(verdict)
        sys.stdout.write(f"{client.name:16} {step.name:11} {verdict.mark:8} {verdict.note}\n")
        sys.stdout.flush()
    return row | {"steps": verdicts}


def _judge(setting: Setting, step: Step, *, outcome: dict[str, Any]) -> Verdict:
    sessions = setting.sessions_given(step.prompts) if step.name != "permission" else []
    verdict = judge(step, outcome, sessions=sessions)
    if step.name == "cancel" and verdict.mark == "yes" and not setting.is_idle(sessions[0]):
        return Verdict("no", "OpenCode is still at work")
    return verdict


def play(setting: Setting, client: Client, *, planned: Iterable[Step]) -> dict[str, dict[str, Any]]:
    """What the driver says about each step; what else its client prints is left in a file."""
    plan = {
        "url": setting.service.url,
        "token": setting.service.token,
        "steps": [{"name": step.name, "prompts": step.prompts} for step in planned],
    }
    words, folder = command(client, json.dumps(plan))
    log = folder / "driver.log"
    with log.open("w") as said:
        ended = subprocess.run(
            words,
            cwd=folder,
            env=isolated(setting.home / client.name, **QUIET),
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            timeout=CLIENT_SECONDS,
            check=False,
        )
        said.write(ended.stdout)
    return {outcome["step"]: outcome for outcome in _outcomes(ended.stdout)}


def _outcomes(said: str) -> Iterator[dict[str, Any]]:
    for line in said.splitlines():
        try:
            told = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(told, dict) and "step" in told:
            yield told
