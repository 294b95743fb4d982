"""The deployment on a real systemd, from a fresh machine to an empty one: make deploy-test.

python -m tests.machine [--base DIR] [--checkout DIR]

Needs root, and Debian's packages systemd-container and mmdebstrap. The first run makes a root with
Debian in it; others take five minutes, or fifteen on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
        for name in ("model.py", "stream.py", "thief.py"):
            shutil.copy(HERE / name, machine.root / "srv" / name)
        Story(machine).tell()


class Story:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def tell(self) -> None:
        with shown("boot"):
            self._machine.boot()
            before = self._files()
        with shown("init"):
            self._sh("/srv/checkout/scripts/init_system.sh --release one --yes")
            self._start_model()
        with shown("three instances"):
            self._create()
        with shown("none of them reads another's files or secrets, or those of its service"):
            self._try_to_read()
        with shown("an agent that takes the port of another's OpenCode gets no password"):
            self._try_to_take_port()
        with shown("kill -9 of every process"):
            self._sh("pkill -9 -u oca-alpha,oca-beta,oca-gamma")
            self._ask_all()
        with shown("reboot"):
            self._machine.reboot()
            self._start_model()
            self._ask_all()
        with shown("a service that is stuck"):
            self._sh("systemctl kill -s STOP --kill-who=main opencode-a2a@gamma")
            stuck = "$(systemctl show -p NRestarts --value opencode-a2a@gamma)"
            self._sh(f"until test {stuck} -gt 0; do sleep 1; done")
            assert "answered a question" in self._sh("opencode-a2a deploy status gamma --ask")
        with shown("a release that does not serve is not kept"):
            self._try_broken()
        with shown("light mode, of a user who has a systemd"):
            self._light()
        with shown("upgrade with an open stream"):
            self._upgrade()
        with shown("roll back"):
            self._sh("opencode-a2a deploy rollback --yes")
            assert {each["release"] for each in self._list()} == {"one"}
        with shown("uninstall without data, then with it"):
            self._sh("systemctl stop demo-model")
            self._sh("/srv/checkout/scripts/uninstall.sh --yes")
            assert "oca-alpha" in self._sh("getent passwd")
            self._sh("/srv/checkout/scripts/uninstall.sh --purge --yes")
            left = self._files() - before
            assert not left, sorted(left)
            assert "oca-" not in self._sh("getent passwd; getent group")
            assert self._sh("systemctl list-units --all --no-legend 'opencode*'") == ""

    def _sh(self, script: str, **environment: str) -> str:
        given = {**WITHOUT_NETWORK, **environment}
        return self._machine.sh(script, environment=given).stdout

    def _start_model(self) -> None:
        self._sh(
            "systemd-run --quiet --unit=demo-model -p DynamicUser=yes "
            "/opt/opencode-a2a/current/bin/python -I /srv/model.py 9100"
        )

    def _create(self) -> None:
        python = "/opt/opencode-a2a/current/bin/python"
        (self._machine.root / "srv/config.py").write_text(OPENCODE_JSON)
        for name in NAMES:
            folder = f"/etc/opencode-a2a/{name}"
            self._sh(f"install -d {folder} && {python} -I /srv/config.py >{folder}/opencode.json")
        secrets = "/etc/opencode-a2a/alpha/secrets"  # as an operator does
        self._sh(
            f"umask 077; install -d -m 700 {secrets}; {python} -c 'import secrets; "
            f"print(secrets.token_hex(32))' | tee {secrets}/A2A_BEARER_TOKEN "
            f">{secrets}/OPENCODE_SERVER_PASSWORD"
        )
        self._sh("/srv/checkout/scripts/deploy.sh project=alpha --yes")
        for name in NAMES[1:]:
            self._sh(
                f"/srv/checkout/scripts/deploy.sh project={name} --yes",
                ENABLE_SECRET_PERSISTENCE="true",
            )
        assert {each["state"] for each in self._list()} == {"running"}

    def _try_to_read(self) -> None:
        """As the agent of alpha: its user, in the namespaces of its OpenCode."""
        pids = {
            unit: self._sh(f"systemctl show -p MainPID --value {unit}").strip()
            for unit in ("opencode@alpha", "opencode-a2a@alpha", "opencode@beta")
        }
        enter = (
            f"nsenter -t {pids['opencode@alpha']} -m -U --preserve-credentials "
            "-S $(id -u oca-alpha) -G $(id -g oca-alpha)"
        )
        assert self._sh(f"{enter} touch /var/lib/opencode-a2a/alpha/workspace/x") == ""
        for path in (
            "/var/lib/opencode-a2a/beta/workspace",
            "/var/lib/opencode-a2a/alpha/state",
            "/etc/opencode-a2a/beta",
            "/etc/opencode-a2a/alpha/secrets",
            "/run/credentials/opencode-a2a@alpha.service",
            f"/proc/{pids['opencode-a2a@alpha']}/root/run/credentials",
            f"/proc/{pids['opencode@beta']}/environ",
        ):
            self._sh(f"test -e {path}")  # root sees it
            assert self._machine.sh(f"{enter} ls {path}", check=False).returncode != 0, path

    def _try_to_take_port(self) -> None:
        """As alpha, at the port of beta's OpenCode while that is down."""
        thief = "-p User=oca-alpha -p StandardOutput=truncate:/srv/heard"
        self._sh("systemctl stop opencode@beta")
        self._sh(f"systemd-run --quiet --unit=thief {thief} python3 /srv/thief.py 18011")
        self._sh("until curl -s -m 2 http://127.0.0.1:18011/control; do sleep 0.2; done")
        self._sh("systemctl restart opencode-a2a@beta")
        in_the_way = "journalctl -u opencode-a2a@beta | grep -q 'Another user of this machine'"
        self._sh(f"until {in_the_way}; do sleep 0.5; done")
        heard = (self._machine.root / "srv/heard").read_text()
        assert "/control" in heard
        assert "authorization" not in heard.lower(), heard
        self._sh("systemctl stop thief && systemctl start opencode@beta")
        assert "answered a question" in self._sh("opencode-a2a deploy status beta --ask")

    def _ask_all(self) -> None:
        for name in NAMES:
            assert "answered a question" in self._sh(f"opencode-a2a deploy status {name} --ask")

    def _try_broken(self) -> None:
        """One whose `up` works, so that the trial does not notice."""
        self._sh("cp -r /srv/checkout /srv/broken")
        serve = self._machine.root / "srv/broken/src/opencode_a2a/cli/serve.py"
        text = serve.read_text()
        serve.write_text(text.replace("async def serve(", "async def serve(broken, ", 1))
        ran = self._machine.sh(
            "opencode-a2a deploy upgrade --from /srv/broken --release broken --yes",
            check=False,
            environment=WITHOUT_NETWORK,
        )
        assert ran.returncode == 1
        assert "the upgrade was stopped at alpha" in ran.stderr, ran.stdout + ran.stderr
        assert {each["release"] for each in self._list()} == {"one"}
        self._ask_all()

    def _light(self) -> None:
        self._sh("useradd --create-home dev && loginctl enable-linger dev && mkdir ~dev/project")
        bus = "/run/user/$(id -u dev)/systemd/private"
        self._sh(f"chown dev ~dev/project; until test -e {bus}; do sleep 1; done")
        light = "runuser -u dev -- env HOME=/home/dev opencode-a2a deploy light"

        def url_and_pid() -> str:
            return self._sh(f"until {light} status demo; do sleep 1; done").strip()

        self._sh(f"{light} start demo --port 8100 --directory /home/dev/project")
        first = url_and_pid()
        self._sh(f"kill -9 {first.rpartition(' ')[2]}")
        while url_and_pid() == first:
            time.sleep(1)
        self._sh(f"{light} stop demo")
        assert self._sh("ls ~dev/.config/systemd/user | grep -c service || true").strip() == "0"
        self._sh("loginctl disable-linger dev; userdel --force --remove dev")

    def _upgrade(self) -> None:
        # Gamma first, which installs the release: the others are switched while the agent writes.
        self._sh("opencode-a2a deploy upgrade --from /srv/checkout --release two --yes gamma")
        assert [each["release"] for each in self._list()] == ["one", "one", "two"]
        self._sh(
            "systemd-run --quiet --unit=reader sh -c 'python3 /srv/stream.py http://127.0.0.1:8010 "
            "$(cat /etc/opencode-a2a/alpha/secrets/A2A_BEARER_TOKEN) >/srv/read'"
        )
        self._sh("until grep -q open /srv/read; do sleep 0.2; done")
        self._sh("opencode-a2a deploy upgrade --from /srv/checkout --release two --yes")
        assert {each["release"] for each in self._list()} == {"two"}
        self._sh("while systemctl is-active --quiet reader; do sleep 1; done")
        read = json.loads((self._machine.root / "srv/read").read_text().splitlines()[-1])
        assert read.pop("streams") > 1, read  # the service was restarted meanwhile
        assert read == {"state": "TASK_STATE_COMPLETED", "refused": 0, "is_whole": True}

    def _list(self) -> list[dict[str, str]]:
        found: list[dict[str, str]] = json.loads(self._sh("opencode-a2a deploy list --json"))
        assert [each["name"] for each in found] == list(NAMES)
        return found

    def _files(self) -> set[str]:
        """Every file that a deployment could leave behind."""
        places = "/etc /opt /usr /var/lib /home /root"
        found = self._sh(f"find {places} -xdev -not -name '*.pyc' -not -path '/var/lib/systemd/*'")
        names = ("passwd-", "shadow-", "group-", "gshadow-", "subuid-", "subgid-", ".pwd.lock")
        ignored = {f"/etc/{name}" for name in names}  # copies that useradd keeps
        return set(found.splitlines()) - ignored


if __name__ == "__main__":
    main()
