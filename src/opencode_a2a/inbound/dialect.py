"""The three forms of A2A on the wire: 1.0, 0.3 over JSON-RPC, and 0.3 over REST.

A `Dialect` holds what differs between them. Parsing, rendering and errors ask it instead of
comparing versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..contract.operations import Line
from ..domain.values import Role, TaskState


@dataclass(frozen=True, slots=True)
class Dialect:
    """What one form of the protocol calls things."""

    name: str
    version: Line
    states: Mapping[TaskState, str]
    roles: Mapping[Role, str]
    tagged: bool = False  # objects name their `kind`
    content: str = "parts"  # the member of a message that holds its parts
    new_parts: bool = False  # 1.0 parts: raw, url, data; before that: file, data
    nested_data: bool = False  # a data part holds its value in a second `data` member


_PROTO_STATES = {state: f"TASK_STATE_{state.name}" for state in TaskState}
_PROTO_ROLES = {role: f"ROLE_{role.name}" for role in Role}

V1 = Dialect(name="1.0", version="1.0", states=_PROTO_STATES, roles=_PROTO_ROLES, new_parts=True)
V03 = Dialect(
    name="0.3",
    version="0.3",
    states={state: state.value for state in TaskState},
    roles={role: role.value for role in Role},
    tagged=True,
)
V03_REST = Dialect(
    name="0.3-rest",
    version="0.3",
    states=_PROTO_STATES | {TaskState.CANCELED: "TASK_STATE_CANCELLED"},
    roles=_PROTO_ROLES,
    content="content",
    nested_data=True,
)

RPC_DIALECTS: Mapping[Line, Dialect] = {"1.0": V1, "0.3": V03}
REST_DIALECTS: Mapping[Line, Dialect] = {"1.0": V1, "0.3": V03_REST}
