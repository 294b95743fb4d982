"""Declarations as documents: what the card, OpenAPI, the wire contract and the reference say.

Everything here is read off the declarations and which of them are switched on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic.json_schema import models_json_schema

from .declare import COMMON_ERRORS, Extension, Json, Method
from .dispatch import Contract

REF = "#/components/schemas/{model}"


def card_extensions(
    contract: Contract, extended: bool, more: Mapping[str, Json] | None = None
) -> list[Json]:
    """What the card lists: little for everybody, all of it for those who are known here.

    `more` holds, by anchor, what depends on the deployment as a whole.
    """
    listed = []
    for extension in contract.extensions:
        about: Json = {
            "uri": extension.uri,
            "description": extension.description,
            "required": False,
        }
        params = dict(extension.public)
        if extended:
            params |= full_contract(contract, extension)
        params |= (more or {}).get(extension.anchor, {})
        listed.append(about | ({"params": params} if params else {}))
    return listed


def full_contract(contract: Contract, extension: Extension) -> Json:
    about: Json = {"title": extension.title, "scope": extension.scope, **extension.extended}
    if extension.methods:
        about["methods"] = {m.name: method_contract(contract, m) for m in extension.methods}
        about["errors_of_every_method"] = [error.type for error in COMMON_ERRORS]
        about["errors"] = {
            error.type: {"code": error.rpc_code, "http_status": error.rpc_http_status()}
            for method in extension.methods
            for error in method.all_errors
        }
    return about


def method_contract(contract: Contract, method: Method) -> Json:
    """All about a method but the schema of its result: that is large, and OpenAPI has it."""
    return {
        "summary": method.summary.partition("\n")[0],
        **method.facts,
        "scope": method.scope,
        **({"or_scope": method.or_scope} if method.or_scope is not None else {}),
        **availability(contract, method),
        "params": inlined(untitled(method.params_schema)),
        "result_fields": method.result_fields,
        "errors": [error.type for error in method.all_errors if error not in COMMON_ERRORS],
    }


def inlined(schema: Any, definitions: Mapping[str, Any] | None = None) -> Any:
    """A schema with what it refers to in its place.

    It stands somewhere inside a document, from whose root its own references would not lead
    anywhere. No parameters of ours contain themselves.
    """
    if isinstance(schema, list):
        return [inlined(each, definitions) for each in schema]
    if not isinstance(schema, dict):
        return schema
    known = definitions if definitions is not None else schema.get("$defs", {})
    if "$ref" in schema:
        named = known[schema["$ref"].removeprefix("#/$defs/")]
        schema = named | {key: value for key, value in schema.items() if key != "$ref"}
        return inlined(schema, known)
    return {
        key: inlined(value, known)
        for key, value in schema.items()
        if key not in ("$defs", "discriminator")  # which is made of references; const says the same
    }


def untitled(schema: Any) -> Any:
    """Without the titles that only repeat names."""
    if isinstance(schema, list):
        return [untitled(each) for each in schema]
    if isinstance(schema, dict):
        return {
            key: untitled(value)
            for key, value in schema.items()
            if key != "title" or not isinstance(value, str)
        }
    return schema


def availability(contract: Contract, method: Method) -> Json:
    if method.needs is not None and contract.lacks(method):
        return {"availability": "disabled", "reason": method.needs.effect}
    if method.toggle is None:
        return {"availability": "always"}
    return {
        "availability": "enabled" if contract.enabled(method) else "disabled",
        "toggle": method.toggle.setting,
        "reason": method.toggle.reason,
    }


def is_conditional(contract: Contract, method: Method) -> bool:
    """Whether it depends on this deployment that a method can be called."""
    return method.toggle is not None or contract.lacks(method)


def methods_of(extensions: Iterable[Extension]) -> Iterator[tuple[Extension, Method]]:
    for extension in extensions:
        for method in extension.methods:
            yield extension, method


def schemas(
    models: Iterable[tuple[type[Any], str]],
) -> tuple[dict[tuple[type[Any], str], Json], Json]:
    """References to models, each `validation` or `serialization`, and their definitions."""
    references, definitions = models_json_schema(
        list(dict.fromkeys(models)),  # type: ignore[arg-type]
        ref_template=REF,
    )
    return references, definitions.get("$defs", {})  # type: ignore[return-value]


def markdown(extension: Extension) -> list[str]:
    """The methods of an extension as a page of the reference shows them."""
    lines = [f"## {extension.title}", "", f"`{extension.uri}`", "", extension.description]
    for method in extension.methods:
        lines += ["", f"### `{method.name}`", "", method.summary, ""]
        also = f" or `{method.or_scope}`" if method.or_scope is not None else ""
        lines.append(f"Scope `{method.scope}`{also}.")
        if method.toggle is not None:
            lines[-1] += f" Only with `{method.toggle.setting}=true`: {method.toggle.reason}"
        if method.needs is not None:
            lines[-1] += f" Not on every OpenCode: {method.needs.effect}"
        schema = method.params_schema
        if fields := list(_fields(schema, schema)):
            lines += ["", "| parameter | type | meaning |", "|---|---|---|", *fields]
        results = ", ".join(f"`{name}`" for name in method.result_fields)
        kind = "Answers with Server-Sent Events, each with one of" if method.streams else "Result:"
        lines += ["", f"{kind} {results}."]
        errors = ", ".join(f"`{error.type}`" for error in method.errors)
        if errors:
            lines += ["", f"Errors, besides those of every method: {errors}."]
    return lines


def _fields(schema: Json, whole: Json, prefix: str = "") -> Iterator[str]:
    for name, field in schema.get("properties", {}).items():
        needed = "" if name in schema.get("required", []) else "?"
        inner = _resolved(field, whole)
        kind = _kind(field, whole)
        yield f"| `{prefix}{name}`{needed} | {kind} | {field.get('description', '')} |"
        if inner.get("properties"):
            yield from _fields(inner, whole, f"{prefix}{name}.")


def _resolved(field: Json, whole: Json) -> Json:
    options = [option for option in field.get("anyOf", [field]) if option.get("type") != "null"]
    found: Json = options[0] if len(options) == 1 else field
    if "$ref" in found:
        return _resolved(whole["$defs"][found["$ref"].rpartition("/")[2]], whole)
    return found


def _kind(field: Json, whole: Json) -> str:
    inner = _resolved(field, whole)
    if "const" in inner or "enum" in inner:
        return " or ".join(f"`{value}`" for value in inner.get("enum", [inner.get("const")]))
    kind = str(inner.get("type", "any"))
    if kind == "array":
        items = inner.get("items", {})
        options = items.get("oneOf", [items])
        return "list of " + " or ".join(_kind(option, whole) for option in options)
    if kind == "object" and "title" in inner and "properties" in inner:
        return f"object ({inner['title']})"
    return f"{kind}, `{inner['pattern']}`" if "pattern" in inner else kind
