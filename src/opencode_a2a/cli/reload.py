"""SIGHUP: read the settings again, and take over what a running service can.

Open streams go on. Wrong settings change nothing, and each problem is logged in a line, as at the
start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from ..config import TABLES, ConfigError, Settings, reloadable, setting_name
from ..observe import audit
from .failure import CommandError
from .observing import reopen_audit_log
from .serve import Watch

log = structlog.get_logger()

_RELOADABLE_NAMES = {setting_name(kind, name) for kind in TABLES for name in reloadable(kind)}


@dataclass(slots=True)
class Reload:
    """What SIGHUP does."""

    running: Settings  # those that hold now
    load: Callable[[Settings], Settings]  # new ones, completed for a service that has these
    apply_to_log: Callable[[Settings], None]
    watch: Watch
    # systemd copies them when a unit starts: a token that was revoked since then still works.
    has_copied_credentials: bool = False

    def __call__(self) -> None:
        self.watch.manager.reloading()
        try:
            self._reload()
        except ConfigError as exc:
            self._refuse(exc.problems)
        except CommandError as exc:
            self._refuse([str(exc)])
        finally:
            self.watch.manager.notify(READY=1)

    def _reload(self) -> None:
        if self.watch.built is None:
            raise CommandError("the service is still starting; send SIGHUP again when it serves")
        new = self.load(self.running)
        changed = self.running.changed(new)
        taken = [name for name in changed if name in _RELOADABLE_NAMES or name.startswith("[")]
        left = [name for name in changed if name not in taken]
        settings = self.running.reloaded(new)
        cut_off = self.watch.built.reload(settings)
        if self.watch.tls is not None:
            self.watch.tls.look()
        self.apply_to_log(settings)
        self.running = settings
        reopen_audit_log()
        audit.record("settings.reload", outcome="ok", by=audit.OPERATOR, changed=" ".join(taken))
        log.info("settings.reloaded", changed=" ".join(taken) or None, requests_ended=cut_off)
        if left:
            log.warning("settings.need_restart", names=" ".join(left))
        if self.has_copied_credentials:
            log.warning(
                "settings.credentials_not_read",
                advice="Secrets that systemd hands over change only with a restart of the unit.",
            )

    def _refuse(self, problems: list[str]) -> None:
        audit.record("settings.reload", outcome="refused", by=audit.OPERATOR)
        for problem in problems:
            log.error("settings.wrong", problem=problem)
        log.error("settings.not_reloaded", advice="The settings from before stay in effect.")
