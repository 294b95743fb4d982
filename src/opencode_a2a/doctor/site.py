"""Checks of a service as clients see it: at its public address, or at any that is named."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from time import time
from typing import Any
from urllib.parse import urlsplit

import httpx

from .. import __version__
from ..domain.addresses import is_loopback
from ..outbound.card import WELL_KNOWN
from ..outbound.failures import PeerError, PeerRefused
from . import judgement as j
from .judgement import Answer
from .question import PROMPT, StreamedTask, ask_service
from .subject import Json, Site
from .verdict import Check, NotTried, Once, Verdict, fine, found
from .web import refusal, web_client

CONNECT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class FetchedCard:
    card: Json
    clock_offset: float | None


class SiteLook:
    """What several checks need to know of one service."""

    def __init__(self, site: Site, *, asks: bool = True, prompt: str = PROMPT) -> None:
        self.site = site
        self.card = Once(self._fetch_card)
        self.streamed = Once(self._ask)
        self._asks = asks
        self._prompt = prompt

    @property
    def url(self) -> str:
        if self.site.url is None:
            raise NotTried(self.site.why_not, "Start the service, then run this again.")
        return self.site.url

    async def _fetch_card(self) -> FetchedCard:
        """PeerError: there is none."""
        began = time()
        response = await self._get(WELL_KNOWN[0], headers=())
        offset = clock_offset(response.headers.get("date"), (began + time()) / 2)
        if response.status_code != 200:
            raise refusal(response.status_code, self.url)
        try:
            card = response.json()
        except ValueError:
            card = None
        if not isinstance(card, dict) or "name" not in card:
            raise PeerRefused(f"What is at {self.url}{WELL_KNOWN[0]} is no Agent Card.")
        return FetchedCard(card, offset)

    async def _ask(self) -> tuple[Answer, StreamedTask]:
        if not self._asks:
            raise NotTried("No model is asked (--no-model).")
        headers = await self.login()
        if not headers:
            raise NotTried(
                "No credential for the service is known here.",
                "Set A2A_CLIENT_BEARER_TOKEN to a token of the service.",
            )
        try:
            return await ask_service(self.url, headers, self._prompt)
        except PeerError as exc:
            raise NotTried(f"The service did not take a question: {exc.message}") from None

    async def login(self) -> tuple[tuple[str, str], ...]:
        """The credential. It is not for a stranger whose address is there by mistake."""
        fetched = await self.reached()
        if self.site.own_card not in (None, fetched.card):
            raise NotTried("The service there is not ours, so it does not get the credential.")
        return self.site.headers

    async def get(self, path: str, headers: tuple[tuple[str, str], ...] = ()) -> httpx.Response:
        try:
            return await self._get(path, headers)
        except PeerError as exc:
            raise NotTried(exc.message) from None

    async def _get(self, path: str, headers: tuple[tuple[str, str], ...]) -> httpx.Response:
        async with web_client() as http:
            return await http.get(f"{self.url}{path}", headers=dict(headers))

    async def reached(self) -> FetchedCard:
        try:
            return await self.card.get()
        except PeerError:
            raise NotTried(f"{self.url} cannot be used.") from None


async def look_at_address(look: SiteLook) -> Verdict:
    url = look.url
    try:
        await look.card.get()
    except PeerRefused as exc:
        return found(j.SITE_NO_CARD, exc.message)
    except PeerError as exc:
        return found(j.SITE_UNREACHABLE, exc.message, exc.hint or None)
    return fine(f"{url} answers with an Agent Card.")


async def look_at_card(look: SiteLook) -> Verdict:
    fetched = await look.reached()
    if look.site.own_card is None:
        return fine(f"“{fetched.card['name']}”.")
    return j.judge_card(fetched.card, look.site.own_card)


async def look_at_version(look: SiteLook) -> Verdict:
    card = (await look.reached()).card
    offered = card.get("supportedInterfaces")
    lines = [each.get("protocolVersion", "") for each in offered or [] if isinstance(each, dict)]
    return j.judge_site_version(
        str(card.get("version")), __version__, list(dict.fromkeys(lines)) or ["0.3"]
    )


async def look_at_readiness(look: SiteLook) -> Verdict:
    response = await look.get("/ready", await look.login())
    told: Any = {}
    with suppress(ValueError):
        told = response.json()
    checks, problem = told.get("checks", {}), told.get("problem", "")
    return j.judge_ready(response.status_code, checks, problem)


async def look_at_login(look: SiteLook) -> Verdict:
    headers = await look.login()
    without = await look.get("/tasks?pageSize=1")
    with_login = (await look.get("/tasks?pageSize=1", headers)).status_code if headers else None
    return j.judge_login(without.status_code, with_login)


async def look_at_certificate(look: SiteLook) -> Verdict:
    parts = urlsplit(look.url)
    host = parts.hostname or ""
    if look.site.certificate is not None and is_loopback(host):
        return _judge_file(look.site.certificate)  # it is for the name that clients use
    if parts.scheme != "https":
        if is_loopback(host):
            return fine("No TLS, and only this machine can connect.")
        return found(j.TLS_MISSING, f"{look.url} is plain HTTP.")
    context = httpx.create_ssl_context(trust_env=True)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(host, parts.port or 443, ssl=context)
    except ssl.SSLCertVerificationError as exc:
        return found(
            j.TLS_INVALID, f"The certificate of {host} is not valid: {exc.verify_message}."
        )
    except (OSError, TimeoutError):
        raise NotTried(f"{look.url} cannot be reached.") from None
    certificate = writer.get_extra_info("peercert")
    writer.close()
    return j.judge_certificate(ssl.cert_time_to_seconds(certificate["notAfter"]) - time())


def _judge_file(certificate: Path) -> Verdict:
    from cryptography import x509  # large, and only a service with TLS of its own needs it

    try:
        found_there = x509.load_pem_x509_certificates(certificate.read_bytes())
    except (OSError, ValueError):
        return found(j.TLS_INVALID, f"{certificate} (A2A_TLS_CERTIFICATE) cannot be read.")
    return j.judge_certificate(found_there[0].not_valid_after_utc.timestamp() - time())


async def look_at_stream(look: SiteLook) -> Verdict:
    answer, streamed = await look.streamed.get()
    if answer.problem is not None and not streamed.arrivals:
        raise NotTried(f"The question was not answered: {answer.problem}")
    verdict = j.judge_stream(streamed.arrivals, ended=streamed.ended)
    if verdict is None:
        raise NotTried("The answer came too fast to measure a gap between its events.")
    return verdict


def clock_offset(date: str | None, now: float) -> float | None:
    """How far the clock of who sent this header is ahead; it tells whole seconds only."""
    try:
        return parsedate_to_datetime(date or "").timestamp() + 0.5 - now
    except ValueError:
        return None


SITE: tuple[Check[SiteLook], ...] = (
    Check(
        "service",
        "whether the service answers at its address (A2A_PUBLIC_URL, or where it runs)",
        look=look_at_address,
        findings=(j.SITE_UNREACHABLE, j.SITE_NO_CARD),
    ),
    Check(
        "card",
        "whether the Agent Card there is the one that these settings publish",
        look=look_at_card,
        findings=(j.SITE_OTHER_CARD,),
    ),
    Check(
        "service version",
        "whether the service that runs is this version, and which lines of A2A it speaks",
        look=look_at_version,
        findings=(j.SITE_OTHER_VERSION,),
    ),
    Check(
        "readiness",
        "whether the service says that it can work",
        look=look_at_readiness,
        findings=(j.SITE_NOT_READY,),
    ),
    Check(
        "login",
        "whether the credential is needed, and accepted",
        look=look_at_login,
        findings=(j.SITE_OPEN, j.SITE_REFUSES),
    ),
    Check(
        "tls",
        "whether the certificate is valid, and for how long",
        look=look_at_certificate,
        findings=(j.TLS_INVALID, j.TLS_ENDS_NOW, j.TLS_ENDS_SOON, j.TLS_MISSING),
    ),
    Check(
        "stream",
        "whether events arrive as they are sent, measured with the answer of the model: the time "
        "between its first and last event here, against the times that the service wrote into them",
        look=look_at_stream,
        findings=(j.STREAM_BUFFERED, j.STREAM_CUT),
        seconds=80.0,
    ),
)
