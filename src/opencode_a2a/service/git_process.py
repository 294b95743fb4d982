"""Runs the `git` program, so that nothing the workspace names is run by it.

Whoever writes in the workspace also writes the repository's configuration, which can name programs:
hooks, filters, merge drivers, monitors, transports. So git never works with that configuration.
Each call gets a git directory of its own: a temporary one with a configuration of the service, and
links to the objects and branches of the repository. The repository's configuration is only listed,
which runs nothing, and `KEPT_CONFIG` is taken from it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import IsolationFailed
from ..paths import program_path
from . import git
from .git import Place

TIMEOUT_SECONDS = 120.0  # for one call of git
FILES_TIMEOUT_SECONDS = 1_800.0  # for one that reads or writes the files of the working tree
FILES_COMMANDS = ("read-tree", "merge", "update-index")
STOP_SECONDS = 5.0  # for git to clean up when it is stopped
OWN_CONFIG = {
    "core.repositoryformatversion": "1",
    "core.hookspath": os.devnull,
    "core.fsmonitor": "false",
    "core.quotepath": "false",
    "core.splitindex": "false",  # the shared half would be written here, and be lost
    "gc.auto": "0",
    "maintenance.auto": "false",
}
# What is taken from the configuration of the repository, the user and the system. It says who
# commits and how files are read; none of it names a program.
KEPT_CONFIG = frozenset(
    {
        *(f"{who}.{what}" for who in ("user", "author", "committer") for what in ("name", "email")),
        "core.autocrlf",
        "core.eol",
        "core.logallrefupdates",
        "core.excludesfile",
        "core.filemode",
        "core.ignorecase",
        "core.precomposeunicode",
        "core.sparsecheckout",
        "core.sparsecheckoutcone",
        "core.symlinks",
        "extensions.objectformat",
        "index.sparse",
    }
)
# What the private directory has of the repository, and of the working tree.
SHARED_FILES = (
    "objects",
    "refs",
    "packed-refs",
    "shallow",
    "info/exclude",
    "info/attributes",
)
LOGS = "logs/refs"
OWN_FILES = ("logs/HEAD", "info/sparse-checkout")
DRIVER_PROGRAMS = {"filter": ("clean", "smudge", "process"), "merge": ("driver",)}
INHERITED = ("HOME", "USER", "LOGNAME", "TMPDIR", "XDG_CONFIG_HOME", "SYSTEMROOT")
ENVIRONMENT = {
    "LC_ALL": "C",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_ALLOW_PROTOCOL": "none",  # nothing is fetched; overrides what a configuration allows
    "GIT_NO_LAZY_FETCH": "1",
}


@dataclass(frozen=True, slots=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def message(self) -> str:
        """What git says, for people."""
        return git.readable(" ".join((self.err or self.out).split())[:1_000])


@dataclass(frozen=True, slots=True)
class PrivateGit:
    """Git for one call, with a git directory that nobody else writes."""

    place: Place
    directory: Path
    path: str  # on which programs are looked for
    has_identity: bool  # whether git is told who commits
    drivers: frozenset[str]  # `filter.lfs`, `merge.x`: for what git would run a program elsewhere

    async def run(self, *arguments: str, env: Mapping[str, str], text: str | None) -> Answer:
        place = self.place
        fixed = {"GIT_DIR": str(self.directory), "GIT_INDEX_FILE": str(place.own / "index")}
        fixed |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
        if place.top is not None:
            fixed["GIT_WORK_TREE"] = str(place.top)
        cwd = place.top or self.directory
        return await _run(*arguments, path=self.path, cwd=cwd, env={**fixed, **env}, text=text)


async def find_place(directory: str) -> Place:
    """The repository around a directory; `IsolationFailed` where there is none to work with."""
    try:
        if not await asyncio.to_thread(Path(directory).is_dir):
            raise IsolationFailed(f"{directory} is gone on the host of this service.")
        place = await asyncio.to_thread(git.locate, Path(directory))
    except git.NOT_A_PATH as exc:
        raise _unreadable(directory, exc) from exc
    if place is None:
        named = await asyncio.to_thread(git.named_directory, Path(directory))
        if named is None:
            problem = "is not in a git repository that can be used"
        elif "modules" in str(named).partition("/.git/")[2].split("/"):
            problem = "is in a submodule; only the repository around it can be isolated"
        else:
            problem = f"has a .git file that names {named}, where git knows no such worktree"
        raise IsolationFailed(f"{directory} {problem}.", directory=directory)
    return place


@asynccontextmanager
async def private_git(directory: str, workspace: Path) -> AsyncIterator[PrivateGit]:
    """Git for a directory. The program is never one that lies in the workspace."""
    with tempfile.TemporaryDirectory(prefix="opencode-a2a-git-") as folder:
        try:
            made = await _made(directory, workspace, Path(folder))
        except git.NOT_A_PATH as exc:
            raise _unreadable(directory, exc) from exc
        yield made


def _unreadable(directory: str, problem: Exception) -> IsolationFailed:
    return IsolationFailed(
        f"The repository of {directory} cannot be read: {problem}", directory=directory
    )


async def _made(directory: str, workspace: Path, private: Path) -> PrivateGit:
    path = await asyncio.to_thread(program_path, outside=workspace)
    place = await find_place(directory)
    if await asyncio.to_thread(git.head, place) is None:
        raise IsolationFailed(f"{place.own / 'HEAD'} cannot be read.", directory=directory)
    if link := await asyncio.to_thread(git.symbolic_link, place):
        raise IsolationFailed(
            f"{link} is a symbolic link. What is checked out where cannot be told then, so this "
            "service does not use git in such a repository.",
            directory=directory,
        )
    config = await _configuration(place, path)
    if place.own == place.shared and config.get("core.bare") == "true":
        place = replace(place, top=None)
    elif (place.own == place.shared and "core.worktree" in config) or (
        config.get("core.bare") != "true" and await asyncio.to_thread(git.is_away, place.shared)
    ):
        raise IsolationFailed(
            f"The repository {place.shared} has its files elsewhere (core.worktree, or "
            "git init --separate-git-dir), and this service does not use git in such a repository.",
            directory=directory,
        )
    if config.get("extensions.refstorage", "files") != "files":
        raise IsolationFailed(
            f"The repository {place.shared} keeps its branches in another way than as files "
            "(extensions.refStorage), and this service does not use git in such a repository.",
            directory=directory,
        )
    kept = {name: value for name, value in config.items() if name in KEPT_CONFIG}
    await asyncio.to_thread(_fill, private, place, kept)
    return PrivateGit(
        place, private, path, has_identity="user.email" in kept, drivers=_drivers(config)
    )


async def _configuration(place: Place, path: str) -> Mapping[str, str]:
    """What git finds in all its configuration files. To list it runs nothing."""
    env = {"GIT_DIR": str(place.own), "GIT_COMMON_DIR": str(place.shared)}
    answer = await _run("config", "--list", "-z", path=path, cwd=place.shared, env=env, text=None)
    if answer.code != 0:
        raise IsolationFailed(f"git cannot read the repository {place.shared}: {answer.message}")
    entries = (entry.partition("\n") for entry in answer.out.split("\0") if entry)
    return {name: value if newline else "true" for name, newline, value in entries}


def _drivers(config: Iterable[str]) -> frozenset[str]:
    named = (name.rpartition(".") for name in config)
    return frozenset(
        driver
        for driver, _, key in named
        if key in DRIVER_PROGRAMS.get(driver.partition(".")[0], ())
    )


def _fill(private: Path, place: Place, kept: Mapping[str, str]) -> None:
    """Make a git directory with the repository's data and a configuration of the service."""
    bare = "false" if place.top is not None else "true"
    config = {**OWN_CONFIG, **kept, "core.bare": bare}
    links = {name: place.shared / name for name in SHARED_FILES}
    links |= {name: place.own / name for name in OWN_FILES if (place.own / name).exists()}
    links |= {file.name: file for file in place.own.glob("sharedindex.*")}
    if (logs := place.shared / LOGS).is_dir():
        links[LOGS] = logs
    else:  # git makes no directory through a link that leads nowhere
        config["core.logallrefupdates"] = "false"
    for folder in ("logs", "info"):
        (private / folder).mkdir()
    for name, target in links.items():
        (private / name).symlink_to(target)
    text = "".join(_config_line(name, value) for name, value in config.items())
    (private / "config").write_bytes(text.encode(errors="surrogateescape"))
    (private / "HEAD").write_text(f"{git.head(place)}\n")  # git refuses a link here


def _config_line(name: str, value: str) -> str:
    section, _, key = name.partition(".")
    quoted = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'[{section}]\n\t{key} = "{quoted}"\n'


async def _run(
    *arguments: str, path: str, cwd: Path, env: Mapping[str, str], text: str | None
) -> Answer:
    program = await asyncio.to_thread(shutil.which, "git", path=path)
    if program is None:
        raise IsolationFailed("The git program is not installed on the host of this service.")
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    try:
        process = await asyncio.create_subprocess_exec(
            program,
            *arguments,
            cwd=cwd,
            env={"PATH": path, **inherited, **ENVIRONMENT, **env},
            stdin=asyncio.subprocess.DEVNULL if text is None else asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C ends the service; git is told by it
        )
    except OSError as exc:
        raise IsolationFailed(f"git cannot be run in {cwd}: {exc.strerror or exc}.") from exc
    seconds = FILES_TIMEOUT_SECONDS if arguments[0] in FILES_COMMANDS else TIMEOUT_SECONDS
    try:
        async with asyncio.timeout(seconds):
            given = None if text is None else text.encode(errors="surrogateescape")
            out, err = await process.communicate(given)
    except TimeoutError:
        await _stop(process)
        raise IsolationFailed(
            f"git {arguments[0]} did not end within {seconds:g} s in {cwd}, and was stopped. "
            "Run it there by hand to see what it waits for.",
            directory=str(cwd),
        ) from None
    except asyncio.CancelledError:
        await _stop(process)
        raise
    code = process.returncode if process.returncode is not None else -1
    return Answer(code, *(part.decode(errors="surrogateescape") for part in (out, err)))


async def _stop(process: asyncio.subprocess.Process) -> None:
    """End git and what it has started, so that it can remove what it has half done."""
    _signal(process, signal.SIGTERM)
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        pass
    finally:
        _signal(process, signal.SIGKILL)


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
