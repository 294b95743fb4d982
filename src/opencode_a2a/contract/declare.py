"""A capability, declared once: dispatch, card, OpenAPI and reference are derived from it.

Declarations are complete when their module is imported. They need no running
service, so the settings alone determine what would be published.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from inspect import getdoc
from typing import Any, Literal, TypeVar, get_type_hints

from ..domain.release import Feature
from ..errors import (
    AuthorizationForbidden,
    InvalidParams,
    MethodDisabled,
    OutcomeUnknown,
    RateLimited,
    ServiceError,
    ShuttingDown,
    StoreUnavailable,
    UpstreamHttpError,
    UpstreamPayloadError,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from .params import Params, Result

Json = dict[str, Any]
P = TypeVar("P", bound=Params)
R = TypeVar("R", bound=Result)
Run = Callable[[Any, Any, P], Awaitable[R]]
Open = Callable[[Any, Any, P], Awaitable[Any]]  # of a stream

SPECIFICATIONS = (
    "https://github.com/Intelligent-Internet/opencode-a2a/blob/main/"
    "docs/extension-specifications.md"
)

# What any method can answer.
COMMON_ERRORS: tuple[type[ServiceError], ...] = (
    InvalidParams,
    AuthorizationForbidden,
    RateLimited,
    UpstreamUnreachable,
    UpstreamTimeout,
    UpstreamHttpError,
    UpstreamPayloadError,
    StoreUnavailable,
    OutcomeUnknown,
    ShuttingDown,
)


@dataclass(frozen=True, slots=True)
class Toggle:
    """The setting without which a method answers that it is disabled, and why."""

    setting: str
    reason: str


@dataclass(frozen=True, slots=True)
class Method:
    name: str
    summary: str
    params: type[Params]
    result: type[Result]
    scope: str  # what the caller's credential must allow
    run: Run[Any, Any]
    errors: tuple[type[ServiceError], ...] = ()  # beyond those every method can answer
    toggle: Toggle | None = None
    needs: Feature | None = None  # of OpenCode
    facts: Mapping[str, Any] = field(default_factory=dict)  # whatever else is worth publishing
    streams: bool = False  # it answers with events, each a `result`
    or_scope: str | None = None  # allows it as well

    @property
    def all_errors(self) -> tuple[type[ServiceError], ...]:
        conditional = self.toggle is not None or self.needs is not None
        switched = (MethodDisabled,) if conditional else ()
        return tuple(dict.fromkeys((*COMMON_ERRORS, *self.errors, *switched)))

    @property
    def params_schema(self) -> Json:
        return self.params.model_json_schema()

    @property
    def result_fields(self) -> list[str]:
        return list(self.result.model_fields)


@dataclass(frozen=True, slots=True)
class Extension:
    """What the card lists under one URI: metadata, methods, or both."""

    anchor: str
    title: str
    description: str
    scope: Literal["shared", "opencode", "profile"]
    aliases: tuple[str, ...] = ()  # older names, understood where a client names extensions
    public: Mapping[str, Any] = field(default_factory=dict)  # params of the public card
    extended: Mapping[str, Any] = field(default_factory=dict)  # what the extended card adds
    methods: list[Method] = field(default_factory=list)
    specified_at: str | None = None  # where it is not our specification

    @property
    def uri(self) -> str:
        return self.specified_at or f"{SPECIFICATIONS}#{self.anchor}"

    def method(
        self,
        name: str,
        *,
        scope: str,
        errors: tuple[type[ServiceError], ...] = (),
        toggle: Toggle | None = None,
        needs: Feature | None = None,
        **facts: Any,
    ) -> Callable[[Run[P, R]], Run[P, R]]:
        """Declare a method: its docstring is the summary, its annotations are the schema."""

        def declare(run: Run[P, R]) -> Run[P, R]:
            types = get_type_hints(run)
            method = Method(
                name=name,
                summary=getdoc(run) or "",
                params=types["params"],
                result=types["return"],
                scope=scope,
                run=run,
                errors=errors,
                toggle=toggle,
                needs=needs,
                facts=facts,
            )
            self.methods.append(method)
            return run

        return declare

    def stream(
        self,
        name: str,
        *,
        event: type[Result],
        scope: str,
        or_scope: str | None = None,
        errors: tuple[type[ServiceError], ...] = (),
        **facts: Any,
    ) -> Callable[[Open[P]], Open[P]]:
        """Declare a method that answers with events; `event` is the shape of each.

        What it returns is turned into events by the edge.
        """

        def declare(run: Open[P]) -> Open[P]:
            method = Method(
                name=name,
                summary=getdoc(run) or "",
                params=get_type_hints(run)["params"],
                result=event,
                scope=scope,
                run=run,
                errors=errors,
                facts={"result": "stream", **facts},
                streams=True,
                or_scope=or_scope,
            )
            self.methods.append(method)
            return run

        return declare
