"""What we offer beyond A2A itself, one module per extension."""

from __future__ import annotations

from ..contract.declare import Extension
from . import control as control  # declares methods of SESSIONS
from .declared import COMPATIBILITY, MODEL_SELECTION, SESSION_BINDING, STREAM_HINTS, WIRE
from .interrupts import HUMAN_IN_THE_LOOP, INTERACTIVE, RECOVERY
from .nodes import NODES
from .providers import PROVIDERS
from .push import EVERY_EVENT
from .sessions import SESSIONS
from .usage import USAGE
from .watching import TASK_WATCH
from .workspaces import WORKSPACES

ALL: tuple[Extension, ...] = (
    SESSION_BINDING,
    MODEL_SELECTION,
    STREAM_HINTS,
    INTERACTIVE,
    HUMAN_IN_THE_LOOP,
    SESSIONS,
    PROVIDERS,
    RECOVERY,
    WORKSPACES,
    USAGE,
    EVERY_EVENT,
    TASK_WATCH,
    NODES,
    COMPATIBILITY,
    WIRE,
)
