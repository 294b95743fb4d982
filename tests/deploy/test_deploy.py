"""Many instances: what is planned, in which order, and what is left when all is removed."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from opencode_a2a.deploy import plans
from opencode_a2a.deploy.drift import Drift, unit_drift
from opencode_a2a.deploy.layout import ETC, MANIFEST, UNITS, Instance, check, next_port
from opencode_a2a.deploy.manifest import Manifest
from opencode_a2a.deploy.operator import NotConfirmed, Operator
from opencode_a2a.deploy.resources import (
    Change,
    Command,
    DeployError,
    Directory,
    File,
    Link,
    Make,
    Resource,
    User,
    changes,
)
from tests.deploy.fake_host import FakeHost

ALPHA = Instance(name="alpha", port=8010, opencode_port=18010, release="1.0")
SECRETS = f"{ETC}/alpha/secrets"


class Site:
    """An operator at a machine, and what was said and checked."""

    def __init__(self) -> None:
        self.host = FakeHost()
        self.said: list[str] = []
        self.checked: list[str] = []
        self.agrees = True
        self.works = True
        self.operator = Operator(
            host=self.host,
            say=self.said.append,
            confirm=lambda: self.agrees,
            environment={"ANTHROPIC_API_KEY": "sk-1"},
            verify=self._verify,
            opencode_of=lambda release: {"1.0": "a", "1.1": "a", "2.0": "b"}.get(release),
        )

    def _verify(self, url: str, authorization: str | None, *, question: bool) -> str:
        if not self.works:
            raise DeployError(f"{url} was not ready")
        self.checked.append(f"{url} {authorization} {question}")
        return "fine"

    def prepared(self) -> Site:
        self.operator.init("1.0")
        self.host.put(f"{SECRETS}/A2A_BEARER_TOKEN", "token\n")
        self.host.put(f"{SECRETS}/OPENCODE_SERVER_PASSWORD", "password\n")
        return self

    def created(self) -> Site:
        self.prepared().operator.create("alpha", {}, make=None, question=True)
        self.host.ran.clear()
        self.said.clear()
        return self

    @property
    def restarted(self) -> list[str]:
        found = [words[2:] for words in self.host.ran if words[:2] == ("systemctl", "restart")]
        return [unit for units in found for unit in units]


def test_what_is_as_it_should_be_needs_no_step() -> None:
    wanted: list[Resource] = [
        User("u", "/h"),
        Directory("/d", 0o700),
        File("/f", "x"),
        Link("/l", "/t"),
    ]
    assert changes(wanted, {}) == [Make(each) for each in wanted]
    assert changes(wanted, {each.key: each for each in wanted}) == []


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (Directory("/x", 0o700), Directory("/x", 0o755)),
        (Directory("/x", owner="a:a"), Directory("/x", owner="b:b")),
        (File("/x", "new"), File("/x", "old")),
        (File("/x", "", 0o640, is_operators=True), File("/x", "theirs", 0o600)),
        (Link("/x", "/new"), Link("/x", "/old")),
    ],
)
def test_what_differs_is_changed(
    wanted: Directory | File | Link, found: Directory | File | Link
) -> None:
    assert changes([wanted], {"/x": found}) == [Change(wanted)]


def test_what_the_operator_has_written_stays() -> None:
    wanted = File("/x", "an example", is_operators=True)
    assert changes([wanted], {"/x": File("/x", "theirs")}) == []


def test_an_instance_gets_its_own_user_ports_files_and_secrets_and_is_asked_a_question() -> None:
    site = Site().created()
    assert {"user oca-alpha", f"{ETC}/alpha/config.toml"} <= site.host.paths()
    assert site.checked == ["http://127.0.0.1:8010 Bearer token True"]
    assert "opencode-a2a@alpha.service" in site.host.units
    owners = {t.path: t for t in site.host.resources.values() if isinstance(t, Directory)}
    assert owners[SECRETS] == Directory(
        SECRETS, 0o700, "root:root", holds="data", is_operators=True
    )
    # The agent must not be able to replace what root writes to.
    assert owners["/var/lib/opencode-a2a/alpha"].owner == "root:oca-alpha"


def test_a_second_run_changes_nothing() -> None:
    site = Site().created()
    site.operator.init("1.0")
    site.operator.update("alpha", {})
    assert site.host.ran == []
    assert site.said[:2] == [
        "release 1.0: everything is as it should be.",
        "instance alpha: everything is as it should be.",
    ]


def test_the_units_drift_until_an_update_and_are_none_after_an_uninstall() -> None:
    site = Site()
    assert unit_drift(site.host) is None
    site.created()
    assert unit_drift(site.host) == Drift([], {"alpha": []})
    site.host.put(f"{SECRETS}/ANTHROPIC_API_KEY", "sk-1\n")  # no unit loads it yet
    drift = unit_drift(site.host)
    assert drift is not None
    keys = [step.resource.key for step in drift.own["alpha"]]
    assert (drift.shared, keys) == ([], [f"{UNITS}/opencode@alpha.service.d/instance.conf"])
    site.operator.update("alpha", {})
    assert unit_drift(site.host) == Drift([], {"alpha": []})
    assert unit_drift(site.host, "1.0") == Drift([], {"alpha": []})
    assert unit_drift(site.host, "2.0") == Drift([], {}), "its release has units of its own"
    site.operator.uninstall(purge=False)
    assert MANIFEST in site.host.resources
    assert unit_drift(site.host) is None


@pytest.mark.parametrize(
    ("wanted", "address"),
    [({}, "http://127.0.0.1:8010"), ({"public_url": "https://a.test"}, "https://a.test")],
)
def test_the_last_line_is_how_to_look_for_problems(wanted: dict[str, Any], address: str) -> None:
    site = Site().created()
    site.operator.update("alpha", wanted)
    assert site.said[-1].endswith(f": opencode-a2a doctor --url {address}")


def test_nothing_is_changed_without_consent() -> None:
    site = Site()
    site.agrees = False
    with pytest.raises(NotConfirmed):
        site.operator.init("1.0")
    assert (site.host.resources, site.host.ran) == ({}, [])
    assert any("daemon-reload" in line for line in site.said)


def test_missing_secrets_are_named_with_the_commands_that_make_them() -> None:
    site = Site()
    site.operator.init("1.0")
    with pytest.raises(DeployError, match=f"> {SECRETS}/A2A_BEARER_TOKEN"):
        site.operator.create("alpha", {}, make=None, question=True)
    assert "user oca-alpha" not in site.host.resources


@pytest.mark.parametrize(
    "settings",
    [
        '[oidc]\nissuer = "https://login.example.com"\n',
        'oidc = "wrong"\n[a2a]\nmtls_header = "X-Client"\n',
    ],
)
def test_where_callers_log_in_elsewhere_no_static_token_is_asked_for(settings: str) -> None:
    site = Site()
    site.operator.init("1.0")
    site.host.put(f"{ETC}/alpha/config.toml", settings)
    site.host.put(f"{SECRETS}/OPENCODE_SERVER_PASSWORD", "password\n")
    site.operator.create("alpha", {}, make=None, question=True)
    assert site.checked == ["http://127.0.0.1:8010 None True"]
    assert "A2A_BEARER_TOKEN" not in site.host.secrets(SECRETS)
    site.operator.update("alpha", {}, make=[])
    assert "A2A_BEARER_TOKEN" not in site.host.secrets(SECRETS)


def test_secrets_are_written_only_where_the_operator_asks_for_it() -> None:
    site = Site()
    site.operator.init("1.0")
    site.operator.create("alpha", {}, make=["ANTHROPIC_API_KEY"], question=True)
    found = site.host.secrets(SECRETS)
    assert found["ANTHROPIC_API_KEY"] == "sk-1\n"
    assert len(found["A2A_BEARER_TOKEN"]) > 40
    assert found["A2A_BEARER_TOKEN"] != found["OPENCODE_SERVER_PASSWORD"]
    shown = "\n".join(site.said) + repr(site.host.resources)
    assert "sk-1" not in shown
    assert found["A2A_BEARER_TOKEN"].strip() not in shown
    site.host.ran.clear()
    site.operator.update("alpha", {}, make=[])
    assert site.host.secrets(SECRETS) == found


def test_a_variable_that_is_not_set_cannot_be_written() -> None:
    site = Site()
    site.operator.init("1.0")
    with pytest.raises(DeployError, match="--secret OPENAI_API_KEY: there is no such variable"):
        site.operator.create("alpha", {}, make=["OPENAI_API_KEY"], question=True)


@pytest.mark.parametrize(
    ("path", "restarted"),
    [
        (f"{ETC}/alpha/config.toml", ["opencode-a2a@alpha.service"]),
        (f"{ETC}/alpha/opencode.json", ["opencode@alpha.service"]),
        (f"{SECRETS}/A2A_BEARER_TOKEN", ["opencode-a2a@alpha.service"]),
        (f"{SECRETS}/ANTHROPIC_API_KEY", ["opencode@alpha.service"]),
        (
            f"{SECRETS}/OPENCODE_SERVER_PASSWORD",
            ["opencode@alpha.service", "opencode-a2a@alpha.service"],
        ),
    ],
)
def test_only_what_reads_a_changed_file_is_restarted(path: str, restarted: list[str]) -> None:
    site = Site().created()
    old = site.host.resources.get(path)
    site.host.resources[path] = (
        replace(old, content="changed") if isinstance(old, File) else File(path, "new", 0o600)
    )
    site.operator.update("alpha", {})
    assert site.restarted == restarted


def test_another_port_restarts_all_since_a_service_keeps_the_socket_it_has_got() -> None:
    site = Site().created()
    site.operator.update("alpha", {"port": 9000})
    assert site.restarted == ["opencode-a2a@alpha.target"]
    assert site.checked[-1].startswith("http://127.0.0.1:9000 ")


def test_a_release_with_the_same_opencode_leaves_the_agent_at_work() -> None:
    site = Site().created()
    site.operator.update("alpha", {"release": "1.1"})
    assert site.restarted == ["opencode-a2a@alpha.service"]
    assert site.operator.manifest.instance("alpha").previous == "1.0"
    site.host.ran.clear()
    site.operator.update("alpha", {"release": "2.0"})
    assert site.restarted == ["opencode@alpha.service", "opencode-a2a@alpha.service"]


def test_one_does_not_go_back_to_what_one_has_gone_back_from() -> None:
    site = Site().created()
    site.operator.update("alpha", {"release": "2.0"})
    site.operator.update("alpha", {"release": "1.0"})
    assert site.operator.manifest.instance("alpha").previous is None


def test_a_release_that_is_not_installed_is_refused() -> None:
    site = Site().created()
    with pytest.raises(DeployError, match=re.escape("the release 3.0 is not installed")):
        site.operator.update("alpha", {"release": "3.0"})


def test_an_interrupted_update_is_completed_by_the_next() -> None:
    site = Site().created()
    site.host.fails_at = "restart"
    with pytest.raises(DeployError):
        site.operator.update("alpha", {"release": "1.1"})
    site.host.fails_at = None
    site.operator.update("alpha", {})
    assert site.restarted == ["opencode-a2a@alpha.service"]


def test_going_back_from_an_update_that_failed_restarts_what_may_run_the_new_release() -> None:
    site = Site().created()
    site.host.fails_at = "restart opencode-a2a@alpha"
    with pytest.raises(DeployError):
        site.operator.update("alpha", {"release": "2.0"})
    assert site.restarted == ["opencode@alpha.service"]
    site.host.fails_at = None
    site.operator.update("alpha", {"release": "1.0"})
    assert site.restarted[1:] == ["opencode@alpha.service", "opencode-a2a@alpha.service"]


def test_what_an_interrupted_create_has_made_can_be_removed() -> None:
    site = Site().prepared()
    before = set(site.host.resources)
    site.host.fails_at = "systemctl start"
    with pytest.raises(DeployError):
        site.operator.create("alpha", {}, make=None, question=True)
    site.host.fails_at = None
    site.operator.remove("alpha", purge=True)
    assert set(site.host.resources) == {
        key for key in before if not key.startswith(f"{ETC}/alpha/")
    }


def test_removing_keeps_data_and_the_user_whose_data_it_is() -> None:
    site = Site().created()
    site.operator.remove("alpha", purge=False)
    left = set(site.host.resources)
    assert {"user oca-alpha", f"{SECRETS}/A2A_BEARER_TOKEN"} <= left
    assert "/var/lib/opencode-a2a/alpha/workspace" in left
    assert not [key for key in left if "@alpha" in key or "/instances/alpha" in key]
    assert site.host.units == set()
    assert site.operator.manifest.instances == []
    site.operator.create("alpha", {}, make=None, question=True)  # as it was
    assert site.checked[-1] == "http://127.0.0.1:8010 Bearer token True"


def test_uninstalling_with_data_leaves_nothing() -> None:
    site = Site().created()
    site.operator.uninstall(purge=True)
    assert (site.host.resources, site.host.units) == ({}, set())


def test_uninstalling_without_data_can_be_followed_by_uninstalling_with_it() -> None:
    site = Site().created()
    site.operator.uninstall(purge=False)
    assert MANIFEST in site.host.resources
    assert not [
        key for key in site.host.resources if key.startswith(("/opt", "/usr", "/etc/systemd"))
    ]
    site.operator.uninstall(purge=True)
    assert site.host.resources == {}


def test_a_program_of_somebody_else_stays_and_is_never_removed() -> None:
    site = Site()
    site.host.put("/usr/local/bin/opencode-a2a", "theirs", 0o755)
    site.operator.init("1.0")
    site.operator.uninstall(purge=True)
    assert site.host.read("/usr/local/bin/opencode-a2a") == "theirs"


def test_a_user_of_somebody_else_is_not_taken_over() -> None:
    site = Site().prepared()
    site.host.resources["user oca-alpha"] = User("oca-alpha", "/home/x")
    with pytest.raises(DeployError, match="user oca-alpha"):
        site.operator.create("alpha", {}, make=None, question=True)


def test_a_directory_of_somebody_else_is_not_taken_over_and_removed() -> None:
    site = Site()
    site.host.resources["/opt/opencode-a2a/releases"] = Directory("/opt/opencode-a2a/releases")
    with pytest.raises(DeployError, match="directory /opt/opencode-a2a/releases"):
        site.operator.init("1.0")
    del site.host.resources["/opt/opencode-a2a/releases"]
    site.prepared()
    home = "/var/lib/opencode-a2a/alpha/home"
    site.host.resources[home] = Directory(home, 0o700)
    with pytest.raises(DeployError, match=f"directory {home}"):
        site.operator.create("alpha", {}, make=None, question=True)
    assert site.host.resources[home] == Directory(home, 0o700)


def test_an_instance_that_does_not_answer_fails_the_command() -> None:
    site = Site().prepared()
    site.works = False
    with pytest.raises(DeployError, match="was not ready"):
        site.operator.create("alpha", {}, make=None, question=True)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"name": "Alpha"}, "cannot be the name"),
        ({"name": "a/../b"}, "cannot be the name"),
        ({"name": "a" * 29}, "cannot be the name"),
        ({"name": "alpha-"}, "cannot be the name"),
        ({"memory": "much"}, "must be a size"),
        ({"tasks": 1}, "at least 16"),
        ({"port": 0}, "from 1 to 65535"),
        ({"port": 18010}, "must be two"),
        ({"port": 8011}, "belongs to the instance beta"),
        ({"workspace": "relative"}, "absolute path"),
        ({"workspace": "/home/me/x"}, "cannot see /home"),
        ({"workspace": "/home"}, "cannot see /home"),
        ({"workspace": "/srv/../etc"}, "absolute path"),
        ({"workspace": "//etc"}, "absolute path"),
        ({"workspace": "/srv/a/"}, "absolute path"),
        ({"workspace": "/"}, "may change everything"),
        ({"workspace": "/var/lib/opencode-a2a/beta"}, "may change everything"),
        ({"workspace": "/opt/x"}, "may change everything"),
        ({"workspace": "/srv/beta/inside"}, "workspace of beta"),
        ({"workspace": "/srv"}, "workspace of beta"),
        ({"host": "localhost"}, "must be an IP address"),
        ({"host": "8010"}, "must be an IP address"),
        ({"workspace": "/srv/a\nUser=root"}, "which units cannot have"),
        ({"public_url": 'https://x" B=1'}, "which units cannot have"),
        ({"workspace": "/srv/beta"}, "workspace of beta"),
    ],
)
def test_what_units_or_other_instances_would_suffer_from_is_refused(
    change: dict[str, Any], problem: str
) -> None:
    beta = Instance(
        name="beta", port=8011, opencode_port=18011, release="1.0", workspace="/srv/beta"
    )
    with pytest.raises(DeployError, match=problem):
        check(replace(ALPHA, **change), [ALPHA, beta])


def test_the_next_instance_gets_the_next_free_pair_of_ports() -> None:
    assert next_port([]) == 8010
    assert next_port([8010, 18010, 18011]) == 8012


def test_the_manifest_is_read_as_it_was_written_also_with_fields_of_a_later_version() -> None:
    manifest = Site().created().operator.manifest
    text = manifest.dump()
    assert Manifest.parse(text) == manifest
    assert (
        Manifest.parse(text.replace('"tasks": 1024', '"tasks": 1024, "color": "red"')) == manifest
    )
    with pytest.raises(DeployError, match="another version"):
        Manifest.parse(text.replace('"format": 1', '"format": 99'))


def test_a_plan_shows_that_data_is_lost() -> None:
    plan = plans.remove("alpha", Site().created().operator.manifest, purge=True)
    lines = [str(step) for step in plan.steps]
    assert "- directory /var/lib/opencode-a2a/alpha/workspace and all data in it" in lines
    assert lines[-3].startswith("- user oca-alpha")


@pytest.mark.parametrize("port", [8010, 18010])
def test_a_port_that_somebody_else_has_is_refused(port: int) -> None:
    site = Site().prepared()
    site.host.held = {port}
    with pytest.raises(DeployError, match=f"port {port} .Address already in use"):
        site.operator.create("alpha", {}, make=None, question=True)
    assert "user oca-alpha" not in site.host.resources


def test_a_new_port_is_tried_and_the_ports_that_an_instance_has_are_not() -> None:
    site = Site().created()
    site.host.held = {8010, 18010, 18020}
    site.operator.update("alpha", {"memory": "2G"})
    with pytest.raises(DeployError, match="port 18020"):
        site.operator.update("alpha", {"opencode_port": 18020})
    site.host.units.clear()  # stopped: somebody has taken its port meanwhile
    with pytest.raises(DeployError, match="port 8010"):
        site.operator.update("alpha", {})


def test_units_are_read_again_before_anything_is_restarted() -> None:
    site = Site().created()
    site.host.fails_at = "daemon-reload"
    with pytest.raises(DeployError):
        site.operator.update("alpha", {"memory": "2G"})
    site.host.fails_at = None
    site.operator.update("alpha", {})
    reload, restart = site.host.ran
    assert reload == ("systemctl", "daemon-reload")
    assert restart[:2] == ("systemctl", "restart")


def test_an_interrupted_uninstall_is_completed_though_systemd_has_forgotten_the_units() -> None:
    plan = plans.uninstall(Site().created().operator.manifest, purge=True)
    stop = next(step for step in plan.steps if "systemctl stop" in str(step))
    assert isinstance(stop, Command)
    assert stop.accepted == (5,)


def test_a_secret_that_holds_another_value_is_not_kept_silently() -> None:
    site = Site().prepared()
    site.host.put(f"{SECRETS}/ANTHROPIC_API_KEY", "sk-1")
    site.operator.create("alpha", {}, make=["ANTHROPIC_API_KEY"], question=True)
    site.host.put(f"{SECRETS}/ANTHROPIC_API_KEY", "sk-0")
    with pytest.raises(DeployError, match="ANTHROPIC_API_KEY holds another value") as refused:
        site.operator.update("alpha", {}, make=["ANTHROPIC_API_KEY"])
    assert "sk-" not in str(refused.value)


@pytest.mark.parametrize("name", [".X.swp", "X~", "1X", "X-Y", "X=Y", "a b"])
def test_a_file_whose_name_is_no_variable_is_refused_by_its_path(name: str) -> None:
    site = Site().created()
    site.host.put(f"{SECRETS}/{name}", "x")
    with pytest.raises(DeployError, match=re.escape(f"{SECRETS}/{name}: the name")):
        site.operator.update("alpha", {})


def test_what_could_not_be_removed_is_remembered_and_fails_the_command() -> None:
    site = Site().created()
    site.host.put("/etc/systemd/system/opencode@alpha.service.d/mine.conf", "", 0o644)
    with pytest.raises(DeployError, match=r"opencode@alpha\.service\.d"):
        site.operator.uninstall(purge=True)
    left = site.operator.manifest
    kept = [made.name for record in left.records.values() for made in record.made]
    assert kept == ["/etc/systemd/system/opencode@alpha.service.d"]
    del site.host.resources["/etc/systemd/system/opencode@alpha.service.d/mine.conf"]
    site.operator.uninstall(purge=True)
    assert site.host.resources == {}


def test_a_user_stays_while_a_directory_of_the_operator_belongs_to_it() -> None:
    site = Site().prepared()
    with pytest.raises(DeployError, match="must be a directory that is there"):
        site.operator.create("alpha", {"workspace": "/srv/x"}, make=None, question=True)
    site.host.resources["/srv/x"] = Directory("/srv/x")
    site.operator.create("alpha", {"workspace": "/srv/x"}, make=None, question=True)
    assert any("chown -R oca-alpha: /srv/x" in line for line in site.said)
    site.host.resources["/srv/x"] = Directory("/srv/x", owner="oca-alpha:oca-alpha")
    with pytest.raises(DeployError, match="chown -R root: /srv/x"):
        site.operator.remove("alpha", purge=True)
    with pytest.raises(DeployError, match="chown -R root: /srv/x"):
        site.operator.uninstall(purge=True)
    site.host.resources["/srv/x"] = Directory("/srv/x")
    site.operator.remove("alpha", purge=True)
    assert "user oca-alpha" not in site.host.resources


def test_going_back_from_a_failed_upgrade_keeps_the_release_before() -> None:
    site = Site().created()
    site.operator.update("alpha", {"release": "1.1"})
    site.operator.set_previous("alpha", "0.9")
    assert site.operator.manifest.instance("alpha").previous == "0.9"


def test_a_damaged_manifest_is_said_to_be_one() -> None:
    for text in ("", "[]", "{}", '{"format": 1, "host": [], "records": {"a": 1}}'):
        with pytest.raises(DeployError, match="is damaged"):
            Manifest.parse(text)
