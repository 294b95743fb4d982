"""Extensions without methods: they describe metadata, and the service itself.

Fields that a model or dataclass defines are listed from there.
"""

from __future__ import annotations

from dataclasses import fields

from ..contract.a2a import SubAgentMark, UsageMark, WorktreeMark
from ..contract.declare import Extension
from ..domain.events import BlockKind, ToolCall

SESSION_BINDING = Extension(
    "shared-session-binding-v1",
    title="Shared Session Binding v1",
    description="Continue a session of one's own choice instead of the context's.",
    scope="shared",
    aliases=("urn:a2a:session-binding/v1",),
    public={"metadata_field": "metadata.shared.session.id"},
    extended={
        "precedence": ["metadata of the request", "metadata of the message", "contextId"],
        "ownership": "an accepted request claims the session for the caller; another's does not "
        "exist",
        "place": ["metadata.opencode.directory", "metadata.opencode.workspace.id"],
        "isolation": {
            "metadata_field": "metadata.opencode.isolation",
            "values": ["worktree", "none"],
            "rule": "with the first message of a context; it may be repeated, but not changed",
            "shown_as": "metadata.opencode.worktree",
            "fields": list(WorktreeMark.model_fields),
        },
        "node": {
            "metadata_field": "metadata.opencode.node",
            "values": "a label or the name of a node of this service",
            "rule": "with the first message of a context; it may be repeated, but not changed",
        },
    },
)

MODEL_SELECTION = Extension(
    "shared-model-selection-v1",
    title="Shared Model Selection v1",
    description="Choose the model for one request.",
    scope="shared",
    aliases=("urn:a2a:model-selection/v1",),
    public={
        "required_metadata_fields": [
            "metadata.shared.model.providerID",
            "metadata.shared.model.modelID",
        ]
    },
    extended={
        "unknown_model": "INVALID_PARAMS with near matches; nothing is sent to the agent",
        "unknown_variant": "INVALID_PARAMS with the variants of the model that would answer",
        "also": ["metadata.opencode.agent", "metadata.opencode.variant"],
    },
)

STREAM_HINTS = Extension(
    "shared-stream-hints-v1",
    title="Shared Stream Hints v1",
    description="Every block of the agent's work, with metadata that tells them apart.",
    scope="shared",
    aliases=("urn:a2a:stream-hints/v1",),
    public={
        "activation": ["A2A-Extensions", "X-A2A-Extensions", "message.extensions"],
        "roots": [
            f"metadata.shared.{name}"
            for name in ("stream", "progress", "interrupt", "interrupts", "session", "usage")
        ],
        # Unless the deployment shows every block to every client.
        "roots_without_activation": [
            f"metadata.shared.{name}" for name in ("interrupt", "interrupts", "session", "usage")
        ],
        "block_types_without_activation": [BlockKind.TEXT.value, BlockKind.FILE.value],
        "block_types": [kind.value for kind in BlockKind],
        "block_identity": ["event_id", "sequence"],
        "block_identity_on_the_first_piece": ["message_id"],
        "progress_types": [
            "step-start",
            "step-finish",
            "tool-call",
            "phase",
            "retry",
            "todo",
            "compaction",
            "run",
        ],
        "interrupt_phases": ["asked", "resolved"],
        "session_id_field": "metadata.shared.session.id",
        "usage_fields": [
            name for name, field in UsageMark.model_fields.items() if field.is_required()
        ],
    },
    extended={
        "block_payloads": {
            "text": {
                "part": "text",
                "artifact_name": "answer",
                "final": "the last one of a completed task, which is its last artifact",
                "phases": {
                    "commentary": "a tool call, or another text of a completed run, has followed",
                    "answer": "the last text of a completed run, with no tool call after it",
                    "told": "metadata.shared.stream.phase of the artifact in a task; on a stream "
                    "progress of the type phase, as soon as it is known",
                },
            },
            "reasoning": {"part": "text", "artifact_name": "reasoning"},
            "tool_call": {
                "part": "data; text where the client does not accept application/json",
                "artifact_name": "tool:<name>",
                "fields": [field.name for field in fields(ToolCall)],
                "appended": {
                    "fields": ["call_id", "tool", "status", "output", "output_start"],
                    "meaning": "what a running call has printed since; output_start is the length "
                    "of its output before that, in Unicode characters. The end, and any other "
                    "change, is the whole call again, which replaces the artifact",
                },
            },
            "file": {
                "part": "file (1.0: raw or url); none where the client does not accept its type",
                "artifact_name": "file:<filename>; file where it has no name",
            },
        },
        "changes": {
            "part": "text/x-diff; data with the files where the client accepts application/json",
            "artifact_name": "changes",
            "without_activation": "where acceptedOutputModes names text/x-diff, or the deployment "
            "shows every block",
        },
        "extended_usage_fields": [
            "reasoning_tokens",
            "cache_tokens.read_tokens",
            "cache_tokens.write_tokens",
            "cost",
            "unreported_steps",
            "peers.<name>",
        ],
        "peers_usage": "the same fields, of the tasks that called peers did; not in the other "
        "figures",
        "progress_fields": {
            "step-start": ["message_id", "subagent", "model", "agent", "variant"],
            "step-finish": ["message_id", "subagent", "usage", "model", "agent", "variant"],
            "tool-call": [
                "message_id",
                "subagent",
                "tool",
                "call_id",
                "title",
                "started_at",
                "ended_at",
            ],
            "phase": ["artifact_id"],
            "retry": ["attempt", "next", "message", "subagent"],
            "todo": ["todos"],
            "run": ["message"],
        },
        "subagent_fields": list(SubAgentMark.model_fields),
        "history": "what the agent asked for and, where no message of the caller says it, what was "
        "decided and by whom (method, rule, expiry, elsewhere): messages of the agent with "
        "metadata.shared.interrupt, once it is settled",
    },
)

COMPATIBILITY = Extension(
    "a2a-compatibility-profile-v1",
    title="A2A Compatibility Profile v1",
    description="What this deployment is, what it keeps stable, and what depends on its settings.",
    scope="profile",
)

WIRE = Extension(
    "a2a-wire-contract-v1",
    title="A2A Wire Contract v1",
    description="Every method and endpoint that can be called here.",
    scope="profile",
)
