"""Other agents, as a person looks at them: their cards, and what they say to a message."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from ..contract.declare import Extension, Toggle
from ..contract.params import Params, Result
from ..domain.scopes import Scope
from ..domain.values import Caller
from ..errors import PeerFailed
from .services import Services

PEER_TOGGLE = Toggle(
    "A2A_CLIENT_ALLOW_ANY_PEER",
    "otherwise, and without a table `[peers.NAME]`, there is no agent that may be called.",
)
PEERS = Extension(
    "opencode-peers-v1",
    title="OpenCode Peers v1",
    description="Look at another A2A agent through this service: its card, and its answer to a "
    "message. What may be called is what the agent itself may call.",
    scope="opencode",
)

PeerWord = Annotated[
    str,
    Field(
        min_length=1,
        max_length=2_000,
        description="The name of a configured agent; where any may be called, also an address",
    ),
]


class PeerListParams(Params):
    pass


class PeerList(Result):
    items: list[str] = Field(description="The names of the configured agents")
    any_address: bool = Field(description="Whether others can be named by their address")


class PeerCardParams(Params):
    peer: PeerWord


class PeerCardResult(Result):
    url: str = Field(description="Where the card was found")
    card: dict[str, Any] = Field(description="As it was received: nobody here has checked it")
    line: str | None = Field(description="What would be spoken with it; null: nothing can be")
    transport: str | None
    problems: list[str] = Field(description="What is wrong with the card")


class PeerSendParams(Params):
    peer: PeerWord
    text: str = Field(min_length=1, max_length=100_000, description="The message")
    context_id: str | None = Field(
        default=None, max_length=255, description="Continue this conversation of the other agent"
    )


class PeerSendResult(Result):
    answer: str = Field(description="The text of its answer so far")
    state: str | None = Field(description="Of its task, such as COMPLETED")
    task_id: str | None = Field(description="null: it answered without a task")
    context_id: str | None
    events: list[dict[str, Any]] = Field(description="What it has sent, in the words of A2A 1.0")


@PEERS.method("opencode.peers.list", scope=Scope.TASKS_READ, toggle=PEER_TOGGLE, effect="read")
async def list_peers(services: Services, caller: Caller, params: PeerListParams) -> PeerList:
    """The agents that can be looked at."""
    peers = services.peers
    return PeerList(items=list(peers.names()), any_address=peers.takes_addresses())


@PEERS.method(
    "opencode.peers.card",
    scope=Scope.TASKS_WRITE,
    errors=(PeerFailed,),
    toggle=PEER_TOGGLE,
    effect="read",
)
async def get_peer_card(
    services: Services, caller: Caller, params: PeerCardParams
) -> PeerCardResult:
    """The Agent Card of another agent, and what is wrong with it.

    Every word of it is a stranger's: whoever shows it must not take any for markup.
    """
    found = await services.peers.card(params.peer)
    return PeerCardResult(
        url=found.url,
        card=dict(found.card),
        line=found.line,
        transport=found.transport,
        problems=list(found.problems),
    )


@PEERS.method(
    "opencode.peers.send",
    scope=Scope.TASKS_WRITE,
    errors=(PeerFailed,),
    toggle=PEER_TOGGLE,
    effect="mutation",
)
async def send_to_peer(
    services: Services, caller: Caller, params: PeerSendParams
) -> PeerSendResult:
    """Send a message to another agent, and wait up to a minute for its answer.

    Where that is not enough, the answer is what has come so far, and the other agent goes on.
    """
    services.limiter.check_outside_tasks(caller.principal)
    said = await services.peers.send(params.peer, params.text, context_id=params.context_id)
    return PeerSendResult(
        answer=said.answer,
        state=said.state,
        task_id=said.task_id,
        context_id=said.context_id,
        events=[dict(event) for event in said.events],
    )
