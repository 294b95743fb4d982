"""Chains of agents that call each other: how deep a task is, who is told, and where it ends."""

from __future__ import annotations

import contextvars
import re
import uuid
from pathlib import Path

import pytest
from structlog.contextvars import get_contextvars

from opencode_a2a.domain.effects import Heard
from opencode_a2a.domain.events import PeerUsage
from opencode_a2a.domain.task import Task
from opencode_a2a.domain.values import CallPath, Message, Role, Text, Usage
from opencode_a2a.errors import CallTooDeep, InvalidParams
from opencode_a2a.observe.tracing import SpanRef
from opencode_a2a.service.calls import call_headers, check_depth, read_path
from opencode_a2a.service.inputs import Inputs
from opencode_a2a.service.recovery import Recovery
from opencode_a2a.service.runner import Runner
from opencode_a2a.service.tasks import Request
from tests.fakes.session import ScriptedAgent
from tests.service.house import ALICE, House, NoFiles, house

TRACE = "0af7651916cd43dd8448eb211c80319c"


def test_a_request_without_a_depth_is_a_callers_own() -> None:
    assert read_path(None, SpanRef(TRACE)) == CallPath(0, TRACE)
    assert read_path("7", SpanRef(TRACE)) == CallPath(7, TRACE)


@pytest.mark.parametrize("depth", ["", " ", "-1", "100", "1.5", "x", "1,1", "\u0663"])
def test_a_depth_that_is_none_is_refused(depth: str) -> None:
    with pytest.raises(InvalidParams) as refused:
        read_path(depth, SpanRef(TRACE))
    assert refused.value.fields.keys() == {"A2A-Call-Depth"}


def test_a_call_is_one_deeper_and_in_the_same_trace() -> None:
    headers = call_headers(CallPath(1, TRACE), limit=2)
    assert headers["A2A-Call-Depth"] == "2"
    assert re.fullmatch(f"00-{TRACE}-[0-9a-f]{{16}}-00", headers["traceparent"])
    assert call_headers(CallPath(1, TRACE), limit=2) != headers, "each call has its own span"


def test_a_call_hangs_below_the_span_that_stands_for_it() -> None:
    path = CallPath(0, TRACE, span="b7ad6b7169203331", sampled=True)
    assert read_path("0", SpanRef(TRACE, "b7ad6b7169203331", sampled=True)) == path
    below_caller = call_headers(path, limit=1)["traceparent"]
    assert below_caller == f"00-{TRACE}-b7ad6b7169203331-01", "nobody here records the call"
    assert call_headers(path, limit=1, span="00f067aa0ba902b7")["traceparent"] == (
        f"00-{TRACE}-00f067aa0ba902b7-01"
    )


def test_a_task_without_a_trace_begins_one() -> None:
    """Earlier versions stored none."""
    headers = call_headers(CallPath(), limit=1)
    assert re.fullmatch("00-[0-9a-f]{32}-[0-9a-f]{16}-00", headers["traceparent"])


def test_a_chain_of_calls_ends_at_the_limit() -> None:
    path, made = CallPath(0, TRACE), 0
    with pytest.raises(CallTooDeep) as refused:
        while made < 10:
            depth = call_headers(path, limit=3)["A2A-Call-Depth"]
            path = read_path(depth, SpanRef(TRACE))
            check_depth(path, limit=3)
            made += 1
    assert made == 3
    assert refused.value.facts == {"depth": 4, "limit": 3}


def test_with_no_depth_allowed_nobody_is_called() -> None:
    with pytest.raises(CallTooDeep):
        call_headers(CallPath(0, TRACE), limit=0)


async def send(at: House, text: str, path: CallPath, task: str | None = None) -> Task:
    message = Message(str(uuid.uuid4()), Role.USER, (Text(text),))
    context = None if task is not None else "c"
    return await at.tasks.send(ALICE, Request(message, context, task, path=path))


def runner(at: House, task_id: str) -> Runner:
    return at.scheduler._runners[task_id]


async def test_a_running_task_knows_its_call_path_also_after_a_restart(tmp_path: Path) -> None:
    url, agent = f"sqlite:///{tmp_path / 'tasks.db'}", ScriptedAgent()
    async with house(url=url, agent=agent) as at:
        task = (await send(at, "one", CallPath(1, TRACE))).head.id
        assert runner(at, task).path == CallPath(1, TRACE)
        await send(at, "two", CallPath(2, "another"), task)
        await send(at, "three", CallPath(0, "a person's"), task)
        assert runner(at, task).path == CallPath(2, "another")
        assert (await at.tasks.get(ALICE, task)).path == CallPath(2, "another")
    async with (
        house(url=url, agent=agent) as at,
        Recovery.open(at.log, at.scheduler, inputs=Inputs(NoFiles(), 1 << 20, 1 << 20)),
    ):
        assert runner(at, task).path == CallPath(2, "another")


async def test_the_log_of_a_task_has_its_trace_also_where_no_spans_are_recorded() -> None:
    async with house() as at:
        task = (await send(at, "one", CallPath(0, TRACE))).head.id
        context = contextvars.Context()
        context.run(runner(at, task).enter_context)
        known = context.run(get_contextvars)
    assert (known["task"], known["trace_id"]) == (task, TRACE)
    assert "span_id" not in known


async def test_the_same_request_again_may_have_another_trace() -> None:
    async with house() as at:
        message = Message("m-1", Role.USER, (Text("hello"),))
        first, again = [
            await at.tasks.send(ALICE, Request(message, "c", path=CallPath(1, trace)))
            for trace in ("a", "b")
        ]
        assert first.head == again.head


async def test_what_a_peer_has_used_is_in_the_task_when_it_ends() -> None:
    async with house() as at:
        task, session = await at.working("c")
        session.begin()
        for tokens in (3, 4):
            used = PeerUsage(session.ref.id, "reviewer", Usage(tokens))
            runner(at, task).post(Heard([used]))
        session.answer("fine")
        ended = await at.ended(task)
        assert ended.ended is not None
        assert ended.ended.usage is not None
        assert ended.ended.usage.peers == {"reviewer": Usage(7)}
        assert ended.usage == ended.ended.usage
