"""What this deployment publishes about itself: cards, compatibility profile, wire contract.

All of it follows from the declared extensions, the table of operations, the settings, and the
version of OpenCode, once that is known; nothing needs a running service.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from ..contract.declare import Json
from ..contract.dispatch import Contract
from ..contract.operations import Line, OperationTable
from ..contract.publish import (
    availability,
    card_extensions,
    full_contract,
    is_conditional,
    methods_of,
)
from ..domain.release import TRIED, Release
from ..errors import CallTooDeep, MethodNotFound
from ..extensions.declared import COMPATIBILITY, STREAM_HINTS, WIRE
from ..extensions.push import EVERY_EVENT
from ..service.calls import DEPTH_HEADER
from .card import Card, CardFacts
from .failures import A2A_DOMAIN, ERROR_INFO
from .operations import A2A, WITHOUT_PUSH
from .sse import KEEP_ALIVE

PROFILE_ID = "opencode-a2a-single-tenant-coding-v1"
JWKS_PATH = "/.well-known/jwks.json"  # only where push notifications are on
PUBLIC_ENDPOINTS = (
    "GET /.well-known/agent-card.json",
    "GET /.well-known/agent.json",
    "GET /health",
    "GET /ready",
)


@dataclass(frozen=True, slots=True)
class PeerCalls:
    """Which other agents the agent may call by itself."""

    peers: tuple[str, ...] = ()  # their names
    any_peer: bool = False  # also any address that the egress policy permits
    max_depth: int = 0

    @property
    def enabled(self) -> bool:
        return self.max_depth > 0 and (self.any_peer or bool(self.peers))


@dataclass(frozen=True, slots=True)
class PushFacts:
    """What clients should know about push notifications."""

    configs_per_task: int
    retry_hours: float
    challenges: bool
    max_body_bytes: int

    def published(self) -> Json:
        return {
            "configs_per_task": self.configs_per_task,
            "order": "per config, one at a time",
            "delivery": "at least once: webhook-id is the same for every attempt",
            "retries": f"for {self.retry_hours:g} hours; then a dead letter",
            "events": "changes of state, and the whole task at its end; every event where "
            f"{EVERY_EVENT.uri} is active",
            "body": {"1.0": "StreamResponse", "0.3": "Task"},
            "max_body_bytes": self.max_body_bytes,
            "signatures": ["webhook-signature (Standard Webhooks, HMAC)", "JWT (ES256)"],
            "jwks": JWKS_PATH,
            "challenge": self.challenges,
        }


@dataclass(frozen=True, slots=True)
class Deployment:
    """What the settings say, as far as clients should know it."""

    shared_sessions: bool = True
    directory_override: bool = True
    isolation: str = "none"  # of new contexts
    strict_version: bool = False
    every_block: bool = False  # for every client
    body_limit: int = 16_777_216
    durable: bool = True  # tasks outlive the process
    max_send_wait_seconds: float | None = None
    on_interrupted: str = "fail"
    environment: Mapping[str, Any] = field(default_factory=dict)  # as declared by the operator
    permissions: Mapping[str, Any] = field(default_factory=dict)  # always_scope and rules
    peer_calls: PeerCalls = PeerCalls()
    push: PushFacts | None = None  # None where they are off
    console: bool = True
    metrics: str = "scope"  # who gets them at their path: `scope`, `open`; nobody otherwise

    @property
    def shows_metrics(self) -> bool:
        return self.metrics in ("scope", "open")


@dataclass(frozen=True)
class Published:
    facts: CardFacts
    contract: Contract
    deployment: Deployment = Deployment()

    @cached_property
    def card(self) -> Card:
        made_once = lru_cache(maxsize=1)(self._extended_extensions)
        return Card(
            self.facts,
            card_extensions(self.contract, extended=False, more=self._stream_hints),
            lambda: made_once(self.contract.release()),
        )

    def _extended_extensions(self, release: Release | None) -> list[Json]:
        profile, wire = self.profile_on(release), self.wire_contract
        more = {COMPATIBILITY.anchor: profile, WIRE.anchor: wire, **self._stream_hints}
        return card_extensions(self.contract, extended=True, more=more)

    @property
    def _stream_hints(self) -> dict[str, Json]:
        """By anchor, what is different where every client sees every block."""
        if not self.deployment.every_block:
            return {}
        hints = STREAM_HINTS.public
        return {
            STREAM_HINTS.anchor: {
                "roots_without_activation": hints["roots"],
                "block_types_without_activation": hints["block_types"],
            }
        }

    @property
    def extension_contracts(self) -> Json:
        return {e.uri: full_contract(self.contract, e) for e in self.contract.extensions}

    @property
    def operations(self) -> OperationTable:
        """A2A's operations, as they are here."""
        return A2A if self.deployment.push is not None else WITHOUT_PUSH

    @property
    def endpoints(self) -> list[str]:
        """Every endpoint that does something, in the words of HTTP."""
        rest = [
            f"{verb} {route.path_in(line)}"
            for route, operation in self.operations.routes
            if operation.supported
            for line in route.lines
            for verb in route.verbs
        ]
        documents = [*PUBLIC_ENDPOINTS, "GET /openapi.json"]
        documents += ["GET /console", "GET /console/{path}"] if self.deployment.console else []
        documents += [f"GET {JWKS_PATH}"] if self.deployment.push is not None else []
        documents += ["GET /metrics"] if self.deployment.shows_metrics else []
        return ["POST /", *rest, *documents]

    @cached_property
    def core(self) -> Json:
        return {
            "jsonrpc_methods": self.operations.supported_methods(),
            "http_endpoints": self.endpoints,
        }

    @cached_property
    def service_behaviors(self) -> Json:
        interactive = any(
            e.anchor == "shared-interactive-interrupt-v1" for e in self.contract.extensions
        )
        unless = "; stays open for a client that activated interrupts" if interactive else ""
        return {
            "subscribe_to_a_terminal_task": {
                "0.3": "answers with the task and closes",
                "1.0": "refused with UNSUPPORTED_OPERATION (-32004)",
            },
            "subscribe_to_a_waiting_task": {
                "0.3": f"answers with the task and closes{unless}",
                "1.0": "the task, then what follows when it goes on",
            },
            "subscribe_with_last_event_id": "the task as of that event, then every later event, "
            "also when the task has ended",
            "cancel_of_a_terminal_task": "refused with TASK_NOT_CANCELABLE (-32002)",
            "terminal_state": "the first one stays",
            "blocks": self._shown_blocks,
            "accepted_output_modes": "kept with the task and applied whenever it is shown",
            "oversized_body": {
                "answer": "PAYLOAD_TOO_LARGE, HTTP 413",
                "limit_bytes": self.deployment.body_limit,
            },
            "stream_at_input_required": {
                "0.3": f"closes with final: true{unless}",
                "1.0": f"closes{unless}",
            },
            "stream_keep_alive_seconds": KEEP_ALIVE,
            "message_to_a_working_task": "becomes the next prompt of the same task",
            "message_to_the_context_of_a_waiting_task": "is taken for the answer; with "
            "metadata.opencode.newTask: true it starts a new task",
            "blocking_send": {
                "waits": "until the task has ended or needs a person",
                "max_seconds": self.deployment.max_send_wait_seconds,
                "request_header": "Prefer: wait=<seconds>, or respond-async; then the task as it "
                "stands",
            },
            "run_lost_by_the_agent": {
                "fail": "UPSTREAM_INTERRUPTED, with what to send in metadata.opencode.resume",
                "continue": "the agent is told and asked to continue, once",
            }[self.deployment.on_interrupted],
            "message_of_another_agent": {
                "request_header": f"{DEPTH_HEADER}: how many agents have called each other",
                "max_depth": self.deployment.peer_calls.max_depth,
                "deeper": f"refused with {CallTooDeep.type} ({CallTooDeep.rpc_code})",
            },
            "push_notifications": "refused with PUSH_NOTIFICATION_NOT_SUPPORTED (-32003)"
            if self.deployment.push is None
            else self.deployment.push.published(),
            "repeated_send": "the same Idempotency-Key, or the same message in the same context, "
            "is answered with the same task",
        }

    @property
    def _shown_blocks(self) -> Json:
        return {
            "without_stream_hints": "every block"
            if self.deployment.every_block
            else "the agent's text and files; the changes where text/x-diff is accepted by name",
            "with_stream_hints": "every block",
            "activation": "by each request: in its header, or in message.extensions",
            "last_artifact_of_a_completed_task": "the final answer: the last text of the agent",
        }

    @cached_property
    def protocol_compatibility(self) -> Json:
        def line(version: Line, prefix: str) -> Json:
            return {
                "supported": True,
                "transports": ["JSONRPC", "HTTP+JSON"],
                "http_prefix": prefix,
                "jsonrpc_methods": self.operations.supported_methods(version),
            }

        return {
            "default_version": "0.3",
            "strict_version": self.deployment.strict_version,
            "versions": {
                "0.3": line("0.3", "/v1"),
                "1.0": line("1.0", "") | {"http_tenant_prefix": "/{tenant}"},
            },
        }

    @property
    def profile(self) -> Json:
        return self.profile_on(self.contract.release())

    def profile_on(self, release: Release | None) -> Json:
        contract, deployment = self.contract, self.deployment

        def feature(setting: str) -> Json:
            return {"enabled": contract.has_set(setting), "toggle": setting}

        return {
            "profile_id": PROFILE_ID,
            "deployment": {
                "id": "single_tenant_shared_workspace",
                "single_tenant": True,
                "tenant_isolation": "none",
                "shared_sessions": deployment.shared_sessions,
            },
            "runtime_features": {
                "directory_binding": {
                    "enabled": deployment.directory_override,
                    "toggle": "A2A_ALLOW_DIRECTORY_OVERRIDE",
                    "boundary": "workspace_root",
                },
                "isolation": {
                    "default": deployment.isolation,
                    "toggle": "A2A_ISOLATION",
                    "metadata_field": "metadata.opencode.isolation",
                },
                "session_shell": feature("A2A_ENABLE_SESSION_SHELL"),
                "workspace_mutations": feature("A2A_ENABLE_WORKSPACE_MUTATIONS"),
                "peer_calls": _peer_calls(deployment.peer_calls),
                "opencode": _opencode(release),
                "permissions": dict(deployment.permissions),
                "execution_environment": dict(deployment.environment),
                "service_features": {
                    "streaming": True,
                    "push_notifications": deployment.push is not None,
                    "resumable_streams": True,
                    "idempotent_sends": True,
                    "recovery_after_restart": deployment.durable,
                },
            },
            "core": self.core,
            "extension_retention": {
                e.uri: {
                    "surface": "metadata" if not e.methods else "methods",
                    "scope": e.scope,
                    "retention": "vendor" if e.scope == "opencode" else "stable",
                }
                for e in contract.extensions
            },
            "method_retention": self._method_retention(),
            "service_behaviors": self.service_behaviors,
            "protocol_compatibility": self.protocol_compatibility,
            "consumer_guidance": [
                "Rely on the core methods; treat everything under opencode.* as this vendor's.",
                "Ask the wire contract what can be called before calling a conditional method.",
                "Ignore metadata you do not know.",
                "Do not take this deployment for a boundary between tenants.",
            ],
        }

    def _method_retention(self) -> Json:
        kept: Json = {
            name: {"surface": "core", "availability": "always", "retention": "required"}
            for name in self.operations.supported_methods()
        }
        for extension, method in methods_of(self.contract.extensions):
            about = availability(self.contract, method)
            about.pop("reason", None)
            depends = is_conditional(self.contract, method)
            conditional = "deployment-conditional" if depends else "stable"
            kept[method.name] = {
                "surface": "extension",
                **about,
                "retention": conditional,
                "extension_uri": extension.uri,
            }
        return kept

    @property
    def wire_contract(self) -> Json:
        methods = [method for _, method in methods_of(self.contract.extensions)]
        return {
            "core": self.core,
            "extensions": {
                "jsonrpc_methods": self.contract.available,
                "conditionally_available_methods": {
                    m.name: availability(self.contract, m)
                    for m in methods
                    if is_conditional(self.contract, m)
                },
                "extension_uris": [e.uri for e in self.contract.extensions],
            },
            "all_jsonrpc_methods": [*self.operations.supported_methods(), *self.contract.available],
            "unsupported_method_error": _unsupported_method_error(),
            "protocol_compatibility": self.protocol_compatibility,
            "service_behaviors": self.service_behaviors,
        }


def _peer_calls(calls: PeerCalls) -> Json:
    return {
        "enabled": calls.enabled,
        "peers": list(calls.peers),
        "any_peer": calls.any_peer,
        "max_depth": calls.max_depth,
    }


def _opencode(release: Release | None) -> Json:
    """The version behind the service: null until it has answered for the first time."""
    return {
        "version": release.version if release else None,
        "tried_versions": list(TRIED),
        "lacks": {
            feature.name: {"effect": feature.effect}
            for feature in (release.lacks if release else ())
        },
    }


def _unsupported_method_error() -> Json:
    """The error for an unknown method. Both lines have the same facts, in different fields."""
    text: Json = {"type": "string"}
    facts: Json = {
        "method": text,
        "supported_methods": {"type": "array", "items": text},
        "protocol_version": text,
    }
    fields = {"type": {"const": MethodNotFound.type}} | facts
    joined = {"type": "string", "description": "separated by commas"}
    info = {
        "@type": {"const": ERROR_INFO},
        "reason": {"const": MethodNotFound.type},
        "domain": {"const": A2A_DOMAIN},
        "metadata": _object(facts | {"supported_methods": joined}),
    }
    details: Json = {"type": "array", "minItems": 1, "maxItems": 1, "items": _object(info)}
    return {
        "code": MethodNotFound.rpc_code,
        "type": MethodNotFound.type,
        "data_fields": list(fields),
        "data_schema": {"0.3": _object(fields), "1.0": details},
    }


def _object(properties: Json) -> Json:
    return {"type": "object", "properties": properties, "required": list(properties)}
