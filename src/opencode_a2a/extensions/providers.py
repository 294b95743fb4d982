"""What a request can choose: providers and models (without their keys), agents and commands."""

from __future__ import annotations

from pydantic import Field

from ..contract.declare import Extension
from ..contract.params import Result
from ..domain.catalog import AgentInfo, CommandInfo, Model, Provider, Providers
from ..domain.scopes import Scope
from ..domain.values import Caller
from ..errors import InvalidParams
from .services import Services
from .shapes import LocationParams, Name

PROVIDERS = Extension(
    "opencode-provider-discovery-v1",
    title="OpenCode Provider Discovery v1",
    description="What a request can choose: OpenCode's providers, models, agents and commands.",
    scope="opencode",
    aliases=("urn:opencode-a2a:provider-discovery/v1",),
)


class ProviderFilter(LocationParams):
    provider_id: Name | None = Field(default=None, description="Only this one")


class ProviderSummary(Result):
    default_by_provider: dict[str, str] = Field(
        description="What OpenCode is configured to answer with, or else what it prefers"
    )
    connected: list[str] = Field(description="Providers that can be used now")


class ProviderList(ProviderSummary):
    items: list[Provider]


class ModelList(ProviderSummary):
    items: list[Model]


@PROVIDERS.method("opencode.providers.list", scope=Scope.SESSIONS_READ, effect="read")
async def list_providers(
    services: Services, caller: Caller, params: ProviderFilter
) -> ProviderList:
    """The model providers."""
    found = await _find(services, caller, params=params)
    return ProviderList(
        items=list(found.providers),
        default_by_provider=found.default_models,
        connected=found.connected,
    )


@PROVIDERS.method("opencode.models.list", scope=Scope.SESSIONS_READ, effect="read")
async def list_models(services: Services, caller: Caller, params: ProviderFilter) -> ModelList:
    """Their models."""
    found = await _find(services, caller, params=params)
    return ModelList(
        items=list(found.models),
        default_by_provider=found.default_models,
        connected=found.connected,
    )


async def _find(services: Services, caller: Caller, *, params: ProviderFilter) -> Providers:
    location = await params.location(services, caller)
    configured = await services.catalog.default_model(location)
    found = (await services.catalog.providers(location)).with_default(configured)
    wanted = params.provider_id
    if wanted is None:
        return found
    providers = tuple(p for p in found.providers if p.provider_id == wanted)
    if not providers:
        raise InvalidParams.at("provider_id", "there is no such provider")
    return Providers(providers, tuple(m for m in found.models if m.provider_id == wanted))


class AgentList(Result):
    items: list[AgentInfo]


@PROVIDERS.method("opencode.agents.list", scope=Scope.SESSIONS_READ, effect="read")
async def list_agents(services: Services, caller: Caller, params: LocationParams) -> AgentList:
    """The agents, the default one first, without those that OpenCode keeps for itself."""
    location = await params.location(services, caller)
    found = await services.catalog.agents(location)
    return AgentList(items=[agent for agent in found if not agent.hidden])


class CommandList(Result):
    items: list[CommandInfo]


@PROVIDERS.method("opencode.commands.list", scope=Scope.SESSIONS_READ, effect="read")
async def list_commands(services: Services, caller: Caller, params: LocationParams) -> CommandList:
    """The commands that opencode.sessions.command runs."""
    location = await params.location(services, caller)
    return CommandList(items=list(await services.catalog.commands(location)))
