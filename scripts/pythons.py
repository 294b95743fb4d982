"""Run the quick part of the tests on every other supported Python that is installed here.

    python scripts/pythons.py [arguments for pytest]

Each gets an environment of its own, `.venv-3.12` and so on. Nothing is downloaded but packages:
a Python that is not installed is named at the end, and so is one for which the packages cannot be
had. Neither fails the run, unless that holds for all of them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SUPPORTED = ("3.11", "3.12", "3.13", "3.14")


def main(arguments: list[str]) -> int:
    here = "{}.{}".format(*sys.version_info)
    passed: list[str] = []
    failed: list[str] = []
    missing: list[str] = []
    unusable: list[str] = []
    for version in SUPPORTED:
        if version == here:
            continue
        python = find(version)
        if python is None:
            missing.append(version)
            continue
        print(f"\nPython {version} ({python})", flush=True)
        environment = install(version, python)
        if environment is None:
            unusable.append(version)
            continue
        command = [str(environment / "bin" / "python"), "scripts/suite.py", "--quick", *arguments]
        ended = subprocess.run(command, cwd=ROOT, check=False)
        (failed if ended.returncode else passed).append(version)
    print(f"\nPython {here} is the one of `make test`.")
    for words, versions in (
        ("passed", passed),
        ("FAILED", failed),
        ("not tried: not found here", missing),
        ("not tried: its packages cannot be installed", unusable),
    ):
        if versions:
            print(f"Python {', '.join(versions)}: {words}")
    return 1 if failed or (unusable and not passed) else 0


def find(version: str) -> str | None:
    """A working interpreter of this version: on the path, or one of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    installed = map(str, pyenv.glob(f"versions/{version}.*/bin/python"))
    for candidate in filter(None, [shutil.which(f"python{version}"), *installed]):
        # pyenv puts a name on the path for every version, which fails unless it is switched on.
        command = [candidate, "-c", "import sys; print('{}.{}'.format(*sys.version_info))"]
        said = subprocess.run(command, check=False, capture_output=True, text=True)
        if said.returncode == 0 and said.stdout.strip() == version:
            return candidate
    return None


def install(version: str, python: str) -> Path | None:
    """An environment with the pinned packages and this checkout; quick when it is there already.

    None where the packages cannot be had for this version.
    """
    environment = ROOT / f".venv-{version}"
    uv = str(Path(sys.executable).parent / "uv")
    new = [uv, "venv", "--quiet", "--allow-existing", "--python", python, str(environment)]
    subprocess.run(new, cwd=ROOT, check=True)
    pip = [uv, "pip", "install", "--quiet", "--python", str(environment / "bin" / "python")]
    pinned = [*pip, "--require-hashes", "-r", "requirements/dev.txt"]
    if subprocess.run(pinned, cwd=ROOT, check=False).returncode:
        return None
    checkout = [*pip, "--no-deps", "--no-build-isolation", "-e", "."]
    subprocess.run(checkout, cwd=ROOT, check=True)
    return environment


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
