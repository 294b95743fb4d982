"""The tools by which the agent calls other agents: their names, their rules, and whom they serve.

OpenCode calls the tools of an MCP server without saying which session does. So the sessions of
this service have rules by which OpenCode asks for permission before each call; that request names
the session and the call. Sub-agents get only the rules that deny, so they have no such tools.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .values import Decision, Interrupt, PermissionRule, Usage

SERVER = "a2a"  # what OpenCode calls the MCP server; the names of its tools begin with it
CALL = f"{SERVER}_call"
# The names of the tools as OpenCode and the model know them.
TOOL_NAMES = frozenset({CALL, f"{SERVER}_peers", f"{SERVER}_status", f"{SERVER}_cancel"})
# The last rule that matches counts, so a session with both asks.
DENY = PermissionRule(f"{SERVER}_*", "*", "deny")
ASK = PermissionRule(f"{SERVER}_*", "*", "ask")
ASK_ALWAYS = (PermissionRule("*", "*", "ask"),)  # where the rules are not known, a person decides

Report = Callable[[str], Awaitable[None]]  # that a call goes on


@dataclass(frozen=True, slots=True)
class ToolResult:
    text: str
    failed: bool = False
    peer: str = ""  # whom it asked, if there is such a peer


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model is told of it."""

    name: str  # without that of the server
    description: str
    arguments: Mapping[str, Any]  # their JSON Schema


@dataclass(frozen=True, slots=True)
class CallSite:
    """The task that a tool works for, and how the tool reaches those who wait for it."""

    task_id: str
    context_id: str
    owner: str
    session: str
    directory: str
    headers: Mapping[str, str]  # that go with every request to a peer
    ask: Callable[[Interrupt], Awaitable[Decision]]  # a person decides what a peer asks
    add_usage: Callable[[str, Usage], None]  # by the name of the peer
    may_read: Callable[[str], bool]  # whether the agent may read this file without asking


def call_key(tool: str, arguments: Mapping[str, Any]) -> str:
    """The same for two calls that cannot be told apart."""
    written = json.dumps(arguments, sort_keys=True, separators=(",", ":"))
    return f"{tool} {written}"
