"""The composition root: settings in, ASGI application out.

This is the only module that knows every layer, and which adapter implements which
port. `build` lists the parts in the order in which they need each other; each function
below it makes one part from its settings.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import structlog
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as RequestScope

from . import __version__, logs
from .access import TokenWatch, credentials_of, declared_schemes, open_issuer
from .config import ConfigError, Server, Settings
from .contract.declare import Json
from .contract.dispatch import Contract
from .credentials import StoredToken
from .domain.addresses import is_loopback, origin_of, url_of_listener
from .domain.limits import UNLIMITED, Limits
from .domain.nodes import Node
from .domain.ports import Agent
from .domain.release import SHARED_ALWAYS, Release
from .domain.values import Caller, PermissionRule
from .errors import ServiceError, StoreError
from .extensions import ALL
from .extensions.services import Services
from .inbound import negotiation
from .inbound.card import CardFacts
from .inbound.console import Console, ConsoleFacts, is_built
from .inbound.failures import failure
from .inbound.forwarding import Forwarding
from .inbound.health import Health
from .inbound.openapi import Api
from .inbound.operations import Operations
from .inbound.published import Deployment, Published, PushFacts
from .inbound.published import PeerCalls as DeclaredCalls
from .inbound.push import PushRenderer
from .inbound.routes import add_routes, application
from .inbound.sse import open_streams
from .observe import metrics
from .opencode.agent import OpenCode
from .opencode.api import Defaults
from .opencode.http import Endpoint
from .opencode.identity import opencode_name
from .outbound.egress import Egress
from .outbound.files import NamedFiles
from .outbound.target import CallablePeers
from .paths import name_new_file, state_folder, tighten, write_private_file
from .peers import callable_peers, egress_of, limits_of
from .service.cluster import Cluster
from .service.creator import Creator
from .service.inputs import INPUT_MODES, OUTPUT_MODES, Inputs
from .service.interrupts import Interrupts
from .service.isolation import ContextWorktrees
from .service.limits import Limiter
from .service.locations import Locations
from .service.nodes import Nodes
from .service.options import CatalogOptionsResolver, OptionsResolver
from .service.ownership import Ownership
from .service.peer_calls import OfferedTools, PeerCalls
from .service.push import PushLimits, PushNotifications
from .service.push_sender import PushSender
from .service.recovery import Recovery
from .service.retelling import Retelling
from .service.scheduler import Scheduler, SchedulerLimits, TaskAtWork
from .service.sessions import Sessions
from .service.tasks import Tasks
from .service.validator import Validator
from .service.watching import TaskWatches
from .store.bindings import SqlBindings
from .store.conversations import SqlPeerConversations
from .store.database import Database
from .store.file_lock import sole_service
from .store.interrupts import SqlInterrupts
from .store.log import Retention, SqlTaskLog
from .store.nodes import SqlNodes
from .store.push import SqlPush
from .store.statements import release_all
from .store.usage import SqlUsage
from .store.worktrees import SqlWorktrees
from .web.auth import Authenticator, Credentials
from .web.hosts import HostCheck
from .web.origins import OriginCheck
from .web.payloads import PayloadLog
from .web.proxies import TrustedProxies
from .web.trace import Trace

if TYPE_CHECKING:
    from .web.oidc import Issuer

logger = structlog.get_logger()

GZIP_MIN_BYTES = 1_024  # below that little is saved
GZIP_LEVEL = 5  # more than twice as fast as 9, for six percent more bytes
LOGGED_BODY_BYTES = 4_096  # of a body, or of a piece of a stream
PUSH_TIMEOUT_SECONDS = 15.0  # for a receiver to answer
PUSH_BODY_BYTES = 1_048_576  # a larger notification has the status alone
WORKTREE_IDLE_DAYS = 7  # before the worktree of a context is removed, if nothing is lost
PENDING_CLAIM_SECONDS = 30  # how long a failed request keeps a session that nobody owned

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
    more_opencodes: Sequence[Endpoint] = (),
    agent: Agent | None = None,
) -> AsyncIterator[Built]:
    """The service, talking to the OpenCode at `endpoint`, known to clients as `url`.

    `more_opencodes` have the same sessions as that one, and share its work.
    Tests of the protocol itself pass another `agent`, which does the tasks.
    """
    endpoints = (endpoint, *more_opencodes)
    made_secrets = (secret for each in endpoints for secret in each.secrets)  # for this run
    logs.redactor.add(*settings.secrets, *made_secrets)
    current = _CurrentSettings(settings, own_urls=(url, *(each.base_url for each in endpoints)))
    async with (
        open_issuer(lambda: current.settings) as issuer,
        _open_adapters(settings, endpoints, rules=current.rules) as adapters,
        _peer_calls(current, adapters, endpoint=endpoint) as peer_calls,
        _push(settings, adapters, issuer=url) as push,
        _open_parts(
            current,
            adapters,
            agent=agent or adapters.opencode,
            calls=peer_calls if agent is None else None,
            push=push,
            stopping=stopping,
        ) as parts,
    ):
        application = _Application(current, parts, url=url, issuer=issuer)
        async with application.watching_tokens(), _working(parts):
            with metrics.reading(_gauges(adapters, parts.scheduler)):
                yield _built(settings.server, application, parts=parts, url=url)


@asynccontextmanager
async def _open_parts(
    current: _CurrentSettings,
    adapters: _Adapters,
    *,
    agent: Agent,
    calls: PeerCalls | None,
    push: _Push | None,
    stopping: asyncio.Future[None],
) -> AsyncIterator[_Parts]:
    settings, log = current.settings, adapters.log
    limiter = Limiter(
        of=current.limits_of, has_budgets=current.has_budgets, store=SqlUsage(adapters.database)
    )
    log.on_usage = limiter.count
    locations = _locations(settings, adapters, limiter=limiter)
    worktrees = _worktrees(settings, adapters, locations=locations)
    sessions = Sessions(
        agent, adapters.bindings, locations=locations, worktrees=worktrees, limiter=limiter
    )
    scheduler = _scheduler(settings, adapters, sessions=sessions, limiter=limiter, calls=calls)
    watches = TaskWatches(log=log, summaries=log, clock=adapters.database.clock)
    log.on_change = watches.on_change
    async with scheduler.running(stopping), watches.running():
        services = _services(
            current,
            adapters,
            agent=agent,
            worktrees=worktrees,
            scheduler=scheduler,
            watches=watches,
            push=push.notifications if push is not None else None,
        )
        options = _options(settings, adapters, services=services, sessions=sessions)
        yield _Parts(
            adapters,
            services,
            scheduler=scheduler,
            tasks=_tasks(adapters, scheduler, services=services, options=options),
            stopping=stopping,
            push=push,
            cluster=_cluster(settings, adapters, services.nodes),
        )


@asynccontextmanager
async def _working(parts: _Parts) -> AsyncIterator[None]:
    """Do what goes on without requests: take tasks up, look at budgets, at nodes, clean up."""
    services, cluster = parts.services, parts.cluster
    async with (
        services.limiter.refreshing(),
        Recovery.open(parts.adapters.log, parts.scheduler, inputs=services.inputs),
        services.worktrees.sweeping(),
        cluster.running() if cluster is not None else nullcontext(),
    ):
        yield


def _built(server: Server, application: _Application, *, parts: _Parts, url: str) -> Built:
    opencode = parts.adapters.opencode
    return Built(
        _middleware(server, application.authenticator, url),
        at_work=parts.scheduler.at_work,
        release=lambda: opencode.release,
        is_connected=lambda: opencode.connected,
        reload=application.reload,
    )


def _gauges(
    adapters: _Adapters, scheduler: Scheduler
) -> dict[metrics.Gauge, Callable[[], metrics.Values]]:
    """What is read when somebody asks for the metrics."""

    def info() -> metrics.Values:
        release = adapters.opencode.release
        return {(__version__, release.version if release is not None else ""): 1}

    return {
        metrics.INFO: info,
        metrics.OPENCODE_CONNECTED: lambda: metrics.one(adapters.opencode.connected),
        metrics.STREAMS: lambda: metrics.one(len(open_streams)),
        **adapters.log.gauges,
        **scheduler.gauges,
    }


@dataclass(slots=True)
class _CurrentSettings:
    """The settings that hold now; a reload puts others in their place."""

    settings: Settings
    own_urls: tuple[str, ...]  # of this service and of its OpenCode
    peers: CallablePeers | None = None  # that the agent can call; None where it has no tools for it
    _limits: dict[str, Limits] = field(default_factory=dict)  # of callers that have their own
    _common_limits: Limits = UNLIMITED

    def __post_init__(self) -> None:
        self.take(self.settings)

    def take(self, settings: Settings) -> None:
        """Let these hold from now on."""
        self.settings = settings
        self._common_limits = settings.limits.limits()
        self._limits = {name: each.limits() for name, each in settings.limits_of.items()}

    def egress(self) -> Egress:
        """Where peers may be. The ports of this machine where we and our OpenCode listen are not
        among them.
        """
        here = (urlsplit(url) for url in self.own_urls)
        ports = {each.port for each in here if each.port and is_loopback(each.hostname or "")}
        return replace(
            egress_of(self.settings.outbound),
            own_ports=frozenset({*ports, self.settings.server.port}),
        )

    def limits_of(self, principal: str) -> Limits:
        return self._limits.get(principal, self._common_limits)

    def has_budgets(self) -> bool:
        return any(each.has_budget for each in (self._common_limits, *self._limits.values()))

    def rules(self) -> tuple[PermissionRule, ...]:
        return tuple(rule.rule for rule in self.settings.server.permission_rules)


@dataclass(frozen=True, slots=True)
class _Parts:
    """What the application works on. A reload does not touch it."""

    adapters: _Adapters
    services: Services
    scheduler: Scheduler
    tasks: Tasks
    stopping: asyncio.Future[None]
    push: _Push | None  # None where they are off
    cluster: Cluster | None  # None where the database is not shared


class _Application:
    """The application for the current settings, behind the authentication.

    A reload makes another one for new requests. Earlier ones finish in the one they began in.
    """

    def __init__(
        self, current: _CurrentSettings, parts: _Parts, *, url: str, issuer: Issuer | None
    ) -> None:
        self._current, self._parts, self._url = current, parts, url
        self._tokens, self._issuer = TokenWatch(current.settings), issuer
        self._app: ASGIApp
        self._build()
        self.authenticator = Authenticator(
            self,
            credentials=self._credentials(),
            is_public=self._is_public,
            on_error=failure,
        )
        if issuer is not None:
            issuer.on_keys = self._on_keys

    def __call__(self, scope: RequestScope, receive: Receive, send: Send) -> Awaitable[None]:
        """Count the request of a caller, and answer it. No outer frame: a stream takes minutes."""
        caller: Caller | None = scope.get("state", {}).get("caller")
        if caller is not None and not self._is_public(scope):
            try:
                self._parts.services.limiter.check_request(caller.principal)
            except ServiceError as exc:
                return failure(scope, exc)(scope, receive, send)
        return self._app(scope, receive, send)

    def _is_public(self, scope: RequestScope) -> bool:
        return self._api.is_public(scope)

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
        self._current.take(settings)
        self._parts.scheduler.hand_out_slots()  # callers may have more than before
        self._parts.services.limiter.look_soon()  # or less
        if self._issuer is not None:
            self._issuer.reload()
        self._tokens.look()
        cut_off = self.authenticator.replace(self._credentials())
        self._build()
        return cut_off

    def watching_tokens(self) -> AbstractAsyncContextManager[None]:
        """Look at the credentials file while the block lasts."""
        return self._tokens.watching(self._on_tokens, self._take_used)

    def _on_tokens(self) -> None:
        cut_off = self.authenticator.replace(self._credentials())
        tokens = len(self._tokens.tokens)
        logger.info("credentials.read", tokens=tokens, requests_ended=cut_off)
        self._build()  # its card may name another way to log in

    def _on_keys(self) -> None:
        cut_off = self.authenticator.replace(self._credentials())
        logger.info("oidc.key_removed", requests_ended=cut_off)

    def _take_used(self) -> dict[str, int]:
        """When tokens of the file were used, since this was last asked."""
        used, self.authenticator.last_used = self.authenticator.last_used, {}
        return used

    def _credentials(self) -> Credentials:
        settings = self._current.settings
        return credentials_of(settings, tokens=self._tokens.tokens, issuer=self._issuer)

    def _build(self) -> None:
        settings, parts = self._current.settings, self._parts
        server, opencode = settings.server, parts.adapters.opencode
        published = publication(
            settings,
            self._url,
            services=parts.services,
            release=lambda: opencode.release,
            calls_peers=self._current.peers is not None,
            has_console=is_built(),
            tokens=self._tokens.tokens,
        )
        forwarding = None
        if parts.cluster is not None:
            forwarding = Forwarding(parts.cluster, parts.tasks, published.contract)
            forwarding.install()
        operations = Operations(
            forwarding=forwarding,
            tasks=parts.tasks,
            card=published.card,
            stopping=parts.stopping,
            extension_uris=negotiation.known(published.contract.extensions),
            strict_version=server.strict_version,
            max_wait_seconds=server.max_send_wait_seconds or None,
            every_block=server.shows_every_block,
            max_call_depth=server.max_call_depth,
            limiter=parts.services.limiter,
            push=parts.push.notifications if parts.push is not None else None,
            push_keys=parts.push.published_keys if parts.push is not None else None,
        )
        self._api = api = Api(published)
        limit = server.max_request_body_bytes
        health, console = _health(parts.adapters), _console(settings, self._issuer)
        add_routes(api, operations, health, body_limit=limit, console=console)
        routes = application(api)
        if server.shows_payloads:  # what is logged can be read only if it is not compressed
            self._app = PayloadLog(routes, redactor=logs.redactor, limit=LOGGED_BODY_BYTES)
        else:
            self._app = GZipMiddleware(routes, GZIP_MIN_BYTES, GZIP_LEVEL)


@dataclass(frozen=True, slots=True)
class _Adapters:
    """The service's connections to the database, to OpenCode, and to files by URL."""

    database: Database
    log: SqlTaskLog
    bindings: SqlBindings
    interrupts: SqlInterrupts
    worktrees: SqlWorktrees
    conversations: SqlPeerConversations
    push: SqlPush
    opencode: OpenCode
    opencode_name: str
    files: NamedFiles


@asynccontextmanager
async def _open_adapters(
    settings: Settings, endpoints: Sequence[Endpoint], *, rules: Rules
) -> AsyncIterator[_Adapters]:
    root = settings.upstream.workspace_root
    name = settings.node.opencode or opencode_name(endpoints[0], root)
    async with (
        sole_service(settings.state.url(root), root=root) as has_file_lock,
        Database.open(settings.state.url(root)) as database,
        _open_log(
            settings, database, root=str(root), opencode=name, has_file_lock=has_file_lock
        ) as log,
        _connect(settings, endpoints, rules=rules) as opencode,
        NamedFiles.open(egress_of(settings.outbound), root) as files,
    ):
        yield _Adapters(
            database=database,
            log=log,
            bindings=SqlBindings(database, str(root), log.opencode),
            interrupts=SqlInterrupts(database, str(root)),
            worktrees=SqlWorktrees(database, str(root)),
            conversations=SqlPeerConversations(database, database.clock),
            push=SqlPush(database, database.clock, str(root)),
            opencode=opencode,
            opencode_name=name,
            files=files,
        )


@asynccontextmanager
async def _open_log(
    settings: Settings, database: Database, *, root: str, opencode: str, has_file_lock: bool
) -> AsyncIterator[SqlTaskLog]:
    if has_file_lock:  # a killed process need not be waited for until its leases have run out
        with suppress(StoreError):
            await database.write(release_all)
    named = opencode if database.is_server else None  # a file belongs to one OpenCode
    async with SqlTaskLog.open(database, _retention(settings), root=root, opencode=named) as log:
        yield log


def _nodes(settings: Settings, adapters: _Adapters, scheduler: Scheduler) -> Nodes:
    """This process, and the others on its database."""
    database, opencode = adapters.database, adapters.opencode
    known = Node(
        holder=adapters.log.holder,
        name=settings.node.name or f"{socket.gethostname()}:{os.getpid()}",
        opencode=adapters.opencode_name,
        root=str(settings.upstream.workspace_root),
        labels=frozenset(settings.node.labels),
        version=__version__,
        capacity=settings.upstream.max_concurrent_streams,
    )

    def describe() -> Node:
        release = opencode.release
        version = release.version if release is not None else ""
        return replace(known, load=len(scheduler.at_work()), opencode_version=version)

    shared = SqlNodes(database, known.holder) if database.is_server else None
    return Nodes(describe, clock=database.clock, shared=shared)


def _cluster(settings: Settings, adapters: _Adapters, nodes: Nodes) -> Cluster | None:
    """Works with the other nodes; None where the database is a file."""
    if not adapters.database.is_server:
        return None
    return Cluster(
        SqlNodes(adapters.database, adapters.log.holder),
        nodes.describe,
        log=adapters.log,
        return_ms=int(settings.node.return_seconds * 1_000),
        on_drained=lambda: signal.raise_signal(signal.SIGTERM),
    )


@dataclass(frozen=True, slots=True)
class _Push:
    notifications: PushNotifications
    published_keys: Json


@asynccontextmanager
async def _push(
    settings: Settings, adapters: _Adapters, *, issuer: str
) -> AsyncIterator[_Push | None]:
    """Push notifications; None where they are off."""
    server = settings.server
    if not server.push:
        yield None
        return
    from .outbound.push import SigningKeys, Webhooks  # not loaded where they are off

    file = _signing_key_file(settings)
    try:
        keys = await SigningKeys.load(partial(_read_signing_keys, file))
    except OSError as exc:
        raise ConfigError([f"A2A_PUSH_SIGNING_KEYS: {file}: {exc.strerror}"]) from None
    except ValueError as exc:
        raise ConfigError([f"A2A_PUSH_SIGNING_KEYS: {file}: {exc}"]) from None
    egress = Egress(
        allowed_hosts=frozenset(server.push_allowed_hosts),
        named_hosts=frozenset(server.push_private_hosts),
        hosts_setting="A2A_PUSH_ALLOWED_HOSTS",
        private_setting="A2A_PUSH_PRIVATE_HOSTS",
    )
    limits = PushLimits(challenges=server.push_validate)
    seconds = PUSH_TIMEOUT_SECONDS
    async with Webhooks.open(egress, keys, issuer=issuer, seconds=seconds) as receivers:
        sender = PushSender(
            adapters.push,
            receivers,
            render=PushRenderer(PUSH_BODY_BYTES),
            clock=adapters.database.clock,
            retry_ms=int(server.push_retry_hours * 3_600_000),
        )
        async with sender.running():
            adapters.log.on_commit = sender.wake
            notifications = PushNotifications(
                log=adapters.log,
                store=adapters.push,
                sender=sender,
                receivers=receivers,
                clock=adapters.database.clock,
                limits=limits,
            )
            with metrics.reading(sender.gauges):
                yield _Push(notifications, keys.published())


def _signing_key_file(settings: Settings) -> Path | None:
    """Where the key is kept that notifications are signed with; None: nowhere."""
    server = settings.server
    if server.push_signing_keys is not None:
        return server.push_signing_keys
    if settings.state.backend == "memory":
        return None
    try:
        return state_folder(settings.upstream.workspace_root) / "push-key.pem"
    except (OSError, RuntimeError) as exc:  # RuntimeError: there is no home directory
        problem = f"is not set, and the default directory cannot be used: {exc}"
        raise ConfigError([f"A2A_PUSH_SIGNING_KEYS: {problem}"]) from None


def _read_signing_keys(file: Path | None) -> str:
    """What is in the file; a key is made if there is none."""
    from .outbound.push import new_key

    if file is None:
        return new_key()
    tighten(file)
    if not file.exists():
        fresh = file.with_name(f"{file.name}.{secrets.token_hex(4)}")
        try:
            write_private_file(fresh, new_key())
            with suppress(FileExistsError):  # another process was first
                name_new_file(fresh, file)
        finally:
            fresh.unlink(missing_ok=True)
    return file.read_text(encoding="ascii")


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
        client = Peers(current.egress(), limits_of(outbound))
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


def _retention(settings: Settings) -> Retention:
    return Retention(tasks=settings.state.retention_seconds)


def _connect(
    settings: Settings, endpoints: Sequence[Endpoint], *, rules: Rules
) -> AbstractAsyncContextManager[OpenCode]:
    upstream = settings.upstream
    defaults = Defaults(
        str(upstream.workspace_root),
        agent=upstream.agent,
        system=upstream.system,
        variant=upstream.variant,
        rules=rules,
        run_seconds=upstream.timeout_stream,
    )
    return OpenCode.connect(endpoints, defaults, timeout=upstream.timeout)


def _locations(settings: Settings, adapters: _Adapters, *, limiter: Limiter) -> Locations:
    upstream, server = settings.upstream, settings.server
    return Locations(
        agent=adapters.opencode,
        store=adapters.bindings,
        root=upstream.workspace_root,
        shared=server.shared_sessions,
        directories=server.allow_directory_override,
        limiter=limiter,
    )


def _worktrees(
    settings: Settings, adapters: _Adapters, *, locations: Locations
) -> ContextWorktrees:
    folder = settings.state.worktrees(settings.upstream.workspace_root)
    return ContextWorktrees(
        store=adapters.worktrees,
        locations=locations,
        log=adapters.log,
        folder=folder.resolve() if folder is not None else None,
        idle_ms=WORKTREE_IDLE_DAYS * 86_400_000,
        clock=adapters.database.clock,
    )


def _services(
    current: _CurrentSettings,
    adapters: _Adapters,
    *,
    agent: Agent,
    worktrees: ContextWorktrees,
    scheduler: Scheduler,
    watches: TaskWatches,
    push: PushNotifications | None,
) -> Services:
    server, locations = current.settings.server, worktrees.locations
    limiter = locations.limiter
    return Services(
        agent=agent,
        ownership=Ownership(
            store=adapters.bindings,
            locations=locations,
            shared=server.shared_sessions,
            clock=adapters.database.clock,
            claim_ms=PENDING_CLAIM_SECONDS * 1_000,
            rules=current.rules,
            limiter=limiter,
        ),
        locations=locations,
        creator=Creator(locations),
        worktrees=worktrees,
        validator=Validator(locations.agent),
        inputs=Inputs(
            adapters.files,
            part_bytes=server.max_request_body_bytes // 2,  # it is base64 in a request
            message_bytes=server.max_request_body_bytes * 2,  # with files by URL
        ),
        interrupts=Interrupts(
            log=adapters.log,
            scheduler=scheduler,
            store=adapters.interrupts,
            shares_always=lambda: (
                server.permission_always == "workspace"
                and (release := adapters.opencode.release) is not None
                and SHARED_ALWAYS not in release.lacks
            ),
            limiter=limiter,
        ),
        limiter=limiter,
        usage=SqlUsage(adapters.database),
        watches=watches,
        nodes=_nodes(current.settings, adapters, scheduler),
        push=push,
    )


def _options(
    settings: Settings, adapters: _Adapters, *, services: Services, sessions: Sessions
) -> OptionsResolver:
    return CatalogOptionsResolver(
        ownership=services.ownership,
        validator=services.validator,
        sessions=sessions,
        bindings=adapters.bindings,
        worktrees=services.worktrees,
        has_label=services.nodes.has_label,
        agent=settings.upstream.agent,
        isolation=settings.server.isolation,
        limiter=services.limiter,
    )


def _tasks(
    adapters: _Adapters, scheduler: Scheduler, *, services: Services, options: OptionsResolver
) -> Tasks:
    return Tasks(
        agent=services.agent,
        log=adapters.log,
        scheduler=scheduler,
        interrupts=services.interrupts,
        options=options,
        inputs=services.inputs,
        clock=adapters.database.clock,
        limiter=services.limiter,
    )


def _scheduler(
    settings: Settings,
    adapters: _Adapters,
    *,
    sessions: Sessions,
    limiter: Limiter,
    calls: PeerCalls | None,
) -> Scheduler:
    return Scheduler(
        log=adapters.log,
        sessions=sessions,
        interrupts=adapters.interrupts,
        limits=_limits(settings),
        retelling=Retelling(adapters.log) if adapters.database.is_server else None,
        clock=adapters.database.clock,
        peer_calls=calls,
        limiter=limiter,
    )


def _limits(settings: Settings) -> SchedulerLimits:
    upstream, server = settings.upstream, settings.server
    return SchedulerLimits(
        deadline=upstream.timeout_stream,
        running=upstream.max_concurrent_streams,
        queued=server.max_queued_tasks,
        queued_per_caller=server.max_queued_tasks // 4,
        grace=server.shutdown_grace_seconds,
        answer=server.interrupt_request_ttl_seconds,
        continues=server.on_interrupted == "continue",
    )


def _console(settings: Settings, issuer: Issuer | None) -> Console:
    server = settings.server
    if not server.console:
        return Console(None)
    facts = ConsoleFacts(
        version=__version__,
        title=server.title,
        issuer=settings.oidc.issuer,
        client_id=server.console_oidc_client_id,
        scope=server.console_oidc_scope,
    )
    return Console(facts, token_endpoint=lambda: issuer.token_endpoint if issuer else None)


def _health(adapters: _Adapters) -> Health:
    async def is_connected() -> bool:
        return adapters.opencode.connected

    checks = {"store": adapters.database.takes_writes, "opencode": is_connected}
    return Health(checks, lambda: adapters.opencode.problem)


def _middleware(server: Server, app: ASGIApp, url: str) -> ASGIApp:
    """What stands before the authentication, innermost first."""
    origin, allowed = origin_of(url), server.allowed_origins
    served: ASGIApp = OriginCheck(app, own=origin, allowed=allowed, on_error=failure)
    if (hosts := server.checked_hosts) is not None:
        served = HostCheck(served, allowed=hosts, on_error=failure)
    served = Trace(served, failure)
    if server.trusted_proxies:
        return TrustedProxies(
            served,
            trusted=server.trusted_proxies,
            certificate_header=server.mtls_header or None,
        )
    return served


def publication(
    settings: Settings,
    url: str,
    *,
    services: Services | None = None,
    release: Callable[[], Release | None] = lambda: None,
    calls_peers: bool = True,
    has_console: bool = True,
    tokens: Sequence[StoredToken] = (),
) -> Published:
    """What the service publishes with these settings. Without services, no method can be called.

    `calls_peers`: the agent can get the tools for that, if the settings let it have them;
    `has_console`: its files are part of this installation.
    `release` is asked for the connected OpenCode whenever something is published. `tokens` are
    those of the credentials file.
    """
    server = settings.server
    facts = CardFacts(
        url=url,
        title=server.title,
        description=server.description,
        version=__version__,
        schemes=declared_schemes(settings, credentials_of(settings, tokens=tokens)),
        follows_proxy=server.public_url is None and bool(server.trusted_proxies),
        input_modes=INPUT_MODES,
        output_modes=OUTPUT_MODES,
        push=server.push,
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
        metrics=server.metrics,
        console=server.console and has_console,
        push=_declared_push(server) if server.push else None,
    )
    enabled = set(server.toggles)
    if settings.state.is_shared:
        enabled.add("A2A_TASK_STORE_DATABASE_URL")
    contract = Contract(ALL, enabled=enabled, services=services, release=release)
    return Published(facts, contract, deployment=deployment)


def _declared_push(server: Server) -> PushFacts:
    return PushFacts(
        configs_per_task=PushLimits().configs_per_task,
        retry_hours=server.push_retry_hours,
        challenges=server.push_validate,
        max_body_bytes=PUSH_BODY_BYTES,
    )


def _declared_calls(settings: Settings, *, offered: bool) -> DeclaredCalls:
    peers = tuple(sorted(name for name, peer in settings.peers.items() if peer.model_may_call))
    return DeclaredCalls(
        peers=peers if offered else (),
        any_peer=settings.outbound.allow_any_peer and offered,
        max_depth=settings.server.max_call_depth,
    )


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
    )


def public_url(server: Server, port: int) -> str:
    """The address in the card."""
    if server.public_url is not None:
        return server.public_url
    url = url_of_listener(server.host, port)
    return url if server.tls_certificate is None else url.replace("http://", "https://", 1)
