"""All checks there are, and which of them are made of what."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from time import time
from typing import Any

from ..config import ClientSettings, ConfigError
from ..deploy.host import LocalHost
from ..outbound.client import Peers
from ..outbound.failures import PeerBusy, PeerError, PeerTimeout, PeerUnreachable
from ..peers import egress_of, limits_of, target_of
from . import judgement as j
from .deployed import DEPLOYED
from .machine import MACHINE, PROGRAM, STORE, Store, installed_at
from .opencode import OPENCODE, OpenCodeLook, ask_model
from .question import PROMPT
from .site import SITE, SiteLook
from .subject import Installation, OpenCodeServer, Site
from .verdict import Check, Examination, NotTried, Verdict

PEER_SECONDS = 15.0
AWAY = (PeerUnreachable, PeerTimeout, PeerBusy)  # which is for the peer's operator to mend


@dataclass(frozen=True, slots=True)
class CombinedLook:
    """For what takes more than one of them to find out."""

    site: SiteLook
    opencode: OpenCodeLook | None = None  # None: only an address is known
    asks: bool = True
    prompt: str = PROMPT


async def look_at_model(combined: CombinedLook) -> Verdict:
    """Ask through the service if it runs, which measures its stream too; else OpenCode itself."""
    if not combined.asks:
        raise NotTried("No model is asked (--no-model).")
    try:
        answer, _ = await combined.site.streamed.get()
    except NotTried:
        if combined.opencode is None:
            raise
        answer = await ask_model(combined.opencode, combined.prompt)
    return j.judge_model(answer)


async def look_at_clock(combined: CombinedLook) -> Verdict:
    offset = None
    with suppress(NotTried):
        offset = (await combined.site.reached()).clock_offset
    return j.judge_clock(time(), installed_at(), offset)


async def look_at_peers(client: ClientSettings) -> Verdict:
    peers = Peers(egress_of(client.outbound), limits_of(client.outbound))

    async def problem_of(name: str) -> tuple[bool, str] | None:
        try:
            async with (
                asyncio.timeout(PEER_SECONDS),
                peers.connect(target_of(name, client.peers[name], client.outbound)) as peer,
            ):
                await peer.extended_card()  # which takes the credential, where there is one
        except PeerError as exc:
            return isinstance(exc, AWAY), exc.message
        except ConfigError as exc:
            return False, exc.problems[0]
        except TimeoutError:
            return True, f"It did not answer within {PEER_SECONDS:g} s."
        return None

    names = sorted(client.peers)
    problems = await asyncio.gather(*map(problem_of, names))
    wrong = {name: each for name, each in zip(names, problems, strict=True) if each is not None}
    return j.judge_peers(wrong, count=len(names))


COMBINED: tuple[Check[CombinedLook], ...] = (
    Check(
        "model",
        f"whether a model answers: it is asked “{PROMPT}”. That costs a few tokens; `--no-model` "
        "leaves it out, and the check `stream` with it",
        look=look_at_model,
        findings=(j.MODEL_FAILED,),
        seconds=150.0,
    ),
    Check(
        "clock",
        "whether the clock agrees with that of the service",
        look=look_at_clock,
        findings=(j.CLOCK_WRONG, j.CLOCK_DRIFTS),
        seconds=30.0,
    ),
)
PEERS: tuple[Check[ClientSettings], ...] = (
    Check(
        "peers",
        "whether the configured peers answer, with their credentials",
        look=look_at_peers,
        findings=(j.PEER_UNREACHABLE, j.PEER_REFUSES),
        seconds=30.0,
    ),
)
ALL: tuple[Check[Any], ...] = (
    *PROGRAM,
    *STORE,
    *MACHINE,
    *DEPLOYED,
    *OPENCODE,
    *COMBINED,
    *SITE,
    *PEERS,
)


def examine_installation(
    installation: Installation,
    server: OpenCodeServer,
    site: Site,
    *,
    client: ClientSettings,
    asks: bool,
) -> list[Examination]:
    """Everything that can be known on the machine of the service."""
    store, opencode = Store(installation.settings), OpenCodeLook(server)
    look = SiteLook(site, asks=asks)
    combined = CombinedLook(look, opencode, asks=asks)
    return [
        *(check.on(installation) for check in PROGRAM),
        *(check.on(store) for check in STORE),
        *(check.on(installation) for check in MACHINE),
        *(check.on(LocalHost()) for check in DEPLOYED),
        *(check.on(opencode) for check in OPENCODE),
        *(check.on(combined) for check in COMBINED),
        *(check.on(look) for check in SITE),
        *(check.on(client) for check in PEERS),
    ]


def examine_site(site: Site, *, asks: bool) -> list[Examination]:
    """What can be known of a service from outside."""
    look = SiteLook(site, asks=asks)
    combined = CombinedLook(look, asks=asks)
    return [
        *(check.on(look) for check in SITE),
        *(check.on(combined) for check in COMBINED),
    ]
