"""What callers with limits may do, in every form of the protocol, and how they are refused."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.api.forms import (
    BUDGET_EXCEEDED,
    FORBIDDEN,
    LIMIT_EXCEEDED,
    PAYLOAD_TOO_LARGE,
    RATE_LIMITED,
    RPC_1,
    Form,
    Json,
    line_to,
)
from tests.running import Service, Upstream, service

FORM_NAMES = ("rpc-1.0", "rpc-0.3", "rest-1.0", "rest-0.3")
# Each test of each form has a caller of its own, so that none uses up what another needs.
LIMITS = {
    "hasty": "requests_per_minute = 3",
    "wordy": "body_bytes = 2000",
    "busy": "running_tasks = 1\nqueued_tasks = 1",
    "viewer": "stream_minutes_per_day = 0.02",
    "spender": "tokens_per_day = 50",
    "payer": "cost_per_month = 0.25",
    "asked": "tokens_per_day = 20",
    "repeater": "tokens_per_day = 5",
}
FREE = ("free", "other")
ADMIN = ["tasks:read", "tasks:write", "admin"]


def token(name: str) -> str:
    return f"{name}-0123456789abcdef"


def settings(limits: dict[str, str] = LIMITS, common: str = "") -> str:
    tables = "".join(
        f'[limits."{name} {form}"]\n{text}\n'
        for name, text in limits.items()
        for form in FORM_NAMES
    )
    return f"[limits]\n{common}\n{tables}"


@contextmanager
def limited(fake: Upstream, directory: Path, **more: str) -> Iterator[Service]:
    names = [f"{name} {form}" for name in LIMITS for form in FORM_NAMES]
    known: list[Json] = [
        {"scheme": "bearer", "token": token(name.replace(" ", "-")), "principal": name}
        for name in (*names, *FREE)
    ]
    known.append({"scheme": "bearer", "token": token("boss"), "principal": "boss", "scopes": ADMIN})
    config = directory / "limits.toml"
    config.write_text(settings())
    more["A2A_STATIC_AUTH_CREDENTIALS"] = json.dumps(known)
    with service(fake, directory, config=str(config), **more) as running:
        yield running


@pytest.fixture(scope="module")
def house(fake: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with limited(fake, tmp_path_factory.mktemp("limited")) as running:
        yield running


@contextmanager
def caller(house: Service, name: str) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {token(name.replace(' ', '-'))}"}
    with line_to(house, headers=headers) as client:
        yield client


def usage(client: httpx.Client, **params: object) -> Json:
    body = {"jsonrpc": "2.0", "id": 1, "method": "opencode.usage.get", "params": params}
    answer: Json = client.post("/", json=body).json()
    return answer


def test_requests_beyond_those_of_a_minute_are_told_when_to_come_again(
    house: Service, form: Form
) -> None:
    with caller(house, f"hasty {form.name}") as client:
        for _ in range(3):
            assert form.call(client, "get", {"id": "x"}).status_code != 429
        response = form.call(client, "get", {"id": "x"})
        refusal = form.refused(response, RATE_LIMITED, rpc_id=None)
        assert refusal.facts["limit"] == "requests_per_minute"
        assert refusal.facts["renews_at"].endswith("Z")
        assert 1 <= int(response.headers["retry-after"]) <= 21
        assert client.get("/health").status_code == 200, "public documents do not count"


def test_a_caller_can_have_a_smaller_limit_for_bodies(house: Service, form: Form) -> None:
    with caller(house, f"wordy {form.name}") as client:
        form.send(client, "short")
        refusal = form.refused(
            form.call(client, "send", form.sending("x" * 2_000)),
            PAYLOAD_TOO_LARGE,
            rpc_id=None,
        )
    assert "body_bytes of this caller" in refusal.message


def test_tasks_beyond_the_running_and_queued_ones_are_refused(house: Service, form: Form) -> None:
    with caller(house, f"busy {form.name}") as client:
        tasks = [form.send(client, "[[hang]]", wait=False) for _ in range(2)]
        response = form.call(client, "send", form.sending("[[hang]]", wait=False))
        refusal = form.refused(response, LIMIT_EXCEEDED)
        assert refusal.facts["limit"] == "queued_tasks"
        assert "retry-after" in response.headers
        deadline = time.monotonic() + 60
        while (first := form.get(client, tasks[0]["id"]))["status"]["state"] != form.state(
            "working"
        ):
            assert time.monotonic() < deadline, first
            time.sleep(0.02)
        second = form.get(client, tasks[1]["id"])
        assert second["status"]["state"] == form.state("submitted"), "one runs at a time"
        for task in tasks:
            form.result(form.call(client, "cancel", {"id": task["id"]}))
        form.send(client, "hello")


def test_streams_end_when_the_time_of_the_day_is_used_up_and_their_tasks_go_on(
    house: Service, form: Form
) -> None:
    with caller(house, f"viewer {form.name}") as client:
        request = form.request(client, "stream", form.sending("[[tokens:60]] [[rate:20]]"))
        began = time.monotonic()
        answer = client.send(request)
        assert time.monotonic() - began >= 1.2
        assert answer.text.endswith("(stream_minutes_per_day)\n\n")
        response = form.call(client, "stream", form.sending("hello"))
        refusal = form.refused(response, LIMIT_EXCEEDED)
        assert refusal.facts["limit"] == "stream_minutes_per_day"
        assert int(response.headers["retry-after"]) <= 86_400
        form.send(client, "and this one is not streamed")


@pytest.mark.parametrize("name", ["spender", "payer"])
def test_a_caller_without_budget_gets_429_until_it_renews_and_repeats_still_get_their_task(
    house: Service, form: Form, name: str
) -> None:
    with caller(house, f"{name} {form.name}") as client:
        first = form.sending("[[tokens:10]]")
        task = form.sent(form.call(client, "send", first))
        context = {"contextId": task["contextId"]}
        again = form.sending("[[tokens:60]]", **context)
        task = form.sent(form.call(client, "send", again))
        while name == "payer" and usage(client)["result"]["total"]["cost"] < 0.25:
            form.send(client, "more")
        response = form.call(client, "send", form.sending("one too many"))
        refusal = form.refused(response, BUDGET_EXCEEDED)
        limit = {"spender": "tokens_per_day", "payer": "cost_per_month"}[name]
        assert refusal.facts["limit"] == limit
        assert refusal.facts["renews_at"].endswith("T00:00:00.000Z")
        assert int(response.headers["retry-after"]) > 0
        assert form.sent(form.call(client, "send", again))["id"] == task["id"], "a repeat"
        assert form.get(client, task["id"])["id"] == task["id"]
        [budget] = usage(client)["result"]["budgets"]
        assert (budget["limit"], budget["used"] >= budget["allowed"]) == (limit, True)


def test_the_step_that_spends_the_budget_is_the_last_and_the_answer_so_far_is_kept(
    house: Service, form: Form
) -> None:
    """Two tasks at work: with the end of one, the other is stopped in the middle."""
    with caller(house, f"repeater {form.name}") as client:
        long = form.send(client, "[[tokens:50000]] [[rate:50]]", wait=False)
        deadline = time.monotonic() + 60
        while not form.get(client, long["id"]).get("artifacts"):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        done = form.send(client, "hello")
        assert done["status"]["state"] == form.state("completed"), "its last step was the answer"
        task = form.settled(client, long["id"])
        assert task["status"]["state"] == form.state("failed")
        error = task["metadata"]["opencode"]["error"]
        assert (error["type"], error["renews_at"][10:]) == ("BUDGET_EXCEEDED", "T00:00:00.000Z")
        said = json.dumps(task["status"])
        assert "The limit tokens_per_day of this caller is reached" in said
        assert "It renews at " in said
        assert task["artifacts"], "what was answered so far"


def test_an_answer_waits_for_the_budget_but_no_is_always_possible(
    house: Service, form: Form
) -> None:
    with caller(house, f"asked {form.name}") as client:
        task = form.send(client, "[[permission]]")
        assert task["status"]["state"] == form.state("input-required")
        form.send(client, "[[tokens:20]]")
        yes = form.sending("yes", taskId=task["id"], contextId=task["contextId"])
        refusal = form.refused(form.call(client, "send", yes), BUDGET_EXCEEDED)
        assert refusal.facts["limit"] == "tokens_per_day"
        assert form.get(client, task["id"])["status"]["state"] == form.state("input-required")
        no = form.sending("no", taskId=task["id"], contextId=task["contextId"], wait=False)
        form.sent(form.call(client, "send", no))
        form.settled(client, task["id"])


def test_nobody_sees_what_others_have_used_unless_the_credential_says_so(house: Service) -> None:
    with caller(house, "free") as free, caller(house, "other") as other:
        RPC_1.send(free, "[[tokens:7]]")
        RPC_1.send(other, "[[tokens:9]]")
        for client, name, output in ((free, "free", 7), (other, "other", 9)):
            found = usage(client, by=["principal", "model"])["result"]
            assert {item["principal"] for item in found["items"]} == {name}
            assert found["total"]["output_tokens"] == output
            assert found["total"]["total_tokens"] == 9 + output
            assert (found["items"][0]["model"], found["budgets"]) != ("", None)
        refused = usage(free, principal="other")["error"]
        assert (refused["code"], refused["data"]["required_scope"]) == (FORBIDDEN.code, "admin")
        assert usage(free, principal="free")["result"]["total"]["output_tokens"] == 7
    with caller(house, "boss") as boss:
        everybody = usage(boss, by=["principal"])["result"]["items"]
        assert {"free", "other"} <= {item["principal"] for item in everybody}
        only = usage(boss, principal="other")["result"]
        assert only["total"]["output_tokens"] == 9


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"from": "2026-02-30"}, "from"),
        ({"to": "yesterday"}, "to"),
        ({"by": ["hour"]}, "by[0]"),
        ({"until": "2026-01-01"}, "until"),
    ],
)
def test_a_wrong_parameter_of_usage_is_named(house: Service, params: Json, field: str) -> None:
    with caller(house, "free") as client:
        assert list(usage(client, **params)["error"]["data"]["fields"]) == [field]
