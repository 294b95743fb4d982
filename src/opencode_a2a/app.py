"""The composition root: settings in, ASGI application out.

The only module that sees every layer, and the only one that knows which adapter
fills which port. Read top to bottom it is the object graph.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache, partial
from pathlib import Path
from typing import cast

from fastapi import FastAPI
from starlette.types import ASGIApp

from . import __version__, logs
from .config import Server, Settings, State
from .contract.dispatch import Contract
from .domain.catalog import PlaceOwners
from .domain.ports import Agent
from .domain.scopes import Scope
from .domain.values import Caller, PermissionRule, Root
from .extensions import ALL
from .extensions.services import Services
from .inbound import openapi
from .inbound.card import CardFacts
from .inbound.failures import failure
from .inbound.health import Health
from .inbound.operations import Operations
from .inbound.published import Deployment, Published
from .inbound.routes import add_routes
from .inbound.sse import Streams
from .opencode.agent import Defaults, OpenCode
from .opencode.catalog import OpenCodeCatalog
from .opencode.http import Endpoint
from .outbound.egress import Egress
from .outbound.files import NamedFiles
from .service.access import Access
from .service.checks import Checks
from .service.creator import Creator
from .service.inputs import INPUT_MODES, OUTPUT_MODES, Inputs
from .service.interrupts import Interrupts
from .service.places import Places, in_root, in_root_only
from .service.recovery import Recovery
from .service.sessions import Sessions
from .service.tasks import Tasks
from .service.turns import TurnLimits, Turns
from .service.wishes import Wishes
from .store.asked import SqlAsked
from .store.bindings import SqlBindings
from .store.database import Database
from .store.legacy import take_over
from .store.log import Retention, SqlTaskLog, now_ms
from .web.auth import Authenticate, Credential, Credentials
from .web.payloads import PayloadLog
from .web.trace import Trace

PUBLIC = frozenset({"/health", "/ready", "/.well-known/agent-card.json", "/.well-known/agent.json"})


@asynccontextmanager
async def build(
    settings: Settings,
    endpoint: Endpoint,
    url: str,
    stopping: asyncio.Future[None],
    agent: Agent | None = None,
) -> AsyncIterator[ASGIApp]:
    """The service, talking to the OpenCode at `endpoint`, known to clients as `url`.

    Where the protocol itself is tested, another `agent` does the tasks.
    """
    upstream, server = settings.upstream, settings.server
    logs.redactor.add(*settings.secrets, *endpoint.secrets)  # some were made for this run
    root = upstream.workspace_root
    own = Root(str(root), partial(in_root, root))
    rules = tuple(
        PermissionRule(rule.permission, rule.pattern, rule.action)
        for rule in server.permission_rules
    )
    defaults = Defaults(str(root), upstream.agent, upstream.system, upstream.variant, rules)
    limits = TurnLimits(
        upstream.timeout_stream,
        upstream.max_concurrent_streams,
        server.max_queued_tasks,
        server.max_queued_tasks_per_caller,
        server.cancel_abort_timeout_seconds,
        grace=server.shutdown_grace_seconds,
        answer=server.interrupt_request_ttl_seconds,
    )
    kept = Retention(
        settings.state.replay_seconds,
        settings.state.retention_seconds,
        settings.state.idempotency_seconds,
        server.interrupt_request_tombstone_ttl_seconds,
    )
    egress = Egress(
        frozenset(host.lower() for host in settings.outbound.allowed_hosts),
        settings.outbound.allow_private_hosts,
    )
    async with (
        Database.open(settings.state.url(root)) as database,
        _moved_in(settings.state, root),
        SqlTaskLog.open(database, kept, root=own) as log,
        OpenCode.connect(
            endpoint, defaults, upstream.timeout, upstream.max_concurrent_requests
        ) as opencode,
        NamedFiles.open(egress, root) as files,
        Turns.open(
            log,
            sessions := Sessions(
                agent or opencode,
                bindings := SqlBindings(database, own),
                places := _places(settings, opencode, bindings),
            ),
            asked := SqlAsked(database, own),
            limits,
            now_ms,
            stopping,
        ) as turns,
    ):
        interrupts = Interrupts(log, turns, asked, server.permission_always)
        inputs = Inputs(files, server.max_part_bytes, server.max_message_bytes)
        catalog = places.catalog
        access = Access(
            catalog,
            bindings,
            places,
            server.shared_sessions,
            now_ms,
            int(server.pending_session_claim_ttl_seconds * 1_000),
            rules,
        )
        checks = Checks(catalog)
        wishes = Wishes(access, checks, catalog, sessions, bindings, upstream.agent)
        tasks = Tasks(agent or opencode, log, turns, interrupts, wishes, inputs, now_ms)

        async def opencode_works() -> bool:
            return opencode.connected

        services = Services(
            agent or opencode,
            catalog,
            access,
            places,
            Creator(places),
            checks,
            inputs,
            interrupts,
        )
        published = publication(settings, url, services)
        app = FastAPI(
            title=server.title,
            version=__version__,
            redoc_url=None,
            swagger_ui_oauth2_redirect_url=None,
        )
        app.openapi = cache(lambda: openapi.document(published))  # type: ignore[method-assign]
        health = Health({"store": database.takes_writes, "opencode": opencode_works})
        operations = Operations(tasks, published.card, stopping, server.strict_version)
        add_routes(app, operations, published.contract, health, server.max_request_body_bytes)
        async with Recovery.open(log, turns, inputs):
            served: ASGIApp = Streams(cast(ASGIApp, app))
            if server.shows_payloads:
                served = PayloadLog(served, logs.redactor, server.log_body_limit)
            guarded = Authenticate(served, credentials_of(server), PUBLIC, failure)
            yield Trace(guarded, failure)


@asynccontextmanager
async def _moved_in(state: State, root: Path) -> AsyncIterator[None]:
    """After what an earlier version left for this root has moved into its own database."""
    if (shared := state.shared_url) is not None:
        await take_over(shared, state.url(root), Root(str(root), partial(in_root_only, root)))
    yield


def _places(settings: Settings, opencode: OpenCode, owners: PlaceOwners) -> Places:
    upstream, server = settings.upstream, settings.server
    return Places(
        OpenCodeCatalog(opencode.http, upstream.timeout_stream),
        owners,
        upstream.workspace_root,
        server.shared_sessions,
        server.allow_directory_override,
    )


def publication(settings: Settings, url: str, services: Services | None = None) -> Published:
    """What these settings make of the declarations; without services nothing can be called."""
    server = settings.server
    facts = CardFacts(
        url,
        server.title,
        server.description,
        __version__,
        tuple(credentials_of(server).schemes),
        INPUT_MODES,
        OUTPUT_MODES,
    )
    deployment = Deployment(
        server.shared_sessions,
        server.allow_directory_override,
        server.strict_version,
        server.max_request_body_bytes,
        settings.state.backend == "database",
        settings.environment.declared,
        {
            "always_scope": server.permission_always,
            "rules": [rule.model_dump() for rule in server.permission_rules],
        },
    )
    return Published(facts, Contract(ALL, server.toggles, services), deployment)


def credentials_of(server: Server) -> Credentials:
    known = []
    if server.bearer_token is not None:
        caller = Caller("default", frozenset(Scope))
        known.append(Credential.bearer(server.bearer_token.get_secret_value(), caller))
    for entry in server.static_auth_credentials:
        caller = Caller(entry.principal, frozenset(entry.scopes))
        if entry.token is not None:
            known.append(Credential.bearer(entry.token.get_secret_value(), caller))
        elif entry.username is not None and entry.password is not None:
            password = entry.password.get_secret_value()
            known.append(Credential.basic(entry.username, password, caller))
    return Credentials(known)


def endpoint_of(settings: Settings) -> Endpoint | None:
    """The OpenCode server that the settings name, if they do."""
    upstream = settings.upstream
    if upstream.base_url is None:
        return None
    password = upstream.auth_password
    return Endpoint(
        upstream.base_url,
        upstream.auth_username,
        password.get_secret_value() if password is not None else None,
    )


def public_url(server: Server, port: int) -> str:
    """What the card says. A wildcard address is no place to connect to."""
    if server.public_url is not None:
        return server.public_url
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(server.host, server.host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
