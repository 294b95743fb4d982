"""One folder below `.interop/` for each client and each OpenCode: installed once, used again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.running import ROOT

from .declared import Client

FOLDER = ROOT / ".interop"


class NotInstalled(Exception):
    """A package cannot be installed here; the message is the end of what the installer said."""


def install_client(client: Client) -> Path:
    folder = FOLDER / client.name
    if client.runtime == "node":
        return _install_node(folder, client.packages)
    return _install_python(folder, client.packages)


def install_opencode(version: str) -> Path:
    """The command of this version, which it must also be by its own account.

    Where npm has no program of that version for this system, the installer of OpenCode takes one
    that it finds in a folder above: the pinned one.
    """
    is_2 = version.startswith("2.")
    package = "@opencode/cli-linux-x64-baseline" if is_2 else "opencode-ai"
    folder = _install_node(FOLDER / f"opencode-{version}", (f"{package}@{version}",))
    command = folder / "node_modules" / (f"{package}/bin" if is_2 else ".bin") / "opencode"
    asked = subprocess.run([command, "--version"], check=True, capture_output=True, text=True)
    if (told := asked.stdout.split()[-1].removeprefix("v")) != version:
        shutil.rmtree(folder)
        raise NotInstalled(f"OpenCode {told} was installed in place of {version}.")
    return command


def command(client: Client, plan: str) -> tuple[Sequence[str], Path]:
    """How its driver is run, and where."""
    folder = FOLDER / client.name
    if client.runtime == "node":
        return ["node", str(Path(__file__).parent / "clients" / client.driver), plan], folder
    # -P: the folder of the drivers, some of which are called like their client, is not searched.
    module = f"tests.interop.clients.{client.name}"
    return [str(folder / "bin" / "python"), "-P", "-m", module, plan], folder


def _install_python(folder: Path, packages: Sequence[str]) -> Path:
    if not _is_installed(folder, packages):
        uv = str(Path(sys.executable).parent / "uv")
        _say(f"Installing {', '.join(packages)} into {folder.relative_to(ROOT)} …")
        _run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)])
        python = str(folder / "bin" / "python")
        # Wheels only: nothing is built here. Pre-releases only where a pin names one.
        options = ["--python", python, "--only-binary", ":all:"]
        _run([uv, "pip", "install", *options, *packages])
        _note(folder, packages)
    return folder


def _install_node(folder: Path, packages: Sequence[str]) -> Path:
    if not _is_installed(folder, packages):
        folder.mkdir(parents=True, exist_ok=True)
        _say(f"Installing {', '.join(packages)} into {folder.relative_to(ROOT)} …")
        (folder / "package.json").write_text(json.dumps({"private": True, "type": "module"}))
        quiet = ["--no-audit", "--no-fund", "--no-save", "--loglevel=error"]
        _run(["npm", "install", "--prefix", str(folder), *quiet, *packages])
        _note(folder, packages)
    return folder


def _is_installed(folder: Path, packages: Sequence[str]) -> bool:
    note = folder / ".installed"
    return note.exists() and note.read_text() == "\n".join(packages)


def _note(folder: Path, packages: Sequence[str]) -> None:
    (folder / ".installed").write_text("\n".join(packages))


def _run(words: Sequence[str], env: Mapping[str, str] | None = None) -> None:
    """Show what the installer says while it works; keep its end for the report."""
    process = subprocess.Popen(
        words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    said: list[str] = []
    for line in process.stdout:
        said.append(line)
        _say(f"  {line.rstrip()}")
    if process.wait():
        raise NotInstalled("".join(said)[-300:].strip())


def _say(text: str) -> None:
    sys.stdout.write(text + os.linesep)
    sys.stdout.flush()
