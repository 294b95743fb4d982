"""From settings to peers that can be called. Nothing here loads the client."""

from __future__ import annotations

import base64
import os
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import urlsplit

from .config import (
    ClientSettings,
    ConfigError,
    Outbound,
    PeerSetting,
    Settings,
    secrets_directory,
)
from .domain.addresses import is_loopback, origin_of
from .outbound.egress import Egress
from .outbound.failures import PeerNotAllowed
from .outbound.target import CallablePeers, Login, PeerLimits, Target
from .redaction import is_secret_name


def egress_of(outbound: Outbound) -> Egress:
    return Egress(
        allowed_hosts=frozenset(host.lower() for host in outbound.allowed_hosts),
        allow_private=outbound.allow_private_hosts,
    )


def limits_of(outbound: Outbound) -> PeerLimits:
    return PeerLimits(request_seconds=outbound.timeout_seconds)


def find_target(settings: ClientSettings, word: str) -> Target:
    """The peer with this name or address; ConfigError if there is none."""
    outbound = settings.outbound
    if (peer := settings.peers.get(word)) is not None:
        return target_of(word, peer, outbound)
    url = _url(word)
    if url is None:
        raise ConfigError([_unknown(word, list(settings.peers))])
    headers: dict[str, str] = {}
    if outbound.bearer_token is not None:
        headers["Authorization"] = f"Bearer {outbound.bearer_token.get_secret_value()}"
    elif outbound.basic_auth is not None:
        headers["Authorization"] = _basic(outbound.basic_auth.get_secret_value())
    target = _target(url, outbound)
    return replace(target, login=Login(origins_of(url), tuple(headers.items())))


def callable_peers(settings: Settings, *own_urls: str) -> CallablePeers | None:
    """The peers that the model may call, or None; ConfigError if a credential cannot be read.

    `own_urls` are those of this service and of its OpenCode, which are no peers.
    """
    outbound = settings.outbound
    named = any(peer.model_may_call for peer in settings.peers.values())
    if settings.server.max_call_depth <= 0 or not (named or outbound.allow_any_peer):
        return None
    targets = {
        name: target_of(name, peer, outbound)
        for name, peer in settings.peers.items()
        if peer.model_may_call
    }

    def by_address(word: str) -> Target:
        """Of an address that is not configured: never with a credential, never a private host."""
        try:
            url = _url(word)
        except ConfigError as exc:
            raise PeerNotAllowed(exc.problems[0]) from None
        assert url is not None  # it has a scheme
        return replace(_target(url, outbound), name=url, named=False)

    return CallablePeers(
        targets,
        by_address=by_address if outbound.allow_any_peer else None,
        own_origins=frozenset().union(*map(origins_of, own_urls)),
    )


def target_of(name: str, peer: PeerSetting, outbound: Outbound) -> Target:
    """A configured peer; ConfigError if its credential cannot be read."""
    headers = dict(peer.headers)
    if peer.bearer_token is not None:
        headers["Authorization"] = f"Bearer {_secret(name, peer.bearer_token)}"
    elif peer.basic_auth is not None:
        headers["Authorization"] = _basic(_secret(name, peer.basic_auth))
    elif peer.api_key is not None:
        headers[peer.api_key_header] = _secret(name, peer.api_key)
    secrets = [
        value.split()[-1]  # without the scheme
        for field, value in headers.items()
        if value.strip() and (field == peer.api_key_header or is_secret_name(field))
    ]
    origins = origins_of(peer.url) | frozenset(peer.credential_origins)
    target = _target(peer.url, outbound)
    return replace(
        target,
        name=name,
        login=Login(origins, tuple(headers.items()), tuple(secrets)),
        line=peer.line,
        transports=(peer.transport,) if peer.transport else target.transports,
    )


def _target(url: str, outbound: Outbound) -> Target:
    return Target(url, transports=tuple(outbound.supported_transports))


def _url(word: str) -> str | None:
    """The address that a person means; `localhost:8000` is one, too."""
    if "://" not in word and not {".", ":"} & set(word) and word != "localhost":
        return None
    try:
        if "://" not in word:
            host = urlsplit(f"//{word}").hostname or ""
            word = f"{'http' if is_loopback(host) else 'https'}://{word}"
        parts = urlsplit(word)
        _ = parts.port
    except ValueError:
        raise ConfigError([f"{word}: is no URL"]) from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError([f"{word}: is no http or https URL"])
    if "@" in parts.netloc:
        raise ConfigError(
            [f"{parts.hostname}: leave the login out of the URL; set A2A_CLIENT_BASIC_AUTH"]
        )
    return parts._replace(fragment="").geturl().rstrip("/")


def origins_of(url: str) -> frozenset[str]:
    """Where a credential for this address may go.

    That is its origin, the same host over TLS, and for `localhost` the addresses it stands for.
    """
    parts = urlsplit(url)
    found = {origin_of(url)}
    if parts.scheme == "http" and parts.port in (None, 80):
        found.add(origin_of(f"https://{parts.netloc.removesuffix(':80')}"))
    if parts.hostname == "localhost":
        port = f":{parts.port}" if parts.port else ""
        found |= {f"{parts.scheme}://{host}{port}" for host in ("127.0.0.1", "[::1]")}
    return frozenset(found)


def _unknown(word: str, names: list[str]) -> str:
    if similar := get_close_matches(word, names, n=1):
        return f"{word}: there is no such peer; did you mean {similar[0]}?"
    there_are = f"there are {', '.join(sorted(names))}" if names else "none is configured"
    return f"{word}: is neither a URL nor a configured peer; {there_are}"


def _secret(name: str, reference: str) -> str:
    kind, _, place = reference.partition(":")
    if kind == "env" and place not in os.environ and (copies := secrets_directory(None)):
        place = str(copies / place)  # systemd hands credentials over as files
        kind = "file"
    if kind == "env":
        found = os.environ.get(place, "").strip()
        problem = f"{place} is not set"
    else:
        try:
            found = Path(place).expanduser().read_text(encoding="utf-8").strip()
            problem = f"{place} is empty"
        except (OSError, UnicodeDecodeError) as exc:
            found, problem = "", f"{place} cannot be read ({getattr(exc, 'strerror', 'no text')})"
    if not found:
        raise ConfigError([f"[peers.{name}]: {problem}"])
    return found


def _basic(login: str) -> str:
    return f"Basic {base64.b64encode(login.encode()).decode()}"
