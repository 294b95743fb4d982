"""The command `deploy`: arguments in, the commands of `opencode_a2a.deploy` called."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ..deploy import light, release, units
from ..deploy.host import Host, LocalHost, environment
from ..deploy.layout import Instance
from ..deploy.operator import NotConfirmed, Operator
from ..deploy.release import Releases
from ..deploy.resources import Command, DeployError, Step
from ..deploy.switch import Switch
from ..paths import program_path
from . import executable
from .failure import CommandError

LOCK_VARIABLE = "OPENCODE_A2A_DEPLOY_LOCK"  # a descriptor, for commands that a command calls
PERSISTENCE = "ENABLE_SECRET_PERSISTENCE"
OF_INSTANCE = ("host", "port", "opencode_port", "public_url", "workspace", "memory", "tasks")


@dataclass(frozen=True, slots=True)
class Machine:
    """What the commands work on; tests have one of their own."""

    host: Host = field(default_factory=LocalHost)
    releases: Releases = field(default_factory=Releases)
    systemd: Path = Path("/run/systemd/system")  # is there where systemd runs the machine
    lock_directory: Path = Path("/root")  # nobody else can open it, and so keep it locked
    user_id: int = field(default_factory=os.geteuid)


def run(arguments: argparse.Namespace, machine: Machine | None = None) -> None:
    _, *words = arguments.command.split()
    if words[0] != "light":  # root, in whatever directory this is: no program is taken from there
        os.environ["PATH"] = program_path(outside=Path.cwd())
    try:
        if words[0] == "light":
            _LIGHT[words[1]](arguments)
        else:
            _COMMANDS[words[0]](arguments, machine or Machine())
    except NotConfirmed:
        print("Nothing was changed.")
    except DeployError as exc:
        raise CommandError(str(exc)) from None
    except PermissionError as exc:
        raise CommandError(f"{exc.filename}: {exc.strerror}. Are you root?") from None


def _operator(arguments: argparse.Namespace, machine: Machine) -> Operator:
    return Operator(
        host=machine.host,
        say=lambda text: print(text, flush=True),
        confirm=lambda: _confirm(arguments, machine),
        environment=os.environ,
        opencode_of=machine.releases.opencode_of,
    )


def _confirm(arguments: argparse.Namespace, machine: Machine) -> bool:
    if arguments.dry_run:
        return False
    if machine.user_id != 0:
        raise CommandError(
            "this changes the machine and needs root: use sudo. Nothing was changed."
        )
    if arguments.yes:
        return True
    if not sys.stdin.isatty():
        raise CommandError("say --yes to perform the plan without being asked.", 2)
    return input("Perform this plan? [y/N] ").strip().lower() in ("y", "yes")


@contextmanager
def locked(machine: Machine, *, dry_run: bool = False) -> Iterator[None]:
    """One operator at a time. A command that calls another hands its lock over.

    What only shows its plan waits for nobody, and needs neither root nor systemd for that.
    """
    if dry_run:
        yield
        return
    if not machine.systemd.is_dir():
        raise DeployError("this machine is not run by systemd. `deploy light` needs none.")
    inherited = os.environ.get(LOCK_VARIABLE, "")
    if inherited.isdecimal():
        descriptor = int(inherited)
    else:
        descriptor = os.open(machine.lock_directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.environ[LOCK_VARIABLE] = str(descriptor)
        yield
    finally:
        os.environ.pop(LOCK_VARIABLE, None)
        os.close(descriptor)


def _from(arguments: argparse.Namespace) -> str | None:
    given: str | None = vars(arguments)["from"]
    return given


def _source(arguments: argparse.Namespace) -> release.Source:
    """What is to be installed: by default the checkout that this program runs from."""
    given = _from(arguments)
    if given is None:
        if not (executable.CHECKOUT / "pyproject.toml").is_file():
            raise DeployError(
                "this program does not run from a checkout, so say what is to be installed: --from "
                "with a checkout of opencode-a2a, or a wheel built from one."
            )
        given = str(executable.CHECKOUT)
    return release.source_of(given, name=arguments.release)


def _install_steps(
    arguments: argparse.Namespace, source: release.Source, machine: Machine
) -> list[Step]:
    if machine.releases.is_installed(source):
        return []
    beside = release.opencode_beside(_from(arguments))
    opencode = release.check_opencode(arguments.opencode or beside or _find_opencode(machine))
    python = release.check_python(arguments.python)
    return release.install_steps(source, python=python, opencode=opencode)


def _find_opencode(machine: Machine) -> str:
    """Where there is none, the one that instances have already."""
    try:
        return executable.find(executable.NAME, Path.cwd())
    except CommandError:
        present = machine.releases.current_link / "bin" / executable.NAME
        if present.exists():
            return str(present)
        raise


def init(arguments: argparse.Namespace, machine: Machine) -> None:
    with locked(machine, dry_run=arguments.dry_run):
        name = release.check_name(arguments.release) if arguments.release else None
        operator = _operator(arguments, machine)
        if _from(arguments) is None and name and machine.releases.opencode_of(name) is not None:
            operator.init(name)
            return
        source = _source(arguments)
        operator.init(source.name, _install_steps(arguments, source, machine))
    if not arguments.dry_run:
        print("The machine is prepared. Next: opencode-a2a deploy create NAME")


def create(arguments: argparse.Namespace, machine: Machine) -> None:
    with locked(machine, dry_run=arguments.dry_run):
        operator, secrets = _operator(arguments, machine), _secrets_to_make(arguments)
        if _is_handed_over(arguments, machine, arguments.name, to=machine.releases.current):
            return
        operator.create(
            arguments.name,
            _wanted(arguments),
            make=secrets,
            question=not arguments.no_question,
        )


def update(arguments: argparse.Namespace, machine: Machine) -> None:
    with locked(machine, dry_run=arguments.dry_run):
        operator, secrets = _operator(arguments, machine), _secrets_to_make(arguments)
        names = arguments.names or [each.name for each in operator.manifest.instances]
        wanted = _wanted(arguments)
        if "release" in wanted:
            release.check_name(wanted["release"])
        if len(names) != 1 and wanted.keys() - {"release", "memory", "tasks"}:
            raise CommandError("name one instance to change its addresses or its workspace.", 2)
        for name in names:
            goal = wanted.get("release", operator.manifest.instance(name).release)
            if not _is_handed_over(arguments, machine, name, to=goal):
                operator.update(name, wanted, make=secrets, question=not arguments.no_question)


def _is_handed_over(
    arguments: argparse.Namespace, machine: Machine, name: str, *, to: str | None
) -> bool:
    """Whether the program of another release was told to do it: that writes the units it knows."""
    if to is None or to == machine.releases.own or machine.releases.opencode_of(to) is None:
        return False
    _, command = arguments.command.split()
    words = [command, name]
    for option, value in _wanted(arguments).items():
        words += [f"--{option.replace('_', '-')}", str(value)]
    for secret in arguments.secret:
        words += ["--secret", secret]
    for flag in ("no_question", "yes", "dry_run"):
        words += [f"--{flag.replace('_', '-')}"] if getattr(arguments, flag) else []
    _run_release(machine, to, *words)
    return True


def _wanted(arguments: argparse.Namespace) -> dict[str, Any]:
    names = (*OF_INSTANCE, "release")
    given = {name: getattr(arguments, name, None) for name in names}
    return {name: value for name, value in given.items() if value is not None}


def _secrets_to_make(arguments: argparse.Namespace) -> Sequence[str] | None:
    """The names of secrets to be written; None: the operator provides them all."""
    if os.environ.get(PERSISTENCE, "").lower() in ("1", "true", "yes"):
        return list(arguments.secret)
    if arguments.secret:
        raise CommandError(f"--secret writes secrets to disk: set {PERSISTENCE}=true for that.", 2)
    return None


def list_instances(arguments: argparse.Namespace, machine: Machine) -> None:
    operator = _operator(arguments, machine)
    found = operator.manifest.instances
    active = operator.host.active([unit for each in found for unit in each.services])
    rows = [{**asdict(each), "state": _state(each, active), "url": each.url} for each in found]
    if arguments.json:
        print(json.dumps(rows, indent=2))
    elif not rows:
        print("There is no instance. Make one: opencode-a2a deploy create NAME")
    for row in [] if arguments.json else rows:
        print(f"{row['name']:<20} {row['state']:<22} {row['url']:<28} {row['release']}")


def _state(instance: Instance, active: frozenset[str]) -> str:
    opencode, service = (unit in active for unit in instance.services)
    if opencode and service:
        return "running"
    return {(True, False): "service is down", (False, True): "OpenCode is down"}.get(
        (opencode, service), "stopped"
    )


def status(arguments: argparse.Namespace, machine: Machine) -> None:
    """Exit code 0 only if all is well."""
    operator = _operator(arguments, machine)
    instance = operator.manifest.instance(arguments.name)
    shown = ["Id", "ActiveState", "SubState", "NRestarts", "MainPID", "MemoryCurrent", "StatusText"]
    for unit in (*instance.services, instance.socket):
        output = machine.host.output(("systemctl", "show", "-p", ",".join(shown), unit))
        facts = dict(line.partition("=")[::2] for line in output.splitlines())
        print(f"{unit}: {facts['ActiveState']} ({facts['SubState']})", end="")
        more = [
            f"{name} {facts[name]}" for name in shown[3:] if facts.get(name, "[")[:1] not in "[0"
        ]
        print(f", {', '.join(more)}" if more else "")
    print(f"release {instance.release}, before {instance.previous or 'none'}")
    print(f"user {instance.user}, workspace {instance.workspace_path}")
    operator.check(instance, question=arguments.ask)


def doctor(arguments: argparse.Namespace, machine: Machine) -> None:
    instance = _operator(arguments, machine).manifest.instance(arguments.name)
    flags = [
        f"--{name}" for name in ("no-model", "json") if vars(arguments)[name.replace("-", "_")]
    ]
    program = machine.releases.program(instance.release)
    words = (program, "doctor", "--config", f"{instance.etc}/config.toml", *flags)
    command = units.as_service(instance, machine.host.secrets(instance.secrets), words)
    os.execvp(command[0], command)


def logs(arguments: argparse.Namespace, machine: Machine) -> None:
    instance = _operator(arguments, machine).manifest.instance(arguments.name)
    units_of = [word for unit in instance.services for word in ("-u", unit)]
    follow = ["-f"] if arguments.follow else []
    os.execvp("journalctl", ["journalctl", *units_of, "-n", str(arguments.lines or 100), *follow])


def restart(arguments: argparse.Namespace, machine: Machine) -> None:
    """The service alone, so that the agent's work goes on; connections wait meanwhile."""
    operator = _operator(arguments, machine)
    instance = operator.manifest.instance(arguments.name)
    opencode, service = instance.services
    chosen = (opencode, service) if arguments.opencode_too else (service,)
    machine.host.perform(Command(("systemctl", "restart", *chosen)))
    operator.check(instance, question=False)


def remove(arguments: argparse.Namespace, machine: Machine) -> None:
    with locked(machine, dry_run=arguments.dry_run):
        _operator(arguments, machine).remove(arguments.name, purge=arguments.purge)


def uninstall(arguments: argparse.Namespace, machine: Machine) -> None:
    with locked(machine, dry_run=arguments.dry_run):
        _operator(arguments, machine).uninstall(purge=arguments.purge)


def upgrade(arguments: argparse.Namespace, machine: Machine) -> None:
    with locked(machine, dry_run=arguments.dry_run):
        source = _source(arguments)
        steps = _install_steps(arguments, source, machine)
        _switch(arguments, machine).upgrade(source, steps, arguments.names)


def rollback(arguments: argparse.Namespace, machine: Machine) -> None:
    with locked(machine, dry_run=arguments.dry_run):
        switch = _switch(arguments, machine)
        switch.rollback(arguments.names)


def _switch(arguments: argparse.Namespace, machine: Machine) -> Switch:
    def delegate(release: str, *words: str) -> None:
        _run_release(machine, release, *words, "--yes")

    operator = _operator(arguments, machine)
    return Switch(operator, machine.releases, delegate, question=not arguments.no_question)


def _run_release(machine: Machine, name: str, *words: str) -> None:
    """Each release knows its own units, so the program of a release writes them."""
    if machine.releases.opencode_of(name) is None:
        raise DeployError(f"the release {name} is not installed here.")
    sys.stdout.flush()
    command = [machine.releases.program(name), "deploy", *words]
    locks = [int(os.environ[LOCK_VARIABLE])] if LOCK_VARIABLE in os.environ else []  # no dry run
    done = subprocess.run(command, check=False, env=environment(), pass_fds=locks)
    if done.returncode:
        raise DeployError(f"`deploy {' '.join(words)}` of {name} failed; its words are above.")


def light_start(arguments: argparse.Namespace) -> None:
    folder = light.Folder(arguments.name)
    print(light.start(folder, _light_settings(arguments, folder)))
    print(f"To see whether it runs: opencode-a2a deploy light status {folder.name}")


def _light_settings(arguments: argparse.Namespace, folder: light.Folder) -> light.LightSettings:
    """As it was started before, but for what is said."""
    given = {}
    for name in ("host", "port", "config", "secrets"):
        if (value := getattr(arguments, name)) is not None:
            is_path = name in ("config", "secrets")
            given[f"--{name}"] = str(Path(value).resolve() if is_path else value)
    before = folder.settings or light.LightSettings(folder.name, str(Path.cwd()))
    if arguments.directory is not None:
        before = replace(before, directory=str(arguments.directory.resolve()))
    return before.with_options(given)


def light_stop(arguments: argparse.Namespace) -> None:
    print("Stopped." if light.stop(light.Folder(arguments.name)) else "It was not running.")


def light_restart(arguments: argparse.Namespace) -> None:
    folder = light.Folder(arguments.name)
    if folder.settings is None:
        raise DeployError(f"{folder.name} was never started. `start` starts it.")
    wanted = _light_settings(arguments, folder)
    wanted.check()  # before what runs is stopped
    light.stop(folder)
    print(light.start(folder, wanted))


def light_status(arguments: argparse.Namespace) -> None:
    """Exit code 0 only if it runs and answers."""
    from . import instances

    folder = light.Folder(arguments.name)
    if folder.settings is None or not light.is_running(folder):
        raise CommandError(f"{arguments.name} is not running.")
    found = [
        each
        for each in instances.running_instances()
        if each.workspace == folder.settings.directory
    ]
    if not found:
        raise CommandError(
            f"{arguments.name} is starting, or cannot start: see `deploy light logs`."
        )
    print(f"{arguments.name} runs at {found[0].url} in {found[0].workspace}, pid {found[0].pid}")


def light_logs(arguments: argparse.Namespace) -> None:
    folder = light.Folder(arguments.name)
    if folder.settings is None:
        raise DeployError(f"{arguments.name} was never started.")
    command = light.log_command(folder, follow=arguments.follow, lines=arguments.lines or 100)
    os.execvp(command[0], command)


_COMMANDS: dict[str, Callable[[argparse.Namespace, Machine], None]] = {
    "init": init,
    "create": create,
    "update": update,
    "list": list_instances,
    "status": status,
    "doctor": doctor,
    "logs": logs,
    "restart": restart,
    "upgrade": upgrade,
    "rollback": rollback,
    "remove": remove,
    "uninstall": uninstall,
}
_LIGHT: dict[str, Callable[[argparse.Namespace], None]] = {
    "start": light_start,
    "stop": light_stop,
    "restart": light_restart,
    "status": light_status,
    "logs": light_logs,
}
