"""A service with every way to log in, on the fast fake of OpenCode."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.fakes.issuer import AUDIENCE, Provider, serving
from tests.running import Service, Upstream, isolated, service

NUMBERS = itertools.count()
CALLERS = [
    {"scheme": "bearer", "token": "alice-token", "principal": "alice"},
    {"scheme": "bearer", "token": "bob-token", "principal": "bob"},
    {"scheme": "bearer", "token": "ops-token", "principal": "ops", "scopes": ["operator"]},
    {"scheme": "api_key", "token": "key-of-carol", "principal": "carol"},
]
ROLES = """
[roles]
operator = ["admin"]
auditor = ["tasks:read", "admin"]

[oidc.scope_map]
"run tasks" = []
"agent.run" = ["tasks:read", "tasks:write"]
"agent.audit" = ["auditor"]
"""


@dataclass(frozen=True)
class Guarded:
    service: Service
    provider: Provider
    folder: Path
    config: Path

    @property
    def url(self) -> str:
        return self.service.url

    @property
    def file(self) -> Path:
        return self.folder / "credentials.json"

    def get(self, path: str, token: str = "", **headers: str) -> httpx.Response:
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        number = next(NUMBERS)  # each from an address of its own: failed logins are counted by it
        more["X-Forwarded-For"] = f"198.51.{number // 200}.{number % 200}"
        login = {"authorization": f"Bearer {token}"} if token else {}
        return httpx.get(self.url + path, headers={**login, **more}, timeout=60)

    def token(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The command `token`, as an operator runs it beside the service."""
        program = str(Path(sys.executable).parent / "opencode-a2a")
        command = [program, "token", words[0], "--config", str(self.config), *words[1:]]
        env = isolated(self.folder / "home", A2A_CREDENTIALS_FILE=str(self.file))
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="session")
def provider() -> Iterator[Provider]:
    with serving() as found:
        yield found


@pytest.fixture(scope="session")
def guarded(
    fake: Upstream, provider: Provider, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("access")
    config = folder / "settings.toml"
    config.write_text(ROLES)
    with service(
        fake,
        folder,
        config=str(config),
        A2A_STATIC_AUTH_CREDENTIALS=json.dumps(CALLERS),
        A2A_CREDENTIALS_FILE=str(folder / "credentials.json"),
        A2A_OIDC_ISSUER=provider.url,
        A2A_OIDC_AUDIENCE=AUDIENCE,
        A2A_TRUSTED_PROXIES="127.0.0.1",
        A2A_MTLS_HEADER="X-Client-Subject",
        A2A_MTLS_FROM_LOOPBACK="true",
        A2A_MTLS_SCOPES='{"CN=dora": ["tasks:read"]}',
        A2A_PUSH="true",
        A2A_ALLOWED_HOSTS="*",
    ) as running:
        yield Guarded(running, provider, folder, config)
