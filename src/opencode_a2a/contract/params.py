"""What strangers send, checked: every wrong field is named."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from ..errors import InvalidParams

M = TypeVar("M", bound=BaseModel)


class Params(BaseModel):
    """Parameters of a method of ours: strict, and nothing beyond what is declared."""

    # Built when first used: a service that starts needs none of them to answer.
    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)


def validated(model: type[M], raw: Any) -> M:
    try:
        return model.model_validate(raw if raw is not None else {})
    except ValidationError as exc:
        fields = {_path(error["loc"]): _words(error["msg"]) for error in exc.errors()}
        named = "; ".join(f"{field}: {problem}" for field, problem in fields.items())
        raise InvalidParams(f"Invalid parameters: {named}", fields=fields) from None


def _path(loc: tuple[int | str, ...]) -> str:
    path = ""
    for step in loc:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else str(step)
    return path or "params"


def _words(message: str) -> str:
    if message == "Extra inputs are not permitted":
        return "there is no such parameter"
    return message.removeprefix("Value error, ")
