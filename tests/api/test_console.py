"""The console on a running service: without a token, from its own origin, and switched off."""

from __future__ import annotations

from pathlib import Path

import httpx

from opencode_a2a import __version__
from tests.running import Service, Upstream, service


def test_the_login_page_needs_no_token_and_the_data_does(fake_service: Service) -> None:
    own = {"origin": fake_service.url, "sec-fetch-site": "same-origin"}
    with httpx.Client(base_url=fake_service.url, headers=own, timeout=60) as page:
        config = page.get("/console/config.json")
        assert config.status_code == 200
        assert config.json()["version"] == __version__
        assert "set-cookie" not in config.headers
        assert page.get("/console").status_code in (200, 404)  # built, or not
        body = {"jsonrpc": "2.0", "id": 1, "method": "opencode.models.list"}
        assert page.post("/", json=body).status_code == 401
        for path in ("/consoles", "/console.json", "/openapi.json"):
            assert page.get(path).status_code == 401


def test_pages_of_other_origins_get_nothing_of_it(fake_service: Service) -> None:
    foreign = {"origin": "https://evil.example", "sec-fetch-site": "cross-site"}
    with httpx.Client(base_url=fake_service.url, headers=foreign, timeout=60) as page:
        assert page.get("/console/config.json").status_code == 403


def test_it_can_be_switched_off(fake: Upstream, tmp_path: Path) -> None:
    with service(fake, tmp_path, A2A_CONSOLE="false") as running:
        for path in ("/console", "/console/config.json"):
            answer = httpx.get(running.url + path, timeout=60)
            assert answer.status_code == 404
            assert "A2A_CONSOLE=false" in answer.text
