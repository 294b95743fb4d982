"""Which names a service answers to."""

from __future__ import annotations

import pytest

from opencode_a2a.config import ConfigError, load
from opencode_a2a.inbound.failures import failure
from opencode_a2a.web.hosts import HostCheck
from tests.web.asking import Answers, ask

ALLOWED = ["agent.example.com", "192.0.2.7", "2001:db8::7"]


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8000",
        "localhost.:8000",
        "my-agent.localhost:8000",
        "127.0.0.1:8000",
        "127.1.2.3",
        "[::1]:8000",
        "agent.example.com",
        "Agent.Example.com:443",
        "192.0.2.7:8000",
        "[2001:db8::7]:8000",
    ],
)
async def test_a_name_of_the_service_is_answered(host: str) -> None:
    app = HostCheck(Answers(), allowed=ALLOWED, on_error=failure)
    assert (await ask(app, host=host)).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evilagent.example.com",
        "agent.example.com.evil.example",
        "0.0.0.0:8000",
        "2130706433",
        "[::ffff:192.0.2.1]",
        "192.168.0.1",
        "",
        ":8000",
        "[",
    ],
)
async def test_another_name_is_refused(host: str) -> None:
    inner = Answers()
    answer = await ask(HostCheck(inner, allowed=ALLOWED, on_error=failure), path="/x", host=host)
    assert answer.status_code == 403
    assert answer.json()["error"]["details"][0]["reason"] == "HOST_NOT_ALLOWED"
    assert "A2A_ALLOWED_HOSTS" in answer.json()["error"]["message"]
    assert inner.asked == 0


def checked(monkeypatch: pytest.MonkeyPatch, **settings: str) -> set[str] | None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    return load().server.checked_hosts


SECRET = "a-secret-for-a-test"


def test_the_name_is_checked_on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A2A_BEARER_TOKEN", SECRET)
    assert checked(monkeypatch) == {"127.0.0.1"}
    public = "https://Agent.example.com:8443/base"
    assert checked(monkeypatch, A2A_PUBLIC_URL=public) == {"127.0.0.1", "agent.example.com"}
    both = checked(monkeypatch, A2A_ALLOWED_HOSTS="Box.local, 2001:db8::7")
    assert both == {"127.0.0.1", "agent.example.com", "box.local", "2001:db8::7"}
    assert checked(monkeypatch, A2A_ALLOWED_HOSTS="*") is None


def test_elsewhere_it_is_checked_if_names_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A2A_BEARER_TOKEN", SECRET)
    assert checked(monkeypatch, A2A_HOST="0.0.0.0") is None
    assert checked(monkeypatch, A2A_ALLOWED_HOSTS="box.local") == {"0.0.0.0", "box.local"}


@pytest.mark.parametrize("host", ["http://box", "box:8000", '["[::1]"]', "box/x", '["box", ""]'])
def test_what_is_not_a_name_stops_the_start(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setenv("A2A_ALLOWED_HOSTS", host)
    with pytest.raises(ConfigError, match=r"A2A_ALLOWED_HOSTS: .* without scheme, port"):
        load()
