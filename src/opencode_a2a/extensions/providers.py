"""Which models there are, without anything that would let somebody use them elsewhere."""

from __future__ import annotations

from pydantic import Field

from ..contract.declare import Extension
from ..contract.params import Result
from ..domain.catalog import Model, Provider, Providers
from ..domain.scopes import Scope
from ..domain.values import Caller
from ..errors import InvalidParams
from .services import Services
from .shapes import Name, Placed

PROVIDERS = Extension(
    "opencode-provider-discovery-v1",
    "OpenCode Provider Discovery v1",
    "The model providers OpenCode knows, and their models.",
    "opencode",
    aliases=("urn:opencode-a2a:provider-discovery/v1",),
)


class Which(Placed):
    provider_id: Name | None = Field(default=None, description="Only this one")


class Found(Result):
    default_by_provider: dict[str, str] = Field(
        description="What OpenCode is configured to answer with, or else what it prefers"
    )
    connected: list[str] = Field(description="Providers that can be used now")


class FoundProviders(Found):
    items: list[Provider]


class FoundModels(Found):
    items: list[Model]


@PROVIDERS.method("opencode.providers.list", scope=Scope.SESSIONS_READ, effect="read")
async def list_providers(services: Services, caller: Caller, params: Which) -> FoundProviders:
    """The model providers."""
    found = await _found(services, caller, params)
    return FoundProviders(items=list(found.providers), **_summary(found))


@PROVIDERS.method("opencode.models.list", scope=Scope.SESSIONS_READ, effect="read")
async def list_models(services: Services, caller: Caller, params: Which) -> FoundModels:
    """Their models."""
    found = await _found(services, caller, params)
    return FoundModels(items=list(found.models), **_summary(found))


async def _found(services: Services, caller: Caller, params: Which) -> Providers:
    place = await params.place(services, caller)
    configured = await services.catalog.default_model(place)
    found = (await services.catalog.providers(place)).with_default(configured)
    wanted = params.provider_id
    if wanted is None:
        return found
    providers = tuple(p for p in found.providers if p.provider_id == wanted)
    if not providers:
        raise InvalidParams.at("provider_id", "there is no such provider")
    return Providers(providers, tuple(m for m in found.models if m.provider_id == wanted))


def _summary(found: Providers) -> dict[str, dict[str, str] | list[str]]:
    return {
        "default_by_provider": {
            p.provider_id: p.default_model for p in found.providers if p.default_model
        },
        "connected": [p.provider_id for p in found.providers if p.connected],
    }
