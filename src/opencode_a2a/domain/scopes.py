"""What a credential can be good for."""

from __future__ import annotations

from enum import StrEnum


class Scope(StrEnum):
    TASKS_READ = "tasks:read"
    TASKS_WRITE = "tasks:write"
    SESSIONS_READ = "sessions:read"
    SESSIONS_WRITE = "sessions:write"
    SESSIONS_SHELL = "sessions:shell"
    WORKSPACES_WRITE = "workspaces:write"


# What a credential is good for when nobody says: everything that stays inside the agent.
DEFAULT_SCOPES = (Scope.TASKS_READ, Scope.TASKS_WRITE, Scope.SESSIONS_READ, Scope.SESSIONS_WRITE)
