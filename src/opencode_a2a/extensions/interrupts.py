"""What the agent waits for a person to decide: answer it by id, and find it again."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from ..contract.a2a import SubAgentMark
from ..contract.declare import Extension
from ..contract.params import Params, Result
from ..domain.ports import Pending
from ..domain.replies import HITL
from ..domain.requests import details
from ..domain.scopes import Scope
from ..domain.values import (
    Caller,
    PermissionAsk,
    PermissionDecision,
    QuestionAsk,
    QuestionDecision,
    SubAgent,
    timestamp,
)
from ..errors import (
    BudgetExceeded,
    InterruptRequestExpired,
    InterruptRequestNotFound,
    InterruptTypeMismatch,
    OtherWorkspace,
    TaskHandover,
    UnsupportedOperation,
)
from .services import Services

INTERACTIVE = Extension(
    "shared-interactive-interrupt-v1",
    title="Shared Interactive Interrupt v1",
    description="Permissions and questions of the agent, answered by the id of the request. A "
    "client that activates it keeps its stream across the pause.",
    scope="shared",
    aliases=("urn:a2a:interactive-interrupt/v1",),
    public={
        "interrupt_events": ["asked", "resolved"],
        "request_id_field": "metadata.shared.interrupt.request_id",
    },
)

RECOVERY = Extension(
    "opencode-interrupt-recovery-v1",
    title="OpenCode Interrupt Recovery v1",
    description="The permissions and questions that wait for this caller, after a restart or from "
    "elsewhere.",
    scope="opencode",
    extended={
        "registry": "kept with the tasks, for as long as they are; a settled request is forgotten "
        "after ten minutes",
        "identity_scope": "the caller's own tasks only",
    },
)

HUMAN_IN_THE_LOOP = Extension(
    "kagent-human-in-the-loop-v1",
    title="kagent Human in the Loop v1",
    description="Permissions and questions as kagent's tool_approval_request and ask_user_request.",
    scope="shared",
    specified_at=HITL,
)

RequestId = Annotated[
    str,
    Field(
        pattern=r"^(per|que|frm)_[A-Za-z0-9]+$", max_length=64, description="As in the interrupt"
    ),
]
_ERRORS = (
    InterruptRequestNotFound,
    InterruptRequestExpired,
    InterruptTypeMismatch,
    OtherWorkspace,
    UnsupportedOperation,  # the task ends at this very moment
    TaskHandover,
)
_REPLY_ERRORS = (*_ERRORS, BudgetExceeded)  # the agent goes on with an answer, and spends


class Reply(Params):
    request_id: RequestId
    metadata: dict[str, Any] = Field(default={}, description="Not used")


class PermissionReply(Reply):
    reply: Literal["once", "always", "reject"]
    message: str | None = Field(
        default=None,
        max_length=4096,
        description="Told to the agent with a refusal: it then looks for another way",
    )


class QuestionReply(Reply):
    answers: list[list[str]] = Field(description="One list per question: labels, or own words")


class ReplyAcknowledgement(Result):
    """The decision is committed, and the agent has been told or will be."""

    ok: Literal[True] = True
    request_id: str


@INTERACTIVE.method("a2a.interrupt.permission.reply", scope=Scope.TASKS_WRITE, errors=_REPLY_ERRORS)
async def reply_to_permission(
    services: Services, caller: Caller, params: PermissionReply
) -> ReplyAcknowledgement:
    """Allow what the agent asks for, once or always, or refuse it."""
    message = params.message if params.reply == "reject" else None
    decision = PermissionDecision(params.reply, message or None)
    await services.interrupts.decide(caller, params.request_id, decision=decision)
    return ReplyAcknowledgement(request_id=params.request_id)


@INTERACTIVE.method("a2a.interrupt.question.reply", scope=Scope.TASKS_WRITE, errors=_REPLY_ERRORS)
async def reply_to_question(
    services: Services, caller: Caller, params: QuestionReply
) -> ReplyAcknowledgement:
    """Answer the agent's questions, one list of answers each."""
    answers = tuple(tuple(answer) for answer in params.answers)
    await services.interrupts.decide(caller, params.request_id, decision=QuestionDecision(answers))
    return ReplyAcknowledgement(request_id=params.request_id)


@INTERACTIVE.method("a2a.interrupt.question.reject", scope=Scope.TASKS_WRITE, errors=_ERRORS)
async def reject_question(
    services: Services, caller: Caller, params: Reply
) -> ReplyAcknowledgement:
    """Dismiss the agent's questions; its run stops."""
    await services.interrupts.decide(caller, params.request_id, decision=QuestionDecision(None))
    return ReplyAcknowledgement(request_id=params.request_id)


class Listing(Params):
    metadata: dict[str, Any] = Field(default={}, description="Not used")


class Item(Result):
    request_id: str
    session_id: str = Field(description="The session that asks; a sub-agent has its own")
    interrupt_type: Literal["permission", "question"]
    task_id: str
    context_id: str
    details: dict[str, Any] = Field(description="As in metadata.shared.interrupt")
    expires_at: str | None = Field(description="When it is refused if nobody decides")
    subagent: SubAgentMark | None = Field(description="Who asks, if not the agent itself")

    @classmethod
    def of(cls, pending: Pending) -> Item:
        ask, expires = pending.interrupt, pending.expires_at
        return cls(
            request_id=ask.request_id,
            session_id=ask.session,
            interrupt_type="permission" if isinstance(ask, PermissionAsk) else "question",
            task_id=pending.task_id,
            context_id=pending.context_id,
            details=details(ask),
            expires_at=timestamp(expires) if expires else None,
            subagent=_subagent(ask.subagent) if ask.subagent is not None else None,
        )


def _subagent(subagent: SubAgent) -> SubAgentMark:
    return SubAgentMark(
        session_id=subagent.session, agent=subagent.agent or "", call_id=subagent.call_id or ""
    )


class Items(Result):
    items: list[Item]


@RECOVERY.method("opencode.permissions.list", scope=Scope.TASKS_READ)
async def list_permissions(services: Services, caller: Caller, params: Listing) -> Items:
    """The permissions the agent waits for, in this caller's tasks."""
    return await _list(services, caller, kind=PermissionAsk)


@RECOVERY.method("opencode.questions.list", scope=Scope.TASKS_READ)
async def list_questions(services: Services, caller: Caller, params: Listing) -> Items:
    """The questions the agent waits for, in this caller's tasks."""
    return await _list(services, caller, kind=QuestionAsk)


async def _list(
    services: Services, caller: Caller, kind: type[PermissionAsk | QuestionAsk]
) -> Items:
    pending = await services.interrupts.pending(caller)
    return Items(items=[Item.of(each) for each in pending if isinstance(each.interrupt, kind)])
