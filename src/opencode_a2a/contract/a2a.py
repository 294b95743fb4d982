"""A2A's own shapes, as far as both protocol lines share them, for schemas that mention them.

A result may hold something that each line writes differently, such as a message.
`Rendered` leaves the writing to the edge and publishes the shape.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema


class Shape(BaseModel):
    """Names as on the wire. More members may come with either line."""

    # Published, and rarely: built when that happens.
    model_config = ConfigDict(extra="allow", defer_build=True)


class Part(Shape):
    """Text, a file or data; 0.3 says which in `kind`, 1.0 by the member that is there."""

    kind: str = Field(default="", description="0.3 over JSON-RPC: text, file or data")
    text: str = ""
    data: Any = None
    raw: str = Field(default="", description="A file in 1.0: its bytes, in base64")
    url: str = Field(default="", description="A file in 1.0: where it is")
    filename: str = Field(default="", description="Of a file in 1.0")
    mediaType: str = Field(default="", description="Of a file in 1.0")
    file: dict[str, Any] = Field(default={}, description="A file in 0.3")
    metadata: dict[str, Any] = Field(default={})


class Message(Shape):
    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": ["parts"]}, {"required": ["content"]}]}
    )

    kind: str = Field(default="", description="`message`, in 0.3 over JSON-RPC")
    messageId: str
    role: str = Field(description="`ROLE_USER` or `ROLE_AGENT` in 1.0, `user` or `agent` in 0.3")
    parts: list[Part] = Field(default=[])
    content: list[Part] = Field(default=[], description="What 0.3 over REST calls `parts`")
    contextId: str = ""
    taskId: str = ""
    extensions: list[str] = Field(
        default=[], description="URIs of the extensions that its sender has named in it"
    )
    referenceTaskIds: list[str] = Field(default=[], description="Tasks that it refers to")
    metadata: dict[str, Any] = Field(default={})


class EventMark(Shape):
    event_id: str = ""
    sequence: int = Field(description="Per task, strictly increasing")
    replay: str = Field(
        default="",
        description="`snapshot`: the task stands for the events after the client's last one, which "
        "are not there any more, each by itself",
    )
    reason: str = Field(
        default="",
        description="With replay: `compacted` (they were put together), or `unknown` (the task has "
        "no such event)",
    )
    block_type: str = Field(default="", description="text, reasoning, tool_call or file")
    source: str = Field(default="", description="Of a block: whose it is (`opencode`)")
    role: str = Field(default="", description="Of a block: `agent`")
    message_id: str = ""
    phase: str = Field(
        default="",
        description="Of a text, once it is known: commentary (a tool call followed) or answer",
    )


class SessionMark(Shape):
    id: str
    title: str = ""


class CacheMark(Shape):
    read_tokens: int
    write_tokens: int


class UsageMark(Shape):
    """What was used so far; at the end, also of a canceled or failed task."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    reasoning_tokens: int = 0
    cache_tokens: CacheMark | None = None
    cost: float = Field(default=0, description="In dollars, to a billionth")
    unreported_steps: int = Field(
        default=0,
        description="Steps that were stopped before their provider told what they used, which is "
        "not in these figures",
    )
    peers: dict[str, UsageMark] = Field(
        default={},
        description="By name, what the tasks of called peers have used, as far as they say; it is "
        "not in the figures above",
    )


class SubAgentMark(Shape):
    session_id: str = Field(description="The OpenCode session of the sub-agent")
    agent: str = Field(default="", description="Its name, such as `general`")
    call_id: str = Field(default="", description="The tool call that it works for")


class ModelMark(Shape):
    providerID: str
    modelID: str


class ProgressMark(Shape):
    type: str = Field(
        description="step-start, step-finish, tool-call, phase, retry, todo, compaction or run"
    )
    status: str
    message_id: str = Field(default="", description="Of the agent, where a step or call belongs")
    artifact_id: str = Field(
        default="", description="With phase: the text of which the status says what it is"
    )
    subagent: SubAgentMark | None = Field(
        default=None, description="Who does it, if not the agent itself"
    )
    tool: str = Field(default="", description="With tool-call, which only sub-agents have")
    call_id: str = Field(default="", description="With tool-call")
    title: str = Field(default="", description="With tool-call: what it is about")
    started_at: str = Field(default="", description="With tool-call")
    ended_at: str = Field(default="", description="With tool-call, when it is over")
    attempt: int = Field(default=0, description="With retry")
    next: str = Field(default="", description="With retry: when")
    message: str = Field(default="", description="With retry and run: why")
    todos: list[dict[str, Any]] = Field(default=[], description="With todo")
    usage: UsageMark | None = Field(default=None, description="With step-finish: of this step")
    model: ModelMark | None = Field(
        default=None,
        description="What answers: with step-start of the agent itself, and with step-finish",
    )
    agent: str = Field(default="", description="With the model")
    variant: str = Field(default="", description="With the model")


class InterruptMark(Shape):
    request_id: str
    type: str = Field(description="permission or question")
    phase: str = Field(description="asked or resolved")
    resolution: str = ""
    by: str = Field(
        default="",
        description="In the history, who decided: method (the caller, by id), rule, expiry, or "
        "elsewhere (outside this service)",
    )
    expires_at: str = ""
    subagent: SubAgentMark | None = Field(
        default=None, description="Who asks, if not the agent itself"
    )
    details: dict[str, Any]


class SharedMarks(Shape):
    stream: EventMark | None = None
    session: SessionMark | None = None
    usage: UsageMark | None = None
    progress: ProgressMark | None = None
    interrupt: InterruptMark | None = None
    interrupts: list[InterruptMark] = Field(default=[], description="Where more than one waits")


class ErrorMark(Shape):
    type: str
    upstream_status: int = 0
    renews_at: str = Field(default="", description="With BUDGET_EXCEEDED: when it renews")


class QueueMark(Shape):
    """What a submitted task waits for."""

    reason: str = Field(description="context or slot")
    task_id: str = Field(default="", description="With context: the task that has to end first")


class NodeMark(Shape):
    """Whether a node can work on the task. Nothing is said while one does."""

    state: str = Field(description="lost, or returned (once, in the event that says so)")
    opencode: str = Field(default="", description="With lost: the OpenCode that has the session")
    until: str = Field(default="", description="With lost: when the task fails")


class ResumeMark(Shape):
    """What to send, as it is, to have the agent continue; in the words of the request's line."""

    message: Message


class WorktreeMark(Shape):
    branch: str
    directory: str
    base: str = Field(description="The commit that the branch began at")
    base_branch: str = Field(default="", description="What it is merged into")


class OpenCodeMarks(Shape):
    model: ModelMark | None = Field(default=None, description="What has answered, at the end")
    agent: str = Field(default="", description="Which agent has answered, at the end")
    variant: str = Field(default="", description="Of the model, where one was chosen")
    error: ErrorMark | None = None
    queue: QueueMark | None = None
    node: NodeMark | None = None
    retold: bool = Field(
        default=False,
        description="The session is a new one at another node, and was told what was said before",
    )
    resume: ResumeMark | None = Field(
        default=None, description="Of a task that failed because OpenCode was interrupted"
    )
    worktree: WorktreeMark | None = Field(default=None, description="Of an isolated context")
    principal: str = Field(
        default="", description="Whose task it is, where an admin lists everybody's"
    )


class Metadata(Shape):
    """What this service says of tasks, artifacts and events beyond A2A."""

    shared: SharedMarks | None = None
    opencode: OpenCodeMarks | None = None


class Status(Shape):
    state: str = Field(description="such as `TASK_STATE_COMPLETED` in 1.0, `completed` in 0.3")
    timestamp: str
    message: Message | None = None


class Artifact(Shape):
    artifactId: str
    name: str = ""
    parts: list[Part]
    metadata: Metadata | None = None


class Task(Shape):
    kind: str = Field(default="", description="`task`, in 0.3 over JSON-RPC")
    id: str
    contextId: str
    status: Status
    artifacts: list[Artifact] = Field(default=[])
    history: list[Message] = Field(default=[])
    metadata: Metadata | None = None


class Sent(Shape):
    task: Task


class TaskList(Shape):
    tasks: list[Task]
    nextPageToken: str = Field(description="Empty on the last page")
    pageSize: int
    totalSize: int


class StatusUpdate(Shape):
    kind: str = Field(default="", description="`status-update`, in 0.3 over JSON-RPC")
    taskId: str
    contextId: str
    status: Status
    final: bool = Field(default=False, description="0.3: whether the stream ends with it")
    metadata: Metadata | None = None


class ArtifactUpdate(Shape):
    kind: str = Field(default="", description="`artifact-update`, in 0.3 over JSON-RPC")
    taskId: str
    contextId: str
    artifact: Artifact
    append: bool = False
    lastChunk: bool = False


class StreamEvent(Shape):
    """One event of a stream: in 1.0 one of these members, in 0.3 one of them as `kind` says."""

    task: Task | None = None
    statusUpdate: StatusUpdate | None = None
    artifactUpdate: ArtifactUpdate | None = None


class PushConfig(Shape):
    """Whom to tell about a task. Secrets are taken and never shown."""

    taskId: str = Field(default="", description="0.3 over REST has it in `name`")
    id: str = ""
    url: str = ""
    authentication: dict[str, Any] = Field(default={}, description="Its scheme; no credentials")
    name: str = Field(
        default="", description="0.3 over REST: tasks/{task}/pushNotificationConfigs/{config}"
    )
    pushNotificationConfig: dict[str, Any] = Field(
        default={}, description="What 0.3 has instead of `id`, `url` and `authentication`"
    )


class PushConfigs(Shape):
    """0.3 over JSON-RPC answers with the list itself."""

    configs: list[PushConfig]
    nextPageToken: str = Field(description="Empty on the last page")


class Nothing(Shape):
    """An empty object; 0.3 over JSON-RPC answers with null."""


class AgentCard(Shape):
    name: str
    description: str
    version: str
    capabilities: dict[str, Any]


class Detail(Shape):
    """One of the details that google.rpc defines: ErrorInfo, whose `reason` is our type, …"""

    type: str = Field(alias="@type")


class Facts(Shape):
    """What 0.3 tells about an error, beside its type."""

    type: str


class RpcError(Shape):
    code: int
    message: str
    data: list[Detail] | Facts = Field(
        description="A list of google.rpc details in 1.0, an object in 0.3"
    )


class RpcStatus(Shape):
    """An error as REST 1.0 tells it: a google.rpc.Status."""

    code: int = Field(description="The HTTP status")
    status: str
    message: str
    details: list[Detail]


class RestError(Shape):
    error: RpcStatus


class RestError03(Shape):
    """0.3 defines none; this has what clients of that line look for."""

    code: int = Field(description="As over JSON-RPC")
    type: str
    message: str
    data: Facts


class Rendered:
    """Marks a value of ours that the edge writes as `shape`, in the line of the request."""

    def __init__(self, shape: type[Shape]) -> None:
        self._shape = shape

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.json_or_python_schema(
            json_schema=handler.generate_schema(self._shape),  # for the published schema only
            python_schema=core_schema.is_instance_schema(source),
            serialization=core_schema.plain_serializer_function_ser_schema(_show, info_arg=True),
        )


def written(result: BaseModel, show: Callable[[Any], Any]) -> Any:
    """A result as JSON; `show` writes what is marked as `Rendered`."""
    return result.model_dump(mode="json", by_alias=True, context=show)


def _show(value: Any, info: core_schema.SerializationInfo) -> Any:
    return info.context(value) if callable(info.context) else None
