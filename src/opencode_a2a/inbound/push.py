"""Push configs and notifications on the wire: what each line calls them.

A notification of 1.0 is a `StreamResponse`: the event, and at the end the whole task. One of 0.3 is
the task, as far as the event tells it; events that only add to an artifact are sent as they are.
Secrets of a config are taken and never shown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

import orjson
from pydantic import Field

from ..contract.declare import Json
from ..domain.push import WEB_PUSH, WEB_PUSH_BODY, BrowserKeys, DuePush, PushConfig, PushTarget
from ..domain.task import Task
from ..domain.updates import Ended, LogEntry
from ..domain.values import TaskState
from ..errors import InvalidParams
from .dialect import V03, V1, Dialect
from .parse import AuthenticationIn, MaybeId, PushConfigIn, Wire
from .render import Renderer

_HEADER_VALUE = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")
_SCHEME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def target_of(
    given: PushConfigIn, where: str, *, renderer: Renderer, every_event: bool
) -> PushTarget:
    """What is registered; `where` it stands, and how the client wants to see its task."""
    if not given.url:
        raise InvalidParams.at(f"{where}url", "is required")
    authentication = given.authentication or AuthenticationIn()
    scheme = authentication.scheme or next(iter(authentication.schemes), None) or None
    credentials = authentication.credentials or None
    if scheme is not None and _SCHEME.fullmatch(scheme) is None:
        raise InvalidParams.at(f"{where}authentication.scheme", "must be one word")
    if scheme is None and credentials is not None:
        raise InvalidParams.at(f"{where}authentication.scheme", "is required with credentials")
    for name, value in (("token", given.token), ("authentication.credentials", credentials)):
        if value and _HEADER_VALUE.fullmatch(value) is None:
            raise InvalidParams.at(
                f"{where}{name}", "must be printable ASCII: it is sent in a header"
            )
    if (scheme or "").lower() == WEB_PUSH:
        try:
            BrowserKeys.read(credentials)
        except ValueError as exc:
            raise InvalidParams.at(f"{where}authentication.credentials", str(exc)) from None
    return PushTarget(
        url=given.url,
        id=given.id or None,
        token=given.token or None,
        scheme=scheme,
        credentials=credentials,
        line=renderer.dialect.version,
        every_event=every_event,
        hints=renderer.hints,
        hitl=renderer.hitl,
    )


class _Named(Wire):
    """What 0.3 over REST wraps around a config."""

    push_notification_config: PushConfigIn | None = None


class CreatePushParams(PushConfigIn):
    """1.0 has the config itself, 0.3 has it below `pushNotificationConfig`."""

    task_id: MaybeId = None
    push_notification_config: PushConfigIn | None = Field(default=None, description="0.3")
    config: _Named | None = Field(default=None, description="0.3 over REST")
    config_id: MaybeId = Field(default=None, description="0.3 over REST")

    def given(self, dialect: Dialect) -> tuple[str, PushConfigIn, str]:
        """The task, the config, and where it stands in the request."""
        if not self.task_id:
            raise InvalidParams.at("taskId", "is required")
        if dialect.version == "1.0":
            return self.task_id, self, ""
        if self.push_notification_config is not None:
            return self.task_id, self.push_notification_config, "pushNotificationConfig."
        inner = self.config.push_notification_config if self.config is not None else None
        if inner is None:
            raise InvalidParams.at("pushNotificationConfig", "is required")
        if not inner.id and self.config_id:
            inner = inner.model_copy(update={"id": self.config_id})
        return self.task_id, inner, "config.pushNotificationConfig."


class PushParams(Wire):
    """Names a task and, except to list, one of its configs."""

    id: MaybeId = Field(default=None, description="The config; in 0.3 the task")
    task_id: MaybeId = None
    config_id: MaybeId = None
    push_notification_config_id: MaybeId = Field(default=None, description="0.3: the config")

    def task(self, dialect: Dialect) -> str:
        found, name = (self.id, "id") if dialect is V03 else (self.task_id, "taskId")
        if not found:
            raise InvalidParams.at(name, "is required")
        return found

    def config(self, dialect: Dialect) -> str | None:
        if dialect is V03:
            return self.push_notification_config_id or None
        return self.config_id or self.id or None

    def one_config(self, dialect: Dialect) -> str:
        found = self.config(dialect)
        if found is None:
            name = "pushNotificationConfigId" if dialect is V03 else "id"
            raise InvalidParams.at(name, "is required")
        return found


class ListPushParams(Wire):
    id: MaybeId = Field(default=None, description="0.3: the task")
    task_id: MaybeId = None
    page_size: int | None = Field(default=None, ge=0, le=100)
    page_token: str | None = Field(default=None, max_length=255)

    def task(self, dialect: Dialect) -> str:
        return PushParams(id=self.id, task_id=self.task_id).task(dialect)


def config_json(config: PushConfig, dialect: Dialect) -> Json:
    """A config as its line writes it, without its secrets."""
    target, task_id = config.target, config.head.id
    inner: Json = {"id": config.id, "url": target.url}
    if dialect.version == "1.0":
        if target.scheme is not None:
            inner["authentication"] = {"scheme": target.scheme}
        return {"taskId": task_id, **inner}
    if target.scheme is not None:
        inner["authentication"] = {"schemes": [target.scheme]}
    if dialect is V03:
        return {"taskId": task_id, "pushNotificationConfig": inner}
    name = f"tasks/{task_id}/pushNotificationConfigs/{config.id}"
    return {"name": name, "pushNotificationConfig": inner}


class PushRenderer:
    """Implements `domain.push.RenderPush`."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._renderers: dict[tuple[Any, ...], Renderer] = {}

    def __call__(self, due: DuePush, entry: LogEntry, state: TaskState) -> bytes | None:
        target, head = due.config.target, due.config.head
        renderer = self._renderer(target.line, hints=target.hints, hitl=target.hitl)
        event = renderer.event(head, entry, state)
        entry.encoded.clear()  # nobody else has this entry
        told = (target.every_event and not target.is_browser) or entry.state is not None
        if event is None or not told:
            return None
        if target.is_browser and not (state.terminal or state is TaskState.INPUT_REQUIRED):
            return None  # each is shown to a person
        body = _body(renderer, event, due.task if isinstance(entry.update, Ended) else None)
        if len(body) > (WEB_PUSH_BODY if target.is_browser else self._max_bytes):
            body = _body(renderer, renderer.last_status(head, entry, state), None)
        return body

    def _renderer(self, line: Literal["1.0", "0.3"], *, hints: bool, hitl: bool) -> Renderer:
        key = (line, hints, hitl)
        if key not in self._renderers:
            dialect = V1 if line == "1.0" else V03
            self._renderers[key] = Renderer(dialect, hints=hints, hitl=hitl)
        return self._renderers[key]


def _body(renderer: Renderer, event: bytes, task: Task | None) -> bytes:
    if task is not None:
        return renderer.first(task, history_length=0)
    if renderer.dialect.version == "1.0":
        return event
    told: Json = orjson.loads(event)
    if told.get("kind") != "status-update":
        return event
    task_json = {"kind": "task", "id": told["taskId"], "contextId": told["contextId"]}
    for name in ("status", "metadata"):
        if name in told:
            task_json[name] = told[name]
    return orjson.dumps(task_json)


def page_of(
    configs: Sequence[PushConfig], *, size: int | None, token: str | None
) -> tuple[Sequence[PushConfig], str]:
    """One page of a list, and the token of the next."""
    ids = [config.id for config in configs]
    if token and token not in ids:
        raise InvalidParams.at("pageToken", "is not one of ours")
    first = ids.index(token) + 1 if token else 0
    last = first + (size or len(ids))
    return configs[first:last], ids[last - 1] if last < len(ids) else ""
