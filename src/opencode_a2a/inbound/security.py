"""How a caller can log in, as the cards and OpenAPI declare it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..contract.declare import Json


@dataclass(frozen=True, slots=True)
class SecurityScheme:
    """One way to log in, each of which is enough by itself."""

    name: str
    v1: Json  # as A2A 1.0 writes it
    v03: Json  # as A2A 0.3 and OpenAPI write it


@dataclass(frozen=True, slots=True)
class OidcFacts:
    """Where clients get the tokens of an OpenID Connect provider."""

    discovery_url: str
    scopes: Mapping[str, str]  # what a token can be good for, and what that means
    token_url: str | None = None
    authorization_url: str | None = None


def security_schemes(
    schemes: Sequence[str], *, oidc: OidcFacts | None = None, certificates: bool = False
) -> tuple[SecurityScheme, ...]:
    """The declared schemes; `schemes` are those in which a secret is presented."""
    found = [_of_secret(scheme) for scheme in schemes]
    if oidc is not None:
        url = {"openIdConnectUrl": oidc.discovery_url}
        found.append(_scheme("openIdConnect", "openIdConnectSecurityScheme", v1=url, v03=url))
        if oidc.token_url is not None:
            found.append(_oauth2(oidc, oidc.token_url))
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


def _oauth2(oidc: OidcFacts, token_url: str) -> SecurityScheme:
    flow: Json = {"tokenUrl": token_url, "scopes": dict(oidc.scopes)}
    if oidc.authorization_url is None:
        flows = newer = {"clientCredentials": flow}
    else:
        flow["authorizationUrl"] = oidc.authorization_url
        flows, newer = (
            {"authorizationCode": flow},
            {"authorizationCode": {**flow, "pkceRequired": True}},
        )
    return _scheme("oauth2", "oauth2SecurityScheme", v1={"flows": newer}, v03={"flows": flows})


def _scheme(name: str, member: str, v1: Json, v03: Json) -> SecurityScheme:
    return SecurityScheme(name, v1={member: v1}, v03={"type": name, **v03})
