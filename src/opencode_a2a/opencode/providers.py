"""Which model provider answers behind `opencode-a2a up`, if somebody has decided that."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UpstreamError, UpstreamHttpError
from .http import Endpoint, Http
from .process import ManagedProcessFailed

CONFIG_FILES = ("opencode.json", "opencode.jsonc")
CONFIG_VARIABLES = (
    *("OPENCODE_CONFIG", "OPENCODE_CONFIG_CONTENT", "OPENCODE_CONFIG_DIR"),
    *("OPENCODE_AUTH_CONTENT", "OPENCODE_MODELS_URL", "OPENCODE_MODELS_PATH"),
)
SYSTEM_CONFIG = Path("/etc/opencode")
# What a file that chooses a model or brings a provider has in it, in some way or other.
CHOOSES = re.compile(r"model|provider|plugin|agent|extends", re.IGNORECASE)
FIRST_ANSWER_SECONDS = 60.0  # OpenCode loads the directory first; a new home costs most
GATEWAY = "opencode"  # OpenCode's own provider, which is always there


@dataclass(frozen=True, slots=True)
class ChosenProviders:
    names: tuple[str, ...]
    model: str | None  # None: OpenCode decides with every prompt

    def __str__(self) -> str:
        if self.model is not None:
            return self.model
        return f"OpenCode chooses one of {', '.join(self.names)}"


def may_be_configured(environment: Mapping[str, str], directory: Path) -> bool:
    """Whether OpenCode's files may choose a model or hold a key; it is not asked.

    Keys in the environment are not looked at: only OpenCode knows under which names providers
    expect them.
    """
    if any(environment.get(name) for name in CONFIG_VARIABLES):
        return True
    for file in _files(environment, directory):
        try:
            text = file.read_text(errors="replace")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:  # a directory, or not for us: OpenCode will say
            return True
        if file.name == "auth.json" or CHOOSES.search(text):
            return True
    return False


def _files(environment: Mapping[str, str], directory: Path) -> Iterator[Path]:
    home = Path(environment.get("HOME") or Path.home())
    config = Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "opencode"
    data = Path(environment.get("XDG_DATA_HOME") or home / ".local/share") / "opencode"
    yield data / "auth.json"
    yield config / "config.json"
    above = (directory, *directory.parents)
    hidden = (home / ".opencode", *(folder / ".opencode" for folder in above))
    for folder in (config, SYSTEM_CONFIG, *hidden, *above):
        for name in CONFIG_FILES:
            yield folder / name


async def chosen_providers(
    endpoint: Endpoint, directory: Path, *, ignoring: str = ""
) -> ChosenProviders | None:
    """The providers that somebody decided on, leaving one out; raises when OpenCode cannot tell."""
    # OpenCode always lists its own gateway, even offline: key "public", a few free models. Nobody
    # chose that, so it counts only with a key of the user's or if the configured model names it.
    # Others have a key or a config entry, and a model. (`/provider` adds a catalogue of 6 MB.)
    answer: dict[str, Any] = {}
    try:
        async with Http.open(endpoint, timeout=FIRST_ANSWER_SECONDS) as http:
            for path in (["config"], ["config", "providers"]):
                answer |= await http.call("GET", *path, query={"directory": str(directory)})
        found = {(p["id"], p.get("options", {}).get("apiKey")) for p in answer["providers"]}
    except UpstreamHttpError as exc:  # the message may quote a config file, keys and all
        data = exc.body.get("data", {}) if isinstance(exc.body, dict) else {}
        where = data.get("path", "its log") if isinstance(data, dict) else "its log"
        name = exc.facts["name"] or exc.facts["upstream_status"]
        raise ManagedProcessFailed(f"OpenCode answered {name}: look at {where}.") from None
    except (UpstreamError, LookupError, TypeError, ValueError, AttributeError) as exc:
        raise ManagedProcessFailed("OpenCode did not say which providers it has.") from exc
    model = answer.get("model")
    if not isinstance(model, str) or model.startswith(f"{ignoring}/"):
        model = None
    if model is None or not model.startswith(f"{GATEWAY}/"):
        found -= {(GATEWAY, "public")}
    names = tuple(sorted({name for name, _ in found} - {ignoring}))
    return ChosenProviders(names, model) if names else None
