"""OpenCode 2's sessions, models and locations.

Only the fields named here leave this module: OpenCode's own answers hold provider keys in clear.
What OpenCode 2 does not have is in `domain.release`, with the reason that clients are told.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar, Unpack

from pydantic import Field

from ...domain import catalog as c
from ...domain import events as ev
from ...domain import release
from ...domain.values import (
    Attachment,
    Data,
    FileChange,
    Message,
    ModelRef,
    Part,
    PermissionRule,
    Role,
    Selection,
    SessionRef,
    TodoItem,
)
from ...errors import (
    InvalidParams,
    MethodDisabled,
    SessionNotFound,
    UpstreamHttpError,
    UpstreamTimeout,
)
from ...locks import KeyedLock
from ..answers import Wire, deep, file_part, read, scrub
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
from ..ids import new_id
from . import wire
from .session import Session2

TOOLS_SECONDS = 0.3  # until sessions have the tools of a server that is connected; nothing tells
INSTRUCTIONS = "opencode-a2a"  # the name of the deployment's system text in a session
LIST_LIMIT = "1000"  # of sub-agents, as a word of a query
LOAD_SECONDS = 5.0  # until the lists of a directory that was not used before count as complete
POLL_SECONDS = 0.05  # between two reads
BUILT_IN = {"build", "plan", "general", "explore"}  # agents; OpenCode 2 does not mark them
SHOWN = ("user", "assistant", "shell", "compaction")  # messages; the others only tell of changes
OVER = ("exited", "timeout", "killed", "completed", "failed")  # of commands and of summaries

T = TypeVar("T")
_changing_rules: KeyedLock[str] = KeyedLock()  # of a session, whoever uses this catalog


class _Data(Wire):
    data: Any


class _Provider(Wire):
    id: str
    name: str = ""


class _Model(Wire):
    id: str
    provider: str = Field(alias="providerID")
    name: str = ""
    status: str = "active"
    tools: bool = deep("capabilities", "tools", default=False)
    input: tuple[str, ...] = deep("capabilities", "input", default=())
    output: tuple[str, ...] = deep("capabilities", "output", default=())
    context: int = deep("limit", "context", default=0)
    longest_answer: int = deep("limit", "output", default=0)
    variants: list[_Id] = Field(default=[])

    def info(self) -> c.Model:
        variants = tuple(variant.id for variant in self.variants)
        return c.Model(
            provider_id=self.provider,
            model_id=self.id,
            name=self.name or self.id,
            status=self.status,
            reasoning=bool(variants),  # OpenCode 2 says only how long a model can be told to think
            attachments=any(kind != "text" for kind in self.input),
            tool_calls=self.tools,
            input=self.input,
            output=self.output,
            context_tokens=self.context,
            output_tokens=self.longest_answer,
            variants=variants,
            connected=True,  # the others are not listed
        )


class _Id(Wire):
    id: str


class _Default(Wire):
    data: wire.Model | None = None


class _Command(Wire):
    name: str
    description: str = ""


class _Project(Wire):
    id: str
    canonical: str
    vcs: str | None = None
    name: str | None = None


class _Place(Wire):
    """A directory, and the project it belongs to, which other clones may belong to as well."""

    project: str = deep("project", "id", default=...)
    canonical: str = deep("project", "canonical", default=...)
    checkout: str = deep("project", "directory", default=...)


class _Directory(Wire):
    directory: str


class _McpServer(Wire):
    name: str
    status: str = deep("status", "status", default=...)


class Api2:
    """Implements `opencode.api.Api`."""

    tells_of_disposals = False

    def __init__(self, http: Requests, feed: Feed, defaults: Defaults) -> None:
        self._http = http
        self._feed = feed
        self._defaults = defaults
        self._run_seconds = defaults.run_seconds
        self._creation_seconds = min(defaults.run_seconds, CREATION_SECONDS)

    async def connected(self) -> None:
        """Nothing has to be prepared."""

    async def create(
        self, title: str, context_id: str, *, location: c.Location, rules: Sequence[PermissionRule]
    ) -> SessionRef:
        body = {
            "metadata": metadata(context_id, self._defaults.directory),
            "title": title,  # without one OpenCode would ask a model for it
            "location": {"directory": location.directory},
            "permissions": wire.rules_to_wire(rules),
        }
        answer = await self._http.call("POST", "api", "session", body=body)
        created = _data(wire.Session, answer)
        return SessionRef(created.id, title, directory=created.directory)

    def open(self, ref: SessionRef, rules: Sequence[PermissionRule]) -> Session2:
        prepare = partial(self._prepare, ref, rules)
        return Session2(ref, self._http, self._feed, self._defaults, prepare=prepare)

    async def _prepare(
        self, ref: SessionRef, rules: Sequence[PermissionRule], selected: Selection
    ) -> str:
        """Have a session answer as a prompt wants it: each choice holds until it is changed."""
        defaults = self._defaults
        answer = await self._http.call("GET", "api", "session", ref.id)
        found = _data(wire.Session, answer)
        stored = [rule.model_dump() for rule in found.permissions]
        if any(rule not in stored for rule in wire.rules_to_wire(rules)):
            await self.keep_rules(ref.id, rules)
        if defaults.system:
            where = ("api", "experimental", "session", ref.id, "instructions", "entries")
            await self._http.call("PUT", *where, INSTRUCTIONS, body={"value": defaults.system})
        await self.choose(
            found,
            agent=selected.agent or defaults.agent,
            model=selected.model or ref.model,
            variant=selected.variant or defaults.variant,
        )
        return found.title

    # -- MCP servers and rules, for the tools of this service

    async def mcp_status(self, directory: str, server: str) -> str | None:
        servers = await self._list(_McpServer, "mcp", query=wire.at(directory))
        return next((each.status for each in servers if each.name == server), None)

    async def add_mcp(
        self, directory: str, server: str, *, url: str, headers: Mapping[str, str]
    ) -> None:
        await self.loaded(c.Location(directory))  # only then it connects at once
        config = {
            "type": "remote",
            "url": url,
            "headers": dict(headers),
            "oauth": False,
            "codemode": False,  # the model sees the tools themselves, and is asked for each call
            "timeout": {"execution": CALL_MS},
        }
        where = ("api", "experimental", "mcp", server)
        await self._http.call("PUT", *where, query=wire.at(directory), body={"config": config})
        await asyncio.sleep(TOOLS_SECONDS)

    async def agent_rules(self, directory: str) -> Mapping[str, Sequence[PermissionRule]]:
        agents = await self._list_agents(c.Location(directory))
        return {agent.id: [each.rule for each in agent.permissions] for agent in agents}

    async def session_rules(self, session: str) -> Sequence[PermissionRule]:
        return [each.rule for each in (await self._session(session)).permissions]

    # -- sessions

    async def sessions(
        self, location: c.Location, query: c.SessionQuery
    ) -> Sequence[c.SessionInfo]:
        if query.everywhere:
            where = {"project": (await self._place(location)).project}
        else:
            where = {"directory": location.directory}
        parameters = where | {"limit": str(query.limit)}
        if query.roots:
            parameters["parentID"] = "null"
        if query.search is not None:
            parameters["search"] = query.search
        found = await self._list(wire.Session, "session", query=parameters)
        return [_session_info(each) for each in found if each.updated >= (query.start or 0)]

    async def session(self, session: str) -> c.SessionInfo:
        return _session_info(await self._session(session))

    async def children(self, session: str) -> Sequence[c.SessionInfo]:
        query = {"parentID": session, "limit": LIST_LIMIT}
        return [
            _session_info(each) for each in await self._list(wire.Session, "session", query=query)
        ]

    async def statuses(self, location: c.Location) -> Mapping[str, c.SessionStatus]:
        active = _data(dict[str, Any], await self._http.call("GET", "api", "session", "active"))
        found = await asyncio.gather(*(self._status(each, location) for each in active))
        return {status.session_id: status for status in found if status is not None}

    async def _status(self, session: str, location: c.Location) -> c.SessionStatus | None:
        """None where it works in another directory, or is gone."""
        try:
            if (await self._session(session)).directory != location.directory:
                return None
            page = await self._page(session, {"limit": "1", "type": "assistant"})
        except SessionNotFound:
            return None
        retry = page.data[0].retry if page.data and not page.data[0].completed else None
        if retry is None:
            return c.SessionStatus(session, "busy")
        said = scrub(retry.error.message)
        return c.SessionStatus(session, "retry", retry.attempt - 1, said, retry.at)

    async def todos(self, session: str) -> Sequence[TodoItem]:
        _refuse(release.TODOS)

    async def diff(self, session: str, message: str) -> Sequence[FileChange]:
        query = {"from": message, "to": message}
        try:
            answer = await self._call_session(session, "GET", "diff", query=query)
        except UpstreamHttpError as exc:
            if exc.facts.get("upstream_status") == 400:
                raise InvalidParams.at("message_id", "must be a user's message") from exc
            raise
        return _data(list[FileChange], answer)

    async def messages(self, session: str, *, limit: int, before: str | None) -> c.MessagePage:
        """A page has a cursor only if there are older messages that are shown."""
        shown: list[Message] = []
        cursor, older = before, None
        while True:
            missing = limit - len(shown)
            query = {"limit": str(missing or limit)} | ({"cursor": cursor} if cursor else {})
            page = await self._page(session, query)
            found = [_message(session, each) for each in page.data if each.type in SHOWN]
            if found and not missing:
                return c.MessagePage(tuple(reversed(shown)), older)
            shown += found
            cursor = page.next
            if cursor is None or not page.data:
                return c.MessagePage(tuple(reversed(shown)), None)
            if missing and len(shown) == limit:
                older = cursor

    async def message(self, session: str, message: str) -> Message | None:
        found = await self._message(session, message)
        return _message(session, found) if found is not None and found.type in SHOWN else None

    # -- work in a session

    async def prompt(self, session: str, prompt: c.SessionPrompt) -> str:
        if prompt.system is not None:
            _refuse(release.SYSTEM_TEXT)
        if any(isinstance(part, c.Subtask) for part in prompt.parts):
            _refuse(release.SUBTASKS)
        found = await self._session(session)
        if prompt.denied:
            await self.restrict(session, prompt.denied)
        await self.choose(found, agent=prompt.agent, model=prompt.model, variant=prompt.variant)
        message = new_id("msg")
        given = [part for part in prompt.parts if isinstance(part, str | Attachment)]
        body = {"id": message, **wire.prompt_body(given)}
        if mentions := [{"name": p.agent} for p in prompt.parts if isinstance(p, c.Mention)]:
            body["agents"] = mentions
        if prompt.no_reply:
            body["resume"] = False
        await self._call_session(session, "POST", "prompt", body=body)
        return message

    async def command(self, session: str, command: c.SessionCommand) -> Message:
        found = await self._session(session)
        await self.choose(found, agent=command.agent, model=command.model, variant=command.variant)
        before = await self._page(session, {"limit": "1"})
        newest = before.data[0].id if before.data else None
        text = wire.prompt_body([command.arguments, *command.files])
        await self._call_session(session, "POST", "command", body={"name": command.command, **text})
        answer = await self._at_rest(session, lambda: self._answer_after(session, newest))
        if answer.type != "assistant":
            raise UpstreamHttpError(
                "OpenCode ended the command without an answer.", name="NoAnswer"
            )
        return _message(session, answer)

    async def _answer_after(self, session: str, newest: str | None) -> wire.Message | None:
        """The last answer since this message, or else the end of a run that had none."""
        ended = None
        for message in (await self._page(session, {"limit": "50"})).data:
            if message.id == newest:
                break
            if message.type == "assistant":
                return message
            if message.type == "idle":
                ended = message
        return ended

    async def shell(
        self, session: str, *, agent: str, command: str, model: ModelRef | None
    ) -> Message:
        """OpenCode 2 runs it without an agent; it answers when the command has ended."""
        message = new_id("msg")
        body, timeout = {"id": message, "command": command}, self._defaults.run_seconds
        try:
            await self._call_session(session, "POST", "shell", body=body, timeout=timeout)
        except UpstreamTimeout:
            await self._kill(session, message)
            raise
        found = await self._message(session, message)
        if found is None:
            raise SessionNotFound(session)
        return _message(session, found)

    async def _kill(self, session: str, message: str) -> None:
        """To interrupt the session does not stop a command, nor does leaving it."""
        found, where = await self._message(session, message), await self._session(session)
        if found is not None and found.shell:
            query = _where(c.Location(where.directory))
            await self._http.call("DELETE", "api", "shell", found.shell, query=query)

    async def summarize(self, session: str, model: ModelRef) -> None:
        await self.choose(await self._session(session), model=model)
        message = new_id("msg")
        await self._call_session(session, "POST", "compact", body={"id": message})

        async def over() -> wire.Message | None:
            found = await self._message(session, message)
            return found if found is not None and found.status in OVER else None

        found = await self._at_rest(session, over)
        if found.error is not None:
            said = scrub(found.error.message)
            raise UpstreamHttpError(
                f"OpenCode could not write the summary. It said: {said}", name=found.error.type
            )

    async def _at_rest(
        self, session: str, over: Callable[[], Awaitable[wire.Message | None]]
    ) -> wire.Message:
        """Wait until the session is idle and there is what this finds.

        A session may come to rest before: a run begins a moment after it was asked for, and one
        that waits for a sub-agent begins when that has ended.
        """
        until = time.monotonic() + self._run_seconds
        wait = ("api", "experimental", "session", session, "wait")
        while (left := until - time.monotonic()) > 0:
            await self._http.call("POST", *wait, timeout=left)
            if (found := await over()) is not None:
                return found
            await asyncio.sleep(POLL_SECONDS)
        raise UpstreamTimeout("The run in this session took longer than OPENCODE_TIMEOUT_STREAM.")

    async def fork(self, session: str, *, before: str | None) -> c.SessionInfo:
        body = without_none({"before": before})
        answer = await self._call_session(session, "POST", "fork", body=body)
        return _session_info(_data(wire.Session, answer))

    async def share(self, session: str) -> c.SessionInfo:
        _refuse(release.SHARING)

    async def unshare(self, session: str) -> c.SessionInfo:
        _refuse(release.SHARING)

    async def revert(self, session: str, *, message: str, part: str | None) -> c.SessionInfo:
        if part is not None:
            _refuse(release.REVERT_OF_PARTS)
        body = {"messageID": message}
        await self._call_session(session, "POST", "revert", "stage", body=body)
        return await self.session(session)

    async def unrevert(self, session: str) -> c.SessionInfo:
        await self._call_session(session, "DELETE", "revert")
        return await self.session(session)

    async def rename(self, session: str, title: str) -> c.SessionInfo:
        await self._call_session(session, "PATCH", body={"title": title})
        return await self.session(session)

    async def delete(self, session: str) -> None:
        await self._call_session(session, "DELETE")

    # -- models and agents

    async def restrict(self, session: str, rules: Sequence[PermissionRule]) -> None:
        added = wire.rules_to_wire(rules)
        await self._change_rules(session, lambda r: [*(x for x in r if x not in added), *added])

    async def keep_rules(self, session: str, rules: Sequence[PermissionRule]) -> None:
        """OpenCode drops them where it takes over the sessions of OpenCode 1.x."""
        ours = wire.rules_to_wire(rules)
        await self._change_rules(session, lambda r: [*(x for x in ours if x not in r), *r])

    async def _change_rules(
        self, session: str, change: Callable[[list[dict[str, str]]], list[dict[str, str]]]
    ) -> None:
        async with _changing_rules(session):  # OpenCode replaces them all at once
            found = [rule.model_dump() for rule in (await self._session(session)).permissions]
            if (changed := change(found)) != found:
                await self._call_session(session, "PATCH", body={"permissions": changed})

    async def model_of(self, session: str) -> ModelRef | None:
        """The model that was chosen for it; without one the default answers."""
        found = await self._session(session)
        return found.model.ref if found.model is not None else None

    async def default_model(self, location: c.Location) -> ModelRef | None:
        await self.loaded(location)
        where = ("api", "model", "default")
        found = read(_Default, await self._http.call("GET", *where, query=_where(location))).data
        return found.ref if found is not None else None

    async def providers(self, location: c.Location) -> c.Providers:
        await self.loaded(location)
        providers = await self._list(_Provider, "provider", query=_where(location))
        models = [m.info() for m in await self._list(_Model, "model", query=_where(location))]
        counts = Counter(model.provider_id for model in models)
        found = (
            c.Provider(p.id, p.name or p.id, "", True, default_model=None, model_count=counts[p.id])
            for p in providers
        )
        return c.Providers(tuple(found), tuple(models))

    async def agents(self, location: c.Location) -> Sequence[c.AgentInfo]:
        return [
            c.AgentInfo(
                name=agent.id,
                description=agent.description,
                mode=agent.mode,
                model=agent.model.ref if agent.model else None,
                variant=agent.model.chosen_variant if agent.model else None,
                native=agent.id in BUILT_IN,
                hidden=agent.hidden,
            )
            for agent in await self._list_agents(location)
        ]

    async def _list_agents(self, location: c.Location) -> Sequence[wire.Agent]:
        """The default agent first: before it OpenCode lists sub-agents and hidden ones only."""
        await self.loaded(location)
        found = await self._list(wire.Agent, "agent", query=_where(location))
        return sorted(found, key=lambda agent: not agent.can_be_default)

    async def commands(self, location: c.Location) -> Sequence[c.CommandInfo]:
        await self.loaded(location)
        return [
            c.CommandInfo(
                each.name,
                each.description,
                source="command",
                template=None,
                agent=None,
                model=None,
                subtask=False,
            )
            for each in await self._list(_Command, "command", query=_where(location))
        ]

    async def loaded(self, location: c.Location) -> None:
        """Wait until OpenCode has read the configuration of a directory.

        Before that it lists what comes with it, and its own gateway as the only provider. It counts
        its plugins last.
        """
        until = time.monotonic() + LOAD_SECONDS
        while not await self._list(Wire, "plugin", query=_where(location)):
            if time.monotonic() > until:  # somebody has switched them all off
                return
            await asyncio.sleep(POLL_SECONDS)

    async def choose(
        self,
        session: wire.Session,
        *,
        agent: str | None = None,
        model: ModelRef | None = None,
        variant: str | None = None,
    ) -> None:
        """Set what answers from now on: OpenCode 2 keeps both with the session, not with a prompt.

        A prompt that names no agent gets the default one, and one that names no model that of its
        agent: neither what another prompt has chosen.
        """
        here = c.Location(session.directory)
        if agent is not None or session.agent is not None:
            known = {each.id: each for each in await self._list_agents(here)}
            default = next(iter(known), None)
            wanted = agent or default
            if agent is not None and agent not in known:
                raise UpstreamHttpError(f'Agent not found: "{agent}".', name="AgentNotFound")
            if wanted is not None and wanted != (session.agent or default):
                await self._call_session(session.id, "POST", "agent", body={"agent": wanted})
            if model is None and wanted in known and (own := known[wanted].model) is not None:
                model = own.ref
        before = session.model
        chosen = (before.ref, before.chosen_variant) if before else (None, None)
        if model is None and variant != chosen[1]:  # of the model that answers anyway
            model = chosen[0] or await self.default_model(here)
        if model is None or (model, variant) == chosen:
            return
        body = {"providerID": model.provider, "id": model.model, "variant": variant}
        await self._call_session(session.id, "POST", "model", body={"model": without_none(body)})

    # -- locations

    async def projects(self) -> Sequence[c.Project]:
        found = read(list[_Project], await self._http.call("GET", "api", "project"))
        return [c.Project(each.id, each.canonical, each.vcs, each.name) for each in found]

    async def project(self, location: c.Location) -> c.Project:
        here = await self._place(location)
        stored = {each.project_id: each for each in await self.projects()}.get(here.project)
        found = stored or c.Project(here.project, here.canonical)
        return replace(found, worktree=here.canonical)

    async def workspaces(self, location: c.Location) -> Sequence[c.Workspace]:
        return []

    async def workspace_types(self, location: c.Location) -> Sequence[str]:
        _refuse(release.WORKSPACES)

    def new_workspace_id(self) -> str:
        _refuse(release.WORKSPACES)

    async def create_workspace(
        self, location: c.Location, *, workspace_id: str, type: str, branch: str | None
    ) -> c.Workspace:
        _refuse(release.WORKSPACES)

    async def remove_workspace(self, location: c.Location, workspace: str) -> c.Workspace | None:
        _refuse(release.WORKSPACES)

    async def worktrees(self, location: c.Location) -> Sequence[str]:
        query = {"projectID": (await self._place(location)).project}
        answer = await self._http.call("GET", "api", "worktree", query=query)
        return [each.directory for each in read(list[_Directory], answer)]

    async def create_worktree(self, location: c.Location, name: str | None) -> c.Worktree:
        """From the checkout of this location: another clone may belong to the same project."""
        here = await self._place(location)
        # OpenCode takes the name for a path, which could lead anywhere.
        slug = re.sub(r"[^a-z0-9]+", "-", (name or "").lower()).strip("-") or None
        body = without_none({"projectID": here.project, "from": here.checkout, "name": slug})
        timeout = self._creation_seconds
        answer = await self._http.call("POST", "api", "worktree", body=body, timeout=timeout)
        made = read(_Directory, answer).directory
        return c.Worktree(made, Path(made).name)

    async def remove_worktree(self, location: c.Location, directory: str) -> None:
        project = {"projectID": (await self._place(location)).project}
        # It removes only what it knows, and looks for what git alone has made when asked to.
        await self._http.call("POST", "api", "worktree", "refresh", body=project)
        body = project | {"directory": directory, "force": True}
        timeout = self._run_seconds
        await self._http.call("DELETE", "api", "worktree", body=body, timeout=timeout)

    async def reset_worktree(self, location: c.Location, directory: str) -> None:
        _refuse(release.WORKTREE_RESET)

    # -- requests

    async def _list(self, item: type[T], *segments: str, query: Mapping[str, str]) -> list[T]:
        return _data(list[item], await self._http.call("GET", "api", *segments, query=query))  # type: ignore[valid-type]

    async def _place(self, location: c.Location) -> _Place:
        return read(_Place, await self._http.call("GET", "api", "location", query=_where(location)))

    async def _session(self, session: str) -> wire.Session:
        return _data(wire.Session, await self._call_session(session, "GET"))

    async def _message(self, session: str, message: str) -> wire.Message | None:
        where = ("api", "session", session, "message", message)
        try:
            return _data(wire.Message, await self._http.call("GET", *where))
        except UpstreamHttpError as exc:
            if exc.facts.get("upstream_status") == 404:
                return None
            raise

    async def _page(self, session: str, query: Mapping[str, str]) -> wire.Page:
        """Messages, newest first."""
        try:
            return read(wire.Page, await self._call_session(session, "GET", "message", query=query))
        except UpstreamHttpError as exc:
            if "cursor" in query and exc.facts.get("upstream_status") == 400:
                raise InvalidParams.at("before", "is not a cursor of this list") from exc
            raise

    async def _call_session(
        self, session: str, method: str, *more: str, **options: Unpack[Options]
    ) -> Any:
        try:
            return await self._http.call(method, "api", "session", session, *more, **options)
        except UpstreamHttpError as exc:
            raise session_error(exc, session) from exc


def _refuse(absent: release.Feature) -> NoReturn:
    raise MethodDisabled(absent.effect)


def _session_info(session: wire.Session) -> c.SessionInfo:
    return c.SessionInfo(
        id=session.id,
        title=session.title,
        directory=session.directory,
        created_at=session.created,
        updated_at=session.updated,
        parent_id=session.parent,
        reverted_to=session.reverted_to,
        **origin(session.metadata),
    )


def _where(location: c.Location) -> dict[str, str]:
    if location.workspace is not None:
        _refuse(release.WORKSPACES)
    return {"location[directory]": location.directory}


def _data(shape: type[T], answer: Any) -> T:
    return read(shape, read(_Data, answer).data)


def _message(session: str, stored: wire.Message) -> Message:
    about: dict[str, Any] = {"created_at": stored.created, "agent": stored.agent}
    if stored.model is not None:
        about["model"] = f"{stored.model.provider}/{stored.model.id}"
    if stored.error is not None:
        problem = wire.problem(stored.error)
        about["error"] = {"type": problem.type.value, "message": problem.message}
    return Message(
        message_id=stored.id,
        role=Role.USER if stored.type == "user" else Role.AGENT,
        parts=tuple(_parts(session, stored)),
        metadata={"shared": {"session": {"id": session}}, "opencode": without_none(about)},
    )


def _parts(session: str, stored: wire.Message) -> list[Part]:
    match stored.type:
        case "user":
            events = [_text(session, stored, stored.text)]
            files = [
                file_part(f"data:{f.mime};base64,{f.data}", media_type=f.mime, name=f.name)
                for f in stored.files
            ]
            more = [*files, *(Data({"agent": each.name}) for each in stored.agents)]
        case "shell":
            events, more = [_shell_call(session, stored)], []
        case "compaction":
            events, more = [_text(session, stored, stored.summary)], []
        case _:
            events, more = list(wire.blocks(session, stored)), []
    return [*(part for event in events if (part := block_part(event)) is not None), *more]


def _text(session: str, stored: wire.Message, text: str) -> ev.AgentEvent:
    kind = ev.BlockKind.TEXT
    return ev.TextSnapshot(session, stored.id, stored.id, kind=kind, text=text, ended=True)


def _shell_call(session: str, stored: wire.Message) -> ev.AgentEvent:
    """A command that a person has run, as a call of the tool of that name."""
    over = stored.completed is not None
    failed = stored.status in ("killed", "timeout")
    call = ev.ToolCall(
        stored.shell,
        "shell",
        "error" if failed else "completed" if over else "running",
        input={"command": stored.command},
        output=stored.output if not failed else None,
        error=f"The command was ended: {stored.status}." if failed else None,
        started_at=stored.created,
        ended_at=stored.completed,
    )
    return ev.ToolSnapshot(session, stored.id, stored.shell, call=call)
