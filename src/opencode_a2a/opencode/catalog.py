"""OpenCode's sessions, models and places: implements the port `Catalog`.

Only what is named here leaves: OpenCode's own answers hold provider keys in clear.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pydantic import Field

from ..domain import catalog as c
from ..domain import events as ev
from ..domain.values import (
    Attachment,
    Data,
    FileChange,
    Message,
    ModelRef,
    Part,
    PermissionRule,
    Role,
    Text,
)
from ..errors import InvalidParams, SessionNotFound, UpstreamBusy, UpstreamHttpError
from . import wire
from .http import Http
from .ids import new_id, part_id

CREATION = 60.0  # seconds for a worktree or workspace; OpenCode itself gives up after a few


class _Share(wire.Wire):
    url: str


class _Revert(wire.Wire):
    message: str = Field(alias="messageID")


class _Times(wire.Wire):
    created: int = 0
    updated: int = 0


class _Session(wire.Wire):
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
            self.id,
            self.title,
            self.directory,
            self.time.created,
            self.time.updated,
            self.parent,
            context if isinstance(context, str) else None,
            self.share.url if self.share else None,
            self.revert.message if self.revert else None,
            root if isinstance(root, str) else None,
        )


class _ModelName(wire.Wire):
    provider: str = Field(alias="providerID")
    model: str = Field(alias="modelID")


class _MessageInfo(wire.MessageInfo):
    agent: str | None = None
    model: _ModelName | None = None  # of a user's message; the agent's has both at its top
    provider_id: str | None = Field(default=None, alias="providerID")
    model_id: str | None = Field(default=None, alias="modelID")


class _PartInfo(wire.PartInfo):
    name: str = ""
    prompt: str = ""
    description: str = ""
    agent: str = ""


class _Message(wire.Wire):
    info: _MessageInfo
    parts: list[_PartInfo] = Field(default=[])


class _Modes(wire.Wire):
    text: bool = False
    audio: bool = False
    image: bool = False
    video: bool = False
    pdf: bool = False

    def names(self) -> tuple[str, ...]:
        return tuple(name for name, there in self if there)


class _Model(wire.Wire):
    class Capabilities(wire.Wire):
        reasoning: bool = False
        attachment: bool = False
        toolcall: bool = False
        input: _Modes = Field(default_factory=_Modes)
        output: _Modes = Field(default_factory=_Modes)

    class Limit(wire.Wire):
        context: float = 0
        output: float = 0

    id: str
    name: str = ""
    status: str = "active"
    capabilities: Capabilities = Field(default_factory=Capabilities)
    limit: Limit = Field(default_factory=Limit)
    variants: dict[str, Any] | None = None


class _Provider(wire.Wire):
    id: str
    name: str = ""
    source: str = ""
    models: dict[str, _Model] = Field(default={})


class _Providers(wire.Wire):
    all: list[_Provider]
    default: dict[str, str] = Field(default={})
    connected: list[str] = Field(default=[])


class _Agent(wire.Wire):
    name: str
    model: _ModelName | None = None
    mode: str = "primary"
    hidden: bool | None = None


class _Command(wire.Wire):
    name: str
    source: str = ""
    template: Any

    @property
    def shown(self) -> str | None:
        """None for a prompt of an MCP server: OpenCode asks for its text anew in every call."""
        hidden = self.source == "mcp" or not isinstance(self.template, str)
        return None if hidden else self.template


class _Type(wire.Wire):
    type: str


class _Project(wire.Wire):
    id: str
    worktree: str
    vcs: str | None = None
    name: str | None = None

    def project(self) -> c.Project:
        return c.Project(self.id, self.worktree, self.vcs, self.name)


class _Workspace(wire.Wire):
    id: str
    type: str
    name: str = ""
    branch: str | None = None
    directory: str | None = None
    project: str = Field(default="", alias="projectID")

    def workspace(self) -> c.Workspace:
        return c.Workspace(self.id, self.type, self.name, self.branch, self.directory, self.project)


class _Worktree(wire.Wire):
    name: str
    directory: str
    branch: str | None = None


class OpenCodeCatalog:
    def __init__(self, http: Http, patience: float) -> None:
        """`patience` bounds what answers only when a run is over."""
        self._http = http
        self._patience = patience
        self._creation = min(patience, CREATION)

    # -- sessions

    async def sessions(self, place: c.Place, query: c.SessionQuery) -> Sequence[c.SessionInfo]:
        asked = _at(place) | {"limit": str(query.limit)}
        if query.everywhere:
            asked["scope"] = "project"
        if query.roots is not None:
            asked["roots"] = "true" if query.roots else "false"
        if query.start is not None:
            asked["start"] = str(query.start)
        if query.search is not None:
            asked["search"] = query.search
        found = wire.read(list[_Session], await self._http.call("GET", "session", query=asked))
        return [session.info() for session in found]

    async def session(self, session: str) -> c.SessionInfo:
        return _info(await self._of(session, "GET"))

    async def children(self, session: str) -> Sequence[c.SessionInfo]:
        found = wire.read(list[_Session], await self._of(session, "GET", "children"))
        return [child.info() for child in found]

    async def statuses(self, place: c.Place) -> Mapping[str, c.SessionStatus]:
        answer = await self._http.call("GET", "session", "status", query=_at(place))
        return {
            session: c.SessionStatus(
                session,
                status.type,
                *((status.attempt, wire.scrub(status.message), status.next))
                if status.type == "retry"
                else (),
            )
            for session, status in wire.read(dict[str, wire.Status], answer).items()
        }

    async def todos(self, session: str) -> Sequence[c.TodoItem]:
        found = wire.read(list[wire.TodoInfo], await self._of(session, "GET", "todo"))
        return [c.TodoItem(todo.content, todo.status, todo.priority) for todo in found]

    async def diff(self, session: str, message: str) -> Sequence[FileChange]:
        answer = await self._of(session, "GET", "diff", query={"messageID": message})
        return [wire.file_change(diff) for diff in wire.read(list[wire.DiffInfo], answer)]

    async def messages(self, session: str, limit: int, before: str | None) -> c.MessagePage:
        query = {"limit": str(limit)} | ({"before": before} if before else {})
        try:
            answer, headers = await self._http.exchange(
                "GET", "session", session, "message", query=query
            )
        except UpstreamHttpError as exc:
            if before and exc.facts.get("upstream_status") == 400:
                raise InvalidParams.at("before", "is not a cursor of this list") from exc
            raise _refused(exc, session) from exc
        found = wire.read(list[_Message], answer)
        return c.MessagePage(tuple(map(_message, found)), headers.get("X-Next-Cursor"))

    async def message(self, session: str, message: str) -> Message | None:
        try:
            answer = await self._http.call("GET", "session", session, "message", message)
        except UpstreamHttpError as exc:
            if exc.facts.get("upstream_status") == 404:
                return None
            raise
        found = wire.read(_Message, answer)
        return _message(found) if found.info.session == session else None

    async def prompt(self, session: str, prompt: c.SessionPrompt) -> str:
        if prompt.forbidden_tools:
            # As rules of the session, which are added to. As `tools` of a prompt they would
            # replace the rules that are there.
            denied = [PermissionRule(tool, "*", "deny") for tool in prompt.forbidden_tools]
            await self.restrict(session, denied)
        message = new_id("msg")
        parts = [{"id": part_id(message, i), **_part(part)} for i, part in enumerate(prompt.parts)]
        body: dict[str, Any] = {"messageID": message, "parts": parts}
        body |= {"model": _model(prompt.model), "agent": prompt.agent, "variant": prompt.variant}
        body |= {"system": prompt.system, "noReply": prompt.no_reply or None}
        await self._of(session, "POST", "prompt_async", body=_given(body))
        return message

    async def command(self, session: str, command: c.SessionCommand) -> Message:
        body = {"command": command.command, "arguments": command.arguments}
        more = {"agent": command.agent, "variant": command.variant}
        if command.model is not None:  # here, and only here, OpenCode wants it as one word
            more["model"] = f"{command.model.provider}/{command.model.model}"
        files = {"parts": [_part(file) for file in command.files]} if command.files else {}
        return await self._run(session, "command", body | _given(more) | files)

    async def shell(
        self, session: str, agent: str, command: str, model: ModelRef | None
    ) -> Message:
        body = {"agent": agent, "command": command, "model": _model(model)}
        return await self._run(session, "shell", _given(body))

    async def summarize(self, session: str, model: ModelRef) -> None:
        body = _model(model)
        await self._of(session, "POST", "summarize", body=body, timeout=self._patience)

    async def fork(self, session: str, before: str | None) -> c.SessionInfo:
        body = {"messageID": before} if before else {}
        return _info(await self._of(session, "POST", "fork", body=body))

    async def share(self, session: str) -> c.SessionInfo:
        try:
            return _info(await self._of(session, "POST", "share"))
        except UpstreamHttpError:
            # Switched off in the configuration it answers 500, in the environment nothing at all.
            found = await self.session(session)
            config = await self._http.call("GET", "config", query={"directory": found.directory})
            if isinstance(config, dict) and config.get("share") == "disabled":
                return found
            raise

    async def unshare(self, session: str) -> c.SessionInfo:
        return _info(await self._of(session, "DELETE", "share"))

    async def revert(self, session: str, message: str, part: str | None) -> c.SessionInfo:
        body = _given({"messageID": message, "partID": part})
        return _info(await self._of(session, "POST", "revert", body=body))

    async def unrevert(self, session: str) -> c.SessionInfo:
        return _info(await self._of(session, "POST", "unrevert"))

    # -- models and agents

    async def restrict(self, session: str, rules: Sequence[PermissionRule]) -> None:
        await self._of(session, "PATCH", body={"permission": [asdict(rule) for rule in rules]})

    async def model_of(self, session: str) -> ModelRef | None:
        answer = await self._http.call("GET", "session", session)
        model = answer.get("model") if isinstance(answer, dict) else None
        match model:
            case {"providerID": str(provider), "id": str(name)}:
                return ModelRef(provider, name)
            case _:
                return None

    async def default_model(self, place: c.Place) -> ModelRef | None:
        config = await self._http.call("GET", "config", query=_at(place))
        named = config.get("model") if isinstance(config, dict) else None
        provider, slash, model = named.partition("/") if isinstance(named, str) else ("", "", "")
        return ModelRef(provider, model) if slash and provider and model else None

    async def providers(self, place: c.Place) -> c.Providers:
        found = wire.read(_Providers, await self._http.call("GET", "provider", query=_at(place)))
        connected = set(found.connected)
        return c.Providers(
            tuple(
                c.Provider(
                    p.id,
                    p.name or p.id,
                    p.source,
                    p.id in connected,
                    found.default.get(p.id),
                    len(p.models),
                )
                for p in found.all
            ),
            tuple(
                _model_info(p.id, model, p.id in connected)
                for p in found.all
                for model in p.models.values()
            ),
        )

    async def agents(self, place: c.Place) -> Mapping[str, ModelRef | None]:
        found = wire.read(list[_Agent], await self._http.call("GET", "agent", query=_at(place)))
        # OpenCode lists its default agent first, unless only sub-agents or hidden ones precede it.
        found.sort(key=lambda agent: bool(agent.hidden) or agent.mode == "subagent")
        return {
            agent.name: ModelRef(agent.model.provider, agent.model.model) if agent.model else None
            for agent in found
        }

    async def commands(self, place: c.Place) -> Mapping[str, str | None]:
        found = wire.read(list[_Command], await self._http.call("GET", "command", query=_at(place)))
        return {command.name: command.shown for command in found}

    # -- places

    async def projects(self) -> Sequence[c.Project]:
        found = wire.read(list[_Project], await self._http.call("GET", "project"))
        return [project.project() for project in found]

    async def project(self, place: c.Place) -> c.Project:
        answer = await self._http.call("GET", "project", "current", query=_at(place))
        return wire.read(_Project, answer).project()

    async def workspaces(self, place: c.Place) -> Sequence[c.Workspace]:
        answer = await self._http.call("GET", "experimental", "workspace", query=_at(place))
        return [workspace.workspace() for workspace in wire.read(list[_Workspace], answer)]

    async def workspace_types(self, place: c.Place) -> Sequence[str]:
        where = ("experimental", "workspace", "adapter")
        found = wire.read(list[_Type], await self._http.call("GET", *where, query=_at(place)))
        return [adapter.type for adapter in found]

    def new_workspace_id(self) -> str:
        return new_id("wrk")

    async def create_workspace(
        self, place: c.Place, workspace: str, type: str, branch: str | None
    ) -> c.Workspace:
        where = ("experimental", "workspace")
        body = {"id": workspace, "type": type, "branch": branch}
        answer = await self._http.call(
            "POST", *where, query=_at(place), body=body, timeout=self._creation
        )
        return wire.read(_Workspace, answer).workspace()

    async def remove_workspace(self, place: c.Place, workspace: str) -> c.Workspace | None:
        where = ("experimental", "workspace", workspace)
        answer = await self._http.call("DELETE", *where, query=_at(place), timeout=self._patience)
        return wire.read(_Workspace, answer).workspace() if answer is not None else None

    async def worktrees(self, place: c.Place) -> Sequence[str]:
        answer = await self._http.call("GET", "experimental", "worktree", query=_at(place))
        return wire.read(list[str], answer)

    async def create_worktree(self, place: c.Place, name: str | None) -> c.Worktree:
        where = ("experimental", "worktree")
        body = _given({"name": name})
        answer = await self._http.call(
            "POST", *where, query=_at(place), body=body, timeout=self._creation
        )
        made = wire.read(_Worktree, answer)
        return c.Worktree(made.directory, made.name, made.branch)

    async def remove_worktree(self, place: c.Place, directory: str) -> None:
        await self._worktree("DELETE", place, body={"directory": directory})

    async def reset_worktree(self, place: c.Place, directory: str) -> None:
        await self._worktree("POST", place, "reset", body={"directory": directory})

    # -- pieces

    async def _worktree(self, method: str, place: c.Place, *more: str, body: Any) -> Any:
        where = ("experimental", "worktree", *more)
        return await self._http.call(
            method, *where, query=_at(place), body=body, timeout=self._patience
        )

    async def _of(
        self,
        session: str,
        method: str,
        *more: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        timeout: float | None = None,
    ) -> Any:
        try:
            return await self._http.call(
                method, "session", session, *more, query=query, body=body, timeout=timeout
            )
        except UpstreamHttpError as exc:
            raise _refused(exc, session) from exc

    async def _run(self, session: str, verb: str, body: Any) -> Message:
        answer = await self._of(session, "POST", verb, body=body, timeout=self._patience)
        return _message(wire.read(_Message, answer))


def _refused(exc: UpstreamHttpError, session: str) -> SessionNotFound | UpstreamBusy | Exception:
    match exc.facts.get("upstream_status"):
        case 404:
            return SessionNotFound(session)
        case 409:
            return UpstreamBusy("The session is at work. Try again when it is idle.", retry_after=5)
        case _:
            return exc


def _at(place: c.Place) -> dict[str, str]:
    if place.workspace is not None:
        return {"workspace": place.workspace, "directory": place.directory}
    return {"directory": place.directory}


def _given(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if value is not None}


def _info(answer: Any) -> c.SessionInfo:
    return wire.read(_Session, answer).info()


def _model(model: ModelRef | None) -> dict[str, str] | None:
    return {"providerID": model.provider, "modelID": model.model} if model else None


def _part(part: c.PromptPart) -> dict[str, Any]:
    match part:
        case c.Mention(agent=agent):
            return {"type": "agent", "name": agent}
        case c.Subtask():
            return {"type": "subtask"} | _given(asdict(part) | {"model": _model(part.model)})
        case str() | Attachment():
            return wire.prompt_part(part)


def _model_info(provider: str, model: _Model, connected: bool) -> c.Model:
    can = model.capabilities
    return c.Model(
        provider,
        model.id,
        model.name or model.id,
        model.status,
        can.reasoning,
        can.attachment,
        can.toolcall,
        can.input.names(),
        can.output.names(),
        int(model.limit.context),
        int(model.limit.output),
        tuple(model.variants or ()),
        connected,
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
    parts = [shown for part in stored.parts for shown in _shown(part)]
    return Message(
        info.id,
        Role.USER if info.role == "user" else Role.AGENT,
        tuple(parts),
        {"shared": {"session": {"id": info.session}}, "opencode": _given(about)},
    )


def _shown(part: _PartInfo) -> list[Part]:
    """A stored part as A2A has it. What OpenCode added for itself is not shown."""
    if part.type == "agent":
        return [Data({"agent": part.name})]
    if part.type == "subtask":
        return [Data({name: getattr(part, name) for name in ("agent", "description", "prompt")})]
    shown: list[Part] = []
    for event in wire.part_events(part):
        if isinstance(event, ev.TextSnapshot) and event.text:
            shown.append(Text(event.text, metadata=_block(event.kind.value)))
        elif isinstance(event, ev.ToolSnapshot):
            shown.append(Data(_given(asdict(event.call)), metadata=_block("tool_call")))
        elif isinstance(event, ev.FileSnapshot):
            shown.append(event.part)
    return shown


def _block(kind: str) -> dict[str, Any]:
    return {"shared": {"stream": {"block_type": kind}}}
