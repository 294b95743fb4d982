"""What a credential can be good for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum


class Scope(StrEnum):
    TASKS_READ = "tasks:read"
    TASKS_WRITE = "tasks:write"
    SESSIONS_READ = "sessions:read"
    SESSIONS_WRITE = "sessions:write"
    SESSIONS_SHELL = "sessions:shell"
    WORKSPACES_WRITE = "workspaces:write"
    ADMIN = "admin"
    METRICS_READ = "metrics:read"


# What a credential is good for when nobody says: everything that stays inside the agent.
DEFAULT_SCOPES = (Scope.TASKS_READ, Scope.TASKS_WRITE, Scope.SESSIONS_READ, Scope.SESSIONS_WRITE)

# What the one caller of a service has who needs no scopes: all there is, except for what concerns
# other callers.
OWN_SCOPES = frozenset(Scope) - {Scope.ADMIN}

Roles = Mapping[str, frozenset[str]]  # named sets of scopes

_ALL = frozenset(map(str, Scope))


class UnknownScope(ValueError):
    """A name is neither a scope nor a role. It is not repeated: it may be a misplaced secret."""

    def __init__(self, roles: Roles) -> None:
        names = ", ".join(repr(name) for name in (*map(str, Scope), *roles))
        super().__init__(f"must be {names}")


def resolve(names: Iterable[str], roles: Roles) -> frozenset[str]:
    """The scopes that these names of scopes and roles stand for. UnknownScope: one is neither."""
    found: set[str] = set()
    for name in names:
        if name in roles:
            found |= roles[name]
        elif name in _ALL:
            found.add(name)
        else:
            raise UnknownScope(roles)
    return frozenset(found)
