"""Calling agents: those of others, and those that behave badly."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from opencode_a2a.cli.outcome import exit_code
from opencode_a2a.outbound import client
from opencode_a2a.outbound.client import (
    Outgoing,
    PeerCall,
    Peers,
    PeerUpdate,
    Received,
    Reconnecting,
    Resumed,
)
from opencode_a2a.outbound.downloads import save_files, write_file
from opencode_a2a.outbound.egress import Egress
from opencode_a2a.outbound.failures import (
    AnswerTooLarge,
    ConnectionLost,
    InputRequired,
    MessageInDoubt,
    NotAnAgent,
    PeerBusy,
    PeerError,
    PeerNotAllowed,
    PeerProtocolError,
    PeerRefused,
    PeerTimeout,
    PeerUnauthorized,
    PeerUnreachable,
    Redirected,
    TaskCanceled,
    TaskFailed,
    TaskRejected,
)
from opencode_a2a.outbound.target import Login, PeerLimits, Target
from opencode_a2a.outbound.transcript import File
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
    streaming,
    task,
)

SECRET = "a-secret-for-a-test"
QUICK = PeerLimits(lost_seconds=0.05)
FORMS = [(line, how) for line in ("1.0", "0.3") for how in ("JSONRPC", "HTTP+JSON")]


@pytest.fixture
async def rude() -> AsyncIterator[Rude]:
    async with Rude.open() as agent:
        yield agent


def target(url: str) -> Target:
    return Target(url, Login(frozenset({url}), (("Authorization", f"Bearer {SECRET}"),)))


async def called(
    to: Target, *texts: str, limits: PeerLimits = QUICK, peers: Peers | None = None
) -> tuple[PeerCall, list[PeerUpdate]]:
    """Send these texts, all but the first on the task of the first."""
    updates: list[PeerUpdate] = []
    async with (peers or Peers(Egress(), limits)).connect(to) as peer:
        call = peer.call(updates.append)
        for text in texts or ("hello there",):
            found = call.transcript
            await call.send(
                Outgoing(({"text": text},), task_id=found.task_id, context_id=found.context_id)
            )
    return call, updates


# -- agents on the SDK's server


@pytest.mark.parametrize(("line", "transport"), FORMS)
async def test_an_agent_of_the_sdk_streams_its_answer(line: str, transport: str) -> None:
    async with sdk_agent(line, transport) as url:
        call, updates = await called(target(url))
    assert (call.peer.line, call.peer.transport) == (line, transport)
    assert (call.transcript.state, call.transcript.answer) == ("COMPLETED", "hello there ")
    shown = [each.shown for each in updates if isinstance(each, Received)]
    assert sum(map(len, shown)) == 2  # a piece for each word


@pytest.mark.parametrize(("line", "transport"), FORMS[1:3])
async def test_an_agent_that_cannot_stream_is_asked_now_and_then(line: str, transport: str) -> None:
    async with sdk_agent(line, transport, streams=False) as url:
        call, _ = await called(target(url))
    assert (call.transcript.state, call.transcript.answer) == ("COMPLETED", "hello there ")


async def test_an_agent_may_answer_with_a_message() -> None:
    async with sdk_agent("1.0", "JSONRPC") as url:
        call, _ = await called(target(url), "just say it")
    assert (call.transcript.answer, call.transcript.task_id) == ("said", None)


@pytest.mark.parametrize("streams", [True, False])
async def test_what_an_agent_asks_is_answered_on_its_task(streams: bool) -> None:
    async with sdk_agent("1.0", "JSONRPC", streams=streams) as url:
        call, _ = await called(target(url), "ask")
        with pytest.raises(InputRequired, match=r"^Which one\?$"):
            call.transcript.check()
        call, _ = await called(target(url), "ask", "this one")
    assert (call.transcript.state, call.transcript.answer) == ("COMPLETED", "this one ")


async def test_a_rejected_task_says_why() -> None:
    async with sdk_agent("0.3", "HTTP+JSON") as url:
        call, _ = await called(target(url), "reject")
    with pytest.raises(TaskRejected, match="Not my field") as rejected:
        call.transcript.check()
    assert exit_code(rejected.value) == 4


# -- connections that break


async def test_a_stream_that_breaks_goes_on_where_it_was(rude: Rude) -> None:
    rude.answers = {
        "SendStreamingMessage": streaming(
            frame(task("WORKING"), 1), frame(piece("One ", append=False), 2), then=cut
        ),
        "SubscribeToTask": streaming(
            frame(task("WORKING", "One "), 2), frame(piece("two."), 3), frame(status("COMPLETED"))
        ),
    }
    call, updates = await called(target(rude.url), limits=PeerLimits())
    assert call.transcript.answer == "One two."
    kinds = [type(update) for update in updates if not isinstance(update, Received)]
    assert kinds == [Reconnecting, Resumed]
    (again,) = [headers for what, headers in rude.asked if what == "SubscribeToTask"]
    assert again["last-event-id"] == "2"
    assert again["authorization"] == f"Bearer {SECRET}"


async def test_a_task_that_has_ended_meanwhile_is_fetched(rude: Rude) -> None:
    async def unsupported(request: web.Request) -> web.Response:
        error = {"code": -32004, "message": "It has ended."}
        return web.json_response({"jsonrpc": "2.0", "id": 1, "error": error})

    async def get(request: web.Request) -> web.Response:
        result = task("COMPLETED", "One two.")["task"]
        return web.json_response({"jsonrpc": "2.0", "id": 1, "result": result})

    rude.answers = {
        "SendStreamingMessage": streaming(frame(task("WORKING", "One ")), then=cut),
        "SubscribeToTask": unsupported,
        "GetTask": get,
    }
    call, _ = await called(target(rude.url), limits=PeerLimits())
    assert (call.transcript.state, call.transcript.answer) == ("COMPLETED", "One two.")


async def test_a_silent_stream_is_opened_again_without_a_word(rude: Rude) -> None:
    rude.answers = {
        "SendStreamingMessage": streaming(frame(task("WORKING")), then=silence),
        "SubscribeToTask": streaming(frame(task("COMPLETED", "Done."))),
    }
    limits = PeerLimits(idle_seconds=2.0)  # long enough for the first event on a busy machine
    call, updates = await called(target(rude.url), limits=limits)
    assert call.transcript.answer == "Done."
    assert all(isinstance(update, Received) for update in updates)


async def test_a_canceled_task_says_so() -> None:
    async with sdk_agent("1.0", "JSONRPC") as url:
        working = asyncio.Event()
        async with Peers(Egress(), QUICK).connect(target(url)) as peer:
            call = peer.call(lambda update: working.set())
            sending = asyncio.create_task(call.send(Outgoing(({"text": "wait"},))))
            await working.wait()
            await call.cancel()
            await sending
    with pytest.raises(TaskCanceled):
        call.transcript.check()


async def test_no_more_calls_than_allowed_go_on_at_a_time(rude: Rude) -> None:
    peers, order = Peers(Egress(), PeerLimits(concurrent_calls=1)), []

    async def second() -> None:
        async with peers.connect(target(rude.url)):
            order.append("second")

    async with peers.connect(target(rude.url)):
        waiting = asyncio.create_task(second())
        async with Peers(Egress(), QUICK).connect(target(rude.url)):
            order.append("first")
    await waiting
    assert order == ["first", "second"]


async def test_a_text_may_hold_what_libraries_take_for_the_end_of_a_line(rude: Rude) -> None:
    text = "one\u2028two\x85three\u2029four é — “five”"
    whole = frame(task("COMPLETED", text))
    pieces = [whole[i : i + 1] for i in range(len(whole))]  # and nothing arrives together
    rude.answers = {"SendStreamingMessage": streaming(*pieces)}
    call, _ = await called(target(rude.url))
    assert call.transcript.answer == text


async def test_an_answer_that_was_not_streamed_is_fetched(rude: Rude) -> None:
    async def get(request: web.Request) -> web.Response:
        result = task("COMPLETED", "Here.")["task"]
        return web.json_response({"jsonrpc": "2.0", "id": 1, "result": result})

    rude.answers = {
        "SendStreamingMessage": streaming(frame(task("WORKING")), frame(status("COMPLETED"))),
        "GetTask": get,
    }
    call, _ = await called(target(rude.url))
    assert call.transcript.answer == "Here."


async def test_the_time_of_a_status_may_lack_its_zone(rude: Rude) -> None:
    done = task("COMPLETED", "Done.")
    done["task"]["status"]["timestamp"] = "2026-11-17T14:42:58.123456"
    rude.answers = {"SendStreamingMessage": streaming(frame(done))}
    call, updates = await called(target(rude.url))
    assert call.transcript.answer == "Done."
    (update,) = updates
    assert isinstance(update, Received)
    assert update.event["task"]["status"]["timestamp"] == "2026-11-17T14:42:58.123456Z"


# -- failures

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def answering(
    code: int, text: str = "", *, content_type: str = "text/plain", **headers: str
) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(status=code, text=text, content_type=content_type, headers=sent)

    return answer


HTML = answering(200, "<!doctype html>", content_type="text/html")
UNAUTHORIZED = answering(401, '{"error": {"message": "Log in."}}')
BUSY = answering(429, "", Retry_After="7")
METADATA = answering(302, "", Location="http://169.254.169.254/latest/meta-data/")


@pytest.mark.parametrize(
    ("found", "error", "code", "says"),
    [
        (None, NotAnAgent, 8, "There is no Agent Card at"),
        (HTML, NotAnAgent, 8, "answers with a web page"),
        (answering(200, "hello"), NotAnAgent, 8, "is not JSON"),
        ({"name": "x"}, NotAnAgent, 8, "names no address"),
        ({"skills": 7, "supportedInterfaces": [{"url": "u"}]}, NotAnAgent, 8, "is wrong"),
        (card("http://127.0.0.1:1", "2.0"), PeerProtocolError, 8, "speaks A2A 2.0 over JSONRPC"),
        (card("ftp://127.0.0.1"), NotAnAgent, 8, "no http"),
        (card("http://127.0.0.1:1"), PeerUnreachable, 7, "Nobody accepts connections"),
        (card("http://10.1.2.3"), PeerNotAllowed, 7, "not on the public network"),
        (UNAUTHORIZED, PeerUnauthorized, 6, r"refuses access \(HTTP 401\): Log in."),
        (BUSY, PeerBusy, 10, "cannot take this request now"),
        (METADATA, PeerNotAllowed, 7, "169.254.169.254 is not allowed"),
        (answering(500, "oh"), PeerRefused, 10, "answers HTTP 500"),
        (answering(502, ""), PeerUnreachable, 7, "A proxy in front of"),
    ],
)
async def test_a_wrong_card_is_named(
    rude: Rude, found: Any, error: type[PeerError], code: int, says: str
) -> None:
    rude.card = found
    with pytest.raises(error, match=says) as raised:
        await called(target(rude.url))
    assert exit_code(raised.value) == code
    assert SECRET not in f"{raised.value.message} {raised.value.hint}"
    if error is PeerBusy:
        assert (raised.value.retry_after, raised.value.hint) == (7, "Try again in 7 s.")


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        (streaming(frame(task("WORKING")), frame(status("FAILED", "No."))), TaskFailed, "No."),
        (streaming(b"data: {\n\n"), PeerProtocolError, "does not answer as A2A asks"),
        (streaming(frame({})), ConnectionLost, "ended its stream"),
        (streaming(then=cut), MessageInDoubt, "not known whether the peer got the message"),
        (streaming(b"data: " + b"x" * 70_000), AnswerTooLarge, "larger than 65536 bytes"),
        (streaming(*[b": still here\n\n"] * 6000), AnswerTooLarge, "larger than 65536 bytes"),
        (answering(200, "", content_encoding="gzip"), PeerProtocolError, "compresses"),
        (answering(307, "", Location="http://127.0.0.2/"), Redirected, "redirects to"),
        (answering(403, ""), PeerUnauthorized, "HTTP 403"),
        (HTML, NotAnAgent, "web page"),
    ],
)
async def test_a_wrong_answer_is_named(
    rude: Rude, answer: Answer, error: type[PeerError], says: str
) -> None:
    rude.answers = {"SendStreamingMessage": answer}
    limits = replace(QUICK, response_bytes=65_536)
    with pytest.raises(error, match=says):
        call, _ = await called(target(rude.url), limits=limits)
        call.transcript.check()


async def test_an_unknown_error_of_a_peer_is_passed_on_unchanged(rude: Rude) -> None:
    error = '{"jsonrpc": "2.0", "id": 1, "error": {"code": -32050, "message": "No such session."}}'
    rude.answers = {"SendStreamingMessage": answering(200, error, content_type="application/json")}
    with pytest.raises(PeerRefused, match=r"^No such session\.$"):
        await called(target(rude.url))


async def test_a_card_that_never_comes_is_given_up(rude: Rude) -> None:
    rude.card = never
    with pytest.raises(PeerTimeout, match="did not arrive in"):
        await called(target(rude.url), limits=PeerLimits(card_seconds=0.2))


async def test_an_error_of_our_own_is_not_taken_for_the_peers(rude: Rude) -> None:
    found = json.dumps({"jsonrpc": "2.0", "id": 1, "result": task("COMPLETED")["task"]})
    rude.answers = {
        "SendStreamingMessage": streaming(frame(task("COMPLETED", "Done."))),
        "GetTask": answering(200, found, content_type="application/json"),
    }

    def broken(update: PeerUpdate) -> None:
        raise TypeError("the printer has a bug")

    async with Peers(Egress(), QUICK).connect(target(rude.url)) as peer:
        with pytest.raises(TypeError, match="has a bug"):
            await peer.call(broken).send(Outgoing(({"text": "hello"},)))
        with pytest.raises(TypeError, match="has a bug"):
            await peer.call(broken).get("t")
        unknown = peer.call(broken)
        unknown.transcript.task_id = "t"
        rude.answers["CancelTask"] = rude.answers["GetTask"]
        with pytest.raises(TypeError, match="has a bug"):
            await unknown.cancel()


# -- one deadline for a peer that does not answer (A2A_CLIENT_TIMEOUT_SECONDS)

IMPATIENT = PeerLimits(request_seconds=1.0, card_seconds=60, idle_seconds=60, total_seconds=60)
IN_TIME = 30.0  # seconds: far more than the deadline, and less than any other bound


async def never(request: web.Request) -> web.StreamResponse:
    await silence(request)
    raise AssertionError


async def only_a_head(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    await silence(request)
    raise AssertionError


async def test_a_card_gets_no_more_time_than_any_request(rude: Rude) -> None:
    rude.card = never
    async with asyncio.timeout(IN_TIME):
        with pytest.raises(PeerTimeout, match="did not arrive in 1 s"):
            await called(target(rude.url), limits=IMPATIENT)


@pytest.mark.parametrize("answer", [never, only_a_head])
async def test_a_peer_that_does_not_answer_a_message_is_given_up_but_may_be_at_work(
    rude: Rude, answer: Answer
) -> None:
    rude.answers = {"SendStreamingMessage": answer}
    async with asyncio.timeout(IN_TIME):
        with pytest.raises(MessageInDoubt) as raised:
            await called(target(rude.url), peers=CardNotCounted(IMPATIENT))
    said = raised.value
    assert said.message == (
        "No answer from 127.0.0.1 within 1 s. It is not known whether the peer got the message."
    )
    assert "Ask the peer for its tasks" in said.hint
    assert "A2A_CLIENT_TIMEOUT_SECONDS" in said.hint


async def test_a_message_to_a_peer_that_cannot_stream_may_be_in_doubt_too(rude: Rude) -> None:
    assert isinstance(rude.card, dict)
    rude.card["capabilities"]["streaming"] = False
    rude.answers = {"SendMessage": streaming(then=cut)}
    with pytest.raises(MessageInDoubt, match="not known whether the peer got the message"):
        await called(target(rude.url))


async def test_where_an_answer_to_a_task_gets_none_the_task_is_followed(rude: Rude) -> None:
    async def ask(request: web.Request) -> web.StreamResponse:
        rude.answers["SendStreamingMessage"] = only_a_head
        return await streaming(frame(task("INPUT_REQUIRED")))(request)

    rude.answers = {
        "SendStreamingMessage": ask,
        "SubscribeToTask": streaming(frame(task("COMPLETED", "Done."))),
    }
    peers = Peers(Egress(), PeerLimits())
    async with asyncio.timeout(IN_TIME), peers.connect(target(rude.url)) as peer:
        call = peer.call(lambda update: None)
        await call.send(Outgoing(({"text": "hello"},)))
        peer.limits = IMPATIENT
        await call.send(Outgoing(({"text": "yes"},), task_id="t", context_id="c"))
    assert call.transcript.answer == "Done."


async def test_the_card_and_the_first_answer_share_their_time(rude: Rude) -> None:
    """The time-outs do not add up."""
    shown = rude.card

    async def slow(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.2)
        return web.json_response(shown)

    rude.card, now = slow, asyncio.get_running_loop().time
    async with Peers(Egress(), QUICK).connect(target(rude.url)) as peer:
        first = peer.next_deadline()
        assert first.at - now() < QUICK.request_seconds - 0.2
        assert first.message == "No answer from 127.0.0.1 within 60 s, its card included."
        asked_at, next_one = now(), peer.next_deadline()
        assert next_one.at >= asked_at + QUICK.request_seconds
        assert next_one.message == "No answer from 127.0.0.1 within 60 s."


async def test_an_answer_may_begin_later_than_a_stream_may_be_silent(rude: Rude) -> None:
    async def late(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.5)
        return await streaming(frame(task("COMPLETED", "Done.")))(request)

    rude.answers = {"SendStreamingMessage": late}
    call, _ = await called(target(rude.url), limits=replace(QUICK, idle_seconds=0.1))
    assert call.transcript.answer == "Done."


async def test_a_time_that_no_setting_for_answers_bounds_does_not_name_it(
    rude: Rude, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(rude.card, dict)
    rude.card["capabilities"]["extendedAgentCard"] = True
    rude.answers = {"CancelTask": never, "GetExtendedAgentCard": never}
    monkeypatch.setattr(client, "CANCEL_SECONDS", 0.2)
    peers = CardNotCounted(PeerLimits(card_seconds=0.3))
    async with asyncio.timeout(IN_TIME), peers.connect(target(rude.url)) as peer:
        call = peer.call(lambda update: None)
        call.transcript.task_id = "t"
        with pytest.raises(
            PeerTimeout, match=r"^No answer from 127\.0\.0\.1 within 0\.2 s\.$"
        ) as raised:
            await call.cancel()
        assert raised.value.hint == ""
        with pytest.raises(PeerTimeout, match=r"within 0\.3 s\.$") as raised:
            await peer.extended_card()
        assert raised.value.hint


@contextmanager
def dropping(host: str, port: int = 0) -> Iterator[int]:
    """A port as behind a firewall that drops everything: its queue of connections is full."""
    with closing(socket.create_server((host, port), backlog=0)) as listener, ExitStack() as open_:
        for _ in range(4):
            waiting = open_.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


@pytest.mark.parametrize("limits", [IMPATIENT, PeerLimits(card_seconds=0.5)])
async def test_a_peer_that_takes_no_connection_is_not_one_that_does_not_answer(
    limits: PeerLimits,
) -> None:
    with dropping("127.0.0.1") as port:
        async with asyncio.timeout(IN_TIME):
            with pytest.raises(PeerUnreachable, match="did not accept a connection in time"):
                await called(target(f"http://127.0.0.1:{port}"), limits=limits)


async def test_of_several_addresses_of_a_name_the_next_one_is_tried_in_time(
    rude: Rude, monkeypatch: pytest.MonkeyPatch
) -> None:
    rude.answers = {"SendStreamingMessage": streaming(frame(task("COMPLETED", "Done.")))}
    port = int(rude.url.rpartition(":")[2])
    addresses = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))
        for host in ("127.0.0.2", "127.0.0.1")
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **named: addresses)
    url = f"http://two.example:{port}"
    rude.card = card(url)
    with dropping("127.0.0.2", port):
        call, _ = await called(target(url), limits=PeerLimits(card_seconds=4.0))
    assert call.transcript.answer == "Done."


async def test_a_stream_with_signs_of_life_may_take_longer(rude: Rude) -> None:
    """Each event, or comment, is one; only silence ends it."""
    done = frame(task("COMPLETED", "Done."))

    async def slow(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(6):
            await response.write(b": still here\n\n")
            await asyncio.sleep(0.5)
        await response.write(done)
        return response

    rude.answers = {"SendStreamingMessage": slow}
    peers = CardNotCounted(replace(IMPATIENT, request_seconds=2.5))
    call, _ = await called(target(rude.url), peers=peers)
    assert call.transcript.answer == "Done."
    assert [what for what, _ in rude.asked][1:] == ["SendStreamingMessage"]


async def test_a_peer_that_cannot_stream_may_work_while_it_is_asked(rude: Rude) -> None:
    assert isinstance(rude.card, dict)
    rude.card["capabilities"]["streaming"] = False

    async def work(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(1.5)
        said = {"role": "ROLE_AGENT", "messageId": "1", "parts": [{"text": "Done."}]}
        return web.json_response({"jsonrpc": "2.0", "id": 1, "result": {"message": said}})

    rude.answers = {"SendMessage": work}
    call, _ = await called(target(rude.url), peers=CardNotCounted(IMPATIENT))
    assert call.transcript.answer == "Done."


async def test_a_task_that_never_ends_is_given_up(rude: Rude) -> None:
    rude.answers = {"SendStreamingMessage": streaming(frame(task("WORKING")), then=silence)}
    with pytest.raises(PeerTimeout, match="not done after"):
        await called(target(rude.url), limits=PeerLimits(total_seconds=0.3))


async def test_a_peer_that_stays_away_is_given_up(rude: Rude) -> None:
    rude.answers = {
        "SendStreamingMessage": streaming(frame(task("WORKING")), then=cut),
        "SubscribeToTask": answering(502),
    }
    with pytest.raises(PeerUnreachable, match="A proxy"):
        await called(target(rude.url))


# -- where a credential goes


async def test_a_credential_goes_to_no_other_origin(rude: Rude) -> None:
    done = streaming(frame(task("COMPLETED", "Done.")))
    async with Rude.open() as other:
        other.answers = {"SendStreamingMessage": done}
        rude.card = card(other.url)
        await called(target(rude.url))
        rude.card = answering(302, "", Location=f"{other.url}/.well-known/agent-card.json")
        other.card = card(other.url)
        await called(target(rude.url))
        known = Login(frozenset({rude.url, other.url}), target(rude.url).login.headers)
        assert [what for what, headers in other.asked if "authorization" in headers] == []
        assert len(other.asked) == 3
        await called(replace(target(rude.url), login=known))
    assert all("authorization" in headers for _, headers in rude.asked)
    assert "authorization" in other.asked[-1][1]


async def test_a_card_that_has_not_changed_is_not_sent_again(rude: Rude) -> None:
    async def with_etag(request: web.Request) -> web.StreamResponse:
        if request.headers.get("if-none-match") == '"1"':
            return web.Response(status=304)
        return web.json_response(card(rude.url), headers={"ETag": '"1"'})

    rude.card = with_etag
    peers = Peers(Egress(), QUICK)
    for _ in range(2):
        async with peers.connect(target(rude.url)) as peer:
            assert peer.found.card.name == "Rude"
    assert [headers.get("if-none-match") for _, headers in rude.asked] == [None, '"1"']


async def test_an_older_agent_has_its_card_elsewhere(rude: Rude) -> None:
    async def older(request: web.Request) -> web.StreamResponse:
        if request.path != "/.well-known/agent.json":
            raise web.HTTPNotFound
        old = {"url": "http://0.0.0.0:1", "protocolVersion": "0.3.0", "name": "Old"}
        return web.json_response({**old, "capabilities": {}, "skills": []})

    rude.card = older
    async with Peers(Egress(), QUICK).connect(target(rude.url)) as peer:
        assert (peer.line, peer.streams, peer.url) == ("0.3", False, "http://127.0.0.1:1")


async def test_a_file_that_cannot_be_had_does_not_keep_others_from_being_saved(
    rude: Rude, tmp_path: Path
) -> None:
    async def large(request: web.Request) -> web.StreamResponse:
        if request.path == "/large":
            return web.Response(body=b"x" * 2_000)
        return web.json_response(card(rude.url))

    rude.card = large
    files = [
        File("large", "", f"{rude.url}/large"),
        File("odd", "", None, "not base64"),
        File("inside", "", "http://169.254.169.254/latest/meta-data"),
        File("local", "", "file:///etc/passwd"),
        File("more", "", None, "eHh4" * 500),
        File("good", "", None, "aGVsbG8="),
    ]
    limits = replace(QUICK, response_bytes=1_000)
    async with Peers(Egress(), limits).connect(target(rude.url)) as peer:
        saved = await save_files(peer, files, partial(write_file, tmp_path))
    assert [type(found) for _, found in saved[:-1]] == [
        *(AnswerTooLarge, PeerProtocolError, PeerNotAllowed, PeerProtocolError, AnswerTooLarge)
    ]
    assert saved[-1] == (files[-1], tmp_path / "good")
    assert not (tmp_path / "more").exists()


async def test_an_older_agent_is_asked_first_where_its_card_was_before(rude: Rude) -> None:
    async def older(request: web.Request) -> web.StreamResponse:
        if request.path != "/.well-known/agent.json":
            raise web.HTTPNotFound
        return web.json_response(card(rude.url), headers={"ETag": '"1"'})

    rude.card = older
    peers = Peers(Egress(), QUICK)
    for _ in range(2):
        async with peers.connect(target(rude.url)):
            pass
    assert [path for path, _ in rude.asked] == [
        *("/.well-known/agent-card.json", "/.well-known/agent.json", "/.well-known/agent.json")
    ]
