"""The composition root: settings in, ASGI application out.

This is the only module that knows every layer, and which adapter implements which
port. `build` lists the parts in the order in which they need each other; each function
below it makes one part from its settings.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import structlog
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as RequestScope

from . import __version__, logs
from .config import Server, Settings, State
from .contract.dispatch import Contract
from .domain.addresses import is_loopback, origin_of, url_of_listener
from .domain.ports import Agent
from .domain.release import Release
from .domain.scopes import Scope
from .domain.values import Caller, PermissionRule, Root
from .extensions import ALL
from .extensions.services import Services
from .inbound import negotiation
from .inbound.card import CardFacts
from .inbound.failures import failure
from .inbound.health import Health
from .inbound.openapi import Api
from .inbound.operations import Operations
from .inbound.published import Deployment, Published
from .inbound.published import PeerCalls as DeclaredCalls
from .inbound.routes import add_routes
from .inbound.sse import Streams
from .opencode.agent import Defaults, OpenCode
from .opencode.catalog import OpenCodeCatalog
from .opencode.http import Endpoint
from .outbound.files import NamedFiles
from .outbound.target import CallablePeers
from .peers import callable_peers, egress_of, limits_of
from .service.creator import Creator
from .service.git import in_root, in_root_only
from .service.inputs import INPUT_MODES, OUTPUT_MODES, Inputs
from .service.interrupts import Interrupts
from .service.isolation import ContextWorktrees
from .service.locations import Locations
from .service.options import CatalogOptionsResolver, OptionsResolver
from .service.ownership import Ownership
from .service.peer_calls import OfferedTools, PeerCalls
from .service.recovery import Recovery
from .service.scheduler import Scheduler, SchedulerLimits, TaskAtWork
from .service.sessions import Sessions
from .service.tasks import Tasks
from .service.validator import Validator
from .store.bindings import SqlBindings
from .store.conversations import SqlPeerConversations
from .store.database import Database
from .store.interrupts import SqlInterrupts
from .store.legacy import take_over
from .store.log import Retention, SqlTaskLog, now_ms
from .store.worktrees import SqlWorktrees
from .web.auth import Authenticator, Credential, Credentials
from .web.compression import Compression
from .web.hosts import HostCheck
from .web.origins import OriginCheck
from .web.payloads import PayloadLog
from .web.trace import Trace

logger = structlog.get_logger()

PUBLIC_PATHS = frozenset(
    {"/health", "/ready", "/docs", "/.well-known/agent-card.json", "/.well-known/agent.json"}
)


Rules = Callable[[], Sequence[PermissionRule]]  # as they are now


@dataclass(frozen=True, slots=True)
class Built:
    app: ASGIApp
    at_work: Callable[[], list[TaskAtWork]]
    release: Callable[[], Release | None]  # of the connected OpenCode
    is_connected: Callable[[], bool]  # to OpenCode
    reload: Callable[[Settings], int]  # take new settings over; how many requests it cut off


@asynccontextmanager
async def build(
    settings: Settings,
    *,
    endpoint: Endpoint,
    url: str,
    stopping: asyncio.Future[None],
    agent: Agent | None = None,
) -> AsyncIterator[Built]:
    """The service, talking to the OpenCode at `endpoint`, known to clients as `url`.

    Tests of the protocol itself pass another `agent`, which does the tasks.
    """
    logs.redactor.add(*settings.secrets, *endpoint.secrets)  # some were made for this run
    current = _CurrentSettings(settings, own_urls=(url, endpoint.base_url))
    async with (
        _open_adapters(settings, endpoint, rules=current.rules) as adapters,
        _peer_calls(current, adapters, endpoint=endpoint) as peer_calls,
    ):
        agent = agent or adapters.opencode
        locations = _locations(settings, adapters)
        worktrees = _worktrees(settings, adapters, locations=locations)
        sessions = Sessions(agent, adapters.bindings, locations=locations, worktrees=worktrees)
        scheduler = Scheduler(
            log=adapters.log,
            sessions=sessions,
            interrupts=adapters.interrupts,
            limits=_limits(settings),
            clock=now_ms,
            peer_calls=peer_calls if agent is adapters.opencode else None,
        )
        async with scheduler.running(stopping):
            services = _services(
                settings,
                adapters,
                agent=agent,
                worktrees=worktrees,
                scheduler=scheduler,
                rules=current.rules,
            )
            tasks = Tasks(
                agent=agent,
                log=adapters.log,
                scheduler=scheduler,
                interrupts=services.interrupts,
                options=_options(settings, adapters, services=services, sessions=sessions),
                inputs=services.inputs,
                clock=now_ms,
            )
            parts = _Parts(adapters, services, tasks=tasks, stopping=stopping)
            application = _Application(current, parts, url=url)
            async with (
                Recovery.open(adapters.log, scheduler, inputs=services.inputs),
                worktrees.sweeping(),
            ):
                yield Built(
                    _middleware(settings.server, application.authenticator, url),
                    at_work=scheduler.at_work,
                    release=lambda: adapters.opencode.release,
                    is_connected=lambda: adapters.opencode.connected,
                    reload=application.reload,
                )


@dataclass(slots=True)
class _CurrentSettings:
    """The settings that hold now; a reload puts others in their place."""

    settings: Settings
    own_urls: tuple[str, ...]  # of this service and of its OpenCode
    peers: CallablePeers | None = None  # that the agent can call; None where it has no tools for it

    def rules(self) -> tuple[PermissionRule, ...]:
        return tuple(
            PermissionRule(permission=rule.permission, pattern=rule.pattern, action=rule.action)
            for rule in self.settings.server.permission_rules
        )


@dataclass(frozen=True, slots=True)
class _Parts:
    """What the application works on. A reload does not touch it."""

    adapters: _Adapters
    services: Services
    tasks: Tasks
    stopping: asyncio.Future[None]


class _Application:
    """The application for the current settings, behind the authentication.

    A reload makes another one for new requests. Earlier ones finish in the one they began in.
    """

    def __init__(self, current: _CurrentSettings, parts: _Parts, *, url: str) -> None:
        self._current, self._parts, self._url = current, parts, url
        self._app = self._made()
        self.authenticator = Authenticator(
            self,
            credentials=credentials_of(current.settings.server),
            public=PUBLIC_PATHS,
            on_error=failure,
        )

    def __call__(self, scope: RequestScope, receive: Receive, send: Send) -> Awaitable[None]:
        return self._app(scope, receive, send)

    def reload(self, settings: Settings) -> int:
        """Take these settings over; how many requests were cut off.

        ConfigError, and nothing is changed, if the credential of a peer cannot be read.
        """
        peers = callable_peers(settings, *self._current.own_urls)
        if self._current.peers is not None:
            self._current.peers = peers = peers or CallablePeers({})
            logs.redactor.add(*peers.secrets)
        elif peers is not None:
            reason = "the agent had nobody to call when the service started, so restart it"
            logger.warning("tools.off", reason=reason)
        self._current.settings = settings
        self._app = self._made()
        return self.authenticator.replace(credentials_of(settings.server))

    def _made(self) -> ASGIApp:
        settings, parts = self._current.settings, self._parts
        server, opencode = settings.server, parts.adapters.opencode
        published = publication(
            settings,
            self._url,
            services=parts.services,
            release=lambda: opencode.release,
            calls_peers=self._current.peers is not None,
        )
        operations = Operations(
            tasks=parts.tasks,
            card=published.card,
            stopping=parts.stopping,
            extension_uris=negotiation.known(published.contract.extensions),
            strict_version=server.strict_version,
            max_wait_seconds=server.max_send_wait_seconds or None,
            every_block=server.shows_every_block,
            max_call_depth=server.max_call_depth,
        )
        api = Api(published)
        limit = server.max_request_body_bytes
        add_routes(api, operations, _health(parts.adapters), body_limit=limit)
        if server.shows_payloads:
            # Whoever looks for a fault can read what is logged only if it is not compressed.
            streams = Streams(cast(ASGIApp, api))
            return PayloadLog(streams, redactor=logs.redactor, limit=server.log_body_limit)
        return Streams(Compression(cast(ASGIApp, api)))


@dataclass(frozen=True, slots=True)
class _Adapters:
    """The service's connections to the database, to OpenCode, and to files by URL."""

    database: Database
    log: SqlTaskLog
    bindings: SqlBindings
    interrupts: SqlInterrupts
    worktrees: SqlWorktrees
    conversations: SqlPeerConversations
    opencode: OpenCode
    files: NamedFiles


@asynccontextmanager
async def _open_adapters(
    settings: Settings, endpoint: Endpoint, *, rules: Rules
) -> AsyncIterator[_Adapters]:
    root = settings.upstream.workspace_root
    own_root = Root(str(root), partial(in_root, root))
    async with (
        Database.open(settings.state.url(root)) as database,
        _move_from_shared_database(settings.state, root),
        SqlTaskLog.open(database, _retention(settings), root=own_root) as log,
        _connect(settings, endpoint, rules=rules) as opencode,
        NamedFiles.open(egress_of(settings.outbound), root) as files,
    ):
        yield _Adapters(
            database=database,
            log=log,
            bindings=SqlBindings(database, own_root),
            interrupts=SqlInterrupts(database, own_root),
            worktrees=SqlWorktrees(database, own_root),
            conversations=SqlPeerConversations(database, now_ms),
            opencode=opencode,
            files=files,
        )


@asynccontextmanager
async def _peer_calls(
    current: _CurrentSettings, adapters: _Adapters, *, endpoint: Endpoint
) -> AsyncIterator[PeerCalls | None]:
    """The agent's calls to other agents; None where it cannot make any."""
    peers = callable_peers(current.settings, *current.own_urls)
    if peers is not None and not is_loopback(urlsplit(endpoint.base_url).hostname or ""):
        logger.warning(
            "tools.off", reason="OpenCode is on another machine, and cannot reach the tools here"
        )
        peers = None
    if peers is None:
        yield None
        return
    current.peers = peers
    logs.redactor.add(*peers.secrets)
    calls = PeerCalls(max_depth=current.settings.server.max_call_depth)
    serving = asyncio.create_task(_serve_tools(current, adapters, calls))
    try:
        async with calls.running():
            yield calls
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def _serve_tools(current: _CurrentSettings, adapters: _Adapters, calls: PeerCalls) -> None:
    """Until it is canceled. The service starts meanwhile: what this loads takes a second."""

    def peers() -> CallablePeers:
        assert current.peers is not None, "otherwise there are no tools"
        return current.peers

    try:
        for module in (".outbound.peer_tools", ".toolserver"):
            await asyncio.to_thread(import_module, module, __package__)
        from .outbound.client import Peers
        from .outbound.peer_tools import PeerToolbox, tool_specs
        from .toolserver import ToolServer

        outbound = current.settings.outbound
        client = Peers(egress_of(outbound), limits_of(outbound))
        toolbox = PeerToolbox(client, peers, adapters.conversations)
        async with ToolServer.open(lambda: tool_specs(peers()), calls.serve) as server:
            logs.redactor.add(server.secret)
            host = adapters.opencode.tools(server.url, server.headers)
            calls.tools.set_result(OfferedTools(host, toolbox))
            await asyncio.Event().wait()
    except Exception:
        logger.exception("tools.internal_error")
    finally:
        if not calls.tools.done():
            calls.tools.set_result(None)


@asynccontextmanager
async def _move_from_shared_database(state: State, root: Path) -> AsyncIterator[None]:
    """Move what an earlier version stored for this root into the root's own database."""
    if (shared := state.shared_url) is not None:
        await take_over(shared, state.url(root), root=Root(str(root), partial(in_root_only, root)))
    yield


def _retention(settings: Settings) -> Retention:
    state = settings.state
    return Retention(
        replay=state.replay_seconds,
        tasks=state.retention_seconds,
        keys=state.idempotency_seconds,
        requests=settings.server.interrupt_request_tombstone_ttl_seconds,
    )


def _connect(
    settings: Settings, endpoint: Endpoint, *, rules: Rules
) -> AbstractAsyncContextManager[OpenCode]:
    upstream = settings.upstream
    defaults = Defaults(
        str(upstream.workspace_root),
        agent=upstream.agent,
        system=upstream.system,
        variant=upstream.variant,
        rules=rules,
        model_titles=settings.server.session_titles == "model",
    )
    return OpenCode.connect(
        endpoint,
        defaults,
        timeout=upstream.timeout,
        concurrency=upstream.max_concurrent_requests,
    )


def _locations(settings: Settings, adapters: _Adapters) -> Locations:
    upstream, server = settings.upstream, settings.server
    return Locations(
        catalog=OpenCodeCatalog(adapters.opencode.http, upstream.timeout_stream),
        store=adapters.bindings,
        root=upstream.workspace_root,
        shared=server.shared_sessions,
        directories=server.allow_directory_override,
    )


def _worktrees(
    settings: Settings, adapters: _Adapters, *, locations: Locations
) -> ContextWorktrees:
    server, root = settings.server, settings.upstream.workspace_root
    folder = server.worktree_directory or settings.state.worktrees(root)
    return ContextWorktrees(
        store=adapters.worktrees,
        locations=locations,
        log=adapters.log,
        folder=folder.resolve() if folder is not None else None,
        idle_ms=int(server.worktree_idle_seconds * 1_000),
        clock=now_ms,
    )


def _services(
    settings: Settings,
    adapters: _Adapters,
    *,
    agent: Agent,
    worktrees: ContextWorktrees,
    scheduler: Scheduler,
    rules: Rules,
) -> Services:
    server, locations = settings.server, worktrees.locations
    return Services(
        agent=agent,
        catalog=locations.catalog,
        ownership=Ownership(
            catalog=locations.catalog,
            store=adapters.bindings,
            locations=locations,
            shared=server.shared_sessions,
            clock=now_ms,
            claim_ms=int(server.pending_session_claim_ttl_seconds * 1_000),
            rules=rules,
        ),
        locations=locations,
        creator=Creator(locations),
        worktrees=worktrees,
        validator=Validator(locations.catalog),
        inputs=Inputs(
            adapters.files,
            part_bytes=server.max_part_bytes,
            message_bytes=server.max_message_bytes,
        ),
        interrupts=Interrupts(
            log=adapters.log,
            scheduler=scheduler,
            store=adapters.interrupts,
            always=server.permission_always,
        ),
    )


def _options(
    settings: Settings, adapters: _Adapters, *, services: Services, sessions: Sessions
) -> OptionsResolver:
    return CatalogOptionsResolver(
        ownership=services.ownership,
        validator=services.validator,
        catalog=services.catalog,
        sessions=sessions,
        bindings=adapters.bindings,
        worktrees=services.worktrees,
        agent=settings.upstream.agent,
        isolation=settings.server.isolation,
    )


def _limits(settings: Settings) -> SchedulerLimits:
    upstream, server = settings.upstream, settings.server
    return SchedulerLimits(
        deadline=upstream.timeout_stream,
        running=upstream.max_concurrent_streams,
        queued=server.max_queued_tasks,
        queued_per_caller=server.max_queued_tasks_per_caller,
        abort=server.cancel_abort_timeout_seconds,
        grace=server.shutdown_grace_seconds,
        answer=server.interrupt_request_ttl_seconds,
        continues=server.on_interrupted == "continue",
    )


def _health(adapters: _Adapters) -> Health:
    async def is_connected() -> bool:
        return adapters.opencode.connected

    return Health({"store": adapters.database.takes_writes, "opencode": is_connected})


def _middleware(server: Server, app: ASGIApp, url: str) -> ASGIApp:
    """What stands before the authentication, innermost first."""
    origin, allowed = origin_of(url), server.cors_origins
    served: ASGIApp = OriginCheck(app, own=origin, allowed=allowed, on_error=failure)
    if (hosts := server.checked_hosts) is not None:
        served = HostCheck(served, allowed=hosts, on_error=failure)
    return Trace(served, failure)


def publication(
    settings: Settings,
    url: str,
    *,
    services: Services | None = None,
    release: Callable[[], Release | None] = lambda: None,
    calls_peers: bool = True,
) -> Published:
    """What the service publishes with these settings. Without services, no method can be called.

    `calls_peers`: the agent can get the tools for that, if the settings let it have them.
    `release` is asked for the connected OpenCode whenever something is published.
    """
    server = settings.server
    facts = CardFacts(
        url=url,
        title=server.title,
        description=server.description,
        version=__version__,
        schemes=tuple(credentials_of(server).schemes),
        input_modes=INPUT_MODES,
        output_modes=OUTPUT_MODES,
    )
    deployment = Deployment(
        shared_sessions=server.shared_sessions,
        directory_override=server.allow_directory_override,
        isolation=server.isolation,
        strict_version=server.strict_version,
        every_block=server.shows_every_block,
        body_limit=server.max_request_body_bytes,
        durable=settings.state.backend == "database",
        max_send_wait_seconds=server.max_send_wait_seconds or None,
        on_interrupted=server.on_interrupted,
        environment=settings.environment.declared,
        permissions={
            "always_scope": server.permission_always,
            "rules": [rule.model_dump() for rule in server.permission_rules],
        },
        peer_calls=_declared_calls(settings, offered=calls_peers),
    )
    contract = Contract(ALL, enabled=server.toggles, services=services)
    return Published(facts, contract, deployment=deployment, release=release)


def _declared_calls(settings: Settings, *, offered: bool) -> DeclaredCalls:
    peers = tuple(sorted(name for name, peer in settings.peers.items() if peer.model_may_call))
    return DeclaredCalls(
        peers=peers if offered else (),
        any_peer=settings.outbound.allow_any_peer and offered,
        max_depth=settings.server.max_call_depth,
    )


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
            known.append(Credential.basic(entry.username, password, caller=caller))
    return Credentials(known)


def endpoint_of(settings: Settings) -> Endpoint | None:
    """The OpenCode server that the settings name, if they name one."""
    upstream = settings.upstream
    if upstream.base_url is None:
        return None
    password = upstream.auth_password
    return Endpoint(
        base_url=upstream.base_url,
        username=upstream.auth_username,
        password=password.get_secret_value() if password is not None else None,
        own_user_only=upstream.own_user_only,
    )


def public_url(server: Server, port: int) -> str:
    """The address in the card."""
    return server.public_url or url_of_listener(server.host, port)
