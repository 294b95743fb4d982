"""OpenCode's sessions at work: prompt them, run commands in them, sum them up."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import suppress
from functools import partial
from typing import Annotated, Literal

from pydantic import Field

from ..contract.declare import Toggle
from ..contract.params import MOST_PARTS, Params
from ..domain.catalog import (
    Mention,
    Place,
    PromptPart,
    SessionCommand,
    SessionInfo,
    SessionPrompt,
    Subtask,
)
from ..domain.scopes import Scope
from ..domain.values import Attachment, Caller, ModelRef, file_at
from ..errors import ContentTypeNotSupported, UpstreamError, UpstreamTimeout
from ..service.inputs import Room
from ..service.turns import ABORT_AGAIN
from .audit import audited
from .services import Services
from .sessions import OneMessage, Session, changing
from .shapes import Done, ModelName, Name

SHELL = Toggle(
    "A2A_ENABLE_SESSION_SHELL", "it runs any command on the OpenCode host without asking."
)
GOODBYE = 10.0  # seconds to end a run

_control = partial(changing, effect="control")


FROM_NOW_ON = Field(default=None, description="From now on, for this session")


class TextPart(Params):
    type: Literal["text"]
    text: str = Field(min_length=1)


class FilePart(Params):
    type: Literal["file"]
    mime: Name
    url: str = Field(min_length=1, description="data, http(s), or file below the workspace")
    filename: Name | None = None


class AgentPart(Params):
    type: Literal["agent"]
    name: Name


class SubtaskPart(Params):
    type: Literal["subtask"]
    prompt: str = Field(min_length=1)
    description: str
    agent: Name
    model: ModelName | None = None
    command: str | None = None


class Prompting(Params):
    """Without `format`: OpenCode 1.18 can never again list the messages of such a session."""

    parts: list[
        Annotated[TextPart | FilePart | AgentPart | SubtaskPart, Field(discriminator="type")]
    ] = Field(min_length=1, max_length=MOST_PARTS)
    model: ModelName | None = FROM_NOW_ON
    agent: Name | None = None
    variant: Name | None = None
    system: str | None = Field(default=None, description="Added to the system prompt")
    noReply: bool = Field(default=False, description="Only add the message; nobody answers")
    tools: dict[str, Literal[False]] = Field(
        default={}, description="Tools this session must not use from now on"
    )


class PromptAsync(Session):
    request: Prompting


class Prompted(Done):
    session_id: str
    message_id: str


@_control("opencode.sessions.prompt_async", errors=(ContentTypeNotSupported,))
async def prompt_async(
    services: Services, caller: Caller, params: PromptAsync, session: SessionInfo
) -> Prompted:
    """Prompt an idle session and return at once; its messages have the answer later.

    What such a run asks for waits until a message is sent to this session: its task shows the
    request, and takes the answer.
    """
    asked = params.request
    await services.checks.idle(session)
    await services.checks.agent(session, asked.agent, "request.agent")
    model = asked.model.ref if asked.model else None
    await services.checks.model(session, model, "request.model")
    if asked.variant is not None:
        answering = model or await services.checks.answering(session, asked.agent, session.id)
        await services.checks.variant(session, asked.variant, answering, "request.variant")
    room = services.inputs.room()
    parts = [
        await _part(services, session, part, f"request.parts[{i}]", room)
        for i, part in enumerate(asked.parts)
    ]
    message_id = await services.catalog.prompt(
        session.id,
        SessionPrompt(
            tuple(parts),
            model,
            asked.agent,
            asked.variant,
            asked.system,
            asked.noReply,
            tuple(asked.tools),
        ),
    )
    await _keep(services, session, model)
    return Prompted(session_id=session.id, message_id=message_id)


async def _part(
    services: Services,
    session: SessionInfo,
    part: TextPart | FilePart | AgentPart | SubtaskPart,
    where: str,
    room: Room,
) -> PromptPart:
    match part:
        case TextPart():
            return part.text
        case FilePart():
            return await _file(services, part, where, room)
        case AgentPart():
            await services.checks.agent(session, part.name, f"{where}.name")
            return Mention(part.name)
        case SubtaskPart():
            await services.checks.agent(session, part.agent, f"{where}.agent")
            services.checks.mentions_no_file(part.prompt, f"{where}.prompt")
            model = part.model.ref if part.model else None
            await services.checks.model(session, model, f"{where}.model")
            return Subtask(part.prompt, part.description, part.agent, model, part.command)


async def _file(services: Services, part: FilePart, where: str, room: Room) -> Attachment:
    """A file in the only form that is handed on; OpenCode would read any path."""
    given = file_at(part.url, part.mime, part.filename)
    attached = await services.inputs.prepare_at(where, given, room)
    assert isinstance(attached, Attachment)
    return attached


class Commanding(Params):
    command: Name
    arguments: str = Field(
        default="",
        max_length=65_536,
        description="Text for the model; must not change what the command runs or reads",
    )
    agent: Name | None = None
    model: ModelName | None = FROM_NOW_ON
    variant: Name | None = None
    parts: list[FilePart] = Field(default=[], max_length=MOST_PARTS)


class Command(Session):
    request: Commanding


@_control("opencode.sessions.command", errors=(ContentTypeNotSupported,))
async def command(
    services: Services, caller: Caller, params: Command, session: SessionInfo
) -> OneMessage:
    """Run one of OpenCode's commands in an idle session, and wait for the answer.

    What it asks for cannot be answered: after OPENCODE_TIMEOUT_STREAM it is refused, and the run
    aborted. A command that may ask belongs into a message.
    """
    asked = params.request
    await services.checks.idle(session)
    await services.checks.command(session, asked.command, asked.arguments, "request")
    await services.checks.agent(session, asked.agent, "request.agent")
    model = asked.model.ref if asked.model else None
    await services.checks.model(session, model, "request.model")
    # A command may have a model of its own, so no model is ruled out.
    await services.checks.variant(session, asked.variant, None, "request.variant")
    room = services.inputs.room()
    files = [
        await _file(services, part, f"request.parts[{i}]", room)
        for i, part in enumerate(asked.parts)
    ]
    wanted = SessionCommand(
        asked.command, asked.arguments, tuple(files), model, asked.agent, asked.variant
    )
    try:
        message = await services.catalog.command(session.id, wanted)
    except UpstreamTimeout:
        await _stop(services, session)
        raise
    await _keep(services, session, model)
    return await OneMessage.of(services, caller, session.id, message)


async def _keep(services: Services, session: SessionInfo, model: ModelRef | None) -> None:
    """OpenCode goes on with the model; so must we, who might bring it back to an earlier one."""
    if model is not None:
        await services.access.owners.forget_model(session.id)


async def _stop(services: Services, session: SessionInfo) -> None:
    """End a run that nobody waits for any more, and refuse what it asks: nobody can allow it.

    More than once, because OpenCode may end only a sub-agent, and go on itself.
    """
    at = services.agent.session(session.ref)
    with suppress(UpstreamError, TimeoutError):
        async with asyncio.timeout(GOODBYE):
            while True:
                await at.abort()
                await at.reject_pending(await _sub_agents(services, session.id))
                if session.id not in await services.catalog.statuses(Place(session.directory)):
                    return
                await asyncio.sleep(ABORT_AGAIN)


async def _sub_agents(services: Services, session_id: str) -> list[str]:
    """The sessions that work for this one, at any depth."""
    found = [session_id]
    for each in found:
        found += [child.id for child in await services.catalog.children(each)]
    return found[1:]


class Shelling(Params):
    agent: Name
    command: str = Field(min_length=1, max_length=65_536)
    model: ModelName | None = None


class Shell(Session):
    request: Shelling


@_control(
    "opencode.sessions.shell",
    scope=Scope.SESSIONS_SHELL,
    toggle=SHELL,
    output="one snapshot when the command has ended; never interactive",
)
async def shell(
    services: Services, caller: Caller, params: Shell, session: SessionInfo
) -> OneMessage:
    """Run a command in the session's directory, without asking anybody."""
    asked = params.request
    await services.checks.agent(session, asked.agent, "request.agent")
    model = asked.model.ref if asked.model else None
    await services.checks.model(session, model, "request.model")
    # Who ran something, where and when. Not what: a command can hold a secret.
    facts = {
        "principal": caller.principal,
        "session_id": session.id,
        "directory": session.directory,
        "command_sha256": hashlib.sha256(asked.command.encode()).hexdigest(),
        "command_bytes": len(asked.command.encode()),
    }
    try:
        with audited("audit.session_shell", **facts):
            message = await services.catalog.shell(session.id, asked.agent, asked.command, model)
    except UpstreamTimeout:
        await _stop(services, session)
        raise
    return await OneMessage.of(services, caller, session.id, message)


class Summarize(Session):
    request: ModelName


@_control("opencode.sessions.summarize")
async def summarize(
    services: Services, caller: Caller, params: Summarize, session: SessionInfo
) -> Done:
    """Replace what was said so far by a summary, which this model writes."""
    await services.checks.idle(session)
    await services.checks.model(session, params.request.ref, "request")
    await services.catalog.summarize(session.id, params.request.ref)
    return Done()
