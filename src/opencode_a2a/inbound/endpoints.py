"""JSON-RPC and REST in front of the same operations: from a request to a `Call`, and back."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import orjson
import structlog
from pydantic.alias_generators import to_camel
from starlette.requests import Request
from starlette.responses import Response

from ..contract.a2a import written
from ..contract.declare import Json
from ..contract.dispatch import Contract
from ..contract.operations import Line, Operation, OperationTable
from ..domain.values import Caller
from ..errors import Internal, InvalidParams, InvalidRequest, MethodNotFound, ServiceError
from ..observe import audit
from ..service.calls import DEPTH_HEADER
from ..service.watching import Watch
from ..web.trace import OUTCOME, UNKNOWN, note_operation
from . import negotiation
from .body import read_json
from .card import external_url_of
from .dialect import RPC_DIALECTS, Dialect
from .events import TaskEvents
from .failures import JSON, line_of, version_of
from .framing import Framing, RestFraming, RpcFraming
from .operations import Answer, Call, Operations
from .parse import from_query
from .render import Renderer
from .sse import EventStream, disconnected
from .watching import WatchEvents

logger = structlog.get_logger()
level = logging.getLogger("opencode_a2a")  # may change while the service runs

INTERNAL_ERROR = (
    "The service failed on this request because of an error of its own. Try again; if it fails "
    "again, the operator finds the error in the log of the service."
)

LONGEST_NAME = 100  # of a method, in the log: a caller may make up any

Endpoint = Callable[[Request], Awaitable[Response]]


def caller_of(request: Request) -> Caller:
    """Set by the authentication in front of every route that needs one."""
    caller: Caller = request.scope["state"]["caller"]
    return caller


@dataclass(slots=True)
class RpcRequest(RpcFraming):
    """A JSON-RPC request as far as it has been read, and the framing of its answer."""

    method: str = ""
    params: Any = None
    notification: bool = False

    def read(self, body: Any) -> None:
        if not isinstance(body, dict):
            raise InvalidRequest("A request must be one JSON object; batches are not part of A2A.")
        request_id = body.get("id")
        if isinstance(request_id, bool) or not isinstance(request_id, str | int | None):
            raise InvalidRequest('"id" must be a string, a whole number or null.')
        self.request_id = request_id
        method = body.get("method")
        if body.get("jsonrpc") != "2.0" or not isinstance(method, str):
            raise InvalidRequest('A request needs "jsonrpc": "2.0" and a "method".')
        self.method, self.params, self.notification = method, body.get("params"), "id" not in body


@dataclass(frozen=True, slots=True)
class Endpoints:
    operations: Operations
    table: OperationTable
    contract: Contract
    body_limit: int
    methods: Mapping[str, tuple[Line, Operation]] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "methods", self.table.methods)

    async def rpc(self, request: Request) -> Response:
        """Answer a JSON-RPC request, of A2A or of an extension."""
        active = negotiation.activated(request, self.operations.extension_uris)
        return negotiation.confirm(await self._rpc_answer(request, active), request, active)

    async def _rpc_answer(self, request: Request, active: frozenset[str]) -> Response:
        rpc = RpcRequest(line_of(request))
        note_operation(request.scope, UNKNOWN, rpc.dialect.version, transport="jsonrpc")
        try:
            result = await self._rpc_result(request, rpc, active)
        except ServiceError as exc:
            request.scope["state"][OUTCOME] = exc.type
            if not rpc.notification:
                return rpc.refusal(exc)
            logger.info("notification.failed", method=rpc.method[:LONGEST_NAME], type=exc.type)
            return _no_answer()
        except Exception:
            if not rpc.notification:
                request.state.answer = rpc.refusal(Internal(INTERNAL_ERROR))
            raise
        return _no_answer() if rpc.notification else self._response(request, result, rpc)

    async def _rpc_result(
        self, request: Request, rpc: RpcRequest, active: frozenset[str]
    ) -> Answer:
        rpc.read(await self._read_json(request))
        if rpc.notification:
            request.state.answer = _no_answer()  # also if the service stops, or breaks
        operation = self._operation(rpc)
        name = operation.name if operation is not None else rpc.method
        note_operation(request.scope, name, rpc.dialect.version, transport="jsonrpc")
        self.operations.negotiate(rpc.dialect, version_of(request))
        if level.isEnabledFor(logging.DEBUG):
            _log_request(request, rpc.method, rpc.dialect, active=active)
        if rpc.params is not None and not isinstance(rpc.params, dict):
            raise InvalidParams.at("params", "must be an object")
        if operation is None and self.contract.streams(rpc.method):
            call = _call(request, rpc.dialect, rpc.params, active=active)
            return await self._watch(rpc.method, call)
        if operation is None:
            return await self._call_method(caller_of(request), rpc)
        call = _call(
            request,
            rpc.dialect,
            rpc.params,
            active=active,
            notification=rpc.notification,
        )
        with _audited(operation.name, operation.changes, params=rpc.params):
            return await self.operations.perform(operation, call)

    async def _call_method(self, caller: Caller, rpc: RpcRequest) -> Json:
        """Call a method of an extension, here or at the node that it is for."""
        forwarding, name = self.operations.forwarding, rpc.method

        async def here() -> tuple[Json]:
            found = await self.contract.call(name, caller, rpc.params)
            return (written(found, Renderer(rpc.dialect).value),)

        with _audited(name, self.contract.changes(name), params=rpc.params):
            if forwarding is None:
                return (await here())[0]
            dialect = rpc.dialect.name
            result = await forwarding.do(
                there=lambda: forwarding.method(name, caller, rpc.params, dialect=dialect),
                here=here,
            )
            return result[0]

    async def _watch(self, method: str, call: Call) -> WatchEvents:
        """What an extension streams. There is one such method, and it watches tasks."""
        self.operations.limiter.check_stream(call.caller.principal)
        watch: Watch = await self.contract.open(
            method, call.caller, call.params, last_event_id=call.last_event_id
        )
        renderer = replace(self.operations.renderer(call), stays_open=True)
        others = watch.owner != call.caller.principal
        return WatchEvents(watch, renderer, names_owner=others)

    def _operation(self, rpc: RpcRequest) -> Operation | None:
        """The operation of this name, whose line is the request's; None for an extension's."""
        if rpc.method in self.methods:
            line, operation = self.methods[rpc.method]
            rpc.dialect = RPC_DIALECTS[line]
            return operation
        if rpc.method not in self.contract:
            raise MethodNotFound(
                f"There is no method {rpc.method}.",
                method=rpc.method,
                supported_methods=[*self.table.supported_methods(), *self.contract.available],
                protocol_version=rpc.dialect.version,
            )
        return None

    async def keys(self, request: Request) -> Response:
        assert self.operations.push_keys is not None, "otherwise there is no such route"
        body = orjson.dumps(self.operations.push_keys)
        return Response(body, media_type=JSON, headers={"cache-control": "public, max-age=300"})

    def rest(self, operation: Operation, dialect: Dialect) -> Endpoint:
        framing = RestFraming(dialect)

        async def answer(request: Request) -> Response:
            active = negotiation.activated(request, self.operations.extension_uris)
            note_operation(request.scope, operation.name, dialect.version, transport="rest")
            try:
                self.operations.negotiate(dialect, version_of(request))
                if level.isEnabledFor(logging.DEBUG):
                    _log_request(request, operation.name, dialect, active=active)
                params = await self._rest_params(request, operation)
                call = _call(request, dialect, params, active=active)
                with _audited(operation.name, operation.changes, params=params):
                    result = await self.operations.perform(operation, call)
                response = self._response(request, result, framing)
            except ServiceError as exc:
                request.scope["state"][OUTCOME] = exc.type
                response = framing.refusal(exc)
            return negotiation.confirm(response, request, active)

        return answer

    async def _rest_params(self, request: Request, operation: Operation) -> Json:
        """The parameters as JSON-RPC would have them: from the body or query, and the path."""
        params: Json = {}
        # Without a message the body may be absent, and then has no content type to check.
        has_body = operation.takes_body or request.headers.get("content-length", "0") != "0"
        if request.method == "POST" and has_body:
            body = await self._read_json(request)
            if body is not None and not isinstance(body, dict):
                raise InvalidRequest("The body must be a JSON object.")
            params = body or {}
        elif request.method == "GET":
            params = from_query(request.query_params)
        path = {to_camel(n): v for n, v in request.path_params.items() if n != "tenant"}
        return {**params, **path}

    async def _read_json(self, request: Request) -> Any:
        """The body, if it is not larger than this caller's may be."""
        own = self.operations.limiter.of(caller_of(request).principal).body_bytes
        if own and own < self.body_limit:
            return await read_json(request, own, limited_by="body_bytes of this caller")
        return await read_json(request, self.body_limit)

    def _response(self, request: Request, result: Answer, framing: Framing) -> Response:
        if isinstance(result, TaskEvents | WatchEvents):
            meter = self.operations.limiter.meter_for(caller_of(request).principal)
            return EventStream(result, framing, self.operations.stopping, meter=meter)
        before, after = framing.sides()
        body = b"".join((before, orjson.dumps(result), after))
        return Response(body, media_type=framing.media_type)


def _audited(name: str, changes: bool, *, params: Any) -> AbstractContextManager[None]:
    """Write to the audit log, if there is one, what changes something."""
    return audit.acting(name, params) if changes and audit.process.log else nullcontext()


def _no_answer() -> Response:
    """JSON-RPC forbids an answer to a notification, whatever came of it."""
    return Response(status_code=204)


def _call(
    request: Request,
    dialect: Dialect,
    params: Any,
    *,
    active: frozenset[str],
    notification: bool = False,
) -> Call:
    return Call(
        caller=caller_of(request),
        dialect=dialect,
        params=params,
        idempotency_key=request.headers.get("idempotency-key"),
        last_event_id=_last_event_id(request),
        extensions=active,
        notification=notification,
        disconnected=partial(disconnected, request.receive),
        wait_seconds=_preferred_wait(request),
        depth=_call_depth(request),
        trace=request.scope["state"]["trace"],
        external_url=external_url_of(request),
    )


def _call_depth(request: Request) -> str | None:
    given = request.headers.getlist(DEPTH_HEADER)
    return ",".join(given) if given else None


def _last_event_id(request: Request) -> str | None:
    """The last event a returning client has seen."""
    return request.headers.get("last-event-id") or request.query_params.get("after")


def _preferred_wait(request: Request) -> float | None:
    """How many seconds the client wants to wait for an answer, as RFC 7240 writes it.

    The first preference of a name counts, and what is not understood is ignored.
    """
    if not (given := request.headers.getlist("prefer")):
        return None
    preferences: dict[str, str] = {}
    for preference in ",".join(given).split(","):
        name, _, value = preference.partition(";")[0].partition("=")
        preferences.setdefault(name.strip().lower(), value.strip().strip('"'))
    seconds = preferences.get("wait", "")
    if seconds.isascii() and seconds.isdecimal():
        return float(seconds)
    return 0.0 if "respond-async" in preferences else None


def _log_request(
    request: Request, operation: str, dialect: Dialect, *, active: frozenset[str]
) -> None:
    logger.debug(
        "request.understood",
        operation=operation,
        line=dialect.version,
        version=version_of(request),
        extensions=sorted(active) or None,
        last_event_id=_last_event_id(request),
    )
