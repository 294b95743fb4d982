"""A toy extension proves it: declared once, a method is called, refused and described."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
from pydantic import Field

from opencode_a2a.contract.a2a import Message, Rendered, written
from opencode_a2a.contract.declare import Extension, Toggle
from opencode_a2a.contract.dispatch import Contract
from opencode_a2a.contract.params import Params, Result
from opencode_a2a.errors import AuthorizationForbidden, InvalidParams, MethodDisabled

TOY = Extension("toy-v1", "Toy v1", "Plays.", "opencode")


@dataclass(frozen=True)
class Toys:
    count: int


@dataclass(frozen=True)
class Asker:
    scopes: frozenset[str] = frozenset({"toys"})


class Ball(Params):
    class Colour(Params):
        name: str

    size: int = Field(ge=1)
    colours: list[Colour] = Field(default=[])


class Played(Result):
    size: int
    toys: int
    by: str | None = None


class Word(Result):
    item: Annotated[Toys, Rendered(Message)]


@TOY.method("toy.play", scope="toys")
async def play(toys: Toys, caller: Asker, params: Ball) -> Played:
    """Play with the ball."""
    return Played(size=params.size, toys=toys.count)


@TOY.method("toy.throw", scope="toys", toggle=Toggle("A2A_ENABLE_THROWING", "Windows are near."))
async def throw(toys: Toys, caller: Asker, params: Params) -> Word:
    """Throw it."""
    return Word(item=toys)


def contract(*enabled: str) -> Contract:
    return Contract([TOY], enabled, Toys(3))


async def test_a_declared_method_is_called_with_what_it_needs() -> None:
    result = await contract().call("toy.play", Asker(), {"size": 2})
    assert written(result, str) == {"size": 2, "toys": 3, "by": None}


async def test_what_differs_between_lines_is_written_by_the_edge() -> None:
    result = await contract("A2A_ENABLE_THROWING").call("toy.throw", Asker(), None)
    assert written(result, lambda toys: {"toys": toys.count}) == {"item": {"toys": 3}}


@pytest.mark.parametrize(
    ("params", "field", "problem"),
    [
        ({}, "size", "Field required"),
        ({"size": "2"}, "size", "Input should be a valid integer"),
        ({"size": 2, "weight": 1}, "weight", "there is no such parameter"),
        ({"size": 2, "colours": [{"name": "red"}, {}]}, "colours[1].name", "Field required"),
        ({"size": 2, "colours": [{"name": "", "x": 1}]}, "colours[0].x", "there is no such"),
    ],
)
async def test_a_wrong_parameter_is_named(
    params: dict[str, object], field: str, problem: str
) -> None:
    with pytest.raises(InvalidParams) as refused:
        await contract().call("toy.play", Asker(), params)
    assert list(refused.value.fields) == [field]
    assert problem in refused.value.fields[field]
    assert field in refused.value.message


async def test_a_credential_without_the_scope_is_refused() -> None:
    with pytest.raises(AuthorizationForbidden) as refused:
        await contract().call("toy.play", Asker(frozenset()), {"nonsense": 1})
    assert refused.value.facts == {"required_scope": "toys"}


async def test_a_method_that_is_switched_off_says_which_setting_would_help() -> None:
    with pytest.raises(MethodDisabled) as refused:
        await contract().call("toy.throw", Asker(), {})
    assert refused.value.facts == {"method": "toy.throw", "setting": "A2A_ENABLE_THROWING"}
    assert "Windows are near." in refused.value.message
    assert contract().available == ["toy.play"]
    assert contract("A2A_ENABLE_THROWING").available == ["toy.play", "toy.throw"]


def test_the_declaration_describes_itself() -> None:
    play, throw = TOY.methods
    assert TOY.uri.endswith("/docs/extension-specifications.md#toy-v1")
    assert play.summary == "Play with the ball."
    assert play.params_schema["required"] == ["size"]
    assert play.params_schema["additionalProperties"] is False
    assert throw.result_fields == ["item"]
    published = throw.result.model_json_schema(mode="serialization")
    assert published["properties"]["item"]["$ref"] == "#/$defs/Message"
    assert "messageId" in published["$defs"]["Message"]["properties"]
