"""Settings in small groups: environment, then secret files, then a TOML file.

`A2A_PORT` in the environment is `port` under `[a2a]` in the file; `OPENCODE_…`
likewise under `[opencode]`. A file in the secrets directory has the name of its
setting, in any case. Nothing is read from the workspace: a stranger may have written
what is in there.
"""

from __future__ import annotations

import base64
import os
import tomllib
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SecretsSettingsSource,
    SettingsConfigDict,
)

from .domain.addresses import is_host, is_loopback, origin_of
from .domain.limits import Limits
from .domain.scopes import DEFAULT_SCOPES, SPELLINGS, Roles, Scope, UnknownScope, resolve
from .domain.values import PermissionRule
from .paths import folder_name, inside_git, state_folder, state_home
from .spellings import (
    FOREIGN_SETTINGS,
    Spellings,
    collect_notes,
    database_url,
    parse_json,
    parse_list,
    parse_url,
)

MAX_ROOT_LENGTH = 600  # characters; what a database can keep in an index

RESERVED_FILES = 256  # descriptors for all but clients: the database, OpenCode, attachments

MIN_SECRET_LENGTH = 16  # of a token or password that other machines can try
METRICS_WORDS = ("scope", "open", "off")
SECRET_COMMAND = "python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"


RELOADABLE = (  # settings of Server that a running service takes over at SIGHUP
    *("bearer_token", "static_auth_credentials", "mtls_scopes", "permission_rules"),
    *("log_level", "log_format", "log_payloads", "log_body_limit"),
)


RELOADABLE_OIDC = ("scope_map", "default_scopes")  # the same, of Oidc


class ConfigError(Exception):
    """The settings are wrong: one line for each problem."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def _check_web_address(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be an http or https URL")
    try:
        _ = parts.port
    except ValueError:
        raise ValueError("must have a port from 0 to 65535, or none") from None
    return value.rstrip("/")


def _check_directory(value: Path) -> Path:
    if not value.is_dir():
        raise ValueError("must be an existing directory")
    root = value.resolve()
    if inside_git(root):
        raise ValueError("must be a working directory; this one is inside a git directory")
    try:
        str(root).encode()
    except UnicodeEncodeError:
        raise ValueError("must have a path in UTF-8") from None
    if len(str(root)) > MAX_ROOT_LENGTH:
        raise ValueError(f"must have a path of at most {MAX_ROOT_LENGTH} characters")
    return root


def _check_database(value: str) -> str:
    from sqlalchemy.exc import ArgumentError

    try:
        parse_url(value).get_dialect().import_dbapi()
    except ImportError as exc:
        advice = ": pip install 'psycopg[binary]'" if exc.name == "psycopg" else ""
        raise ValueError(f"needs the Python package {exc.name}{advice}") from None
    except ArgumentError:  # there is no such database
        raise ValueError("must be a URL such as sqlite:////var/lib/a2a/tasks.db") from None
    return value


def _check_not_empty(value: SecretStr) -> SecretStr:
    if not value.get_secret_value().strip():
        raise ValueError("must not be empty")
    return value


def _check_no_padding(value: SecretStr) -> SecretStr:
    # A header cannot have any, so no request could present such a token.
    if value.get_secret_value() != value.get_secret_value().strip():
        raise ValueError("must not begin or end with a space or a line break")
    return value


def _check_metrics(value: str) -> str:
    word = value.strip().lower()
    if word in METRICS_WORDS:
        return word
    host, _, port = word.rpartition(":")
    if not (is_host(host.strip("[]")) and port.isdecimal() and int(port) <= 65_535):
        raise ValueError("must be scope, open, off, or an address such as 127.0.0.1:9464")
    return word


def _check_hosts(values: list[str]) -> list[str]:
    for value in values:
        if not is_host(value) and value != "*":
            raise ValueError("must list names or addresses without scheme, port or brackets")
    return [value.lower() for value in values]


def _check_origins(values: list[str]) -> list[str]:
    for value in values:
        try:
            is_origin = origin_of(value) == value.lower() and bool(urlsplit(value).hostname)
        except ValueError:  # of the port
            is_origin = False
        if not is_origin:
            raise ValueError(
                "must list origins such as https://app.example.com, without a path or the default "
                "port; `*` is not possible"
            )
    return [value.lower() for value in values]


def _check_networks(values: list[str]) -> list[str]:
    for value in values:
        try:
            ip_network(value)
        except ValueError:
            raise ValueError(
                "must list addresses or networks such as 10.0.0.5 or 10.0.0.0/8"
            ) from None
    return values


def _check_issuer(value: str | None) -> str | None:
    # As it is written: tokens name the issuer to the letter, with or without a slash at the end.
    if value is not None:
        _check_web_address(value)
        parts = urlsplit(value)
        if parts.query or parts.fragment:
            raise ValueError("must have neither a query nor a fragment")
        if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
            raise ValueError("must be an https URL, because whoever can change its keys can log in")
    return value


def _check_login(value: SecretStr | None) -> SecretStr | None:
    if value is not None and not all(value.get_secret_value().partition(":")):
        raise ValueError("must be a user name and a password with a colon between them")
    return value


def _check_reference(value: str) -> str:
    kind, _, name = value.partition(":")
    if kind not in ("env", "file") or not name.strip():
        raise ValueError("must be env:NAME or file:PATH; the secret itself does not belong here")
    return value


Secret = Annotated[SecretStr, AfterValidator(_check_not_empty)]
Token = Annotated[Secret, AfterValidator(_check_no_padding)]
WebAddress = Annotated[str, AfterValidator(_check_web_address)]
Directory = Annotated[Path, AfterValidator(_check_directory)]
DatabaseUrl = Annotated[str, AfterValidator(database_url), AfterValidator(_check_database)]
Json = (NoDecode, BeforeValidator(parse_json))
WordList = Annotated[list[str], NoDecode, BeforeValidator(parse_list)]
NameMap = Annotated[dict[str, list[str]], *Json]
SecretReference = Annotated[str, AfterValidator(_check_reference)]
Transport = Annotated[
    Literal["JSONRPC", "HTTP+JSON"],
    Spellings(json_rpc="JSONRPC", rest="HTTP+JSON", http_json="HTTP+JSON", http="HTTP+JSON"),
]
FileScope = Literal["unknown", "workspace", "declared_roots", "unrestricted", "custom"]
SandboxMode = Annotated[
    Literal[
        "unknown",
        "none",
        "process",
        "container",
        "vm",
        "read_only",
        "workspace_write",
        "custom",
    ],
    Spellings(danger_full_access="none"),
]
SCOPE_SPELLINGS = Spellings(
    workspace_only="workspace", workspace_and_declared_roots="declared_roots"
)
CAPABILITIES = {
    "session_shell": Scope.SESSIONS_SHELL,
    "workspace_mutation": Scope.WORKSPACES_WRITE,
}


class SettingsGroup(BaseSettings):
    model_config = SettingsConfigDict(extra="forbid", env_ignore_empty=True)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return env_settings, file_secret_settings, init_settings  # init is the TOML file


class Upstream(SettingsGroup):
    """The OpenCode server, and what goes with every prompt."""

    model_config = SettingsConfigDict(env_prefix="OPENCODE_")

    base_url: WebAddress | None = Field(
        default=None,
        examples=["http://127.0.0.1:4096"],
        description="The OpenCode server. Without it `serve` takes `http://127.0.0.1:4096`, where "
        "`opencode serve` listens; `up` starts its own and refuses it.",
    )
    command: str = Field(
        default="opencode",
        description="The executable that `up` starts. Without it OpenCode is taken from `PATH`, "
        "from `node_modules` of the checkout, or from where `opencode-a2a up --install-opencode` "
        "has put it; never from the workspace.",
    )
    workspace_root: Directory = Field(
        default_factory=Path.cwd,
        validate_default=True,
        description="Where the agent works; also the limit of `file://` attachments.",
    )
    auth_username: str = Field(default="opencode", description="For OpenCode's HTTP login.")
    auth_password: Secret | None = Field(default=None, description="For OpenCode's HTTP login.")
    agent: str | None = Field(
        default=None, examples=["plan"], description="OpenCode agent to use instead of `build`."
    )
    system: str | None = Field(
        default=None,
        examples=["Answer in English."],
        description="Text added to every system prompt.",
    )
    variant: str | None = Field(
        default=None, examples=["high"], description="Model variant, such as `high`."
    )
    timeout: float = Field(default=30.0, gt=0, description="Seconds OpenCode may take to answer.")
    timeout_stream: float = Field(
        default=1800.0, gt=0, description="Seconds of work a task may take before it is stopped."
    )
    max_concurrent_requests: int = Field(
        default=0, ge=0, description="Requests to OpenCode at a time; 0 means no limit."
    )
    max_concurrent_streams: int = Field(
        default=32,
        ge=0,
        description="Tasks worked on at a time; 0 means no limit. One caller alone may use them "
        "all. A caller with no running task starts one all the same while another caller has two "
        "or more running, so for a while up to twice as many may run.",
    )


class CredentialSetting(BaseModel):
    """One entry of A2A_STATIC_AUTH_CREDENTIALS."""

    model_config = ConfigDict(extra="forbid")

    credential_id: str | None = None  # a name for the operator's own use
    enabled: bool = True
    scheme: Annotated[Literal["bearer", "basic", "api_key"], Spellings(apikey="api_key")]
    principal: str = Field(min_length=1, max_length=255)
    token: Token | None = None
    username: str | None = None
    password: Secret | None = None
    scopes: list[str] = [*DEFAULT_SCOPES]  # or roles
    # The names that similar programs have for the scopes beyond the default ones.
    capabilities: list[Literal["session_shell", "workspace_mutation"]] | None = None

    @model_validator(mode="before")
    @classmethod
    def _named_by_login(cls, value: Any) -> Any:
        if isinstance(value, dict) and not value.get("principal") and value.get("username"):
            return {**value, "principal": value["username"]}
        return value

    @model_validator(mode="after")
    def _complete(self) -> CredentialSetting:
        if self.scheme != "basic" and not (self.token and self.token.get_secret_value()):
            name = "bearer credential" if self.scheme == "bearer" else "credential for an API key"
            raise ValueError(f"a {name} needs a token")
        if self.scheme == "basic" and not (self.username and self.password):
            raise ValueError("a basic credential needs a username and a password")
        if self.capabilities is not None:
            if "scopes" in self.model_fields_set:
                raise ValueError("scopes and capabilities say the same; keep scopes")
            self.scopes = [*DEFAULT_SCOPES, *(CAPABILITIES[name] for name in self.capabilities)]
        return self


class RuleSetting(BaseModel):
    """One entry of A2A_PERMISSION_RULES."""

    model_config = ConfigDict(extra="forbid")

    permission: str = Field(min_length=1)
    pattern: str = Field(default="*", min_length=1)
    action: Annotated[Literal["allow", "ask", "deny"], Spellings()]

    @property
    def rule(self) -> PermissionRule:
        return PermissionRule(self.permission, self.pattern, self.action)


class Server(SettingsGroup):
    """How clients reach this service, and who they are."""

    model_config = SettingsConfigDict(env_prefix="A2A_")

    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8000, ge=0, le=65535, description="Port; 0 takes a free one.")
    public_url: WebAddress | None = Field(
        default=None,
        examples=["https://agent.example.com"],
        description="Address in the Agent Card, when clients come through a proxy.",
    )
    allowed_hosts: Annotated[WordList, AfterValidator(_check_hosts)] = Field(
        default=[],
        description="Host names that requests may name besides loopback ones and that of "
        "`A2A_PUBLIC_URL`, as a list; requests for others get 403. `*` allows any. Without it "
        "the name is checked only where `A2A_HOST` is a loopback address.",
    )
    cors_origins: Annotated[WordList, AfterValidator(_check_origins)] = Field(
        default=[],
        description="Origins of web pages that may send requests, such as "
        "`https://app.example.com`, as a list. Pages of other origins get 403.",
    )
    console: bool = Field(default=True, description="Serve the web console at `/console`.")
    console_oidc_client_id: str | None = Field(
        default=None,
        min_length=1,
        max_length=255,
        examples=["opencode-console"],
        description="The public client as which people log in to the console at `A2A_OIDC_ISSUER` "
        "(code flow with PKCE). Without it they paste a token.",
    )
    console_oidc_scope: str = Field(
        default="openid",
        pattern=r"^[\x21\x23-\x5b\x5d-\x7e]+( [\x21\x23-\x5b\x5d-\x7e]+)*$",
        examples=["openid agent.run"],
        description="What the console asks for at that login, words with spaces between them. A "
        "token is good for nothing where its scopes do not say so.",
    )
    title: str = Field(default="OpenCode", description="The agent's name in its card.")
    description: str = Field(
        default="A coding agent that works in its own workspace.",
        description="The agent's description in its card.",
    )
    bearer_token: Token | None = Field(
        default=None,
        description="One token for one caller, the simple way. Without any credential `up` makes "
        "one for the workspace and keeps it; `opencode-a2a token` shows it.",
    )
    static_auth_credentials: Annotated[list[CredentialSetting], *Json] = Field(
        default=[],
        description='Several callers, as JSON: [{"scheme": "bearer", "token": …, "principal": …, '
        '"scopes": […]}, {"scheme": "basic", "username": …, "password": …}]. A basic one goes by '
        'its username unless it has a `principal`; `"enabled": false` switches one off. With the '
        "scheme `api_key` the token is expected in the header `X-API-Key`. `scopes` may name the "
        "roles of `[roles]`.",
    )
    credentials_file: Path | None = Field(
        default=None,
        examples=["/var/lib/opencode-a2a/credentials.json"],
        description="The file with the hashes of the tokens that `opencode-a2a token create` "
        "makes. Changes count within a second. Without it, `credentials.json` in the root's folder "
        "in the user's state directory.",
    )
    trusted_proxies: Annotated[WordList, AfterValidator(_check_networks)] = Field(
        default=[],
        description="Addresses or networks of proxies, as a list such as `10.0.0.5, fd00::/8`. "
        "Only they can say for whom they ask (`A2A_FORWARDED_HEADER`) and which certificate the "
        "client has (`A2A_MTLS_HEADER`).",
    )
    forwarded_header: Literal["x-forwarded", "forwarded"] = Field(
        default="x-forwarded",
        description="What the trusted proxies send: `X-Forwarded-For`, `-Proto` and `-Host`, or "
        "`Forwarded`. The other is ignored, because a proxy passes on what it does not set.",
    )
    mtls_header: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9-]*$",
        description="The header field in which a trusted proxy names the client certificate that "
        "it has verified: `X-Forwarded-Client-Cert` as Envoy writes it, or one with the subject. "
        "Without it, certificates are not looked at.",
    )
    mtls_scopes: NameMap = Field(
        default={},
        description="The scopes or roles of the holders of certificates, as JSON or a table: by "
        "subject or URI, with `*` for all others. Without it, all have the default scopes.",
    )
    mtls_from_loopback: bool = Field(
        default=False,
        description="Allow `A2A_MTLS_HEADER` where a loopback address is a trusted proxy, although "
        "every program on the machine can connect from there, the agent included.",
    )
    tls_certificate: Path | None = Field(
        default=None,
        examples=["/etc/letsencrypt/live/agent.example.com/fullchain.pem"],
        description="The certificate and its chain (PEM), to serve HTTPS instead of HTTP. A "
        "renewed one is used for new connections within seconds.",
    )
    tls_key: Path | None = Field(
        default=None,
        examples=["/etc/letsencrypt/live/agent.example.com/privkey.pem"],
        description="The key of the certificate (PEM, without a password).",
    )
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Spellings(warn="warning", critical="error", fatal="error"),
    ] = Field(default="info", description="What is written to the log.")
    log_format: Annotated[
        Literal["console", "json"], Spellings(text="console", plain="console", logfmt="console")
    ] = Field(default="console", description="`json` writes each line of the log as a JSON object.")
    log_payloads: bool = Field(
        default=False,
        description="Log what requests and answers hold, without secrets, at the level `info`. For "
        "finding faults: prompts and answers are in the log then.",
    )
    log_body_limit: int = Field(
        default=4096,
        ge=0,
        description="How many bytes of a body, or of a piece of a stream, are logged; 0 means all.",
    )
    metrics: Annotated[str, AfterValidator(_check_metrics)] = Field(
        default="scope",
        examples=["127.0.0.1:9464"],
        description="Who gets the metrics for Prometheus at `/metrics`: callers with the scope "
        "`metrics:read` (`scope`), everybody (`open`), or nobody (`off`). `HOST:PORT` serves them "
        "there instead, without a credential, so let only Prometheus reach that.",
    )
    audit_log: str | None = Field(
        default=None,
        examples=["journald"],
        description="Where to write who has changed what, and which logins were refused, one JSON "
        "object per line: a file, which is made for this user only and appended to, or `journald`.",
    )
    strict_version: bool = Field(
        default=False, description="Refuse 1.0 requests that do not say A2A-Version: 1.0."
    )
    stream_blocks: Annotated[Literal["answer", "all"], Spellings()] = Field(
        default="answer",
        description="What clients get that have not activated the stream-hints extension: the "
        "agent's text and files (`answer`), or also its reasoning, tool calls, changes and "
        "progress (`all`), as if all of them had activated it.",
    )
    session_titles: Annotated[Literal["model", "message"], Spellings()] = Field(
        default="model",
        description="Who makes the title of a new OpenCode session: OpenCode, which asks a model "
        "for it once in each conversation (`small_model` of its configuration, if that is set; "
        "no usage of a task), or this service, from the first line of the first message "
        "(`message`), which costs nothing.",
    )
    max_request_body_bytes: int = Field(
        default=16_777_216,
        ge=1024,
        description="Larger requests get 413. A file in a message is base64, a third larger than "
        "the file; the default leaves room for one of `A2A_MAX_PART_BYTES`. Nothing is read of a "
        "body before the caller is known.",
    )
    max_request_head_bytes: int = Field(
        default=32_768,
        ge=4096,
        description="Requests whose head (request line and header fields) is larger get 431.",
    )
    request_head_timeout_seconds: float = Field(
        default=15.0, gt=0, description="How long the head of a request may take to arrive."
    )
    request_body_timeout_seconds: float = Field(
        default=30.0,
        gt=0,
        description="How long the body of a request may take to arrive; every 512 bytes that have "
        "arrived allow a second more.",
    )
    max_connections: int = Field(
        default=8192,
        ge=16,
        description="Open connections; fewer if the limit for open files (`ulimit -n`) is low.",
    )
    max_connections_per_address: int = Field(
        default=1024,
        ge=1,
        description="Open connections from one address that have not carried a request with a "
        "valid credential yet; a new one closes the one that has waited longest. Known callers do "
        "not count.",
    )
    max_part_bytes: int = Field(
        default=8_388_608, ge=1, description="Larger message parts, or files by URL, are refused."
    )
    max_message_bytes: int = Field(
        default=33_554_432,
        ge=1,
        description="What the parts of a message may have together, with the files by URL, which "
        "are not part of the request.",
    )
    max_queued_tasks: int = Field(
        default=256, ge=0, description="Tasks that may wait for OpenCode; more get 429."
    )
    max_queued_tasks_per_caller: int = Field(
        default=64,
        ge=0,
        description="Tasks of one caller that may wait when the queue is full: a caller with fewer "
        "is let in even then, so that nobody can fill it for the others.",
    )
    max_call_depth: int = Field(
        default=3,
        ge=0,
        le=99,
        description="How many calls from agent to agent may follow each other. A message of a "
        "person is at depth 0, and each call that an agent makes for it is one deeper. The agent "
        "makes no call that is deeper than this, and a message that is gets 508. With 0 the agent "
        "calls nobody, and other agents cannot call it for their tasks.",
    )
    max_send_wait_seconds: float = Field(
        default=0.0,
        ge=0,
        description="How long a blocking send waits; then it is answered with the task as it "
        "stands, to be looked at later. 0 means until the task has ended or needs a person, as "
        "A2A says. A client asks for less with the header `Prefer: wait=10`.",
    )
    on_interrupted: Annotated[
        Literal["fail", "continue"], Spellings(resume="continue", retry="continue")
    ] = Field(
        default="fail",
        description="What becomes of a task whose work OpenCode has lost because it was killed: "
        "it fails, and says how to continue (`metadata.opencode.resume`); or (`continue`) the "
        "agent is told that it was interrupted and asked to continue, once for each task.",
    )
    shutdown_grace_seconds: float = Field(
        default=5.0,
        ge=0,
        le=300,
        description="How long running tasks may go on when the service stops; at most 300.",
    )
    cancel_abort_timeout_seconds: float = Field(
        default=10.0, gt=0, description="How long a cancel waits for OpenCode to stop."
    )
    shared_sessions: bool = Field(
        default=True,
        description="Whether sessions that nobody owns, such as those started in OpenCode itself, "
        "can be seen and claimed by every caller.",
    )
    pending_session_claim_ttl_seconds: float = Field(
        default=30.0,
        gt=0,
        description="How long a session nobody owned stays with the caller whose request to change "
        "it failed.",
    )
    allow_directory_override: bool = Field(
        default=True,
        description="Let callers choose a directory below the root or in their worktrees.",
    )
    isolation: Annotated[Literal["none", "worktree", "never"], Spellings()] = Field(
        default="none",
        description="What a new context gets whose first message does not say "
        "(`metadata.opencode.isolation`): with `worktree` a git worktree and a branch of its own. "
        "With `never`, messages that ask for one are refused.",
    )
    worktree_directory: Path | None = Field(
        default=None,
        examples=["/var/lib/opencode-a2a/worktrees"],
        description="Where the worktrees of isolated contexts are made; OpenCode must be able to "
        "use it. Without it, in the root's folder in the user's state directory.",
    )
    worktree_idle_seconds: float = Field(
        default=7 * 86_400.0,
        ge=0,
        description="After how long without a task the worktree of an isolated context is removed, "
        "if it holds nothing uncommitted or unmerged and no file that git ignores; 0 means never.",
    )
    enable_session_shell: bool = Field(
        default=False, description="Offer `opencode.sessions.shell`: any command, unasked."
    )
    enable_workspace_mutations: bool = Field(
        default=False, description="Offer to create, reset and delete workspaces and worktrees."
    )

    @property
    def metrics_listener(self) -> tuple[str, int] | None:
        """Where the metrics have a listener of their own."""
        if self.metrics in METRICS_WORDS:
            return None
        host, _, port = self.metrics.rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def shows_every_block(self) -> bool:
        return self.stream_blocks == "all"

    @property
    def shows_payloads(self) -> bool:
        return self.log_payloads and self.log_level in ("debug", "info")

    @property
    def toggles(self) -> frozenset[str]:
        """The names of the settings that switch methods on, where they are."""
        return frozenset(
            f"A2A_{name.upper()}"
            for name in ("enable_session_shell", "enable_workspace_mutations", "push")
            if getattr(self, name)
        )

    interrupt_request_ttl_seconds: float = Field(
        default=10_800.0,
        gt=0,
        description="How long a permission or question of the agent waits for a person.",
    )
    interrupt_request_tombstone_ttl_seconds: float = Field(
        default=600.0,
        ge=0,
        description="How long a settled one is remembered, to tell who comes too late.",
    )
    permission_always: Annotated[Literal["context", "workspace"], Spellings()] = Field(
        default="context",
        description='What "always" covers: this caller\'s context, or (`workspace`) every session '
        "of the directory until OpenCode restarts. OpenCode 2 would remember it for good, so with "
        "it `workspace` means the context as well.",
    )
    permission_rules: Annotated[list[RuleSetting], *Json] = Field(
        default=[],
        description='What new sessions may do, as JSON: [{"permission": "bash", "pattern": '
        '"git *", "action": "allow"}, …]; the last match counts. OpenCode\'s own rules come first, '
        "and its sub-agents inherit only what is denied (or about external directories).",
    )
    push: bool = Field(
        default=False,
        description="Send push notifications to receivers that clients name. The Agent Card says "
        "so.",
    )
    push_allowed_hosts: Annotated[WordList, AfterValidator(_check_hosts)] = Field(
        default=[],
        description="Hosts that push notifications may go to, as a list; none means any public one "
        "over https.",
    )
    push_private_hosts: Annotated[WordList, AfterValidator(_check_hosts)] = Field(
        default=[],
        description="Hosts of receivers that may have a private address, such as `127.0.0.1`, and "
        "that may be reached over http; as a list.",
    )
    push_validate: bool = Field(
        default=False,
        description="Ask a receiver before it is registered: it must answer `GET` with the value "
        "of the query parameter `validationToken`.",
    )
    push_retry_hours: float = Field(
        default=24.0,
        gt=0,
        le=168.0,
        description="How long an event is tried again that its receiver does not take. Then it is "
        "a dead letter.",
    )
    push_timeout_seconds: float = Field(
        default=15.0, gt=0, le=60.0, description="How long a receiver may take to answer."
    )
    push_max_configs: int = Field(default=10, ge=1, le=100, description="Receivers of one task.")
    push_max_body_bytes: int = Field(
        default=1_048_576,
        ge=4_096,
        description="How large a notification may be. A larger one has the status alone.",
    )
    push_signing_keys: Path | None = Field(
        default=None,
        examples=["/etc/opencode-a2a/push-keys.pem"],
        description="The private key that notifications are signed with, as PEM (P-256, PKCS #8). "
        "The first key of the file signs, and `/.well-known/jwks.json` has all of them. Without it "
        "one is made in the state directory of the workspace root.",
    )

    _all_credentials: list[CredentialSetting] = PrivateAttr(default=[])

    @property
    def all_credentials(self) -> list[CredentialSetting]:
        """As they were given; `static_auth_credentials` has only those that are enabled."""
        return self._all_credentials

    @property
    def has_credentials(self) -> bool:
        return self.bearer_token is not None or bool(self.static_auth_credentials)

    @model_validator(mode="after")
    def _only_enabled(self) -> Server:
        self._all_credentials = self.static_auth_credentials
        self.static_auth_credentials = [entry for entry in self._all_credentials if entry.enabled]
        return self

    @model_validator(mode="after")
    def _each_secret_once(self) -> Server:
        tokens = [c.token.get_secret_value() for c in self.static_auth_credentials if c.token]
        if self.bearer_token is not None:
            tokens.append(self.bearer_token.get_secret_value())
        if len(tokens) != len(set(tokens)):
            raise ValueError("A2A_STATIC_AUTH_CREDENTIALS: the same token stands for two callers")
        return self

    @model_validator(mode="after")
    def _proxies_and_tls_fit(self) -> Server:
        problems = []
        if (self.tls_certificate is None) != (self.tls_key is None):
            missing = "TLS_KEY" if self.tls_key is None else "TLS_CERTIFICATE"
            problems.append(f"A2A_{missing}: is missing; a certificate and its key go together")
        if self.mtls_header and not self.trusted_proxies:
            problems.append(
                "A2A_MTLS_HEADER: needs A2A_TRUSTED_PROXIES, since only those can be believed"
            )
        local = [
            each for each in self.trusted_proxies if ip_network(each).overlaps(_loopback(each))
        ]
        if self.mtls_header and local and not self.mtls_from_loopback:
            problems.append(
                f"A2A_MTLS_HEADER: every program on this machine, the agent included, could pose "
                f"as the proxy at {local[0]} and name any certificate. Let the proxy come from "
                "another address, or accept that with A2A_MTLS_FROM_LOOPBACK=true"
            )
        if problems:
            raise ValueError("\n".join(problems))
        return self

    @property
    def enabled_secrets(self) -> dict[str, SecretStr]:
        """The tokens and passwords that are accepted, by the names of their settings."""
        given = {"A2A_BEARER_TOKEN": self.bearer_token}
        for number, credential in enumerate(self.all_credentials):
            if not credential.enabled:
                continue
            name = f"A2A_STATIC_AUTH_CREDENTIALS.{number}"
            given |= {f"{name}.token": credential.token, f"{name}.password": credential.password}
        return {name: secret for name, secret in given.items() if secret is not None}

    @property
    def short_secrets(self) -> list[str]:
        """The settings whose token or password is so short that it could be guessed."""
        return [
            name
            for name, secret in self.enabled_secrets.items()
            if len(secret.get_secret_value().strip()) < MIN_SECRET_LENGTH
        ]

    @property
    def guessable(self) -> list[str]:
        """What is wrong with secrets that are too short where others can try them."""
        reached = self._reached_at
        return [
            f"{name}: is shorter than {MIN_SECRET_LENGTH} characters, too short where {reached} "
            f"rather than a loopback address. Make a better one: {SECRET_COMMAND}"
            for name in self.short_secrets
            if reached
        ]

    @model_validator(mode="after")
    def _hard_to_guess(self) -> Server:
        if problems := self.guessable:
            raise ValueError("\n".join(problems))
        return self

    def reloaded(self, new: Server) -> Server:
        """These settings, with those of the new ones that a running service can take over."""
        taken = self.model_copy(update={name: getattr(new, name) for name in RELOADABLE})
        taken._all_credentials = new.all_credentials
        if problems := taken.guessable:  # the address stays as it is
            raise ConfigError(problems)
        return taken

    @property
    def checked_hosts(self) -> set[str] | None:
        """The names that a request may have for this service; None where any will do."""
        if "*" in self.allowed_hosts or not (self.allowed_hosts or is_loopback(self.host)):
            return None
        own = urlsplit(self.public_url).hostname if self.public_url else None
        return {self.host.lower(), *self.allowed_hosts, *([own] if own else [])}

    @property
    def _reached_at(self) -> str | None:
        """The setting that says that others than this machine can reach the service, if one does.

        A proxy may bring them to a loopback address.
        """
        if not is_loopback(self.host):
            return f"A2A_HOST is {self.host}"
        if self.public_url and not is_loopback(urlsplit(self.public_url).hostname or ""):
            return f"A2A_PUBLIC_URL is {self.public_url}"
        return None


def _loopback(like: str) -> IPv4Network | IPv6Network:
    """The loopback addresses of the kind that this one is of."""
    return ip_network("::1" if ip_network(like).version == 6 else "127.0.0.0/8")


class Oidc(SettingsGroup):
    """Callers who log in elsewhere: access tokens (JWT) of an OpenID Connect provider."""

    model_config = SettingsConfigDict(env_prefix="A2A_OIDC_")

    issuer: Annotated[str | None, AfterValidator(_check_issuer)] = Field(
        default=None,
        examples=["https://login.example.com/realms/main"],
        description="Whose access tokens are accepted, as the tokens name it (`iss`). Its keys are "
        "found by OpenID Connect Discovery.",
    )
    audience: Annotated[list[str] | None, NoDecode, BeforeValidator(parse_list)] = Field(
        default=None,
        examples=[["https://agent.example.com"]],
        description="For whom a token must be made (`aud`), as a list; one of them is enough.",
    )
    authorized_parties: WordList = Field(
        default=[],
        description="The clients whose tokens are accepted (`azp`, or `client_id`), as a list; "
        "none means all clients of the issuer.",
    )
    leeway_seconds: float = Field(
        default=30.0, ge=0, le=300, description="How far the clocks may differ."
    )
    principal_claim: str = Field(
        default="sub",
        min_length=1,
        description="The claim that names the caller. It must be one that nobody can choose.",
    )
    principal_prefix: str = Field(
        default="oidc:",
        description="What precedes the name, so that nobody gets the name of another kind of "
        "caller.",
    )
    scopes_claim: str = Field(
        default="scope",
        min_length=1,
        description="The claim that says what a token is good for: words with spaces between them, "
        "or a list. A dot leads into an object: `realm_access.roles`.",
    )
    scope_map: NameMap = Field(
        default={},
        description="What the words of that claim mean, as JSON or a table: each with a list of "
        "scopes or roles. Without it they are names of scopes and roles; others mean nothing.",
    )
    default_scopes: WordList = Field(
        default=[], description="Scopes or roles that every token of the issuer has, as a list."
    )
    token_url: WebAddress | None = Field(
        default=None,
        examples=["https://login.example.com/realms/main/token"],
        description="The token endpoint, for the card: it then offers OAuth 2.0 with client "
        "credentials.",
    )
    authorization_url: WebAddress | None = Field(
        default=None,
        examples=["https://login.example.com/realms/main/auth"],
        description="The authorization endpoint, for the card: it then offers the authorization "
        "code flow instead.",
    )

    @model_validator(mode="after")
    def _is_whole(self) -> Oidc:
        problems = []
        if self.issuer is not None and not self.audience:
            problems.append(
                "A2A_OIDC_AUDIENCE: is missing; without it the tokens that other services get "
                "would be good for this one"
            )
        if self.issuer is None and self.audience:
            problems.append("A2A_OIDC_ISSUER: is missing; A2A_OIDC_AUDIENCE needs it")
        if self.authorization_url is not None and self.token_url is None:
            problems.append("A2A_OIDC_TOKEN_URL: is missing; A2A_OIDC_AUTHORIZATION_URL needs it")
        if problems:
            raise ValueError("\n".join(problems))
        return self


class State(SettingsGroup):
    """Where tasks are kept."""

    model_config = SettingsConfigDict(env_prefix="A2A_TASK_STORE_")

    backend: Annotated[Literal["database", "memory"], Spellings()] = Field(
        default="database", description="`memory` forgets everything when the service stops."
    )
    database_url: DatabaseUrl | None = Field(
        default=None,
        examples=["sqlite:////var/lib/opencode-a2a/tasks.db"],
        repr=False,  # it may hold a password
        description="SQLAlchemy URL. Without it each workspace root has its own SQLite file in the "
        "user's state directory: `~/.local/state/opencode-a2a/my-project-1f3a9c2b/tasks.db`.",
    )
    replay_seconds: float = Field(
        default=900.0, ge=0, description="How long the single events of an ended task are kept."
    )

    retention_seconds: float = Field(
        default=30 * 86_400.0,
        ge=0,
        description="How long ended tasks, and conversations with peers, are kept; 0 means for "
        "ever.",
    )
    idempotency_seconds: float = Field(
        default=86_400.0, gt=0, description="How long a repeated request is recognised."
    )
    usage_retention_seconds: float = Field(
        default=400 * 86_400.0,
        ge=0,
        description="How long it is kept what callers have used, also after their tasks are "
        "deleted: at least 32 days (2764800), because budgets are for a month; 0 means for ever.",
    )

    @model_validator(mode="after")
    def _keeps_a_month(self) -> State:
        if 0 < self.usage_retention_seconds < 32 * 86_400:
            raise ValueError(
                "A2A_TASK_STORE_USAGE_RETENTION_SECONDS: must be at least 32 days (2764800), or 0 "
                "for ever"
            )
        return self

    def url(self, root: Path) -> str:
        if self.backend == "memory":
            return "sqlite://"
        if self.database_url is not None:
            return self.database_url
        return f"sqlite:///{self.folder(root) / 'tasks.db'}"

    def folder(self, root: Path) -> Path:
        """The directory for the data of a workspace root; created if there is none."""
        try:
            return state_folder(root)
        except (OSError, RuntimeError) as exc:  # RuntimeError: there is no home directory
            why = f"{exc.filename}: {exc.strerror}" if isinstance(exc, OSError) else str(exc)
            problem = f"is not set, and the default directory cannot be used: {why}"
            raise ConfigError([f"A2A_TASK_STORE_DATABASE_URL: {problem}"]) from None

    def worktrees(self, root: Path) -> Path | None:
        """Where the worktrees of a root are made; None where the user has no home directory."""
        try:
            return state_home() / folder_name(root) / "worktrees"
        except RuntimeError:
            return None

    @property
    def is_shared(self) -> bool:
        """Whether several processes can use it, each as a node."""
        url = self.database_url or ""
        return self.backend == "database" and url.startswith("postgresql")


class NodeSettings(SettingsGroup):
    """This process among others that share its PostgreSQL database."""

    model_config = SettingsConfigDict(env_prefix="A2A_NODE_")

    name: str | None = Field(
        default=None,
        max_length=255,
        examples=["node-1"],
        description="How `opencode-a2a nodes` calls this process; without it, the name of the "
        "machine and the number of the process.",
    )
    labels: WordList = Field(
        default=[],
        examples=[["gpu", "repo-b"]],
        description="Words for what the node has that others may not have. A message that begins a "
        "context can ask for one of them (`metadata.opencode.node`), also for a node of another "
        "workspace root.",
    )
    return_seconds: float = Field(
        default=300.0,
        gt=0,
        description="How long tasks wait for a node of their OpenCode to return. Then they fail, "
        "and their contexts go on at another node, in a new session that is told what was said.",
    )
    opencode: str | None = Field(
        default=None,
        max_length=255,
        examples=["build-farm-1"],
        description="Which OpenCode this service uses. Services on one PostgreSQL database that "
        "have the same name here take over each other's tasks; others leave them alone. Without "
        "it, the name is `OPENCODE_BASE_URL`; for a loopback address, the port with the machine's "
        "name and id; for an OpenCode that `up` starts, the workspace root with these.",
    )


class CallerLimits(BaseModel):
    """What a caller may use."""

    model_config = ConfigDict(extra="forbid")

    requests_per_minute: int = Field(
        default=0,
        ge=0,
        description="Requests with a credential, also repeated ones and answers; more get 429. All "
        "of a minute's may come at once. 0 means no limit, here and below.",
    )
    running_tasks: int = Field(
        default=0, ge=0, description="Tasks worked on at a time; others wait, also for free slots."
    )
    queued_tasks: int = Field(
        default=0,
        ge=0,
        description="Tasks beyond the running ones (`running_tasks`, or else "
        "`OPENCODE_MAX_CONCURRENT_STREAMS`) that may wait; more get 429. Those that wait for a "
        "person do not count.",
    )
    stream_minutes_per_day: float = Field(
        default=0,
        ge=0,
        description="How long streams may be open in a day (UTC), all together, in each process "
        "since it started; then they end, and new ones get 429. Tasks go on, and can be read.",
    )
    body_bytes: int = Field(
        default=0,
        ge=0,
        description="Larger requests get 413; more than `A2A_MAX_REQUEST_BODY_BYTES` is never "
        "taken.",
    )
    tokens_per_day: int = Field(
        default=0,
        ge=0,
        description="Tokens of all kinds (input, output, reasoning, cached) that models may use in "
        "a day (UTC). Then running tasks are stopped after the step that reached it, with "
        "`BUDGET_EXCEEDED`, and new ones get 429.",
    )
    tokens_per_month: int = Field(default=0, ge=0, description="The same in a month (UTC).")
    cost_per_day: float = Field(
        default=0,
        ge=0,
        description="The same in dollars, as OpenCode reports them: models whose price it does not "
        "know cost nothing.",
    )
    cost_per_month: float = Field(default=0, ge=0, description="The same in a month (UTC).")
    models: WordList = Field(
        default=[],
        description="Models that may answer, as `provider/model`, where `*` stands for anything; "
        "none named means all. A request that chooses none gets the default one if that is among "
        "them, or else the first that is named without `*`.",
    )
    agents: WordList = Field(
        default=[], description="Agents that may answer; in the same way as `models`."
    )
    directories: WordList = Field(
        default=[],
        description="Directories in and below which sessions may work, as paths from the workspace "
        "root; none named means all. A request that chooses none works in the root, if that is "
        "among them, or else in the first. Worktrees of the caller's own are not limited.",
    )
    permission_rules: Annotated[list[RuleSetting], *Json] = Field(
        default=[],
        description="What new sessions of the caller may not do, in addition to "
        '`A2A_PERMISSION_RULES` and written like them: [{"permission": "bash", "action": "deny"}]. '
        "Each must deny.",
    )

    @model_validator(mode="after")
    def _only_denies(self) -> CallerLimits:
        if any(rule.action != "deny" for rule in self.permission_rules):
            raise ValueError(
                "permission_rules: a limit can only deny; what is allowed, or asked for, stands in "
                "A2A_PERMISSION_RULES"
            )
        return self

    def limits(self) -> Limits:
        values = {name: getattr(self, name) for name in type(self).model_fields}
        for name in ("models", "agents", "directories"):
            values[name] = tuple(values[name])
        rules = tuple(rule.rule for rule in self.permission_rules)
        return Limits(**{**values, "permission_rules": rules})


class LimitSettings(CallerLimits, SettingsGroup):
    """How much each caller may use."""

    model_config = SettingsConfigDict(env_prefix="A2A_LIMIT_", extra="forbid")


class Environment(SettingsGroup):
    """What the operator says about where the agent runs. Published, not enforced."""

    model_config = SettingsConfigDict(env_prefix="A2A_")
    _SUBJECTS: ClassVar = ("sandbox", "network", "approval", "write_access")

    sandbox_mode: SandboxMode = Field(default="unknown", description="What keeps the agent in.")
    sandbox_filesystem_scope: Annotated[FileScope, SCOPE_SPELLINGS] = Field(
        default="unknown", description="What it can read."
    )
    sandbox_writable_roots: WordList = Field(
        default=[], description="Directories besides the workspace it can write to, as a list."
    )
    network_access: Annotated[
        Literal["unknown", "none", "restricted", "unrestricted", "custom"],
        Spellings(disabled="none", enabled="unrestricted"),
    ] = Field(default="unknown", description="What it can connect to.")
    network_allowed_domains: WordList = Field(
        default=[], description="With `restricted`: these, as a list."
    )
    approval_policy: Annotated[
        Literal["unknown", "never", "on_request", "on_failure", "untrusted", "always", "custom"],
        Spellings(),
    ] = Field(default="unknown", description="When it asks a person before it acts.")
    approval_escalation_behavior: Annotated[
        Literal["unknown", "none", "manual", "automatic", "custom"], Spellings(unsupported="none")
    ] = Field(default="unknown", description="Who decides about what it asks for.")
    write_access_scope: Annotated[FileScope | Literal["none"], SCOPE_SPELLINGS] = Field(
        default="unknown", description="What it can write."
    )
    write_access_outside_workspace: Annotated[
        Literal["unknown", "allowed", "denied", "custom"], Spellings(disallowed="denied")
    ] = Field(default="unknown", description="Whether it can write outside the workspace.")

    @property
    def declared(self) -> dict[str, dict[str, Any]]:
        """By subject: sandbox, network, approval, write_access."""
        found: dict[str, dict[str, Any]] = {}
        for name in type(self).model_fields:
            subject = next(s for s in self._SUBJECTS if name.startswith(s))
            found.setdefault(subject, {})[name.removeprefix(f"{subject}_")] = getattr(self, name)
        return found

    @model_validator(mode="after")
    def _no_contradictions(self) -> Environment:
        roots, writes = self.sandbox_writable_roots, self.write_access_scope
        outside = self.write_access_outside_workspace
        wrong = {
            "A2A_NETWORK_ALLOWED_DOMAINS: has a meaning only with A2A_NETWORK_ACCESS=restricted": (
                self.network_allowed_domains and self.network_access != "restricted"
            ),
            "A2A_SANDBOX_FILESYSTEM_SCOPE: without a sandbox (A2A_SANDBOX_MODE=none) it must be "
            "unrestricted or unknown": self.sandbox_mode == "none"
            and self.sandbox_filesystem_scope not in ("unknown", "unrestricted"),
            "A2A_SANDBOX_WRITABLE_ROOTS: contradicts A2A_WRITE_ACCESS_SCOPE=" + writes: (
                roots and writes in ("workspace", "none")
            ),
            "A2A_SANDBOX_WRITABLE_ROOTS: there are none with A2A_SANDBOX_MODE=none": (
                roots and self.sandbox_mode == "none"
            ),
            "A2A_SANDBOX_FILESYSTEM_SCOPE: declared_roots needs A2A_SANDBOX_WRITABLE_ROOTS": (
                self.sandbox_filesystem_scope == "declared_roots" and not roots
            ),
            f"A2A_WRITE_ACCESS_SCOPE: {writes} is more than "
            f"A2A_SANDBOX_FILESYSTEM_SCOPE={self.sandbox_filesystem_scope}": (
                self.sandbox_filesystem_scope in ("workspace", "declared_roots")
                and writes == "unrestricted"
            ),
            "A2A_WRITE_ACCESS_SCOPE: declared_roots needs A2A_SANDBOX_WRITABLE_ROOTS": (
                writes == "declared_roots" and not roots
            ),
            f"A2A_WRITE_ACCESS_OUTSIDE_WORKSPACE: {outside} contradicts "
            f"A2A_WRITE_ACCESS_SCOPE={writes}": (outside, writes)
            in {("allowed", "workspace"), ("allowed", "none"), ("denied", "unrestricted")},
            "A2A_APPROVAL_ESCALATION_BEHAVIOR: with A2A_APPROVAL_POLICY=never nothing is asked": (
                self.approval_policy == "never"
                and self.approval_escalation_behavior in ("manual", "automatic")
            ),
        }
        if problems := [problem for problem, holds in wrong.items() if holds]:
            raise ValueError("\n".join(problems))
        return self


class PeerSetting(BaseModel):
    """A table `[peers.NAME]`: an agent that can be called by its name."""

    model_config = ConfigDict(extra="forbid")

    url: WebAddress = Field(
        description="Its address, or that of its Agent Card.",
        examples=["https://agent.example.com"],
    )
    bearer_token: SecretReference | None = Field(
        default=None,
        examples=["env:REVIEWER_TOKEN"],
        description="Where its token is: `env:NAME` or `file:PATH`.",
    )
    basic_auth: SecretReference | None = Field(
        default=None,
        examples=["file:/etc/opencode-a2a/reviewer"],
        description="Where `user:password` is, likewise.",
    )
    api_key: SecretReference | None = Field(
        default=None, examples=["env:REVIEWER_KEY"], description="Where its API key is, likewise."
    )
    api_key_header: str = Field(
        default="X-API-Key", description="The header field for the API key."
    )
    headers: dict[str, str] = Field(
        default={}, description="More header fields; they go where the credential goes."
    )
    credential_origins: Annotated[WordList, AfterValidator(_check_origins)] = Field(
        default=[],
        description="Origins besides that of `url` which get the credential and the headers, such "
        "as `https://api.example.com`, where its card names another address.",
    )
    transport: Transport | None = Field(
        default=None, examples=["JSONRPC"], description="Speak only this, of what its card offers."
    )
    line: Literal["1.0", "0.3"] | None = Field(
        default=None,
        examples=["1.0"],
        description="Speak only this line of A2A, of what its card offers.",
    )
    model_may_call: bool = Field(
        default=True,
        description="Whether the agent may call this peer by itself. `opencode-a2a call` may in "
        "any case.",
    )

    @model_validator(mode="after")
    def _one_credential(self) -> PeerSetting:
        if len([each for each in (self.bearer_token, self.basic_auth, self.api_key) if each]) > 1:
            raise ValueError("needs one of bearer_token, basic_auth and api_key, not several")
        return self


class Outbound(SettingsGroup):
    """Calls to other agents, and where this service may connect to on a caller's behalf."""

    model_config = SettingsConfigDict(env_prefix="A2A_CLIENT_")

    allowed_hosts: WordList = Field(
        default=[],
        description="Hosts files may be fetched from, and that a peer may name in its card or a "
        "redirect, as a list; none means any public. Peers that are named to be called need not "
        "be listed.",
    )
    allow_private_hosts: bool = Field(
        default=False,
        description="Allow addresses that are not on the public network, or behind NAT64.",
    )
    allow_any_peer: bool = Field(
        default=False,
        description="The agent may call any public address that is allowed here, not only the "
        "peers in `[peers.NAME]`.",
    )
    bearer_token: Token | None = Field(
        default=None,
        description="The token for a peer that is called by its URL. It goes to that URL's origin "
        "only. Peers in `[peers.NAME]` have their own.",
    )
    basic_auth: Annotated[Secret | None, AfterValidator(_check_login)] = Field(
        default=None, description="`user:password` for such a peer, instead of a token."
    )
    supported_transports: Annotated[list[Transport], NoDecode, BeforeValidator(parse_list)] = Field(
        default=["JSONRPC", "HTTP+JSON"],
        min_length=1,
        description="What is spoken to peers, as a list.",
    )
    use_client_preference: bool = Field(
        default=False,
        description="Choose the transport in the order of `A2A_CLIENT_SUPPORTED_TRANSPORTS` "
        "instead of the order in the peer's card.",
    )
    timeout_seconds: float = Field(
        default=60.0,
        gt=0,
        description="Seconds from the start of the connection until a peer's answer begins. Its "
        "card and the first request share them. A stream may last longer "
        "(`A2A_CLIENT_STREAM_IDLE_TIMEOUT_SECONDS`), and so may the answer to a message of a peer "
        "that cannot stream (`A2A_CLIENT_TOTAL_TIMEOUT_SECONDS`).",
    )
    card_fetch_timeout_seconds: float = Field(
        default=10.0,
        gt=0,
        description="Seconds until a peer's Agent Card has arrived; at most "
        "`A2A_CLIENT_TIMEOUT_SECONDS`.",
    )
    stream_idle_timeout_seconds: float = Field(
        default=60.0,
        gt=0,
        description="How long a peer's stream may be silent; then it is opened again.",
    )
    reconnect_timeout_seconds: float = Field(
        default=60.0,
        gt=0,
        description="How long to try to reach a peer again whose connection was lost.",
    )
    total_timeout_seconds: float = Field(
        default=3600.0, gt=0, description="How long a call may take altogether (`--timeout`)."
    )
    max_response_bytes: int = Field(
        default=67_108_864,
        ge=1024,
        description="How large an answer of a peer, or one stream, may be.",
    )
    max_concurrent_calls: int = Field(
        default=16, ge=1, description="Calls to peers at a time; more wait."
    )

    @model_validator(mode="after")
    def _one_login(self) -> Outbound:
        if self.bearer_token is not None and self.basic_auth is not None:
            raise ValueError(
                "A2A_CLIENT_BASIC_AUTH: there is A2A_CLIENT_BEARER_TOKEN already; set one of them"
            )
        return self


class ClientSettings(BaseModel):
    """What calling peers needs, from the same sources as all settings."""

    outbound: Outbound
    peers: dict[str, PeerSetting] = {}


class Settings(BaseModel):
    upstream: Upstream
    server: Server
    state: State
    outbound: Outbound
    environment: Environment
    limits: LimitSettings = Field(default_factory=LimitSettings)
    limits_of: dict[str, LimitSettings] = {}  # of callers that have their own, by principal
    oidc: Oidc
    node: NodeSettings = Field(default_factory=NodeSettings)
    peers: dict[str, PeerSetting] = {}
    roles: Roles = {}
    notes: list[tuple[str, str]] = []  # settings that were spelled differently, and how
    secret_files: list[Path] = []  # the files that secrets were read from
    unknown: list[str] = []  # variables and secret files that are named like settings

    @property
    def groups(self) -> tuple[SettingsGroup, ...]:
        own = (self.upstream, self.server, self.state, self.outbound)
        return *own, self.environment, self.limits, self.oidc, self.node

    @property
    def has_credentials(self) -> bool:
        """Whether somebody can log in, apart from those with a token of the credentials file."""
        server = self.server
        return server.has_credentials or bool(server.mtls_header or self.oidc.issuer)

    @property
    def credentials_file(self) -> Path | None:
        """Where the hashes of tokens are, if anywhere; None where there is no home directory."""
        if self.server.credentials_file is not None:
            return self.server.credentials_file
        try:
            return state_home() / folder_name(self.upstream.workspace_root) / "credentials.json"
        except RuntimeError:
            return None

    def changed(self, new: Settings) -> list[str]:
        """The names of the settings that are different in new ones."""
        found = [
            setting_name(type(old_group), name)
            for old_group, new_group in zip(self.groups, new.groups, strict=True)
            for name in type(old_group).model_fields
            if getattr(old_group, name) != getattr(new_group, name)
        ]
        if self.roles != new.roles:
            found.append(f"[{ROLES_TABLE}]")
        for table, old_tables, new_tables in (
            (PEERS_TABLE, self.peers, new.peers),
            (TABLES[LimitSettings], self.limits_of, new.limits_of),
        ):
            names = sorted(old_tables.keys() | new_tables.keys())
            different = [name for name in names if old_tables.get(name) != new_tables.get(name)]
            found += [f"[{table}.{name}]" for name in different]
        return found

    def reloaded(self, new: Settings) -> Settings:
        """These settings, with those of the new ones that a running service can take over.

        ConfigError: the two do not fit together.
        """
        return self.model_copy(
            update={
                "server": self.server.reloaded(new.server),
                "limits": new.limits,
                "limits_of": new.limits_of,
                "oidc": self.oidc.model_copy(
                    update={name: getattr(new.oidc, name) for name in RELOADABLE_OIDC}
                ),
                "peers": new.peers,
                "roles": new.roles,
                "notes": new.notes,
                "secret_files": new.secret_files,
                "unknown": new.unknown,
            }
        )

    @property
    def secrets(self) -> list[str]:
        """Every secret in the settings, also as it is written in a login: for redaction."""
        logins = [
            (entry.username, entry.password, entry.token)
            for entry in self.server.all_credentials  # a disabled one may be valid elsewhere
        ]
        logins.append((None, None, self.server.bearer_token))
        logins.append((self.upstream.auth_username, self.upstream.auth_password, None))
        logins.append((None, None, self.outbound.bearer_token))
        found = []
        for username, password, token in logins:
            if token is not None:
                found.append(token.get_secret_value())
            if password is not None:
                found.append(password.get_secret_value())
                login = f"{username}:{password.get_secret_value()}"
                found.append(base64.b64encode(login.encode()).decode())
        if self.outbound.basic_auth is not None:
            login = self.outbound.basic_auth.get_secret_value()
            found += [login.partition(":")[2], base64.b64encode(login.encode()).decode()]
        if self.state.database_url is not None:
            found.append(parse_url(self.state.database_url).password or "")
        return found


G = TypeVar("G", bound=SettingsGroup)

TABLES: dict[type[SettingsGroup], str] = {
    Upstream: "opencode",
    Server: "a2a",
    State: "task_store",
    Outbound: "client",
    Environment: "environment",
    LimitSettings: "limits",
    Oidc: "oidc",
    NodeSettings: "node",
}


# In the file only:
PEERS_TABLE = "peers"  # each member is a table of its own
ROLES_TABLE = "roles"  # each member is a list of scopes


def setting_name(kind: type[SettingsGroup], field: str) -> str:
    """The name of a setting, which is that of its variable."""
    return f"{kind.model_config['env_prefix']}{field.upper()}"


_NAMES = frozenset(setting_name(kind, name) for kind in TABLES for name in kind.model_fields)


PEER_SECRETS = "A2A_PEER_"  # such names are free for credentials that [peers.NAME] refers to


def unknown_settings(names: Iterable[str]) -> dict[str, str | None]:
    """The names that begin like our settings and are none, each with the setting it resembles.

    Names in OPENCODE_… are not checked: OpenCode has many of its own.
    """
    own_names = {name.removeprefix("A2A_"): name for name in _NAMES if name.startswith("A2A_")}
    found: dict[str, str | None] = {}
    for name in sorted(names):
        if name.upper().startswith(PEER_SECRETS):
            continue
        if name.upper().startswith("A2A_") and name.upper() not in _NAMES:
            similar = get_close_matches(
                name.upper().removeprefix("A2A_"), own_names, n=1, cutoff=0.75
            )
            misspelt = similar and name.upper() not in FOREIGN_SETTINGS
            found[name] = own_names[similar[0]] if misspelt else None
    return found


def has_copied_credentials(given: Path | None) -> bool:
    """Whether secrets are copies that systemd made when it started the unit."""
    return given is None and bool(os.environ.get("CREDENTIALS_DIRECTORY"))


def secrets_directory(given: Path | None) -> Path | None:
    """The directory that was named, or else the one in which systemd puts credentials."""
    return Path(os.environ["CREDENTIALS_DIRECTORY"]) if has_copied_credentials(given) else given


def origins(config: Path | None, secrets: Path | None) -> dict[str, str]:
    """Where the settings come from that have not their default, by name.

    That is `environment`, or the path of a secret file or of the TOML file.
    """
    tables = _read_toml(config, [])
    files = {file.name.upper(): str(file) for file in secrets.iterdir()} if secrets else {}
    tables_only = (PEERS_TABLE, ROLES_TABLE, TABLES[LimitSettings])
    found = {name: str(config) for name in tables_only if name in tables}
    for kind, table in TABLES.items():
        given = EnvSettingsSource(kind)()
        kept = SecretsSettingsSource(kind, secrets)()
        for field in kind.model_fields:
            name = setting_name(kind, field)
            if field in given:
                found[name] = "environment"
            elif field in kept:
                found[name] = files[name]
            elif field in tables.get(table, {}):
                found[name] = str(config)
    return found


def allowed_words(annotation: object) -> Iterator[str]:
    """What a setting may say, where that is one of a few words."""
    for inner in get_args(annotation):
        if get_origin(annotation) is Literal:
            yield str(inner)
        else:
            yield from allowed_words(inner)


def load(config: Path | None = None, secrets: Path | None = None) -> Settings:
    """All settings, or `ConfigError` with everything that is wrong with them."""
    reader = _Reader(config, secrets)
    upstream, server = reader.group(Upstream), reader.group(Server)
    state, outbound = reader.group(State), reader.group(Outbound)
    environment, peers = reader.group(Environment), reader.peers()
    limits, limits_of = reader.limits()
    oidc, roles, node = reader.group(Oidc), reader.roles(), reader.group(NodeSettings)
    if server and oidc:
        reader.problems += _unknown_scopes(server, oidc, roles)
        if server.console_oidc_client_id is not None and oidc.issuer is None:
            problem = "needs A2A_OIDC_ISSUER, whose tokens the console would get"
            reader.problems.append(f"A2A_CONSOLE_OIDC_CLIENT_ID: {problem}")
    if reader.problems or not (upstream and server and state and outbound and environment and oidc):
        raise ConfigError(reader.problems)
    assert limits is not None and node is not None, "otherwise there is a problem"
    return Settings.model_construct(
        upstream=upstream,
        server=server,
        state=state,
        outbound=outbound,
        environment=environment,
        limits=limits,
        limits_of=limits_of,
        oidc=oidc,
        node=node,
        peers=peers,
        roles=roles,
        notes=reader.notes,
        secret_files=reader.secret_files,
        unknown=reader.unknown,
    )


def load_client(config: Path | None = None, secrets: Path | None = None) -> ClientSettings:
    """The settings for calling peers; those of a service may be wrong or missing."""
    reader = _Reader(config, secrets)
    outbound, peers = reader.group(Outbound), reader.peers()
    if reader.problems or outbound is None:
        raise ConfigError(reader.problems)
    return ClientSettings.model_construct(outbound=outbound, peers=peers)


class _Reader:
    """Reads groups of settings from all sources, and collects what is wrong with them."""

    def __init__(self, config: Path | None, secrets: Path | None) -> None:
        self.problems: list[str] = []
        self.notes: list[tuple[str, str]] = []
        self.secret_files: list[Path] = []
        self._config = config
        self.unknown: list[str] = []
        self._tables = _read_toml(config, self.problems)
        self._secrets = secrets
        if wrong := _unreadable_secrets(secrets):
            self.problems += wrong
            self._secrets = None
        elif secrets is not None:
            self.secret_files += sorted(f for f in secrets.iterdir() if f.name.upper() in _NAMES)
        for name, meant in unknown_settings([*os.environ, *_file_names(self._secrets)]).items():
            if meant is None:
                self.unknown.append(name)
            else:
                self.problems.append(f"{name}: there is no such setting; did you mean {meant}?")
        known = {*TABLES.values(), PEERS_TABLE, ROLES_TABLE}
        self.problems += [
            f"[{name}]: no such table; there are {_table_list(known)}"
            for name in self._tables.keys() - known
        ]

    def group(self, kind: type[G]) -> G | None:
        given = self._tables.get(TABLES[kind], {})
        known = {name: value for name, value in given.items() if name in kind.model_fields}
        self.problems += [_unknown_setting(kind, name) for name in given if name not in known]
        if self._config and any(_is_secret(kind, [name]) for name in known):
            self.secret_files = sorted({*self.secret_files, self._config})
        with collect_notes() as taken:
            try:
                return kind(_secrets_dir=self._secrets, **known)
            except ValidationError as exc:
                self.problems += _problem_lines(kind, exc)
            finally:
                self.notes += [
                    (setting_name(kind, field), note)
                    for field, note in taken
                    if field in kind.model_fields  # rather than a member of one
                ]
        return None

    def limits(self) -> tuple[LimitSettings | None, dict[str, LimitSettings]]:
        """The limits of everybody, and of those callers that have a table of their own.

        What such a table does not name is as for everybody.
        """
        table = TABLES[LimitSettings]
        given = self._tables.get(table, {})
        own = {name: value for name, value in given.items() if isinstance(value, dict)}
        self._tables[table] = {n: value for n, value in given.items() if n not in own}
        common = self.group(LimitSettings)
        found: dict[str, LimitSettings] = {}
        for principal, values in own.items():
            try:
                checked = CallerLimits.model_validate(values)
            except ValidationError as exc:
                self.problems += _table_problems(f"[{table}.{principal}]", exc)
                continue
            if common is not None:
                named = {name: getattr(checked, name) for name in checked.model_fields_set}
                found[principal] = common.model_copy(update=named)
        return common, found

    def peers(self) -> dict[str, PeerSetting]:
        found = {}
        for name, table in self._tables.get(PEERS_TABLE, {}).items():
            try:
                found[name] = PeerSetting.model_validate(table)
            except ValidationError as exc:
                self.problems += _table_problems(f"[{PEERS_TABLE}.{name}]", exc)
        return found

    def roles(self) -> dict[str, frozenset[str]]:
        found = {}
        for name, scopes in self._tables.get(ROLES_TABLE, {}).items():
            where = f"[{ROLES_TABLE}] {name}"
            if not isinstance(scopes, list):
                self.problems.append(f"{where}: must be a list of scopes")
            elif name in SPELLINGS or name in frozenset(Scope):
                self.problems.append(f"{where}: is the name of a scope; choose another")
            else:
                try:
                    found[name] = resolve(map(str, scopes), {})
                except UnknownScope as exc:
                    self.problems.append(f"{where}: {exc}")
        return found


def _unknown_scopes(server: Server, oidc: Oidc, roles: Roles) -> list[str]:
    """What is wrong with the names of scopes and roles in the settings."""
    named = {
        f"A2A_STATIC_AUTH_CREDENTIALS.{number}.scopes": entry.scopes
        for number, entry in enumerate(server.all_credentials)
    }
    named |= {f"A2A_MTLS_SCOPES.{who}": names for who, names in server.mtls_scopes.items()}
    named |= {f"A2A_OIDC_SCOPE_MAP.{word}": names for word, names in oidc.scope_map.items()}
    named["A2A_OIDC_DEFAULT_SCOPES"] = oidc.default_scopes
    problems = []
    for where, names in named.items():
        for number, name in enumerate(names):
            try:
                resolve([name], roles)
            except UnknownScope as exc:
                problems.append(f"{where}.{number}: {exc}")
    return problems


def _table_problems(table: str, exc: ValidationError) -> list[str]:
    return [
        f"{' '.join([table, *map(str, error['loc'])])}: {_requirement(error['msg'])}"
        for error in exc.errors()
    ]


def _read_toml(path: Path | None, problems: list[str]) -> dict[str, dict[str, Any]]:
    if path is None:
        return {}
    try:
        tables = tomllib.loads(path.read_text())
    except OSError as exc:
        problems.append(f"{path}: cannot be read ({exc.strerror})")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        problems.append(f"{path}: {exc}")
    else:
        loose = [name for name, table in tables.items() if not isinstance(table, dict)]
        problems += [f"{path}: {name} stands outside any table" for name in loose]
        return {name: table for name, table in tables.items() if isinstance(table, dict)}
    return {}


def _file_names(secrets: Path | None) -> list[str]:
    return [] if secrets is None else [file.name for file in secrets.iterdir()]


def _unreadable_secrets(secrets: Path | None) -> list[str]:
    """Why secret files that are settings of ours cannot be read."""
    if secrets is None:
        return []
    if not secrets.is_dir():
        return [f"secrets directory {secrets}: does not exist"]
    problems = []
    try:
        files = sorted(file for file in secrets.iterdir() if file.name.upper() in _NAMES)
    except OSError as exc:
        return [f"secrets directory {secrets}: cannot be read ({exc.strerror})"]
    for file in files:
        try:
            file.read_text(encoding="utf-8")
        except OSError as exc:
            problems.append(f"{file}: cannot be read ({exc.strerror})")
        except UnicodeDecodeError:
            problems.append(f"{file}: must be UTF-8 text")
    return problems


def _problem_lines(kind: type[SettingsGroup], exc: ValidationError) -> list[str]:
    lines = []
    for error in exc.errors():
        loc = [str(step) for step in error["loc"]]
        where = ".".join([setting_name(kind, loc[0]), *loc[1:]]) + ":" if loc else ""
        shown = "" if _is_secret(kind, loc) else f" is {error['input']!r},"
        lines += f"{where}{shown} {_requirement(error['msg'])}".strip().splitlines()
    return lines


def _unknown_setting(kind: type[SettingsGroup], name: str) -> str:
    similar = get_close_matches(name, kind.model_fields, n=1)
    advice = f"; did you mean {similar[0]}?" if similar else ""
    return f"[{TABLES[kind]}] {name}: there is no such setting{advice}"


def _requirement(message: str) -> str:
    """A message of pydantic's, in words that fit after a setting's name."""
    words = message.removeprefix("Value error, ").partition(", unable to")[0]
    for noun in ("Input", "String", "List", "Value"):
        words = words.replace(f"{noun} should", "must")
    return words.replace("Extra inputs are not permitted", "there is no such setting")


def _is_secret(kind: type[SettingsGroup], loc: list[str]) -> bool:
    """Whether a value may be a secret, and so must not be shown."""
    field = kind.model_fields.get(loc[0]) if len(loc) == 1 else None
    return (
        field is None
        or not field.repr
        or "Secret" in str(field.annotation)
        or ("Credential" in str(field.annotation))
    )


def _table_list(names: set[str]) -> str:
    return ", ".join(f"[{name}]" for name in sorted(names))
