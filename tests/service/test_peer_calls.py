"""Calls to peers: whose task each is made for, and who decides what a peer asks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from opencode_a2a.domain.events import (
    Gap,
    InterruptAsked,
    MessageSeen,
    Speaker,
    ToolCall,
    ToolSnapshot,
)
from opencode_a2a.domain.peer_calls import CallSite, Report, ToolResult, call_key
from opencode_a2a.domain.task import TaskHead
from opencode_a2a.domain.updates import InterruptResolved
from opencode_a2a.domain.values import (
    AnsweredBy,
    Caller,
    CallPath,
    ModelRef,
    PermissionAsk,
    PermissionDecision,
    PermissionRule,
    Question,
    QuestionAsk,
    QuestionDecision,
    SessionRef,
    TaskState,
    Text,
    Usage,
)
from opencode_a2a.errors import UpstreamHttpError, UpstreamTimeout, UpstreamUnreachable
from opencode_a2a.observe.tasks import ref_of, tool_span
from opencode_a2a.service import calling_session, peer_calls
from opencode_a2a.service.calling_session import CallingSession
from opencode_a2a.service.peer_calls import OfferedTools, PeerCalls
from opencode_a2a.service.scheduler import SchedulerLimits
from tests.fakes.session import PATIENCE, ScriptedAgent, ScriptedSession
from tests.observe.test_tasks import recording
from tests.service.house import House, house

ARGUMENTS = {"peer": "reviewer", "message": "look"}
ONCE = PermissionDecision("once")


@dataclass
class Tools:
    """Tools that do what a test says; they know for whom they were called."""

    does: Callable[[CallSite], Awaitable[str]]
    sites: list[CallSite] = field(default_factory=list)
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, tool: str, arguments: Mapping[str, Any], site: CallSite) -> ToolResult:
        self.sites.append(site)
        self.begun.set()
        try:
            return ToolResult(await self.does(site))
        except asyncio.CancelledError:
            self.stopped.set()
            raise


@dataclass
class Host:
    """An OpenCode that gives the tools to every session; `rules` are what people have set."""

    rules: Sequence[PermissionRule] = ()
    offered: list[str] = field(default_factory=list)

    async def offer(self, session: SessionRef) -> Callable[[str | None], Sequence[PermissionRule]]:
        self.offered.append(session.id)
        return lambda agent: [
            *self.rules,
            *([PermissionRule("a2a_*", "*", "deny")] if agent == "plan" else []),
        ]


@dataclass
class Peers:
    """A house whose agent can call peers."""

    house: House
    calls: PeerCalls
    tools: Tools
    host: Host

    async def call(
        self, arguments: Mapping[str, Any] = ARGUMENTS, report: Report | None = None
    ) -> ToolResult:
        """What OpenCode does once a call is allowed."""

        async def quiet(note: str) -> None:
            pass

        async with asyncio.timeout(PATIENCE):
            return await self.calls.serve("call", arguments, report or quiet)


@asynccontextmanager
async def peers(
    does: Callable[[CallSite], Awaitable[str]],
    *rules: PermissionRule,
    limits: SchedulerLimits = SchedulerLimits(),  # noqa: B008 (it is frozen)
) -> AsyncIterator[Peers]:
    calls, tools, host = PeerCalls(max_depth=3), Tools(does), Host(rules)
    calls.tools.set_result(OfferedTools(host, tools))
    agent = ScriptedAgent()
    async with calls.running(), house(limits, agent=agent, peer_calls=calls) as lived_in:
        yield Peers(lived_in, calls, tools, host)


async def name_of_task(site: CallSite) -> str:
    return site.task_id


def calls_tool(
    session: ScriptedSession,
    call: str,
    *,
    tool: str = "a2a_call",
    agent: str = "build",
    **more: Any,
) -> PermissionAsk:
    """The model calls a tool of ours, and OpenCode asks; in the order in which OpenCode says so."""
    answer = f"answer-to-{session.prompts[-1].message_id}"
    by = AnsweredBy(ModelRef("demo", "demo"), agent=agent)
    question = session.prompts[-1].message_id
    ask = PermissionAsk(
        f"per_{call}", session.ref.id, tool, ("*",), always=("*",), call_id=call, **more
    )
    session.say(MessageSeen(session.ref.id, answer, Speaker.AGENT, 1, question, answered_by=by))
    session.ask(ask)
    session.say(running(session, call, tool))
    return ask


def running(session: ScriptedSession, call: str, tool: str = "a2a_call") -> ToolSnapshot:
    answer = f"answer-to-{session.prompts[-1].message_id}"
    made = ToolCall(call, tool, "running", input=dict(ARGUMENTS))
    return ToolSnapshot(session.ref.id, answer, f"part-{call}", made)


async def calling(at: Peers, context: str, call: str, **more: Any) -> tuple[str, ScriptedSession]:
    """A task whose model has called a tool."""
    task, session = await at.house.working(context)
    session.begin()
    calls_tool(session, call, **more)
    return task, session


def allowed(session: ScriptedSession, call: str) -> bool:
    return (f"per_{call}", ONCE) in session.settled


async def test_a_call_is_allowed_without_a_person_and_made_for_its_task() -> None:
    async with peers(name_of_task) as at:
        task, session = await calling(at, "c", "one")
        await session.until(lambda: allowed(session, "one"))
        assert await at.call() == ToolResult(task)
        [site] = at.tools.sites
        assert (site.owner, site.context_id, site.directory) == ("alice", "c", "/work")
        assert site.headers["A2A-Call-Depth"] == "1"
        assert at.host.offered == [session.ref.id]
        session.say(*session.told("done"))
        ended = await at.house.ended(task)
        assert (ended.state, ended.interrupts) == (TaskState.COMPLETED, {})


async def test_a_call_lies_in_the_trace_of_its_task_and_names_no_words_of_the_model() -> None:
    first, later = "0af7651916cd43dd8448eb211c80319c", "4bf92f3577b34da6a3ce929d0e0e4736"
    origin = CallPath(0, first, span="b7ad6b7169203331", sampled=True)
    deeper = CallPath(1, later, span="00f067aa0ba902b7", sampled=True)
    head = TaskHead("t", "c", "alice", 0)
    calls = PeerCalls(max_depth=3)
    tools = Tools(name_of_task)
    calls.tools.set_result(OfferedTools(Host(), tools))
    inner = ScriptedSession(SessionRef("ses_0"))
    session = CallingSession(inner, calls, head=head, path=lambda: deeper, origin=origin)
    with recording() as recorder:
        await session._make(ToolCall("one", "a2a_call", "running", input=dict(ARGUMENTS)))
    (span,) = recorder.spans
    (site,) = tools.sites
    assert span.ref.trace == first
    assert span.parent == tool_span(ref_of(origin), "t", "one").span
    assert site.headers["traceparent"] == f"00-{first}-{span.ref.span}-01"
    assert site.headers["A2A-Call-Depth"] == "2"
    assert span.attributes == {"a2a.peer": ""}, "no peer was found by what the model wrote"


async def test_equal_calls_of_two_tasks_are_allowed_one_after_the_other() -> None:
    async with peers(name_of_task) as at:
        one, first = await calling(at, "c", "one")
        await first.until(lambda: allowed(first, "one"))
        two, second = await calling(at, "d", "two")
        await second.until_looks(0)
        for _ in range(5):  # whatever happens, the second waits for the first to arrive
            await asyncio.sleep(0)
        assert not allowed(second, "two")
        assert await at.call() == ToolResult(one)
        await second.until(lambda: allowed(second, "two"))
        assert await at.call() == ToolResult(two)


async def test_different_calls_do_not_wait_for_each_other() -> None:
    assert call_key("a2a_call", {"a": 1, "b": 2}) == call_key("a2a_call", {"b": 2, "a": 1})
    assert call_key("a2a_call", {"a": 1}) != call_key("a2a_status", {"a": 1})
    assert call_key("a2a_call", {"a": 1}) != call_key("a2a_call", {"a": "1"})


async def test_a_call_that_does_not_arrive_keeps_no_other_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peer_calls, "LATE_SECONDS", 0.01)
    async with peers(name_of_task) as at:
        _, first = await calling(at, "c", "one")
        await first.until(lambda: allowed(first, "one"))
        two, second = await calling(at, "d", "two")
        made = running(first, "one")
        given_up = replace(made.call, status="error", error="MCP error -32001: Request timed out")
        first.say(replace(made, call=given_up))
        await second.until(lambda: allowed(second, "two"))
        assert await at.call() == ToolResult(two)


async def test_a_call_that_arrives_after_its_task_was_canceled_is_no_other_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peer_calls, "LATE_SECONDS", 3600.0)
    async with peers(name_of_task) as at:
        one, first = await calling(at, "c", "one")
        await first.until(lambda: allowed(first, "one"))
        await at.house.tasks.cancel(Caller("alice"), one)
        two, second = await calling(at, "d", "two")
        assert await at.call() == peer_calls.STOPPED
        await second.until(lambda: allowed(second, "two"))
        assert await at.call() == ToolResult(two)


async def test_a_call_is_its_tasks_also_where_the_answer_to_its_permission_was_lost() -> None:
    async with peers(name_of_task) as at:
        one, first = await at.house.working("c")
        first.begin()
        first.no_reply, first.unheard = UpstreamTimeout("slow"), True
        calls_tool(first, "one")
        await first.until(lambda: allowed(first, "one"))
        two, second = await calling(at, "d", "two")
        assert await at.call() == ToolResult(one)
        await second.until(lambda: allowed(second, "two"))
        assert await at.call() == ToolResult(two)


async def test_a_call_that_is_allowed_twice_waits_for_its_turn_all_the_same() -> None:
    async def done() -> ToolResult:
        return ToolResult("done")

    async def yes() -> bool:
        return True

    async def quiet(note: str) -> None:
        pass

    calls, inner = PeerCalls(max_depth=3), ScriptedSession(SessionRef("ses_0"))
    session = CallingSession(inner, calls, head=cast(Any, None), path=CallPath)
    call = ToolCall("two", "a2a_call", "running", input=dict(ARGUMENTS))
    ask = PermissionAsk("per_two", "ses_0", "a2a_call", ("*",), call_id="two")
    session.sift([ToolSnapshot("ses_0", "answer", "part", call)])
    inner.open_requests = frozenset({"per_two"})
    async with asyncio.timeout(PATIENCE), calls.running():
        first = calls.announce(
            call, session="ses_1", allow=yes, start=lambda: asyncio.create_task(done())
        )
        assert await first.allowed()
        answers = [asyncio.create_task(session.settle(ask, ONCE)) for _ in range(2)]
        for _ in range(5):  # whatever happens, they wait for the first to arrive
            await asyncio.sleep(0)
        assert inner.settled == []
        assert await calls.serve("call", ARGUMENTS, quiet) == ToolResult("done")
        assert await asyncio.gather(*answers) == [True, True]
        assert inner.settled == [("per_two", ONCE)]


async def test_a_call_that_opencode_does_not_allow_keeps_no_other_waiting() -> None:
    async with peers(name_of_task) as at:
        _, first = await at.house.working("c")
        first.begin()
        first.no_reply = UpstreamHttpError("no", upstream_status=400)
        calls_tool(first, "one")
        await first.until(lambda: first.being_told)
        two, second = await calling(at, "d", "two")
        await second.until(lambda: allowed(second, "two"))
        assert await at.call() == ToolResult(two)


async def test_a_request_that_names_no_call_is_refused() -> None:
    async with peers(name_of_task) as at:
        _, session = await at.house.working("c")
        session.begin()
        session.ask(PermissionAsk("per_x", session.ref.id, "a2a_call", ("*",)))
        await session.until(lambda: session.settled)
        assert session.settled == [("per_x", calling_session.NOT_ALLOWED)]


async def test_a_call_that_no_task_has_announced_is_refused() -> None:
    async with peers(name_of_task) as at:
        assert await at.call() == peer_calls.NOT_EXPECTED
        _, session = await calling(at, "c", "one")
        await session.until(lambda: allowed(session, "one"))
        assert await at.call(ARGUMENTS | {"message": "other"}) == peer_calls.NOT_EXPECTED
        assert not (await at.call()).failed
        assert await at.call() == peer_calls.NOT_EXPECTED  # it was one call
        assert len(at.tools.sites) == 1


async def test_where_a_rule_asks_a_person_is_asked_first() -> None:
    async with peers(name_of_task, PermissionRule("a2a_*", "*", "ask")) as at:
        task, session = await calling(at, "c", "one")
        ask = PermissionAsk("per_one", session.ref.id, "a2a_call")
        waiting = await at.house.until_open(task, ask)
        [shown] = waiting.open_interrupts
        assert isinstance(shown, PermissionAsk)
        assert shown.arguments == ARGUMENTS
        assert await at.call() == peer_calls.NOT_EXPECTED
        await at.house.say(task, Text("always"))
        # OpenCode is never told always: it would ask no more, and nobody would announce the calls.
        assert session.settled == [("per_one", ONCE)]
        assert await at.call() == ToolResult(task)


async def test_where_a_rule_denies_the_model_is_told_and_goes_on() -> None:
    async with peers(name_of_task) as at:
        _, session = await calling(at, "c", "one", agent="plan")
        await session.until(lambda: session.settled)
        assert session.settled == [("per_one", calling_session.NOT_ALLOWED)]
        assert await at.call() == peer_calls.NOT_EXPECTED


async def test_a_sub_agent_gets_no_call() -> None:
    async with peers(name_of_task) as at:
        _, session = await at.house.working("c")
        session.begin()
        session.ask(PermissionAsk("per_x", "ses_child", "a2a_call", ("*",), call_id="x"))
        await session.until(lambda: session.settled)
        assert session.settled == [("per_x", calling_session.NOT_ALLOWED)]


async def test_what_was_asked_while_events_were_lost_is_allowed_when_it_is_read() -> None:
    async with peers(name_of_task) as at:
        task, session = await at.house.working("c")
        session.begin()
        ask = PermissionAsk("per_one", session.ref.id, "a2a_call", ("*",), call_id="one")
        session.open_requests = frozenset({"per_one"})
        session.stored = [running(session, "one"), InterruptAsked(session.ref.id, ask)]
        session.say(Gap(session.ref.id))
        await session.until(lambda: allowed(session, "one"))
        assert await at.call() == ToolResult(task)
        assert await at.house.state(task) is TaskState.WORKING


async def test_an_answer_that_got_lost_is_given_again() -> None:
    async with peers(name_of_task, limits=SchedulerLimits(retry=0.01)) as at:
        task, session = await at.house.working("c")
        session.begin()
        session.no_reply = UpstreamUnreachable("away")
        ask = calls_tool(session, "one")
        await session.until(lambda: session.being_told)
        session.no_reply = None
        session.stored = [running(session, "one"), InterruptAsked(session.ref.id, ask)]
        session.say(Gap(session.ref.id))
        await session.until(lambda: allowed(session, "one"))
        assert await at.call() == ToolResult(task)


# -- what a peer asks

QUESTION = QuestionAsk("que_peer", "ses_0", (Question("", "Which one?"),), peer="reviewer")


async def ask_a_person(site: CallSite) -> str:
    decision = await site.ask(QUESTION)
    assert isinstance(decision, QuestionDecision)
    return str(decision.answers)


async def made(at: Peers) -> tuple[str, ScriptedSession, asyncio.Task[ToolResult]]:
    """A call that is being made."""
    task, session = await calling(at, "c", "one")
    await session.until(lambda: allowed(session, "one"))
    call = asyncio.create_task(at.call())
    async with asyncio.timeout(PATIENCE):
        await at.tools.begun.wait()
    return task, session, call


async def test_what_a_peer_asks_is_asked_and_answered_like_a_question_of_the_agent() -> None:
    async with peers(ask_a_person) as at:
        task, session, call = await made(at)
        await at.house.until_open(task, QUESTION)
        assert await at.house.state(task) is TaskState.INPUT_REQUIRED
        session.say(Gap(session.ref.id))  # what OpenCode lists is not all that is waited for
        await session.until_looks(1)
        await at.house.until_open(task, QUESTION)
        await at.house.say(task, Text("the second"))
        assert await call == ToolResult("(('the second',),)")
        assert session.settled == [("per_one", ONCE)]
        assert await at.house.state(task) is TaskState.WORKING


async def test_a_question_whose_call_has_ended_is_closed() -> None:
    async with peers(ask_a_person) as at:
        task, _, call = await made(at)
        await at.house.until_open(task, QUESTION)
        call.cancel()  # OpenCode does not wait for the result any more
        await at.house.until(task, TaskState.WORKING)
        assert at.tools.stopped.is_set()
        said = await at.house.until_said(task, InterruptResolved)
        assert [u.resolution for u in said if isinstance(u, InterruptResolved)] == ["elsewhere"]


async def wait(site: CallSite) -> str:
    await asyncio.Event().wait()
    return ""


async def test_canceling_the_task_stops_its_call_and_no_other() -> None:
    async with peers(wait) as at:
        task, _, call = await made(at)
        _, other = await calling(at, "d", "two")
        await other.until(lambda: allowed(other, "two"))
        still = asyncio.create_task(at.call())
        await at.house.tasks.cancel(Caller("alice"), task)
        assert await call == peer_calls.STOPPED
        assert at.tools.stopped.is_set()
        assert not still.done()
        still.cancel()


async def test_a_call_that_is_stopped_more_than_once_still_tells_its_peer() -> None:
    peer_answers, peer_told = asyncio.Event(), asyncio.Event()
    telling = asyncio.Event()

    async def tell_the_peer(site: CallSite) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            telling.set()
            await peer_answers.wait()
            peer_told.set()
        return ""

    async with peers(tell_the_peer) as at:
        task, _, call = await made(at)
        canceling = asyncio.create_task(at.house.tasks.cancel(Caller("alice"), task))
        async with asyncio.timeout(PATIENCE):
            await telling.wait()
            await canceling  # which stops the calls of the session in several places
            call.cancel()  # and OpenCode does not wait for the result any more
            await asyncio.wait({call})
            peer_answers.set()
            await peer_told.wait()


async def test_nothing_is_allowed_once_the_task_is_being_stopped() -> None:
    async with peers(name_of_task, limits=SchedulerLimits(abort=0.2)) as at:
        task, session = await at.house.working("c")
        session.begin()
        session.deaf = True
        canceling = asyncio.create_task(at.house.tasks.cancel(Caller("alice"), task))
        await session.until(lambda: session.aborts)
        calls_tool(session, "one")
        await canceling
        assert session.settled == []
        assert await at.call() == peer_calls.NOT_EXPECTED


async def test_a_long_call_shows_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_calls, "PROGRESS_SECONDS", 0.01)
    enough = asyncio.Event()

    async def wait_for_reports(site: CallSite) -> str:
        await enough.wait()
        return "done"

    async with peers(wait_for_reports) as at:
        _, session = await calling(at, "c", "one")
        await session.until(lambda: allowed(session, "one"))
        reports = list[str]()

        async def report(note: str) -> None:
            reports.append(note)
            if len(reports) == 3:
                enough.set()

        assert await at.call(report=report) == ToolResult("done")
        assert reports == ["a2a_call goes on."] * 3


async def test_what_a_peer_has_used_is_told_under_its_name() -> None:
    async def use(site: CallSite) -> str:
        site.add_usage("reviewer", Usage(input_tokens=7))
        return "done"

    async with peers(use) as at:
        task, session, call = await made(at)
        await call
        session.say(*session.told("done"))
        ended = await at.house.ended(task)
        assert ended.usage is not None
        assert ended.usage.peers == {"reviewer": Usage(input_tokens=7)}


async def test_a_chain_of_calls_ends() -> None:
    async with peers(name_of_task) as at:
        at.calls.max_depth = CallPath().depth
        _, session = await calling(at, "c", "one")
        await session.until(lambda: allowed(session, "one"))
        result = await at.call()
        assert result.failed
        assert "A2A_MAX_CALL_DEPTH" in result.text
        assert not at.tools.sites


async def test_a_fault_of_ours_fails_the_call_and_not_the_task() -> None:
    async def break_down(site: CallSite) -> str:
        raise RuntimeError("broken")

    async with peers(break_down) as at:
        task, session, call = await made(at)
        assert await call == calling_session.BROKEN
        session.say(*session.told("without it"))
        assert (await at.house.ended(task)).state is TaskState.COMPLETED


async def test_only_files_that_the_agent_may_read_are_sent() -> None:
    async def look(site: CallSite) -> str:
        return f"{site.may_read('a.txt')} {site.may_read('x/.env')} {site.may_read('x.py')}"

    rules = [PermissionRule("read", "*.txt", "allow"), PermissionRule("read", "*.env", "ask")]
    async with peers(look, *rules) as at:
        _, _, call = await made(at)
        assert await call == ToolResult("True False False")
