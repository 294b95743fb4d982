"""Who may log in: put together from the settings, the credentials file and the issuer.

`TokenWatch` looks at the credentials file once a second, so that a token counts soon after it was
created, and no longer when it is revoked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import structlog

from .config import Settings
from .credentials import CredentialsFile, CredentialsFileError, StoredToken
from .domain.addresses import discovery_url
from .domain.scopes import DEFAULT_SCOPES, OWN_SCOPES, Scope, UnknownScope, resolve
from .domain.values import Caller, named_principal
from .inbound.security import SecurityScheme, security_schemes
from .web.auth import Credential, Credentials, Identity

if TYPE_CHECKING:
    from .web.oidc import Issuer

logger = structlog.get_logger()

LOOK_SECONDS = 1.0  # between two looks at the credentials file
USED_SECONDS = 60.0  # between two notes of which tokens were used, at least
EVERYBODY = "*"  # in A2A_MTLS_SCOPES and A2A_OIDC_SCOPE_MAP
MTLS_PREFIX = "mtls:"  # of principals, so that nobody gets the name of another kind of caller


def credentials_of(
    settings: Settings, *, tokens: Sequence[StoredToken] = (), issuer: Issuer | None = None
) -> Credentials:
    """Everybody who is known; `tokens` are those of the credentials file."""
    server, roles = settings.server, settings.roles
    known = []
    if server.bearer_token is not None:
        caller = Caller("default", OWN_SCOPES)
        known.append(Credential.bearer(server.bearer_token.get_secret_value(), caller))
    for entry in server.enabled_credentials:
        caller = Caller(entry.principal, resolve(entry.scopes, roles))
        if entry.token is not None:
            made = Credential.api_key if entry.scheme == "api_key" else Credential.bearer
            known.append(made(entry.token.get_secret_value(), caller))
        elif entry.username is not None and entry.password is not None:
            password = entry.password.get_secret_value()
            known.append(Credential.basic(entry.username, password, caller=caller))
    for token in tokens:
        known += _of_stored(token, settings)
    return Credentials(
        known,
        issuer=issuer,
        certificates=CertificateHolders(settings) if server.mtls_header else None,
    )


def _of_stored(token: StoredToken, settings: Settings) -> list[Credential]:
    """A token of the file, which may be sent as a bearer token or as an API key."""
    try:
        caller = Caller(token.principal, resolve(token.scopes, settings.roles))
    except UnknownScope:
        advice = "it has a role that [roles] does not have (any more), so it is not accepted"
        logger.error("credentials.unknown_role", name=token.name, problem=advice)
        return []
    identity = Identity(caller, expires_at=token.expires_at, token_id=token.id)
    digest = bytes.fromhex(token.sha256)
    return [Credential(scheme, digest, identity) for scheme in ("bearer", "api_key")]


class CertificateHolders:
    """Implements `web.auth.Certificates`."""

    def __init__(self, settings: Settings) -> None:
        given = settings.server.mtls_scopes or {EVERYBODY: [*DEFAULT_SCOPES]}
        self._scopes = {name: resolve(names, settings.roles) for name, names in given.items()}

    def holder(self, name: str) -> Caller | None:
        scopes = self._scopes.get(name, self._scopes.get(EVERYBODY))
        principal = named_principal(MTLS_PREFIX, name)
        return Caller(principal, scopes) if scopes is not None and principal is not None else None


def token_scopes(settings: Settings, words: Collection[str]) -> frozenset[str]:
    """What the words of an issuer's token mean here.

    Without a map they are names of scopes and roles. `admin` has to be mapped, also as a part of a
    role: at an issuer the same word may well mean something else.
    """
    oidc, roles = settings.oidc, settings.roles
    if oidc.scope_map:
        mapped = (oidc.scope_map.get(word, ()) for word in (EVERYBODY, *words))
        return resolve([name for names in mapped for name in names], roles)
    known = {*map(str, Scope), *roles}
    return resolve([word for word in words if word in known], roles) - {Scope.ADMIN}


def declared_schemes(settings: Settings, credentials: Credentials) -> tuple[SecurityScheme, ...]:
    """How callers can log in, for cards and OpenAPI."""
    issuer, discovery, schemes = settings.oidc.issuer, None, credentials.schemes
    if issuer is not None:
        discovery = discovery_url(issuer)
        schemes = list(dict.fromkeys(["bearer", *schemes]))
    certificates = bool(settings.server.mtls_header)
    return security_schemes(schemes, discovery_url=discovery, certificates=certificates)


@asynccontextmanager
async def open_issuer(current: Callable[[], Settings]) -> AsyncIterator[Issuer | None]:
    """The OpenID Connect provider, if one is configured; nothing of it is loaded otherwise."""
    oidc = current().oidc
    if oidc.issuer is None:
        yield None
        return
    from .web.oidc import Issuer, OidcPolicy

    policy = OidcPolicy(
        issuer=oidc.issuer,
        audience=tuple(oidc.audience or ()),
        authorized_parties=frozenset(oidc.authorized_parties),
        principal_claim=oidc.principal_claim,
        scopes_claim=oidc.scopes_claim,
    )
    async with Issuer.open(policy, lambda words: token_scopes(current(), words)) as issuer:
        yield issuer


def stored_tokens(settings: Settings) -> tuple[StoredToken, ...]:
    """The tokens of the credentials file that are valid now. CredentialsFileError."""
    if settings.credentials_file is None:
        return ()
    found = CredentialsFile(settings.credentials_file).read()
    return tuple(token for token in found if token.is_valid(time.time()))


class TokenWatch:
    """The tokens of the credentials file, as they are now."""

    def __init__(self, settings: Settings) -> None:
        path = settings.credentials_file
        self._file = CredentialsFile(path) if path is not None else None
        self._version: object = ()  # of what was read last; none yet
        self._problem = ""
        self.tokens: tuple[StoredToken, ...] = ()
        self.look()

    def look(self) -> bool:
        """Read the file if it has changed; whether the tokens are others now.

        A file that cannot be used changes nothing: those who were let in before still are. It is
        tried again each time.
        """
        if self._file is None or (version := self._file.version) == self._version:
            return False
        try:
            found = self._file.read()
        except (CredentialsFileError, OSError) as exc:
            before, self._problem = self._problem, str(exc)
            if self._problem != before:
                advice = "The tokens from before stay valid."
                logger.error("credentials.not_read", problem=self._problem, advice=advice)
            return False
        self._version, self._problem = version, ""
        changed, self.tokens = found != self.tokens, found
        return changed

    @asynccontextmanager
    async def watching(
        self, on_change: Callable[[], None], take_used: Callable[[], dict[str, int]]
    ) -> AsyncIterator[None]:
        """Look at the file while the block lasts, and note when tokens were last used."""
        if self._file is None:
            yield
            return
        watching = asyncio.create_task(self._watch(on_change, take_used))
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await self._note(take_used())

    async def _watch(
        self, on_change: Callable[[], None], take_used: Callable[[], dict[str, int]]
    ) -> None:
        noted_at = time.monotonic()
        is_new = False  # `on_change` was not called yet for the tokens that were read
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                if self.look() or is_new:
                    is_new = True
                    on_change()
                    is_new = False
                if time.monotonic() - noted_at >= USED_SECONDS:
                    noted_at = time.monotonic()
                    await self._note(take_used())
            except Exception:  # one failure must not end the watch
                logger.exception("credentials.internal_error")

    async def _note(self, used: dict[str, int]) -> None:
        if not used or self._file is None:
            return
        try:
            await asyncio.to_thread(self._file.note_used, used)
        except (CredentialsFileError, OSError) as exc:
            logger.info("credentials.use_not_noted", reason=str(exc))
