"""Host names and origins, in the form in which they are compared."""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

_DEFAULT_PORTS = {"http": 80, "https": 443}
_NAME = re.compile(r"[\w-]+(\.[\w-]+)*")


def is_host(text: str) -> bool:
    """Whether this is a name or an address, and nothing more."""
    try:
        ip_address(text)
    except ValueError:
        return _NAME.fullmatch(text) is not None and max(map(len, text.split("."))) <= 63
    return True


@lru_cache(16)  # every request names a host, nearly always the same one
def is_loopback(host: str) -> bool:
    """Whether a name or address is this machine's own, for browsers too."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost" or host.lower().endswith(".localhost")


def host_name(host: str) -> str:
    """The name or address in a Host header, without its port."""
    name = host.strip().lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0].removesuffix(".")


def origin_of(url: str) -> str:
    """The origin of a page at this address, as browsers write it."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if ":" in host:
        host = f"[{host}]"
    port = "" if parts.port in (None, _DEFAULT_PORTS.get(parts.scheme)) else f":{parts.port}"
    return f"{parts.scheme}://{host}{port}"


def url_of_listener(host: str, port: int | str) -> str:
    """Where a service is reached that listens there. Nobody can connect to a wildcard address."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def discovery_url(issuer: str) -> str:
    """Where an OpenID Connect provider publishes its configuration."""
    return f"{issuer.rstrip('/')}/.well-known/openid-configuration"
