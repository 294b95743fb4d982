"""Which of the nodes that share a database does what.

1. A node is alive while it was seen within `ALIVE_MS`, by the database's clock.
2. What concerns an open task is done by the node that holds it. If that one is dead, any other node
   of the same OpenCode will have it soon.
3. What concerns a session is done by a node of its OpenCode: the asked one, if it is one of them;
   one that is being drained only if there is no other.
4. A new context goes to one of the nodes that serve the wanted workspace root or label and are not
   being drained: of the asked one and two others, that with the smallest share of its capacity in
   use; the asked one if it is as free as these.
5. What is in an OpenCode without a living node waits for one to return, for a set time. After that
   its open tasks fail, and its contexts go on elsewhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

ALIVE_MS = 10_000
DRAWN = 2  # other nodes that are looked at for a new context


@dataclass(frozen=True, slots=True)
class Node:
    """A process that shares the database, as its row says."""

    holder: str  # the process
    name: str
    opencode: str
    root: str
    labels: frozenset[str] = frozenset()
    version: str = ""
    opencode_version: str = ""
    capacity: int = 0  # tasks that it works on at a time; 0 means no limit
    load: int = 0  # tasks that are there
    draining: bool = False
    started_at: int = 0
    seen_at: int = 0
    silent: bool = False  # it did not take a command, and was not seen since

    def is_alive(self, now: int) -> bool:
        return not self.silent and now - self.seen_at <= ALIVE_MS

    def state(self, now: int) -> Literal["running", "draining", "gone"]:
        if not self.is_alive(now):
            return "gone"
        return "draining" if self.draining else "running"

    def is_called(self, label: str) -> bool:
        return label == self.name or label in self.labels

    @property
    def used(self) -> float:
        """The share of its capacity that is in use; more than 1 while tasks wait."""
        return self.load / (self.capacity or 1_000)


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where a task or a context is, as the database says."""

    holder: str | None = None  # of the open task; None where there is none
    opencode: str | None = None  # None where it is not known, or nothing is there yet
    root: str | None = None


def place(
    nodes: Iterable[Node], *, root: str, label: str | None, here: str, now: int, seed: int
) -> Node | None:
    """The node for a new context; None where no node can take it.

    The loads of others are as old as their last beat. If everybody chose the one that was free
    then, all would choose the same. So two are drawn, by a large random number, and the asked node
    is the third.
    """
    fits = _fitting(nodes, root=root, label=label, now=now)
    others = [node for node in fits if node.holder != here]
    drawn = [node for node in fits if node.holder == here]
    for _ in range(min(DRAWN, len(others))):
        seed, position = divmod(seed, len(others))
        drawn.append(others.pop(position))
    return min(drawn, key=lambda node: (node.used, node.holder != here), default=None)


def place_named(
    nodes: Iterable[Node], *, root: str, label: str | None, context_id: str, now: int
) -> Node | None:
    """The node for a new context whose id the client has chosen.

    The same for everybody: the client may send its first messages to several nodes at once.
    """

    fits = _fitting(nodes, root=root, label=label, now=now)
    name = f"{context_id} "
    return min(
        fits,
        key=lambda node: (_stable_hash(name + node.opencode), node.used, node.holder),
        default=None,
    )


def _stable_hash(text: str) -> bytes:
    """The same in every process, unlike `hash`."""
    return hashlib.sha256(text.encode()).digest()


def _fitting(nodes: Iterable[Node], *, root: str, label: str | None, now: int) -> Sequence[Node]:
    return [
        node
        for node in nodes
        if node.is_alive(now)
        and not node.draining
        and (node.root == root if label is None else node.is_called(label))
    ]


@dataclass(frozen=True, slots=True)
class Away:
    """Nobody can do it now: the last node of this OpenCode was seen then."""

    opencode: str | None
    seen_at: int

    def is_over(self, now: int, return_ms: int) -> bool:
        """Whether it is not waited for any longer."""
        return now - self.seen_at > return_ms


def doer(nodes: Sequence[Node], where: Whereabouts, *, here: Node, now: int) -> Node | Away:
    """Who does what concerns a task or a context that is there already."""
    alive = [node for node in nodes if node.is_alive(now)]
    for node in alive:
        if node.holder == where.holder:
            return node
    able = [
        node
        for node in (here, *(node for node in alive if node.holder != here.holder))
        if where.opencode in (None, node.opencode) and where.root in (None, node.root)
    ]
    if able:
        first = here.holder
        return min(able, key=lambda n: (n.draining, n.holder != first, n.used, n.holder))
    seen = [node.seen_at for node in nodes if node.opencode == where.opencode]
    return Away(where.opencode, max(seen, default=0))
