"""The deployment on a real systemd, from a fresh machine to an empty one: make deploy-test.

python -m tests.machine [--base DIR] [--checkout DIR]

Needs root, and Debian's packages systemd-container and mmdebstrap. The first run makes a root with
Debian in it; others take five minutes, or fifteen on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.machine.machine import ROOT, Machine, prepare

NAMES = ("alpha", "beta", "gamma")
HERE = Path(__file__).parent
WITHOUT_NETWORK = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels"}
OPENCODE_JSON = """
import json
from opencode_a2a.demo.model import opencode_config
print(json.dumps(opencode_config("http://127.0.0.1:9100/v1")))
"""


@contextmanager
def shown(what: str) -> Iterator[None]:
    began = time.monotonic()
    print(f"{what} …", end=" ", flush=True)  # noqa: T201
    yield
    print(f"ok ({time.monotonic() - began:.0f} s)", flush=True)  # noqa: T201


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, default=Path("/var/tmp/opencode-a2a-machine"))
    parser.add_argument("--checkout", type=Path, default=ROOT)
    arguments = parser.parse_args()
    prepare(arguments.base, arguments.checkout)
    with Machine.open(arguments.base) as machine:
        ignored = shutil.ignore_patterns(".venv*", "node_modules", ".*_cache", "__pycache__")
        shutil.copytree(arguments.checkout, machine.root / "srv/checkout", ignore=ignored)
        for name in ("model.py", "stream.py"):
            shutil.copy(HERE / name, machine.root / "srv" / name)
        Walkthrough(machine).run()


class Walkthrough:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def run(self) -> None:
        with shown("boot"):
            self._machine.boot()
            before = self._files()
        with shown("init"):
            self.sh("/srv/checkout/scripts/init_system.sh --release one --yes")
            self._start_model()
        with shown("three instances"):
            self._create()
        with shown("none of them reads another's files or secrets, or those of its service"):
            self._try_to_read()
        with shown("the agent of alpha calls beta, a peer"):
            self._call_peer()
        with shown("the doctor of an instance finds nothing wrong"):
            print(self.sh("opencode-a2a deploy doctor alpha"), end=" ")  # noqa: T201
        with shown("kill -9 of every process"):
            self.sh("pkill -9 -u oca-alpha,oca-beta,oca-gamma")
            self._ask_all()
        with shown("reboot"):
            self._machine.reboot()
            self._start_model()
            self._ask_all()
        with shown("a service that is stuck"):
            self.sh("systemctl kill -s STOP --kill-who=main opencode-a2a@gamma")
            stuck = "$(systemctl show -p NRestarts --value opencode-a2a@gamma)"
            self.sh(f"until test {stuck} -gt 0; do sleep 1; done")
            assert "answered a question" in self.sh("opencode-a2a deploy status gamma --ask")
        with shown(
            "a release that does not serve is not kept, nor is what it made of the database"
        ):
            self._try_broken()
        with shown("upgrade with a newer schema, open streams and messages that go on"):
            self._upgrade()
        with shown("roll back, with the database from before"):
            self._roll_back()
        for has_systemd in (True, False):
            of = "a systemd of their own" if has_systemd else "none"
            with shown(f"light mode, of a user who has {of}"):
                Light(self, "dev" if has_systemd else "bare", has_systemd=has_systemd).run()
        with shown("uninstall without data, then with it"):
            self.sh("systemctl stop demo-model")
            self.sh("/srv/checkout/scripts/uninstall.sh --yes")
            assert "oca-alpha" in self.sh("getent passwd")
            self.sh("/srv/checkout/scripts/uninstall.sh --purge --yes")
            left = self._files() - before
            assert not left, sorted(left)
            assert "oca-" not in self.sh("getent passwd; getent group")
            assert self.sh("systemctl list-units --all --no-legend 'opencode*'") == ""

    def try_sh(self, script: str) -> subprocess.CompletedProcess[str]:
        return self._machine.sh(script, check=False)

    def sh(self, script: str, **environment: str) -> str:
        given = {**WITHOUT_NETWORK, **environment}
        return self._machine.sh(script, environment=given).stdout

    def _start_model(self) -> None:
        self.sh(
            "systemd-run --quiet --unit=demo-model -p DynamicUser=yes "
            "/opt/opencode-a2a/current/bin/python -I /srv/model.py 9100"
        )

    def _create(self) -> None:
        python = "/opt/opencode-a2a/current/bin/python"
        (self._machine.root / "srv/config.py").write_text(OPENCODE_JSON)
        for name in NAMES:
            folder = f"/etc/opencode-a2a/{name}"
            self.sh(f"install -d {folder} && {python} -I /srv/config.py >{folder}/opencode.json")
        secrets = "/etc/opencode-a2a/alpha/secrets"  # as an operator does
        self.sh(
            f"umask 077; install -d -m 700 {secrets}; {python} -c 'import secrets; "
            f"print(secrets.token_hex(32))' | tee {secrets}/A2A_BEARER_TOKEN "
            f">{secrets}/OPENCODE_SERVER_PASSWORD"
        )
        self.sh("/srv/checkout/scripts/deploy.sh project=alpha --yes")
        for name in NAMES[1:]:
            self.sh(
                f"/srv/checkout/scripts/deploy.sh project={name} --yes",
                ENABLE_SECRET_PERSISTENCE="true",
            )
        assert {each["state"] for each in self._list()} == {"running"}

    def _try_to_read(self) -> None:
        """As the agent of alpha: its user, in the namespaces of its OpenCode."""
        pids = {
            unit: self.sh(f"systemctl show -p MainPID --value {unit}").strip()
            for unit in ("opencode@alpha", "opencode-a2a@alpha", "opencode@beta")
        }
        enter = (
            f"nsenter -t {pids['opencode@alpha']} -m -U --preserve-credentials "
            "-S $(id -u oca-alpha) -G $(id -g oca-alpha)"
        )
        assert self.sh(f"{enter} touch /var/lib/opencode-a2a/alpha/workspace/x") == ""
        for path in (
            "/var/lib/opencode-a2a/beta/workspace",
            "/var/lib/opencode-a2a/alpha/state",
            "/etc/opencode-a2a/beta",
            "/etc/opencode-a2a/alpha/secrets",
            "/run/credentials/opencode-a2a@alpha.service",
            f"/proc/{pids['opencode-a2a@alpha']}/root/run/credentials",
            f"/proc/{pids['opencode@beta']}/environ",
        ):
            self.sh(f"test -e {path}")  # root sees it
            assert self._machine.sh(f"{enter} ls {path}", check=False).returncode != 0, path

    def _ask_all(self) -> None:
        for name in NAMES:  # on a busy machine three OpenCodes that start together take minutes
            ask = f"opencode-a2a deploy status {name} --ask"
            self.sh(f"for i in 1 2 3 4 5; do {ask} && exit; done; exit 1")

    def _call_peer(self) -> None:
        """Through the tool server in the unit of the service, from the unit of OpenCode."""
        etc = "/etc/opencode-a2a"
        peer = '[peers.beta]\nurl = "http://127.0.0.1:8011"\nbearer_token = "env:A2A_PEER_BETA"\n'
        with (self._machine.root / f"{etc[1:]}/alpha/config.toml").open("a") as config:
            config.write(peer)
        secrets = f"{etc}/beta/secrets/A2A_BEARER_TOKEN {etc}/alpha/secrets/A2A_PEER_BETA"
        self.sh(f"install -m 600 {secrets} && opencode-a2a deploy update alpha --yes")
        said = self.sh(
            f"HOME=/tmp A2A_CLIENT_BEARER_TOKEN=$(cat {etc}/alpha/secrets/A2A_BEARER_TOKEN) "
            "opencode-a2a call http://127.0.0.1:8010 'Please have beta say hello.'"
        )
        assert "Say hello." in said, said
        assert "I am the demo model" in said, said
        self.sh("journalctl -u opencode-a2a@alpha | grep -q 'peer.called'")
        assert "unknown" not in self.sh("journalctl -u opencode-a2a@alpha | grep A2A_PEER || true")

    def _newer(self, name: str) -> Path:
        """Another checkout, to install as a newer release."""
        self.sh(f"cp -r /srv/checkout /srv/{name}")
        return self._machine.root / f"srv/{name}/src/opencode_a2a/store"

    def _try_broken(self) -> None:
        """One that works in the trial, and ends when an instance starts."""
        database = self._newer("broken") / "database.py"
        starts = "            if not await self.read(is_current):\n"
        ends = (
            "            if 'A2A_ISOLATION' in os.environ:\n"
            "                raise SystemExit('broken')\n"
        )
        text = database.read_text()
        database.write_text(text.replace(starts, ends + starts, 1))
        ran = self._machine.sh(
            "opencode-a2a deploy upgrade --from /srv/broken --release broken --yes",
            check=False,
            environment=WITHOUT_NETWORK,
        )
        said = ran.stdout + ran.stderr
        assert ran.returncode == 1, said
        assert "the upgrade was stopped at alpha" in ran.stderr, said
        assert {each["release"] for each in self._list()} == {"one"}
        self._ask_all()

    def _upgrade(self) -> None:
        self._newer("newer")
        # Gamma first, which installs the release: the others are switched while the agents work.
        self.sh("opencode-a2a deploy upgrade --from /srv/newer --release two --yes gamma")
        assert [each["release"] for each in self._list()] == ["one", "one", "two"]
        self.sh("opencode-a2a deploy update --yes")  # the units of each stay those of its release
        self.start_client("reader-1", "read", "alpha")
        self.start_client("reader-2", "read", "alpha")
        self.start_client("load", "load", "beta", "/srv/stop")
        self.sh("opencode-a2a deploy upgrade --from /srv/newer --release two --yes")
        assert {each["release"] for each in self._list()} == {"two"}
        for number in (1, 2):
            read = self.client_result(f"reader-{number}")
            assert read["streams"] > 1, read  # the service was restarted meanwhile
            assert (read["state"], read["refused"]) == ("TASK_STATE_COMPLETED", 0), read
            assert read["is_whole"], read
        self.sh("touch /srv/stop")
        load = self.client_result("load")
        assert load["answered"] > 0, load
        assert load["refused"] == 0, load
        print(load, end=" ")  # noqa: T201

    def start_client(self, unit: str, command: str, instance: str, *words: str) -> None:
        port = 8010 + NAMES.index(instance)
        token = f"$(cat /etc/opencode-a2a/{instance}/secrets/A2A_BEARER_TOKEN)"
        self.run_client(unit, command, f"http://127.0.0.1:{port}", token, *words)

    def run_client(self, unit: str, *words: str) -> None:
        script = f"python3 /srv/stream.py {' '.join(words)} >/srv/{unit}"
        self.sh(f"systemd-run --quiet --unit={unit} sh -c '{script}'")
        self.sh(f"until grep -q 'open\\|answered' /srv/{unit}; do sleep 0.2; done")

    def client_result(self, unit: str) -> dict[str, Any]:
        self.sh(f"while systemctl is-active --quiet {unit}; do sleep 1; done")
        last = (self._machine.root / "srv" / unit).read_text().splitlines()[-1]
        result: dict[str, Any] = json.loads(last)
        return result

    def _roll_back(self) -> None:
        self.sh("opencode-a2a deploy rollback --yes")
        assert {each["release"] for each in self._list()} == {"one"}
        self._ask_all()

    def _list(self) -> list[dict[str, str]]:
        found: list[dict[str, str]] = json.loads(self.sh("opencode-a2a deploy list --json"))
        assert [each["name"] for each in found] == list(NAMES)
        return found

    def _files(self) -> set[str]:
        """Every file that a deployment could leave behind."""
        places = "/etc /opt /usr /var/lib /home /root"
        found = self.sh(f"find {places} -xdev -not -name '*.pyc' -not -path '/var/lib/systemd/*'")
        names = ("passwd-", "shadow-", "group-", "gshadow-", "subuid-", "subgid-", ".pwd.lock")
        ignored = {f"/etc/{name}" for name in names}  # copies that useradd keeps
        return set(found.splitlines()) - ignored


class Light:
    """Light mode of a user without root, with a `systemd --user` or with our supervisor."""

    def __init__(self, site: Walkthrough, user: str, *, has_systemd: bool) -> None:
        self._site, self._user, self._has_systemd = site, user, has_systemd

    def run(self) -> None:
        user = self._user
        self._site.sh(f"useradd --create-home {user} && install -d -o {user} ~{user}/project")
        if self._has_systemd:
            bus = f"/run/user/$(id -u {user})/systemd/private"
            self._site.sh(f"loginctl enable-linger {user}; until test -e {bus}; do sleep 1; done")
        config = f"~{user}/.config/opencode"
        self._site.sh(
            f"runuser -u {user} -- mkdir -p {config}; "
            f"/opt/opencode-a2a/current/bin/python -I /srv/config.py >{config}/opencode.json"
        )
        self._light("start demo --port 8100 --directory ~/project")
        first = self._pid()
        self._site.sh(f"kill -9 {first}")
        second = self._pid(other_than=first)
        self._site.sh(f"pkill -9 -u {user} -f opencode.serve")
        self._ask()
        self._site.sh(
            f"pkill -9 -u {user} -f opencode"
        )  # and what starts them again, if it is ours
        if not self._has_systemd:
            self._light("start demo")
        self._pid(other_than=second)
        self._upgrade()
        self._light("stop demo")
        kept = "systemd|(sd-pam)|dbus-daemon"  # of the session that lasts
        left = self._site.sh(f"ps -u {user} -o args= | grep -vE '{kept}' || true")
        assert left == "", left
        units = self._site.sh(f"ls ~{user}/.config/systemd/user 2>/dev/null | grep service || true")
        assert units == "", units
        self._site.sh(f"loginctl disable-linger {user}; userdel --force --remove {user}")

    def _light(self, words: str, release: str = "one") -> str:
        program = f"/opt/opencode-a2a/releases/{release}/bin/opencode-a2a deploy light"
        return self._site.sh(f"runuser -u {self._user} -- sh -c 'HOME=~ {program} {words}'")

    def _pid(self, *, other_than: str = "") -> str:
        """Of the service, when it answers."""
        said = ""
        for _ in range(120):
            ran = self._site.try_sh(
                f"runuser -u {self._user} -- sh -c 'HOME=~ opencode-a2a deploy light status demo'"
            )
            pid = ran.stdout.strip().rpartition(" ")[2]
            if ran.returncode == 0 and pid != other_than:
                return pid
            said = ran.stdout + ran.stderr
            time.sleep(1)
        raise AssertionError(said + self._light("logs demo"))

    def _token(self) -> str:
        command = "HOME=~ opencode-a2a token ~/project"
        return self._site.sh(f"runuser -u {self._user} -- sh -c '{command}'").strip()

    def _ask(self) -> None:
        login = f"HOME=/tmp A2A_CLIENT_BEARER_TOKEN={self._token()}"
        ask = f"{login} opencode-a2a call http://127.0.0.1:8100 hello"
        self._site.sh(f"for i in $(seq 60); do {ask} | grep -q demo && exit; sleep 1; done; exit 1")

    def _upgrade(self) -> None:
        """To another release. OpenCode ends, too, so the task that it is at fails."""
        unit = f"light-{self._user}"
        self._site.run_client(unit, "read", "http://127.0.0.1:8100", self._token())
        self._light("restart demo", release="two")
        read = self._site.client_result(unit)
        assert read["is_whole"], read
        print(read, end=" ")  # noqa: T201
        self._ask()


if __name__ == "__main__":
    main()
