"""Methods that run the agent in a session: prompt, command, shell, summarize."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Annotated, Literal

from pydantic import Field

from ..contract.declare import Toggle
from ..contract.params import MOST_PARTS, Params
from ..domain.catalog import (
    Mention,
    PromptPart,
    SessionCommand,
    SessionInfo,
    SessionPrompt,
    Subtask,
)
from ..domain.scopes import Scope
from ..domain.values import Attachment, Caller, ModelRef, file_at
from ..errors import ContentTypeNotSupported, MethodDisabled, UpstreamTimeout
from ..service.inputs import ByteBudget
from ..service.stopping import stop_until_idle
from .audit import audited
from .services import Services
from .sessions import MessageResult, Session, changing
from .shapes import Acknowledgement, ModelName, Name

SHELL = Toggle(
    "A2A_ENABLE_SESSION_SHELL", "it runs any command on the OpenCode host without asking."
)
_control = partial(changing, effect="control")

LASTING_MODEL = Field(default=None, description="From now on, for this session")


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


class PromptRequest(Params):
    """Without `format`: OpenCode 1.18 can never again list the messages of such a session."""

    parts: list[
        Annotated[TextPart | FilePart | AgentPart | SubtaskPart, Field(discriminator="type")]
    ] = Field(min_length=1, max_length=MOST_PARTS)
    model: ModelName | None = LASTING_MODEL
    agent: Name | None = None
    variant: Name | None = None
    system: str | None = Field(default=None, description="Added to the system prompt")
    noReply: bool = Field(default=False, description="Only add the message; nobody answers")
    tools: dict[str, Literal[False]] = Field(
        default={}, description="Tools this session must not use from now on"
    )


class PromptAsync(Session):
    request: PromptRequest


class PromptAcknowledgement(Acknowledgement):
    session_id: str
    message_id: str


@_control("opencode.sessions.prompt_async", errors=(ContentTypeNotSupported, MethodDisabled))
async def prompt_async(
    services: Services, caller: Caller, params: PromptAsync, *, session: SessionInfo
) -> PromptAcknowledgement:
    """Prompt an idle session and return at once; its messages have the answer later.

    What such a run asks for waits until a message is sent to this session: its task shows the
    request, and takes the answer.
    """
    services.limiter.check_outside_tasks(caller.principal)
    request = params.request
    await services.validator.idle(session)
    await services.validator.agent(session, request.agent, field="request.agent")
    model = request.model.ref if request.model else None
    await services.validator.model(session, model, field="request.model")
    if request.variant is not None:
        answering = model or await services.validator.answering(
            session, agent=request.agent, session_id=session.id
        )
        await services.validator.variant(
            session, request.variant, model=answering, field="request.variant"
        )
    budget = services.inputs.budget()
    parts = [
        await _part(services, session, part=part, field=f"request.parts[{i}]", budget=budget)
        for i, part in enumerate(request.parts)
    ]
    message_id = await services.catalog.prompt(
        session.id,
        SessionPrompt(
            parts=tuple(parts),
            model=model,
            agent=request.agent,
            variant=request.variant,
            system=request.system,
            no_reply=request.noReply,
            forbidden_tools=tuple(request.tools),
        ),
    )
    await _forget_model(services, session, chosen=model)
    return PromptAcknowledgement(session_id=session.id, message_id=message_id)


async def _part(
    services: Services,
    session: SessionInfo,
    *,
    part: TextPart | FilePart | AgentPart | SubtaskPart,
    field: str,
    budget: ByteBudget,
) -> PromptPart:
    match part:
        case TextPart():
            return part.text
        case FilePart():
            return await _file(services, part, field=field, budget=budget)
        case AgentPart():
            await services.validator.agent(session, part.name, field=f"{field}.name")
            return Mention(part.name)
        case SubtaskPart():
            await services.validator.agent(session, part.agent, field=f"{field}.agent")
            services.validator.subtask_prompt(part.prompt, field=f"{field}.prompt")
            model = part.model.ref if part.model else None
            await services.validator.model(session, model, field=f"{field}.model")
            return Subtask(
                prompt=part.prompt,
                description=part.description,
                agent=part.agent,
                model=model,
                command=part.command,
            )


async def _file(
    services: Services, part: FilePart, *, field: str, budget: ByteBudget
) -> Attachment:
    """The service reads the file itself: OpenCode would read any path."""
    given = file_at(part.url, media_type=part.mime, filename=part.filename)
    attachment = await services.inputs.prepare_part(given, field=field, budget=budget)
    assert isinstance(attachment, Attachment)
    return attachment


class CommandRequest(Params):
    command: Name
    arguments: str = Field(
        default="",
        max_length=65_536,
        description="Text for the model; must not change what the command runs or reads",
    )
    agent: Name | None = None
    model: ModelName | None = LASTING_MODEL
    variant: Name | None = None
    parts: list[FilePart] = Field(default=[], max_length=MOST_PARTS)


class Command(Session):
    request: CommandRequest


@_control("opencode.sessions.command", errors=(ContentTypeNotSupported,))
async def command(
    services: Services, caller: Caller, params: Command, *, session: SessionInfo
) -> MessageResult:
    """Run one of OpenCode's commands in an idle session, and wait for the answer.

    What it asks for cannot be answered: after OPENCODE_TIMEOUT_STREAM it is refused, and the run
    aborted. A command that may ask belongs into a message.
    """
    services.limiter.check_outside_tasks(caller.principal)
    request = params.request
    await services.validator.idle(session)
    await services.validator.command(
        session, request.command, arguments=request.arguments, field="request"
    )
    await services.validator.agent(session, request.agent, field="request.agent")
    model = request.model.ref if request.model else None
    await services.validator.model(session, model, field="request.model")
    # A command may have a model of its own, so no model is ruled out.
    await services.validator.variant(session, request.variant, model=None, field="request.variant")
    budget = services.inputs.budget()
    files = [
        await _file(services, part, field=f"request.parts[{i}]", budget=budget)
        for i, part in enumerate(request.parts)
    ]
    command = SessionCommand(
        command=request.command,
        arguments=request.arguments,
        files=tuple(files),
        model=model,
        agent=request.agent,
        variant=request.variant,
    )
    try:
        message = await services.catalog.command(session.id, command)
    except UpstreamTimeout:
        await stop_until_idle(services.agent, services.catalog, session=session)
        raise
    await _forget_model(services, session, chosen=model)
    return await MessageResult.of(services, caller, session_id=session.id, message=message)


async def _forget_model(
    services: Services, session: SessionInfo, *, chosen: ModelRef | None
) -> None:
    """The session goes on with the chosen model, so the service must not restore an earlier one."""
    if chosen is not None:
        await services.ownership.store.forget_model(session.id)


class ShellRequest(Params):
    agent: Name
    command: str = Field(min_length=1, max_length=65_536)
    model: ModelName | None = None


class Shell(Session):
    request: ShellRequest


@_control(
    "opencode.sessions.shell",
    scope=Scope.SESSIONS_SHELL,
    toggle=SHELL,
    output="one snapshot when the command has ended; never interactive",
)
async def shell(
    services: Services, caller: Caller, params: Shell, *, session: SessionInfo
) -> MessageResult:
    """Run a command in the directory of an idle session, without asking anybody."""
    request = params.request
    services.limiter.check_shell(caller.principal)
    await services.validator.idle(session)
    await services.validator.agent(session, request.agent, field="request.agent")
    model = request.model.ref if request.model else None
    await services.validator.model(session, model, field="request.model")
    # The log says who ran something, where and when. Not what: a command can hold a secret.
    facts = {
        "principal": caller.principal,
        "session_id": session.id,
        "directory": session.directory,
        "command_sha256": hashlib.sha256(request.command.encode()).hexdigest(),
        "command_bytes": len(request.command.encode()),
    }
    try:
        with audited("audit.session_shell", **facts):
            message = await services.catalog.shell(
                session.id, agent=request.agent, command=request.command, model=model
            )
    except UpstreamTimeout:
        await stop_until_idle(services.agent, services.catalog, session=session)
        raise
    return await MessageResult.of(services, caller, session_id=session.id, message=message)


class Summarize(Session):
    request: ModelName


@_control("opencode.sessions.summarize")
async def summarize(
    services: Services, caller: Caller, params: Summarize, *, session: SessionInfo
) -> Acknowledgement:
    """Replace what was said so far by a summary, which this model writes."""
    services.limiter.check_outside_tasks(caller.principal)
    await services.validator.idle(session)
    await services.validator.model(session, params.request.ref, field="request")
    await services.catalog.summarize(session.id, params.request.ref)
    return Acknowledgement()
