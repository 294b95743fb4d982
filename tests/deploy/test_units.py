"""The systemd units: who gets which secret, and what systemd itself says about them."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from opencode_a2a.deploy.launch import with_credentials
from opencode_a2a.deploy.layout import Instance
from opencode_a2a.deploy.units import (
    OPENCODE,
    SERVICE,
    TEMPLATES,
    as_service,
    credentials,
    drop_ins,
)

ALPHA = Instance(name="alpha", port=8010, opencode_port=18010, release="1.0")
SECRETS = ("A2A_BEARER_TOKEN", "ANTHROPIC_API_KEY", "OPENCODE_SERVER_PASSWORD")
ANALYZE = shutil.which("systemd-analyze")
needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="there is no systemd-analyze")


def test_keys_of_providers_go_to_opencode_alone_and_tokens_of_callers_to_the_service_alone() -> (
    None
):
    service, opencode = credentials([*SECRETS, "a2a_static_auth_credentials", "GH_TOKEN"])
    assert service == {
        "A2A_BEARER_TOKEN": "A2A_BEARER_TOKEN",
        "OPENCODE_AUTH_PASSWORD": "OPENCODE_SERVER_PASSWORD",
        "a2a_static_auth_credentials": "a2a_static_auth_credentials",
    }
    assert sorted(opencode) == ["ANTHROPIC_API_KEY", "GH_TOKEN", "OPENCODE_SERVER_PASSWORD"]


def test_a_unit_names_files_with_secrets_and_never_holds_one() -> None:
    made = drop_ins(ALPHA, SECRETS)
    loads = re.findall(r"LoadCredential=(\S+)", made["opencode@alpha.service"])
    folder = "/etc/opencode-a2a/alpha/secrets"
    assert loads == [
        f"ANTHROPIC_API_KEY:{folder}/ANTHROPIC_API_KEY",
        f"OPENCODE_SERVER_PASSWORD:{folder}/OPENCODE_SERVER_PASSWORD",
    ]
    assert "ANTHROPIC" not in made["opencode-a2a@alpha.service"]


def test_an_ipv6_address_and_percent_signs_are_written_as_systemd_reads_them() -> None:
    special = Instance(
        name="alpha", port=1, opencode_port=2, release="1", host="::1", workspace="/srv/50%"
    )
    made = drop_ins(special, ())
    assert "ListenStream=[::1]:1" in made["opencode-a2a@alpha.socket"]
    assert "WorkingDirectory=/srv/50%%" in made["opencode@alpha.service"]


def test_the_service_does_not_stop_or_start_with_its_opencode() -> None:
    needs = re.findall(r"^(?:Requires|BindsTo|Wants)=(.*)$", SERVICE, re.MULTILINE)
    assert needs == ["opencode-a2a@%i.socket"]


def test_opencode_gets_credentials_as_variables_without_the_end_of_the_line(tmp_path: Path) -> None:
    (tmp_path / "ANTHROPIC_API_KEY").write_text("sk-1\n")
    given = {"HOME": "/h", "CREDENTIALS_DIRECTORY": str(tmp_path)}
    assert with_credentials(given) == {"HOME": "/h", "ANTHROPIC_API_KEY": "sk-1"}
    assert with_credentials({"HOME": "/h"}) == {"HOME": "/h"}


def test_the_service_runs_nothing_that_the_agent_configures() -> None:
    assert "Environment=A2A_ISOLATION=never" in SERVICE


def test_a_command_runs_as_the_service_does() -> None:
    command = as_service(ALPHA, SECRETS, ["doctor"])
    given = command[command.index("-p") + 1 : -1 : 2]
    assert {"User=oca-alpha", "Environment=A2A_ISOLATION=never"} <= set(given)
    token = "/etc/opencode-a2a/alpha/secrets/A2A_BEARER_TOKEN"
    assert f"LoadCredential=A2A_BEARER_TOKEN:{token}" in given
    assert not [word for word in command if "%" in word or "ANTHROPIC" in word]


def test_templates_are_the_same_in_every_release() -> None:
    """Instances of several releases share them: a change here would change the older ones, too."""
    text = "".join(f"{name}\n{content}" for name, content in TEMPLATES.items())
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "d67d04e46460a263"


def test_an_agent_cannot_take_the_ports_of_other_agents() -> None:
    assert "SocketBindDeny=tcp:18010-18999" in OPENCODE
    assert "SocketBindAllow=tcp:18010" in drop_ins(ALPHA, SECRETS)["opencode@alpha.service"]


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """The units of an instance, whole: templates and drop-ins, with programs that exist."""
    for name, drop_in in drop_ins(ALPHA, SECRETS).items():
        whole = (TEMPLATES[name.replace("@alpha", "@")] + drop_in).replace("%i", "alpha")
        (tmp_path / name).write_text(re.sub(r"/opt/\S+/bin/\S+", "/bin/true", whole))
    target = TEMPLATES["opencode-a2a@.target"].replace("%i", "alpha")
    (tmp_path / "opencode-a2a@alpha.target").write_text(target)
    return tmp_path


@needs_systemd
def test_systemd_knows_every_line(units: Path) -> None:
    assert ANALYZE is not None
    names = [str(each) for each in sorted(units.iterdir())]
    ran = subprocess.run(
        [ANALYZE, "verify", "--man=no", *names], capture_output=True, text=True, check=False
    )
    ours = [line for line in ran.stderr.splitlines() if str(units) in line or "alpha" in line]
    assert ours == []


@needs_systemd
@pytest.mark.parametrize("name", ["opencode@alpha.service", "opencode-a2a@alpha.service"])
def test_systemd_finds_little_that_a_unit_may_do_needlessly(units: Path, name: str) -> None:
    """The score is out of 10; 2.0 is `OK` in its own words."""
    assert ANALYZE is not None
    ran = subprocess.run(
        [ANALYZE, "security", "--offline=true", "--no-pager", "--threshold=20", units / name],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
