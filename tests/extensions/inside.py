"""OpenCode itself, for what only its own users do, and for what really happened there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal

import httpx

from tests.features import is_2
from tests.running import Upstream

Json = dict[str, Any]
Event = Literal["busy", "idle", "asked", "prompted"]


class Inside:
    """OpenCode 1.x; `Inside2` is the same with 2.x."""

    stream = "/global/event"
    sessions = "/session"
    events: ClassVar[dict[Event, str]] = {
        "busy": '"busy"',
        "idle": '"session.idle"',
        "asked": '"permission.asked"',
        "prompted": '"message.part.updated"',
    }

    def __init__(self, http: httpx.Client, workspace: Path) -> None:
        self.http = http
        self.workspace = workspace

    @staticmethod
    @contextmanager
    def of(upstream: Upstream) -> Iterator[Inside]:
        login = ("opencode", upstream.password or "")
        with httpx.Client(base_url=upstream.base_url, auth=login, timeout=60) as http:
            yield (Inside2 if is_2() else Inside)(http, upstream.workspace)

    @contextmanager
    def awaiting(self, event: Event, session: str) -> Iterator[None]:
        """Leave only when OpenCode has said that this has happened since.

        A prompt that it has taken is not at work yet, nor even stored.
        """
        with self.http.stream("GET", self.stream) as response:
            lines = (line for line in response.iter_lines() if line.startswith("data:"))
            next(lines)  # connected
            yield
            next(line for line in lines if re.search(self.events[event], line) and session in line)

    def session(self, title: str, directory: Path | None = None, **more: Any) -> str:
        where = {"directory": str(directory or self.workspace)}
        body = {"title": title, **more}
        found: str = self.http.post("/session", params=where, json=body).json()["id"]
        return found

    def get(self, session: str) -> Json | None:
        """None if there is no such session."""
        answer = self.http.get(f"{self.sessions}/{session}")
        found: Json = {} if answer.status_code == 404 else answer.json()
        return found.get("data", found) or None

    def directory(self, session: str) -> str:
        return str((self.get(session) or {})["directory"])

    def rules(self, session: str) -> list[Json]:
        found: list[Json] = (self.get(session) or {}).get("permission", [])
        return found

    def fork(self, session: str) -> str:
        answer: Json = self.http.post(f"{self.sessions}/{session}/fork", json={}).json()
        found: str = answer.get("data", answer)["id"]
        return found

    def abort(self, session: str) -> None:
        self.http.post(f"/session/{session}/abort").raise_for_status()

    def is_busy(self, session: str) -> bool:
        where = {"directory": str(self.workspace)}
        return session in self.http.get("/session/status", params=where).json()

    def asking(self) -> list[str]:
        """The sessions that wait for a permission."""
        where = {"directory": str(self.workspace)}
        found = self.http.get("/permission", params=where).json()
        return [request["sessionID"] for request in found]

    def command(self, session: str, name: str, arguments: str) -> None:
        body = {"command": name, "arguments": arguments}
        self.http.post(f"/session/{session}/command", json=body)

    def worktree(self) -> str:
        where = {"directory": str(self.workspace)}
        made: str = self.http.post("/experimental/worktree", params=where, json={}).json()[
            "directory"
        ]
        return made

    def worktrees(self) -> set[str]:
        where = {"directory": str(self.workspace)}
        return set(self.http.get("/experimental/worktree", params=where).json())

    def projects(self) -> set[str]:
        """Where they are."""
        return {project["worktree"] for project in self.http.get("/project").json()}

    def agents(self) -> dict[str, Json]:
        return {agent["name"]: agent for agent in self.http.get("/agent").json()}

    def provider(self) -> tuple[Json, int]:
        """The options of the only one, and how many models it has."""
        [found] = self.http.get("/provider").json()["all"]
        return found["options"], len(found["models"])


class Inside2(Inside):
    stream = "/api/event"
    sessions = "/api/session"
    events: ClassVar[dict[Event, str]] = {
        "busy": '"session.execution.started"',
        "idle": '"session.execution.(succeeded|failed|interrupted)"',
        "asked": '"permission.asked"',
        "prompted": '"session.inbox.enqueued"',
    }

    @property
    def _here(self) -> dict[str, str]:
        return {"location[directory]": str(self.workspace)}

    def _project(self) -> str:
        found: str = self.http.get("/api/location", params=self._here).json()["project"]["id"]
        return found

    def session(self, title: str, directory: Path | None = None, **more: Any) -> str:
        where = {"directory": str(directory or self.workspace)}
        body = {"title": title, "location": where, **more}
        found: str = self.http.post("/api/session", json=body).json()["data"]["id"]
        return found

    def directory(self, session: str) -> str:
        return str((self.get(session) or {})["location"]["directory"])

    def rules(self, session: str) -> list[Json]:
        """In the words of 1.x."""
        return [
            {"permission": rule["action"], "pattern": rule["resource"], "action": rule["effect"]}
            for rule in (self.get(session) or {}).get("permissions", [])
        ]

    def abort(self, session: str) -> None:
        with self.awaiting("idle", session):
            self.http.post(f"/api/session/{session}/interrupt").raise_for_status()

    def is_busy(self, session: str) -> bool:
        return session in self.http.get("/api/session/active").json()["data"]

    def asking(self) -> list[str]:
        found = self.http.get("/api/permission/request", params=self._here).json()["data"]
        return [request["sessionID"] for request in found]

    def command(self, session: str, name: str, arguments: str) -> None:
        with self.awaiting("idle", session):
            body = {"name": name, "text": arguments}
            self.http.post(f"/api/session/{session}/command", json=body)

    def worktree(self) -> str:
        body = {"projectID": self._project()}
        made: str = self.http.post("/api/worktree", json=body).json()["directory"]
        return made

    def worktrees(self) -> set[str]:
        found = self.http.get("/api/worktree", params={"projectID": self._project()}).json()
        return {each["directory"] for each in found}

    def projects(self) -> set[str]:
        return {project["canonical"] for project in self.http.get("/api/project").json()}

    def agents(self) -> dict[str, Json]:
        found = self.http.get("/api/agent", params=self._here).json()["data"]
        return {agent["id"]: agent for agent in found}

    def provider(self) -> tuple[Json, int]:
        [found] = self.http.get("/api/provider", params=self._here).json()["data"]
        models = self.http.get("/api/model", params=self._here).json()["data"]
        return found["settings"], len(models)
