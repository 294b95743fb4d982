"""Checks of the instances that `deploy` has made on this machine.

A service that starts makes none of them, and does not load this module.
"""

from __future__ import annotations

import asyncio

from ..deploy.drift import unit_drift
from ..deploy.host import Host
from ..deploy.release import Releases
from ..deploy.resources import DeployError
from . import judgement as j
from .verdict import Check, NotTried, Verdict


async def look_at_units(host: Host) -> Verdict:
    try:
        return j.judge_units(await asyncio.to_thread(unit_drift, host, Releases().own))
    except PermissionError as exc:
        says = f"Instances are deployed here, and this user cannot read {exc.filename}."
        raise NotTried(says, "Run this as root.") from None
    except DeployError as exc:
        raise NotTried(f"The units cannot be compared: {exc}") from None


DEPLOYED: tuple[Check[Host], ...] = (
    Check(
        "units",
        "whether the systemd units of the instances that `deploy` has made here are those that "
        "this version writes (only root can know; instances of another release are left to the "
        "doctor of that)",
        look=look_at_units,
        findings=(j.UNITS_MISSING, j.UNITS_OTHER),
    ),
)
