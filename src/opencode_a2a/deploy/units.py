"""The systemd units: templates for all instances, and one drop-in per instance and unit. Pure.

OpenCode and the service are two units, so that one is restarted without the other: a task goes on
while the service restarts. The socket is a third: it accepts connections meanwhile.

All instances share the templates, and instances of several releases stand beside each other. So the
templates say nothing that could change with a release; that is in the drop-ins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from .layout import ETC, FIRST_PORT, INSTANCES, PORT_DISTANCE, UNITS, VAR, Instance
from .resources import DeployError, Directory, File

NOTE = "# Written by `opencode-a2a deploy`. Add what you want with `systemctl edit`.\n"

# No release may change these: an instance would get what another release has written.
TEMPLATES = {
    "opencode@.service": f"{NOTE}[Unit]\nDescription=OpenCode of the instance %i\n",
    "opencode-a2a@.service": f"{NOTE}[Unit]\nDescription=A2A service of the instance %i\n",
    "opencode-a2a@.socket": f"{NOTE}[Unit]\nDescription=Port of the instance %i\n",
    "opencode-a2a@.target": f"""\
{NOTE}[Unit]
Description=OpenCode and the A2A service of the instance %i
Wants=opencode@%i.service opencode-a2a@%i.socket opencode-a2a@%i.service

[Install]
WantedBy=multi-user.target
""",
}

# What both units have. An agent runs compilers, test suites and package managers, so OpenCode's
# unit goes without what those would stumble over; the unit of the service has that besides.
HARDENING = """\
NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
DevicePolicy=closed
PrivateUsers=yes
PrivateIPC=yes
RemoveIPC=yes
ProtectProc=invisible
ProtectClock=yes
ProtectHostname=yes
ProtectControlGroups=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
LockPersonality=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallErrorNumber=EPERM
UMask=0077
"""

OPENCODE = f"""\
{NOTE}[Unit]
PartOf=opencode-a2a@%i.target
After=network.target
StartLimitIntervalSec=0

[Service]
Type=exec
User=oca-%i
Group=oca-%i
Environment=HOME={VAR}/%i/home SHELL=/bin/sh
Environment=OPENCODE_CONFIG={ETC}/%i/opencode.json
Environment=OPENCODE_DISABLE_AUTOUPDATE=1 OPENCODE_DISABLE_EMBEDDED_WEB_UI=1
# Python's -I keeps it from loading what the agent has written to the workspace.
ExecStart={INSTANCES}/%i/bin/python -I -m opencode_a2a.deploy.launch \\
  {INSTANCES}/%i/bin/opencode serve --hostname 127.0.0.1 --port $OPENCODE_PORT
Restart=always
RestartSec=1
KillMode=mixed
TimeoutStopSec=10
OOMPolicy=continue
LimitNOFILE=65536
SyslogIdentifier=opencode@%i
LogExtraFields=OPENCODE_A2A_INSTANCE=%i

ReadWritePaths={VAR}/%i/home
# The agent has the same user as the service: what the service keeps is hidden from it.
InaccessiblePaths={VAR}/%i/state
SystemCallFilter=@system-service
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK
# The ports that the OpenCodes of instances have, unless the operator chose others. An agent may
# take any other port for what it tries. Without effect where systemd is built without BPF.
SocketBindDeny=tcp:{FIRST_PORT + PORT_DISTANCE}-{FIRST_PORT + PORT_DISTANCE + 989}
{HARDENING}"""

SERVICE = f"""\
{NOTE}[Unit]
PartOf=opencode-a2a@%i.target
Requires=opencode-a2a@%i.socket
After=network.target opencode@%i.service opencode-a2a@%i.socket
StartLimitIntervalSec=0

[Service]
Type=notify
User=oca-%i
Group=oca-%i
Environment=HOME={VAR}/%i/state XDG_STATE_HOME={VAR}/%i/state
# Git follows links that the agent can make, to where the agent itself cannot write.
Environment=A2A_ISOLATION=never
ExecStart={INSTANCES}/%i/bin/opencode-a2a serve --config {ETC}/%i/config.toml
ExecReload=/bin/kill -HUP $MAINPID
WatchdogSec=30
Restart=always
RestartSec=1
TimeoutStartSec=60
# A2A_SHUTDOWN_GRACE_SECONDS can be 300.
TimeoutStopSec=310
MemoryMax=1G
TasksMax=256
LimitNOFILE=65536
SyslogIdentifier=opencode-a2a@%i
LogExtraFields=OPENCODE_A2A_INSTANCE=%i

ReadWritePaths={VAR}/%i/state
SystemCallFilter=@system-service
SystemCallFilter=~@privileged @resources
MemoryDenyWriteExecute=yes
ProcSubset=pid
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
{HARDENING}"""

SOCKET = f"""\
{NOTE}[Unit]
PartOf=opencode-a2a@%i.target

[Socket]
Backlog=1024
NoDelay=yes
# Connections wait here while the service restarts.
TriggerLimitIntervalSec=0
"""

# The file with OpenCode's password serves both: the service logs in with it.
OPENCODE_PASSWORD = "OPENCODE_SERVER_PASSWORD"
SERVICE_PREFIX = "A2A_"
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def credentials(names: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Which secret goes to the service and which to OpenCode, under which name: {name: file}.

    Those of the service begin with A2A_. All others, such as the keys of model providers, go to
    OpenCode alone.
    """
    service, opencode = {}, {}
    for name in sorted(names):
        if name.upper().startswith(SERVICE_PREFIX):
            service[name] = name
        else:
            opencode[name] = name
        if name == OPENCODE_PASSWORD:
            service["OPENCODE_AUTH_PASSWORD"] = name
    return service, opencode


def check_names(names: Iterable[str], folder: str) -> None:
    """Each becomes the name of a credential, and of a variable."""
    for name in names:
        if not VARIABLE.fullmatch(name):
            raise DeployError(
                f"{folder}/{name}: the name of a secret file is that of a variable: letters, "
                "digits and `_`. Rename or remove this file."
            )


def templates() -> list[File]:
    return [File(f"{UNITS}/{name}", content) for name, content in TEMPLATES.items()]


def drop_ins(instance: Instance, secrets: Iterable[str]) -> dict[str, str]:
    """What an instance has of its release and of its own, by the name of the unit."""
    service, opencode = credentials(secrets)
    workspace = instance.workspace_path
    settings = {
        "A2A_HOST": instance.host,
        "A2A_PORT": str(instance.port),
        "OPENCODE_BASE_URL": f"http://127.0.0.1:{instance.opencode_port}",
        "OPENCODE_WORKSPACE_ROOT": workspace,
    }
    if instance.public_url is not None:
        settings["A2A_PUBLIC_URL"] = instance.public_url
    address = f"[{instance.host}]" if ":" in instance.host else instance.host
    return {
        f"opencode@{instance.name}.service": _lines(
            OPENCODE,
            f"WorkingDirectory={_path(workspace)}",
            f"ReadWritePaths={_path(workspace)}",
            f"Environment=OPENCODE_PORT={instance.opencode_port}",
            f"SocketBindAllow=tcp:{instance.opencode_port}",
            f"MemoryMax={instance.memory}",
            f"TasksMax={instance.tasks}",
            *_load(instance, opencode),
        ),
        f"opencode-a2a@{instance.name}.service": _lines(
            SERVICE,
            f"WorkingDirectory={_path(workspace)}",
            f"ReadWritePaths={_path(workspace)}",
            *(f'Environment="{name}={_path(value)}"' for name, value in settings.items()),
            *_load(instance, service),
        ),
        f"opencode-a2a@{instance.name}.socket": _lines(
            SOCKET, f"ListenStream={address}:{instance.port}"
        ),
    }


def as_service(instance: Instance, secrets: Iterable[str], words: Iterable[str]) -> tuple[str, ...]:
    """A command with the settings and credentials of the service, as its user."""
    lines = drop_ins(instance, secrets)[instance.services[1]].replace("%i", instance.name)
    kept = ("User=", "Group=", "WorkingDirectory=", "Environment=", "LoadCredential=")
    properties = [line for line in lines.splitlines() if line.startswith(kept)]
    options = [word for line in properties for word in ("-p", line.replace("%%", "%"))]
    return ("systemd-run", "--pipe", "--wait", "--collect", "--quiet", *options, *words)


def drop_in_resources(instance: Instance, secrets: Iterable[str]) -> list[Directory | File]:
    resources: list[Directory | File] = []
    for unit, content in drop_ins(instance, secrets).items():
        folder = f"{UNITS}/{unit}.d"
        resources += [Directory(folder), File(f"{folder}/instance.conf", content)]
    return resources


def _load(instance: Instance, names: Mapping[str, str]) -> list[str]:
    return [f"LoadCredential={name}:{instance.secrets}/{file}" for name, file in names.items()]


def _lines(unit: str, *lines: str) -> str:
    """The lines belong to the last section of the unit."""
    return unit + "\n".join(["# Of this instance", *lines, ""])


def _path(value: str) -> str:
    """`%` begins a specifier in a unit."""
    return value.replace("%", "%%")
