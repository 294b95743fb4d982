"""What clients send, checked: every wrong field is named."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from ..errors import InvalidParams

M = TypeVar("M", bound=BaseModel)
MOST_PARTS = 256  # of one message


def _id(prefix: str, about: str) -> Any:
    return Field(pattern=rf"^{prefix}_[A-Za-z0-9]+$", max_length=64, description=about)


SessionId = Annotated[str, _id("ses", "An OpenCode session")]
MessageId = Annotated[str, _id("msg", "A message of the session")]
PartId = Annotated[str, _id("prt", "A part of the message")]
WorkspaceId = Annotated[str, _id("wrk", "An OpenCode workspace")]
Directory = Annotated[
    str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00]+$", description="A directory")
]


class Params(BaseModel):
    """Parameters of a method of ours: strict, and nothing beyond what is declared."""

    # Built when first used: a service that starts needs none of them to answer.
    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)


class Result(BaseModel):
    """What a method of ours answers."""

    model_config = ConfigDict(defer_build=True)  # as with parameters


def validated(model: type[M], raw: Any) -> M:
    try:
        return model.model_validate(raw if raw is not None else {})
    except ValidationError as exc:
        fields = {_path(error["loc"]): _words(error) for error in exc.errors()}
        named = "; ".join(f"{field}: {problem}" for field, problem in fields.items())
        raise InvalidParams(f"Invalid parameters: {named}", fields=fields) from None


def _path(loc: tuple[int | str, ...]) -> str:
    path = ""
    for step in loc:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else str(step)
    return path or "params"


def _words(error: ErrorDetails) -> str:
    if error["type"] == "extra_forbidden":
        return "there is no such parameter"
    if error["type"] in ("model_type", "dict_type"):  # the library would name our class
        return "must be an object"
    return error["msg"].removeprefix("Value error, ")
