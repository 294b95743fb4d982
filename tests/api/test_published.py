"""Real answers of both lines, held against what the service publishes about them."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from opencode_a2a.domain.task import Task, TaskHead
from opencode_a2a.extensions import ALL
from opencode_a2a.inbound.dialect import V03, V03_REST, V1, Dialect
from opencode_a2a.inbound.render import Renderer
from tests.api.forms import REST_03, REST_1, RPC_03, RPC_1, SHAPES, Form, Json, published

RPC = pytest.mark.parametrize("form", [RPC_1, RPC_03], ids=lambda form: form.name)


@pytest.fixture(scope="module")
def document(client: httpx.Client) -> Json:
    found: Json = client.get("/openapi.json").json()
    return found


def schema(document: Json, name: str) -> Draft202012Validator:
    components = {"components": document["components"]}
    return Draft202012Validator({"$ref": f"#/components/schemas/{name}", **components})


def ask(client: httpx.Client, form: Form, method: str, params: Any = None) -> httpx.Response:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return client.post("/", json=body, headers=form.version)


@RPC
@pytest.mark.parametrize("where", ["openapi", "card"])
def test_an_unknown_method_is_refused_as_the_wire_contract_says(
    client: httpx.Client, document: Json, form: Form, where: str
) -> None:
    if where == "openapi":
        contract = document["x-a2a-wire-contract"]
    else:
        card = form.result(form.call(client, "card"))
        (contract,) = (
            extension["params"]
            for extension in card["capabilities"]["extensions"]
            if extension["uri"].endswith("#a2a-wire-contract-v1")
        )
    told = contract["unsupported_method_error"]
    error = ask(client, form, "no.such.method").json()["error"]
    assert error["code"] == told["code"]
    described = told["data_schema"][form.line]
    Draft202012Validator.check_schema(described)
    Draft202012Validator(described).validate(error["data"])
    info = error["data"] if form.line == "0.3" else error["data"][0]["metadata"]
    kind = error["data"]["type"] if form.line == "0.3" else error["data"][0]["reason"]
    assert kind == told["type"]
    assert {"type", *info} == set(told["data_fields"])
    assert info["method"] == "no.such.method"
    assert info["protocol_version"] == form.line
    names = info["supported_methods"]
    listed = names if form.line == "0.3" else names.split(",")
    assert listed == contract["all_jsonrpc_methods"]
    # The description says something: the other line's answer is not taken for this one's.
    other = RPC_03 if form is RPC_1 else RPC_1
    foreign = ask(client, other, "no.such.method").json()["error"]["data"]
    assert not Draft202012Validator(described).is_valid(foreign)


WRONG: dict[str, tuple[str, Any]] = {
    "no method": ("no.such.method", None),
    "no task": ("get", {"id": "missing"}),
    "wrong fields": ("send", {"message": {}}),
    "no push": ("push.create", {"id": "x"}),
}


@RPC
@pytest.mark.parametrize("what", WRONG)
def test_an_error_over_json_rpc_is_as_published(
    client: httpx.Client, document: Json, form: Form, what: str
) -> None:
    name, params = WRONG[what]
    method = name if name.startswith("no.") else form.method(name)
    error = ask(client, form, method, params).json()["error"]
    schema(document, "RpcError").validate(error)
    details = document["components"]["schemas"]["RpcError"]["properties"]["data"]["anyOf"]
    assert len(details) == 2, "a shape for each line"
    matching = [
        Draft202012Validator({**shape, "components": document["components"]}).is_valid(
            error["data"]
        )
        for shape in details
    ]
    assert matching.count(True) == 1


@pytest.mark.parametrize("form", [REST_1, REST_03], ids=lambda form: form.name)
@pytest.mark.parametrize(
    ("operation", "params"),
    [("get", {"id": "missing"}), ("send", {"message": {}}), ("push.list", {"id": "x"})],
)
def test_an_error_over_rest_is_as_published(
    client: httpx.Client, document: Json, form: Form, operation: str, params: Json
) -> None:
    response = form.call(client, operation, params)
    verb, path = form.route(operation)
    declared = document["paths"][path][verb.lower()]["responses"][str(response.status_code)]
    name = declared["$ref"].rpartition("/")[2]
    content = document["components"]["responses"][name]["content"]
    media = content[response.headers["content-type"]]
    components = {"components": document["components"]}
    Draft202012Validator({**media["schema"], **components}).validate(response.json())


def test_an_error_of_an_extension_has_the_code_and_status_of_its_contract(
    client: httpx.Client, document: Json
) -> None:
    """Its methods are there over JSON-RPC only: that is the status that is published."""
    unknown = {"session_id": "ses_doesNotExist"}
    for method, params in (
        ("opencode.sessions.get", {"session_id": 1}),
        ("opencode.sessions.get", unknown),
        ("opencode.sessions.shell", unknown),
        ("opencode.workspaces.create", {}),
        ("a2a.interrupt.permission.reply", {"request_id": "per_none", "reply": "once"}),
    ):
        response = ask(client, RPC_03, method, params)
        error = response.json()["error"]
        (extension,) = (e for e in ALL if any(m.name == method for m in e.methods))
        declared = document["x-a2a-extension-contracts"][extension.uri]["errors"]
        told = declared[error["data"]["type"]]
        assert told == {"code": error["code"], "http_status": response.status_code}, method


@pytest.mark.parametrize("operation", ["cancel", "subscribe"])
def test_only_what_counts_is_published_as_a_parameter(document: Json, operation: str) -> None:
    """How much of the history is wanted: nobody looks at that where a task is cancelled."""
    calls = document["paths"]["/"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    for form in (RPC_1, RPC_03):
        (call,) = (c for c in calls["oneOf"] if c["title"] == form.method(operation))
        name = call["properties"]["params"]["$ref"].rpartition("/")[2]
        assert document["components"]["schemas"][name]["properties"].keys() == {"id"}
    for form in (REST_1, REST_03):
        for verb in document["paths"][form.route(operation).path].values():
            named = [p["name"] for p in verb["parameters"] if p["in"] != "header"]
            assert named == (["id"] if operation == "cancel" else ["id", "after"])


def test_what_a_message_refers_to_is_published(client: httpx.Client, form: Form) -> None:
    """Each answer is held against what is published, and nothing more (`forms.published`)."""
    first = form.send(client, "one")
    uri = "https://example.com/an-extension"
    more = {"extensions": [uri], "referenceTaskIds": [first["id"]]}
    task = form.send(client, "two", form.file(raw="aGk=", media_type="text/plain"), **more)
    shown = form.get(client, task["id"])["history"][0]
    assert (shown["extensions"], shown["referenceTaskIds"]) == ([uri], [first["id"]])


@pytest.mark.parametrize("hints", [False, True])
@pytest.mark.parametrize(
    "text", ["[[reason:2]] [[tool:bash]] hi", "[[permission]]", "[[error:500]]"]
)
def test_what_is_sent_is_published(
    client: httpx.Client, form: Form, text: str, *, hints: bool
) -> None:
    request = form.request(client, "stream", form.sending(text))
    if hints:
        request.headers["a2a-extensions"] = "urn:a2a:stream-hints/v1"
    kinds = {frame.kind for frame in form.frames(client.send(request))}
    assert kinds >= {"task", "status"}


@pytest.mark.parametrize("dialect", [V1, V03, V03_REST], ids=lambda dialect: dialect.name)
def test_a_task_that_stands_for_what_was_missed_is_as_published(dialect: Dialect) -> None:
    head = TaskHead("t", "c", "alice", 1)
    first = json.loads(Renderer(dialect).first(Task.of(head, []), gap="compacted"))
    task = first if dialect.tagged else first["task"]
    assert task["metadata"]["shared"]["stream"]["replay"] == "snapshot"
    SHAPES["task"].validate(task)


@pytest.mark.parametrize("form", [RPC_1, REST_1], ids=lambda form: form.name)
def test_a_list_is_as_published(client: httpx.Client, form: Form) -> None:
    form.send(client, "hello")
    published("TaskList").validate(
        form.result(form.call(client, "list", {"includeArtifacts": True}))
    )
