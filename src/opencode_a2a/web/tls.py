"""TLS of our own: a certificate that is read again when it was renewed.

Connections keep the certificate they began with, so streams go on; new ones get the new one.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

logger = structlog.get_logger()

LOOK_SECONDS = 5.0  # between two looks at the files


class TlsNotUsable(Exception):
    """The certificate or its key cannot be used; the message says why, and what to do."""


class ServerTls:
    """The context that all connections share."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._certificate, self._key = certificate, key
        self._version = self._files_version()  # of the pair in use
        self._problem = ""
        self.context = self._loaded()

    def look(self) -> bool:
        """Take a renewed certificate over; whether there was one.

        One that cannot be used changes nothing: it may be only half written yet, or not be readable
        yet. It is tried again each time.
        """
        version = self._files_version()
        if version == self._version:
            return False
        try:
            self._loaded()  # tried first: the context in use must not be left with half of a pair
            self.context.load_cert_chain(self._certificate, self._key, password=_no_password)
        except (TlsNotUsable, _HasPassword, OSError) as exc:
            before, self._problem = self._problem, str(exc)
            if self._problem != before:
                advice = "The certificate from before stays in use."
                logger.error("tls.not_reloaded", problem=self._problem, advice=advice)
            return False
        self._version, self._problem = version, ""
        logger.info("tls.reloaded", certificate=str(self._certificate))
        return True

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        watching = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look()

    def _files_version(self) -> tuple[object, ...]:
        """Another value after each change of a file or its rights, also behind a link."""
        found: list[object] = []
        for path in (self._certificate, self._key):
            try:
                state = path.stat()
                found += [state.st_ino, state.st_mtime_ns, state.st_ctime_ns, state.st_size]
            except OSError:
                found.append(None)
        return tuple(found)

    def _loaded(self) -> ssl.SSLContext:
        # The path of the key is not repeated: what is named like a key is hidden from the log.
        for setting, path in (
            (f"A2A_TLS_CERTIFICATE: {self._certificate}", self._certificate),
            ("A2A_TLS_KEY: the file", self._key),
        ):
            try:
                path.open("rb").close()
            except OSError as exc:
                raise TlsNotUsable(f"{setting} cannot be read ({exc.strerror})") from None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(self._certificate, self._key, password=_no_password)
        except ssl.SSLError as exc:
            if exc.reason == "KEY_VALUES_MISMATCH":
                problem = f"A2A_TLS_KEY: is not the key of {self._certificate}"
            else:
                problem = (
                    f"A2A_TLS_CERTIFICATE: {self._certificate} must be a PEM certificate with its "
                    f"chain, and A2A_TLS_KEY its key ({exc.reason or 'not PEM'})"
                )
            raise TlsNotUsable(problem) from None
        except _HasPassword:
            raise TlsNotUsable(
                "A2A_TLS_KEY: needs a password; decrypt it, for this user only"
            ) from None
        return context


class _HasPassword(Exception):
    pass


def _no_password() -> str:
    """Called for a key with a password; without it OpenSSL would ask on the terminal."""
    raise _HasPassword
