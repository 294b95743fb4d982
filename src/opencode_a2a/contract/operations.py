"""A2A's own operations, each declared once, in the style of extension methods.

JSON-RPC dispatch, REST routes, scope checks, OpenAPI, the wire contract and the
reference follow from the declarations.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from inspect import getdoc
from types import NoneType
from typing import Any, Literal, get_type_hints

from pydantic import BaseModel

from .a2a import Shape, StreamEvent

Line = Literal["1.0", "0.3"]
LINES: tuple[Line, ...] = ("1.0", "0.3")
Run = Callable[[Any, Any, Any], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Rest:
    """A REST route of an operation."""

    verbs: tuple[str, ...]
    path: str
    lines: tuple[Line, ...] = LINES

    def path_in(self, line: Line) -> str:
        return self.path if line == "1.0" else f"/v1{self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    methods: Mapping[Line, str]  # the name of its JSON-RPC method, in the lines that have one
    routes: tuple[Rest, ...]
    summary: str
    scope: str | None  # what the caller's credential must allow; None where any credential does
    admin: bool  # the scope `admin` allows it as well, for everybody's tasks
    params: type[BaseModel] | None  # None where the parameters are not read
    result: type[Shape] | None  # None where the operation always answers with an error
    sends_message: bool  # an Idempotency-Key is read
    run: Run
    takes_body: bool = False  # REST needs one
    needs: str | None = None  # the setting without which it is refused

    @property
    def name(self) -> str:
        """What A2A 1.0 calls it."""
        return self.methods["1.0"]

    @property
    def supported(self) -> bool:
        return self.result is not None

    @property
    def streams(self) -> bool:
        """Whether it answers with events, or else with one value."""
        return self.result is StreamEvent

    @property
    def changes(self) -> bool:
        """Whether it changes something, as its scope says."""
        return self.scope is not None and not self.scope.endswith(":read")


@dataclass(frozen=True, slots=True)
class OperationTable:
    operations: list[Operation] = field(default_factory=list)

    def operation(
        self,
        methods: Mapping[Line, str],
        *routes: Rest,
        scope: str | None,
        result: type[Shape] | None,
        sends_message: bool = False,
        admin: bool = False,
        takes_body: bool = False,
        needs: str | None = None,
    ) -> Callable[[Run], Run]:
        """Declare an operation: its docstring is the summary, `params` is annotated."""

        def declare(run: Run) -> Run:
            params = get_type_hints(run)["params"]
            self.operations.append(
                Operation(
                    methods=methods,
                    routes=routes,
                    summary=(getdoc(run) or "").partition("\n")[0].rstrip("."),
                    scope=scope,
                    admin=admin,
                    params=None if params is NoneType else params,
                    result=result,
                    sends_message=sends_message,
                    run=run,
                    takes_body=takes_body or sends_message,
                    needs=needs,
                )
            )
            return run

        return declare

    def without(self, setting: str, refuse: Run, summary: str) -> OperationTable:
        """The same table, in which whatever needs this setting is refused."""
        refused: dict[str, Any] = {"params": None, "result": None, "scope": None, "admin": False}
        return OperationTable(
            [
                replace(operation, **refused, run=refuse, summary=summary, takes_body=False)
                if operation.needs == setting
                else operation
                for operation in self.operations
            ]
        )

    @property
    def methods(self) -> dict[str, tuple[Line, Operation]]:
        """Every JSON-RPC method, the newer line first."""
        return {
            operation.methods[line]: (line, operation)
            for line in LINES
            for operation in self.operations
            if line in operation.methods
        }

    def supported_methods(self, *lines: Line) -> list[str]:
        """The JSON-RPC methods that do something, of these lines or of all."""
        return [
            name
            for name, (line, operation) in self.methods.items()
            if operation.supported and line in (lines or LINES)
        ]

    @property
    def routes(self) -> list[tuple[Rest, Operation]]:
        """Every REST route, in the order in which a router has to try them.

        `/tasks/{id}` also matches `/tasks/1:cancel`, so a path that ends with a variable
        comes after all paths that begin like it.
        """
        declared = [
            (route, operation) for operation in self.operations for route in operation.routes
        ]
        paths = [route.path for route, _ in declared]

        def position(index: int) -> tuple[int, int]:
            path, after = paths[index], index
            if path.endswith("}"):
                after = max(i for i, other in enumerate(paths) if other.startswith(path))
            return after, -len(path)

        return [declared[index] for index in sorted(range(len(declared)), key=position)]
