"""OpenCode's sessions, models and locations: implements the port `Catalog`.

Only the fields named here leave this module: OpenCode's own answers hold provider keys in clear.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Unpack

from pydantic import Field

from ...domain import catalog as c
from ...domain.values import (
    Attachment,
    Data,
    FileChange,
    Message,
    ModelRef,
    Part,
    PermissionRule,
    Role,
    TodoItem,
)
from ...errors import InvalidParams, UpstreamHttpError
from ..answers import Body, DiffInfo, Wire, file_change, item, items, read, scrub, understood
from ..catalogs import CREATION_SECONDS, block_part, origin, session_error, without_none
from ..http import Options, Requests
from ..ids import new_id, part_id
from . import wire


class _ModelName(Wire):
    provider: str = Field(alias="providerID")
    model: str = Field(alias="modelID")


class _MessageInfo(wire.MessageInfo):
    model: _ModelName | None = None  # of a user's message; the agent's has both at its top


class _PartInfo(wire.PartInfo):
    name: str = ""
    prompt: str = ""
    description: str = ""
    agent: str = ""


class _Message(Wire):
    info: _MessageInfo
    parts: list[_PartInfo] = Field(default=[])


class OpenCodeCatalog:
    def __init__(self, http: Requests, run_timeout: float) -> None:
        """`run_timeout` bounds requests that OpenCode answers only when a run is over."""
        self._http = http
        self._run_timeout = run_timeout
        self._creation_timeout = min(run_timeout, CREATION_SECONDS)

    # -- sessions

    async def sessions(
        self, location: c.Location, query: c.SessionQuery
    ) -> Sequence[c.SessionInfo]:
        parameters = _location_query(location) | {"limit": str(query.limit)}
        if query.everywhere:
            parameters["scope"] = "project"
        if query.roots is not None:
            parameters["roots"] = "true" if query.roots else "false"
        if query.start is not None:
            parameters["start"] = str(query.start)
        if query.search is not None:
            parameters["search"] = query.search
        return items(
            c.SessionInfo, await self._http.call("GET", "session", query=parameters), _session
        )

    async def session(self, session: str) -> c.SessionInfo:
        return _info(await self._call_session(session, "GET"))

    async def children(self, session: str) -> Sequence[c.SessionInfo]:
        return items(c.SessionInfo, await self._call_session(session, "GET", "children"), _session)

    async def statuses(self, location: c.Location) -> Mapping[str, c.SessionStatus]:
        answer = await self._http.call("GET", "session", "status", query=_location_query(location))
        return {
            session: c.SessionStatus(
                session,
                status.type,
                *((status.attempt, scrub(status.message), status.next))
                if status.type == "retry"
                else (),
            )
            for session, status in read(dict[str, wire.Status], answer).items()
        }

    async def todos(self, session: str) -> Sequence[TodoItem]:
        return read(list[TodoItem], await self._call_session(session, "GET", "todo"))

    async def diff(self, session: str, message: str) -> Sequence[FileChange]:
        answer = await self._call_session(session, "GET", "diff", query={"messageID": message})
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
        found = read(list[_Message], answer)
        return c.MessagePage(tuple(map(_message, found)), headers.get("X-Next-Cursor"))

    async def message(self, session: str, message: str) -> Message | None:
        try:
            answer = await self._http.call("GET", "session", session, "message", message)
        except UpstreamHttpError as exc:
            if exc.facts.get("upstream_status") == 404:
                return None
            raise
        found = read(_Message, answer)
        return _message(found) if found.info.session == session else None

    async def prompt(self, session: str, prompt: c.SessionPrompt) -> str:
        if prompt.denied:
            # As rules of the session, which are added to. As `tools` of a prompt they would
            # replace the rules that are there.
            await self.restrict(session, prompt.denied)
        message = new_id("msg")
        parts = [{"id": part_id(message, i), **_part(part)} for i, part in enumerate(prompt.parts)]
        body: dict[str, Any] = {"messageID": message, "parts": parts}
        body |= {"model": _model(prompt.model), "agent": prompt.agent, "variant": prompt.variant}
        body |= {"system": prompt.system, "noReply": prompt.no_reply or None}
        await self._call_session(session, "POST", "prompt_async", body=without_none(body))
        return message

    async def command(self, session: str, command: c.SessionCommand) -> Message:
        body = {"command": command.command, "arguments": command.arguments}
        more = {"agent": command.agent, "variant": command.variant}
        if command.model is not None:  # here, and only here, OpenCode wants it as one word
            more["model"] = f"{command.model.provider}/{command.model.model}"
        files = {"parts": [_part(file) for file in command.files]} if command.files else {}
        return await self._run_to_end(session, "command", body=body | without_none(more) | files)

    async def shell(
        self, session: str, *, agent: str, command: str, model: ModelRef | None
    ) -> Message:
        body = {"agent": agent, "command": command, "model": _model(model)}
        return await self._run_to_end(session, "shell", body=without_none(body))

    async def summarize(self, session: str, model: ModelRef) -> None:
        body = _model(model)
        await self._call_session(session, "POST", "summarize", body=body, timeout=self._run_timeout)

    async def fork(self, session: str, *, before: str | None) -> c.SessionInfo:
        body = {"messageID": before} if before else {}
        return _info(await self._call_session(session, "POST", "fork", body=body))

    async def share(self, session: str) -> c.SessionInfo:
        try:
            return _info(await self._call_session(session, "POST", "share"))
        except UpstreamHttpError:
            # OpenCode answers 500 where its configuration forbids sharing, and nothing where its
            # environment does.
            found = await self.session(session)
            config = await self._http.call("GET", "config", query={"directory": found.directory})
            if isinstance(config, dict) and config.get("share") == "disabled":
                return found
            raise

    async def unshare(self, session: str) -> c.SessionInfo:
        return _info(await self._call_session(session, "DELETE", "share"))

    async def revert(self, session: str, *, message: str, part: str | None) -> c.SessionInfo:
        body = without_none({"messageID": message, "partID": part})
        return _info(await self._call_session(session, "POST", "revert", body=body))

    async def unrevert(self, session: str) -> c.SessionInfo:
        return _info(await self._call_session(session, "POST", "unrevert"))

    async def rename(self, session: str, title: str) -> c.SessionInfo:
        return _info(await self._call_session(session, "PATCH", body={"title": title}))

    async def delete(self, session: str) -> None:
        await self._call_session(session, "DELETE")

    # -- models and agents

    async def restrict(self, session: str, rules: Sequence[PermissionRule]) -> None:
        await self._call_session(
            session, "PATCH", body={"permission": [wire.rule_to_wire(rule) for rule in rules]}
        )

    async def keep_rules(self, session: str, rules: Sequence[PermissionRule]) -> None:
        """OpenCode 1.x keeps them."""

    async def model_of(self, session: str) -> ModelRef | None:
        answer = await self._http.call("GET", "session", session)
        model = answer.get("model") if isinstance(answer, dict) else None
        match model:
            case {"providerID": str(provider), "id": str(name)}:
                return ModelRef(provider, name)
            case _:
                return None

    async def default_model(self, location: c.Location) -> ModelRef | None:
        config = await self._http.call("GET", "config", query=_location_query(location))
        named = config.get("model") if isinstance(config, dict) else None
        provider, slash, model = named.partition("/") if isinstance(named, str) else ("", "", "")
        return ModelRef(provider, model) if slash and provider and model else None

    async def providers(self, location: c.Location) -> c.Providers:
        found = await self._http.call("GET", "provider", query=_location_query(location))
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
        answer = await self._http.call("GET", "agent", query=_location_query(location))
        # OpenCode lists its default agent first, unless only sub-agents or hidden ones precede it.
        return sorted(items(c.AgentInfo, answer, _agent), key=lambda agent: not agent.is_primary)

    async def commands(self, location: c.Location) -> Sequence[c.CommandInfo]:
        answer = await self._http.call("GET", "command", query=_location_query(location))
        return items(c.CommandInfo, answer, _command)

    # -- locations

    async def projects(self) -> Sequence[c.Project]:
        return items(c.Project, await self._http.call("GET", "project"), _project)

    async def project(self, location: c.Location) -> c.Project:
        answer = await self._http.call("GET", "project", "current", query=_location_query(location))
        return item(c.Project, answer, _project)

    async def workspaces(self, location: c.Location) -> Sequence[c.Workspace]:
        where = ("experimental", "workspace")
        answer = await self._http.call("GET", *where, query=_location_query(location))
        return items(c.Workspace, answer, _workspace)

    async def workspace_types(self, location: c.Location) -> Sequence[str]:
        where = ("experimental", "workspace", "adapter")
        found = await self._http.call("GET", *where, query=_location_query(location))
        with understood():
            return [adapter["type"] for adapter in found]

    def new_workspace_id(self) -> str:
        return new_id("wrk")

    async def create_workspace(
        self, location: c.Location, *, workspace_id: str, type: str, branch: str | None
    ) -> c.Workspace:
        where = ("experimental", "workspace")
        body = {"id": workspace_id, "type": type, "branch": branch}
        answer = await self._http.call(
            "POST",
            *where,
            query=_location_query(location),
            body=body,
            timeout=self._creation_timeout,
        )
        return item(c.Workspace, answer, _workspace)

    async def remove_workspace(self, location: c.Location, workspace: str) -> c.Workspace | None:
        where = ("experimental", "workspace", workspace)
        answer = await self._http.call(
            "DELETE", *where, query=_location_query(location), timeout=self._run_timeout
        )
        return item(c.Workspace, answer, _workspace) if answer is not None else None

    async def worktrees(self, location: c.Location) -> Sequence[str]:
        answer = await self._http.call(
            "GET", "experimental", "worktree", query=_location_query(location)
        )
        return read(list[str], answer)

    async def create_worktree(self, location: c.Location, name: str | None) -> c.Worktree:
        where = ("experimental", "worktree")
        body = without_none({"name": name})
        answer = await self._http.call(
            "POST",
            *where,
            query=_location_query(location),
            body=body,
            timeout=self._creation_timeout,
        )
        return read(c.Worktree, answer)

    async def remove_worktree(self, location: c.Location, directory: str) -> None:
        await self._worktree("DELETE", location, body={"directory": directory})

    async def reset_worktree(self, location: c.Location, directory: str) -> None:
        await self._worktree("POST", location, "reset", body={"directory": directory})

    # -- requests

    async def _worktree(self, method: str, location: c.Location, *more: str, body: Any) -> Any:
        where = ("experimental", "worktree", *more)
        return await self._http.call(
            method, *where, query=_location_query(location), body=body, timeout=self._run_timeout
        )

    async def _call_session(
        self, session: str, method: str, *more: str, **options: Unpack[Options]
    ) -> Any:
        try:
            return await self._http.call(method, "session", session, *more, **options)
        except UpstreamHttpError as exc:
            raise session_error(exc, session) from exc

    async def _run_to_end(self, session: str, verb: str, body: Any) -> Message:
        answer = await self._call_session(
            session, "POST", verb, body=body, timeout=self._run_timeout
        )
        return _message(read(_Message, answer))


def _location_query(location: c.Location) -> dict[str, str]:
    if location.workspace is not None:
        return {"workspace": location.workspace, "directory": location.directory}
    return {"directory": location.directory}


def _info(answer: Any) -> c.SessionInfo:
    return item(c.SessionInfo, answer, _session)


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


def _model(model: ModelRef | None) -> dict[str, str] | None:
    return {"providerID": model.provider, "modelID": model.model} if model else None


def _part(part: c.PromptPart) -> dict[str, Any]:
    match part:
        case c.Mention(agent=agent):
            return {"type": "agent", "name": agent}
        case c.Subtask():
            return {"type": "subtask"} | without_none(asdict(part) | {"model": _model(part.model)})
        case str() | Attachment():
            return wire.prompt_part(part)


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


def _message(stored: _Message) -> Message:
    info = stored.info
    about: dict[str, Any] = {"created_at": info.time.created, "agent": info.agent}
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


def _message_parts(part: _PartInfo) -> list[Part]:
    """A stored part as A2A has it, without what OpenCode added for itself."""
    if part.type == "agent":
        return [Data({"agent": part.name})]
    if part.type == "subtask":
        return [Data({name: getattr(part, name) for name in ("agent", "description", "prompt")})]
    events = wire.part_events(part)
    return [shown for event in events if (shown := block_part(event)) is not None]
