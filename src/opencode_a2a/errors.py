"""Everything that can go wrong, once: its code, its HTTP status, and its stable name.

    ServiceError
    ├── protocol        ParseError, InvalidRequest, MethodNotFound, InvalidParams, Internal
    ├── A2A's own       TaskNotFound … VersionNotSupported          (-32001 … -32009)
    └── ours            Unauthenticated, Forbidden, Upstream…, StoreUnavailable … (-32050 …)

A2A's codes mean only what A2A says. An error carries facts, never another
library's exception text; the edge renders it in the client's dialect.
"""

from __future__ import annotations

from typing import Any, ClassVar

# JSON-RPC answers 200, with the error in the body; except for errors that gateways must see.
RPC_HTTP_STATUSES = (401, 403, 408, 413, 429, 431)


class ServiceError(Exception):
    """Raise the situation; the border turns it into an answer."""

    type: ClassVar[str] = "INTERNAL_ERROR"
    rpc_code: ClassVar[int] = -32603
    http_status: ClassVar[int] = 500
    protocol: ClassVar[bool] = False  # defined by JSON-RPC or A2A rather than by us

    def __init__(self, message: str, *, retry_after: int | None = None, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after
        self.facts = facts

    @classmethod
    def rpc_http_status(cls) -> int:
        """The HTTP status of this error where it is the answer to a JSON-RPC request."""
        return cls.http_status if cls.http_status in RPC_HTTP_STATUSES else 200


class ParseError(ServiceError):
    type, rpc_code, http_status, protocol = "PARSE_ERROR", -32700, 400, True


class InvalidRequest(ServiceError):
    type, rpc_code, http_status, protocol = "INVALID_REQUEST", -32600, 400, True


class MethodNotFound(ServiceError):
    type, rpc_code, http_status, protocol = "METHOD_NOT_SUPPORTED", -32601, 404, True


class InvalidParams(ServiceError):
    """Some field is wrong. `fields` maps each path to what is wrong with it."""

    type, rpc_code, http_status, protocol = "INVALID_PARAMS", -32602, 400, True

    def __init__(self, message: str, *, fields: dict[str, str] | None = None, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.fields = fields or {}

    @classmethod
    def at(cls, field: str, problem: str) -> InvalidParams:
        return cls(f"{field}: {problem}", fields={field: problem})


class Internal(ServiceError):
    type, rpc_code, http_status, protocol = "INTERNAL_ERROR", -32603, 500, True


class TaskNotFound(ServiceError):
    type, rpc_code, http_status, protocol = "TASK_NOT_FOUND", -32001, 404, True

    def __init__(self, task_id: str) -> None:
        super().__init__(
            "There is no task with this id, or it belongs to another caller, or it was deleted "
            "after its retention time.",
            task_id=task_id,
        )

    @classmethod
    def without_config(cls, task_id: str, config_id: str | None) -> TaskNotFound:
        error = cls(task_id)
        error.message = "This task has no push config with this id. List those that it has."
        if config_id is None:
            error.message = "This task has no push config. Create one first."
        else:
            error.facts["config_id"] = config_id
        return error


class TaskNotCancelable(ServiceError):
    type, rpc_code, http_status, protocol = "TASK_NOT_CANCELABLE", -32002, 400, True


class PushNotificationNotSupported(ServiceError):
    type, rpc_code, http_status, protocol = "PUSH_NOTIFICATION_NOT_SUPPORTED", -32003, 400, True


class UnsupportedOperation(ServiceError):
    type, rpc_code, http_status, protocol = "UNSUPPORTED_OPERATION", -32004, 400, True


class ContentTypeNotSupported(ServiceError):
    type, rpc_code, http_status, protocol = "CONTENT_TYPE_NOT_SUPPORTED", -32005, 400, True


class VersionNotSupported(ServiceError):
    type, rpc_code, http_status, protocol = "VERSION_NOT_SUPPORTED", -32009, 400, True


class SessionNotFound(ServiceError):
    type, rpc_code, http_status = "SESSION_NOT_FOUND", -32050, 404

    def __init__(self, session_id: str) -> None:
        super().__init__(
            "OpenCode has no session with this id. It may have been deleted.",
            session_id=session_id,
        )


class SessionForbidden(ServiceError):
    type, rpc_code, http_status = "SESSION_FORBIDDEN", -32051, 403

    @classmethod
    def of_root(cls, session_id: str, root: str) -> SessionForbidden:
        return cls(
            f"This session belongs to the workspace root {root}, which this service does not "
            "serve. Use it at the service for that root.",
            session_id=session_id,
            root=root,
        )


class MethodDisabled(ServiceError):
    type, rpc_code, http_status = "METHOD_DISABLED", -32055, 403


class InterruptRequestNotFound(ServiceError):
    type, rpc_code, http_status = "INTERRUPT_REQUEST_NOT_FOUND", -32052, 404

    def __init__(self, request_id: str) -> None:
        super().__init__(
            "No request with this id waits for a decision: it was decided already, its task has "
            "ended, or there never was one.",
            request_id=request_id,
        )


class InterruptRequestExpired(ServiceError):
    type, rpc_code, http_status = "INTERRUPT_REQUEST_EXPIRED", -32053, 410

    def __init__(self, request_id: str) -> None:
        super().__init__(
            "This was not decided in time, so it was refused "
            "(A2A_INTERRUPT_REQUEST_TTL_SECONDS sets the time).",
            request_id=request_id,
        )


class InterruptTypeMismatch(ServiceError):
    type, rpc_code, http_status = "INTERRUPT_TYPE_MISMATCH", -32054, 409


class AuthorizationForbidden(ServiceError):
    type, rpc_code, http_status = "AUTHORIZATION_FORBIDDEN", -32056, 403


class Unauthenticated(ServiceError):
    type, rpc_code, http_status = "UNAUTHENTICATED", -32057, 401


class OtherWorkspace(ServiceError):
    """The caller owns what it names, but it belongs to another workspace root."""

    type, rpc_code, http_status = "OTHER_WORKSPACE", -32058, 409

    @classmethod
    def of_task(cls, task_id: str, root: str) -> OtherWorkspace:
        return cls(
            f"This task belongs to the workspace root {root}, which this service does not serve. "
            "Continue, answer or cancel it at the service for that root.",
            task_id=task_id,
            root=root,
        )

    @classmethod
    def of_context(cls, context_id: str, root: str) -> OtherWorkspace:
        return cls(
            f"This context belongs to the workspace root {root}, which this service does not "
            "serve. Send the message to the service for that root, or leave out contextId to "
            "begin a new context here.",
            context_id=context_id,
            root=root,
        )


class OtherOpenCode(ServiceError):
    type, rpc_code, http_status = "OTHER_OPENCODE", -32087, 409

    @classmethod
    def of_context(cls, context_id: str, opencode: str) -> OtherOpenCode:
        return cls(
            f"The session of this context is in another OpenCode ({opencode}), which this service "
            "does not use. Send the message to a service that does, or begin a new context.",
            context_id=context_id,
            opencode=opencode,
        )


class NodeUnavailable(ServiceError):
    type, rpc_code, http_status = "NODE_UNAVAILABLE", -32088, 503

    @classmethod
    def of(cls, opencode: str | None) -> NodeUnavailable:
        return cls(
            "The node that works on this is not running, and no other one can use its OpenCode "
            f"({opencode}). Nothing was changed. Try again when it is back.",
            retry_after=10,
            opencode=opencode or "",
        )


class DirectoryGone(ServiceError):
    """A context cannot be continued where it worked, for instance in a removed worktree."""

    type, rpc_code, http_status = "DIRECTORY_GONE", -32059, 409

    def __init__(self, directory: str) -> None:
        super().__init__(
            "This context worked in a directory that is gone, or that is not yours to work in any "
            "more; its worktree or workspace was probably removed. Start a new context, without "
            "contextId.",
            directory=directory,
        )


class UpstreamError(ServiceError):
    """OpenCode did not carry out a request."""


class UpstreamUnreachable(UpstreamError):
    type, rpc_code, http_status = "UPSTREAM_UNREACHABLE", -32060, 503


class UpstreamTimeout(UpstreamError):
    type, rpc_code, http_status = "UPSTREAM_TIMEOUT", -32061, 504


class UpstreamHttpError(UpstreamError):
    type, rpc_code, http_status = "UPSTREAM_HTTP_ERROR", -32062, 502
    body: Any = None  # what it answered, where that is JSON: never for a client


class UpstreamPayloadError(UpstreamError):
    type, rpc_code, http_status = "UPSTREAM_PAYLOAD_ERROR", -32063, 502


class UpstreamBusy(ServiceError):
    type, rpc_code, http_status = "UPSTREAM_BUSY", -32064, 429


class TaskHandover(ServiceError):
    """The task passes from one process of this service to another."""

    type, rpc_code, http_status = "TASK_HANDOVER", -32091, 503

    def __init__(self) -> None:
        super().__init__(
            "The task is passing from one process of this service to another. Try again in a "
            "moment.",
            retry_after=2,
        )


class IdempotencyConflict(ServiceError):
    type, rpc_code, http_status = "IDEMPOTENCY_CONFLICT", -32070, 409


class RateLimited(ServiceError):
    type, rpc_code, http_status = "RATE_LIMITED", -32071, 429


class LimitExceeded(ServiceError):
    """A caller has reached one of its limits; `limit` names it, `renews_at` says until when."""

    type, rpc_code, http_status = "LIMIT_EXCEEDED", -32085, 429


class BudgetExceeded(LimitExceeded):
    """A caller has used the tokens, or the money, that it may use in a day or a month."""

    type, rpc_code, http_status = "BUDGET_EXCEEDED", -32086, 429


class StoreError(ServiceError):
    """The store did not answer as it should. Which of its two kinds it is makes a difference.

    "Nothing was changed" and "it may have been" call for different handling: neither is a kind of
    the other. Who tries again with what can be done twice may catch both.
    """


class StoreUnavailable(StoreError):
    """Nothing was changed."""

    type, rpc_code, http_status = "STORE_UNAVAILABLE", -32072, 503

    @classmethod
    def nothing_changed(cls) -> StoreUnavailable:
        return StoreUnavailable(
            "The task store cannot be used right now. Nothing was changed; try again later.",
            retry_after=5,
        )


class ShuttingDown(StoreUnavailable):
    """The service is shutting down."""

    type, rpc_code, http_status = "SHUTTING_DOWN", -32092, 503

    def __init__(self) -> None:
        super().__init__("The service is shutting down. Try again in a moment.", retry_after=2)


class PayloadTooLarge(ServiceError):
    type, rpc_code, http_status = "PAYLOAD_TOO_LARGE", -32073, 413


class OutcomeUnknown(StoreError):
    """The store was lost during a commit: the request may have been carried out, or not."""

    type, rpc_code, http_status = "OUTCOME_UNKNOWN", -32074, 503

    def __init__(
        self,
        message: str = "The connection to the task store was lost while it stored this request, so "
        "it is not known whether the request was accepted. Send the same request again, with the "
        "same Idempotency-Key or messageId: if it was accepted, the answer is its task, and "
        "nothing is done twice.",
    ) -> None:
        super().__init__(message, retry_after=5)


class RequestHeadTooLarge(ServiceError):
    type, rpc_code, http_status = "REQUEST_HEAD_TOO_LARGE", -32075, 431


class RequestTimeout(ServiceError):
    type, rpc_code, http_status = "REQUEST_TIMEOUT", -32076, 408


class HostNotAllowed(ServiceError):
    """The request names a host that is none of this service; a web page may have rebound it."""

    type, rpc_code, http_status = "HOST_NOT_ALLOWED", -32077, 403

    def __init__(self, host: str) -> None:
        super().__init__(
            f"This service does not answer for the host {host!r}. If clients or a proxy should "
            "reach it under this name, add the name to A2A_ALLOWED_HOSTS.",
            host=host,
        )


class OriginNotAllowed(ServiceError):
    """A web page of another origin sent the request."""

    type, rpc_code, http_status = "ORIGIN_NOT_ALLOWED", -32078, 403

    def __init__(self, origin: str | None) -> None:
        page = f"of {origin}" if origin is not None else "of another origin"
        super().__init__(
            f"Web pages {page} may not send requests to this service. To allow it, add the "
            "page's origin to A2A_ALLOWED_ORIGINS; if the page is this service's own, behind a "
            "proxy, set A2A_PUBLIC_URL.",
            origin=origin or "",
        )


class IssuerUnavailable(ServiceError):
    """The issuer of a token cannot be asked for its keys, so nobody knows if the token is valid."""

    type, rpc_code, http_status = "ISSUER_UNAVAILABLE", -32079, 503

    def __init__(self, *, retry_after: int) -> None:
        super().__init__(
            "Whether this token is valid cannot be said, because its issuer does not answer. Try "
            "again in a moment.",
            retry_after=retry_after,
        )

    @classmethod
    def rpc_http_status(cls) -> int:
        return cls.http_status  # like 401: before any method is looked at


class IsolationFailed(ServiceError):
    """A context cannot have a git worktree of its own, or git did not do what was asked."""

    type, rpc_code, http_status = "ISOLATION_FAILED", -32080, 409


class WorktreeBusy(ServiceError):
    """Something still works in the worktree."""

    type, rpc_code, http_status = "WORKTREE_BUSY", -32081, 409


class MergeRefused(ServiceError):
    """A branch cannot be merged as things are; `files` names those in the way, if any are."""

    type, rpc_code, http_status = "MERGE_REFUSED", -32082, 409


class CallTooDeep(ServiceError):
    """Agents have called each other for a task more often than is allowed.

    Not 403: clients take that for a wrong credential, and do not read why.
    """

    type, rpc_code, http_status = "CALL_TOO_DEEP", -32084, 508

    def __init__(self, *, depth: int, limit: int) -> None:
        super().__init__(
            f"This would be call {depth} in a row from agent to agent, and at most {limit} are "
            "allowed here. The agents probably call each other in a loop. If they do not, raise "
            "A2A_MAX_CALL_DEPTH.",
            depth=depth,
            limit=limit,
        )


class WorkWouldBeLost(ServiceError):
    """What exists nowhere else would be deleted, and nobody has said that it may be."""

    type, rpc_code, http_status = "WORK_WOULD_BE_LOST", -32083, 409
