"""How new contexts spread over a thousand nodes, by simulation.

    python -m bench.placement

Contexts arrive at random nodes and last for times with a heavy tail. A node knows its own load, and
that of the others as it was at their last beat. A context that comes to a full node waits.
"""

from __future__ import annotations

import heapq
import random
import sys
from collections.abc import Callable
from dataclasses import replace

from opencode_a2a.domain.nodes import Node, place

NODES = 1_000
CAPACITY = 4
BEAT_SECONDS = 2.0
MEAN_SECONDS = 40.0  # of a task; the slowest of a hundred takes half an hour
USED = 0.7  # of all capacity, on average
CONTEXTS = 40_000

Choose = Callable[[list[Node], int, random.Random], int]


def at_random(known: list[Node], here: int, draw: random.Random) -> int:
    return draw.randrange(NODES)


def where_it_came(known: list[Node], here: int, draw: random.Random) -> int:
    return here


def by_the_rule(known: list[Node], here: int, draw: random.Random) -> int:
    seed = draw.getrandbits(64)
    chosen = place(known, root="/w", label=None, here=str(here), now=0, seed=seed)
    assert chosen is not None
    return int(chosen.holder)


def simulate(choose: Choose, seed: int = 1) -> tuple[float, int]:
    """The share of contexts that come to a full node, and the most that one node had."""
    draw = random.Random(seed)
    rate = NODES * CAPACITY * USED / MEAN_SECONDS
    loads = [0] * NODES
    known = [Node(str(n), str(n), str(n), "/w", capacity=CAPACITY) for n in range(NODES)]
    ends: list[tuple[float, int]] = []
    now = beat = 0.0
    waits = most = 0
    for _ in range(CONTEXTS):
        now += draw.expovariate(rate)
        while ends and ends[0][0] <= now:
            loads[heapq.heappop(ends)[1]] -= 1
        if now - beat > BEAT_SECONDS:
            beat = now
            known = [replace(node, load=loads[int(node.holder)]) for node in known]
        here = draw.randrange(NODES)
        known[here] = replace(known[here], load=loads[here])
        node = choose(known, here, draw)
        waits += loads[node] >= CAPACITY
        loads[node] += 1
        most = max(most, loads[node])
        seconds = draw.paretovariate(1.5) * MEAN_SECONDS / 3
        heapq.heappush(ends, (now + seconds, node))
    return waits / CONTEXTS, most


def main() -> None:
    for choose in (where_it_came, at_random, by_the_rule):
        waiting, most = simulate(choose)
        sys.stdout.write(f"{choose.__name__:16} {waiting:7.2%} wait; most on one node: {most}\n")


if __name__ == "__main__":
    main()
