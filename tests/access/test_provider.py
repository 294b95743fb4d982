"""A real OpenID Connect provider: its tokens are a login, also after it has a new key.

It is one of the packages that test the console (`make test` installs them beside a browser).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from tests.fakes.issuer import AUDIENCE
from tests.postgres import free_port
from tests.running import ROOT, Service, Upstream, isolated, running, service

FOLDER = ROOT / "console"
pytestmark = pytest.mark.skipif(
    not (FOLDER / "node_modules" / "oidc-provider").exists(),
    reason="oidc-provider is not installed (npm ci --prefix console)",
)
ROLES = """
[oidc.scope_map]
"agent.run" = ["tasks:read", "tasks:write"]
"agent.audit" = ["tasks:read", "admin"]
"""


@contextmanager
def provider(port: int, key: str, home: Path) -> Iterator[None]:
    command = ["node", str(Path(__file__).with_name("provider.mjs")), str(port), key]
    with running(command, isolated(home), FOLDER) as program:
        program.wait_for("ready")
        yield


def token(port: int, **wishes: str) -> str:
    asked = {"grant_type": "client_credentials", **wishes}
    login = ("ci", "secret-of-ci")
    answer = httpx.post(f"http://127.0.0.1:{port}/token", data=asked, auth=login, timeout=60)
    assert answer.status_code == 200, answer.text
    made: str = answer.json()["access_token"]
    return made


def status(run: Service, path: str, login: str) -> int:
    headers = {"authorization": f"Bearer {login}", "A2A-Version": "1.0"}
    return httpx.get(run.url + path, headers=headers, timeout=60).status_code


def test_tokens_of_a_real_provider_are_a_login_and_its_keys_may_change(
    fake: Upstream, tmp_path: Path
) -> None:
    port, config = free_port(), tmp_path / "settings.toml"
    config.write_text(ROLES)
    issuer = f"http://127.0.0.1:{port}"
    with ExitStack() as stack:
        first = stack.enter_context(ExitStack())
        first.enter_context(provider(port, "first", tmp_path / "home"))
        settings = {"A2A_OIDC_ISSUER": issuer, "A2A_OIDC_AUDIENCE": AUDIENCE}
        run = stack.enter_context(service(fake, tmp_path, config=str(config), **settings))
        caller = token(port, scope="agent.run")
        assert status(run, "/tasks", caller) == 200
        assert status(run, "/tasks?principal=*", caller) == 403
        assert status(run, "/tasks?principal=*", token(port, scope="agent.audit")) == 200
        assert status(run, "/tasks", token(port)) == 403, "no scope was asked for"
        elsewhere = token(port, scope="agent.run", resource="https://other.example.com")
        assert status(run, "/tasks", elsewhere) == 401
        assert status(run, "/tasks", caller[:-4] + "AAAA") == 401
        first.close()
        stack.enter_context(provider(port, "second", tmp_path / "home"))
        fresh = token(port, scope="agent.run")
        deadline = time.monotonic() + 120  # keys are fetched at most every 30 seconds
        while status(run, "/tasks", fresh) != 200:
            assert time.monotonic() < deadline
            time.sleep(1)
        card = httpx.get(f"{run.url}/.well-known/agent-card.json", timeout=60).text
    assert f"{issuer}/.well-known/openid-configuration" in card
