"""How a caller can log in, as the cards and OpenAPI declare it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..contract.declare import Json


@dataclass(frozen=True, slots=True)
class SecurityScheme:
    """One way to log in, each of which is enough by itself."""

    name: str
    v1: Json  # as A2A 1.0 writes it
    v03: Json  # as A2A 0.3 and OpenAPI write it


def security_schemes(
    schemes: Sequence[str], *, discovery_url: str | None = None, certificates: bool = False
) -> tuple[SecurityScheme, ...]:
    """The declared schemes; `schemes` are those in which a secret is presented."""
    found = [_of_secret(scheme) for scheme in schemes]
    if discovery_url is not None:
        url = {"openIdConnectUrl": discovery_url}
        found.append(_scheme("openIdConnect", "openIdConnectSecurityScheme", v1=url, v03=url))
    if certificates:
        found.append(_scheme("mutualTLS", "mtlsSecurityScheme", v1={}, v03={}))
    return tuple(found)


def requirements(schemes: Sequence[SecurityScheme]) -> list[Json]:
    """As A2A 0.3 and OpenAPI write them: any one of the schemes is enough."""
    return [{scheme.name: []} for scheme in schemes]


def _of_secret(scheme: str) -> SecurityScheme:
    if scheme == "api_key":
        key = {"name": "X-API-Key"}
        return SecurityScheme(
            "apiKey",
            v1={"apiKeySecurityScheme": {"location": "header", **key}},
            v03={"type": "apiKey", "in": "header", **key},
        )
    return SecurityScheme(
        scheme,
        v1={"httpAuthSecurityScheme": {"scheme": scheme}},
        v03={"type": "http", "scheme": scheme},
    )


def _scheme(name: str, member: str, v1: Json, v03: Json) -> SecurityScheme:
    return SecurityScheme(name, v1={member: v1}, v03={"type": name, **v03})
