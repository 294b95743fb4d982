"""The files of the console: what they come with, and what is answered where there are none."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from opencode_a2a.inbound.console import Console, ConsoleFacts

FACTS = ConsoleFacts("1.2.3", "Agent")
SCRIPT = "console.log('hello');\n" * 100
Client = Callable[..., httpx.AsyncClient]


@pytest.fixture
def built(tmp_path: Path) -> Path:
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "index-abc.js").write_text(SCRIPT)
    (tmp_path / "index.html").write_text("<!doctype html><title>Console</title>")
    (tmp_path / "sw.js").write_text("//")
    (tmp_path / "secret.txt").write_text("not one of its files")
    return tmp_path


def client(folder: Path, facts: ConsoleFacts | None = FACTS) -> httpx.AsyncClient:
    console = Console(facts, folder)
    routes = [Route(path, console.serve) for path in ("/console", "/console/{path:path}")]
    transport = httpx.ASGITransport(app=Starlette(routes=routes))
    return httpx.AsyncClient(transport=transport, base_url="http://console")


@pytest.mark.parametrize("path", ["/console", "/console/", "/console/tasks/1", "/console/login"])
async def test_every_page_is_the_shell(built: Path, path: str) -> None:
    async with client(built) as page:
        answer = await page.get(path)
        again = await page.get(path, headers={"if-none-match": answer.headers["etag"]})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.headers["cache-control"] == "no-cache"
    assert "<title>Console</title>" in answer.text
    assert again.status_code == 304
    assert again.headers["content-security-policy"] == answer.headers["content-security-policy"]


async def test_only_its_own_files_can_run_and_nobody_can_frame_it(built: Path) -> None:
    async with client(built) as page:
        headers = (await page.get("/console")).headers
    policy = headers["content-security-policy"].split("; ")
    for rule in (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        "require-trusted-types-for 'script'",
    ):
        assert rule in policy
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-opener-policy"] == "same-origin"


async def test_files_with_a_hash_are_kept_for_ever_and_sent_compressed(built: Path) -> None:
    async with client(built) as page:
        script = await page.get("/console/assets/index-abc.js")
        plain = await page.get(
            "/console/assets/index-abc.js", headers={"accept-encoding": "identity"}
        )
        worker = await page.get("/console/sw.js")
    assert script.headers["content-type"].startswith("text/javascript")
    assert script.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert script.headers["content-encoding"] == "gzip"
    assert int(script.headers["content-length"]) < len(gzip.compress(SCRIPT.encode())) + 32
    assert script.text == plain.text == SCRIPT
    assert "content-encoding" not in plain.headers
    assert worker.headers["service-worker-allowed"] == "/console"
    assert worker.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize(
    "path", ["assets/index-old.js", "old.css", "assets/../../pyproject.toml", "assets/"]
)
async def test_a_file_that_is_not_there_is_not_the_page(built: Path, path: str) -> None:
    """A browser would take the page for a script, and fail with something else."""
    async with client(built) as page:
        answer = await page.get(f"/console/{path}")
    assert answer.status_code == 404 or "<title>Console</title>" in answer.text
    assert "project" not in answer.text


async def test_other_files_of_its_folder_are_not_served(built: Path) -> None:
    async with client(built) as page:
        assert "not one of its files" not in (await page.get("/console/secret.txt")).text


async def test_the_login_page_is_told_how_to_log_in(built: Path) -> None:
    async with client(built) as page:
        assert (await page.get("/console/config.json")).json() == {
            "version": "1.2.3",
            "title": "Agent",
            "login": {"token": True},
        }
    facts = ConsoleFacts("1", "Agent", issuer="https://login.example.com/main", client_id="web")
    async with client(built, facts) as page:
        answer = await page.get("/console/config.json")
        assert answer.json()["login"]["oidc"] == {
            "issuer": "https://login.example.com/main",
            "client_id": "web",
            "scope": "openid",
        }
    connect = "connect-src 'self' https://login.example.com"
    assert connect in answer.headers["content-security-policy"].split("; ")


@pytest.mark.parametrize(
    ("token_endpoint", "more"),
    [
        (None, ""),
        ("https://login.example.com/token", ""),
        ("https://oauth.example.com:8443/token", " https://oauth.example.com:8443"),
        ("http://localhost:9/token", " http://localhost:9"),
        ("http://plain.example/token", ""),
        ("https://user:secret@x.example/token", ""),
        ("https://日本.example/token", ""),
        ("https://[::1/token", ""),
        ("https://x.example;script-src *", ""),
        ("https://x.example 'unsafe-inline'", ""),
        ("javascript:1", ""),
    ],
)
async def test_it_may_connect_to_where_the_issuer_gives_tokens(
    built: Path, token_endpoint: str | None, more: str
) -> None:
    facts = ConsoleFacts("1", "Agent", issuer="https://login.example.com", client_id="web")
    console = Console(facts, built, token_endpoint=lambda: token_endpoint)
    routes = [Route("/console", console.serve)]
    transport = httpx.ASGITransport(app=Starlette(routes=routes))
    async with httpx.AsyncClient(transport=transport, base_url="http://console") as page:
        policy = (await page.get("/console")).headers["content-security-policy"].split("; ")
    assert f"connect-src 'self' https://login.example.com{more}" in policy
    assert "script-src 'self'" in policy


async def test_where_it_is_off_or_not_built_the_answer_says_so(built: Path, tmp_path: Path) -> None:
    async with client(built, None) as page:
        for path in ("/console", "/console/config.json", "/console/assets/index-abc.js"):
            off = await page.get(path)
            assert off.status_code == 404
            assert "A2A_CONSOLE=false" in off.text
    async with client(tmp_path / "nothing") as page:
        missing = await page.get("/console")
        assert missing.status_code == 404
        assert "make console" in missing.text
        assert (await page.get("/console/config.json")).status_code == 200
