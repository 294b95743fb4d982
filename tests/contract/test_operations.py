"""A table of toy operations: everything else about an operation follows from its declaration."""

from __future__ import annotations

from typing import Any

import pytest

from opencode_a2a.contract.a2a import StreamEvent, Task
from opencode_a2a.contract.operations import Operation, OperationTable, Rest
from opencode_a2a.contract.params import Params

TOYS = OperationTable()


class ToyId(Params):
    id: str


@TOYS.operation(
    {"1.0": "GetToy", "0.3": "toys/get"},
    Rest(("GET",), "/toys/{id}"),
    scope="toys:read",
    result=Task,
)
async def get_toy(service: Any, call: Any, params: ToyId) -> dict[str, Any]:
    """Get a toy.

    More about it, for those who read the code.
    """
    return {}


@TOYS.operation({"1.0": "ListToys"}, Rest(("GET",), "/toys"), scope=None, result=Task)
async def list_toys(service: Any, call: Any, params: None) -> dict[str, Any]:
    """List toys."""
    return {}


@TOYS.operation(
    {"1.0": "FollowToy", "0.3": "toys/follow"},
    Rest(("GET", "POST"), "/toys/{id}:follow"),
    scope="toys:read",
    result=StreamEvent,
)
async def follow_toy(service: Any, call: Any, params: ToyId) -> list[Any]:
    """Follow a toy."""
    return []


@TOYS.operation(
    {"1.0": "PaintToy", "0.3": "toys/paint"},
    Rest(("POST",), "/toys/{id}/paint", ("1.0",)),
    scope=None,
    result=None,
)
async def paint_toy(service: Any, call: Any, params: None) -> dict[str, Any]:
    """Paint a toy (not supported)."""
    raise NotImplementedError


def named(name: str) -> Operation:
    return TOYS.methods[name][1]


def test_the_summary_is_the_first_line_of_the_docstring() -> None:
    assert named("GetToy").summary == "Get a toy"


def test_the_parameters_are_those_that_the_function_takes() -> None:
    assert named("GetToy").params is ToyId
    assert named("ListToys").params is None


def test_an_operation_has_one_method_in_each_line_that_knows_it() -> None:
    assert {name: line for name, (line, _) in TOYS.methods.items()} == {
        "GetToy": "1.0",
        "ListToys": "1.0",
        "FollowToy": "1.0",
        "PaintToy": "1.0",
        "toys/get": "0.3",
        "toys/follow": "0.3",
        "toys/paint": "0.3",
    }
    assert named("toys/get") is named("GetToy")
    assert named("toys/get").name == "GetToy"


def test_an_operation_that_only_refuses_is_not_among_the_supported_methods() -> None:
    assert TOYS.supported_methods("0.3") == ["toys/get", "toys/follow"]
    assert TOYS.supported_methods() == [
        *("GetToy", "ListToys", "FollowToy"),
        *("toys/get", "toys/follow"),
    ]


@pytest.mark.parametrize(("name", "streams"), [("FollowToy", True), ("GetToy", False)])
def test_the_result_says_whether_an_operation_streams(name: str, streams: bool) -> None:
    assert named(name).streams is streams


def test_a_route_that_would_match_longer_paths_is_tried_after_them() -> None:
    assert [route.path for route, _ in TOYS.routes] == [
        "/toys",
        "/toys/{id}:follow",
        "/toys/{id}/paint",
        "/toys/{id}",
    ]


def test_paths_of_the_older_line_have_a_prefix() -> None:
    route = named("GetToy").routes[0]
    assert (route.path_in("1.0"), route.path_in("0.3")) == ("/toys/{id}", "/v1/toys/{id}")
