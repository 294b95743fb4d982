"""The nodes of this service, as an operator sees them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from ..domain.nodes import Node


class SharedNodes(Protocol):
    """The rows of all nodes on a database that is shared."""

    async def all(self) -> Sequence[Node]: ...
    async def drain(self, node: str, *, draining: bool) -> int: ...


class Nodes:
    """Those that share a database; where it is a file, this process alone."""

    def __init__(
        self,
        describe: Callable[[], Node],
        *,
        clock: Callable[[], int],
        shared: SharedNodes | None,
    ) -> None:
        """`describe`: this node as it is now."""
        self.describe = describe
        self._shared = shared
        self._started_at = clock()
        self.clock = clock

    @property
    def here(self) -> str:
        """The id of this one."""
        return self.describe().holder

    async def all(self) -> Sequence[Node]:
        if self._shared is not None:
            return await self._shared.all()
        return [replace(self.describe(), started_at=self._started_at, seen_at=self.clock())]

    async def has_label(self, label: str) -> bool:
        """Whether this node, or another one of its OpenCode, has this name or label."""
        here = self.describe()
        found = [here, *(node for node in await self.all() if node.opencode == here.opencode)]
        return any(node.is_called(label) for node in found)

    async def drain(self, node: str, *, draining: bool) -> int:
        """Let a running node get no new work, or get it again; how many have this name or id."""
        assert self._shared is not None, "its methods are switched off"
        return await self._shared.drain(node, draining=draining)
