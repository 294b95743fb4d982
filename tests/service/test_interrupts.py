"""What a person decides reaches the agent: once, whatever happens on the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from opencode_a2a.domain.events import (
    BlockKind,
    Busy,
    InterruptAsked,
    InterruptClosed,
    MessageSeen,
    TextDelta,
    TextSnapshot,
    ToolCall,
    ToolSnapshot,
)
from opencode_a2a.domain.exchange import NOT_DECIDED
from opencode_a2a.domain.ports import Key
from opencode_a2a.domain.turn import STOPPED
from opencode_a2a.domain.updates import (
    Ended,
    InterruptAnswered,
    InterruptOpened,
    InterruptResolved,
    InterruptUnclear,
    Queued,
    Update,
)
from opencode_a2a.domain.values import (
    Data,
    Failure,
    FileBytes,
    FileUrl,
    Message,
    Part,
    PermissionAsk,
    PermissionDecision,
    Question,
    QuestionAsk,
    QuestionDecision,
    Role,
    TaskState,
    Text,
)
from opencode_a2a.errors import (
    InterruptRequestExpired,
    InterruptRequestNotFound,
    InterruptTypeMismatch,
    InvalidParams,
    StoreUnavailable,
    TaskHandover,
    TaskNotFound,
    UnsupportedOperation,
    UpstreamUnreachable,
)
from opencode_a2a.extensions.interrupts import INTERACTIVE
from opencode_a2a.service.inputs import Inputs
from opencode_a2a.service.recovery import Recovery
from opencode_a2a.service.scheduler import SchedulerLimits
from opencode_a2a.service.tasks import Request
from tests.fakes.session import PATIENCE, ScriptedAgent, ScriptedSession
from tests.service.conftest import Hours
from tests.service.house import ALICE, BOB, House, NoFiles, answers, house, rename
from tests.store.support import writer_busy

WORKING, ASKING, CANCELED = TaskState.WORKING, TaskState.INPUT_REQUIRED, TaskState.CANCELED
COMPLETED, FAILED = TaskState.COMPLETED, TaskState.FAILED
AWAY = UpstreamUnreachable("OpenCode cannot be reached.")
SOON = SchedulerLimits(retry=0.02, quiet=60)
NEVER = SchedulerLimits(retry=60, quiet=60)  # does the turn look for itself: it is told everything
ONCE, ALWAYS, NO = (PermissionDecision(r) for r in ("once", "always", "reject"))
RED = QuestionDecision((("Red",),))
YES = Text("yes")


def ask(number: int = 1, session: str = "ses_0", **more: object) -> PermissionAsk:
    always = {"always": ("echo *",), **more}
    return PermissionAsk(f"per_{number}", session, "bash", (f"echo {number}",), **always)  # type: ignore[arg-type]


def question(number: int = 1, session: str = "ses_0") -> QuestionAsk:
    asked = (Question("Colour", "Which?"),)
    return QuestionAsk(f"que_{number}", session, asked, call_id=f"call_{number}")


async def resolutions(at: House, task: str) -> list[tuple[str, str]]:
    """How the requests of a task that has ended were settled."""
    said = [entry.update for entry in await at.entries(task)]
    return [
        (u.interrupt.request_id, u.resolution) for u in said if isinstance(u, InterruptResolved)
    ]


async def finished(at: House, task: str, session: ScriptedSession) -> list[tuple[str, str]]:
    """Let the agent finish, and say how its requests were settled."""
    session.say(*session.told("done"))
    done = await at.ended(task)
    assert (done.state, answers(done)) == (COMPLETED, ["done"])
    return await resolutions(at, task)


# -- by a message


async def test_a_message_to_the_context_of_a_waiting_task_is_its_answer() -> None:
    async with house() as at:
        task, session = await at.asking(ask())
        bobs = await at.send("yes", "c", caller=BOB)
        assert bobs != task, "the context of another caller is another context"
        unclear = await at.send("and what is the weather like?", "c")
        assert unclear == task
        waiting = await at.tasks.get(ALICE, task)
        assert waiting.state is ASKING
        assert "is neither yes, always nor no" in (waiting.unclear or "")
        assert "metadata.opencode.newTask" in (waiting.unclear or "")
        message = Message("m", Role.USER, (Text("Go ahead!"),))
        for _ in range(2):  # the second time it is known
            async with asyncio.timeout(PATIENCE):
                sent = await at.tasks.send(ALICE, Request(message, "c"))
            assert sent.head.id == task
        assert await finished(at, task, session) == [("per_1", "once")]
        assert session.settled == [("per_1", ONCE)]


async def test_a_new_task_can_be_asked_for_while_another_waits_for_a_person() -> None:
    async with house() as at:
        task, session = await at.asking(ask())
        message = Message("m", Role.USER, (Text("yes"),))
        request = Request(message, "c", new_task=True)
        sent = await at.tasks.send(ALICE, request)
        assert sent.head.id != task
        assert (await at.tasks.send(ALICE, request)).head.id == sent.head.id
        assert await at.until_said(sent.head.id, Queued) == [Queued(task)]
        assert session.settled == []
        assert await at.send("no", "c") == task, "the waiting task comes first"
        await session.until(lambda: session.settled)
        assert session.settled == [("per_1", NO)]


async def test_an_answer_without_a_task_needs_one_that_waits() -> None:
    async with house() as at:
        await at.asking(ask())
        picture = Message("m", Role.USER, (FileUrl("https://example.com/a.png"),))
        with pytest.raises(InvalidParams) as refusal:
            await at.tasks.send(ALICE, Request(picture, "c"))
        assert "metadata.opencode.newTask" in str(refusal.value)
        late = Message("m", Role.USER, (Data({"reply": "once"}),))
        with pytest.raises(UnsupportedOperation):
            await at.tasks.send(ALICE, Request(late, "another context"))


async def test_an_ordinary_message_answers_and_the_task_goes_on() -> None:
    async with house() as at:
        task, session = await at.asking(ask())
        assert await at.state(task) is ASKING
        told = await at.say(task, YES)
        assert (told.state, told.head.id) == (WORKING, task)
        assert session.settled == [("per_1", ONCE)]
        assert len(session.prompts) == 1, "an answer is no prompt"
        assert await finished(at, task, session) == [("per_1", "once")]
        assert len((await at.tasks.get(ALICE, task)).messages) == 2, "but part of the history"


async def test_what_is_not_understood_decides_nothing_and_is_said() -> None:
    async with house() as at:
        task, session = await at.asking(ask())
        told = await at.say(task, Text("perhaps"))
        assert (told.state, list(told.interrupts)) == (ASKING, ["per_1"])
        assert told.unclear is not None
        assert "“perhaps” is neither" in told.unclear
        assert (session.settled, len(session.prompts)) == ([], 1)
        [unclear] = await at.until_said(task, InterruptUnclear)
        assert isinstance(unclear, InterruptUnclear)
        assert unclear.expires_at == told.interrupts["per_1"].expires_at is not None
        assert (await at.say(task, Text("no"))).unclear is None
        assert session.settled == [("per_1", NO)]


@pytest.mark.parametrize("file", [FileBytes("aGk="), FileUrl("https://example.com/a.png")])
async def test_a_file_in_an_answer_is_refused_and_nothing_is_decided(file: Part) -> None:
    async with house() as at:
        task, session = await at.asking(ask())
        with pytest.raises(InvalidParams) as refusal:
            await at.say(task, YES, file)
        assert list(refusal.value.fields) == ["message.parts[1]"]
        assert (await at.until_open(task, ask())).unclear is None
        assert session.settled == []
        await at.say(task, YES)
        assert session.settled == [("per_1", ONCE)]


async def test_a_question_is_answered() -> None:
    async with house() as at:
        task, session = await at.asking(question())
        await at.say(task, Text("Red"))
        assert session.settled == [("que_1", RED)]
        assert await finished(at, task, session) == [("que_1", "answered")]


async def test_several_are_answered_one_after_the_other_or_at_once() -> None:
    async with house() as at:
        task, session = await at.asking(ask(1), question(2), ask(3), ask(4, always=()))
        told = await at.say(task, YES)
        assert (told.state, list(told.interrupts)) == (ASKING, ["que_2", "per_3", "per_4"])
        reject = {"reply": "reject", "message": "why", "request_id": "per_4"}
        told = await at.say(task, Data({"answers": [["Red"]]}), Data(reject))
        assert (told.state, list(told.interrupts)) == (ASKING, ["per_3"])
        assert (await at.say(task, YES)).state is WORKING
        assert session.settled == [
            ("per_1", ONCE),
            ("que_2", RED),
            ("per_4", PermissionDecision("reject", "why")),
            ("per_3", ONCE),
        ]
        assert len(session.prompts) == 1


async def test_if_one_of_several_answers_is_unclear_none_is_taken() -> None:
    async with house() as at:
        task, session = await at.asking(ask(1), ask(2))
        await at.say(task, Data({"reply": "once"}), Data({"reply": "once", "request_id": "x"}))
        assert (await at.until_open(task, ask(1), ask(2))).state is ASKING
        assert session.settled == []


async def test_the_same_reply_again_is_the_same_reply() -> None:
    async with house() as at:
        task, session = await at.asking(ask())
        yes = Message("m1", Role.USER, (YES,))
        replies = await asyncio.gather(*(at.repeat(task, yes) for _ in range(4)))
        assert {reply.head.id for reply in replies} == {task}
        session.ask(ask(2))
        await at.until_open(task, ask(2))
        await at.repeat(task, yes)
        assert (session.settled, len(session.prompts)) == ([("per_1", ONCE)], 1)
        assert list((await at.tasks.get(ALICE, task)).interrupts) == ["per_2"], "nor for another"
        assert len((await at.tasks.get(ALICE, task)).messages) == 2


async def test_a_reply_that_was_used_before_says_why_it_does_not_count() -> None:
    async with house() as at:
        task, session = await at.asking(ask())
        yes = Message("m1", Role.USER, (YES,))
        await at.repeat(task, yes)
        session.ask(ask(2))
        await at.until_open(task, ask(2))
        for _ in range(2):  # it is said once
            again = await at.repeat(task, yes)
            assert again.unclear is not None
            assert "new messageId" in again.unclear
            assert "per_2: " in again.unclear
        assert session.settled == [("per_1", ONCE)]
        await at.repeat(task, Message("m1", Role.USER, (Text("per_2: yes"),)))
        session.say(*session.told("done"))
        said = [e.update for e in await at.entries(task)]
        assert session.settled == [("per_1", ONCE), ("per_2", ONCE)]
        assert sum(isinstance(update, InterruptUnclear) for update in said) == 1


async def test_of_two_answers_at_once_the_first_counts() -> None:
    async with house() as at:
        task, session = await at.asking(ask(1), ask(2))
        await asyncio.gather(at.say(task, YES), at.say(task, Text("no, use ls")))
        assert session.settled == [
            ("per_1", ONCE),
            ("per_2", PermissionDecision("reject", "use ls")),
        ]
        task, session = await at.asking(ask(3, "ses_1"), context="d")
        results = await asyncio.gather(
            at.interrupts.decide(ALICE, "per_3", ONCE),
            at.interrupts.decide(ALICE, "per_3", NO),
            return_exceptions=True,
        )
        assert results[0] is None
        assert isinstance(results[1], InterruptRequestNotFound)
        assert session.settled == [("per_3", ONCE)]


async def test_a_message_without_a_request_is_a_prompt_again() -> None:
    async with house() as at:
        task, session = await at.asking(ask())
        await at.say(task, YES)
        await at.say(task, Text("and then?"))
        session.say(*session.told("done"))
        await session.until_asked("and then?")


# -- by the id of the request


@pytest.mark.parametrize(
    "part", [Data({"reply": "once"}), Data({"answers": [["Red"]]}), Text(f"per_{'1' * 24}: yes")]
)
async def test_what_can_only_be_an_answer_is_never_a_prompt(part: Part) -> None:
    async with house() as at:
        task, session = await at.working("c")
        with pytest.raises(UnsupportedOperation, match="does not wait for one"):
            await at.say(task, part)
        assert len(session.prompts) == 1


async def test_a_request_is_decided_by_its_id() -> None:
    async with house() as at:
        task, session = await at.asking(ask(), question())
        [first, second] = await at.interrupts.pending(ALICE)
        assert (first.interrupt, first.task_id, first.context_id) == (ask(), task, "c")
        assert second.interrupt == question()
        assert first.expires_at is not None
        await at.interrupts.decide(ALICE, "que_1", RED)
        assert [p.interrupt for p in await at.interrupts.pending(ALICE)] == [ask()]
        await at.interrupts.decide(ALICE, "per_1", PermissionDecision("reject", "why"))
        assert session.settled == [("que_1", RED), ("per_1", PermissionDecision("reject", "why"))]
        assert await at.interrupts.pending(ALICE) == []
        assert await finished(at, task, session) == [("que_1", "answered"), ("per_1", "reject")]


async def test_what_cannot_be_decided_says_why() -> None:
    async with house() as at:
        task, session = await at.asking(ask(), question())
        with pytest.raises(InterruptRequestNotFound):
            await at.interrupts.decide(ALICE, "per_none", ONCE)
        with pytest.raises(InterruptTypeMismatch) as mismatch:
            await at.interrupts.decide(ALICE, "que_1", ONCE)
        assert mismatch.value.facts["expected"] == "question"
        with pytest.raises(InterruptTypeMismatch):
            await at.interrupts.decide(ALICE, "per_1", RED)
        with pytest.raises(InvalidParams) as wrong:
            await at.interrupts.decide(ALICE, "que_1", QuestionDecision(()))
        assert list(wrong.value.fields) == ["answers"]
        assert session.settled == []
        await at.interrupts.decide(ALICE, "per_1", ONCE)
        for again in (ONCE, NO):
            with pytest.raises(InterruptRequestNotFound):
                await at.interrupts.decide(ALICE, "per_1", again)
        await at.tasks.cancel(ALICE, task)
        with pytest.raises(InterruptRequestNotFound):
            await at.interrupts.decide(ALICE, "que_1", RED)
        assert session.settled == [("per_1", ONCE)]


async def test_what_another_caller_is_asked_does_not_exist() -> None:
    async with house() as at:
        task, session = await at.asking(ask())
        assert await at.interrupts.pending(BOB) == []
        with pytest.raises(InterruptRequestNotFound):
            await at.interrupts.decide(BOB, "per_1", ONCE)
        with pytest.raises(TaskNotFound):
            await at.say(task, YES, caller=BOB)
        assert session.settled == []


# -- "always"


async def test_always_is_kept_for_the_context_and_told_as_once() -> None:
    async with house() as at:
        task, session = await at.asking(ask(1), ask(2), ask(3, always=()))
        other = PermissionAsk("per_9", "ses_0", "bash", ("rm x",))
        session.ask(other)
        await at.until_open(task, ask(1), ask(2), ask(3), other)
        await at.say(task, Text("always"))
        assert session.settled == [(f"per_{n}", ONCE) for n in (1, 2, 3)], "what it covers, too"
        await at.until_open(task, other)
        await at.say(task, Text("no"))
        session.ask(ask(4))
        await session.until(lambda: len(session.settled) == 5)
        assert session.settled[-1] == ("per_4", ONCE)
        settled = await finished(at, task, session)
        assert settled == [
            ("per_1", "always"),
            ("per_2", "always"),
            ("per_3", "always"),
            ("per_9", "reject"),
        ], "what is allowed beforehand is not shown"


async def test_always_does_not_reach_another_context_or_caller() -> None:
    async with house() as at:
        task, session = await at.asking(ask(1))
        await at.say(task, Text("always"))
        await finished(at, task, session)
        later, session = await at.working("c", "again")
        session.begin()
        session.ask(ask(2))
        await session.until(lambda: len(session.settled) == 2)
        assert await finished(at, later, session) == []
        other, elsewhere = await at.asking(ask(3, "ses_1"), context="d")
        assert await at.state(other) is ASKING
        assert elsewhere.settled == []
        his = await at.send("hello", "c", caller=BOB)
        await at.agent.until(lambda: len(at.agent.sessions) == 3)
        bobs = at.agent.sessions["ses_2"]
        await bobs.until_asked("hello")
        bobs.begin()
        bobs.ask(ask(4, "ses_2"))
        await at.until(his, ASKING, caller=BOB)
        assert bobs.settled == []


async def test_what_is_heard_with_it_is_not_lost_while_a_permission_is_granted() -> None:
    async with house(SchedulerLimits(quiet=0.05, unreachable=60)) as at:
        task, session = await at.asking(ask(1))
        await at.say(task, Text("always"))
        session.ear.clear()
        session.open_requests |= {"per_2", "per_9"}
        other = PermissionAsk("per_9", "ses_0", "bash", ("rm x",))
        session.say(InterruptAsked("ses_0", ask(2)), InterruptAsked("ses_0", other))
        await at.until_open(task, other)
        session.ear.set()
        await session.until(lambda: len(session.settled) > 1)
        assert session.settled == [("per_1", ONCE), ("per_2", ONCE)]


async def test_always_can_be_passed_through() -> None:
    async with house(always="workspace") as at:
        task, session = await at.asking(ask(1))
        await at.say(task, Text("always"))
        assert session.settled == [("per_1", ALWAYS)]
        session.ask(ask(2))
        await at.until_open(task, ask(2))


async def test_if_the_store_cannot_say_what_was_allowed_it_is_asked() -> None:
    async with house() as at:
        task, session = await at.asking(ask(1))
        await at.say(task, Text("always"))
        await finished(at, task, session)
        await at.database.write(rename, "allow_rules", "away")
        task, session = await at.asking(ask(2))
        await at.database.write(rename, "away", "allow_rules")
        assert session.settled == [("per_1", ONCE)]


async def test_what_is_asked_can_be_answered_only_once_it_is_said() -> None:
    """Two at once, of which the second is allowed by what is said to the first."""
    async with house() as at:
        task, session = await at.asking(ask(1))
        session.ask(ask(2))
        await at.say(task, Text("always"))
        await session.until(lambda: len(session.settled) > 1)
        assert await at.state(task) is WORKING
        assert not await at.interrupts.pending(ALICE)
        await finished(at, task, session)
        opened = [e.update for e in await at.entries(task) if isinstance(e.update, InterruptOpened)]
        assert [o.interrupt.request_id for o in opened] in (["per_1"], ["per_1", "per_2"])


# -- committed, then delivered


async def test_the_decision_is_committed_before_the_agent_hears_of_it() -> None:
    async with house() as at:
        task, session = await at.asking(ask())
        session.ear.clear()
        replying = asyncio.create_task(at.say(task, YES))
        [answered] = await at.until_said(task, InterruptAnswered)
        assert answered == InterruptAnswered(ask(), ONCE, "once", by="message")
        assert (session.settled, replying.done()) == ([], False)
        session.ear.set()
        assert (await replying).state is WORKING
        assert session.settled == [("per_1", ONCE)]


async def test_who_leaves_after_the_decision_has_still_decided() -> None:
    async with house() as at:
        task, session = await at.asking(ask())
        session.ear.clear()
        replying = asyncio.create_task(at.say(task, YES))
        await at.until_said(task, InterruptAnswered)
        replying.cancel()
        session.ear.set()
        await session.until(lambda: session.settled == [("per_1", ONCE)])
        assert await finished(at, task, session) == [("per_1", "once")]


async def test_what_cannot_be_stored_is_not_delivered() -> None:
    async with house() as at:
        task, session = await at.asking(ask())
        await at.database.write(rename, "entries", "away")
        with pytest.raises(StoreUnavailable):
            await at.say(task, YES)
        with pytest.raises(StoreUnavailable):
            await at.interrupts.decide(ALICE, "per_1", ONCE)
        assert session.settled == []
        await at.database.write(rename, "away", "entries")
        assert list((await at.tasks.get(ALICE, task)).interrupts) == ["per_1"]
        await at.say(task, YES)
        assert session.settled == [("per_1", ONCE)]


@pytest.mark.parametrize("heard", [False, True], ids=["not heard", "heard, and lost its voice"])
async def test_an_agent_that_is_away_is_told_when_it_is_back(heard: bool) -> None:
    async with house(SOON) as at:
        task, session = await at.asking(ask())
        session.no_reply, session.unheard = AWAY, heard
        told = await at.say(task, YES)
        assert told.state is WORKING, "it is decided"
        with pytest.raises(InterruptRequestNotFound):
            await at.interrupts.decide(ALICE, "per_1", NO)
        await session.until_looks(1)
        session.no_reply = None
        await session.until(lambda: session.settled)
        await at.until_said(task, InterruptResolved)
        assert session.settled == [("per_1", ONCE)], "once, with effect"
        assert await finished(at, task, session) == [("per_1", "once")]


async def test_a_delayed_answer_is_delivered_although_the_agent_never_falls_silent() -> None:
    async with house(SchedulerLimits(retry=0.1, quiet=60)) as at:
        task, session = await at.asking(ask())
        session.no_reply = AWAY
        await at.say(task, YES)
        session.no_reply = None
        part = TextSnapshot("ses_0", session.begin(), "prt_x", BlockKind.TEXT, "", ended=False)
        session.say(part)

        async def babble() -> None:
            while True:
                session.say(TextDelta("ses_0", part.message_id, "prt_x", "bla "))
                await asyncio.sleep(0.01)

        babbling = asyncio.create_task(babble())
        try:
            await session.until(lambda: session.settled == [("per_1", ONCE)])
        finally:
            babbling.cancel()


async def test_a_look_that_began_before_the_answer_does_not_ask_again() -> None:
    async with house(SchedulerLimits(quiet=0.02)) as at:
        task, session = await at.asking(ask())
        session.stored = [InterruptAsked("ses_0", ask())]
        session.eye.clear()
        looks = session.looks
        await session.until_looks(looks + 1)
        await at.say(task, YES)
        session.stored = []
        session.eye.set()
        await session.until_looks(looks + 3)
        await at.log.flushed(task)
        opened = await at.until_said(task, InterruptOpened)
        assert len(opened) == 1
        assert await at.state(task) is WORKING


# -- settled by somebody else


async def test_what_is_settled_elsewhere_says_how() -> None:
    async with house() as at:
        task, session = await at.asking(ask(1), ask(2), question(3))
        session.say(
            InterruptClosed("ses_0", "per_1", "reject"),
            InterruptClosed("ses_0", "per_2", "always"),
            InterruptClosed("ses_0", "que_3", "answered"),
        )
        await at.until(task, WORKING)
        for request_id in ("per_1", "per_2"):
            with pytest.raises(InterruptRequestNotFound):
                await at.interrupts.decide(ALICE, request_id, ONCE)
        assert await finished(at, task, session) == [
            ("per_1", "reject"),
            ("per_2", "always"),
            ("que_3", "answered"),
        ]
        assert session.settled == []


async def test_an_answer_that_comes_too_late_does_not_claim_to_have_decided() -> None:
    async with house(NEVER) as at:
        task, session = await at.asking(ask())
        session.open_requests = frozenset()  # somebody rejects it, and we have not heard yet
        with pytest.raises(InterruptRequestNotFound):
            await at.interrupts.decide(ALICE, "per_1", ONCE)
        session.say(InterruptClosed("ses_0", "per_1", "reject"))
        assert await finished(at, task, session) == [("per_1", "reject")]


async def test_always_that_comes_too_late_for_one_request_holds_for_the_next() -> None:
    async with house(NEVER) as at:
        task, session = await at.asking(ask(1))
        session.open_requests = frozenset()  # somebody rejects it, and we have not heard yet
        await at.interrupts.decide(ALICE, "per_1", ALWAYS)
        session.say(InterruptClosed("ses_0", "per_1", "reject"))
        session.ask(ask(2))
        await session.until(lambda: session.settled == [("per_2", ONCE)])
        assert await finished(at, task, session) == [("per_1", "reject")]


async def test_an_answer_that_is_overtaken_on_its_way_does_not_claim_it_either() -> None:
    async with house() as at:
        task, session = await at.asking(ask())
        session.ear.clear()
        replying = asyncio.create_task(at.say(task, YES))
        await at.until_said(task, InterruptAnswered)
        session.open_requests = frozenset()
        session.say(InterruptClosed("ses_0", "per_1", "reject"))
        await at.until_said(task, InterruptResolved)
        session.ear.set()
        await replying
        assert await finished(at, task, session) == [("per_1", "reject")]
        assert (session.settled, len(session.prompts)) == ([], 1)


async def test_if_nobody_says_how_it_was_settled_the_next_look_finds_it_gone() -> None:
    async with house(SOON) as at:
        task, session = await at.asking(ask())
        session.open_requests = frozenset()
        with pytest.raises(InterruptRequestNotFound):
            await at.interrupts.decide(ALICE, "per_1", ONCE)
        await at.until_said(task, InterruptResolved)
        assert session.looks == 1


# -- nobody decides


async def test_a_permission_that_nobody_decides_is_refused_with_a_reason(hours: Hours) -> None:
    async with house(SchedulerLimits(answer=60)) as at:
        task, session = await at.asking(ask())
        hours.passed += 60
        await looked(session)
        await session.until(lambda: session.settled)
        assert session.settled == [("per_1", PermissionDecision("reject", NOT_DECIDED))]
        await at.until(task, WORKING)
        with pytest.raises(InterruptRequestExpired):
            await at.interrupts.decide(ALICE, "per_1", ONCE)
        assert await finished(at, task, session) == [("per_1", "expired")]
        with pytest.raises(InterruptRequestExpired):
            await at.interrupts.decide(ALICE, "per_1", ONCE)


async def test_a_question_that_nobody_answers_fails_the_task(hours: Hours) -> None:
    async with house(SchedulerLimits(answer=60)) as at:
        task, session = await at.asking(question())
        hours.passed += 60
        await looked(session)
        await session.until(lambda: session.settled)
        assert session.settled == [("que_1", QuestionDecision(None))]
        session.say(InterruptClosed("ses_0", "que_1", "rejected"))
        *_, end, idle = session.told("")
        assert isinstance(end, MessageSeen)
        refused = ToolCall("call_1", "question", "error", error="dismissed")
        stop = ToolSnapshot("ses_0", end.message_id, "prt_1", refused, stops=True)
        session.say(stop, replace(end, finish="tool-calls"), idle)
        done = await at.ended(task)
        assert done.ended is not None
        assert done.ended.problem is not None
        assert done.ended.problem.type is Failure.DEADLINE_EXCEEDED
        assert done.ended.message is not None
        assert STOPPED not in done.ended.message
        assert await resolutions(at, task) == [("que_1", "expired")]


async def test_what_expires_while_the_agent_is_away_is_refused_when_it_is_back(
    hours: Hours,
) -> None:
    async with house(SchedulerLimits(answer=60, retry=0.02)) as at:
        task, session = await at.asking(ask())
        session.no_reply = AWAY
        hours.passed += 60
        await looked(session)
        await at.until(task, WORKING)
        session.no_reply = None
        await session.until(lambda: session.settled)
        assert session.settled == [("per_1", PermissionDecision("reject", NOT_DECIDED))]
        assert await finished(at, task, session) == [("per_1", "expired")]


async def test_an_answer_that_is_being_committed_when_the_time_is_up_counts(
    monkeypatch: pytest.MonkeyPatch, hours: Hours
) -> None:
    async with house(SchedulerLimits(answer=60)) as at:
        task, session = await at.asking(ask())
        write, writing, gate = at.log.write, asyncio.Event(), asyncio.Event()

        async def slowly(task_id: str, updates: Sequence[Update], keys: Sequence[Key] = ()) -> None:
            writing.set()
            await gate.wait()
            await write(task_id, updates, keys)

        monkeypatch.setattr(at.log, "write", slowly)
        deciding = asyncio.create_task(at.interrupts.decide(ALICE, "per_1", ONCE))
        await writing.wait()
        hours.passed += 60
        await looked(session)
        gate.set()
        await deciding
        assert await finished(at, task, session) == [("per_1", "once")]
        assert session.settled == [("per_1", ONCE)]
        said = [entry.update for entry in await at.entries(task)]
        assert [u.resolution for u in said if isinstance(u, InterruptAnswered)] == ["once"]


async def test_who_is_overtaken_by_the_deadline_is_told_so(hours: Hours) -> None:
    async with house(SchedulerLimits(answer=60)) as at:
        task, session = await at.asking(ask())
        async with at.scheduler.deciding(task):  # somebody else decides something
            hours.passed += 60
            await looked(session)
            late = asyncio.create_task(at.interrupts.decide(ALICE, "per_1", ONCE))
            assert [p.resolution for p in await at.interrupts.pending(ALICE)] == [None]
        with pytest.raises(InterruptRequestExpired):
            await late
        assert session.settled == [("per_1", PermissionDecision("reject", NOT_DECIDED))]
        assert await finished(at, task, session) == [("per_1", "expired")]


async def looked(session: ScriptedSession) -> None:
    """Make the turn look at the clock."""
    session.say(Busy(session.ref.id))
    for _ in range(20):
        await asyncio.sleep(0)


# -- the end of a task that waits


async def test_after_a_cancel_nothing_can_be_allowed_any_more() -> None:
    async with house() as at:
        task, session = await at.asking(ask())
        session.deaf = True  # the abort takes its time
        canceling = asyncio.create_task(at.tasks.cancel(ALICE, task))
        await session.until(lambda: session.aborts)
        with pytest.raises(InterruptRequestNotFound):
            await at.interrupts.decide(ALICE, "per_1", ONCE)
        replying = asyncio.create_task(at.say(task, YES))
        await asyncio.sleep(0)
        session.deaf = False
        async with asyncio.timeout(PATIENCE):
            assert (await canceling).state is CANCELED
            await asyncio.gather(replying, return_exceptions=True)
        assert session.settled == []
        with pytest.raises(UnsupportedOperation):
            await at.say(task, YES)


async def test_who_decides_while_the_task_ends_is_told_that_as_is_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with house() as at:
        _, session = await at.asking(ask())
        write = at.log.write

        async def after_the_end(
            task_id: str, updates: Sequence[Update], keys: Sequence[Key] = ()
        ) -> None:
            at.log.append(task_id, [Ended(FAILED)])
            await write(task_id, updates, keys)

        monkeypatch.setattr(at.log, "write", after_the_end)
        with pytest.raises(UnsupportedOperation, match="has ended"):
            await at.interrupts.decide(ALICE, "per_1", ONCE)
        assert session.settled == []
        assert all(UnsupportedOperation in method.all_errors for method in INTERACTIVE.methods)


# -- another process


@asynccontextmanager
async def recovered(
    url: str, agent: ScriptedAgent, limits: SchedulerLimits
) -> AsyncIterator[House]:
    async with (
        house(limits, url, agent) as at,
        Recovery.open(at.log, at.scheduler, inputs=Inputs(NoFiles(), 1 << 20, 1 << 20)),
    ):
        yield at


async def test_what_is_asked_outlives_the_process(tmp_path: Path) -> None:
    url, agent = f"sqlite:///{tmp_path / 'tasks.db'}", ScriptedAgent()
    async with house(url=url, agent=agent) as at:
        task, session = await at.asking(ask(1), question(2))
        before = await at.interrupts.pending(ALICE)
    async with recovered(url, agent, SOON) as at:
        assert await at.interrupts.pending(ALICE) == before, "with the deadlines it had"
        await at.say(task, YES)
        await session.until(lambda: session.subscribed)
        await at.interrupts.decide(ALICE, "que_2", RED)
        await session.until(lambda: len(session.settled) == 2)
        assert sorted(session.settled) == [("per_1", ONCE), ("que_2", RED)]
        session.begin()
        assert sorted(await finished(at, task, session)) == [
            ("per_1", "once"),
            ("que_2", "answered"),
        ]
        assert len(session.prompts) == 1


async def test_a_decision_that_was_committed_is_delivered_by_the_next_process(
    tmp_path: Path,
) -> None:
    url, agent = f"sqlite:///{tmp_path / 'tasks.db'}", ScriptedAgent()
    async with house(url=url, agent=agent) as at:
        task, session = await at.asking(ask())
        session.ear.clear()
        replying = asyncio.create_task(at.say(task, YES))
        await at.until_said(task, InterruptAnswered)
        replying.cancel()
        session.no_reply = AWAY
        session.ear.set()
    session.no_reply = None
    assert session.settled == []
    async with recovered(url, agent, SOON) as at:
        await session.until(lambda: session.settled)
        assert session.settled == [("per_1", ONCE)]
        session.begin()
        assert await finished(at, task, session) == [("per_1", "once")]


async def test_a_decision_before_the_next_process_has_found_the_agent_is_not_lost(
    tmp_path: Path,
) -> None:
    url, agent = f"sqlite:///{tmp_path / 'tasks.db'}", ScriptedAgent()
    async with house(url=url, agent=agent) as at:
        task, session = await at.asking(ask(1), ask(2))
    session.line.clear()  # who subscribes has to wait
    async with recovered(url, agent, SOON) as at:
        assert (await at.say(task, YES)).state is ASKING
        await at.interrupts.decide(ALICE, "per_2", NO)
        assert await at.state(task) is WORKING
        assert session.settled == []
        session.line.set()
        await session.until(lambda: len(session.settled) == 2)
        assert session.settled == [("per_1", ONCE), ("per_2", NO)]


async def test_a_process_that_does_not_hold_the_task_says_so(tmp_path: Path) -> None:
    url, agent = f"sqlite:///{tmp_path / 'tasks.db'}", ScriptedAgent()
    async with house(url=url, agent=agent) as here, house(url=url, agent=agent) as there:
        task, session = await here.asking(ask())
        assert [p.task_id for p in await there.interrupts.pending(ALICE)] == [task]
        with pytest.raises(TaskHandover) as busy:
            await there.say(task, YES)
        assert busy.value.retry_after
        with pytest.raises(TaskHandover):
            await there.interrupts.decide(ALICE, "per_1", ONCE)
        assert session.settled == []
        assert len((await here.tasks.get(ALICE, task)).messages) == 1, "nothing was taken"
        await here.say(task, YES)
        assert session.settled == [("per_1", ONCE)]


async def test_an_answer_does_not_wait_for_ever_for_what_else_is_to_be_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps others from answering."""
    monkeypatch.setattr("opencode_a2a.service.scheduler.FLUSH_SECONDS", 0.05)
    async with house(url=f"sqlite:///{tmp_path / 'tasks.db'}") as at:
        _, session = await at.asking(ask())
        session.ear.clear()
        answering = asyncio.create_task(at.interrupts.decide(ALICE, "per_1", ONCE))
        await session.until(lambda: session.being_told)
        async with writer_busy(at.database):  # the decision is stored
            session.say(*session.told("more"))
            session.ear.set()
            async with asyncio.timeout(PATIENCE):
                await answering
        assert session.settled == [("per_1", ONCE)]
