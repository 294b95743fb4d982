"""OpenCode 1.x's sessions, models and locations.

Only the fields named here leave this module: OpenCode's own answers hold provider keys in clear.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from pydantic import Field

from ...domain import catalog as c
from ...domain.values import (
    Data,
    FileChange,
    Message,
    ModelRef,
    Part,
    PermissionAction,
    PermissionRule,
    Role,
    SessionRef,
    TodoItem,
)
from ...errors import InvalidParams, UpstreamHttpError
from ..answers import Body, DiffInfo, Wire, file_change, item, items, read, scrub, understood
from ..api import (
    CALL_MS,
    CREATION_SECONDS,
    Defaults,
    block_part,
    metadata,
    origin,
    session_error,
    without_none,
)
from ..feed import Feed
from ..http import Options, Requests
from ..ids import new_id, prompt_id
from . import wire
from .instances import Instances
from .session import Session1

WORKSPACE = ("experimental", "workspace")
WORKTREE = ("experimental", "worktree")


class _Rule(Wire):
    permission: str
    pattern: str
    action: PermissionAction


class _HasRules(Wire):
    """A session or an agent."""

    name: str = ""
    permission: list[_Rule] = Field(default=[])

    @property
    def rules(self) -> list[PermissionRule]:
        return [PermissionRule(**each.model_dump()) for each in self.permission]


class _McpStatus(Wire):
    status: str


class Api1:
    """Implements `opencode.api.Api`."""

    tells_of_disposals = True

    def __init__(self, http: Requests, feed: Feed, defaults: Defaults) -> None:
        self._http = http
        self._feed = feed
        self._defaults = defaults
        self._instances = Instances(http, feed)
        self._run_seconds = defaults.run_seconds
        self._creation_seconds = min(defaults.run_seconds, CREATION_SECONDS)

    async def connected(self) -> None:
        await self._instances.load(self._defaults.directory)

    async def create(
        self, title: str, context_id: str, *, location: c.Location, rules: Sequence[PermissionRule]
    ) -> SessionRef:
        body: dict[str, Any] = {
            "metadata": metadata(context_id, self._defaults.directory),
            "title": title,  # without one OpenCode would ask a model for it
            "workspaceID": location.workspace,
            "permission": wire.rules_to_wire(rules) or None,
        }
        here = c.Location(location.directory)
        answer = await self._at(here, "POST", "session", body=without_none(body))
        created = read(wire.SessionInfo, answer)
        return SessionRef(created.id, title, directory=created.directory or location.directory)

    def open(self, ref: SessionRef, _: Sequence[PermissionRule]) -> Session1:
        return Session1(ref, self._http, self._feed, self._defaults, self._instances)

    # -- MCP servers and rules, for the tools of this service

    async def mcp_status(self, directory: str, server: str) -> str | None:
        answer = await self._at(c.Location(directory), "GET", "mcp")
        found = read(dict[str, _McpStatus], answer).get(server)
        return found.status if found is not None else None

    async def add_mcp(
        self, directory: str, server: str, *, url: str, headers: Mapping[str, str]
    ) -> None:
        config = {"type": "remote", "url": url, "headers": dict(headers)}
        body = {"name": server, "config": {**config, "oauth": False, "timeout": CALL_MS}}
        await self._at(c.Location(directory), "POST", "mcp", body=body)

    async def agent_rules(self, directory: str) -> Mapping[str, Sequence[PermissionRule]]:
        answer = await self._at(c.Location(directory), "GET", "agent")
        return {agent.name: agent.rules for agent in read(list[_HasRules], answer)}

    async def session_rules(self, session: str) -> Sequence[PermissionRule]:
        return read(_HasRules, await self._http.call("GET", "session", session)).rules

    async def restrict(self, session: str, rules: Sequence[PermissionRule]) -> None:
        body = {"permission": wire.rules_to_wire(rules)}
        await self._call_session(session, "PATCH", body=body)

    async def keep_rules(self, session: str, rules: Sequence[PermissionRule]) -> None:
        """OpenCode 1.x keeps them."""

    # -- sessions

    async def sessions(
        self, location: c.Location, query: c.SessionQuery
    ) -> Sequence[c.SessionInfo]:
        chosen = {
            "limit": str(query.limit),
            "scope": "project" if query.everywhere else None,
            "roots": str(query.roots).lower() if query.roots is not None else None,
            "start": str(query.start) if query.start is not None else None,
            "search": query.search,
        }
        answer = await self._at(location, "GET", "session", query=without_none(chosen))
        return items(c.SessionInfo, answer, _session)

    async def session(self, session: str) -> c.SessionInfo:
        return await self._changed(session, "GET")

    async def children(self, session: str) -> Sequence[c.SessionInfo]:
        return items(c.SessionInfo, await self._call_session(session, "GET", "children"), _session)

    async def statuses(self, location: c.Location) -> Mapping[str, c.SessionStatus]:
        answer = await self._at(location, "GET", "session", "status")
        return {
            session: c.SessionStatus(session, "retry", s.attempt, scrub(s.message), s.next)
            if s.type == "retry"
            else c.SessionStatus(session, s.type)
            for session, s in read(dict[str, wire.Status], answer).items()
        }

    async def todos(self, session: str) -> Sequence[TodoItem]:
        return read(list[TodoItem], await self._call_session(session, "GET", "todo"))

    async def diff(self, session: str, message: str) -> Sequence[FileChange]:
        query = {"messageID": await self._stored_id(session, message)}
        answer = await self._call_session(session, "GET", "diff", query=query)
        return [file_change(diff) for diff in read(list[DiffInfo], answer)]

    async def messages(self, session: str, *, limit: int, before: str | None) -> c.MessagePage:
        query = {"limit": str(limit)} | ({"before": before} if before else {})
        try:
            answer, headers = await self._http.exchange(
                "GET", "session", session, "message", query=query
            )
        except UpstreamHttpError as exc:
            if before and exc.facts.get("upstream_status") == 400:
                raise InvalidParams.at("before", "is not a cursor of this list") from exc
            raise session_error(exc, session) from exc
        found = read(list[wire.Message], answer)
        return c.MessagePage(tuple(map(_message, found)), headers.get("X-Next-Cursor"))

    async def message(self, session: str, message: str) -> Message | None:
        stored = await self._stored_id(session, message)
        try:
            answer = await self._http.call("GET", "session", session, "message", stored)
        except UpstreamHttpError as exc:
            if exc.facts.get("upstream_status") == 404:
                return None
            raise
        found = read(wire.Message, answer)
        return _message(found) if found.info.session == session else None

    async def prompt(self, session: str, prompt: c.SessionPrompt) -> str:
        if prompt.denied:
            # As rules of the session, which are added to. As `tools` of a prompt they would
            # replace the rules that are there.
            await self.restrict(session, prompt.denied)
        message = new_id("msg")
        body = {
            "messageID": message,
            "parts": wire.prompt_parts(message, prompt.parts),
            "model": wire.model(prompt.model),
            "agent": prompt.agent,
            "variant": prompt.variant,
            "system": prompt.system,
            "noReply": prompt.no_reply or None,
        }
        await self._call_session(session, "POST", "prompt_async", body=without_none(body))
        return message

    async def command(self, session: str, command: c.SessionCommand) -> Message:
        model = command.model
        body = {
            "command": command.command,
            "arguments": command.arguments,
            "agent": command.agent,
            "variant": command.variant,
            # Here, and only here, OpenCode wants it as one word.
            "model": f"{model.provider}/{model.model}" if model else None,
            "parts": [wire.prompt_part(file) for file in command.files] or None,
        }
        return await self._run_to_end(session, "command", body=without_none(body))

    async def shell(
        self, session: str, *, agent: str, command: str, model: ModelRef | None
    ) -> Message:
        body = {"agent": agent, "command": command, "model": wire.model(model)}
        return await self._run_to_end(session, "shell", body=without_none(body))

    async def summarize(self, session: str, model: ModelRef) -> None:
        body = wire.model(model)
        await self._call_session(session, "POST", "summarize", body=body, timeout=self._run_seconds)

    async def fork(self, session: str, *, before: str | None) -> c.SessionInfo:
        body = {"messageID": await self._stored_id(session, before)} if before else {}
        return await self._changed(session, "POST", "fork", body=body)

    async def share(self, session: str) -> c.SessionInfo:
        try:
            return await self._changed(session, "POST", "share")
        except UpstreamHttpError:
            # OpenCode answers 500 where its configuration forbids sharing, and nothing where its
            # environment does.
            found = await self.session(session)
            config = await self._at(c.Location(found.directory), "GET", "config")
            if isinstance(config, dict) and config.get("share") == "disabled":
                return found
            raise

    async def unshare(self, session: str) -> c.SessionInfo:
        return await self._changed(session, "DELETE", "share")

    async def revert(self, session: str, *, message: str, part: str | None) -> c.SessionInfo:
        stored = await self._stored_id(session, message)
        body = without_none({"messageID": stored, "partID": part})
        return await self._changed(session, "POST", "revert", body=body)

    async def unrevert(self, session: str) -> c.SessionInfo:
        return await self._changed(session, "POST", "unrevert")

    async def rename(self, session: str, title: str) -> c.SessionInfo:
        return await self._changed(session, "PATCH", body={"title": title})

    async def delete(self, session: str) -> None:
        await self._call_session(session, "DELETE")

    # -- models and agents

    async def model_of(self, session: str) -> ModelRef | None:
        answer = await self._http.call("GET", "session", session)
        model = answer.get("model") if isinstance(answer, dict) else None
        match model:
            case {"providerID": str(provider), "id": str(name)}:
                return ModelRef(provider, name)
            case _:
                return None

    async def default_model(self, location: c.Location) -> ModelRef | None:
        config = await self._at(location, "GET", "config")
        named = config.get("model") if isinstance(config, dict) else None
        provider, slash, model = named.partition("/") if isinstance(named, str) else ("", "", "")
        return ModelRef(provider, model) if slash and provider and model else None

    async def providers(self, location: c.Location) -> c.Providers:
        found = await self._at(location, "GET", "provider")
        with understood():
            connected, default = set(found["connected"]), found.get("default", {})
            providers = [
                {
                    **each,
                    "provider_id": each["id"],
                    "name": each.get("name") or each["id"],
                    "connected": each["id"] in connected,
                    "default_model": default.get(each["id"]),
                    "model_count": len(each["models"]),
                }
                for each in found["all"]
            ]
            models = [
                {**_model_info(model), "provider_id": p["id"], "connected": p["id"] in connected}
                for p in found["all"]
                for model in p["models"].values()
            ]
        return read(c.Providers, {"providers": providers, "models": models})

    async def agents(self, location: c.Location) -> Sequence[c.AgentInfo]:
        answer = await self._at(location, "GET", "agent")
        # OpenCode lists its default agent first, unless only sub-agents or hidden ones precede it.
        return sorted(items(c.AgentInfo, answer, _agent), key=lambda agent: not agent.is_primary)

    async def commands(self, location: c.Location) -> Sequence[c.CommandInfo]:
        answer = await self._at(location, "GET", "command")
        return items(c.CommandInfo, answer, _command)

    # -- locations

    async def projects(self) -> Sequence[c.Project]:
        return items(c.Project, await self._http.call("GET", "project"), _project)

    async def project(self, location: c.Location) -> c.Project:
        answer = await self._at(location, "GET", "project", "current")
        return item(c.Project, answer, _project)

    async def workspaces(self, location: c.Location) -> Sequence[c.Workspace]:
        return items(c.Workspace, await self._at(location, "GET", *WORKSPACE), _workspace)

    async def workspace_types(self, location: c.Location) -> Sequence[str]:
        found = await self._at(location, "GET", *WORKSPACE, "adapter")
        with understood():
            return [adapter["type"] for adapter in found]

    def new_workspace_id(self) -> str:
        return new_id("wrk")

    async def create_workspace(
        self, location: c.Location, *, workspace_id: str, type: str, branch: str | None
    ) -> c.Workspace:
        body = {"id": workspace_id, "type": type, "branch": branch}
        timeout = self._creation_seconds
        answer = await self._at(location, "POST", *WORKSPACE, body=body, timeout=timeout)
        return item(c.Workspace, answer, _workspace)

    async def remove_workspace(self, location: c.Location, workspace: str) -> c.Workspace | None:
        timeout = self._run_seconds
        answer = await self._at(location, "DELETE", *WORKSPACE, workspace, timeout=timeout)
        return item(c.Workspace, answer, _workspace) if answer is not None else None

    async def worktrees(self, location: c.Location) -> Sequence[str]:
        return read(list[str], await self._at(location, "GET", *WORKTREE))

    async def create_worktree(self, location: c.Location, name: str | None) -> c.Worktree:
        body, timeout = without_none({"name": name}), self._creation_seconds
        answer = await self._at(location, "POST", *WORKTREE, body=body, timeout=timeout)
        return read(c.Worktree, answer)

    async def remove_worktree(self, location: c.Location, directory: str) -> None:
        body, timeout = {"directory": directory}, self._run_seconds
        await self._at(location, "DELETE", *WORKTREE, body=body, timeout=timeout)

    async def reset_worktree(self, location: c.Location, directory: str) -> None:
        body, timeout = {"directory": directory}, self._run_seconds
        await self._at(location, "POST", *WORKTREE, "reset", body=body, timeout=timeout)

    # -- requests

    async def _at(
        self, location: c.Location, method: str, *segments: str, **options: Unpack[Options]
    ) -> Any:
        here = {"directory": location.directory}
        if location.workspace is not None:
            here["workspace"] = location.workspace
        options["query"] = here | dict(options.get("query") or {})
        return await self._http.call(method, *segments, **options)

    async def _changed(
        self, session: str, method: str, *more: str, **options: Unpack[Options]
    ) -> c.SessionInfo:
        """A session as it is after this request."""
        return item(
            c.SessionInfo, await self._call_session(session, method, *more, **options), _session
        )

    async def _stored_id(self, session: str, message: str) -> str:
        """The id under which a message was sent, where the order of messages needs another."""
        release = self._feed.release
        if release is None or not release.orders_messages_by_id:
            return message
        found = read(list[wire.Message], await self._call_session(session, "GET", "message"))
        return next((m.info.id for m in found if prompt_id(m.info.id) == message), message)

    async def _call_session(
        self, session: str, method: str, *more: str, **options: Unpack[Options]
    ) -> Any:
        try:
            return await self._http.call(method, "session", session, *more, **options)
        except UpstreamHttpError as exc:
            raise session_error(exc, session) from exc

    async def _run_to_end(self, session: str, verb: str, body: Any) -> Message:
        answer = await self._call_session(
            session, "POST", verb, body=body, timeout=self._run_seconds
        )
        return _message(read(wire.Message, answer))


def _session(raw: Body) -> Body:
    return origin(raw.get("metadata")) | {
        "created_at": raw["time"]["created"],
        "updated_at": raw["time"]["updated"],
        "parent_id": raw.get("parentID"),
        "share_url": (raw.get("share") or {}).get("url"),
        "reverted_to": (raw.get("revert") or {}).get("messageID"),
    }


def _agent(raw: Body) -> Body:
    model = raw.get("model")
    return {
        "description": raw.get("description") or "",
        "mode": raw.get("mode") or "primary",
        "model": ModelRef(model["providerID"], model["modelID"]) if model else None,
        "variant": raw.get("variant"),
        "native": bool(raw.get("native")),
        "hidden": bool(raw.get("hidden")),
    }


def _command(raw: Body) -> Body:
    # OpenCode asks for the text of an MCP server's prompt anew in every call.
    hidden = raw.get("source") == "mcp" or not isinstance(raw["template"], str)
    return {
        "description": raw.get("description") or "",
        "source": raw.get("source") or "command",
        "template": None if hidden else raw["template"],
        "agent": raw.get("agent"),
        "model": raw.get("model"),
        "subtask": bool(raw.get("subtask")),
    }


def _project(raw: Body) -> Body:
    return {"project_id": raw["id"]}


def _workspace(raw: Body) -> Body:
    return {
        "workspace_id": raw["id"],
        "name": raw.get("name") or "",
        "branch": raw.get("branch"),
        "directory": raw.get("directory"),
        "project_id": raw.get("projectID", ""),
    }


def _model_info(raw: Body) -> Body:
    can = raw.get("capabilities", {})
    return {
        "model_id": raw["id"],
        "name": raw.get("name") or raw["id"],
        "status": raw.get("status", "active"),
        "reasoning": can.get("reasoning", False),
        "attachments": can.get("attachment", False),
        "tool_calls": can.get("toolcall", False),
        "input": [kind for kind, there in can.get("input", {}).items() if there],
        "output": [kind for kind, there in can.get("output", {}).items() if there],
        "context_tokens": int(raw.get("limit", {}).get("context", 0)),
        "output_tokens": int(raw.get("limit", {}).get("output", 0)),
        "variants": list(raw.get("variants") or ()),
    }


def _message(stored: wire.Message) -> Message:
    info = stored.info
    about: dict[str, Any] = {"created_at": info.created, "agent": info.agent}
    if info.model is not None:
        about["model"] = f"{info.model.provider}/{info.model.model}"
    elif info.provider_id and info.model_id:
        about["model"] = f"{info.provider_id}/{info.model_id}"
    if info.error is not None:
        problem = wire.problem(info.error)
        about["error"] = {"type": problem.type.value, "message": problem.message}
    parts = [shown for part in stored.parts for shown in _message_parts(part)]
    return Message(
        message_id=info.id,
        role=Role.USER if info.role == "user" else Role.AGENT,
        parts=tuple(parts),
        metadata={"shared": {"session": {"id": info.session}}, "opencode": without_none(about)},
    )


def _message_parts(part: wire.PartInfo) -> list[Part]:
    """A stored part as A2A has it, without what OpenCode added for itself."""
    if part.type == "agent":
        return [Data({"agent": part.name})]
    if part.type == "subtask":
        return [Data({name: getattr(part, name) for name in ("agent", "description", "prompt")})]
    events = wire.part_events(part)
    return [shown for event in events if (shown := block_part(event)) is not None]
