"""Where everything of a deployment is, and what an instance is. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from ipaddress import ip_address
from posixpath import normpath

from ..domain.addresses import url_of_listener
from .resources import DeployError, Directory, File, Link, Resource, User

ETC, VAR, OPT = "/etc/opencode-a2a", "/var/lib/opencode-a2a", "/opt/opencode-a2a"
UNITS = "/etc/systemd/system"
RELEASES, INSTANCES = f"{OPT}/releases", f"{OPT}/instances"
CURRENT = f"{OPT}/current"  # the release that new instances get
PROGRAM = "/usr/local/bin/opencode-a2a"
MANIFEST = f"{ETC}/manifest.json"
FIRST_PORT = 8010
PORT_DISTANCE = 10_000  # from the port of the service to that of its OpenCode
INSTANCE_NAME = re.compile(r"[a-z]([a-z0-9-]{0,26}[a-z0-9])?")  # with "oca-" a name of a Linux user
SIZE = re.compile(r"[1-9][0-9]*[KMGT]?")
# No workspace is there, or below: the system's, what units cannot see, and what root writes to.
NO_WORKSPACE = tuple(
    "/bin /boot /dev /etc /home /lib /lib64 /opt /proc /root /run /sbin /sys /tmp /usr /var/log "
    f"/var/tmp {VAR}".split()
)
TOO_WIDE = ("/", "/var", "/var/lib")

CONFIG_TOML = """\
# Settings of this instance, besides those in the units. `opencode-a2a deploy update {name}` applies
# changes. Secrets do not belong here: each is a file in {secrets}.

[a2a]
# What `opencode-a2a token create NAME --config {config}` writes.
credentials_file = "{credentials}"
# title = "OpenCode"
# log_format = "json"
"""
# OpenCode's own configuration; the agent can read it and not change it.
OPENCODE_JSON = '{\n  "$schema": "https://opencode.ai/config.json"\n}\n'


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One service and its OpenCode: a user, a workspace, two ports, secrets of its own."""

    name: str
    port: int
    opencode_port: int
    release: str
    previous: str | None = None  # the release before: where `rollback` goes
    host: str = "127.0.0.1"
    public_url: str | None = None
    workspace: str | None = None  # a directory of the operator's; else one is made
    memory: str = "4G"  # of OpenCode and everything it starts
    tasks: int = 1024

    @property
    def user(self) -> str:
        return f"oca-{self.name}"

    @property
    def data(self) -> str:
        return f"{VAR}/{self.name}"

    @property
    def etc(self) -> str:
        return f"{ETC}/{self.name}"

    @property
    def secrets(self) -> str:
        return f"{self.etc}/secrets"

    @property
    def workspace_path(self) -> str:
        return self.workspace or f"{self.data}/workspace"

    @property
    def target(self) -> str:
        return f"opencode-a2a@{self.name}.target"

    @property
    def services(self) -> tuple[str, str]:
        return f"opencode@{self.name}.service", f"opencode-a2a@{self.name}.service"

    @property
    def socket(self) -> str:
        return f"opencode-a2a@{self.name}.socket"

    @property
    def url(self) -> str:
        """Where this machine reaches it."""
        return url_of_listener(self.host, self.port)

    def switched_to(self, release: str) -> Instance:
        if release == self.release:
            return self
        came_back = release == self.previous  # what was gone back from may be broken
        return replace(self, release=release, previous=None if came_back else self.release)


def check(instance: Instance, others: Iterable[Instance]) -> None:
    """Refuse what systemd or Linux would misunderstand, or what another instance has."""
    if not INSTANCE_NAME.fullmatch(instance.name):
        raise DeployError(
            f"{instance.name!r} cannot be the name of an instance: it must begin with a letter, "
            "have at most 28 small letters, digits and `-`, and not end with `-`."
        )
    if not SIZE.fullmatch(instance.memory):
        raise DeployError(f"--memory {instance.memory}: must be a size such as 4G or 512M.")
    if instance.tasks < 16:
        raise DeployError("--tasks: OpenCode needs at least 16.")
    for text in (instance.host, instance.public_url or "", instance.workspace_path):
        if not text.isprintable() or any(c in text for c in "\"'\\ "):
            raise DeployError(
                f"{text!r} has blanks, quotes or backslashes, which units cannot have."
            )
    try:
        ip_address(instance.host)
    except ValueError:
        raise DeployError(
            f"--host {instance.host}: must be an IP address of this machine, or 0.0.0.0 or :: for "
            "all of them."
        ) from None
    if instance.workspace is not None:
        _check_workspace(instance.workspace)
    ports = (instance.port, instance.opencode_port)
    if ports[0] == ports[1] or not all(1 <= port <= 65535 for port in ports):
        raise DeployError(f"ports {ports[0]} and {ports[1]}: must be two, from 1 to 65535.")
    for other in others:
        if other.name == instance.name:
            continue
        for port in ports:
            if port in (other.port, other.opencode_port):
                raise DeployError(f"port {port} belongs to the instance {other.name}.")
        if is_within(other.workspace_path, instance.workspace_path) or is_within(
            instance.workspace_path, other.workspace_path
        ):
            raise DeployError(
                f"{other.workspace_path} is the workspace of {other.name}, and none may be in "
                "another."
            )


def _check_workspace(path: str) -> None:
    if not path.startswith("/") or path.startswith("//") or normpath(path) != path:
        raise DeployError(
            f"--workspace {path}: must be an absolute path, without `..`, doubled slashes and a "
            "slash at its end."
        )
    if path in TOO_WIDE or any(is_within(path, each) for each in NO_WORKSPACE):
        raise DeployError(
            f"--workspace {path}: the agent may change everything there, and units cannot see "
            "/home, /root and /tmp. Use a directory of its own elsewhere, such as /srv/NAME."
        )


def is_within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(f"{directory}/")


def next_port(taken: Iterable[int]) -> int:
    """The first port of a pair that is free."""
    used = set(taken)
    port = FIRST_PORT
    while port in used or port + PORT_DISTANCE in used:
        port += 1
    return port


def host_resources(release: str) -> list[Resource]:
    """What all instances share, without the units."""
    return [
        Directory(ETC),
        Directory(VAR),
        Directory(OPT),
        Directory(RELEASES, holds="programs"),
        Directory(INSTANCES),
        Link(CURRENT, f"{RELEASES}/{release}"),
        Link(PROGRAM, f"{CURRENT}/bin/opencode-a2a"),
    ]


def instance_resources(instance: Instance) -> list[Resource]:
    """What an instance has of its own, without its drop-ins."""
    mine, readable = f"{instance.user}:{instance.user}", f"root:{instance.user}"
    folders = ["home", "state", *([] if instance.workspace else ["workspace"])]
    config_path = f"{instance.etc}/config.toml"
    config = CONFIG_TOML.format(
        name=instance.name,
        secrets=instance.secrets,
        config=config_path,
        credentials=f"{instance.data}/state/credentials.json",
    )
    return [
        User(instance.user, home=f"{instance.data}/home"),
        Directory(instance.etc, 0o750, readable, holds="data", is_operators=True),
        Directory(instance.secrets, 0o700, holds="data", is_operators=True),
        File(config_path, config, 0o640, readable, is_operators=True),
        File(f"{instance.etc}/opencode.json", OPENCODE_JSON, 0o640, readable, is_operators=True),
        # Root's own, so that the agent cannot put a link in the place of a directory in it.
        Directory(instance.data, 0o750, readable, holds="data"),
        *(Directory(f"{instance.data}/{name}", 0o700, mine, holds="data") for name in folders),
        Link(f"{INSTANCES}/{instance.name}", f"{RELEASES}/{instance.release}"),
    ]
