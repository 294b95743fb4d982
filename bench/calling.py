"""What `opencode-a2a call` adds to the A2A SDK's own client, on the same local agent."""

from __future__ import annotations

import subprocess
import sys
from io import StringIO
from pathlib import Path
from time import perf_counter
from uuid import uuid4

import httpx
from a2a.client import ClientConfig, ClientFactory
from a2a.client.card_resolver import A2ACardResolver
from a2a.types.a2a_pb2 import Message, Part, Role, SendMessageRequest
from rich.console import Console

from opencode_a2a.cli.rich_printer import RichPrinter
from opencode_a2a.outbound.client import Outgoing, Peers, PeerUpdate, Received
from opencode_a2a.outbound.egress import Egress
from opencode_a2a.outbound.target import Login, PeerLimits, Target
from opencode_a2a.outbound.transcript import Text
from tests.running import TOKEN, isolated

from .figures import Result
from .lab import Adapter, Lab, quiet

TEXT = "[[tokens:20]]"


async def first_word(lab: Lab) -> Result:
    result = Result(
        "The first word through `call`",
        "The Agent Card, a streamed message, and the first piece of its answer: with the SDK's own "
        "client, which does nothing with it, and with that of `call`, until the piece is rendered "
        "as on a terminal of 80 columns. In one process, in turn, on the fake OpenCode; what each "
        "needs before its first request is not in it.",
    )
    seen: tuple[list[float], list[float]] = ([], [])
    with lab.on_fake() as adapter:
        for number in range(lab.count(40, 10) + 3):
            for way, times in zip((_bare, _ours), seen, strict=True):
                taken = await way(adapter)
                times += [taken] if number > 2 else []  # the others warm up
                await quiet(adapter.pid, seconds=2.0)
        starts = [_whole(adapter) for _ in range(lab.repeats)]
    bare = result.add("with the SDK's client", seen[0], "ms")
    ours = result.add("with that of `call`, rendered", seen[1], "ms")
    result.add("… difference of the medians", ours - bare, "ms", 15)
    result.add(
        "`opencode-a2a call` as a whole, from its start to its end",
        starts,
        "s",
        note="nearly all of it is Python loading the SDK.",
    )
    return result


async def _bare(adapter: Adapter) -> float:
    """Milliseconds to the first piece of text."""
    async with httpx.AsyncClient(headers=adapter.service.headers, timeout=60) as http:
        began = perf_counter()
        card = await A2ACardResolver(http, adapter.service.url).get_agent_card()
        client = ClientFactory(ClientConfig(httpx_client=http)).create(card)
        message = Message(message_id=str(uuid4()), role=Role.ROLE_USER, parts=[Part(text=TEXT)])
        taken = 0.0
        async for event in client.send_message(SendMessageRequest(message=message)):
            if not taken and event.HasField("artifact_update"):
                taken = (perf_counter() - began) * 1e3
    return taken


async def _ours(adapter: Adapter) -> float:
    taken = 0.0
    console = Console(file=StringIO(), force_terminal=True, width=80, height=24)
    printer = RichPrinter(console, StringIO(), live=True)

    def show(update: PeerUpdate) -> None:
        nonlocal taken
        printer.update(update)
        has_text = isinstance(update, Received) and any(isinstance(s, Text) for s in update.shown)
        if has_text and not taken:
            taken = (perf_counter() - began) * 1e3

    url = adapter.service.url
    login = Login(frozenset({url}), (("Authorization", f"Bearer {TOKEN}"),))
    peers, began = Peers(Egress(), PeerLimits()), perf_counter()
    async with peers.connect(Target(url, login)) as peer:
        await peer.call(show).send(Outgoing(({"text": TEXT},)))
    printer.end_answer()
    return taken


def _whole(adapter: Adapter) -> float:
    """Seconds that the command takes."""
    command = [str(Path(sys.executable).parent / "opencode-a2a"), "call", adapter.service.url, TEXT]
    env = isolated(adapter.folder / "caller", A2A_CLIENT_BEARER_TOKEN=TOKEN)
    began = perf_counter()
    subprocess.run(command, env=env, check=True, capture_output=True)
    return perf_counter() - began
