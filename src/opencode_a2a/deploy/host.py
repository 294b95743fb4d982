"""This machine: what is there, and steps performed. Holds no rule."""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import socket
import stat
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from .resources import (
    Change,
    Command,
    DeployError,
    Directory,
    Entry,
    File,
    Link,
    Make,
    Remove,
    Resource,
    Step,
    User,
)

# Whoever has just written secrets may have a umask that would hide a release from its instances.
UMASK = 0o022
NO_SUCH_USER = 6  # userdel


class Host(Protocol):
    """What performs plans; tests have one of their own."""

    def find(self, wanted: Iterable[Resource]) -> dict[str, Resource]:
        """Of these, by their keys, what is there now."""
        ...

    def active(self, units: Iterable[str]) -> frozenset[str]: ...

    def secrets(self, folder: str) -> dict[str, str]:
        """What is in the files of this folder, by their names. Never to be shown."""
        ...

    def read(self, path: str) -> str | None: ...

    def why_not_listen(self, host: str, port: int) -> str | None:
        """Why nothing new can listen there; None if it can."""
        ...

    def output(self, words: tuple[str, ...]) -> str:
        """What a command prints that changes nothing."""
        ...

    def perform(self, step: Step) -> str | None:
        """Returns a remark if not all could be done."""
        ...


class LocalHost:
    def find(self, wanted: Iterable[Resource]) -> dict[str, Resource]:
        found = {}
        for resource in wanted:
            if (there := _find(resource)) is not None:
                found[resource.key] = there
        return found

    def active(self, units: Iterable[str]) -> frozenset[str]:
        names = list(units)
        command = ["systemctl", "is-active", *names]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:  # there is no systemd, as where a plan is only to be shown
            return frozenset()
        states = zip(names, done.stdout.split(), strict=False)
        return frozenset(name for name, state in states if state in ("active", "activating"))

    def secrets(self, folder: str) -> dict[str, str]:
        found = {}
        with suppress(FileNotFoundError):
            for file in Path(folder).iterdir():
                about = file.lstat()
                if not stat.S_ISREG(about.st_mode):
                    raise DeployError(f"{file} is no file. Each secret is a file of its own.")
                if about.st_uid != 0 or about.st_mode & 0o077:
                    raise DeployError(
                        f"{file} can be read by others than root: chown root {file} && "
                        f"chmod 600 {file}"
                    )
                found[file.name] = file.read_text(encoding="utf-8")
        return found

    def read(self, path: str) -> str | None:
        try:
            return Path(path).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def why_not_listen(self, host: str, port: int) -> str | None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family) as attempt:
            attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                attempt.bind((host, port))
                attempt.listen()
            except OSError as exc:
                return exc.strerror
        return None

    def output(self, words: tuple[str, ...]) -> str:
        return run(words)

    def perform(self, step: Step) -> str | None:
        match step:
            case Change(resource=File(is_operators=True) as file):
                _set_owner_and_mode(Path(file.path), file.mode, file.owner)
            case Make(resource=resource) | Change(resource=resource):
                _make(resource)
            case Remove(resource=made):
                return _remove(made)
            case Command():
                run(step.words, may_fail=step.may_fail, accepted=step.accepted)
        return None


def environment() -> dict[str, str]:
    """For other programs: what makes Python load this one must not reach that of a release."""
    return {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}


def run(command: tuple[str, ...], *, may_fail: bool = False, accepted: tuple[int, ...] = ()) -> str:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            env=environment(),
            umask=UMASK,
        )
    except OSError as exc:
        raise DeployError(f"{command[0]} cannot be run: {exc.strerror}.") from None
    if done.returncode not in (0, *accepted) and not may_fail:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-20:])
        raise DeployError(f"`{' '.join(command)}` failed with code {done.returncode}:\n{said}")
    return done.stdout


def _find(resource: Resource) -> Resource | None:
    if isinstance(resource, User):
        try:
            return User(resource.name, pwd.getpwnam(resource.name).pw_dir)
        except KeyError:
            return None
    path = Path(resource.path)
    try:
        about = path.lstat()
        if stat.S_ISLNK(about.st_mode):
            return Link(resource.path, str(path.readlink()))
        mode, owner = stat.S_IMODE(about.st_mode), _names(about.st_uid, about.st_gid)
        if stat.S_ISDIR(about.st_mode):
            return Directory(resource.path, mode, owner)
        return File(resource.path, path.read_text(encoding="utf-8"), mode, owner)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _names(uid: int, gid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name}:{grp.getgrgid(gid).gr_name}"
    except KeyError:
        return f"{uid}:{gid}"


def _make(resource: Resource) -> None:
    match resource:
        case User():
            shell = ("--shell", "/usr/sbin/nologin")
            home = ("--home-dir", resource.home, "--no-create-home")
            run(("useradd", "--system", "--user-group", *home, *shell, resource.name))
        case Directory():
            path = Path(resource.path)
            path.mkdir(mode=0o700, exist_ok=True)
            _set_owner_and_mode(path, resource.mode, resource.owner)
        case File():
            _write(resource)
        case Link():
            path = Path(resource.path)
            path.parent.mkdir(exist_ok=True)
            fresh = path.with_name(f".{path.name}.new")
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(resource.target)
            fresh.replace(path)


def _set_owner_and_mode(path: Path, mode: int, owner: str) -> None:
    user, group = owner.split(":")
    shutil.chown(path, user, group)
    path.chmod(mode)


def _write(file: File) -> None:
    """Whole or not at all, and never readable for more than it should be."""
    path = Path(file.path)
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as out:
        out.write(file.content)
        out.flush()
        os.fsync(out.fileno())
    _set_owner_and_mode(fresh, file.mode, file.owner)
    fresh.replace(path)


def _remove(made: Entry) -> str | None:
    if made.kind == "user":
        try:
            run(("userdel", made.name), accepted=(NO_SUCH_USER,))
        except DeployError as exc:
            return f"user {made.name} is left: {exc}"
        return None
    path = Path(made.name)
    try:
        if made.kind != "directory":
            path.unlink(missing_ok=True)
        elif made.holds == "nothing":
            path.rmdir()
        else:
            shutil.rmtree(path)
    except FileNotFoundError:
        return None
    except OSError as exc:
        return f"{path} is left: {exc.strerror}"
    return None
