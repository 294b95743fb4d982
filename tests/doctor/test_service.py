"""What can be wrong with a running service, and with the proxy in front of it."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from opencode_a2a.config import load_client
from opencode_a2a.doctor.checks import COMBINED, PEERS, CombinedLook
from opencode_a2a.doctor.site import SITE, SiteLook
from opencode_a2a.doctor.subject import Site
from opencode_a2a.doctor.verdict import Level
from tests.doctor.looking import look, nobody
from tests.doctor.proxies import Fault, proxy
from tests.running import TOKEN, Service, Upstream, service, until_ready

SLOWLY = "[[tokens:17]] [[rate:8]]"  # two seconds


@pytest.fixture
def ready_service(fake_service: Service) -> Service:
    with httpx.Client(base_url=fake_service.url) as client:
        until_ready(client)
    return fake_service


def at(url: str, token: str = TOKEN, prompt: str = SLOWLY) -> SiteLook:
    site = Site(url, headers=(("Authorization", f"Bearer {token}"),) if token else ())
    return SiteLook(site, prompt=prompt)


async def test_a_proxy_that_passes_everything_on_is_fine(ready_service: Service) -> None:
    async with proxy(ready_service.url) as url:
        look_at = at(url)
        for check in SITE:
            assert (await look(SITE, check.name, look_at)).level is Level.OK, check.name
        verdict = await look(COMBINED, "model", CombinedLook(look_at))
        assert (verdict.level, verdict.says[:7]) == (Level.OK, "Asked “")
        assert (await look(COMBINED, "clock", CombinedLook(look_at))).level is Level.OK


async def test_a_proxy_that_holds_events_back_is_found(ready_service: Service) -> None:
    async with proxy(ready_service.url, Fault(holds_back=True)) as url:
        look_at = at(url)
        assert (await look(SITE, "stream", look_at)).finding == "stream.buffered"
        verdict = await look(COMBINED, "model", CombinedLook(look_at))
        assert verdict.level is Level.OK, "the answer was there all the same"


async def test_a_proxy_that_ends_streams_is_found(ready_service: Service) -> None:
    async with proxy(ready_service.url, Fault(cuts=True)) as url:
        assert (await look(SITE, "stream", at(url))).finding == "stream.cut"


async def test_a_proxy_that_lets_everybody_in_is_found(ready_service: Service) -> None:
    async with proxy(ready_service.url, Fault(logs_in_as=TOKEN)) as url:
        assert (await look(SITE, "login", at(url))).finding == "service.open"


async def test_a_credential_that_is_not_accepted_is_found(ready_service: Service) -> None:
    look_at = at(ready_service.url, "another-token")
    verdict = await look(SITE, "login", look_at)
    assert verdict.finding == "service.refuses"
    assert "another-token" not in verdict.says
    assert (await look(SITE, "stream", look_at)).level is Level.UNKNOWN


async def test_without_a_credential_what_needs_none_is_looked_at(ready_service: Service) -> None:
    look_at = at(ready_service.url, token="")
    for name in ("service", "service version", "readiness", "login"):
        assert (await look(SITE, name, look_at)).level is Level.OK
    verdict = await look(SITE, "stream", look_at)
    assert (verdict.level, "A2A_CLIENT_BEARER_TOKEN" in verdict.fix) == (Level.UNKNOWN, True)


async def test_an_answer_without_a_gap_says_nothing_about_a_proxy(ready_service: Service) -> None:
    verdict = await look(SITE, "stream", at(ready_service.url, prompt="[[tokens:1]]"))
    assert verdict.finding is None  # it may have taken long on a busy machine, or not


async def test_a_task_that_fails_shows_the_model_and_not_the_stream(ready_service: Service) -> None:
    look_at = at(ready_service.url, prompt=f"{SLOWLY} [[error:401]]")
    verdict = await look(COMBINED, "model", CombinedLook(look_at))
    assert (verdict.finding, "provider refused" in verdict.says) == ("model.failed", True)
    assert (await look(SITE, "stream", look_at)).finding is None


async def test_a_service_that_cannot_work_is_found(tmp_path: Path) -> None:
    with nobody() as url, service(Upstream(url, None, tmp_path), tmp_path) as running:
        verdict = await look(SITE, "readiness", at(running.url))
        assert verdict.finding == "service.not_ready"
        assert "cannot work without opencode. OpenCode cannot be reached." in verdict.says


@pytest.mark.parametrize(("token", "finding"), [(TOKEN, None), ("wrong", "peers.refuses")])
async def test_a_peer_is_tried_with_its_credential(
    ready_service: Service,
    token: str,
    finding: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PEER_TOKEN", token)
    config = tmp_path / "peers.toml"
    config.write_text(f'[peers.it]\nurl = "{ready_service.url}"\nbearer_token = "env:PEER_TOKEN"\n')
    verdict = await look(PEERS, "peers", load_client(config))
    assert verdict.finding == finding
