"""Which OpenCode runs behind `opencode-a2a up`, and which model provider answers there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ..domain.catalog import Location
from ..domain.release import Release
from ..errors import ServiceError, UpstreamError, UpstreamHttpError
from .api import Defaults
from .feed import Feed
from .http import Endpoint, Http
from .process import ManagedProcessFailed
from .v2.catalog import Api2

FIRST_ANSWER_SECONDS = 60.0  # OpenCode loads the directory first; a new home costs most
GATEWAY = "opencode"  # OpenCode's own provider, which is always there


@dataclass(frozen=True, slots=True)
class ChosenProviders:
    release: Release
    names: tuple[str, ...]  # of the providers that somebody decided on
    model: str | None  # None: OpenCode decides with every prompt

    def __str__(self) -> str:
        names = ", ".join(self.names)
        if self.model is None:
            return f"OpenCode chooses one of {names}"
        if self.model.partition("/")[0] in self.names:
            return self.model
        return f"{self.model}; for one of {names} set `model` in OpenCode's configuration"


async def chosen_providers(endpoint: Endpoint, directory: Path) -> ChosenProviders:
    """The providers that somebody decided on; raises when OpenCode cannot tell."""
    # OpenCode always lists its own gateway, even offline: key "public", a few free models. Nobody
    # chose that, so it counts only with a key of the user's or if the configured model names it.
    # Others have a key or a config entry, and a model.
    async with Http.open(endpoint, timeout=FIRST_ANSWER_SECONDS) as http:
        try:
            release = await http.probe(FIRST_ANSWER_SECONDS)
        except ServiceError as exc:
            raise ManagedProcessFailed(exc.message) from exc
        read = _read_1 if release.generation == 1 else _read_2
        try:
            providers, configured, default = await read(http, str(directory))
        except UpstreamHttpError as exc:  # the message may quote a config file, keys and all
            data = exc.body.get("data", {}) if isinstance(exc.body, dict) else {}
            where = data.get("path", "its log") if isinstance(data, dict) else "its log"
            name = exc.facts["name"] or exc.facts["upstream_status"]
            raise ManagedProcessFailed(f"OpenCode answered {name}: look at {where}.") from None
        except (UpstreamError, LookupError, TypeError, ValueError, AttributeError) as exc:
            raise ManagedProcessFailed("OpenCode did not say which providers it has.") from exc
    if (configured or "").partition("/")[0] != GATEWAY:
        providers -= {(GATEWAY, "public")}
    names = tuple(sorted(name for name, _ in providers))
    return ChosenProviders(release, names, model=configured or default)


# The providers with their keys, the model that is configured, and the one that answers otherwise.
_Answer: TypeAlias = tuple[set[tuple[str, Any]], str | None, str | None]


async def _read_1(http: Http, directory: str) -> _Answer:
    where = {"directory": directory}  # `/provider` would have a catalogue of 6 MB, too
    config = await http.call("GET", "config", query=where)
    answer = await http.call("GET", "config", "providers", query=where)
    found = {(each["id"], each.get("options", {}).get("apiKey")) for each in answer["providers"]}
    return found, config.get("model"), None


async def _read_2(http: Http, directory: str) -> _Answer:
    api = Api2(http, Feed(http), Defaults(directory))
    default = await api.default_model(Location(directory))  # the lists are complete then
    where = {"location[directory]": directory}
    answer = await http.call("GET", "api", "provider", query=where)
    found = {(each["id"], each.get("settings", {}).get("apiKey")) for each in answer["data"]}
    configured = None
    for document in await http.call("GET", "api", "config", query=where):
        if chosen := document.get("info", {}).get("model"):  # the last one counts
            configured = f"{chosen['providerID']}/{chosen['model']}"
    return found, configured, f"{default.provider}/{default.model}" if default else None
