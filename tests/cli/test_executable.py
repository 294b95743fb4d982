"""Where OpenCode is found, and how one is installed."""

from __future__ import annotations

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from opencode_a2a.cli import executable
from opencode_a2a.cli.failure import CommandError
from opencode_a2a.opencode.process import Launch, ManagedProcessFailed, find_executable
from opencode_a2a.paths import folder_name, program_path, state_home
from tests.running import ROOT

Capture = pytest.CaptureFixture[str]
# An npm that installs a program in the role of OpenCode, if it is asked in the right way.
NPM = """#!/bin/sh
[ "$1 $2" = "ci --omit=dev" ] || exit 9
while [ "$1" != --prefix ]; do shift; done
cd "$2" && grep -q '"opencode-ai"' package.json && grep -q sha512- package-lock.json || exit 8
mkdir -p node_modules/.bin && printf '#!/bin/sh\\n' > node_modules/.bin/opencode
chmod +x node_modules/.bin/opencode
mkdir node_modules/opencode-ai
version=$(sed -n 's/.*"opencode-ai": *\\("[^"]*"\\).*/\\1/p' package.json)
echo "{\\"version\\": $version}" > node_modules/opencode-ai/package.json
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which there is no OpenCode yet: `bin` is in PATH, `project` is where we are."""
    for name in ("bin", "project", "checkout"):
        (tmp_path / name).mkdir()
    (tmp_path / "checkout" / "pyproject.toml").touch()
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(executable, "CHECKOUT", tmp_path / "checkout")
    found = shutil.which("opencode")
    assert found is None, f"{found}: the machine of the tests has one in a system directory"
    return tmp_path


def put(path: Path, content: str = "#!/bin/sh\n") -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    path.chmod(0o755)
    return str(path)


def test_opencode_is_found_in_path_then_among_our_own(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = Path("node_modules/.bin/opencode")
    project = machine / "project"
    monkeypatch.chdir(machine)  # as with `up project`
    for place in (
        state_home() / "opencode" / below,
        machine / "checkout" / below,
        machine / "bin" / "opencode",
    ):
        put(place)
        assert executable.find("opencode", project) == str(place)
    assert executable.find("/opt/another", project) == "/opt/another"


def test_an_opencode_of_the_workspace_is_never_taken_unless_it_is_named(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, below = machine / "project", "node_modules/.bin/opencode"
    for name in ("opencode", "another", below, "bin/opencode"):
        put(project / name)
    (machine / "link").symlink_to(project)
    entries = (".", "", "node_modules/.bin", "bin", f"{project}/bin", f"{machine}/link/bin")
    for entry in entries:
        monkeypatch.setenv("PATH", f"{entry}:/usr/bin:/bin")
        with pytest.raises(CommandError, match="not found"):
            executable.find("opencode", project)
        with pytest.raises(ManagedProcessFailed, match="not found"):
            find_executable(Launch("another", project, environment=os.environ))
    monkeypatch.setattr(executable, "CHECKOUT", project)  # a service that works on its own sources
    with pytest.raises(CommandError, match="OPENCODE_COMMAND"):
        executable.find("opencode", project)
    for named in (below, str(project / below)):
        found = executable.find(named, project)
        found = find_executable(Launch(found, project, environment=os.environ))
        assert found == str(project / below)


def test_a_path_of_which_nothing_is_left_does_not_lead_to_the_current_directory(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f".:{machine}/project/bin")
    assert program_path(outside=machine / "project") == "/usr/sbin:/usr/bin:/sbin:/bin"


def test_npm_is_not_taken_from_the_workspace(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(machine / "project/bin/npm")
    monkeypatch.setenv("PATH", str(machine / "project/bin"))
    monkeypatch.setattr("opencode_a2a.paths.SYSTEM_PATH", str(machine / "nowhere"))
    with pytest.raises(CommandError, match="npm was not found"):
        executable.install(machine / "project")


def test_where_the_workspace_is_the_home_directory_its_programs_are_those_of_the_user(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(machine / "project"))
    found = put(machine / "project/.opencode/bin/opencode")
    monkeypatch.setenv("PATH", f"{machine}/project/.opencode/bin:/usr/bin:/bin")
    assert executable.find("opencode", machine / "project") == found


def test_what_cannot_be_executed_is_not_opencode(machine: Path) -> None:
    Path(put(machine / "bin/opencode")).chmod(0o644)
    with pytest.raises(CommandError) as error:
        executable.find("opencode", machine / "project")
    for advice in ("--install-opencode", "npm install -g opencode-ai", "OPENCODE_COMMAND"):
        assert advice in str(error.value)


def kept() -> list[str]:
    """What installing has left in the state directory."""
    return sorted(each.name for each in state_home().iterdir() if each.suffix != ".lock")


def test_the_tested_version_is_installed_with_its_hashes_and_then_found(
    machine: Path, capsys: Capture
) -> None:
    put(machine / "bin" / "npm", NPM)
    installed = executable.install(machine / "project")
    assert executable.find("opencode", machine / "project") == installed
    assert kept() == ["opencode"]
    pinned = json.loads((ROOT / "package.json").read_text())["dependencies"]["opencode-ai"]
    assert f"OpenCode {pinned}: done" in capsys.readouterr().err


def test_the_tested_version_is_not_installed_again(machine: Path) -> None:
    put(machine / "bin" / "npm", NPM)
    installed = executable.install(machine / "project")
    (machine / "bin" / "npm").unlink()  # nor is anything needed for that
    assert executable.install(machine / "project") == installed


def test_another_version_is_replaced_and_what_a_killed_one_has_left_is_removed(
    machine: Path,
) -> None:
    put(machine / "bin" / "npm", NPM)
    executable.install(machine / "project")
    package = state_home() / "opencode/node_modules/opencode-ai/package.json"
    package.write_text('{"version": "0.0.1"}')
    put(state_home() / "opencode.0123abcd" / "half")
    database = put(state_home() / folder_name(Path("/srv/opencode.0123abcd")) / "tasks.db")
    executable.install(machine / "project")
    assert json.loads(package.read_text())["version"] == executable.tested_version()
    assert kept() == ["opencode", Path(database).parent.name]


def test_of_two_at_once_one_installs_and_the_other_waits(machine: Path) -> None:
    put(machine / "bin" / "npm", NPM + f"echo once >> {machine}/runs\n")
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: executable.install(machine / "project"), range(2))
    assert first == second
    assert (machine / "runs").read_text() == "once\n"
    assert kept() == ["opencode"]


def test_when_npm_fails_its_words_are_shown_and_nothing_is_left(
    machine: Path, capsys: Capture
) -> None:
    put(machine / "bin" / "npm", "#!/bin/sh\necho 'npm error network down' >&2\nexit 1\n")
    with pytest.raises(CommandError, match="npm could not install OpenCode"):
        executable.install(machine / "project")
    assert "npm error network down" in capsys.readouterr().err
    assert kept() == []


def test_without_npm_it_is_said_what_to_install(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(machine / "bin"))
    with pytest.raises(CommandError, match=r"npm was not found.*Install Node\.js 20"):
        executable.install(machine / "project")


def test_the_package_has_what_npm_needs() -> None:
    for name in executable.LISTS:
        assert (executable.PACKAGES / name).read_text() == (ROOT / name).read_text()
