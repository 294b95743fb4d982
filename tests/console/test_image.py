"""What the Containerfile builds from a clean checkout. No engine is needed for that."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from zipfile import ZipFile

from tests.running import ROOT

CONSOLE = "src/opencode_a2a/console"  # where the build of the console writes to, and hatch looks


def stages() -> dict[str, str]:
    """The instructions of each stage, by its name; the last has none."""
    text = (ROOT / "Containerfile").read_text().replace("\\\n", " ")
    parts = re.split(r"^FROM \S+(?: AS (\w+))?$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def is_sent(path: str) -> bool:
    """Whether a file is sent to the engine: the last rule for it, or a folder of it, counts."""
    sent = True
    names = [path, *(str(parent) for parent in Path(path).parents)][:-1]
    for rule in (ROOT / ".containerignore").read_text().split():
        pattern = rule.removeprefix("!").removeprefix("**/")
        parts = Path(path).parts if "**/" in rule else ()
        if any(fnmatch(name, pattern) for name in (*names, *parts)):
            sent = rule.startswith("!")
    return sent


def tracked() -> list[str]:
    done = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return [name for name in done.stdout.split("\0") if name]


def test_an_image_of_a_clean_checkout_has_a_console_of_its_own() -> None:
    found = stages()
    sent = {name for name in tracked() if is_sent(name)}
    assert {"console/index.html", "console/vite.config.ts", "console/package-lock.json"} <= sent
    assert {name for name in tracked() if name.startswith("console/src/")} <= sent
    assert not is_sent(f"{CONSOLE}/index.html")  # an older one of whoever builds the image
    assert not is_sent("console/node_modules/vite/package.json")
    for line in re.findall(r"^COPY (?!--)(.*)$", "\n".join(found.values()), re.MULTILINE):
        *sources, _ = line.split()
        assert all(any(name.startswith(s.strip("./")) for name in sent) for s in sources), line
    assert "WORKDIR /src/console" in found["console"]
    assert f"outDir: '../{CONSOLE}'" in (ROOT / "console/vite.config.ts").read_text()
    assert re.search(r"npm ci .*vite build", found["console"], re.DOTALL)
    copied = rf"COPY --from=console /src/{CONSOLE} {CONSOLE}\n.*hatchling build"
    assert re.search(copied, found["service"], re.DOTALL)


def test_the_wheel_of_what_is_sent_has_the_console(tmp_path: Path) -> None:
    context = tmp_path / "context"
    for name in tracked():
        if is_sent(name):
            target = context / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target, follow_symlinks=False)
    (context / CONSOLE).mkdir()
    (context / CONSOLE / "index.html").write_text("built in the stage before")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=context, check=True, capture_output=True, timeout=300)
    [wheel] = tmp_path.glob("*.whl")
    with ZipFile(wheel) as archive:
        names = set(archive.namelist())
    needed = ("console/index.html", "requirements/run.txt", "npm/package-lock.json", "py.typed")
    assert {f"opencode_a2a/{name}" for name in needed} <= names
