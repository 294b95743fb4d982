"""Calls declared methods: checks that one is enabled, the caller's scope, and the parameters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Protocol

from ..domain.release import Release
from ..errors import AuthorizationForbidden, MethodDisabled
from .declare import Extension, Method
from .params import Result, validated

ALL_NODES = "all"  # a fact of a method: `items` of every node, `missing` those that did not answer


class HasScopes(Protocol):
    """The part of a caller that is checked here."""

    @property
    def scopes(self) -> Collection[str]: ...


def require_scope(caller: HasScopes, scope: str, *, or_scope: str | None = None) -> None:
    if scope not in caller.scopes and or_scope not in caller.scopes:
        raise AuthorizationForbidden(
            f"This credential lacks the scope {scope}.", required_scope=scope
        )


class Contract:
    """The declared methods, which of them this deployment has enabled, and their services."""

    def __init__(
        self,
        extensions: Iterable[Extension],
        enabled: Collection[str],
        services: Any = None,
        release: Callable[[], Release | None] = lambda: None,
    ) -> None:
        """`release`: of the OpenCode that is connected, or was last."""
        self.extensions = tuple(extensions)
        self._enabled = enabled
        self._services = services
        self.release = release
        self._methods = {m.name: m for extension in self.extensions for m in extension.methods}

    def __contains__(self, name: str) -> bool:
        return name in self._methods

    def changes(self, name: str) -> bool:
        """Whether a method changes something; its scope says that unless its effect does."""
        method = self._methods[name]
        effect = method.facts.get("effect")
        return not method.scope.endswith(":read") if effect is None else effect != "read"

    def lists_all_nodes(self, name: str) -> bool:
        """Whether the `items` of its result are those of every node, or else of the asked one."""
        return self._methods[name].facts.get("nodes") == ALL_NODES

    def limit_of(self, name: str, params: Mapping[str, Any]) -> int | None:
        """How many items are asked for; None where there is no limit."""
        field = self._methods[name].params.model_fields.get("limit")
        limit: int | None = params.get("limit", field.default if field is not None else None)
        return limit

    def streams(self, name: str) -> bool:
        """Whether a method answers with events, or else with one result."""
        return self._methods[name].streams

    def enabled(self, method: Method) -> bool:
        return self._is_on(method) and not self.lacks(method)

    def lacks(self, method: Method) -> bool:
        """Whether the connected OpenCode does not have what a method needs."""
        release = self.release()
        return release is not None and method.needs in release.lacks

    def has_set(self, setting: str) -> bool:
        """Whether this deployment has switched on what this setting is the toggle of."""
        return setting in self._enabled

    def _is_on(self, method: Method) -> bool:
        return method.toggle is None or self.has_set(method.toggle.setting)

    @property
    def available(self) -> list[str]:
        """The names of the methods that can be called here."""
        return [name for name, method in self._methods.items() if self.enabled(method)]

    async def call(self, name: str, caller: HasScopes, params: Any) -> Result:
        result: Result = await self._run(name, caller, params)
        return result

    async def open(
        self, name: str, caller: HasScopes, params: Any, *, last_event_id: str | None
    ) -> Any:
        """What a stream is made of. It begins after the event that `after` or the header names."""
        if last_event_id is not None:
            params = {"after": last_event_id, **(params or {})}
        return await self._run(name, caller, params)

    async def _run(self, name: str, caller: HasScopes, params: Any) -> Any:
        method = self._methods[name]
        if method.toggle is not None and not self._is_on(method):
            raise MethodDisabled(
                f"{name} is switched off: {method.toggle.reason}",
                method=name,
                setting=method.toggle.setting,
            )
        if method.needs is not None and self.lacks(method):
            raise MethodDisabled(method.needs.effect, method=name)
        require_scope(caller, method.scope, or_scope=method.or_scope)
        return await method.run(self._services, caller, validated(method.params, params))
