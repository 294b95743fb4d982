"""Every way to be refused: the right code and status, in the shape of whoever asked."""

from __future__ import annotations

import base64
import json
from typing import Any

import httpx
import pytest

from opencode_a2a.contract.params import MOST_PARTS
from tests.api.forms import (
    CALL_TOO_DEEP,
    CONTENT_TYPE_NOT_SUPPORTED,
    FORMS,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    METHODS,
    PARSE_ERROR,
    PAYLOAD_TOO_LARGE,
    PUSH_NOT_SUPPORTED,
    REST_03,
    REST_1,
    RPC_03,
    RPC_1,
    TASK_NOT_CANCELABLE,
    TASK_NOT_FOUND,
    UNSUPPORTED_OPERATION,
    Form,
    Json,
    Kind,
    rest_refusal,
)

LIMIT = 16_777_216  # A2A_MAX_REQUEST_BODY_BYTES
SENDS = ("send", "stream")
ON_TASKS = ("get", "cancel", "subscribe")
LISTING = [form for form in FORMS if form.offers("list")]


def post(client: httpx.Client, form: Form, content: bytes, **headers: str) -> httpx.Response:
    """A body as it is, to where this form takes messages."""
    path = "/" if form.rpc else form.route("send").path
    given = {"content-type": "application/json", **form.version, **headers}
    return client.post(path, content=content, headers=given)


def rpc(client: httpx.Client, form: Form, body: Any) -> httpx.Response:
    return client.post("/", json=body, headers=form.version)


# -- messages of other agents


def send_at(
    client: httpx.Client, form: Form, depth: str, operation: str = "send"
) -> httpx.Response:
    request = form.request(client, operation, form.sending("hello"))
    request.headers["A2A-Call-Depth"] = depth
    return client.send(request)


@pytest.mark.parametrize("operation", SENDS)
def test_a_message_is_refused_where_too_many_agents_have_called_each_other(
    client: httpx.Client, form: Form, operation: str
) -> None:
    before = REST_1.result(REST_1.call(client, "list"))["totalSize"]
    refusal = form.refused(send_at(client, form, "4", operation), CALL_TOO_DEEP)
    assert {name: int(value) for name, value in refusal.facts.items()} == {"depth": 4, "limit": 3}
    assert "A2A_MAX_CALL_DEPTH" in refusal.message
    assert REST_1.result(REST_1.call(client, "list"))["totalSize"] == before


@pytest.mark.parametrize("depth", ["0", "03"])
def test_a_message_of_another_agent_is_taken(client: httpx.Client, form: Form, depth: str) -> None:
    task = form.sent(send_at(client, form, depth))
    assert task["status"]["state"] == form.state("completed")


@pytest.mark.parametrize("depth", ["", "-1", "+1", "100", "1.0", "one", "1, 2", "٣"])
def test_a_depth_is_a_whole_number_of_two_digits(
    client: httpx.Client, form: Form, depth: str
) -> None:
    refusal = form.refused(send_at(client, form, depth), INVALID_PARAMS)
    assert refusal.fields == {"A2A-Call-Depth": "must be one whole number from 0 to 99"}


def test_a_task_can_be_read_and_cancelled_at_any_depth(client: httpx.Client, form: Form) -> None:
    task = form.send(client, "hello")
    for operation, kind in (("get", None), ("cancel", TASK_NOT_CANCELABLE)):
        request = form.request(client, operation, {"id": task["id"]})
        request.headers["A2A-Call-Depth"] = "99"
        if kind is None:
            form.result(client.send(request))
        else:
            form.refused(client.send(request), kind)


# -- tasks that are not there, or not there any more


@pytest.mark.parametrize("operation", ON_TASKS)
def test_an_unknown_task_is_not_found(client: httpx.Client, form: Form, operation: str) -> None:
    for task_id in ("missing", "x" * 255, "%25", "ünïcode", "a b", "..."):
        refusal = form.refused(form.call(client, operation, {"id": task_id}), TASK_NOT_FOUND)
        assert refusal.facts.keys() == {"task_id"}


@pytest.mark.parametrize("operation", SENDS)
def test_a_message_to_an_unknown_task_is_refused(
    client: httpx.Client, form: Form, operation: str
) -> None:
    response = form.call(client, operation, form.sending("hello", taskId="missing"))
    form.refused(response, TASK_NOT_FOUND)


@pytest.mark.parametrize("operation", SENDS)
def test_a_task_cannot_be_continued_in_another_context(
    client: httpx.Client, form: Form, operation: str
) -> None:
    task = form.send(client, "hello")
    asked = form.sending("more", taskId=task["id"], contextId="another")
    refusal = form.refused(form.call(client, operation, asked), INVALID_PARAMS)
    assert refusal.fields.keys() == {"message.contextId"}


@pytest.mark.parametrize("operation", SENDS)
@pytest.mark.parametrize("with_context", [True, False])
def test_an_ended_task_cannot_be_continued(
    client: httpx.Client, form: Form, operation: str, with_context: bool
) -> None:
    task = form.send(client, "hello")
    members = {"taskId": task["id"]} | ({"contextId": task["contextId"]} if with_context else {})
    refusal = form.refused(
        form.call(client, operation, form.sending("more", **members)), UNSUPPORTED_OPERATION
    )
    assert refusal.facts["state"] == "completed"


def test_an_ended_task_cannot_be_cancelled(client: httpx.Client, form: Form) -> None:
    task = form.send(client, "hello")
    refusal = form.refused(form.call(client, "cancel", {"id": task["id"]}), TASK_NOT_CANCELABLE)
    assert refusal.facts == {"task_id": task["id"], "state": "completed"}


def test_a_task_cannot_be_cancelled_twice(client: httpx.Client, form: Form) -> None:
    task = form.send(client, "[[hang]]", wait=False)
    canceled = form.result(form.call(client, "cancel", {"id": task["id"]}))
    assert canceled["status"]["state"] == form.state("canceled")
    refusal = form.refused(form.call(client, "cancel", {"id": task["id"]}), TASK_NOT_CANCELABLE)
    assert refusal.facts["state"] == "canceled"


@pytest.mark.parametrize("form", [RPC_1, REST_1], ids=lambda form: form.name)
def test_nobody_subscribes_to_an_ended_task_in_1_0(client: httpx.Client, form: Form) -> None:
    task = form.send(client, "hello")
    form.refused(form.call(client, "subscribe", {"id": task["id"]}), UNSUPPORTED_OPERATION)


@pytest.mark.parametrize("form", [RPC_03, REST_03], ids=lambda form: form.name)
def test_subscribing_to_an_ended_task_in_0_3_gives_that_task_and_ends(
    client: httpx.Client, form: Form
) -> None:
    task = form.send(client, "hello")
    with form.following(client, "subscribe", {"id": task["id"]}) as frames:
        (only,) = frames
    assert only.kind == "task"
    assert only.body == form.get(client, task["id"])


# -- what this agent does not offer


@pytest.mark.parametrize("operation", ["push.create", "push.get", "push.list", "push.delete"])
@pytest.mark.parametrize("params", [{}, {"url": "https://example.org/hook", "token": "t"}])
def test_push_notifications_are_not_supported(
    client: httpx.Client, form: Form, operation: str, params: Json
) -> None:
    asked = {"id": "any", "config": "any", **params} if not form.rpc else params
    form.refused(form.call(client, operation, asked), PUSH_NOT_SUPPORTED)


@pytest.mark.parametrize("operation", SENDS)
def test_a_message_cannot_bring_a_push_configuration(
    client: httpx.Client, form: Form, operation: str
) -> None:
    member = "taskPushNotificationConfig" if form.line == "1.0" else "pushNotificationConfig"
    if form is REST_03:
        member = "pushNotification"
    asked = form.sending("hello")
    asked["configuration"][member] = {"url": "https://example.org/hook"}
    form.refused(form.call(client, operation, asked), PUSH_NOT_SUPPORTED)


@pytest.mark.parametrize("form", [RPC_1, RPC_03], ids=lambda form: form.name)
@pytest.mark.parametrize("method", ["tasks/list", "sendMessage", "", "SendMessage ", "rpc.x", "é"])
def test_an_unknown_method_is_answered_with_the_known_ones(
    client: httpx.Client, form: Form, method: str
) -> None:
    response = rpc(client, form, {"jsonrpc": "2.0", "id": 1, "method": method})
    refusal = form.refused(response, METHOD_NOT_FOUND)
    assert refusal.facts.keys() == {"method", "supported_methods", "protocol_version"}
    assert refusal.facts["method"] == method
    assert refusal.facts["protocol_version"] == form.line
    known = refusal.facts["supported_methods"]
    known = known.split(",") if isinstance(known, str) else known
    refusing = ("push.create", "push.get", "push.list", "push.delete")
    offered = {m for line in METHODS.values() for op, m in line.items() if op not in refusing}
    ours = ("opencode.", "a2a.")
    assert {name for name in known if not name.startswith(ours)} == offered


# -- JSON-RPC itself


@pytest.mark.parametrize("form", [RPC_1, RPC_03], ids=lambda form: form.name)
@pytest.mark.parametrize("bad", [True, False, 1.5, 1e30, {}, {"a": 1}, [], [1]])
def test_an_id_is_a_string_a_whole_number_or_null(
    client: httpx.Client, form: Form, bad: Any
) -> None:
    body = {"jsonrpc": "2.0", "id": bad, "method": form.method("get"), "params": {"id": "x"}}
    form.refused(rpc(client, form, body), INVALID_REQUEST, rpc_id=None)


@pytest.mark.parametrize("form", [RPC_1, RPC_03], ids=lambda form: form.name)
@pytest.mark.parametrize("good", ["", "a", "ü" * 300, 0, -1, 2**53 + 1, 2**63 - 1, None])
def test_an_id_comes_back_as_it_was(client: httpx.Client, form: Form, good: Any) -> None:
    form.refused(form.call(client, "get", {"id": "x"}, good), TASK_NOT_FOUND, rpc_id=good)


@pytest.mark.parametrize("form", [RPC_1, RPC_03], ids=lambda form: form.name)
@pytest.mark.parametrize(
    "body",
    [
        {"id": 1, "method": "GetTask", "params": {"id": "x"}},
        {"jsonrpc": "1.0", "id": 1, "method": "GetTask", "params": {"id": "x"}},
        {"jsonrpc": 2.0, "id": 1, "method": "GetTask", "params": {"id": "x"}},
        {"jsonrpc": "2.0", "id": 1},
        {"jsonrpc": "2.0", "id": 1, "method": None},
        {"jsonrpc": "2.0", "id": 1, "method": 7},
        {"jsonrpc": "2.0", "id": 1, "method": ["GetTask"]},
        {"id": 1},
    ],
)
def test_what_is_not_a_json_rpc_request_is_refused_with_its_id(
    client: httpx.Client, form: Form, body: Json
) -> None:
    form.refused(rpc(client, form, body), INVALID_REQUEST)


@pytest.mark.parametrize("form", [RPC_1, RPC_03], ids=lambda form: form.name)
def test_a_batch_is_refused_as_one(client: httpx.Client, form: Form) -> None:
    one = {"jsonrpc": "2.0", "id": 1, "method": form.method("get"), "params": {"id": "x"}}
    for batch in ([], [one], [one, one], [1]):
        form.refused(rpc(client, form, batch), INVALID_REQUEST, rpc_id=None)


@pytest.mark.parametrize("form", [RPC_1, RPC_03], ids=lambda form: form.name)
def test_params_must_be_an_object(client: httpx.Client, form: Form) -> None:
    for params in ([], ["x"], "x", 7, True):
        body = {"jsonrpc": "2.0", "id": 1, "method": form.method("get"), "params": params}
        refusal = form.refused(rpc(client, form, body), INVALID_PARAMS)
        assert refusal.fields.keys() == {"params"}


# -- bodies


@pytest.mark.parametrize(
    "media_type",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "*/*", "json"],
)
def test_the_content_type_is_checked_before_the_body(
    client: httpx.Client, form: Form, media_type: str
) -> None:
    for content in (b"{'not': json}", b"{}", b"\xff"):
        response = post(client, form, content, **{"content-type": media_type})
        form.refused(response, CONTENT_TYPE_NOT_SUPPORTED, rpc_id=None)


@pytest.mark.parametrize(
    "media_type",
    ["application/json; charset=utf-8", "Application/JSON", "application/a2a+json"],
)
def test_json_may_be_called_by_its_other_names(
    client: httpx.Client, form: Form, media_type: str
) -> None:
    request = form.request(client, "send", form.sending("hello"))
    request.headers["content-type"] = media_type
    assert form.sent(client.send(request))["status"]["state"] == form.state("completed")


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b'{"a":1}}',
        b"nope",
        b"{'a': 1}",
        b'{"a": NaN}',
        b'{"a": 1,}',
        b'\xef\xbb\xbf{"a": 1}',
        b'{"a": "\xff\xfe"}',
        b'{"a": "\xed\xa0\x80"}',
        b'{"a": "\\ud800"}',
        b"\x00",
        b"[" * 10_000 + b"]" * 10_000,
        b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    ],
    ids=lambda content: content[:20].hex(),
)
def test_what_is_not_json_is_a_parse_error(
    client: httpx.Client, form: Form, content: bytes
) -> None:
    form.refused(post(client, form, content), PARSE_ERROR, rpc_id=None)


@pytest.mark.parametrize("depth", [65, 500, 1000])
def test_json_that_is_nested_too_deeply_is_refused(
    client: httpx.Client, form: Form, depth: int
) -> None:
    nested = b'{"a":' * depth + b"1" + b"}" * depth
    refusal = form.refused(post(client, form, nested), INVALID_REQUEST, rpc_id=None)
    assert "64" in refusal.message


@pytest.mark.parametrize("content", [b"7", b'"text"', b"true", b"[]", b'[{"message": {}}]'])
def test_a_body_must_be_an_object(client: httpx.Client, form: Form, content: bytes) -> None:
    form.refused(post(client, form, content), INVALID_REQUEST, rpc_id=None)


def test_an_empty_body_is_no_request(client: httpx.Client, form: Form) -> None:
    for content in (b"", b"null"):
        response = post(client, form, content)
        if form.rpc:
            form.refused(response, INVALID_REQUEST, rpc_id=None)
        else:
            refusal = form.refused(response, INVALID_PARAMS)
            assert refusal.fields.keys() == {"message"}


def test_a_body_over_the_limit_is_refused_by_its_length(client: httpx.Client, form: Form) -> None:
    response = post(client, form, b" " * (LIMIT + 1))
    refusal = form.refused(response, PAYLOAD_TOO_LARGE, rpc_id=None)
    assert str(refusal.facts["limit"]) == str(LIMIT)


def test_a_body_over_the_limit_is_refused_without_a_length(
    client: httpx.Client, form: Form
) -> None:
    path = "/" if form.rpc else form.route("send").path
    chunks = (b" " * 65_536 for _ in range(LIMIT // 65_536 + 1))
    headers = {"content-type": "application/json", **form.version}
    response = client.post(path, content=chunks, headers=headers)
    assert "content-length" not in response.request.headers
    form.refused(response, PAYLOAD_TOO_LARGE, rpc_id=None)


def test_a_body_at_the_limit_is_read(client: httpx.Client, form: Form) -> None:
    form.refused(post(client, form, b"{" + b" " * (LIMIT - 1)), PARSE_ERROR, rpc_id=None)


@pytest.mark.parametrize("values", [b"[],", b"{},", b"1,", b'"",', b'"\\"",'])
def test_a_body_that_takes_seconds_is_refused(
    client: httpx.Client, form: Form, values: bytes
) -> None:
    """Millions of values would keep everybody else waiting."""
    body = b"[" + values * 100_001 + b"0]"
    form.refused(post(client, form, body), INVALID_REQUEST, rpc_id=None)


def test_a_text_may_hold_as_many_commas_as_fit(client: httpx.Client, form: Form) -> None:
    task = form.send(client, ',[{\\"' * 20_001)
    assert task["id"]


def test_names_do_not_count_as_values(client: httpx.Client) -> None:
    body = json.dumps({f"name {number}": "a, b" for number in range(55_000)}).encode()
    response = post(client, REST_1, body)
    assert "JSON values" not in response.text


@pytest.mark.parametrize("operation", ["cancel", "subscribe"])
@pytest.mark.parametrize("form", [REST_1, REST_03], ids=lambda form: form.name)
def test_a_body_that_is_not_needed_must_still_be_right(
    client: httpx.Client, form: Form, operation: str
) -> None:
    path = form.route(operation).path.format(id="missing")

    def answer(content: bytes, media_type: str) -> httpx.Response:
        return client.post(path, content=content, headers={"content-type": media_type})

    form.refused(answer(b"{}", "text/plain"), CONTENT_TYPE_NOT_SUPPORTED)
    form.refused(answer(b"{", "application/json"), PARSE_ERROR)
    form.refused(answer(b"[]", "application/json"), INVALID_REQUEST)
    form.refused(answer(b" " * (LIMIT + 1), "application/json"), PAYLOAD_TOO_LARGE)
    form.refused(answer(b'{"metadata": {}}', "application/json"), TASK_NOT_FOUND)


# -- fields


def without(message: Json, member: str) -> Json:
    return {name: value for name, value in message.items() if name != member}


def with_parts(form: Form, *parts: Any) -> Json:
    return form.message(**{form.content: list(parts)})


BROKEN_MESSAGES: dict[str, tuple[str, Any]] = {
    "no message": ("message", lambda form: None),
    "a message that is text": ("message", lambda form: "hello"),
    "no id": ("message.messageId", lambda form: without(form.message("x"), "messageId")),
    "an empty id": ("message.messageId", lambda form: form.message("x", messageId="")),
    "an id that is a number": ("message.messageId", lambda form: form.message("x", messageId=7)),
    "a long id": ("message.messageId", lambda form: form.message("x", messageId="m" * 256)),
    "an unprintable id": ("message.messageId", lambda form: form.message("x", messageId="a\0b")),
    "no role": ("message.role", lambda form: without(form.message("x"), "role")),
    "an unknown role": ("message.role", lambda form: form.message("x", role="ROLE_BOSS")),
    "the agent's role": ("message.role", lambda form: form.message("x", role="ROLE_AGENT")),
    "a numbered role": ("message.role", lambda form: form.message("x", role=1)),
    "no parts": ("message.{}", lambda form: without(form.message("x"), form.content)),
    "zero parts": ("message.{}", lambda form: with_parts(form)),
    "parts that are text": ("message.{}", lambda form: form.message(**{form.content: "x"})),
    "a part that is text": ("message.{}[0]", lambda form: with_parts(form, "x")),
    "a part that is null": ("message.{}[0]", lambda form: with_parts(form, None)),
    "an empty part": ("message.{}[0]", lambda form: with_parts(form, {})),
    "an unknown part": ("message.{}[0]", lambda form: with_parts(form, {"video": "x"})),
    "only metadata": ("message.{}[0]", lambda form: with_parts(form, {"metadata": {}})),
    "empty text": ("message.{}[0]", lambda form: form.message("")),
    "null text": ("message.{}[0]", lambda form: with_parts(form, {"text": None})),
    "text that is a number": ("message.{}[0].text", lambda form: with_parts(form, {"text": 7})),
    "two contents": (
        "message.{}[0]",
        lambda form: with_parts(form, {**form.text("x"), "data": {"a": 1}}),
    ),
    "the second part": ("message.{}[1]", lambda form: with_parts(form, form.text("x"), {})),
    "bytes that are not base64": (
        "message.{}[0]",
        lambda form: form.message(form.file(raw="not base64!", media_type="text/plain")),
    ),
    "a long context": ("message.contextId", lambda form: form.message("x", contextId="c" * 256)),
    "a long task": ("message.taskId", lambda form: form.message("x", taskId="t" * 256)),
    "an unprintable context": (
        "message.contextId",
        lambda form: form.message("x", contextId="a\nb"),
    ),
    "a context that is a number": (
        "message.contextId",
        lambda form: form.message("x", contextId=7),
    ),
    "metadata that is a list": ("message.metadata", lambda form: form.message("x", metadata=[])),
    "extensions that are text": (
        "message.extensions",
        lambda form: form.message("x", extensions="x"),
    ),
}


@pytest.mark.parametrize("case", BROKEN_MESSAGES)
def test_a_broken_message_is_refused_with_the_field_that_is_wrong(
    client: httpx.Client, form: Form, case: str
) -> None:
    field, broken = BROKEN_MESSAGES[case]
    asked = {"message": broken(form)} if broken(form) is not None else {}
    for operation in SENDS:
        refusal = form.refused(form.call(client, operation, asked), INVALID_PARAMS)
        assert refusal.fields.keys() == {field.format(form.content)}
        assert all(name in refusal.message for name in refusal.fields)
        assert "instance of" not in refusal.message, "no name of a class of ours"


def test_a_message_has_so_many_parts_and_no_more(client: httpx.Client, form: Form) -> None:
    parts = [str(number) for number in range(MOST_PARTS + 1)]
    task = form.send(client, *parts[:-1])
    assert task["status"]["state"] == form.state("completed")
    assert len(task["history"][0][form.content]) == MOST_PARTS
    for operation in SENDS:
        response = form.call(client, operation, form.sending(*parts))
        refusal = form.refused(response, INVALID_PARAMS)
        assert refusal.fields.keys() == {f"message.{form.content}"}
        assert f"at most {MOST_PARTS} " in refusal.message


@pytest.mark.parametrize("form", [RPC_03], ids=lambda form: form.name)
@pytest.mark.parametrize(
    ("part", "field"),
    [
        ({"kind": "video", "text": "x"}, "message.parts[0].kind"),
        ({"kind": "file", "text": "x"}, "message.parts[0]"),
        ({"kind": "text"}, "message.parts[0]"),
        ({"kind": "file", "file": {}}, "message.parts[0].file"),
        ({"kind": "file", "file": {"uri": "u", "bytes": "YQ=="}}, "message.parts[0].file"),
    ],
)
def test_a_part_must_be_what_it_says_it_is(
    client: httpx.Client, form: Form, part: Json, field: str
) -> None:
    response = form.call(client, "send", {"message": with_parts(form, part)})
    assert form.refused(response, INVALID_PARAMS).fields.keys() == {field}


@pytest.mark.parametrize(
    ("member", "value", "field"),
    [
        ("historyLength", -1, "configuration.historyLength"),
        ("historyLength", "1", "configuration.historyLength"),
        ("historyLength", 1.5, "configuration.historyLength"),
        ("historyLength", True, "configuration.historyLength"),
        ("acceptedOutputModes", "text/plain", "configuration.acceptedOutputModes"),
        ("acceptedOutputModes", [7], "configuration.acceptedOutputModes[0]"),
        ("blocking", "no", "configuration.blocking"),
        ("returnImmediately", 1, "configuration.returnImmediately"),
    ],
)
def test_a_broken_configuration_is_refused_with_the_field_that_is_wrong(
    client: httpx.Client, form: Form, member: str, value: Any, field: str
) -> None:
    asked = form.sending("hello") | {"configuration": {member: value}}
    refusal = form.refused(form.call(client, "send", asked), INVALID_PARAMS)
    assert refusal.fields.keys() == {field}


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        ({"shared": "all"}, "shared"),
        ({"shared": ["alice"]}, "shared"),
        ({"shared": {"session": "ses_1"}}, "shared.session"),
        ({"shared": {"session": {"id": 7}}}, "shared.session.id"),
        ({"shared": {"session": {"id": "mine"}}}, "shared.session.id"),
        ({"shared": {"model": "demo/demo"}}, "shared.model"),
        ({"shared": {"model": {"providerID": "demo", "modelID": None}}}, "shared.model.modelID"),
        ({"opencode": True}, "opencode"),
        ({"opencode": {"directory": {}}}, "opencode.directory"),
        ({"opencode": {"workspace": "wrk_1"}}, "opencode.workspace"),
    ],
)
def test_metadata_of_ours_in_a_foreign_shape_is_refused_with_its_path(
    client: httpx.Client, form: Form, metadata: Json, field: str
) -> None:
    for asked, root in (
        (form.sending("hello") | {"metadata": metadata}, "metadata"),
        (form.sending("hello", metadata=metadata), "message.metadata"),
    ):
        refusal = form.refused(form.call(client, "send", asked), INVALID_PARAMS)
        assert refusal.fields.keys() == {f"{root}.{field}"}
        assert "instance of" not in refusal.message, "no name of a class of ours"


@pytest.mark.parametrize(
    "metadata",
    [
        {"shared": None, "opencode": None},
        {"shared": {"session": None, "model": None}, "opencode": {"workspace": None}},
        {"shared": {"session": {"id": None}}, "opencode": {"agent": None, "directory": None}},
        {"shared": {"with": ["alice"], "usage": 7}, "opencode": {"session": "x"}, "other": "x"},
    ],
)
def test_null_in_metadata_is_nothing_and_what_is_not_ours_is_ignored(
    client: httpx.Client, form: Form, metadata: Json
) -> None:
    asked = form.sending("hello", metadata=metadata) | {"metadata": metadata}
    form.result(form.call(client, "send", asked))


def test_everything_that_is_wrong_is_named_at_once(client: httpx.Client, form: Form) -> None:
    asked = {
        "message": {"role": "ROLE_BOSS", form.content: [{}]},
        "configuration": {"historyLength": -1},
    }
    refusal = form.refused(form.call(client, "send", asked), INVALID_PARAMS)
    assert refusal.fields.keys() == {
        "message.messageId",
        "message.role",
        f"message.{form.content}[0]",
        "configuration.historyLength",
    }


@pytest.mark.parametrize(
    ("media_type", "url"),
    [("application/zip", None), ("video/mp4", None), ("image/tiff", None), ("nonsense", None)],
)
def test_a_file_the_agent_cannot_read_is_refused(
    client: httpx.Client, form: Form, media_type: str, url: str | None
) -> None:
    raw = base64.b64encode(b"content").decode()
    asked = {"message": form.message(form.file(raw=raw, media_type=media_type))}
    refusal = form.refused(form.call(client, "send", asked), CONTENT_TYPE_NOT_SUPPORTED)
    assert refusal.facts["media_type"] == media_type
    assert "image/png" in refusal.facts["accepted"]


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:1/x",
        "http://[::1]/x",
        "http://[::1",
        "http://１２７.０.０.１/x",
        "http://localhost/x",
        "file:///etc/passwd",
        "ftp://example.org/x",
        "relative",
        "",
        "http://",
        "\ud7ff\x00",
    ],
)
def test_a_file_that_may_not_be_fetched_is_refused(
    client: httpx.Client, form: Form, url: str
) -> None:
    asked = {"message": form.message("read this:", form.file(url=url, media_type="text/plain"))}
    refusal = form.refused(form.call(client, "send", asked), INVALID_PARAMS)
    assert refusal.fields.keys() == {f"message.{form.content}[1]"}


@pytest.mark.parametrize("operation", ON_TASKS)
@pytest.mark.parametrize("form", [RPC_1, RPC_03], ids=lambda form: form.name)
def test_a_task_id_is_text_of_some_length(client: httpx.Client, form: Form, operation: str) -> None:
    wrong: list[Any] = ["", "t" * 256, "a\0b", 7, None, ["x"], {}]
    for bad in wrong:
        refusal = form.refused(form.call(client, operation, {"id": bad}), INVALID_PARAMS)
        assert refusal.fields.keys() == {"id"}


@pytest.mark.parametrize("operation", ON_TASKS)
@pytest.mark.parametrize("form", [REST_1, REST_03], ids=lambda form: form.name)
def test_a_task_id_in_a_path_is_checked_too(
    client: httpx.Client, form: Form, operation: str
) -> None:
    for bad in ("t" * 256, "a%00b", "%0A"):
        refusal = form.refused(form.call(client, operation, {"id": bad}), INVALID_PARAMS)
        assert refusal.fields.keys() == {"id"}


@pytest.mark.parametrize("value", [-1, -(10**30), 1.5, "many", True])
def test_a_history_length_is_a_whole_number(client: httpx.Client, form: Form, value: Any) -> None:
    refusal = form.refused(
        form.call(client, "get", {"id": "missing", "historyLength": value}), INVALID_PARAMS
    )
    assert refusal.fields.keys() == {"historyLength"}


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("pageSize", 0),
        ("pageSize", -1),
        ("pageSize", 101),
        ("pageSize", 10**30),
        ("pageSize", "x"),
        ("historyLength", -1),
        ("historyLength", "x"),
        ("includeArtifacts", "maybe"),
        ("includeArtifacts", 1),
        ("status", "TASK_STATE_DONE"),
        ("status", "completed"),
        ("status", "task_state_completed"),
        ("contextId", "c" * 256),
        ("pageToken", "nonsense"),
        ("pageToken", "!!!"),
        ("pageToken", base64.urlsafe_b64encode(b"9" * 40 + b":x").decode()),
        ("pageToken", base64.urlsafe_b64encode("١٢:x".encode()).decode()),
        ("pageToken", base64.urlsafe_b64encode(b"1:\x00").decode()),
        ("pageToken", "ü"),
        ("statusTimestampAfter", "yesterday"),
        ("statusTimestampAfter", "2026-01-31"),
        ("statusTimestampAfter", "2026-01-31T12:00:00"),
        ("statusTimestampAfter", "2026-02-30T12:00:00Z"),
        ("statusTimestampAfter", "1769860800"),
    ],
)
@pytest.mark.parametrize("form", LISTING, ids=lambda form: form.name)
def test_a_list_that_cannot_be_made_is_refused(
    client: httpx.Client, form: Form, member: str, value: Any
) -> None:
    refusal = form.refused(form.call(client, "list", {member: value}), INVALID_PARAMS)
    assert refusal.fields.keys() == {member}


# -- paths and verbs


@pytest.mark.parametrize(
    ("form", "path"),
    [
        (REST_1, "/nothing"),
        (REST_1, "/tasks/a/b"),
        (REST_1, "/message:send/"),
        (REST_1, "/tasks/"),
        (REST_1, "/v2"),
        (REST_1, "/.well-known/"),
        (REST_1, "/a%0Ab"),
        (REST_03, "/v1/"),
        (REST_03, "/v1/nothing"),
        (REST_03, "/v1/tasks/a/b"),
        (REST_03, "/v1/message:send/"),
    ],
)
def test_an_unknown_path_is_not_found(client: httpx.Client, form: Form, path: str) -> None:
    for verb in ("GET", "POST", "PUT", "DELETE"):
        refusal = form.refused(client.request(verb, path), METHOD_NOT_FOUND)
        assert refusal.facts == {"path": httpx.URL(path).path}


@pytest.mark.parametrize("form", [REST_1, REST_03], ids=lambda form: form.name)
@pytest.mark.parametrize(
    ("operation", "verb", "allowed"),
    [
        ("send", "GET", "POST"),
        ("stream", "PUT", "POST"),
        ("list", "POST", "GET"),
        ("get", "DELETE", "GET"),
        ("get", "PATCH", "GET"),
        ("subscribe", "DELETE", "GET, POST"),
        ("push.list", "PUT", "GET, POST"),
        ("push.get", "POST", "DELETE, GET"),
        ("card", "POST", "GET"),
    ],
)
def test_a_wrong_verb_is_not_allowed(
    client: httpx.Client, form: Form, operation: str, verb: str, allowed: str
) -> None:
    path = form.route(operation).path.format(id="x", task_id="x", config_id="x")
    response = client.request(verb, path)
    form.refused(response, METHOD_NOT_FOUND, http=405)
    assert response.headers["allow"] == allowed


@pytest.mark.parametrize("form", [RPC_1, RPC_03], ids=lambda form: form.name)
@pytest.mark.parametrize("verb", ["GET", "PUT", "DELETE", "OPTIONS"])
def test_json_rpc_is_posted(client: httpx.Client, form: Form, verb: str) -> None:
    response = client.request(verb, "/", headers=form.version)
    form.refused(response, METHOD_NOT_FOUND, rpc_id=None, http=405)
    assert response.headers["allow"] == "POST"


@pytest.mark.parametrize("path", ["/health", "/ready", "/.well-known/agent-card.json"])
def test_public_paths_refuse_other_verbs_in_shape(client: httpx.Client, path: str) -> None:
    response = client.post(path)
    assert rest_refusal("1.0", 405, response.json()).reason == "METHOD_NOT_SUPPORTED"
    assert response.headers["allow"] == "GET, HEAD"


def test_a_line_can_be_asked_for_before_the_method_is_known(client: httpx.Client) -> None:
    """Without a header the shape is 0.3's: no header means 0.3."""
    broken = json.dumps({"jsonrpc": "2.0", "id": 1}).encode()
    for headers, form in (({}, RPC_03), ({"a2a-version": "1.0"}, RPC_1)):
        given = {"content-type": "application/json", **headers}
        form.refused(client.post("/", content=broken, headers=given), INVALID_REQUEST)
    asked = client.post("/?A2A-Version=1.0", json={"jsonrpc": "2.0", "id": 1})
    RPC_1.refused(asked, INVALID_REQUEST)


def test_every_situation_has_a_name_and_a_code_of_its_own() -> None:
    from opencode_a2a import errors

    raised = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.ServiceError)
        if kind not in (errors.ServiceError, errors.StoreError, errors.UpstreamError)  # groups
    ]
    assert len({kind.type for kind in raised}) == len(raised)
    assert len({kind.rpc_code for kind in raised}) == len(raised)


def test_the_kinds_are_what_the_service_says_they_are() -> None:
    """The table of this suite against the one the service is built on."""
    from opencode_a2a import errors
    from tests.api import forms

    known = {
        (kind.type, kind.rpc_code, kind.http_status)
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.ServiceError)
    }
    assert {kind for kind in vars(forms).values() if isinstance(kind, Kind)} <= known
