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
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from .. import __version__
from ..deploy import light, release
from ..deploy.host import LocalHost, environment
from ..deploy.host import run as run_program
from ..deploy.layout import CURRENT, Instance
from ..deploy.manifest import Manifest
from ..deploy.operator import NotConfirmed, Operator
from ..deploy.things import DeployError, Run, Step
from . import executable
from .failure import CommandError

LOCKED = "/root"  # one operator at a time; nobody else can open it, and so keep it locked
LOCK_VARIABLE = "OPENCODE_A2A_DEPLOY_LOCK"  # a descriptor, for commands that a command calls
RUNNING_SYSTEMD = Path("/run/systemd/system")
PERSISTENCE = "ENABLE_SECRET_PERSISTENCE"
OF_INSTANCE = ("host", "port", "opencode_port", "public_url", "workspace", "memory", "tasks")


def run(arguments: argparse.Namespace) -> None:
    _, *words = arguments.command.split()
    try:
        if words[0] == "light":
            _LIGHT[words[1]](arguments)
        else:
            _COMMANDS[words[0]](arguments)
    except NotConfirmed:
        print("Nothing was changed.")
    except DeployError as exc:
        raise CommandError(str(exc)) from None
    except PermissionError as exc:
        raise CommandError(f"{exc.filename}: {exc.strerror}. Are you root?") from None


def _operator(arguments: argparse.Namespace) -> Operator:
    return Operator(
        host=LocalHost(),
        say=lambda text: print(text, flush=True),
        confirm=lambda: _confirm(arguments),
        environment=os.environ,
    )


def _confirm(arguments: argparse.Namespace) -> bool:
    if arguments.dry_run:
        return False
    if os.geteuid() != 0:
        raise CommandError(
            "this changes the machine and needs root: use sudo. Nothing was changed."
        )
    if arguments.yes:
        return True
    if not sys.stdin.isatty():
        raise CommandError("say --yes to perform the plan without being asked.", 2)
    return input("Perform this plan? [y/N] ").strip().lower() in ("y", "yes")


@contextmanager
def locked() -> Iterator[None]:
    """One operator at a time. A command that calls another hands its lock over."""
    if not RUNNING_SYSTEMD.is_dir():
        raise DeployError("this machine is not run by systemd. `deploy light` needs none.")
    inherited = os.environ.get(LOCK_VARIABLE, "")
    descriptor = int(inherited) if inherited.isdecimal() else os.open(LOCKED, os.O_RDONLY)
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
    """What is to be installed: by default what this program is."""
    given = _from(arguments)
    if given is None:
        checkout = executable.CHECKOUT
        is_checkout = (checkout / "pyproject.toml").is_file()
        given = str(checkout) if is_checkout else f"opencode-a2a=={__version__}"
    return release.source_of(given, name=arguments.release)


def _install_steps(arguments: argparse.Namespace, source: release.Source) -> list[Step]:
    if release.is_installed(source):
        return []
    beside = release.opencode_beside(_from(arguments))
    opencode = release.check_opencode(arguments.opencode or beside or _find_opencode())
    python = release.check_python(arguments.python)
    return release.install_steps(source, python=python, opencode=opencode)


def _find_opencode() -> str:
    """Where there is none, the one that instances have already."""
    try:
        return executable.find(executable.NAME, Path.cwd())
    except CommandError:
        present = Path(CURRENT, "bin", executable.NAME)
        if present.exists():
            return str(present)
        raise


def init(arguments: argparse.Namespace) -> None:
    with locked():
        name = release.check_name(arguments.release) if arguments.release else None
        if _from(arguments) is None and name and release.installed(name) is not None:
            _operator(arguments).init(name)
            return
        source = _source(arguments)
        _operator(arguments).init(source.name, _install_steps(arguments, source))
    if not arguments.dry_run:
        print("The machine is prepared. Next: opencode-a2a deploy create NAME")


def create(arguments: argparse.Namespace) -> None:
    with locked():
        _operator(arguments).create(
            arguments.name,
            _wanted(arguments),
            make=_secrets_to_make(arguments),
            question=not arguments.no_question,
        )


def update(arguments: argparse.Namespace) -> None:
    with locked():
        operator = _operator(arguments)
        names = arguments.names or [each.name for each in operator.manifest.instances]
        wanted = _wanted(arguments)
        if "release" in wanted:
            release.check_name(wanted["release"])
        if len(names) != 1 and wanted.keys() - {"release", "memory", "tasks"}:
            raise CommandError("name one instance to change its addresses or its workspace.", 2)
        for name in names:
            operator.update(
                name,
                wanted,
                make=_secrets_to_make(arguments),
                question=not arguments.no_question,
            )


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


def list_instances(arguments: argparse.Namespace) -> None:
    operator = _operator(arguments)
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


def status(arguments: argparse.Namespace) -> None:
    """Exit code 0 only if all is well."""
    operator = _operator(arguments)
    instance = operator.manifest.instance(arguments.name)
    shown = ["Id", "ActiveState", "SubState", "NRestarts", "MainPID", "MemoryCurrent", "StatusText"]
    for unit in (*instance.services, f"opencode-a2a@{instance.name}.socket"):
        done = subprocess.run(
            ["systemctl", "show", "-p", ",".join(shown), unit],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise DeployError(f"systemctl cannot show {unit}: {done.stderr.strip()}")
        facts = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
        print(f"{unit}: {facts['ActiveState']} ({facts['SubState']})", end="")
        more = [
            f"{name} {facts[name]}" for name in shown[3:] if facts.get(name, "[")[:1] not in "[0"
        ]
        print(f", {', '.join(more)}" if more else "")
    print(f"release {instance.release}, before {instance.previous or 'none'}")
    print(f"user {instance.user}, workspace {instance.workspace_path}")
    operator.check(instance, question=arguments.ask)


def logs(arguments: argparse.Namespace) -> None:
    instance = _operator(arguments).manifest.instance(arguments.name)
    units_of = [word for unit in instance.services for word in ("-u", unit)]
    follow = ["-f"] if arguments.follow else []
    os.execvp("journalctl", ["journalctl", *units_of, "-n", str(arguments.lines or 100), *follow])


def restart(arguments: argparse.Namespace) -> None:
    """The service alone, so that the agent's work goes on; connections wait meanwhile."""
    operator = _operator(arguments)
    instance = operator.manifest.instance(arguments.name)
    opencode, service = instance.services
    run_program(("systemctl", "restart", *([opencode] if arguments.opencode_too else []), service))
    operator.check(instance, question=False)


def remove(arguments: argparse.Namespace) -> None:
    with locked():
        _operator(arguments).remove(arguments.name, purge=arguments.purge)


def uninstall(arguments: argparse.Namespace) -> None:
    with locked():
        _operator(arguments).uninstall(purge=arguments.purge)


def upgrade(arguments: argparse.Namespace) -> None:
    """One instance after the other; the first that does not work goes back, and stops it all."""
    with locked():
        _upgrade(arguments, _operator(arguments), _source(arguments))


def _upgrade(arguments: argparse.Namespace, operator: Operator, source: release.Source) -> None:
    manifest = operator.manifest
    names = arguments.names or [each.name for each in manifest.instances]
    for name in names:
        manifest.instance(name)  # says which there are
    steps = _install_steps(arguments, source)
    removals = _removals(arguments, manifest.instances, source.name)
    print(f"Plan: release {source.name}, beside those that are there")
    for step in steps:
        print(f"  {step}")
    for name in names:
        asked = "" if arguments.no_question else ", and ask it"
        print(f"  then {name}: {manifest.instance(name).release} -> {source.name}{asked}")
    for step in removals:
        print(f"  then {step}    (no instance runs it, or would go back to it)")
    if not _confirm(arguments):
        raise NotConfirmed
    for step in steps:
        operator.host.perform(step)
    for name in names:
        _switch(operator, name, to=source.name, options=_question_option(arguments))
    if not arguments.names:  # new instances get it too, and the operator's program is of it
        _delegate(source.name, "init", "--release", source.name)
    for step in removals:
        operator.host.perform(step)
    print(f"All of {', '.join(names) or 'nothing'} run {source.name}.")


def _removals(arguments: argparse.Namespace, instances: Sequence[Instance], to: str) -> list[Step]:
    """What can go when the instances are switched."""
    after = [
        each.switched_to(to) if each.name in arguments.names or not arguments.names else each
        for each in instances
    ]
    current = release.current() if arguments.names else to
    unused = release.unused(after, kept=[current, to])
    return [Run(("rm", "-rf", str(release.folder(name)))) for name in unused]


def _question_option(arguments: argparse.Namespace) -> list[str]:
    return ["--no-question"] if arguments.no_question else []


def _switch(operator: Operator, name: str, *, to: str, options: Sequence[str]) -> None:
    before = operator.manifest.instance(name)
    try:
        _delegate(to, "update", name, "--release", to, *options)
    except DeployError as exc:
        print(f"{name} does not work with {to}: back to {before.release}.", flush=True)
        _delegate(before.release, "update", name, "--release", before.release, *options)
        operator.set_previous(name, before.previous)
        raise DeployError(f"the upgrade was stopped at {name}: {exc}") from None


def rollback(arguments: argparse.Namespace) -> None:
    """All that have a release before; one that fails does not keep the others from it."""
    with locked():
        _rollback(arguments, _operator(arguments).manifest)


def _rollback(arguments: argparse.Namespace, manifest: Manifest) -> None:
    names = arguments.names or [each.name for each in manifest.instances]
    goals = {
        name: previous
        for name in names
        if (previous := manifest.instance(name).previous) is not None
    }
    if not goals:
        raise DeployError("there is no release before the present one.")
    for name, goal in goals.items():
        print(f"Plan: {name}: {manifest.instance(name).release} -> {goal}")
    for name in names:
        if name not in goals:
            print(f"{name} has no release before the present one, and stays as it is.")
    if not _confirm(arguments):
        raise NotConfirmed
    failed = []
    for name, goal in goals.items():
        try:
            _delegate(goal, "update", name, "--release", goal, *_question_option(arguments))
        except DeployError as exc:
            print(f"{name}: {exc}", flush=True)
            failed.append(name)
    if failed:
        raise DeployError(f"these could not go back, or do not work: {', '.join(failed)}.")
    if not arguments.names and len(set(goals.values())) == 1:
        (goal,) = set(goals.values())
        _delegate(goal, "init", "--release", goal)


def _delegate(name: str, *words: str) -> None:
    """Each release knows its own units, so the program of a release switches to it."""
    if release.installed(name) is None:
        raise DeployError(f"the release {name} is not installed here.")
    sys.stdout.flush()
    command = [release.program(name), "deploy", *words, "--yes"]
    lock = int(os.environ[LOCK_VARIABLE])
    done = subprocess.run(command, check=False, env=environment(), pass_fds=[lock])
    if done.returncode:
        raise DeployError(f"`deploy {' '.join(words)}` of {name} failed; its words are above.")


def light_start(arguments: argparse.Namespace) -> None:
    folder = light.Folder(arguments.name)
    print(light.start(folder, _light(arguments, folder)))
    print(f"To see whether it runs: opencode-a2a deploy light status {folder.name}")


def _light(arguments: argparse.Namespace, folder: light.Folder) -> light.Light:
    """As it was started before, but for what is said."""
    given = {}
    for name in ("host", "port", "config", "secrets"):
        if (value := getattr(arguments, name)) is not None:
            is_path = name in ("config", "secrets")
            given[f"--{name}"] = str(Path(value).resolve() if is_path else value)
    before = folder.light or light.Light(folder.name, str(Path.cwd()))
    if arguments.directory is not None:
        before = replace(before, directory=str(arguments.directory.resolve()))
    return before.with_options(given)


def light_stop(arguments: argparse.Namespace) -> None:
    print("Stopped." if light.stop(light.Folder(arguments.name)) else "It was not running.")


def light_restart(arguments: argparse.Namespace) -> None:
    folder = light.Folder(arguments.name)
    if folder.light is None:
        raise DeployError(f"{folder.name} was never started. `start` starts it.")
    wanted = _light(arguments, folder)
    wanted.check()  # before what runs is stopped
    light.stop(folder)
    print(light.start(folder, wanted))


def light_status(arguments: argparse.Namespace) -> None:
    """Exit code 0 only if it runs and answers."""
    from . import instances

    folder = light.Folder(arguments.name)
    if folder.light is None or not light.is_running(folder):
        raise CommandError(f"{arguments.name} is not running.")
    found = [
        each for each in instances.running_instances() if each.workspace == folder.light.directory
    ]
    if not found:
        raise CommandError(
            f"{arguments.name} is starting, or cannot start: see `deploy light logs`."
        )
    print(f"{arguments.name} runs at {found[0].url} in {found[0].workspace}, pid {found[0].pid}")


def light_logs(arguments: argparse.Namespace) -> None:
    folder = light.Folder(arguments.name)
    if folder.light is None:
        raise DeployError(f"{arguments.name} was never started.")
    command = light.log_command(folder, follow=arguments.follow, lines=arguments.lines or 100)
    os.execvp(command[0], command)


_COMMANDS: dict[str, Callable[[argparse.Namespace], None]] = {
    "init": init,
    "create": create,
    "update": update,
    "list": list_instances,
    "status": status,
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
