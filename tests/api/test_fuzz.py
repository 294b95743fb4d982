"""Whatever is sent, the answer has the protocol's shape, and is never our fault.

FUZZ_EXAMPLES=5000 looks longer than an ordinary run does.
"""

from __future__ import annotations

import copy
import json
import os
import string
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.api.forms import FORMS, METHODS, REST_03, REST_1, ROUTES, RPC_03, RPC_1, Form, Json

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "100"))
FUZZ = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    derandomize="FUZZ_EXAMPLES" not in os.environ,  # the same in every ordinary run
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)

UNLIKELY = st.sampled_from(
    [
        "",
        "\0",
        "\u2028",
        "💥",
        "../../x",
        "%2e%2e",
        "'; --",
        "a" * 256,
        "1e400",
        "null",
        "__proto__",
    ]
)
TEXT = st.one_of(st.text(max_size=12), UNLIKELY)
NUMBERS = st.one_of(
    st.integers(), st.sampled_from([2**31, 2**53 + 1, 2**63, 2**64, 10**40, -(2**63) - 1])
)
SCALARS = st.one_of(
    st.none(), st.booleans(), NUMBERS, st.floats(allow_nan=False, allow_infinity=False), TEXT
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXT, inner, max_size=4)),
    max_leaves=12,
)
OPERATIONS = tuple(ROUTES)


def valid(form: Form, operation: str) -> Json:
    """A request that would work, or fail only because there is no such task."""
    if operation in ("send", "stream"):
        data: Json = {"kind": "data"} if form.tagged else {}
        data["data"] = {"data": {"a": [1]}} if form is REST_03 else {"a": [1]}
        file = form.file(raw="YQ==", media_type="text/plain")
        asked = form.sending("hello", data, file, contextId="fuzz", metadata={"a": {"b": 1}})
        asked["configuration"] |= {"historyLength": 1, "acceptedOutputModes": ["text/plain"]}
        return asked
    if operation == "list":
        return {
            "contextId": "fuzz",
            "status": form.state("completed"),
            "pageSize": 3,
            "pageToken": "MTc2OTg2MDgwMDAwMDo=",
            "historyLength": 2,
            "includeArtifacts": True,
            "statusTimestampAfter": "2026-01-31T12:00:00Z",
        }
    return {"id": "missing", "historyLength": 1, "config": "any", "metadata": {}}


def places(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of everything inside a value."""
    found = [here]
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            found += places(item, (*here, key))
    return found


def changed(value: Any, path: tuple[Any, ...], change: Callable[[Any], Any]) -> Any:
    if not path:
        return change(value)
    result = copy.copy(value)
    result[path[0]] = changed(value[path[0]], path[1:], change)
    return result


@st.composite
def mutated(draw: st.DrawFn, form: Form, operation: str) -> Any:
    """A valid request with a few things dropped, replaced, added or doubled."""
    body: Any = valid(form, operation)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(places(body)))
        what = draw(st.sampled_from(["replace", "drop", "add", "double", "wrap"]))
        other = draw(ANYTHING)
        name = draw(TEXT)

        def change(old: Any, what: str = what, other: Any = other, name: str = name) -> Any:
            match what, old:
                case "drop", dict():
                    return dict(list(old.items())[1:])
                case "drop", list():
                    return old[1:]
                case "add", dict():
                    return {**old, name: other}
                case "add", list():
                    return [*old, other]
                case "double", list():
                    return old * 2
                case "wrap", _:
                    return [old]
                case _:
                    return other

        body = changed(body, path, change)
    return body


def sound(form: Form, response: httpx.Response, rpc_id: Any = 1) -> None:
    """An answer, a stream or a refusal, in this form's shape; and nothing went wrong inside."""
    assert response.status_code < 500, response.text
    if response.headers.get("content-type", "").startswith("text/event-stream"):
        frames = list(form.frames(response, rpc_id))
        assert frames[0].kind == "task"
    elif "error" in (body := response.json()) or response.status_code != 200:
        form.refusal(response, rpc_id)
    else:
        assert isinstance(body, dict)
        form.result(response, rpc_id)


@FUZZ
@given(data=st.data())
def test_a_request_that_was_tampered_with_is_answered_in_shape(
    client: httpx.Client, data: st.DataObject
) -> None:
    form = data.draw(st.sampled_from(FORMS))
    operation = data.draw(st.sampled_from([o for o in OPERATIONS if form.offers(o)]))
    params = data.draw(mutated(form, operation))
    if form.rpc:
        body = {"jsonrpc": "2.0", "id": 1, "method": form.method(operation), "params": params}
        sound(form, client.post("/", json=body, headers=form.version))
        return
    verb, path = form.route(operation)
    path = path.format(id="missing", task_id="missing", config_id="any")
    if verb == "POST":
        sound(form, client.request(verb, path, json=params, headers=form.version))
    else:
        given_ = params if isinstance(params, dict) else {"x": params}
        query = {
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in given_.items()
        }
        sound(form, client.request(verb, path, params=query, headers=form.version))


@FUZZ
@given(data=st.data())
def test_any_json_is_answered_in_shape(client: httpx.Client, data: st.DataObject) -> None:
    form = data.draw(st.sampled_from(FORMS))
    body = data.draw(ANYTHING)
    if not form.rpc:
        operation = data.draw(st.sampled_from(["send", "stream", "cancel", "subscribe"]))
        path = form.route(operation).path.format(id="missing")
        sound(form, client.post(path, json=body, headers=form.version))
        return
    methods = [method for line in METHODS.values() for method in line.values()]
    envelope = data.draw(
        st.one_of(
            st.just(body),
            st.fixed_dictionaries(
                {"jsonrpc": st.just("2.0"), "params": st.just(body)},
                optional={
                    "id": SCALARS,
                    "method": st.one_of(st.sampled_from(methods), SCALARS),
                    "more": SCALARS,
                },
            ),
        )
    )
    response = client.post("/", json=envelope, headers=form.version)
    assert response.status_code < 500, response.text
    if response.status_code == 204:
        assert isinstance(envelope, dict)
        assert "id" not in envelope
        return
    if response.headers["content-type"].startswith("text/event-stream"):
        return
    answer = response.json()
    assert answer.keys() in ({"jsonrpc", "id", "error"}, {"jsonrpc", "id", "result"}), answer
    if "error" in answer:
        # The method decides the line; before it is known, the header does.
        method = envelope.get("method") if isinstance(envelope, dict) else None
        old = any(method == name for name in METHODS["0.3"].values())
        new = any(method == name for name in METHODS["1.0"].values())
        known = RPC_03 if old else RPC_1 if new else form
        if isinstance(answer["error"]["data"], dict) != (known is RPC_03):
            known = form  # refused before the method was looked at
        known.refusal(response, answer["id"])


@FUZZ
@given(
    content=st.one_of(
        st.binary(max_size=60),
        st.text(string.printable, max_size=60).map(str.encode),
        ANYTHING.map(lambda value: json.dumps(value).encode()[:-1]),
    ),
    media_type=st.sampled_from(["application/json", "application/a2a+json", "text/plain", ""]),
    form=st.sampled_from(FORMS),
)
def test_any_bytes_are_answered_in_shape(
    client: httpx.Client, content: bytes, media_type: str, form: Form
) -> None:
    path = "/" if form.rpc else form.route("send").path
    headers = {"content-type": media_type, **form.version}
    response = client.post(path, content=content, headers=headers)
    assert 400 <= response.status_code < 500 or form.rpc
    form.refusal(response, None)


@FUZZ
@given(
    segments=st.lists(
        st.one_of(
            st.sampled_from(["v1", "tasks", "message:send", "tasks:cancel", "x:cancel", ":", ".."]),
            TEXT.map(lambda text: quote(text, safe=":")),
        ),
        min_size=1,
        max_size=4,
    ),
    query=st.dictionaries(
        st.one_of(st.sampled_from(["pageSize", "history_length", "status"]), TEXT), TEXT, max_size=3
    ),
    verb=st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH"]),
    version=st.one_of(st.none(), st.sampled_from(["1.0", "0.3", "9.9", "x"])),
)
def test_any_path_is_answered_in_shape(
    client: httpx.Client,
    segments: list[str],
    query: dict[str, str],
    verb: str,
    version: str | None,
) -> None:
    headers = {"a2a-version": version} if version else {}
    url = client.base_url.copy_with(raw_path=("/" + "/".join(segments)).encode(), query=None)
    response = client.request(verb, url, params=query, headers=headers)
    assert response.status_code < 500, response.text
    path = response.request.url.path
    if path == "/":
        assert response.json()["jsonrpc"] == "2.0"
    elif response.status_code != 200:
        form = REST_03 if path.startswith("/v1/") else REST_1
        shape = "error" in response.json()
        assert shape == (form is REST_1) or path.startswith("/v1/")
        (REST_1 if shape else REST_03).refusal(response)


@FUZZ
@given(
    headers=st.dictionaries(
        st.sampled_from(
            [
                "a2a-version",
                "a2a-extensions",
                "x-a2a-extensions",
                "last-event-id",
                "accept",
                "content-type",
                "content-encoding",
                "if-none-match",
                "idempotency-key",
                "x-forwarded-for",
            ]
        ),
        st.binary(max_size=30).map(lambda raw: bytes(b for b in raw if 32 <= b != 127)),
        max_size=4,
    ),
    form=st.sampled_from(FORMS),
    operation=st.sampled_from(["get", "send", "subscribe"]),
)
def test_any_header_is_answered_in_shape(
    client: httpx.Client, headers: dict[str, bytes], form: Form, operation: str
) -> None:
    params = form.sending("hello") if operation == "send" else {"id": "missing"}
    request = form.request(client, operation, params)
    kept = [pair for pair in request.headers.raw if pair[0].decode().lower() not in headers]
    extra = [(name.encode(), value.strip()) for name, value in headers.items()]
    request.headers = httpx.Headers([*kept, *extra])
    response = client.send(request)
    assert response.status_code < 500, response.text
    if form.rpc:
        assert response.json()["jsonrpc"] == "2.0"
    elif response.status_code != 200:
        form.refusal(response)
