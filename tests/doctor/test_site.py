"""What can be wrong between clients and a service: address, certificate, peers."""

from __future__ import annotations

import json
from email.utils import formatdate
from pathlib import Path
from time import time

import pytest

from opencode_a2a import __version__
from opencode_a2a.config import load_client
from opencode_a2a.doctor.checks import COMBINED, PEERS, CombinedLook
from opencode_a2a.doctor.site import SITE, SiteLook
from opencode_a2a.doctor.subject import Site
from opencode_a2a.doctor.verdict import Level
from tests.doctor.looking import answer, look, nobody, serving
from tests.doctor.proxies import certificate


def at(url: str | None, **more: object) -> SiteLook:
    return SiteLook(Site(url, **more))  # type: ignore[arg-type]


def card(**members: object) -> bytes:
    return answer(json.dumps({"name": "A", "version": __version__, **members}).encode())


async def test_an_address_at_which_nobody_answers_is_found_once() -> None:
    with nobody() as url:
        look_at = at(url)
        assert (await look(SITE, "service", look_at)).finding == "service.unreachable"
        for name in ("card", "service version", "readiness", "login", "stream"):
            verdict = await look(SITE, name, look_at)
            assert (verdict.level, verdict.says) == (Level.UNKNOWN, f"{url} cannot be used.")


async def test_without_an_address_nothing_is_tried() -> None:
    look_at = at(None, why_not="No service runs.")
    for check in SITE:
        verdict = await look(SITE, check.name, look_at)
        assert (verdict.level, verdict.says) == (Level.UNKNOWN, "No service runs.")


@pytest.mark.parametrize(
    ("found", "finding"),
    [
        (answer(b"", status="502 Bad Gateway"), "service.unreachable"),
        (answer(b"", "Location: https://x/", status="301 Moved"), "service.no_card"),
        (answer(b"<html>", kind="text/html"), "service.no_card"),
        (answer(b"{}"), "service.no_card"),
        (answer(b"", status="404 Not Found"), "service.no_card"),
    ],
)
async def test_what_answers_and_is_no_agent_is_found(found: bytes, finding: str) -> None:
    async with serving(lambda _: found) as url:
        assert (await look(SITE, "service", at(url))).finding == finding


async def test_another_version_and_another_card_are_found() -> None:
    async with serving(lambda _: card(version="0.0.1")) as url:
        look_at = at(url, own_card={"name": "A", "version": __version__})
        assert (await look(SITE, "service version", look_at)).finding == "service.other_version"
        verdict = await look(SITE, "card", look_at)
        assert verdict.finding == "service.other_card"
        assert "version" in verdict.says


async def test_plain_http_beyond_this_machine_is_found() -> None:
    assert (await look(SITE, "tls", at("http://192.0.2.77:8000"))).finding == "tls.missing"
    assert (await look(SITE, "tls", at("http://127.0.0.1:8000"))).level is Level.OK


@pytest.mark.parametrize(
    ("days", "trusted", "finding"),
    [
        (90, True, None),
        (10, True, "tls.ends_soon"),
        (1.5, True, "tls.ends_now"),
        (-1, True, "tls.invalid"),
        (90, False, "tls.invalid"),
    ],
)
async def test_certificates_that_end_or_are_not_trusted_are_found(
    days: float,
    trusted: bool,
    finding: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    context, chain = certificate(tmp_path, days)
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(chain))
    async with serving(lambda _: card(), context) as url:
        look_at = at(url)
        assert (await look(SITE, "tls", look_at)).finding == finding
        reached = (await look(SITE, "service", look_at)).level is Level.OK
        assert reached is (finding != "tls.invalid")


async def test_peers_that_are_away_or_cannot_be_used_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "peers.toml"
    config.write_text("")
    assert (await look(PEERS, "peers", load_client(config))).says == "No peer is configured."
    async with serving(lambda _: answer(b"", status="404 Not Found")) as other:
        with nobody() as url:
            config.write_text(f'[peers.away]\nurl = "{url}"\n')
            verdict = await look(PEERS, "peers", load_client(config))
            assert (verdict.finding, verdict.says[:5]) == ("peers.unreachable", "away:")
            config.write_text(f'[peers.away]\nurl = "{url}"\n[peers.other]\nurl = "{other}"\n')
            verdict = await look(PEERS, "peers", load_client(config))
            assert verdict.finding == "peers.refuses"
            assert "other: There is no Agent Card" in verdict.says
    monkeypatch.delenv("NO_SUCH_TOKEN", raising=False)
    config.write_text(f'[peers.x]\nurl = "{url}"\nbearer_token = "env:NO_SUCH_TOKEN"\n')
    verdict = await look(PEERS, "peers", load_client(config))
    assert (verdict.finding, "NO_SUCH_TOKEN is not set" in verdict.says) == ("peers.refuses", True)


@pytest.mark.parametrize(("ahead", "finding"), [(3600, "clock.wrong"), (-20, "clock.drifts")])
async def test_a_clock_that_the_service_does_not_share_is_found(ahead: float, finding: str) -> None:
    def respond(_: str) -> bytes:
        date = formatdate(time() + ahead, usegmt=True)
        return answer(b'{"name": "A"}', f"Date: {date}")

    async with serving(respond) as url:
        assert (await look(COMBINED, "clock", CombinedLook(at(url)))).finding == finding
