"""From A2A's shapes to our types. Every wrong field is named, nothing is guessed.

Unknown members are ignored, as both protocol lines ask, except where ignoring
would change the meaning: a part must hold exactly one known content.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import CoreSchema, core_schema

from ..contract.params import MOST_PARTS, Directory, SessionId, WorkspaceId, validated
from ..domain.values import (
    CallPath,
    Data,
    FileBytes,
    FileUrl,
    Message,
    ModelRef,
    OutputModes,
    Part,
    RequestOptions,
    Role,
    TaskQuery,
    Text,
)
from ..errors import InvalidParams, PushNotificationNotSupported
from ..service.tasks import Request
from .dialect import V03_REST, Dialect

MAX_URL = 2_048
MAX_SECRET = 4_096

_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f]")


def _one_line(value: str) -> str:
    if _CONTROL_CHARACTER.search(value):
        raise ValueError("must not hold control characters")
    return value


_ONE_LINE = {"pattern": r"^[^\x00-\x1f\x7f]*$"}
Id = Annotated[
    str,
    Field(min_length=1, max_length=255, json_schema_extra=_ONE_LINE),
    AfterValidator(_one_line),
]
MaybeId = (
    Annotated[str, Field(max_length=255, json_schema_extra=_ONE_LINE), AfterValidator(_one_line)]
    | None
)
Schema = dict[str, Any]


class Wire(BaseModel):
    """camelCase on the wire; snake_case is understood too, and null means absent."""

    # Built when first used, as `Params` are.
    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, strict=True, defer_build=True
    )

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        if isinstance(value, dict):
            return {k: v for k, v in value.items() if v is not None or k == "data"}
        return value

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> Schema:
        """As clients should write it: what is absent is left out, and one content is named."""
        schema: Schema = handler.resolve_ref_schema(handler(core_schema))
        for name, about in schema["properties"].items():
            schema["properties"][name] = _present(about)
        cls.describe(schema)
        return schema

    @classmethod
    def describe(cls, schema: Schema) -> None:
        """Say in the published schema what the types alone do not."""


def _present(about: Schema) -> Schema:
    """The schema of a member that is there."""
    present = {key: value for key, value in about.items() if key not in ("anyOf", "default")}
    options: list[Schema] = [o for o in about.get("anyOf", [{}]) if o != {"type": "null"}]
    kept = {"default": about["default"]} if about.get("default") is not None else {}
    if len(options) == 1:
        return options[0] | present | kept
    return present | kept | {"anyOf": options}


class File03(Wire):
    content: str | None = Field(
        default=None, validation_alias=AliasChoices("bytes", "fileWithBytes")
    )
    # The protobuf's own name. The Python SDK 1.x alone writes it, over 0.3 REST, and it puts base64
    # into that field of bytes, which ProtoJSON encodes once more. JSON names hold base64 once.
    proto_content: SkipJsonSchema[str | None] = Field(
        default=None, validation_alias="file_with_bytes"
    )
    uri: str | None = Field(
        default=None, validation_alias=AliasChoices("uri", "fileWithUri", "file_with_uri")
    )
    mime_type: str | None = None
    name: str | None = None

    @classmethod
    def describe(cls, schema: Schema) -> None:
        over_rest = {"bytes": "fileWithBytes", "uri": "fileWithUri"}
        schema["properties"] |= {
            new: schema["properties"][old] | {"description": f"What 0.3 over REST calls `{old}`"}
            for old, new in over_rest.items()
        }
        schema["oneOf"] = [{"required": [name]} for pair in over_rest.items() for name in pair]

    @model_validator(mode="after")
    def _one_content(self) -> File03:
        contents = (self.content, self.proto_content, self.uri)
        if sum(content is not None for content in contents) != 1:
            raise ValueError("needs either bytes or uri")
        return self

    def content_in(self, dialect: Dialect, where: str) -> str | None:
        """The content of the file, encoded once, or None where a uri says where it is."""
        if self.proto_content is None or dialect is not V03_REST:
            return self.content if self.content is not None else self.proto_content
        try:
            inner = base64.b64decode(self.proto_content, validate=True)
            base64.b64decode(inner, validate=True)
        except ValueError:
            raise InvalidParams.at(
                f"{where}.file.file_with_bytes",
                "must be base64 of base64, as the Python SDK writes it under this name; send "
                "base64 as fileWithBytes",
            ) from None
        return inner.decode("ascii")


CONTENTS = ("text", "raw", "url", "file", "data")


class PartIn(Wire):
    """A part of either line; which line's shape it has decides how it is read."""

    kind: Literal["text", "file", "data"] | None = None
    text: str | None = Field(default=None, json_schema_extra={"minLength": 1})
    raw: str | None = None
    url: str | None = None
    file: File03 | None = None
    data: Any = None
    media_type: str | None = None
    filename: str | None = None
    metadata: dict[str, Any] | None = None

    @classmethod
    def describe(cls, schema: Schema) -> None:
        schema["oneOf"] = [{"required": [name]} for name in CONTENTS]

    @model_validator(mode="after")
    def _one_content(self) -> PartIn:
        contents = [name for name in CONTENTS if name in self.model_fields_set]
        if len(contents) != 1:
            raise ValueError("must hold exactly one of text, file (raw, url) or data")
        if self.kind is not None and self.kind != contents[0]:
            raise ValueError(f"is of kind {self.kind} but holds {contents[0]}")
        if self.text == "":
            raise ValueError("text must not be empty")
        return self

    def part(self, dialect: Dialect, where: str) -> Part:
        about = (self.media_type, self.filename, self.metadata)
        if self.text is not None:
            return Text(self.text, *about)
        if self.raw is not None:
            return FileBytes(self.raw, *about)
        if self.url is not None:
            return FileUrl(self.url, *about)
        if self.file is not None:
            about = (self.file.mime_type, self.file.name, self.metadata)
            content = self.file.content_in(dialect, where)
            if content is not None:
                return FileBytes(content, *about)
            return FileUrl(self.file.uri or "", *about)
        value = self.data
        if dialect.nested_data and isinstance(value, dict) and value.keys() == {"data"}:
            value = value["data"]
        return Data(value, *about)


class SessionOption(Wire):
    id: SessionId | None = None


class ModelOption(Wire):
    providerID: Id
    modelID: Id


class WorkspaceOption(Wire):
    id: WorkspaceId | None = None


class SharedOptions(Wire):
    session: SessionOption = Field(default_factory=SessionOption)
    model: ModelOption | None = None


class OpenCodeOptions(Wire):
    directory: Directory | None = None
    workspace: WorkspaceOption = Field(default_factory=WorkspaceOption)
    agent: Id | None = None
    variant: Id | None = None
    new_task: bool = Field(
        default=False,
        description="Start a new task, although a task of the context waits for an answer",
    )
    isolation: Literal["worktree", "none"] | None = Field(
        default=None, description="With the first message of a context: a git worktree of its own"
    )
    node: Id | None = Field(
        default=None,
        description="With the first message of a context: a label or the name of the node that "
        "does it",
    )


class RequestMetadata(Wire):
    """What is read of metadata; the rest is somebody else's."""

    shared: SharedOptions = Field(default_factory=SharedOptions)
    opencode: OpenCodeOptions = Field(default_factory=OpenCodeOptions)


class _ReadAs:
    """Marks what is kept as it came, and says in the published schema what is read of it."""

    def __init__(self, shape: type[Wire]) -> None:
        self._shape = shape

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        published = handler.generate_schema(self._shape)
        return core_schema.json_or_python_schema(published, handler(source))


Metadata = Annotated[dict[str, Any], _ReadAs(RequestMetadata)] | None


class MessageIn(Wire):
    message_id: Id
    role: Literal["user", "ROLE_USER"]
    parts: list[PartIn] = Field(min_length=1, max_length=MOST_PARTS)
    context_id: MaybeId = None
    task_id: MaybeId = None
    metadata: Metadata = None
    extensions: list[str] = []
    reference_task_ids: list[str] = []

    @classmethod
    def describe(cls, schema: Schema) -> None:
        about = {"description": "What 0.3 over REST calls `parts`"}
        schema["properties"]["content"] = schema["properties"]["parts"] | about
        schema["required"].remove("parts")
        schema["anyOf"] = [{"required": [name]} for name in ("parts", "content")]

    @model_validator(mode="before")
    @classmethod
    def _content_is_parts(cls, value: Any) -> Any:
        if isinstance(value, dict) and "content" in value and "parts" not in value:
            return {**value, "parts": value["content"]}
        return value


class AuthenticationIn(Wire):
    scheme: str | None = Field(default=None, max_length=64)
    schemes: list[str] = Field(default=[], max_length=8, description="What 0.3 has for `scheme`")
    credentials: str | None = Field(default=None, max_length=MAX_SECRET)


class PushConfigIn(Wire):
    """Where a client wants to be told about a task, in either line."""

    id: MaybeId = Field(default=None, description="Without one it is chosen here")
    url: str | None = Field(default=None, min_length=1, max_length=MAX_URL)
    token: str | None = Field(
        default=None,
        max_length=MAX_SECRET,
        description="Sent with every notification as `X-A2A-Notification-Token`",
    )
    authentication: AuthenticationIn | None = None


class Configuration(Wire):
    accepted_output_modes: list[str] = []
    history_length: int | None = Field(default=None, ge=0)
    blocking: bool | None = None
    return_immediately: bool = False
    task_push_notification_config: PushConfigIn | None = Field(
        default=None, description="1.0; refused where push notifications are off"
    )
    push_notification_config: PushConfigIn | None = Field(
        default=None, description="The same in 0.3"
    )
    push_notification: PushConfigIn | None = Field(
        default=None, description="The same in 0.3 over REST"
    )

    @property
    def push(self) -> tuple[str, PushConfigIn] | None:
        """What a client has written under one of three names, and where."""
        for name in _PUSH_MEMBERS:
            if (given := getattr(self, name)) is not None:
                return f"configuration.{to_camel(name)}.", given
        return None


_PUSH_MEMBERS = ("task_push_notification_config", "push_notification_config", "push_notification")


class SendParams(Wire):
    # `request` is what the 0.3 protobuf calls it, and a client in use writes it so.
    message: MessageIn = Field(validation_alias=AliasChoices("message", "request"))
    configuration: Configuration = Field(default_factory=Configuration)
    metadata: Metadata = None


class _BothOptions(BaseModel, defer_build=True):
    class Message(BaseModel, defer_build=True):
        metadata: RequestMetadata

    metadata: RequestMetadata
    message: Message


def _metadata(request: Any, message: Any) -> tuple[RequestMetadata, RequestMetadata] | None:
    """What the metadata of a request and of its message ask for; None where there is none."""
    if not request and not message:
        return None
    given = {"metadata": request or {}, "message": {"metadata": message or {}}}
    both = validated(_BothOptions, given)
    return both.metadata, both.message.metadata


def _options(here: RequestMetadata, there: RequestMetadata) -> RequestOptions:
    """What a request asks for: its own metadata counts more than its message's."""
    model = here.shared.model or there.shared.model
    return RequestOptions(
        session=here.shared.session.id or there.shared.session.id,
        model=ModelRef(model.providerID, model.modelID) if model is not None else None,
        agent=here.opencode.agent or there.opencode.agent,
        variant=here.opencode.variant or there.opencode.variant,
        directory=here.opencode.directory or there.opencode.directory,
        workspace=here.opencode.workspace.id or there.opencode.workspace.id,
        isolation=here.opencode.isolation or there.opencode.isolation,
        node=here.opencode.node or there.opencode.node,
    )


def check_idempotency_key(key: str | None) -> None:
    if key is not None and not 0 < len(key) <= 255:
        raise InvalidParams.at("Idempotency-Key", "must have 1 to 255 characters")


def no_push() -> PushNotificationNotSupported:
    return PushNotificationNotSupported("This agent does not send push notifications.")


class Send:
    """A request to send a message, in our types."""

    def __init__(
        self, dialect: Dialect, params: SendParams, idempotency_key: str | None, path: CallPath
    ) -> None:
        given, wanted = params.message, params.configuration
        self.push = wanted.push
        parts = enumerate(given.parts)
        message = Message(
            message_id=given.message_id,
            role=Role.USER,
            parts=tuple(part.part(dialect, f"message.parts[{index}]") for index, part in parts),
            metadata=given.metadata,
            extensions=tuple(given.extensions),
            reference_task_ids=tuple(given.reference_task_ids),
        )
        metadata = _metadata(params.metadata, given.metadata)
        self.request = Request(
            message,
            context_id=given.context_id or None,
            task_id=given.task_id or None,
            modes=OutputModes(tuple(wanted.accepted_output_modes)),
            idempotency_key=idempotency_key,
            options=_options(*metadata) if metadata else RequestOptions(),
            new_task=any(each.opencode.new_task for each in metadata or ()),
            path=path,
        )
        self.history_length = history(dialect, wanted.history_length)
        # ProtoJSON leaves out what is false, so in 0.3 over REST a configuration that does not
        # ask to block asks not to; nobody who gave none at all meant that.
        blocking = wanted.blocking
        if blocking is None and dialect is V03_REST and "configuration" in params.model_fields_set:
            blocking = False
        self.blocking = not wanted.return_immediately and blocking is not False


class TaskIdParams(Wire):
    id: Id


class TaskParams(TaskIdParams):
    history_length: int | None = Field(default=None, ge=0)


class ListParams(Wire):
    context_id: MaybeId = None
    status: str | None = None
    status_timestamp_after: str | None = None
    page_size: int | None = Field(default=None, ge=1, le=100)
    page_token: str | None = None
    history_length: int | None = Field(default=None, ge=0)
    include_artifacts: bool = False
    principal: str | None = Field(
        default=None,
        description="Whose tasks, for callers with the scope `admin`; `*` means everybody's. "
        "Without it, the caller's own.",
    )


EVERYBODY = "*"  # instead of a principal


class Listing:
    """A request to list tasks, in our types. `owner`: whose; None means everybody's."""

    def __init__(self, dialect: Dialect, owner: str | None, params: ListParams) -> None:
        states = {wire: state for state, wire in dialect.states.items()}
        state = None
        if params.status and params.status != "TASK_STATE_UNSPECIFIED":
            state = states.get(params.status)
            if state is None and params.status not in _NEVER_OURS:
                raise InvalidParams.at("status", f"must be one of {', '.join(states)}")
        self.impossible = bool(params.status in _NEVER_OURS)
        self.size = params.page_size or 50
        self.history_length = params.history_length or 0
        self.artifacts = params.include_artifacts
        self.query = TaskQuery(
            owner,
            context_id=params.context_id or None,
            state=state,
            since=_moment(params.status_timestamp_after),
            limit=self.size,
            after=_position(params.page_token),
        )


_NEVER_OURS = ("TASK_STATE_REJECTED", "TASK_STATE_AUTH_REQUIRED", "rejected", "auth-required")


def history(dialect: Dialect, length: int | None) -> int | None:
    """In 0.3 a length of zero asks for everything, in 1.0 for nothing."""
    return None if dialect.version == "0.3" and length == 0 else length


def from_query(query: Mapping[str, str]) -> dict[str, Any]:
    """Query parameters with the types their JSON form would have."""
    typed: dict[str, Any] = {}
    for name, value in query.items():
        match to_camel(name) if "_" in name else name:
            case ("historyLength" | "pageSize") as key:
                try:
                    typed[key] = int(value)
                except ValueError:
                    raise InvalidParams.at(key, "must be a whole number") from None
            case "includeArtifacts" as key:
                if value.lower() not in ("true", "false"):
                    raise InvalidParams.at(key, "must be true or false")
                typed[key] = value.lower() == "true"
            case key:
                typed[key] = value
    return typed


def page_token(position: tuple[int, str] | None) -> str:
    if position is None:
        return ""
    return base64.urlsafe_b64encode(f"{position[0]}:{position[1]}".encode()).decode()


def _position(token: str | None) -> tuple[int, str] | None:
    if not token:
        return None
    try:
        plain = base64.b64decode(token.encode(), b"-_", validate=True).decode()
    except (ValueError, binascii.Error):
        plain = ""
    found = re.fullmatch(r"([0-9]{1,15}):([0-9a-f-]{36})", plain)
    if found is None:
        raise InvalidParams.at("pageToken", "is not one of ours")
    return int(found[1]), found[2]


_EPOCH = datetime.fromtimestamp(0, UTC)


def _moment(value: str | None) -> int | None:
    if not value:
        return None
    try:
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is None:
            raise ValueError
        return -((_EPOCH - moment) // timedelta(milliseconds=1))  # rounded up: nothing earlier
    except (ValueError, OverflowError):
        raise InvalidParams.at(
            "statusTimestampAfter", "must be a time such as 2026-01-31T12:00:00Z"
        ) from None
