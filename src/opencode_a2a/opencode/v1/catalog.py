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
from ..answers import DiffInfo, Wire, file_change, read, scrub
from ..catalogs import CREATION_SECONDS, block_part, session_error, without_none
from ..http import Options, Requests
from ..ids import new_id, part_id
from . import wire


class _Share(Wire):
    url: str


class _Revert(Wire):
    message: str = Field(alias="messageID")


class _Times(Wire):
    created: int = 0
    updated: int = 0


class _Session(Wire):
    id: str
    title: str = ""
    directory: str = ""
    parent: str | None = Field(default=None, alias="parentID")
    share: _Share | None = None
    revert: _Revert | None = None
    metadata: dict[str, Any] | None = None
    time: _Times = Field(default_factory=_Times)

    def info(self) -> c.SessionInfo:
        noted = (self.metadata or {}).get("a2a")
        ours = noted if isinstance(noted, dict) else {}
        context, root = ours.get("contextId"), ours.get("root")
        return c.SessionInfo(
            id=self.id,
            title=self.title,
            directory=self.directory,
            created_at=self.time.created,
            updated_at=self.time.updated,
            parent_id=self.parent,
            context_id=context if isinstance(context, str) else None,
            share_url=self.share.url if self.share else None,
            reverted_to=self.revert.message if self.revert else None,
            workspace_root=root if isinstance(root, str) else None,
        )


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


class _Modes(Wire):
    text: bool = False
    audio: bool = False
    image: bool = False
    video: bool = False
    pdf: bool = False

    def names(self) -> tuple[str, ...]:
        return tuple(name for name, there in self if there)


class _Model(Wire):
    class Capabilities(Wire):
        reasoning: bool = False
        attachment: bool = False
        toolcall: bool = False
        input: _Modes = Field(default_factory=_Modes)
        output: _Modes = Field(default_factory=_Modes)

    class Limit(Wire):
        context: float = 0
        output: float = 0

    id: str
    name: str = ""
    status: str = "active"
    capabilities: Capabilities = Field(default_factory=Capabilities)
    limit: Limit = Field(default_factory=Limit)
    variants: dict[str, Any] | None = None


class _Provider(Wire):
    id: str
    name: str = ""
    source: str = ""
    models: dict[str, _Model] = Field(default={})


class _Providers(Wire):
    all: list[_Provider]
    default: dict[str, str] = Field(default={})
    connected: list[str] = Field(default=[])


class _Agent(Wire):
    name: str
    description: str | None = None
    model: _ModelName | None = None
    variant: str | None = None
    mode: str = "primary"
    native: bool | None = None
    hidden: bool | None = None

    def info(self) -> c.AgentInfo:
        return c.AgentInfo(
            name=self.name,
            description=self.description or "",
            mode=self.mode,
            model=ModelRef(self.model.provider, self.model.model) if self.model else None,
            variant=self.variant,
            native=bool(self.native),
            hidden=bool(self.hidden),
        )


class _Command(Wire):
    name: str
    description: str | None = None
    source: str = ""
    template: Any
    agent: str | None = None
    model: str | None = None
    subtask: bool | None = None

    def info(self) -> c.CommandInfo:
        # OpenCode asks for the text of an MCP server's prompt anew in every call.
        hidden = self.source == "mcp" or not isinstance(self.template, str)
        return c.CommandInfo(
            name=self.name,
            description=self.description or "",
            source=self.source or "command",
            template=None if hidden else self.template,
            agent=self.agent,
            model=self.model,
            subtask=bool(self.subtask),
        )


class _Type(Wire):
    type: str


class _Project(Wire):
    id: str
    worktree: str
    vcs: str | None = None
    name: str | None = None

    def project(self) -> c.Project:
        return c.Project(project_id=self.id, worktree=self.worktree, vcs=self.vcs, name=self.name)


class _Workspace(Wire):
    id: str
    type: str
    name: str = ""
    branch: str | None = None
    directory: str | None = None
    project: str = Field(default="", alias="projectID")

    def workspace(self) -> c.Workspace:
        return c.Workspace(
            workspace_id=self.id,
            type=self.type,
            name=self.name,
            branch=self.branch,
            directory=self.directory,
            project_id=self.project,
        )


class _Worktree(Wire):
    name: str
    directory: str
    branch: str | None = None


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
        found = read(list[_Session], await self._http.call("GET", "session", query=parameters))
        return [session.info() for session in found]

    async def session(self, session: str) -> c.SessionInfo:
        return _info(await self._call_session(session, "GET"))

    async def children(self, session: str) -> Sequence[c.SessionInfo]:
        found = read(list[_Session], await self._call_session(session, "GET", "children"))
        return [child.info() for child in found]

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
        if prompt.forbidden_tools:
            # As rules of the session, which are added to. As `tools` of a prompt they would
            # replace the rules that are there.
            denied = [PermissionRule(tool, "*", action="deny") for tool in prompt.forbidden_tools]
            await self.restrict(session, denied)
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
        found = read(
            _Providers, await self._http.call("GET", "provider", query=_location_query(location))
        )
        connected = set(found.connected)
        return c.Providers(
            tuple(
                c.Provider(
                    provider_id=p.id,
                    name=p.name or p.id,
                    source=p.source,
                    connected=p.id in connected,
                    default_model=found.default.get(p.id),
                    model_count=len(p.models),
                )
                for p in found.all
            ),
            tuple(
                _model_info(p.id, model, connected=p.id in connected)
                for p in found.all
                for model in p.models.values()
            ),
        )

    async def agents(self, location: c.Location) -> Sequence[c.AgentInfo]:
        found = read(
            list[_Agent], await self._http.call("GET", "agent", query=_location_query(location))
        )
        # OpenCode lists its default agent first, unless only sub-agents or hidden ones precede it.
        found.sort(key=lambda agent: bool(agent.hidden) or agent.mode == "subagent")
        return [agent.info() for agent in found]

    async def commands(self, location: c.Location) -> Sequence[c.CommandInfo]:
        found = read(
            list[_Command], await self._http.call("GET", "command", query=_location_query(location))
        )
        return [command.info() for command in found]

    # -- locations

    async def projects(self) -> Sequence[c.Project]:
        found = read(list[_Project], await self._http.call("GET", "project"))
        return [project.project() for project in found]

    async def project(self, location: c.Location) -> c.Project:
        answer = await self._http.call("GET", "project", "current", query=_location_query(location))
        return read(_Project, answer).project()

    async def workspaces(self, location: c.Location) -> Sequence[c.Workspace]:
        answer = await self._http.call(
            "GET", "experimental", "workspace", query=_location_query(location)
        )
        return [workspace.workspace() for workspace in read(list[_Workspace], answer)]

    async def workspace_types(self, location: c.Location) -> Sequence[str]:
        where = ("experimental", "workspace", "adapter")
        found = read(
            list[_Type], await self._http.call("GET", *where, query=_location_query(location))
        )
        return [adapter.type for adapter in found]

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
        return read(_Workspace, answer).workspace()

    async def remove_workspace(self, location: c.Location, workspace: str) -> c.Workspace | None:
        where = ("experimental", "workspace", workspace)
        answer = await self._http.call(
            "DELETE", *where, query=_location_query(location), timeout=self._run_timeout
        )
        return read(_Workspace, answer).workspace() if answer is not None else None

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
        made = read(_Worktree, answer)
        return c.Worktree(made.directory, made.name, branch=made.branch)

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
    return read(_Session, answer).info()


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


def _model_info(provider: str, model: _Model, connected: bool) -> c.Model:
    capabilities = model.capabilities
    return c.Model(
        provider_id=provider,
        model_id=model.id,
        name=model.name or model.id,
        status=model.status,
        reasoning=capabilities.reasoning,
        attachments=capabilities.attachment,
        tool_calls=capabilities.toolcall,
        input=capabilities.input.names(),
        output=capabilities.output.names(),
        context_tokens=int(model.limit.context),
        output_tokens=int(model.limit.output),
        variants=tuple(model.variants or ()),
        connected=connected,
    )


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
