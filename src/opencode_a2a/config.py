"""Settings in small groups: environment, then secret files, then a TOML file.

`A2A_PORT` in the environment is `port` under `[a2a]` in the file; `OPENCODE_…` likewise under
`[opencode]`. A file in the secrets directory has the name of its setting, in any case. Nothing is
read from the workspace: a stranger may have written what is in there.
"""

from __future__ import annotations

import base64
import json
import os
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic.config import JsonDict
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
from .domain.scopes import DEFAULT_SCOPES, Roles, Scope, UnknownScope, resolve
from .domain.values import PermissionRule
from .paths import folder_name, inside_git, state_folder, state_home

MAX_ROOT_LENGTH = 600  # characters; what a database can keep in an index
MIN_SECRET_LENGTH = 16  # of a token or password that other machines can try
METRICS_WORDS = ("scope", "open", "off")
SECRET_COMMAND = "python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"
PEER_SECRETS = "A2A_PEER_"  # such names are free for credentials that [peers.NAME] refers to
DAY = 86_400.0


class ConfigError(Exception):
    """The settings are wrong: one line for each problem."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


# -- what a value may be


def _require(holds: object, words: str) -> None:
    if not holds:
        raise ValueError(words)


def _check_web_address(value: str) -> str:
    parts = urlsplit(value)
    _require(parts.scheme in ("http", "https") and parts.hostname, "must be an http or https URL")
    try:
        _ = parts.port
    except ValueError:
        raise ValueError("must have a port from 0 to 65535, or none") from None
    return value.rstrip("/")


def _check_directory(value: Path) -> Path:
    _require(value.is_dir(), "must be an existing directory")
    root = value.resolve()
    inside = inside_git(root)
    _require(not inside, "must be a working directory; this one is inside a git directory")
    try:
        str(root).encode()
    except UnicodeEncodeError:
        raise ValueError("must have a path in UTF-8") from None
    fits = len(str(root)) <= MAX_ROOT_LENGTH
    _require(fits, f"must have a path of at most {MAX_ROOT_LENGTH} characters")
    return root


def _check_database(value: str) -> str:
    """A URL for the driver that we use. SQLAlchemy's own errors may quote a password."""
    from sqlalchemy.engine import make_url  # large, and `call` does not need it
    from sqlalchemy.exc import ArgumentError

    value = value.replace("postgresql://", "postgresql+psycopg://", 1)
    try:
        make_url(value).get_dialect().import_dbapi()
    except ImportError as exc:
        advice = ": pip install 'psycopg[binary]'" if exc.name == "psycopg" else ""
        raise ValueError(f"needs the Python package {exc.name}{advice}") from None
    except ArgumentError:
        raise ValueError("must be a URL such as sqlite:////var/lib/a2a/tasks.db") from None
    except ValueError:
        advice = "the port must be a number; percent-encode @ : / in the password"
        raise ValueError(advice) from None
    return value


def _check_not_empty(value: SecretStr) -> SecretStr:
    _require(value.get_secret_value().strip(), "must not be empty")
    return value


def _check_no_padding(value: SecretStr) -> SecretStr:
    # A header cannot have any, so no request could present such a token.
    text = value.get_secret_value()
    _require(text == text.strip(), "must not begin or end with a space or a line break")
    return value


def _check_metrics(value: str) -> str:
    word = value.strip().lower()
    host, _, port = word.rpartition(":")
    listener = is_host(host.strip("[]")) and port.isdecimal() and int(port) <= 65_535
    words = "must be scope, open, off, or an address such as 127.0.0.1:9464"
    _require(word in METRICS_WORDS or listener, words)
    return word


def _check_hosts(values: list[str]) -> list[str]:
    fine = all(is_host(value) or value == "*" for value in values)
    _require(fine, "must list names or addresses without scheme, port or brackets")
    return [value.lower() for value in values]


def _is_origin(value: str) -> bool:
    try:
        return origin_of(value) == value.lower() and bool(urlsplit(value).hostname)
    except ValueError:  # of the port
        return False


def _check_origins(values: list[str]) -> list[str]:
    words = "must list origins such as https://app.example.com, without a path or the default port"
    _require(all(map(_is_origin, values)), f"{words}; `*` is not possible")
    return [value.lower() for value in values]


def _check_networks(values: list[str]) -> list[str]:
    try:
        _ = [ip_network(value) for value in values]
    except ValueError:
        words = "must list addresses or networks such as 10.0.0.5 or 10.0.0.0/8"
        raise ValueError(words) from None
    return values


def _check_issuer(value: str | None) -> str | None:
    # As it is written: tokens name the issuer to the letter, with or without a slash at the end.
    if value is not None:
        _check_web_address(value)
        parts = urlsplit(value)
        _require(not parts.query and not parts.fragment, "must have no query and no fragment")
        words = "must be an https URL, because whoever can change its keys can log in"
        _require(parts.scheme == "https" or is_loopback(parts.hostname or ""), words)
    return value


def _check_login(value: SecretStr | None) -> SecretStr | None:
    if value is not None:
        words = "must be a user name and a password with a colon between them"
        _require(all(value.get_secret_value().partition(":")), words)
    return value


def _check_reference(value: str) -> str:
    kind, _, name = value.partition(":")
    words = "must be env:NAME or file:PATH; the secret itself does not belong here"
    _require(kind in ("env", "file") and name.strip(), words)
    return value


def _parse_json(value: Any) -> Any:
    """A list of objects as text is JSON; a TOML file has lists of its own."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except json.JSONDecodeError as exc:
        raise ValueError(f"must be JSON; at character {exc.pos}: {exc.msg}") from None


def _parse_list(value: Any) -> Any:
    """A list as text is JSON, or words with commas between them."""
    if not isinstance(value, str) or value.lstrip().startswith(("[", "{", '"')):
        return _parse_json(value)
    return [word.strip() for word in value.split(",") if word.strip()]


Secret = Annotated[SecretStr, AfterValidator(_check_not_empty)]
Token = Annotated[Secret, AfterValidator(_check_no_padding)]
WebAddress = Annotated[str, AfterValidator(_check_web_address)]
Directory = Annotated[Path, AfterValidator(_check_directory)]
DatabaseUrl = Annotated[str, AfterValidator(_check_database)]
Json = (NoDecode, BeforeValidator(_parse_json))
Words = (NoDecode, BeforeValidator(_parse_list))
WordList = Annotated[list[str], *Words]
Hosts = Annotated[WordList, AfterValidator(_check_hosts)]
Origins = Annotated[WordList, AfterValidator(_check_origins)]
Networks = Annotated[WordList, AfterValidator(_check_networks)]
NameMap = Annotated[dict[str, list[str]], *Json]
SecretReference = Annotated[str, AfterValidator(_check_reference)]
Transport = Literal["JSONRPC", "HTTP+JSON"]


# -- the groups


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


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


def setting(default: Any, *, secret: bool = False, reload: bool = False, **limits: Any) -> Any:
    """A field whose value is not shown, or that a running service takes over at SIGHUP."""
    extra: JsonDict = {"reload": reload}
    return Field(default, repr=not secret, json_schema_extra=extra, **limits)


class Upstream(SettingsGroup):
    """The OpenCode server, and what goes with every prompt."""

    model_config = SettingsConfigDict(env_prefix="OPENCODE_")

    base_url: WebAddress | None = None
    command: str = "opencode"
    workspace_root: Directory = Field(default_factory=Path.cwd, validate_default=True)
    auth_username: str = "opencode"
    auth_password: Secret | None = setting(None, secret=True)
    agent: str | None = None
    system: str | None = None
    variant: str | None = None
    timeout: float = Field(30.0, gt=0)
    timeout_stream: float = Field(1800.0, gt=0)
    max_concurrent_streams: int = Field(32, ge=0)


class CredentialSetting(Strict):
    """One entry of A2A_STATIC_AUTH_CREDENTIALS."""

    credential_id: str | None = None  # a name for the operator's own use
    enabled: bool = True
    scheme: Literal["bearer", "basic", "api_key"]
    principal: str = Field(min_length=1, max_length=255)
    token: Token | None = None
    username: str | None = None
    password: Secret | None = None
    scopes: list[str] = [*DEFAULT_SCOPES]  # or roles

    @model_validator(mode="before")
    @classmethod
    def _named_by_login(cls, value: Any) -> Any:
        if isinstance(value, dict) and not value.get("principal") and value.get("username"):
            return {**value, "principal": value["username"]}
        return value

    @model_validator(mode="after")
    def _complete(self) -> CredentialSetting:
        is_basic = self.scheme == "basic"
        _require(
            is_basic or self.token, f"a credential with the scheme {self.scheme} needs a token"
        )
        complete = not is_basic or (self.username and self.password)
        _require(complete, "a basic credential needs a username and a password")
        return self


class RuleSetting(Strict):
    """One entry of A2A_PERMISSION_RULES."""

    permission: str = Field(min_length=1)
    pattern: str = Field(default="*", min_length=1)
    action: Literal["allow", "ask", "deny"]

    @property
    def rule(self) -> PermissionRule:
        return PermissionRule(self.permission, self.pattern, self.action)


class Server(SettingsGroup):
    """How clients reach this service, and who they are."""

    model_config = SettingsConfigDict(env_prefix="A2A_")

    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535)
    public_url: WebAddress | None = None
    allowed_hosts: Hosts = []
    allowed_origins: Origins = []
    console: bool = True
    console_oidc_client_id: str | None = Field(None, min_length=1, max_length=255)
    console_oidc_scope: str = Field(
        "openid", pattern=r"^[\x21\x23-\x5b\x5d-\x7e]+( [\x21\x23-\x5b\x5d-\x7e]+)*$"
    )
    title: str = "OpenCode"
    description: str = "A coding agent that works in its own workspace."
    bearer_token: Token | None = setting(None, secret=True, reload=True)
    static_auth_credentials: Annotated[list[CredentialSetting], *Json] = setting(
        [], secret=True, reload=True
    )
    credentials_file: Path | None = None
    trusted_proxies: Networks = []
    mtls_header: str = Field("", pattern=r"^[A-Za-z0-9-]*$")
    mtls_scopes: NameMap = setting({}, reload=True)
    mtls_from_loopback: bool = False
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", reload=True)
    log_format: Literal["console", "json"] = setting("console", reload=True)
    log_payloads: bool = setting(False, reload=True)
    metrics: Annotated[str, AfterValidator(_check_metrics)] = "scope"
    audit_log: str | None = None
    strict_version: bool = False
    stream_blocks: Literal["answer", "all"] = "answer"
    max_request_body_bytes: int = Field(16_777_216, ge=1024)
    max_queued_tasks: int = Field(256, ge=0)
    max_call_depth: int = Field(3, ge=0, le=99)
    max_send_wait_seconds: float = Field(0.0, ge=0)
    on_interrupted: Literal["fail", "continue"] = "fail"
    shutdown_grace_seconds: float = Field(5.0, ge=0, le=300)
    shared_sessions: bool = True
    allow_directory_override: bool = True
    isolation: Literal["none", "worktree", "never"] = "none"
    enable_session_shell: bool = False
    enable_workspace_mutations: bool = False
    interrupt_request_ttl_seconds: float = Field(10_800.0, gt=0)
    permission_always: Literal["context", "workspace"] = "context"
    permission_rules: Annotated[list[RuleSetting], *Json] = setting([], reload=True)
    push: bool = False
    push_allowed_hosts: Hosts = []
    push_private_hosts: Hosts = []
    push_validate: bool = False
    push_retry_hours: float = Field(24.0, gt=0, le=168.0)
    push_signing_keys: Path | None = None

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
        names = ("enable_session_shell", "enable_workspace_mutations", "push")
        return frozenset(f"A2A_{name.upper()}" for name in names if getattr(self, name))

    @property
    def enabled_credentials(self) -> list[CredentialSetting]:
        return [entry for entry in self.static_auth_credentials if entry.enabled]

    @property
    def has_credentials(self) -> bool:
        return self.bearer_token is not None or bool(self.enabled_credentials)

    @property
    def enabled_secrets(self) -> dict[str, SecretStr]:
        """The tokens and passwords that are accepted, by the names of their settings."""
        given = {"A2A_BEARER_TOKEN": self.bearer_token}
        for number, entry in enumerate(self.static_auth_credentials):
            if entry.enabled:
                name = f"A2A_STATIC_AUTH_CREDENTIALS.{number}"
                given |= {f"{name}.token": entry.token, f"{name}.password": entry.password}
        return {name: secret for name, secret in given.items() if secret is not None}

    @property
    def short_secrets(self) -> list[str]:
        """The settings whose token or password is so short that it could be guessed."""
        found = self.enabled_secrets.items()
        return [n for n, each in found if len(each.get_secret_value().strip()) < MIN_SECRET_LENGTH]

    @property
    def guessable(self) -> list[str]:
        """What is wrong with secrets that are too short where others can try them."""
        url = self.public_url  # of a proxy that may bring others to a loopback address
        if not is_loopback(self.host):
            reached = f"A2A_HOST is {self.host}"
        elif url and not is_loopback(urlsplit(url).hostname or ""):
            reached = f"A2A_PUBLIC_URL is {url}"
        else:
            return []
        return [
            f"{name}: is shorter than {MIN_SECRET_LENGTH} characters, too short where {reached} "
            f"rather than a loopback address. Make a better one: {SECRET_COMMAND}"
            for name in self.short_secrets
        ]

    @model_validator(mode="after")
    def _consistent(self) -> Server:
        problems = self.guessable
        tokens = [each.token for each in self.enabled_credentials if each.token]
        tokens += [self.bearer_token] if self.bearer_token is not None else []
        if len(tokens) != len({each.get_secret_value() for each in tokens}):
            words = "A2A_STATIC_AUTH_CREDENTIALS: the same token stands for two callers"
            problems.append(words)
        if (self.tls_certificate is None) != (self.tls_key is None):
            missing = "TLS_KEY" if self.tls_key is None else "TLS_CERTIFICATE"
            problems.append(f"A2A_{missing}: is missing; a certificate and its key go together")
        if self.mtls_header and not self.trusted_proxies:
            words = "needs A2A_TRUSTED_PROXIES, since only those can be believed"
            problems.append(f"A2A_MTLS_HEADER: {words}")
        local = [each for each in self.trusted_proxies if _is_on_this_machine(each)]
        if self.mtls_header and local and not self.mtls_from_loopback:
            problems.append(
                f"A2A_MTLS_HEADER: every program on this machine, the agent included, could pose "
                f"as the proxy at {local[0]} and name any certificate. Let the proxy come from "
                "another address, or accept that with A2A_MTLS_FROM_LOOPBACK=true"
            )
        _require(not problems, "\n".join(problems))
        return self

    @property
    def checked_hosts(self) -> set[str] | None:
        """The names that a request may have for this service; None where any will do."""
        if "*" in self.allowed_hosts or not (self.allowed_hosts or is_loopback(self.host)):
            return None
        own = urlsplit(self.public_url).hostname if self.public_url else None
        return {self.host.lower(), *self.allowed_hosts, *([own] if own else [])}


def _is_on_this_machine(network: str) -> bool:
    given = ip_network(network)
    return given.overlaps(ip_network("::1" if given.version == 6 else "127.0.0.0/8"))


class Oidc(SettingsGroup):
    """Callers who log in elsewhere: access tokens (JWT) of an OpenID Connect provider."""

    model_config = SettingsConfigDict(env_prefix="A2A_OIDC_")

    issuer: Annotated[str | None, AfterValidator(_check_issuer)] = None
    audience: Annotated[list[str] | None, *Words] = None
    authorized_parties: WordList = []
    principal_claim: str = Field("sub", min_length=1)
    scopes_claim: str = Field("scope", min_length=1)
    scope_map: NameMap = setting({}, reload=True)

    @model_validator(mode="after")
    def _is_whole(self) -> Oidc:
        words = "without it the tokens that other services get would be good for this one"
        if self.issuer is not None:
            _require(self.audience, f"A2A_OIDC_AUDIENCE: is missing; {words}")
        elif self.audience:
            raise ValueError("A2A_OIDC_ISSUER: is missing; A2A_OIDC_AUDIENCE needs it")
        return self


class State(SettingsGroup):
    """Where tasks are kept."""

    model_config = SettingsConfigDict(env_prefix="A2A_TASK_STORE_")

    backend: Literal["database", "memory"] = "database"
    database_url: DatabaseUrl | None = setting(None, secret=True)
    retention_seconds: float = Field(30 * DAY, ge=0)

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

    name: str | None = Field(None, max_length=255)
    labels: WordList = []
    return_seconds: float = Field(300.0, gt=0)
    opencode: str | None = Field(None, max_length=255)


class CommonLimits(Strict):
    """What a caller may use. 0 means no limit."""

    requests_per_minute: int = Field(0, ge=0)
    running_tasks: int = Field(0, ge=0)
    queued_tasks: int = Field(0, ge=0)
    tokens_per_day: int = Field(0, ge=0)
    tokens_per_month: int = Field(0, ge=0)
    cost_per_day: float = Field(0, ge=0)
    cost_per_month: float = Field(0, ge=0)
    models: WordList = []
    agents: WordList = []

    def limits(self) -> Limits:
        values = {name: getattr(self, name) for name in type(self).model_fields}
        for name in ("models", "agents", "directories"):
            values[name] = tuple(values.get(name, ()))
        rules = tuple(rule.rule for rule in values.get("permission_rules", ()))
        return Limits(**{**values, "permission_rules": rules})


class LimitSettings(CommonLimits, SettingsGroup):
    """How much each caller may use. 0 means no limit."""

    model_config = SettingsConfigDict(env_prefix="A2A_LIMIT_", extra="forbid")


class CallerLimits(CommonLimits):
    """A table `[limits."NAME"]`: what one caller may use, where it is not as for everybody."""

    stream_minutes_per_day: float = Field(0, ge=0)
    body_bytes: int = Field(0, ge=0)
    directories: WordList = []
    permission_rules: list[RuleSetting] = []

    @model_validator(mode="after")
    def _only_denies(self) -> CallerLimits:
        words = "permission_rules: a limit can only deny; what is allowed, or asked for, stands in"
        denies = all(rule.action == "deny" for rule in self.permission_rules)
        _require(denies, f"{words} A2A_PERMISSION_RULES")
        return self


class Environment(SettingsGroup):
    """What the operator says about where the agent runs. Published, not enforced."""

    model_config = SettingsConfigDict(env_prefix="A2A_")

    sandbox_mode: Literal[
        "unknown", "none", "process", "container", "vm", "read_only", "workspace_write", "custom"
    ] = "unknown"
    network_access: Literal["unknown", "none", "restricted", "unrestricted", "custom"] = "unknown"
    approval_policy: Literal[
        "unknown", "never", "on_request", "on_failure", "untrusted", "always", "custom"
    ] = "unknown"
    write_access_scope: Literal[
        "unknown", "none", "workspace", "declared_roots", "unrestricted", "custom"
    ] = "unknown"

    @property
    def declared(self) -> dict[str, dict[str, Any]]:
        return {
            "sandbox": {"mode": self.sandbox_mode},
            "network": {"access": self.network_access},
            "approval": {"policy": self.approval_policy},
            "write_access": {"scope": self.write_access_scope},
        }


class PeerSetting(Strict):
    """A table `[peers.NAME]`: an agent that can be called by its name."""

    url: WebAddress
    bearer_token: SecretReference | None = None
    basic_auth: SecretReference | None = None
    api_key: SecretReference | None = None
    api_key_header: str = "X-API-Key"
    headers: dict[str, str] = {}
    credential_origins: Origins = []
    transport: Transport | None = None
    line: Literal["1.0", "0.3"] | None = None
    model_may_call: bool = True

    @model_validator(mode="after")
    def _one_credential(self) -> PeerSetting:
        given = [each for each in (self.bearer_token, self.basic_auth, self.api_key) if each]
        _require(len(given) <= 1, "needs one of bearer_token, basic_auth and api_key, not several")
        return self


class Outbound(SettingsGroup):
    """Calls to other agents, and where this service may connect to on a caller's behalf."""

    model_config = SettingsConfigDict(env_prefix="A2A_CLIENT_")

    allowed_hosts: WordList = []
    allow_private_hosts: bool = False
    allow_any_peer: bool = False
    bearer_token: Token | None = setting(None, secret=True)
    basic_auth: Annotated[Secret | None, AfterValidator(_check_login)] = setting(None, secret=True)
    supported_transports: Annotated[list[Transport], *Words] = Field(
        ["JSONRPC", "HTTP+JSON"], min_length=1
    )
    timeout_seconds: float = Field(60.0, gt=0)

    @model_validator(mode="after")
    def _one_login(self) -> Outbound:
        words = "A2A_CLIENT_BASIC_AUTH: there is A2A_CLIENT_BEARER_TOKEN already; set one of them"
        _require(self.bearer_token is None or self.basic_auth is None, words)
        return self


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


def setting_name(kind: type[SettingsGroup], name: str) -> str:
    """The name of a setting, which is that of its variable."""
    return f"{kind.model_config['env_prefix']}{name.upper()}"


def reloadable(kind: type[SettingsGroup]) -> list[str]:
    """The fields that a running service takes over."""
    if kind is LimitSettings:
        return list(kind.model_fields)
    marks = {name: each.json_schema_extra for name, each in kind.model_fields.items()}
    return [name for name, mark in marks.items() if isinstance(mark, dict) and mark["reload"]]


_NAMES = frozenset(setting_name(kind, name) for kind in TABLES for name in kind.model_fields)


# -- all together


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """What calling peers needs, from the same sources as all settings."""

    outbound: Outbound
    peers: dict[str, PeerSetting] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    upstream: Upstream
    server: Server
    state: State
    outbound: Outbound
    environment: Environment
    limits: LimitSettings = field(default_factory=LimitSettings)
    limits_of: dict[str, CallerLimits] = field(default_factory=dict)  # by principal
    oidc: Oidc
    node: NodeSettings = field(default_factory=NodeSettings)
    peers: dict[str, PeerSetting] = field(default_factory=dict)
    roles: Roles = field(default_factory=dict)
    secret_files: list[Path] = field(default_factory=list)  # that secrets were read from

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
        found += [f"[{ROLES_TABLE}]"] if self.roles != new.roles else []
        for table, old, others in (
            (PEERS_TABLE, dict[str, Any](self.peers), dict[str, Any](new.peers)),
            (TABLES[LimitSettings], dict(self.limits_of), dict(new.limits_of)),
        ):
            names = sorted(old.keys() | others.keys())
            found += [f"[{table}.{name}]" for name in names if old.get(name) != others.get(name)]
        return found

    def reloaded(self, new: Settings) -> Settings:
        """The new settings, without those that a running service cannot take over.

        ConfigError: the two do not fit together.
        """
        server = _with_reloadable(self.server, new.server)
        if problems := server.guessable:  # the address stays as it is
            raise ConfigError(problems)
        return replace(
            new,
            upstream=self.upstream,
            server=server,
            state=self.state,
            outbound=self.outbound,
            environment=self.environment,
            oidc=_with_reloadable(self.oidc, new.oidc),
            node=self.node,
        )

    @property
    def secrets(self) -> list[str]:
        """Every secret in the settings, also as it is written in a login: for redaction."""
        entries = self.server.static_auth_credentials  # a disabled one may be valid elsewhere
        tokens = [self.server.bearer_token, self.outbound.bearer_token, *(e.token for e in entries)]
        logins = [(self.upstream.auth_username, self.upstream.auth_password)]
        logins += [(entry.username or "", entry.password) for entry in entries]
        if self.outbound.basic_auth is not None:
            name, _, password = self.outbound.basic_auth.get_secret_value().partition(":")
            logins.append((name, SecretStr(password)))
        found = [token.get_secret_value() for token in tokens if token is not None]
        for name, secret in logins:
            if secret is not None:
                password = secret.get_secret_value()
                login = f"{name}:{password}".encode()
                found += [password, base64.b64encode(login).decode()]
        if self.state.database_url is not None:
            from sqlalchemy.engine import make_url

            found.append(make_url(self.state.database_url).password or "")
        return found


def _with_reloadable(group: G, new: G) -> G:
    return group.model_copy(update={n: getattr(new, n) for n in reloadable(type(group))})


# -- reading them


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
        given, kept = EnvSettingsSource(kind)(), SecretsSettingsSource(kind, secrets)()
        for each in kind.model_fields:
            name = setting_name(kind, each)
            if each in given:
                found[name] = "environment"
            elif each in kept:
                found[name] = files[name]
            elif each in tables.get(table, {}):
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
    environment, oidc, node = (
        reader.group(Environment),
        reader.group(Oidc),
        reader.group(NodeSettings),
    )
    peers, (limits, limits_of), roles = reader.peers(), reader.limits(), reader.roles()
    if server and oidc:
        reader.problems += _unknown_scopes(server, oidc, roles)
        if server.console_oidc_client_id is not None and oidc.issuer is None:
            problem = "needs A2A_OIDC_ISSUER, whose tokens the console would get"
            reader.problems.append(f"A2A_CONSOLE_OIDC_CLIENT_ID: {problem}")
    if reader.problems:
        raise ConfigError(reader.problems)
    assert upstream and server and state and outbound, "otherwise there is a problem"
    assert environment and oidc and node and limits, "otherwise there is a problem"
    return Settings(
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
        secret_files=reader.secret_files,
    )


def load_client(config: Path | None = None, secrets: Path | None = None) -> ClientSettings:
    """The settings for calling peers; those of a service may be wrong or missing."""
    reader = _Reader(config, secrets)
    outbound, peers = reader.group(Outbound), reader.peers()
    if reader.problems or outbound is None:
        raise ConfigError(reader.problems)
    return ClientSettings(outbound=outbound, peers=peers)


class _Reader:
    """Reads groups of settings from all sources, and collects what is wrong with them."""

    def __init__(self, config: Path | None, secrets: Path | None) -> None:
        self.problems: list[str] = []
        self._config = config
        self._tables = _read_toml(config, self.problems)
        files, wrong = _secret_files(secrets)
        self.problems += wrong
        self._secrets = None if wrong else secrets
        self.secret_files = sorted(each for each in files if each.name.upper() in _NAMES)
        for name in sorted({*os.environ, *(each.name for each in files)}):
            upper = name.upper()
            free = upper in _NAMES or upper.startswith(PEER_SECRETS)
            if upper.startswith("A2A_") and not free:  # OPENCODE_… has names of OpenCode's own
                self.problems.append(_unknown(name, upper, _NAMES))
        known = {*TABLES.values(), PEERS_TABLE, ROLES_TABLE}
        self.problems += [
            f"[{name}]: no such table; there are {', '.join(f'[{n}]' for n in sorted(known))}"
            for name in self._tables.keys() - known
        ]

    def group(self, kind: type[G]) -> G | None:
        table = TABLES[kind]
        given = self._tables.get(table, {})
        known = {name: value for name, value in given.items() if name in kind.model_fields}
        self.problems += [
            _unknown(f"[{table}] {name}", name, kind.model_fields)
            for name in given
            if name not in known
        ]
        if self._config and any(not kind.model_fields[name].repr for name in known):
            self.secret_files = sorted({*self.secret_files, self._config})
        try:
            return kind(_secrets_dir=self._secrets, **known)
        except ValidationError as exc:
            self.problems += _problem_lines(kind, exc)
        return None

    def limits(self) -> tuple[LimitSettings | None, dict[str, CallerLimits]]:
        """The limits of everybody, and of those callers that have a table of their own.

        What such a table does not name is as for everybody.
        """
        table = TABLES[LimitSettings]
        given = self._tables.get(table, {})
        own = {name: value for name, value in given.items() if isinstance(value, dict)}
        self._tables[table] = {n: value for n, value in given.items() if n not in own}
        common = self.group(LimitSettings)
        shared = common.model_dump() if common is not None else {}
        found = {name: {**shared, **values} for name, values in own.items()}
        return common, self._each(table, found, CallerLimits)

    def peers(self) -> dict[str, PeerSetting]:
        return self._each(PEERS_TABLE, self._tables.get(PEERS_TABLE, {}), PeerSetting)

    def _each(self, table: str, given: dict[str, Any], kind: type[M]) -> dict[str, M]:
        """The tables below a table, each of which is of this kind."""
        found = {}
        for name, values in given.items():
            try:
                found[name] = kind.model_validate(values)
            except ValidationError as exc:
                for error in exc.errors():
                    where = " ".join([f"[{table}.{name}]", *map(str, error["loc"])])
                    self.problems.append(f"{where}: {_requirement(error['msg'])}")
        return found

    def roles(self) -> dict[str, frozenset[str]]:
        found = {}
        for name, scopes in self._tables.get(ROLES_TABLE, {}).items():
            where = f"[{ROLES_TABLE}] {name}"
            if not isinstance(scopes, list):
                self.problems.append(f"{where}: must be a list of scopes")
            elif name in frozenset(Scope):
                self.problems.append(f"{where}: is the name of a scope; choose another")
            else:
                try:
                    found[name] = resolve(map(str, scopes), {})
                except UnknownScope as exc:
                    self.problems.append(f"{where}: {exc}")
        return found


M = TypeVar("M", bound=Strict)


def _unknown_scopes(server: Server, oidc: Oidc, roles: Roles) -> list[str]:
    """What is wrong with the names of scopes and roles in the settings."""
    named = {
        f"A2A_STATIC_AUTH_CREDENTIALS.{number}.scopes": entry.scopes
        for number, entry in enumerate(server.static_auth_credentials)
    }
    named |= {f"A2A_MTLS_SCOPES.{who}": names for who, names in server.mtls_scopes.items()}
    named |= {f"A2A_OIDC_SCOPE_MAP.{word}": names for word, names in oidc.scope_map.items()}
    problems = []
    for where, names in named.items():
        for number, name in enumerate(names):
            try:
                resolve([name], roles)
            except UnknownScope as exc:
                problems.append(f"{where}.{number}: {exc}")
    return problems


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


def _secret_files(secrets: Path | None) -> tuple[list[Path], list[str]]:
    """The files of the secrets directory, and why those of our settings cannot be read."""
    if secrets is None:
        return [], []
    if not secrets.is_dir():
        return [], [f"secrets directory {secrets}: does not exist"]
    try:
        files = sorted(secrets.iterdir())
    except OSError as exc:
        return [], [f"secrets directory {secrets}: cannot be read ({exc.strerror})"]
    problems = []
    for file in files:
        try:
            if file.name.upper() in _NAMES:
                file.read_text(encoding="utf-8")
        except OSError as exc:
            problems.append(f"{file}: cannot be read ({exc.strerror})")
        except UnicodeDecodeError:
            problems.append(f"{file}: must be UTF-8 text")
    return files, problems


def _problem_lines(kind: type[SettingsGroup], exc: ValidationError) -> Iterator[str]:
    for error in exc.errors():
        loc = [str(step) for step in error["loc"]]
        where = ".".join([setting_name(kind, loc[0]), *loc[1:]]) + ":" if loc else ""
        is_shown = len(loc) == 1 and kind.model_fields[loc[0]].repr  # else it may hold a secret
        shown = f" is {error['input']!r}," if is_shown else ""
        yield from f"{where}{shown} {_requirement(error['msg'])}".strip().splitlines()


def _unknown(where: str, name: str, names: Iterable[str]) -> str:
    similar = get_close_matches(name, list(names), n=1, cutoff=0.75)
    advice = f"; did you mean {similar[0]}?" if similar else ""
    return f"{where}: there is no such setting{advice}"


def _requirement(message: str) -> str:
    """A message of pydantic's, in words that fit after a setting's name."""
    words = message.removeprefix("Value error, ").partition(", unable to")[0]
    for noun in ("Input", "String", "List", "Value"):
        words = words.replace(f"{noun} should", "must")
    return words.replace("Extra inputs are not permitted", "there is no such setting")
