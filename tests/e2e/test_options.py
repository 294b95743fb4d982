"""The options of a request: its session, location, model and agent."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from a2a.types.a2a_pb2 import SendMessageRequest

from tests.e2e.behind import Behind
from tests.e2e.clients import PythonClient, Refusal, ask
from tests.e2e.seen import answer, shared, state
from tests.features import is_2
from tests.running import Upstream

INVALID = -32602
PWD = '[[tool:bash {"command":"pwd","description":"d"}]]'


def wishing(text: str, *, context: str = "", **metadata: Any) -> SendMessageRequest:
    request = ask(text, context=context)
    request.metadata.update(metadata)
    return request


async def refused(client: PythonClient, request: SendMessageRequest) -> Refusal:
    with pytest.raises(Refusal) as refusal:
        await client.send(request)
    return refusal.value


async def test_a_model_is_for_one_request(either: PythonClient, behind: Behind) -> None:
    other = {"model": {"providerID": "demo", "modelID": "demo-vision"}}
    first = await either.send(wishing("one", shared=other))
    context, session = first.context_id, shared(first)["session"]["id"]
    second = await either.send(ask("two", context=context))
    assert (state(first), state(second)) == ("completed", "completed")
    models = [prompt["model"] for prompt in await behind.prompts(session)]
    assert models == ["demo-vision", "demo"]


async def test_a_model_that_does_not_exist_is_refused_before_it_can_stick(
    either: PythonClient,
) -> None:
    wrong = {"model": {"providerID": "demo", "modelID": "dem"}}
    refusal = await refused(either, wishing("one", shared=wrong))
    assert refusal.code == INVALID
    assert "metadata.shared.model" in refusal.message
    assert "demo/demo" in refusal.message
    half = await refused(either, wishing("one", shared={"model": {"providerID": "demo"}}))
    assert "metadata.shared.model.modelID" in half.message


async def test_a_session_is_continued_by_its_id_and_only_in_its_context(
    either: PythonClient, behind: Behind
) -> None:
    first = await either.send(ask("one"))
    session = {"session": {"id": shared(first)["session"]["id"]}}
    again = await either.send(wishing("two", shared=session))
    assert again.context_id == first.context_id
    assert shared(again)["session"] == shared(first)["session"]
    listed = await either.send(
        ask("three", context=f"ctx:opencode-session:{session['session']['id']}")
    )
    assert listed.context_id == first.context_id
    said = await behind.said(session["session"]["id"])
    assert [text for role, text in said if role == "user"] == ["one", "two", "three"]
    refusal = await refused(either, wishing("no", context=str(uuid.uuid4()), shared=session))
    assert (refusal.code, first.context_id in refusal.message) == (INVALID, True)


async def test_a_session_of_the_terminal_is_taken_up(either: PythonClient, behind: Behind) -> None:
    session = await behind.create("by hand")
    task = await either.send(wishing("hello", shared={"session": {"id": session}}))
    assert shared(task)["session"]["id"] == session
    assert task.context_id == f"ctx:opencode-session:{session}"
    assert answer(task) == "ECHO: hello"


async def test_sessions_that_are_not_there_are_refused(either: PythonClient) -> None:
    unknown = {"session": {"id": "ses_" + "0" * 26}}
    refusal = await refused(either, wishing("x", shared=unknown))
    hidden = either.line.version == "0.3"  # by the SDK
    assert hidden or "no session with this id" in refusal.message
    for trick in ("ses_1/../ses_2", "../global/dispose?", "ses_%2e", "", "per_1"):
        refusal = await refused(either, wishing("x", shared={"session": {"id": trick}}))
        assert refusal.code == INVALID
        assert "metadata.shared.session.id" in refusal.message
    assert (await refused(either, ask("x", context="ctx:opencode-session:../x"))).code == INVALID


async def test_a_place_inside_the_workspace_and_no_other(
    either: PythonClient, opencode: Upstream, behind: Behind
) -> None:
    inside = opencode.workspace / f"part-{uuid.uuid4()}"
    inside.mkdir()
    there = {"directory": inside.name}
    task = await either.send(wishing(PWD, opencode=there))
    assert str(inside) in answer(task)
    away = inside / "away"
    away.symlink_to("/tmp")
    for outside in ("/", "..", str(away), "nowhere", "a\0b"):
        refusal = await refused(either, wishing("x", opencode={"directory": outside}))
        assert (refusal.code, "metadata.opencode.directory" in refusal.message) == (INVALID, True)
    moved = wishing("x", context=task.context_id, opencode={"directory": "."})
    assert "use a new context" in (await refused(either, moved)).message


async def test_a_git_directory_is_no_place_to_work(
    either: PythonClient, opencode: Upstream
) -> None:
    link = opencode.workspace / f"link-{uuid.uuid4()}"
    link.symlink_to(".git")
    for hidden in (".git", ".git/", f"{opencode.workspace}/.git/hooks", link.name):
        refusal = await refused(either, wishing("x", opencode={"directory": hidden}))
        assert refusal.code == INVALID
        assert "metadata.opencode.directory: is inside a git directory" in refusal.message


async def test_an_agent_keeps_its_own_model_whatever_was_chosen_before(
    either: PythonClient, behind: Behind
) -> None:
    other = {"model": {"providerID": "demo", "modelID": "demo-small"}}
    first = await either.send(wishing("one", shared=other))
    for agent in ({"agent": "seer"}, {"agent": "build"}):
        await either.send(wishing("more", context=first.context_id, opencode=agent))
    prompts = await behind.prompts(shared(first)["session"]["id"])
    assert [prompt["model"] for prompt in prompts] == ["demo-small", "demo-vision", "demo"]


async def test_an_agent_is_chosen_if_there_is_such_a_one(
    either: PythonClient, behind: Behind
) -> None:
    task = await either.send(wishing("hello", opencode={"agent": "plan"}))
    assert set(await behind.agents_of(shared(task)["session"]["id"])) == {"plan"}
    refusal = await refused(either, wishing("hello", opencode={"agent": "plam"}))
    assert "metadata.opencode.agent" in refusal.message
    assert "plan" in refusal.message


async def test_a_variant_is_one_of_the_model_that_answers(
    either: PythonClient, behind: Behind
) -> None:
    small = {"model": {"providerID": "demo", "modelID": "demo-small"}}
    first = await either.send(wishing("one", opencode={"variant": "high"}))
    session = shared(first)["session"]["id"]
    assert (await behind.session(session))["model"]["variant"] == "high"
    without = [  # OpenCode 2 has the same variants of every model
        (wishing("x", shared=small, opencode={"variant": "high"}), "demo/demo-small has no"),
        (wishing("x", opencode={"variant": "high", "agent": "seer"}), "demo/demo-vision has no"),
    ]
    for wanted, named in (
        (wishing("x", opencode={"variant": "hihg"}), "demo/demo has only low, medium, high"),
        (wishing("x", context=first.context_id, opencode={"variant": "max"}), "demo/demo has only"),
        *([] if is_2() else without),
    ):
        refusal = await refused(either, wanted)
        assert refusal.code == INVALID
        assert "metadata.opencode.variant" in refusal.message
        assert named in refusal.message
    # The session answers with what it had before, so that is what counts after another choice.
    moved = await either.send(wishing("two", context=first.context_id, shared=small))
    assert state(moved) == "completed"
    again = await either.send(
        wishing("three", context=first.context_id, opencode={"variant": "low"})
    )
    assert state(again) == "completed"
