"""Settings about who may log in: what is refused, what follows from them, and what is published."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from a2a.types import a2a_pb2
from google.protobuf.json_format import ParseDict  # type: ignore[import-untyped]
from starlette.requests import Request
from structlog.testing import capture_logs

from opencode_a2a import access
from opencode_a2a.access import CertificateHolders, TokenWatch, credentials_of, token_scopes
from opencode_a2a.app import publication
from opencode_a2a.config import ConfigError, Settings, load
from opencode_a2a.credentials import CredentialsFile, make_token
from opencode_a2a.domain.scopes import DEFAULT_SCOPES, OWN_SCOPES, Scope, UnknownScope, resolve
from opencode_a2a.inbound.routes import document
from opencode_a2a.redaction import Redactor
from opencode_a2a.web.auth import Credentials
from opencode_a2a.web.proxies import EXTERNAL_URL

ISSUER = "https://login.example.com/realms/main"
OIDC = {"A2A_OIDC_ISSUER": ISSUER, "A2A_OIDC_AUDIENCE": "https://agent.example.com"}
ROLES = (
    '[roles]\nreader = ["tasks:read", "sessions:read"]\noperator = ["admin", "sessions:shell"]\n'
)


def loaded(
    monkeypatch: pytest.MonkeyPatch, folder: Path, toml: str = "", **settings: str
) -> Settings:
    for name, value in {"HOME": str(folder), **settings}.items():
        monkeypatch.setenv(name, value)
    file = folder / "settings.toml"
    file.write_text(toml)
    return load(file)


def problems(
    monkeypatch: pytest.MonkeyPatch, folder: Path, toml: str = "", **settings: str
) -> list[str]:
    with pytest.raises(ConfigError) as error:
        loaded(monkeypatch, folder, toml, **settings)
    return error.value.problems


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"A2A_OIDC_ISSUER": "http://login.example.com"}, "A2A_OIDC_ISSUER: is 'http://login"),
        ({"A2A_OIDC_ISSUER": "login.example.com"}, "A2A_OIDC_ISSUER: is 'login"),
        ({"A2A_OIDC_ISSUER": f"{ISSUER}?x=1"}, "A2A_OIDC_ISSUER: is"),
        ({"A2A_OIDC_ISSUER": ISSUER}, "A2A_OIDC_AUDIENCE: is missing; without it"),
        ({"A2A_OIDC_AUDIENCE": "me"}, "A2A_OIDC_ISSUER: is missing"),
        ({**OIDC, "A2A_OIDC_SCOPE_MAP": '{"x": ["y"]}'}, "A2A_OIDC_SCOPE_MAP.x.0: must be"),
        ({"A2A_TRUSTED_PROXIES": "proxy.local"}, "A2A_TRUSTED_PROXIES: is"),
        ({"A2A_TRUSTED_PROXIES": "10.0.0.1/8"}, "A2A_TRUSTED_PROXIES: is"),
        ({"A2A_MTLS_HEADER": "X-Cert"}, "A2A_MTLS_HEADER: needs A2A_TRUSTED_PROXIES"),
        (
            {"A2A_MTLS_HEADER": "X-Cert", "A2A_TRUSTED_PROXIES": "127.0.0.1"},
            "A2A_MTLS_HEADER: every program on this machine, the agent included,",
        ),
        (
            {"A2A_MTLS_HEADER": "X-Cert", "A2A_TRUSTED_PROXIES": "::/0"},
            "A2A_MTLS_HEADER: every program on this machine, the agent included,",
        ),
        ({"A2A_TLS_CERTIFICATE": "/x"}, "A2A_TLS_KEY: is missing"),
        ({"A2A_TLS_KEY": "/x"}, "A2A_TLS_CERTIFICATE: is missing"),
    ],
    ids=str,
)
def test_what_would_not_be_safe_stops_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: dict[str, str], problem: str
) -> None:
    [line] = problems(monkeypatch, tmp_path, **settings)
    assert line.startswith(problem)


def test_an_issuer_on_this_machine_may_do_without_tls(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = {**OIDC, "A2A_OIDC_ISSUER": "http://127.0.0.1:9000/"}
    assert loaded(monkeypatch, tmp_path, **settings).oidc.issuer == "http://127.0.0.1:9000/"


def test_a_role_stands_for_its_scopes_wherever_scopes_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    callers = [
        {"scheme": "bearer", "token": "one", "principal": "ann", "scopes": ["reader"]},
        {"scheme": "bearer", "token": "two", "principal": "ops", "scopes": ["operator", "reader"]},
    ]
    settings = loaded(
        monkeypatch,
        tmp_path,
        ROLES + '[oidc.scope_map]\nstaff = ["reader"]\n"*" = ["tasks:write"]\n'
        '[a2a.mtls_scopes]\n"CN=ops" = ["operator"]\n',
        A2A_STATIC_AUTH_CREDENTIALS=json.dumps(callers),
        A2A_MTLS_HEADER="X-Cert",
        A2A_TRUSTED_PROXIES="10.0.0.1",
        **OIDC,
    )
    reader, operator = {"tasks:read", "sessions:read"}, {"admin", "sessions:shell"}
    found = {each.caller.principal: each.caller.scopes for each in credentials_of(settings).known}
    assert found == {"ann": reader, "ops": reader | operator}
    assert token_scopes(settings, ["staff", "other"]) == reader | {"tasks:write"}
    holders = CertificateHolders(settings)
    ops = holders.holder("CN=ops")
    assert ops is not None
    assert ops.principal == "mtls:CN=ops"
    assert ops.scopes == operator
    assert holders.holder("CN=eve") is None


@pytest.mark.parametrize("name", [" ", "CN=a\nb", "CN=\x00", "CN=" + "a" * 250])
def test_a_certificate_with_a_name_that_nobody_can_have_is_nobodys(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    proxy = {"A2A_MTLS_HEADER": "X-Cert", "A2A_TRUSTED_PROXIES": "10.0.0.1"}
    holders = CertificateHolders(loaded(monkeypatch, tmp_path, **proxy))
    assert holders.holder("CN=ada") is not None
    assert holders.holder(name) is None


@pytest.mark.parametrize(
    ("toml", "problem"),
    [
        ('[roles]\nx = ["nothing"]', "[roles] x: must be 'tasks:read'"),
        ('[roles]\nx = "tasks:read"', "[roles] x: must be a list of scopes"),
        ('[roles]\nadmin = ["tasks:read"]', "[roles] admin: is the name of a scope"),
        ('[roles]\nx = ["tasks:read"]\ny = ["x"]', "[roles] y: must be 'tasks:read'"),
    ],
)
def test_a_role_that_is_wrong_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, toml: str, problem: str
) -> None:
    [line] = problems(monkeypatch, tmp_path, toml)
    assert line.startswith(problem)


def test_without_a_map_the_words_of_a_token_are_scopes_but_never_admin(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = loaded(monkeypatch, tmp_path, ROLES, **OIDC)
    words = ["openid", "admin", "tasks:write", "sessions:shell"]
    assert token_scopes(settings, words) == {"tasks:write", "sessions:shell"}
    by_role = token_scopes(settings, ["operator"])  # a role that has `admin`
    assert by_role == {"sessions:shell"}


def test_the_one_token_of_the_simple_way_is_no_admin(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = loaded(monkeypatch, tmp_path, A2A_BEARER_TOKEN="x" * 20)
    [only] = credentials_of(settings).known
    assert only.caller.scopes == OWN_SCOPES == frozenset(Scope) - {"admin"}


def test_scopes_are_resolved_and_strangers_not_repeated() -> None:
    assert resolve(["tasks:read", "sessions:shell"], {}) == {"tasks:read", "sessions:shell"}
    with pytest.raises(UnknownScope) as error:
        resolve(["s3cret"], {"reader": frozenset()})
    assert "s3cret" not in str(error.value)
    assert "'reader'" in str(error.value)


def test_a_token_with_a_role_that_is_gone_is_not_accepted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = CredentialsFile(tmp_path / "credentials.json")
    file.create("a", principal="a", scopes=["reader"], now=0)
    file.create("b", principal="b", scopes=[*DEFAULT_SCOPES], now=0)
    settings = loaded(monkeypatch, tmp_path, ROLES)
    assert principals(credentials_of(settings, tokens=file.read())) == {"a", "b"}
    settings = loaded(monkeypatch, tmp_path)
    assert principals(credentials_of(settings, tokens=file.read())) == {"b"}


def principals(credentials: Credentials) -> set[str]:
    return {each.caller.principal for each in credentials.known}


EVERY_WAY = {
    "A2A_STATIC_AUTH_CREDENTIALS": json.dumps(
        [
            {"scheme": "bearer", "token": "one", "principal": "a"},
            {"scheme": "basic", "username": "b", "password": "two"},
            {"scheme": "api_key", "token": "three", "principal": "c"},
        ]
    ),
    "A2A_MTLS_HEADER": "X-Cert",
    "A2A_TRUSTED_PROXIES": "10.0.0.1",
    **OIDC,
}
NAMES = ["bearer", "basic", "apiKey", "openIdConnect", "mutualTLS"]


def test_the_cards_of_both_lines_and_openapi_declare_what_is_configured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    published = publication(loaded(monkeypatch, tmp_path, **EVERY_WAY), "https://here")
    pure = json.loads(published.card.pure.body)
    read = ParseDict(pure, a2a_pb2.AgentCard())  # strict: a member that is none fails
    assert list(pure["securitySchemes"]) == NAMES
    assert [list(each["schemes"]) for each in pure["securityRequirements"]] == [[n] for n in NAMES]
    schemes = read.security_schemes
    assert schemes["apiKey"].api_key_security_scheme.name == "X-API-Key"
    url = schemes["openIdConnect"].open_id_connect_security_scheme.open_id_connect_url
    assert url == f"{ISSUER}/.well-known/openid-configuration"
    assert schemes["mutualTLS"].HasField("mtls_security_scheme")
    hybrid = json.loads(published.card.hybrid.body)
    kinds = [each["type"] for each in hybrid["securitySchemes"].values()]
    assert kinds == ["http", "http", "apiKey", "openIdConnect", "mutualTLS"]
    assert hybrid["securitySchemes"]["apiKey"]["in"] == "header"
    assert hybrid["security"] == [{name: []} for name in NAMES]
    api: dict[str, Any] = document(published)
    assert list(api["components"]["securitySchemes"]) == NAMES
    assert api["security"] == hybrid["security"]


def test_tokens_of_the_file_are_declared_as_both_that_they_can_be_sent_as(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = CredentialsFile(tmp_path / "credentials.json")
    file.create("a", principal="a", scopes=[*DEFAULT_SCOPES], now=0)
    published = publication(loaded(monkeypatch, tmp_path), "https://here", tokens=file.read())
    assert list(json.loads(published.card.pure.body)["securitySchemes"]) == ["bearer", "apiKey"]


def test_roles_and_what_they_are_mapped_to_are_taken_over_together(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mapped = '[roles]\n{0} = ["tasks:read"]\n[oidc.scope_map]\nstaff = ["{0}"]\n'
    mapped += '[a2a.mtls_scopes]\n"CN=x" = ["{0}"]\n'
    env = {"A2A_MTLS_HEADER": "X-Cert", "A2A_TRUSTED_PROXIES": "10.0.0.1", **OIDC}
    before = loaded(monkeypatch, tmp_path, mapped.format("reader"), **env)
    after = loaded(monkeypatch, tmp_path, mapped.format("viewer"), **env)
    running = before.reloaded(after)
    assert token_scopes(running, ["staff"]) == {"tasks:read"}
    assert CertificateHolders(running).holder("CN=x") is not None
    assert "[roles]" in before.changed(after)


def test_a_token_is_hidden_wherever_it_is_logged() -> None:
    token = make_token()
    assert token not in Redactor().text(f"the caller sent {token} in its message")


async def test_a_card_whose_address_the_client_can_choose_is_kept_by_no_shared_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def kept(**settings: str) -> tuple[str, str]:
        card = publication(loaded(monkeypatch, tmp_path, **settings), "http://inside").card
        scope: dict[str, Any] = {"type": "http", "headers": [], "query_string": b""}
        scope["state"] = {EXTERNAL_URL: "https://evil.example"}
        answer = await card.serve(Request(scope))
        return json.loads(bytes(answer.body))["url"], answer.headers["cache-control"]

    proxies = {"A2A_TRUSTED_PROXIES": "10.0.0.1"}
    assert await kept(**proxies) == ("https://evil.example", "private, no-cache")
    own = {"A2A_PUBLIC_URL": "https://agent.example.com"}
    assert (await kept(**proxies, **own))[1] == "public, max-age=300"


# -- the credentials file while the service runs


@pytest.fixture
def file(tmp_path: Path) -> CredentialsFile:
    file = CredentialsFile(tmp_path / "credentials.json")
    for name in ("leaked", "other"):
        file.create(name, principal=name, scopes=["tasks:read"], now=0)
    return file


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: CredentialsFile) -> TokenWatch:
    return TokenWatch(loaded(monkeypatch, tmp_path, A2A_CREDENTIALS_FILE=str(file.path)))


def test_a_file_that_could_not_be_read_is_read_when_its_rights_are_right(
    watch: TokenWatch, file: CredentialsFile
) -> None:
    file.revoke("leaked", now=0)
    file.path.chmod(0o664)
    with capture_logs() as logs:
        assert not watch.look()
        assert not watch.look()
    assert [entry["event"] for entry in logs] == ["credentials.not_read"]
    assert len(watch.tokens) == 2
    file.path.chmod(0o600)
    assert watch.look()
    assert [token.name for token in watch.tokens] == ["other"]
    assert not watch.look()


async def test_whoever_could_not_take_a_change_over_is_told_again(
    monkeypatch: pytest.MonkeyPatch, watch: TokenWatch, file: CredentialsFile
) -> None:
    monkeypatch.setattr(access, "LOOK_SECONDS", 0.0)
    told, taken = [], asyncio.Event()

    def on_change() -> None:
        told.append([token.name for token in watch.tokens])
        if len(told) == 1:
            raise RuntimeError
        taken.set()

    file.revoke("leaked", now=0)
    async with watch.watching(on_change, dict), asyncio.timeout(60):
        await taken.wait()
    assert told == [["other"], ["other"]]
