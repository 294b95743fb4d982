"""Which peers can be called, and what goes to them, from the settings."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from opencode_a2a.config import ClientSettings, ConfigError, PeerSetting, load_client
from opencode_a2a.outbound.egress import Egress
from opencode_a2a.peers import find_target, limits_of, origins_of, target_of

SECRET = "a-secret-for-a-test"
PEERS = """\
[client]
supported_transports = ["HTTP+JSON", "JSONRPC"]
timeout_seconds = 7

[peers.token]
url = "https://agent.example.com/a2a/"
bearer_token = "env:PEER_TOKEN"
credential_origins = ["https://api.example.com"]
line = "0.3"

[peers.login]
url = "http://agent.example.com"
basic_auth = "file:{file}"
transport = "HTTP+JSON"

[peers.key]
url = "http://10.0.0.7:9000"
api_key = "env:PEER_TOKEN"
api_key_header = "X-Key"
headers = {{ X-Team = "blue", X-Empty = "" }}
"""


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClientSettings:
    (tmp_path / "login").write_text(f"me:{SECRET}\n")
    file = tmp_path / "peers.toml"
    file.write_text(PEERS.format(file=tmp_path / "login"))
    monkeypatch.setenv("PEER_TOKEN", SECRET)
    return load_client(file)


def test_a_configured_peer_has_its_credential_for_its_origins_only(
    settings: ClientSettings,
) -> None:
    target = find_target(settings, "token")
    assert (target.url, target.line) == ("https://agent.example.com/a2a", "0.3")
    sent = (("Authorization", f"Bearer {SECRET}"),)
    for url in ("https://agent.example.com/x", "https://api.example.com/"):
        assert target.login.headers_for(url) == sent
    for url in (
        "http://agent.example.com",
        "https://agent.example.com:444",
        "https://example.com",
        "https://agent.example.com.evil.com",
        "https://agent.example.com@evil.com",
    ):
        assert target.login.headers_for(url) == ()
    assert SECRET not in repr(target)


def test_other_credentials_and_choices_of_a_peer(settings: ClientSettings) -> None:
    login = find_target(settings, "login")
    assert login.transports == ("HTTP+JSON",)
    (sent,) = login.login.headers_for("https://agent.example.com")  # the same host over TLS
    assert sent == ("Authorization", "Basic bWU6YS1zZWNyZXQtZm9yLWEtdGVzdA==")
    key = find_target(settings, "key")
    assert key.transports == ("HTTP+JSON", "JSONRPC")
    assert dict(key.login.headers) == {"X-Team": "blue", "X-Empty": "", "X-Key": SECRET}
    assert limits_of(settings.outbound).request_seconds == 7


def test_credentials_must_not_appear_in_a_log_and_harmless_header_fields_may(
    settings: ClientSettings,
) -> None:
    for name in ("token", "key"):
        assert find_target(settings, name).login.secrets == (SECRET,)
    gateway = PeerSetting(url="https://a.example", headers={"X-Gateway-Token": SECRET, "X-A": "b"})
    assert target_of("gateway", gateway, settings.outbound).login.secrets == (SECRET,)
    [login] = find_target(settings, "login").login.secrets
    assert base64.b64decode(login).decode() == f"me:{SECRET}"


def test_a_credential_may_be_one_that_systemd_hands_over(
    settings: ClientSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = PeerSetting(url="https://a.example", bearer_token="env:A2A_PEER_OTHER")
    with pytest.raises(ConfigError, match="A2A_PEER_OTHER is not set"):
        target_of("other", peer, settings.outbound)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    with pytest.raises(ConfigError, match="A2A_PEER_OTHER cannot be read"):
        target_of("other", peer, settings.outbound)
    (tmp_path / "A2A_PEER_OTHER").write_text(f"{SECRET}\n")
    target = target_of("other", peer, settings.outbound)
    assert target.login.headers == (("Authorization", f"Bearer {SECRET}"),)


def test_localhost_stands_for_its_addresses_and_not_the_other_way_round() -> None:
    assert origins_of("http://localhost:8000") == {
        *("http://localhost:8000", "http://127.0.0.1:8000", "http://[::1]:8000")
    }
    assert origins_of("http://127.0.0.1:8000") == {"http://127.0.0.1:8000"}


@pytest.mark.parametrize(
    ("word", "url"),
    [
        ("localhost:8000", "http://localhost:8000"),
        ("127.0.0.1", "http://127.0.0.1"),
        ("agent.example.com/a2a", "https://agent.example.com/a2a"),
        ("http://agent.example.com/#x", "http://agent.example.com"),
    ],
)
def test_an_address_may_be_short(word: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A2A_CLIENT_BEARER_TOKEN", SECRET)
    target = find_target(load_client(), word)
    assert target.url == url
    assert target.login.headers_for(url) == (("Authorization", f"Bearer {SECRET}"),)


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ("tokn", "tokn: there is no such peer; did you mean token?"),
        ("zzz", "zzz: is neither a URL nor a configured peer; there are key, login, token"),
        ("ftp://example.com", "ftp://example.com: is no http or https URL"),
        ("http://example.com:x", "http://example.com:x: is no URL"),
        (
            f"http://me:{SECRET}@example.com",
            "example.com: leave the login out of the URL; set A2A_CLIENT_BASIC_AUTH",
        ),
    ],
)
def test_an_unknown_peer_is_named(settings: ClientSettings, word: str, problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        find_target(settings, word)
    assert refused.value.problems == [problem]


def test_a_credential_that_is_missing_is_named_when_it_is_needed(
    settings: ClientSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PEER_TOKEN")
    find_target(settings, "login")
    with pytest.raises(ConfigError) as refused:
        find_target(settings, "token")
    assert refused.value.problems == ["[peers.token]: PEER_TOKEN is not set"]


def test_wrong_tables_of_peers_are_named_without_their_secrets(tmp_path: Path) -> None:
    file = tmp_path / "peers.toml"
    file.write_text(f"""\
[peers.a]
url = "example.com"
[peers.b]
url = "https://example.com"
bearer_token = "{SECRET}"
[peers.c]
url = "https://example.com"
bearer_token = "env:A"
api_key = "env:B"
colour = "red"
""")
    with pytest.raises(ConfigError) as refused:
        load_client(file)
    assert refused.value.problems == [
        "[peers.a] url: must be an http or https URL",
        "[peers.b] bearer_token: must be env:NAME or file:PATH; the secret itself does not belong "
        "here",
        "[peers.c] colour: there is no such setting",
    ]


def test_a_login_is_one_or_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A2A_CLIENT_BASIC_AUTH", "me")
    with pytest.raises(ConfigError) as refused:
        load_client()
    assert refused.value.problems == [
        "A2A_CLIENT_BASIC_AUTH: must be a user name and a password with a colon between them"
    ]
    monkeypatch.setenv("A2A_CLIENT_BASIC_AUTH", f"me:{SECRET}")
    monkeypatch.setenv("A2A_CLIENT_BEARER_TOKEN", SECRET)
    with pytest.raises(ConfigError) as refused:
        load_client()
    (problem,) = refused.value.problems
    assert problem.startswith("A2A_CLIENT_BASIC_AUTH: there is A2A_CLIENT_BEARER_TOKEN already")


def test_a_host_that_was_named_may_be_private_and_one_that_it_names_may_not() -> None:
    egress = Egress(named_hosts=frozenset({"10.0.0.7"}))
    assert egress.is_named("10.0.0.7")
    assert not egress.is_named("10.0.0.8")
    assert not egress.is_named("localhost")
    here = Egress(named_hosts=frozenset({"localhost"}))
    assert here.is_named("127.0.0.1")
    assert not here.is_named("10.0.0.7")
