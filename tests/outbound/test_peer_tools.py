"""What the agent's tools do: with agents of others, and with those that behave badly."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from opencode_a2a.config import ConfigError, load
from opencode_a2a.domain.peer_calls import CallSite, ToolResult
from opencode_a2a.domain.ports import PeerConversation
from opencode_a2a.domain.values import (
    Decision,
    Interrupt,
    PermissionAsk,
    PermissionDecision,
    QuestionAsk,
    QuestionDecision,
    Usage,
)
from opencode_a2a.outbound import peer_tools
from opencode_a2a.outbound.client import Peers
from opencode_a2a.outbound.egress import Egress
from opencode_a2a.outbound.peer_tools import PeerToolbox, tool_specs
from opencode_a2a.outbound.target import CallablePeers, PeerLimits, Target
from opencode_a2a.outbound.workspace_files import FOLDER
from opencode_a2a.peers import callable_peers
from tests.outbound.agents import (
    CardNotCounted,
    Rude,
    card,
    cut,
    frame,
    piece,
    sdk_agent,
    silence,
    status,
    task,
)
from tests.outbound.agents import streaming as streams

Json = dict[str, Any]
QUICK = PeerLimits(lost_seconds=0.05, total_seconds=20, idle_seconds=5)
PATIENCE = 30.0


class Kept:
    """Conversations in memory: implements `domain.ports.PeerConversations`."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str, str], PeerConversation] = {}
        self.changed = asyncio.Event()

    async def last(self, owner: str, context_id: str, peer: str) -> PeerConversation | None:
        return self.found.get((owner, context_id, peer))

    async def keep(
        self, owner: str, context_id: str, peer: str, conversation: PeerConversation
    ) -> None:
        self.found[owner, context_id, peer] = conversation
        self.changed.set()


@dataclass
class Agent:
    """Whoever calls the tools: a task in a workspace, and a person who decides."""

    box: PeerToolbox
    site: CallSite
    workspace: Path
    kept: Kept
    asked: list[Interrupt] = field(default_factory=list)
    usage: dict[str, Usage] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        workspace: Path,
        peers: CallablePeers,
        *,
        limits: PeerLimits = QUICK,
        decisions: Sequence[Decision] = (),
        may_read: Callable[[str], bool] = lambda path: True,
        egress: Egress = Egress(),  # noqa: B008 (it is frozen)
    ) -> Agent:
        kept = Kept()
        box = PeerToolbox(Peers(egress, limits), lambda: peers, kept)

        async def ask(interrupt: Interrupt) -> Decision:
            agent.asked.append(interrupt)
            return agent.decisions.pop(0)

        def add_usage(peer: str, usage: Usage) -> None:
            agent.usage[peer] = usage

        site = CallSite(
            task_id="task",
            context_id="context",
            owner="alice",
            session="ses_1",
            directory=str(workspace),
            headers={"A2A-Call-Depth": "1"},
            ask=ask,
            add_usage=add_usage,
            may_read=may_read,
        )
        agent = cls(box, site, workspace, kept, decisions=list(decisions))
        return agent

    async def run(self, tool: str, **arguments: Any) -> ToolResult:
        async with asyncio.timeout(PATIENCE):
            return await self.box.run(tool, arguments, self.site)

    async def call(self, message: str, **more: Any) -> str:
        result = await self.run("call", peer="echo", message=message, **more)
        assert not result.failed, result.text
        return result.text

    async def fail(self, tool: str = "call", **more: Any) -> str:
        arguments = {"peer": "echo", "message": "hello"} if tool == "call" else {"peer": "echo"}
        result = await self.run(tool, **arguments | more)
        assert result.failed, result.text
        assert "\n" not in result.text
        return result.text


@pytest.fixture
async def echo(tmp_path: Path) -> AsyncIterator[Agent]:
    async with sdk_agent("1.0", "JSONRPC") as url:
        yield Agent.of(tmp_path, CallablePeers({"echo": Target(url, name="echo")}))


@pytest.fixture
async def rude() -> AsyncIterator[Rude]:
    async with Rude.open() as agent:
        yield agent


def rude_agent(tmp_path: Path, rude: Rude, **more: Any) -> Agent:
    return Agent.of(tmp_path, CallablePeers({"echo": Target(rude.url, name="echo")}), **more)


# -- what the model gets to read


async def test_a_call_brings_the_answer_and_the_next_one_continues(echo: Agent) -> None:
    assert await echo.call("hello there") == "echo: completed\n\nhello there "
    [first] = echo.kept.found.values()
    assert await echo.call("again") == "echo: completed\n\nagain "
    [second] = echo.kept.found.values()
    assert second.context_id == first.context_id
    assert second.task_id != first.task_id
    await echo.call("anew", **{"continue": False})
    [third] = echo.kept.found.values()
    assert third.context_id != first.context_id


async def test_conversations_of_other_contexts_and_callers_are_others(echo: Agent) -> None:
    await echo.call("hello")
    own = echo.site
    for site in (replace(own, context_id="other"), replace(own, owner="bob")):
        echo.site = site
        assert "You have not called it" in await echo.fail("status")
        await echo.call("hello")
    assert len({each.context_id for each in echo.kept.found.values()}) == 3


async def test_the_last_call_can_be_looked_at_and_canceled(echo: Agent) -> None:
    assert "You have not called it" in await echo.fail("status")
    await echo.call("hello")
    assert (await echo.run("status", peer="echo")).text == "echo: completed\n\nhello "
    assert (await echo.run("cancel", peer="echo")).text == "echo: completed\n\nhello "


async def test_peers_are_listed_with_what_they_can_do(echo: Agent) -> None:
    peers = {**echo.box._callable().targets, "down": Target("http://127.0.0.1:9", name="down")}
    echo.box._callable = lambda: CallablePeers(peers)
    listed = (await echo.run("peers")).text
    assert "echo: Echo. Says what you say.\n  - Echo: Echoes." in listed
    assert "down: cannot be called now. Nobody accepts connections" in listed


async def test_a_list_of_peers_is_bounded(tmp_path: Path, rude: Rude) -> None:
    skill = {"id": "s", "name": "ü" * 300, "description": "d" * 1_000, "tags": []}
    rude.card = card(rude.url) | {"description": "d" * 1_000, "skills": [skill] * 50}
    targets = {name: Target(rude.url, name=name) for name in map(str, range(40))}
    listed = (await Agent.of(tmp_path, CallablePeers(targets)).run("peers")).text
    assert len(listed.encode()) <= peer_tools.MAX_RESULT_BYTES
    assert all(f"\n{name}: Rude. ddd" in f"\n{listed}" for name in targets)


async def never(request: web.Request) -> web.StreamResponse:
    await silence(request)
    raise AssertionError


IMPATIENT = PeerLimits(request_seconds=1, card_seconds=60, idle_seconds=60, total_seconds=60)


async def test_the_model_hears_in_time_that_a_peer_does_not_answer(
    tmp_path: Path, rude: Rude
) -> None:
    rude.card = never
    agent = rude_agent(tmp_path, rude, limits=IMPATIENT)
    # An earlier process has left a task, which is looked at first.
    await agent.kept.keep("alice", "context", "echo", PeerConversation("c", "t"))
    assert "Try again later" in await agent.fail()
    assert len(rude.asked) == 1, "it is asked once, not again and again"


async def test_the_model_hears_in_time_that_a_peer_may_be_at_work(
    tmp_path: Path, rude: Rude
) -> None:
    rude.answers = {"SendStreamingMessage": never}
    agent = rude_agent(tmp_path, rude)
    agent.box._peers = CardNotCounted(IMPATIENT)
    told = await agent.fail()
    assert "It is not known whether the peer got the message." in told
    assert "Call again only if" in told
    assert len(rude.asked) == 2, "it is asked once, not again and again"


async def test_what_is_no_argument_is_named(echo: Agent) -> None:
    assert "message: Field required" in (await echo.run("call", peer="echo")).text
    assert "peers: Extra inputs" in (await echo.run("peers", peers="echo")).text
    told = await echo.fail(peer="someone")
    assert told.startswith("There is no agent of this name. Those you can call: echo.")


async def test_an_answer_that_is_too_long_is_put_into_a_file(
    tmp_path: Path, rude: Rude, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_tools, "MAX_RESULT_BYTES", 100)
    text = "long " * 50
    rude.answers["SendStreamingMessage"] = streams(frame(task("COMPLETED", text)))
    told = await rude_agent(tmp_path, rude).call("hello")
    [kept] = [each for each in (tmp_path / FOLDER).iterdir() if each.suffix == ".md"]
    assert f"all 267 characters are in {FOLDER}/{kept.name}" in told
    assert kept.read_text() == f"echo: completed\n\n{text}"
    assert (tmp_path / FOLDER / ".gitignore").read_text() == "*\n"


async def test_a_long_answer_that_cannot_be_kept_is_cut(
    tmp_path: Path, rude: Rude, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_tools, "MAX_RESULT_LINES", 5)
    (tmp_path / FOLDER).write_text("a file")
    rude.answers["SendStreamingMessage"] = streams(frame(task("COMPLETED", "line\n" * 10)))
    told = await rude_agent(tmp_path, rude).call("hello")
    assert "could not be kept" in told
    assert "line\nline" in told


def with_files(*parts: Json) -> bytes:
    found = task("COMPLETED", "Here.")
    found["task"]["artifacts"].append({"artifactId": "files", "parts": list(parts)})
    return frame(found)


def file(name: str, content: bytes) -> Json:
    raw = base64.b64encode(content).decode()
    return {"raw": raw, "filename": name, "mediaType": "application/octet-stream"}


async def test_files_of_an_answer_are_put_into_the_workspace(tmp_path: Path, rude: Rude) -> None:
    rude.answers["SendStreamingMessage"] = streams(
        with_files(
            file("../../report.pdf", b"pdf"), {"url": f"{rude.url}/gone", "filename": "b.txt"}
        )
    )
    told = await rude_agent(tmp_path, rude).call("hello")
    [kept] = [each for each in (tmp_path / FOLDER).iterdir() if each.suffix == ".pdf"]
    assert kept.read_bytes() == b"pdf"
    assert f"{FOLDER}/report.pdf (3 bytes)" in told
    assert "b.txt: not kept." in told


async def test_nothing_is_written_through_a_link(tmp_path: Path, rude: Rude) -> None:
    outside, workspace = tmp_path / "outside", tmp_path / "workspace"
    for folder in (outside, workspace):
        folder.mkdir()
    (workspace / FOLDER).symlink_to(outside)
    rude.answers["SendStreamingMessage"] = streams(with_files(file("a", b"x")))
    told = await rude_agent(workspace, rude).call("hello")
    assert "is a link or a file: nothing is written there" in told
    assert not list(outside.iterdir())


async def test_files_of_the_workspace_are_sent_and_no_others(tmp_path: Path, rude: Rude) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "a.txt").write_text("A")
    (workspace / ".env").write_text("SECRET")
    (tmp_path / "secret.txt").write_text("SECRET")
    (workspace / "link").symlink_to(tmp_path / "secret.txt")
    (workspace / "loop").symlink_to("loop")
    os.mkfifo(workspace / "pipe")
    sent = list[Json]()

    async def take(request: web.Request) -> web.StreamResponse:
        sent.append((await request.json())["params"])
        return await streams(frame(task("COMPLETED", "ok")))(request)

    rude.answers["SendStreamingMessage"] = take
    agent = rude_agent(workspace, rude, may_read=lambda path: not path.endswith(".env"))
    for wrong, reason in {
        "../secret.txt": "is outside of the workspace",
        str(tmp_path / "secret.txt"): "is outside of the workspace",
        "link": "is outside of the workspace",
        ".env": "may not be read without permission",
        "missing": "No such file",
        ".": "is not a file",
        "a\0b": "is no path",
        "loop": "loop",
        "pipe": "is not a file",
    }.items():
        assert reason in await agent.fail(files=[wrong])
    assert not sent
    await agent.call("hello", files=["a.txt"])
    [text, attached] = sent[0]["message"]["parts"]
    assert text == {"text": "hello"}
    assert (attached["filename"], base64.b64decode(attached["raw"])) == ("a.txt", b"A")


async def test_a_workspace_that_was_replaced_by_a_link_is_left_alone(
    tmp_path: Path, rude: Rude
) -> None:
    outside, workspace = tmp_path / "outside", tmp_path / "workspace"
    outside.mkdir()
    (outside / "secret.txt").write_text("SECRET")
    workspace.symlink_to(outside)
    agent = rude_agent(workspace, rude)
    assert "is outside of the workspace" in await agent.fail(files=["secret.txt"])
    rude.answers["SendStreamingMessage"] = streams(with_files(file("a", b"x")))
    assert "nothing is written there" in await agent.call("hello")
    assert [each.name for each in outside.iterdir()] == ["secret.txt"]


async def test_a_link_that_is_put_there_after_the_check_is_not_followed(
    tmp_path: Path, rude: Rude
) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "workspace" / "folder"
    for each in (outside, folder):
        each.mkdir(parents=True)
        (each / "a.txt").write_text("SECRET" if each is outside else "A")

    def swap(path: str) -> bool:  # the last that is asked before a file is opened
        if not folder.is_symlink():
            folder.rename(tmp_path / "moved")
            folder.symlink_to(outside)
        return True

    agent = rude_agent(folder.parent, rude, may_read=swap)
    assert "Not a directory" in await agent.fail(files=["folder/a.txt"])


async def test_rules_are_about_the_repository_of_which_the_workspace_is_a_part(
    tmp_path: Path, rude: Rude
) -> None:
    (tmp_path / ".git").mkdir()
    workspace = tmp_path / "part"
    workspace.mkdir()
    (workspace / "a.txt").write_text("A")
    agent = rude_agent(workspace, rude, may_read=lambda path: not path.startswith("part/"))
    assert "may not be read without permission" in await agent.fail(files=["a.txt"])


async def test_to_look_at_a_call_again_writes_no_files(tmp_path: Path, rude: Rude) -> None:
    async def get(request: web.Request) -> web.StreamResponse:
        found = json.loads(with_files(file("a.pdf", b"pdf")).removeprefix(b"data: "))
        return web.json_response(found | {"result": found["result"]["task"]})

    rude.answers["SendStreamingMessage"] = streams(with_files(file("a.pdf", b"pdf")))
    rude.answers["GetTask"] = get
    agent = rude_agent(tmp_path, rude)
    await agent.call("hello")
    told = (await agent.run("status", peer="echo")).text
    assert "Its files:\n  a.pdf (3 bytes)\n" in told
    assert {each.name for each in (tmp_path / FOLDER).iterdir()} == {".gitignore", "a.pdf"}


async def test_how_deep_the_call_is_and_what_was_used_is_told(tmp_path: Path, rude: Rude) -> None:
    done = status("COMPLETED")
    used = {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7, "cost": 0.5, "other": "x"}
    done["statusUpdate"]["metadata"] = {"shared": {"usage": used}}
    rude.answers["SendStreamingMessage"] = streams(frame(task("WORKING", "hi")), frame(done))
    agent = rude_agent(tmp_path, rude)
    await agent.call("hello")
    assert dict(rude.asked)["SendStreamingMessage"]["a2a-call-depth"] == "1"
    assert agent.usage == {"echo": Usage(input_tokens=5, output_tokens=2, cost=0.5)}


# -- what a peer asks


async def test_a_question_is_passed_on_and_its_answer_back(echo: Agent) -> None:
    echo.decisions = [QuestionDecision((("this one",),))]
    assert await echo.call("ask") == "echo: completed\n\nthis one "
    [asked] = echo.asked
    assert isinstance(asked, QuestionAsk)
    assert (asked.peer, asked.session) == ("echo", "ses_1")
    assert [question.question for question in asked.questions] == ["Which one?"]


async def test_a_question_that_nobody_answers_cancels_the_task_of_the_peer(echo: Agent) -> None:
    echo.decisions = [QuestionDecision(None)]
    assert (await echo.fail(message="ask")).startswith("Nobody answered what it asked")
    assert (await echo.run("status", peer="echo")).text.startswith("echo: canceled")


def asking(kind: str, **details: Any) -> bytes:
    found = status("INPUT_REQUIRED", "May I?")
    mark = {"request_id": "per_1", "type": kind, "phase": "asked", "details": details}
    found["statusUpdate"]["metadata"] = {"shared": {"interrupt": mark}}
    return frame(found)


def answering(rude: Rude, first: bytes) -> list[Json]:
    """Ask first, and complete when answered; the parts of the answers."""
    answers = list[Json]()

    async def take(request: web.Request) -> web.StreamResponse:
        message = (await request.json())["params"]["message"]
        if "taskId" not in message:
            return await streams(frame(task("WORKING")), first)(request)
        answers.extend(message["parts"])
        return await streams(frame(task("COMPLETED", "done")))(request)

    rude.answers["SendStreamingMessage"] = take
    return answers


@pytest.mark.parametrize(
    ("decision", "reply"),
    [
        (PermissionDecision("once"), {"reply": "once"}),
        (PermissionDecision("always"), {"reply": "once"}),
        (PermissionDecision("reject", "not now"), {"reply": "reject", "message": "not now"}),
    ],
)
async def test_a_permission_is_passed_on_with_all_that_it_is_about(
    tmp_path: Path, rude: Rude, decision: Decision, reply: Json
) -> None:
    about = {"permission": "bash", "patterns": ["rm *"], "command": "rm -r x", "always": ["rm *"]}
    answers = answering(rude, asking("permission", **about))
    agent = rude_agent(tmp_path, rude, decisions=[decision])
    await agent.call("hello")
    [asked] = agent.asked
    assert isinstance(asked, PermissionAsk)
    # What is allowed to the agent itself is not allowed to a peer.
    assert (asked.permission, asked.command, asked.always) == ("echo:bash", "rm -r x", ("rm *",))
    assert answers == [{"data": {"request_id": "per_1"} | reply}]


async def test_questions_with_options_are_passed_on(tmp_path: Path, rude: Rude) -> None:
    options = [{"label": "A", "description": "first"}, {"label": "B"}]
    asked = {"header": "Pick", "question": "Which?", "options": options, "custom": False}
    answers = answering(rude, asking("question", questions=[asked]))
    agent = rude_agent(tmp_path, rude, decisions=[QuestionDecision((("A",),))])
    await agent.call("hello")
    [found] = agent.asked
    assert isinstance(found, QuestionAsk)
    [question] = found.questions
    assert [option.label for option in question.options] == ["A", "B"]
    assert not question.custom
    assert answers == [{"data": {"request_id": "per_1", "answers": [["A"]]}}]


async def test_where_others_have_answered_the_task_is_followed_to_its_end(
    tmp_path: Path, rude: Rude
) -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        message = (await request.json())["params"]["message"]
        if "taskId" not in message:
            return await streams(frame(task("WORKING")), asking("permission"))(request)
        error = {"code": -32004, "message": "It does not wait."}
        return web.json_response({"jsonrpc": "2.0", "id": 1, "error": error})

    rude.answers |= {"SendStreamingMessage": refuse, "GetTask": at_work}
    rude.answers["SubscribeToTask"] = streams(frame(task("COMPLETED", "done")))
    agent = rude_agent(tmp_path, rude, decisions=[PermissionDecision("once")])
    assert await agent.call("hello") == "echo: completed\n\ndone"


async def test_a_request_that_cannot_be_shown_whole_is_not_shown(
    tmp_path: Path, rude: Rude
) -> None:
    rude.answers["CancelTask"] = canceled
    answering(rude, asking("permission", permission="bash", command="x" * 70_000))
    agent = rude_agent(tmp_path, rude)
    assert "more than can be shown" in await agent.fail()
    assert not agent.asked


# -- what goes wrong


async def canceled(request: web.Request) -> web.StreamResponse:
    return web.json_response({"jsonrpc": "2.0", "id": 1, "result": task("CANCELED")["task"]})


async def at_work(request: web.Request) -> web.StreamResponse:
    return web.json_response({"jsonrpc": "2.0", "id": 1, "result": task("WORKING")["task"]})


async def test_canceling_does_not_wait_for_the_calls_of_others(tmp_path: Path, rude: Rude) -> None:
    rude.answers["SendStreamingMessage"] = streams(frame(task("WORKING")), then=silence)
    rude.answers |= {"GetTask": at_work, "CancelTask": canceled}
    limits = replace(QUICK, concurrent_calls=1, idle_seconds=3600, total_seconds=3600)
    agent = rude_agent(tmp_path, rude, limits=limits)
    first = asyncio.create_task(agent.run("call", peer="echo", message="hi"))
    async with asyncio.timeout(PATIENCE):
        await agent.kept.changed.wait()
        second = asyncio.create_task(
            agent.box.run("call", {"peer": "echo", "message": "hi"}, replace(agent.site, owner="b"))
        )
        assert (await agent.run("status", peer="echo")).text.startswith("echo: working")
        assert (await agent.run("peers")).text.startswith("echo: Rude.")
        assert (await agent.run("cancel", peer="echo")).text.startswith("echo: canceled")
        assert not second.done()
        second.cancel()
        first.cancel()
        await asyncio.wait({first, second})


async def test_a_call_that_goes_on_is_not_taken_for_one_of_an_earlier_process(
    tmp_path: Path, rude: Rude, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_tools, "MOST_KNOWN", 1)
    rude.answers["SendStreamingMessage"] = streams(frame(task("WORKING")), then=silence)
    rude.answers |= {"GetTask": at_work, "CancelTask": canceled}
    agent = rude_agent(tmp_path, rude)
    call = asyncio.create_task(agent.call("hi", **{"continue": False}))
    async with asyncio.timeout(PATIENCE):
        await agent.kept.changed.wait()
    rude.answers["SendStreamingMessage"] = streams(frame({"task": other_task()}))
    await agent.call("hello")  # which finds the other as the last one
    await agent.kept.keep("alice", "context", "echo", PeerConversation("c", "t"))
    own, agent.site = agent.site, replace(agent.site, context_id="other")
    await agent.call("hello")  # so that the first conversation is forgotten
    agent.site = own
    await agent.call("hello")
    assert "CancelTask" not in dict(rude.asked)
    call.cancel()
    await asyncio.wait({call})


def other_task() -> Json:
    found: Json = task("COMPLETED", "done")["task"] | {"id": "u"}
    return found


async def test_a_call_that_nobody_waits_for_is_canceled_at_the_peer(
    tmp_path: Path, rude: Rude
) -> None:
    rude.answers["SendStreamingMessage"] = streams(frame(task("WORKING")), then=silence)
    rude.answers["CancelTask"] = canceled
    agent = rude_agent(tmp_path, rude)
    call = asyncio.create_task(agent.run("call", peer="echo", message="hi"))
    async with asyncio.timeout(PATIENCE):
        await agent.kept.changed.wait()  # the task of the peer is known
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert rude.asked[-1][0] == "CancelTask"


async def test_a_call_is_canceled_at_the_peer_also_before_the_peer_has_told_its_task(
    tmp_path: Path, rude: Rude
) -> None:
    asked, slow = asyncio.Event(), asyncio.Event()

    async def work(request: web.Request) -> web.StreamResponse:
        asked.set()
        await slow.wait()
        return await streams(frame(task("WORKING")), then=silence)(request)

    rude.answers |= {"SendStreamingMessage": work, "CancelTask": canceled}
    call = asyncio.create_task(rude_agent(tmp_path, rude).run("call", peer="echo", message="hi"))
    async with asyncio.timeout(PATIENCE):
        await asked.wait()
        call.cancel()
        await asyncio.wait({call}, timeout=0.01)
        slow.set()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert rude.asked[-1][0] == "CancelTask"


def answer(status: int, text: str, **headers: str) -> Any:
    async def respond(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=text, headers=headers)

    return respond


@pytest.mark.parametrize(
    ("behaves", "reason", "hint"),
    [
        (answer(200, "<html>hi</html>"), "does not answer as A2A asks", "Go on without it"),
        (answer(401, "no"), "credential", "Only the operator"),
        (answer(429, "slow", **{"Retry-After": "7"}), "", "Try again in 7 s"),
        (answer(503, "slow"), "", "go on without it"),
        (answer(307, "", Location="http://10.0.0.1/"), "redirects", "Go on without it"),
        (streams(frame(task("FAILED"))), "The task failed.", "another message"),
        (streams(frame(status("REJECTED", "Not mine."))), "Not mine.", "another message"),
        (streams(frame(task("AUTH_REQUIRED"))), "log in", "Somebody must log in"),
        (streams(frame(task("WORKING")), then=cut), "", "a2a_status"),
        (streams(), "not known whether", "Call again only if"),
    ],
)
async def test_what_goes_wrong_is_told_in_one_line_with_a_hint(
    tmp_path: Path, rude: Rude, behaves: Any, reason: str, hint: str
) -> None:
    rude.answers |= {"SendStreamingMessage": behaves, "CancelTask": canceled}
    rude.answers["SubscribeToTask"] = rude.answers["GetTask"] = streams(then=cut)
    agent = rude_agent(tmp_path, rude)
    told = await agent.fail()
    assert reason in told
    assert hint in told
    # The next call is a call like any other.
    rude.answers["SendStreamingMessage"] = streams(frame(task("COMPLETED", "fine")))
    assert await agent.call("hello") == "echo: completed\n\nfine"


async def test_a_wrong_card_is_told(tmp_path: Path, rude: Rude) -> None:
    rude.card = card(rude.url, version="7.0")
    assert "Go on without it." in await rude_agent(tmp_path, rude).fail()
    rude.card = {"name": "no agent"}
    assert "Go on without it." in await rude_agent(tmp_path, rude).fail()


async def test_an_endless_answer_is_ended(tmp_path: Path, rude: Rude) -> None:
    async def pour(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(frame(task("WORKING")))
        while True:
            await response.write(frame(piece("x" * 10_000)))

    rude.answers |= {"SendStreamingMessage": pour, "CancelTask": canceled}
    limits = replace(QUICK, response_bytes=1_000_000)
    told = await rude_agent(tmp_path, rude, limits=limits).fail()
    assert "Go on without it." in told
    assert rude.asked[-1][0] == "CancelTask"


# -- whom the model can call


def settings(monkeypatch: pytest.MonkeyPatch, config: Path, **env: str) -> CallablePeers | None:
    for name, value in {"A2A_BEARER_TOKEN": "own", **env}.items():
        monkeypatch.setenv(name, value)
    return callable_peers(load(config), "http://localhost:8000", "http://127.0.0.1:4096")


async def test_a_peer_by_its_address_gets_no_credential_and_is_no_private_host(
    tmp_path: Path, rude: Rude, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config.toml"
    config.write_text("")
    assert settings(monkeypatch, config) is None
    env = {"A2A_CLIENT_ALLOW_ANY_PEER": "true", "A2A_CLIENT_BEARER_TOKEN": "secret-of-operator"}
    peers = settings(monkeypatch, config, **env)
    assert peers is not None
    found = peers.find("https://agent.example.com/", {})
    assert (found.login.headers, found.named) == ((), False)
    agent = Agent.of(tmp_path, peers, egress=Egress(allow_private=True))
    for word in (rude.url, "http://localhost:1", "http://169.254.169.254/"):
        assert "a2a_peers lists the agents" in await agent.fail(peer=word)
    for word in ("http://127.0.0.1:8000", "http://127.0.0.1:4096/x"):
        assert "cannot call itself" in await agent.fail(peer=word)
    assert "leave the login out" in await agent.fail(peer="https://user:pass@example.com")
    assert not rude.asked


async def test_only_peers_that_the_model_may_call_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        '[peers.a]\nurl = "http://127.0.0.1:1"\n'
        '[peers.b]\nurl = "http://127.0.0.1:2"\nmodel_may_call = false\n'
    )
    peers = settings(monkeypatch, config)
    assert peers is not None
    assert list(peers.targets) == ["a"]
    told = {spec.name: spec.arguments["properties"] for spec in tool_specs(peers)}
    assert told["call"]["peer"]["description"] == "The name of the agent: a."
    assert told["call"].keys() == {"peer", "message", "files", "continue"}
    assert settings(monkeypatch, config, A2A_MAX_CALL_DEPTH="0") is None
    monkeypatch.delenv("A2A_MAX_CALL_DEPTH")
    config.write_text('[peers.c]\nurl = "http://127.0.0.1:3"\nbearer_token = "env:NOT_SET"\n')
    with pytest.raises(ConfigError, match="NOT_SET is not set"):
        settings(monkeypatch, config)


async def test_the_service_does_not_call_itself(tmp_path: Path, rude: Rude) -> None:
    own = frozenset({rude.url})
    targets = {"echo": Target(rude.url, name="echo")}
    agent = Agent.of(tmp_path, CallablePeers(targets, own_origins=own))
    assert "cannot call itself" in await agent.fail()
    assert not rude.asked
    async with Rude.open() as other:  # its card leads back here
        other.card = card(rude.url)
        targets = {"echo": Target(other.url, name="echo")}
        agent = Agent.of(tmp_path, CallablePeers(targets, own_origins=own))
        assert "cannot call itself" in await agent.fail()
    assert not rude.asked


async def test_a_task_that_an_earlier_process_has_left_is_canceled(
    tmp_path: Path, rude: Rude
) -> None:
    rude.answers |= {"GetTask": at_work, "CancelTask": canceled}
    rude.answers["SendStreamingMessage"] = streams(frame(task("COMPLETED", "fine")))
    agent = rude_agent(tmp_path, rude)
    await agent.kept.keep("alice", "context", "echo", PeerConversation("c", "t"))
    await agent.call("hello")
    await agent.call("hello")
    asked = [what for what, _ in rude.asked if not what.startswith("/")]
    assert asked == ["GetTask", "CancelTask", "SendStreamingMessage", "SendStreamingMessage"]


async def test_a_task_that_was_left_is_canceled_also_if_the_peer_was_away_at_first(
    tmp_path: Path, rude: Rude
) -> None:
    rude.answers |= {"GetTask": at_work, "CancelTask": canceled}
    rude.answers["SendStreamingMessage"] = streams(frame(task("COMPLETED", "fine")))
    agent, shown = rude_agent(tmp_path, rude), rude.card
    await agent.kept.keep("alice", "context", "echo", PeerConversation("c", "t"))
    rude.card = answer(502, "")
    assert "It may be down" in await agent.fail()
    rude.card = shown
    await agent.call("hello")
    asked = [what for what, _ in rude.asked if not what.startswith("/")]
    assert asked == ["GetTask", "CancelTask", "SendStreamingMessage"]
