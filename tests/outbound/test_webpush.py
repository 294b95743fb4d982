"""Notifications for browsers: what their push services get, and only they can read."""

from __future__ import annotations

import base64

import jwt
import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric import ec

from opencode_a2a.domain.ports import Refused
from opencode_a2a.domain.push import BrowserKeys, Notification, PushConfig, PushTarget
from opencode_a2a.domain.task import TaskHead
from opencode_a2a.outbound.egress import Egress
from opencode_a2a.outbound.push import SigningKeys, Webhooks, new_key
from opencode_a2a.outbound.webpush import encrypted
from tests.browser_push import CURVE, Subscription, content, private_key, text
from tests.receivers import receiver

# The example of RFC 8291, section 5 and appendix A.
SENDER = "yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw"
BROWSER = "q1dXpw3UpT5VOmu_cf_v6ih07Aems3njxI-JWgLcM94"
AUTH = "BTBZMqHH6r4Tts7J_aSIgg"
SALT = "DGv6ra1nlYgDCS1FRnbzlw"
SAID = b"When I grow up, I want to be a watermelon"
SENT = (
    "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS"
    "6TlzAC8wEqKK6PBru3jl7A_yl95bQpu6cVPTpK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_Qu"
    "lcy4a-fN"
)


def test_a_body_is_encrypted_as_the_standard_shows_it() -> None:
    browser = Subscription(private_key(BROWSER), content(AUTH))
    keys = BrowserKeys.read(browser.credentials)
    body = encrypted(SAID, keys, own=private_key(SENDER), salt=content(SALT))
    assert text(body) == SENT
    assert browser.read(body) == SAID


def test_no_two_bodies_are_alike_and_another_browser_cannot_read_them() -> None:
    browser = Subscription()
    keys = BrowserKeys.read(browser.credentials)
    first, second = encrypted(SAID, keys), encrypted(SAID, keys)
    assert first != second
    assert browser.read(first) == browser.read(second) == SAID
    with pytest.raises(InvalidTag):
        Subscription().read(first)


@pytest.mark.parametrize(
    "credentials",
    [None, "", ".", "abc", "a.b.c", f"{text(b'4' * 65)}.{text(b'x' * 16)}", "é.é", "=.="],
)
def test_what_are_no_keys_of_a_browser_is_refused(credentials: str | None) -> None:
    with pytest.raises(ValueError, match="keys of a PushSubscription"):
        BrowserKeys.read(credentials)


def test_a_point_that_is_not_on_the_curve_is_refused() -> None:
    with pytest.raises(Refused, match="no point"):
        encrypted(SAID, BrowserKeys(b"\x04" + b"x" * 64, b"x" * 16))


async def test_a_push_service_gets_who_sends_it_and_nothing_that_it_could_read() -> None:
    browser = Subscription()
    keys = await SigningKeys.load(new_key)
    local = Egress(named_hosts=frozenset({"127.0.0.1"}))
    head = TaskHead("task-id", "context-id", "alice", 1_000)
    with receiver() as service:
        target = PushTarget(
            f"{service.url}/push/1", scheme="WebPush", credentials=browser.credentials
        )
        async with Webhooks.open(local, keys, issuer="https://agent", seconds=10) as webhooks:
            config = PushConfig(head, "c", target=target, created_at=1_000)
            answer = await webhooks.post(config, Notification("task-id:1", b'{"a":1}', attempt=1))
    assert answer.error is None
    [received] = service.received
    assert browser.read(received.body) == b'{"a":1}'
    headers = received.headers
    assert headers["content-encoding"] == "aes128gcm"
    assert int(headers["ttl"]) > 0
    kind, _, fields = headers["authorization"].partition(" ")
    named = dict(field.strip().split("=", 1) for field in fields.split(","))
    point = base64.urlsafe_b64decode(named["k"] + "=")
    public = ec.EllipticCurvePublicKey.from_encoded_point(CURVE, point)
    claims = jwt.decode(named["t"], public, algorithms=["ES256"], audience=service.url)
    assert (kind, claims["sub"]) == ("vapid", "https://agent")
    assert "task-id" not in str(headers)
    assert browser.credentials not in str(headers)


@pytest.mark.parametrize("status", [404, 410])
async def test_a_push_service_says_that_a_browser_wants_nothing_more(status: int) -> None:
    browser, keys = Subscription(), await SigningKeys.load(new_key)
    local = Egress(named_hosts=frozenset({"127.0.0.1"}))
    head = TaskHead("task-id", "context-id", "alice", 1_000)
    with receiver() as service:
        service.behaviour = lambda _: (status, {})
        target = PushTarget(service.url, scheme="WebPush", credentials=browser.credentials)
        async with Webhooks.open(local, keys, issuer="http://agent", seconds=10) as webhooks:
            config = PushConfig(head, "c", target=target, created_at=1_000)
            answer = await webhooks.post(config, Notification("task-id:1", b"{}", attempt=1))
    assert answer.gone
    [received] = service.received
    token = received.headers["authorization"].partition("t=")[2].partition(",")[0]
    claims = jwt.decode(token, options={"verify_signature": False})
    assert "sub" not in claims, "push services accept no contact over http"
