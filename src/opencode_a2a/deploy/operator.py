"""The commands for many instances under systemd: look, plan, show, ask, perform, verify."""

from __future__ import annotations

import secrets as random
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from . import check, plans, units
from .host import Host
from .layout import CURRENT, ETC, MANIFEST, PORT_DISTANCE, Instance, next_port
from .layout import check as check_instance
from .manifest import Manifest, Record
from .plans import HostState, Plan
from .resources import DeployError, Directory, File, Link, Make, Remove, Step

CALLERS = ("A2A_BEARER_TOKEN", "A2A_STATIC_AUTH_CREDENTIALS")
MADE_BYTES = 32  # of a secret that is made
# The same as config.SECRET_COMMAND, which needs packages that a fresh machine has not.
MAKE_SECRET = f"python3 -c 'import secrets; print(secrets.token_urlsafe({MADE_BYTES}))'"


class Verify(Protocol):
    """Whether an instance works; returns what to tell the operator."""

    def __call__(self, url: str, authorization: str | None, *, question: bool) -> str: ...


def verify(url: str, authorization: str | None, *, question: bool) -> str:
    check.wait_until_ready(url, authorization)
    if not question or authorization is None:
        return f"{url} is ready."
    return f"{url} is ready, and has answered a question: {check.ask(url, authorization)[:200]}"


@dataclass(frozen=True, slots=True)
class Operator:
    host: Host
    say: Callable[[str], None]
    confirm: Callable[[], bool]  # whether the plan that was said may be performed
    environment: Mapping[str, str]  # where secrets to be written may be
    opencode_of: Callable[[str], str | None]  # the digest of the OpenCode that a release has
    verify: Verify = verify

    @property
    def manifest(self) -> Manifest:
        text = self.host.read(MANIFEST)
        return Manifest() if text is None else Manifest.parse(text)

    def init(self, name: str, first: Sequence[Step] = ()) -> None:
        """Prepare the machine, with these steps first: those that install the release."""
        manifest = self.manifest
        found = HostState(self.host.find(plans.wanted_host(name)))
        plan = plans.init(name, manifest, found)
        folders = [
            s for s in plan.steps if isinstance(s, Make) and isinstance(s.resource, Directory)
        ]
        rest = [step for step in plan.steps if step not in folders]
        self._perform(replace(plan, steps=[*folders, *first, *rest]), f"release {name}")

    def create(
        self, name: str, wanted: Mapping[str, Any], *, make: Sequence[str] | None, question: bool
    ) -> None:
        """`make`: the secrets to write, beside those that are needed; None: write none."""
        manifest = self.manifest
        if any(each.name == name for each in manifest.instances):
            raise DeployError(f"there is an instance {name} already. To change it: deploy update.")
        current = self.host.find([Link(CURRENT, "")]).get(CURRENT)
        if not isinstance(current, Link):
            raise DeployError("this machine is not prepared: run `opencode-a2a deploy init` first.")
        taken = [p for each in manifest.instances for p in (each.port, each.opencode_port)]
        port = wanted.get("port") or next_port(taken)
        given = {
            "port": port,
            "opencode_port": port + PORT_DISTANCE,
            "release": current.target.rpartition("/")[2],
            **wanted,
        }
        self._bring_up(Instance(name=name, **given), make=make, question=question)

    def update(
        self,
        name: str,
        wanted: Mapping[str, Any],
        *,
        make: Sequence[str] | None = None,
        question: bool = True,
    ) -> None:
        old = self.manifest.instance(name)
        new = replace(old.switched_to(wanted.get("release", old.release)), **wanted)
        self._bring_up(new, make=make, question=question)

    def _bring_up(self, instance: Instance, *, make: Sequence[str] | None, question: bool) -> None:
        manifest = self.manifest
        check_instance(instance, manifest.instances)
        opencode = self.opencode_of(instance.release)
        if opencode is None:
            raise DeployError(f"the release {instance.release} is not installed here.")
        secrets = self.host.secrets(instance.secrets)
        units.check_names(secrets, instance.secrets)
        made = self._missing_secrets(instance, secrets, make=make)
        secrets |= {file.path.rpartition("/")[2]: file.content for file in made}
        wanted = [*units.templates(), *plans.wanted_instance(instance, sorted(secrets), made)]
        active = self.host.active([instance.target, *units.drop_ins(instance, ())])
        self._check_ports(instance, manifest.records.get(instance.name, Record()), active)
        self._check_workspace(instance)
        found = HostState(
            self.host.find(wanted),
            active=active,
            secrets=secrets,
            opencode=opencode,
        )
        plan = plans.bring_up(instance, manifest, found, made)
        self._perform(plan, f"instance {instance.name}")
        self.check(instance, question=question)
        seen_at = instance.public_url or instance.url
        self.say(f"To look for problems, as clients see it: opencode-a2a doctor --url {seen_at}")

    def _check_ports(self, instance: Instance, record: Record, active: frozenset[str]) -> None:
        """Refuse a port that somebody else has: who holds OpenCode's is sent its password."""
        old = record.instance
        held = (old.port, old.opencode_port) if old is not None else ()
        for host, port, unit in (
            (instance.host, instance.port, instance.socket),
            ("127.0.0.1", instance.opencode_port, instance.services[0]),
        ):
            if unit in active and port in held:
                continue
            if why := self.host.why_not_listen(host, port):
                raise DeployError(
                    f"nothing new can listen at {host} port {port} ({why}). End what has the port "
                    f"(`ss -ltnp` shows it), or name others with --port and --opencode-port."
                )

    def _check_workspace(self, instance: Instance) -> None:
        if instance.workspace is None:
            return
        found = self.host.find([Directory(instance.workspace)]).get(instance.workspace)
        if not isinstance(found, Directory):
            raise DeployError(
                f"--workspace {instance.workspace}: must be a directory that is there, and no link."
            )
        if not found.owner.startswith(f"{instance.user}:"):
            self.say(
                f"{instance.workspace} belongs to {found.owner}. If {instance.user} cannot write "
                f"to it: chown -R {instance.user}: {instance.workspace}"
            )

    def _missing_secrets(
        self, instance: Instance, found: Mapping[str, str], *, make: Sequence[str] | None
    ) -> list[File]:
        """Secrets to be made, where the operator wants that; else what is missing is said."""
        can_log_in = set(CALLERS) & found.keys() or self._logs_in_elsewhere(instance)
        missing = [] if can_log_in else [CALLERS[0]]
        missing += [] if units.OPENCODE_PASSWORD in found else [units.OPENCODE_PASSWORD]
        if make is None and missing:
            commands = [f"install -d -m 700 {instance.secrets}"]
            commands += [f"{MAKE_SECRET} > {instance.secrets}/{name}" for name in missing]
            raise DeployError(
                f"secrets of {instance.name} are missing. Provide them as root, such as by\n\n"
                "  umask 077\n  " + "\n  ".join(commands) + "\n\nand the key of a model provider "
                f"likewise, in a file with the name of its variable ({instance.secrets}/"
                "ANTHROPIC_API_KEY). With ENABLE_SECRET_PERSISTENCE=true in the environment this "
                "command writes them itself."
            )
        given = dict.fromkeys([*missing, *(make or ())])
        for name in given.keys() & found.keys():
            if self._value(name, needed=False).strip() != found[name].strip():
                raise DeployError(
                    f"--secret {name}: {instance.secrets}/{name} holds another value, which stays. "
                    "To change it, edit that file and run this again without --secret."
                )
        return [
            File(
                f"{instance.secrets}/{name}",
                self._value(name, needed=name in missing),
                0o600,
                is_operators=True,
            )
            for name in given
            if name not in found
        ]

    def _logs_in_elsewhere(self, instance: Instance) -> bool:
        """Whether its settings let callers in with tokens of an issuer, or with certificates."""
        try:
            tables = tomllib.loads(self.host.read(f"{instance.etc}/config.toml") or "")
        except tomllib.TOMLDecodeError:
            return False  # the service says what is wrong with it
        named = (("oidc", "issuer"), ("a2a", "mtls_header"))
        found = ((tables.get(table), name) for table, name in named)
        return any(isinstance(table, dict) and table.get(name) for table, name in found)

    def _value(self, name: str, *, needed: bool) -> str:
        value = self.environment.get(name) or (random.token_urlsafe(MADE_BYTES) if needed else "")
        if not value:
            raise DeployError(f"--secret {name}: there is no such variable in the environment.")
        return value + "\n"

    def check(self, instance: Instance, *, question: bool) -> None:
        self.say(f"Waiting for {instance.url} …")
        authorization = check.login(self.host.secrets(instance.secrets))
        self.say(self.verify(instance.url, authorization, question=question))

    def remove(self, name: str, *, purge: bool) -> None:
        manifest = self.manifest
        if name not in manifest.records:
            manifest.instance(name)  # says which there are
        if purge:
            self._check_owner(manifest.records[name].instance)
        self._perform(plans.remove(name, manifest, purge=purge), f"removing {name}")

    def uninstall(self, *, purge: bool) -> None:
        manifest = self.manifest
        if not manifest.host:
            self.say("Nothing of opencode-a2a is deployed here.")
            return
        for instance in manifest.instances if purge else ():
            self._check_owner(instance)
        self._perform(plans.uninstall(manifest, purge=purge), "removing everything")

    def _check_owner(self, instance: Instance | None) -> None:
        """Before its user is removed: the next user may get its number, and so its files."""
        if instance is None or instance.workspace is None:
            return
        found = self.host.find([Directory(instance.workspace)]).get(instance.workspace)
        if isinstance(found, Directory) and found.owner.startswith(f"{instance.user}:"):
            raise DeployError(
                f"{instance.workspace} stays, and belongs to {instance.user}. A user that is made "
                "later may get the same number, and so these files. Give them another owner first: "
                f"chown -R root: {instance.workspace}"
            )

    def set_previous(self, name: str, previous: str | None) -> None:
        """Write down which release `rollback` goes to."""
        manifest = self.manifest
        record = manifest.records[name]
        instance = replace(manifest.instance(name), previous=previous)
        self._write(manifest.with_record(name, replace(record, instance=instance)))

    def _perform(self, plan: Plan, title: str) -> None:
        if not plan.steps:
            self.say(f"{title}: everything is as it should be.")
            return
        self.say(f"Plan: {title}")
        for step in plan.steps:
            self.say(f"  {step}")
        if not self.confirm():
            raise NotConfirmed
        self.host.perform(Make(Directory(ETC)))
        self._write(plan.before)
        left = []
        for number, step in enumerate(plan.steps, 1):
            self.say(f"[{number}/{len(plan.steps)}] {step}")
            if remark := self.host.perform(step):
                self.say(remark)
                left += [step.resource] if isinstance(step, Remove) else []
        after = plan.after
        if left:
            after = (after or Manifest()).keeping(left, plan.before)
            self.host.perform(Make(Directory(ETC)))
        if after is not None:
            self._write(after)
        if left:
            names = ", ".join(each.key for each in left)
            raise DeployError(
                f"not everything could be removed: {names}; the reasons are above. The manifest "
                "still has them: run the command again when the reasons are gone."
            )

    def _write(self, manifest: Manifest) -> None:
        self.host.perform(Make(File(MANIFEST, manifest.dump(), 0o600)))


class NotConfirmed(Exception):
    """The operator did not want the plan to be performed, or only to see it."""
