"""Push notifications as clients and receivers see them: real sockets on both sides."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest

from opencode_a2a.extensions.push import EVERY_EVENT
from tests.api.forms import INVALID_PARAMS, TASK_NOT_FOUND, Form, line_to
from tests.receivers import Answer, Received, Receiver, receiver, state_of
from tests.running import Service, Upstream, service

Json = dict[str, Any]
TOKEN = "opaque-token-of-the-client"
PUBLIC, OTHER = "https://8.8.8.8/hook", "https://8.8.4.4/hook"  # nothing is sent there
KNOWN = json.dumps(
    [{"principal": name, "scheme": "bearer", "token": f"{name}-token"} for name in ("alice", "bob")]
)
HANG_SECONDS = 15.0  # that a receiver may take


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pushing")


@pytest.fixture(scope="module")
def pushing(fake: Upstream, home: Path) -> Iterator[Service]:
    with service(
        fake,
        home,
        A2A_PUSH="true",
        A2A_PUSH_PRIVATE_HOSTS="127.0.0.1",
        A2A_STATIC_AUTH_CREDENTIALS=KNOWN,
    ) as running:
        yield running


@pytest.fixture(scope="module")
def alice(pushing: Service) -> Iterator[httpx.Client]:
    with line_to(pushing, headers={"authorization": "Bearer alice-token"}) as found:
        yield found


@pytest.fixture(scope="module")
def bob(pushing: Service) -> Iterator[httpx.Client]:
    with line_to(pushing, headers={"authorization": "Bearer bob-token"}) as found:
        yield found


@pytest.fixture
def webhook() -> Iterator[Receiver]:
    with receiver() as found:
        yield found


@dataclass(frozen=True)
class Configs:
    """The four methods, in the words of a form."""

    form: Form
    client: httpx.Client

    def config(self, url: str, **members: Any) -> Json:
        if self.form.line == "0.3" and "authentication" in members:
            given = members["authentication"]
            members["authentication"] = {"schemes": [given["scheme"]], **given}
            del members["authentication"]["scheme"]
        return {"url": url, **members}

    def inline(self, url: str, **members: Any) -> Json:
        name = "taskPushNotificationConfig"
        if self.form.line == "0.3":
            name = "pushNotificationConfig" if self.form.rpc else "pushNotification"
        return {name: self.config(url, **members)}

    def create(self, task_id: str, url: str, **members: Any) -> httpx.Response:
        config = self.config(url, **members)
        if self.form.rpc:
            params = {"taskId": task_id, **config}
            if self.form.line == "0.3":
                params = {"taskId": task_id, "pushNotificationConfig": config}
            return self.form.call(self.client, "push.create", params)
        if self.form.line == "0.3":
            config = {"config": {"pushNotificationConfig": config}}
        verb, path = self.form.route("push.create")
        path = path.format(task_id=task_id)
        return self.client.request(verb, path, json=config, headers=self.form.version)

    def one(self, operation: str, task_id: str, config_id: str) -> httpx.Response:
        if not self.form.rpc:
            return self.form.call(self.client, operation, {"id": task_id, "config": config_id})
        params = {"taskId": task_id, "id": config_id}
        if self.form.line == "0.3":
            params = {"id": task_id, "pushNotificationConfigId": config_id}
        return self.form.call(self.client, operation, params)

    def all(self, task_id: str) -> list[Json]:
        name = "id" if not self.form.rpc or self.form.line == "0.3" else "taskId"
        answer: Any = self.form.result(self.form.call(self.client, "push.list", {name: task_id}))
        found: list[Json] = answer if self.form.tagged else answer["configs"]
        return [self.inner(each) for each in found]

    def inner(self, answer: Json) -> Json:
        found: Json = answer.get("pushNotificationConfig", answer)
        return found


@pytest.fixture
def configs(form: Form, alice: httpx.Client) -> Configs:
    return Configs(form, alice)


def start(configs: Configs, text: str, inline: Json, wait: bool = False) -> Json:
    params = configs.form.sending(text, wait=wait)
    params["configuration"] |= inline
    return configs.form.sent(configs.form.call(configs.client, "send", params))


def answered(task: Json) -> str:
    return "".join(
        part.get("text", "") for artifact in task["artifacts"] for part in artifact["parts"]
    )


def test_a_receiver_named_with_the_message_gets_every_state_and_the_answer(
    configs: Configs, webhook: Receiver
) -> None:
    task = start(configs, "hello", configs.inline(f"{webhook.url}/hook", token=TOKEN))
    got = webhook.wait_for_end()
    assert [state_of(each) for each in got] == ["working", "completed"]
    assert [each.event[0] for each in got] == [task["id"]] * 2
    assert [each.event[1] for each in got] == sorted(each.event[1] for each in got)
    assert {each.path for each in got} == {"/hook"}
    for each in got:
        assert each.headers["x-a2a-notification-token"] == TOKEN
        assert each.headers["a2a-notification-attempt"] == "1"
    if configs.form.line == "1.0":
        assert {each.headers["content-type"] for each in got} == {"application/a2a+json"}
        assert [list(each.json) for each in got] == [["statusUpdate"], ["task"]]
        assert answered(got[-1].json["task"]) == "ECHO: hello"
    else:
        assert {each.headers["content-type"] for each in got} == {"application/json"}
        assert {each.json["kind"] for each in got} == {"task"}
        assert answered(got[-1].json) == "ECHO: hello"


def test_configs_are_created_read_listed_and_deleted(configs: Configs, webhook: Receiver) -> None:
    form, task = configs.form, configs.form.send(configs.client, "hello")
    secret = {"scheme": "Bearer", "credentials": "secret-credentials"}
    created = form.result(
        configs.create(task["id"], webhook.url, id="mine", token=TOKEN, authentication=secret)
    )
    assert configs.inner(created)["id"] == "mine"
    shown = configs.inner(form.result(configs.one("push.get", task["id"], "mine")))
    assert shown["url"] == webhook.url
    assert configs.all(task["id"]) == [shown]
    for answer in (created, shown):
        assert TOKEN not in str(answer)
        assert "secret-credentials" not in str(answer)
    for _ in range(2):
        gone = configs.one("push.delete", task["id"], "mine")
        assert form.result(gone) == (None if form.tagged else {})
    form.refused(configs.one("push.get", task["id"], "mine"), TASK_NOT_FOUND)
    assert configs.all(task["id"]) == []


def test_somebody_elses_task_does_not_exist(
    form: Form, alice: httpx.Client, bob: httpx.Client, webhook: Receiver
) -> None:
    mine = Configs(form, alice)
    task = form.send(alice, "hello")
    form.result(mine.create(task["id"], webhook.url, id="mine"))
    theirs = Configs(form, bob)
    form.refused(theirs.create(task["id"], webhook.url), TASK_NOT_FOUND)
    form.refused(theirs.one("push.get", task["id"], "mine"), TASK_NOT_FOUND)
    form.refused(theirs.one("push.delete", task["id"], "mine"), TASK_NOT_FOUND)
    assert len(mine.all(task["id"])) == 1


def test_a_receiver_hears_of_a_running_task_from_its_registration_on(
    configs: Configs, webhook: Receiver
) -> None:
    form = configs.form
    task = form.send(configs.client, "[[question]]")
    assert task["status"]["state"] == form.state("input-required")
    form.result(configs.create(task["id"], webhook.url))
    form.send(configs.client, "A", taskId=task["id"])
    states = [state_of(each) for each in webhook.wait_for_end()]
    assert states == ["working", "completed"]


def test_a_deleted_config_gets_nothing_any_more(configs: Configs, webhook: Receiver) -> None:
    form = configs.form
    task = form.send(configs.client, "[[question]]")
    with receiver() as other:
        form.result(configs.create(task["id"], webhook.url, id="one"))
        form.result(configs.create(task["id"], other.url, id="two"))
        form.result(configs.one("push.delete", task["id"], "one"))
        form.send(configs.client, "A", taskId=task["id"])
        other.wait_for_end()
    assert webhook.received == []


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("https://10.1.2.3/hook", "public network"),
        ("https://169.254.169.254/latest", "public network"),
        ("https://[::ffff:10.0.0.1]/", "public network"),
        ("http://example.com/hook", "https"),
        ("ftp://example.com/hook", "https"),
        ("https://user:pass@example.com/", "login"),
        ("https:///nowhere", "host"),
        ("not a url", "https"),
    ],
)
def test_an_address_that_nothing_may_be_sent_to_is_refused(
    configs: Configs, url: str, problem: str
) -> None:
    form = configs.form
    task = form.send(configs.client, "hello")
    refusal = form.refused(configs.create(task["id"], url), INVALID_PARAMS)
    assert problem in refusal.message
    params = form.sending("hello", wait=False)
    params["configuration"] |= configs.inline(url)
    form.refused(form.call(configs.client, "send", params), INVALID_PARAMS)


@pytest.mark.parametrize(
    "members",
    [
        {"token": "line\nbreak"},
        {"token": "ümlaut"},
        {"authentication": {"scheme": "Bearer", "credentials": "a\r\nX-Evil: 1"}},
        {"authentication": {"scheme": "two words", "credentials": "x"}},
    ],
)
def test_what_cannot_stand_in_a_header_is_refused(configs: Configs, members: Json) -> None:
    task = configs.form.send(configs.client, "hello")
    refused = configs.create(task["id"], PUBLIC, **members)
    configs.form.refused(refused, INVALID_PARAMS)


def test_a_task_has_so_many_configs_and_no_more(configs: Configs) -> None:
    form, task = configs.form, configs.form.send(configs.client, "hello")
    for number in range(10):
        form.result(configs.create(task["id"], PUBLIC, id=str(number)))
    refused = configs.create(task["id"], PUBLIC, id="one more")
    assert "10 push configs" in form.refused(refused, INVALID_PARAMS).message
    form.result(configs.create(task["id"], OTHER, id="0"))  # replaced
    assert {each["url"] for each in configs.all(task["id"])} == {PUBLIC, OTHER}


V1, V03 = Form("1.0", rpc=True), Form("0.3", rpc=True)


def test_a_list_comes_in_pages(alice: httpx.Client) -> None:
    configs = Configs(V1, alice)
    task = V1.send(alice, "hello")
    for name in "abc":
        V1.result(configs.create(task["id"], PUBLIC, id=name))
    found, token = [], ""
    for _ in range(2):
        params = {"taskId": task["id"], "pageSize": 2, "pageToken": token}
        page = V1.result(V1.call(alice, "push.list", params))
        found += [each["id"] for each in page["configs"]]
        token = page["nextPageToken"]
    assert (found, token) == (["a", "b", "c"], "")


def test_0_3_reads_and_replaces_its_config_without_an_id(alice: httpx.Client) -> None:
    configs = Configs(V03, alice)
    task = V03.send(alice, "hello")
    for url in (PUBLIC, OTHER):
        V03.result(configs.create(task["id"], url))
    shown = V03.result(V03.call(alice, "push.get", {"id": task["id"]}))
    assert configs.inner(shown)["url"] == OTHER
    assert len(configs.all(task["id"])) == 1


def test_every_event_is_sent_to_who_asks_for_it(alice: httpx.Client, webhook: Receiver) -> None:
    configs = Configs(V1, alice)
    params = V1.sending("[[tokens:400]] [[rate:2000]]", wait=False)
    params["configuration"] |= configs.inline(webhook.url)
    params["message"]["extensions"] = [EVERY_EVENT.uri]
    V1.sent(V1.call(alice, "send", params))
    got = webhook.wait_for_end()
    pieces = [each.json["artifactUpdate"] for each in got if "artifactUpdate" in each.json]
    assert len(pieces) > 1
    text = "".join(part["text"] for p in pieces for part in p["artifact"]["parts"])
    assert text == answered(got[-1].json["task"])
    numbers = [each.event[1] for each in got]
    assert numbers == sorted(set(numbers))


def test_signatures_can_be_verified_with_what_the_client_knows(
    pushing: Service, alice: httpx.Client
) -> None:
    key = base64.b64encode(b"a key of the client").decode()
    secret = f"whsec_{key}"
    ways: list[tuple[Json, bytes | None, str]] = [
        ({"token": TOKEN}, TOKEN.encode(), "a2a-notification-jwt"),
        (
            {"authentication": {"scheme": "HMAC-SHA256", "credentials": secret}},
            b"a key of the client",
            "a2a-notification-jwt",
        ),
        ({"authentication": {"scheme": "Bearer"}}, None, "authorization"),
        (
            {"authentication": {"scheme": "Basic", "credentials": "dXNlcjpwYXNz"}},
            None,
            "a2a-notification-jwt",
        ),
    ]
    configs, keys = Configs(V1, alice), jwt.PyJWKClient(f"{pushing.url}/.well-known/jwks.json")
    for members, shared, header in ways:
        with receiver() as webhook:
            start(configs, "hello", configs.inline(f"{webhook.url}/x?y=1", **members))
            for got in webhook.wait_for_end():
                assert secret not in str(got.headers)
                check_hmac(got, shared)
                token = got.headers[header].removeprefix("Bearer ")
                claims = jwt.decode(
                    token,
                    keys.get_signing_key_from_jwt(token).key,
                    algorithms=["ES256"],
                    audience=f"{webhook.url}/x?y=1",
                    issuer=pushing.url,
                )
                assert claims["taskId"] == got.event[0]
                assert claims["eventId"] == got.headers["webhook-id"]
                assert claims["request_body_sha256"] == hashlib.sha256(got.body).hexdigest()
                if "Basic" in str(members):
                    assert got.headers["authorization"] == "Basic dXNlcjpwYXNz"


def check_hmac(got: Received, key: bytes | None) -> None:
    if key is None:
        assert "webhook-signature" not in got.headers
        return
    sent_at = got.headers["webhook-timestamp"]
    assert abs(int(sent_at) - time.time()) < 300
    signed = f"{got.headers['webhook-id']}.{sent_at}.".encode() + got.body
    expected = base64.b64encode(hmac.digest(key, signed, "sha256")).decode()
    assert got.headers["webhook-signature"] == f"v1,{expected}"


def test_the_published_keys_hold_nothing_private(pushing: Service, home: Path) -> None:
    document = httpx.get(f"{pushing.url}/.well-known/jwks.json").json()
    for key in document["keys"]:
        assert key.keys() == {"kty", "crv", "x", "y", "kid", "alg", "use"}
    (file,) = (home / "home").rglob("push-key.pem")
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_receiver_that_fails_gets_the_same_event_again_and_then_the_rest(
    alice: httpx.Client, webhook: Receiver
) -> None:
    tried: list[tuple[str, int]] = []

    def fail_first(got: Received) -> Answer | None:
        tried.append(got.event)
        return (204, {}) if tried.count(got.event) > 1 else (503, {"retry-after": "0"})

    webhook.behaviour = fail_first
    configs = Configs(V1, alice)
    start(configs, "hello", configs.inline(webhook.url))
    got = webhook.wait_for_end()
    assert [state_of(each) for each in got] == ["working", "completed"]
    assert {each.headers["a2a-notification-attempt"] for each in got} == {"2"}
    assert tried == sorted(tried)


def test_a_redirect_is_not_followed(alice: httpx.Client, webhook: Receiver) -> None:
    def redirect(got: Received) -> Answer | None:
        return 307, {"location": webhook.url}

    with receiver(redirect) as elsewhere:
        configs = Configs(V1, alice)
        start(configs, "hello", configs.inline(elsewhere.url))
        elsewhere.wait_for_attempt(2)
    assert webhook.received == []


def test_a_receiver_that_hangs_delays_nobody_else(alice: httpx.Client, webhook: Receiver) -> None:
    configs, over = Configs(V1, alice), threading.Event()

    def hang(_: Received) -> Answer | None:
        over.wait(HANG_SECONDS)
        return None

    with receiver(hang) as stuck:
        try:
            for _ in range(12):
                start(configs, "hello", configs.inline(stuck.url))
            stuck.wait_for_attempt(1)
            start(configs, "hello", configs.inline(webhook.url))
            webhook.wait_for_end(HANG_SECONDS - 10)  # before the service gives one of them up
        finally:
            over.set()


def test_what_nobody_takes_in_time_is_a_dead_letter_and_can_be_sent_again(
    fake: Upstream, tmp_path: Path
) -> None:
    with (
        receiver(lambda _: (500, {})) as webhook,
        service(
            fake,
            tmp_path,
            A2A_PUSH="true",
            A2A_PUSH_PRIVATE_HOSTS="localhost",
            A2A_PUSH_RETRY_HOURS="0.0001",
            A2A_STATIC_AUTH_CREDENTIALS=KNOWN,
        ) as running,
        line_to(running, headers={"authorization": "Bearer alice-token"}) as client,
        line_to(running, headers={"authorization": "Bearer bob-token"}) as stranger,
    ):
        configs = Configs(V1, client)
        task = start(configs, "hello", configs.inline(webhook.url))
        letters = wait_for_letters(client, 2)
        assert extension(stranger, "opencode.push.deadletters.list", {})["items"] == []
        others = extension(stranger, "opencode.push.deadletters.redeliver", {})
        assert (others["delivered"], others["failed"]) == (0, [])
        assert {each["task_id"] for each in letters} == {task["id"]}
        assert {each["error"] for each in letters} == {"HTTP 500"}
        failed = extension(client, "opencode.push.deadletters.redeliver", {"task_id": task["id"]})
        assert (failed["delivered"], len(failed["failed"]), failed["more"]) == (0, 1, True)
        webhook.behaviour = lambda _: (200, {})
        done = extension(client, "opencode.push.deadletters.redeliver", {})
        assert (done["delivered"], done["failed"], done["more"]) == (2, [], False)
        ids = [each.headers["webhook-id"] for each in webhook.taken]
        assert ids == [each["event_id"] for each in letters]
        with closing(sqlite3.connect(tmp_path / "tasks.db")) as db:
            assert db.execute("SELECT count(*) FROM push_dead").fetchone() == (0,)


def wait_for_letters(client: httpx.Client, count: int) -> list[Json]:
    deadline = time.monotonic() + 60
    while True:
        found: list[Json] = extension(client, "opencode.push.deadletters.list", {})["items"]
        if len(found) >= count:
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def extension(client: httpx.Client, method: str, params: Json) -> Json:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    answer = client.post("/", json=body, headers={"a2a-version": "1.0"}).json()
    assert "result" in answer, answer
    found: Json = answer["result"]
    return found


def test_a_receiver_that_does_not_answer_the_challenge_is_not_registered(
    fake: Upstream, tmp_path: Path, webhook: Receiver
) -> None:
    settings = {"A2A_PUSH_PRIVATE_HOSTS": "127.0.0.1", "A2A_PUSH_VALIDATE": "true"}
    with (
        service(fake, tmp_path, A2A_PUSH="true", **settings) as running,
        line_to(running) as client,
    ):
        configs, task = Configs(V1, client), V1.send(client, "hello")
        V1.result(configs.create(task["id"], f"{webhook.url}/?keep=this"))
        webhook.answers_challenges = False
        refused = V1.refused(configs.create(task["id"], webhook.url), INVALID_PARAMS)
        assert "validationToken" in refused.message
