"""The nodes of a service: which there are, and how to take one out of service."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ..contract.declare import Extension, Toggle
from ..contract.params import Params, Result
from ..domain.nodes import Node
from ..domain.scopes import Scope
from ..domain.values import Caller
from ..errors import InvalidParams
from .audit import acted_as_admin
from .services import Services
from .shapes import Moment, Name

NODES = Extension(
    "opencode-nodes-v1",
    title="OpenCode Nodes v1",
    description="The nodes that share the database of this service: what each has, what it does, "
    "and draining one.",
    scope="opencode",
)
_TOGGLE = Toggle(
    "A2A_TASK_STORE_DATABASE_URL",
    "this service is the only node, because its database is no PostgreSQL server.",
)


class NodesParams(Params):
    """Nothing."""


class NodeParams(Params):
    node: Name = Field(description="Its name, or its id")


class NodeItem(Result):
    id: str = Field(description="Of this process; a restarted node has another one")
    name: str = Field(description="`A2A_NODE_NAME`")
    state: Literal["running", "draining", "gone"] = Field(
        description="gone: it has stopped, or was not heard of for 10 seconds"
    )
    draining: bool = Field(description="It gets no new work, and stops when its tasks have ended")
    answers: bool = Field(description="It is the one that answers this request")
    root: str = Field(description="The workspace root that it serves")
    labels: list[str] = Field(description="`A2A_NODE_LABELS`")
    opencode: str = Field(
        description="The OpenCode that it uses; nodes with the same one can take over for each "
        "other"
    )
    opencode_version: str | None = Field(description="null: not connected yet")
    version: str = Field(description="Of the service")
    load: int = Field(description="Tasks that are there")
    capacity: int | None = Field(description="Tasks that it works on at a time; null: no limit")
    started_at: Moment
    seen_at: Moment = Field(description="Its last heartbeat")

    @classmethod
    def of(cls, node: Node, *, here: str, now: int) -> NodeItem:
        return cls(
            id=node.holder,
            name=node.name,
            state=node.state(now),
            draining=node.draining,
            answers=node.holder == here,
            root=node.root,
            labels=sorted(node.labels),
            opencode=node.opencode,
            opencode_version=node.opencode_version or None,
            version=node.version,
            load=node.load,
            capacity=node.capacity or None,
            started_at=node.started_at,
            seen_at=node.seen_at,
        )


class NodeList(Result):
    items: list[NodeItem] = Field(description="By name")


@NODES.method("opencode.nodes.list", scope=Scope.ADMIN, effect="read")
async def list_nodes(services: Services, caller: Caller, params: NodesParams) -> NodeList:
    """All nodes that were heard of within a day. A service without PostgreSQL is the only one."""
    return await _listed(services)


@NODES.method("opencode.nodes.drain", scope=Scope.ADMIN, toggle=_TOGGLE, effect="control")
async def drain_node(services: Services, caller: Caller, params: NodeParams) -> NodeList:
    """Give a node no new work. It stops when its tasks have ended. All nodes are returned."""
    return await _drain(services, caller, node=params.node, draining=True)


@NODES.method("opencode.nodes.resume", scope=Scope.ADMIN, toggle=_TOGGLE, effect="control")
async def resume_node(services: Services, caller: Caller, params: NodeParams) -> NodeList:
    """Give a node new work again that has not stopped yet. All nodes are returned."""
    return await _drain(services, caller, node=params.node, draining=False)


async def _drain(services: Services, caller: Caller, *, node: str, draining: bool) -> NodeList:
    action = "drain node" if draining else "resume node"
    acted_as_admin(caller, action=action, target=node, owner="*")
    if not await services.nodes.drain(node, draining=draining):
        raise InvalidParams.at(
            "node", "no running node has this name or id; opencode.nodes.list has all of them"
        )
    return await _listed(services)


async def _listed(services: Services) -> NodeList:
    nodes = services.nodes
    found, now = await nodes.all(), nodes.clock()
    return NodeList(items=[NodeItem.of(node, here=nodes.here, now=now) for node in found])
