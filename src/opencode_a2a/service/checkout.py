"""A working tree, changed and asked by the `git` program. `git.py` only reads git's files.

The agent can write the repository's configuration. So git runs without hooks, without a terminal,
and without the settings and secrets of this service in its environment.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..domain.values import FileChange
from ..errors import IsolationFailed

STOP_SECONDS = 5.0  # for git to clean up after a request that was cancelled
MAX_PATCH_LINES = 20_000  # of the files together whose patches are shown; the others are named
MAX_PATCH_FILES = 500
_OPTIONS = {
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "core.quotePath": "false",
    "commit.gpgSign": "false",
    "submodule.recurse": "false",
    "advice.detachedHead": "false",
}
_COMMAND = ("git", *(word for name in _OPTIONS for word in ("-c", f"{name}={_OPTIONS[name]}")))
# What git needs of the user: where programs and its own configuration are, who commits.
_KEPT = ("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "XDG_CONFIG_HOME", "SYSTEMROOT")
_IDENTITY = {
    f"GIT_{who}_{what}": text
    for who in ("AUTHOR", "COMMITTER")
    for what, text in (("NAME", "opencode-a2a"), ("EMAIL", "opencode-a2a@localhost"))
}
_STATUSES = {"A": "added", "D": "deleted"}  # everything else is a modification


@dataclass(frozen=True, slots=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """What git says, for people."""
        return " ".join((self.err or self.out).split())[:1_000]


@dataclass(frozen=True, slots=True)
class Checkout:
    """The main working tree of a repository, or a linked one, or a directory in either."""

    directory: str

    # -- the program

    async def ask(self, *words: str, env: Mapping[str, str] | None = None) -> Answer:
        """What git answers, failures included."""
        try:
            git = await asyncio.create_subprocess_exec(
                *_COMMAND,
                *words,
                cwd=self.directory,
                env=_environment() | dict(env or {}),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,  # Ctrl-C ends the service; git is told by it
            )
        except FileNotFoundError:
            there = await asyncio.to_thread(Path(self.directory).is_dir)
            missing = "The git program is not installed" if there else f"{self.directory} is gone"
            raise IsolationFailed(f"{missing} on the host of this service.") from None
        try:
            out, err = await git.communicate()
        except asyncio.CancelledError:
            await _stop(git)
            raise
        code = git.returncode if git.returncode is not None else -1
        return Answer(code, *(text.decode(errors="replace") for text in (out, err)))

    async def do(self, *words: str, env: Mapping[str, str] | None = None) -> str:
        """What git prints; `IsolationFailed` with its own words if it fails."""
        answer = await self.ask(*words, env=env)
        if answer.code != 0:
            raise IsolationFailed(
                f"git {words[0]} failed in {self.directory}: {answer.words}",
                directory=self.directory,
            )
        return answer.out

    async def _line(self, *words: str) -> str | None:
        """The one line that git prints, or None if it fails."""
        answer = await self.ask(*words)
        return answer.out.strip() if answer.code == 0 else None

    # -- what there is

    async def working_tree(self) -> str:
        """The top of the working tree around a directory; `IsolationFailed` where there is none."""
        asked = ("--is-bare-repository", "--is-inside-work-tree", "--show-toplevel")
        answer = await self.ask("rev-parse", *asked, "--show-superproject-working-tree")
        bare, inside, top, superproject = (*answer.out.splitlines(), "", "", "", "")[:4]
        problem = None
        if not bare:
            problem = f"is not in a git repository that can be used ({answer.words})"
        elif bare == "true" and inside != "true":
            problem = "is a bare repository, without files to work on"
        elif superproject:
            problem = f"is in a submodule of {superproject}; only that repository can be isolated"
        elif not top:
            problem = f"has no working tree ({answer.words})"
        if problem is not None:
            raise IsolationFailed(
                f"{self.directory} {problem}. A git worktree needs a repository with a commit. "
                'Send metadata.opencode.isolation: "none" to work in the directory itself.',
                directory=self.directory,
            )
        return top

    async def commit(self, name: str = "HEAD") -> str | None:
        return await self._line("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")

    async def tip(self, branch: str) -> str | None:
        """The last commit of a branch; None where there is no such branch."""
        return await self.commit(f"refs/heads/{branch}")

    async def branch(self) -> str | None:
        """What is checked out; None for a detached HEAD."""
        return await self._line("symbolic-ref", "--quiet", "--short", "HEAD")

    async def has_folder(self, commit: str, folder: str) -> bool:
        return await self._line("cat-file", "-t", f"{commit}:{folder}") == "tree"

    async def checked_out_at(self, branch: str) -> str | None:
        """The working tree in which a branch is checked out."""
        directory = None
        for line in (await self.do("worktree", "list", "--porcelain", "-z")).split("\0"):
            if line.startswith("worktree "):
                directory = line.removeprefix("worktree ")
            elif line == f"branch refs/heads/{branch}":
                return directory
        return None

    async def uncommitted(self) -> tuple[str, ...]:
        """The files with changes that no commit has; not those that git is told to ignore."""
        answer = await self.do(
            "status", "--porcelain", "-z", "--untracked-files=all", "--no-renames"
        )
        return tuple(entry[3:] for entry in answer.split("\0") if entry)

    async def unmerged_files(self) -> list[str]:
        """The files with conflicts of a merge or rebase that somebody has begun."""
        answer = await self.do("diff", "--name-only", "--diff-filter=U", "-z")
        return _names(answer)

    async def commits_only_on(self, branch: str, *, tips: Sequence[str]) -> int:
        """How many commits behind these tips no other branch, tag or remote branch has."""
        if not tips:
            return 0
        # `--exclude` is for the option that follows it.
        others = (f"--exclude={branch}", "--branches", "--tags", "--remotes")
        return int(await self.do("rev-list", "--count", *tips, "--not", *others))

    async def merge_base(self, branch: str) -> str | None:
        """The last commit that HEAD and a branch have in common."""
        return await self._line("merge-base", f"refs/heads/{branch}", "HEAD")

    async def is_ancestor(self, older: str, newer: str) -> bool:
        answer = await self.ask("merge-base", "--is-ancestor", older, newer)
        return answer.code == 0

    async def changes_since(self, base: str) -> tuple[FileChange, ...]:
        """How the files differ from a commit, new ones included. Changes nothing."""
        index = (await self.do("rev-parse", "--git-path", "index")).rstrip("\n")
        with tempfile.TemporaryDirectory(prefix="opencode-a2a-") as folder:
            copy = Path(folder) / "index"
            source = Path(self.directory) / index
            with suppress(FileNotFoundError):
                copy.write_bytes(await asyncio.to_thread(source.read_bytes))
            env = {"GIT_INDEX_FILE": str(copy)}
            await self.do("add", "--all", "--intent-to-add", env=env)
            compare = ("diff", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color")
            raw = await self.do(*compare, "--raw", "--numstat", "-z", base, env=env)
            files = _listed(raw)
            shown = _with_patches(files)
            if not shown:
                return tuple(files)
            patch = await self.do(*compare, base, "--", *_literal(shown), env=env)
        return _patched(files, shown, patch)

    # -- changes

    async def add_worktree(self, directory: str, branch: str, *, at: str | None) -> None:
        """Make a worktree with a new branch `at` a commit, or with a branch that exists."""
        new = ("-b", branch, directory, at) if at is not None else (directory, branch)
        # Forced, because git may have registered one at this path that somebody has deleted.
        await self.do("worktree", "add", "--force", "--quiet", *new)

    async def remove_worktree(self, directory: str) -> None:
        # Twice forced: also one that is locked. Who calls has made sure that nothing is lost.
        await self.do("worktree", "remove", "--force", "--force", directory)

    async def delete_branch(self, branch: str, commit: str) -> None:
        """Delete a branch, unless it has moved on from this commit."""
        await self.do("update-ref", "-d", f"refs/heads/{branch}", commit)

    async def commit_all(self, message: str) -> None:
        await self.do("add", "--all")
        identity = await self._identity()
        await self.do("commit", "--quiet", "--no-verify", "-m", message, env=identity)

    async def merged_tree(self, one: str, other: str) -> tuple[str | None, list[str]]:
        """The tree of a merge, or None and the conflicting files. No working tree is touched."""
        answer = await self.ask(
            "merge-tree", "--write-tree", "--name-only", "--no-messages", "-z", one, other
        )
        if answer.code not in (0, 1):
            raise IsolationFailed(
                f"git cannot merge without touching files (that needs git 2.38): {answer.words}"
            )
        tree, *files = _names(answer.out)
        return (tree, []) if answer.code == 0 else (None, files)

    async def commit_merge(self, tree: str, parents: Sequence[str], message: str) -> str:
        words = [word for parent in parents for word in ("-p", parent)]
        identity = await self._identity()
        return (await self.do("commit-tree", tree, *words, "-m", message, env=identity)).strip()

    async def fast_forward(self, commit: str) -> Answer:
        """Move the branch that is checked out, and its files. Git refuses to overwrite changes."""
        return await self.ask("merge", "--ff-only", "--quiet", "--no-autostash", commit)

    async def move_branch(self, branch: str, commit: str, *, from_commit: str) -> Answer:
        """Move a branch that is checked out nowhere."""
        return await self.ask("update-ref", f"refs/heads/{branch}", commit, from_commit)

    async def changed_between(self, one: str, other: str) -> list[str]:
        return _names(await self.do("diff", "--name-only", "--no-renames", "-z", one, other))

    async def _identity(self) -> dict[str, str]:
        """Who commits where git does not know the user."""
        return {} if await self._line("config", "user.email") else _IDENTITY


def _environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return kept | {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"}


async def _stop(git: asyncio.subprocess.Process) -> None:
    """End git so that it can remove what it has half done."""
    with suppress(ProcessLookupError):
        git.terminate()
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await git.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            git.kill()


def _names(separated: str) -> list[str]:
    return [name for name in separated.split("\0") if name]


def _literal(names: Sequence[str]) -> list[str]:
    return [f":(top,literal){name}" for name in names]


def _listed(raw: str) -> list[FileChange]:
    """The files of a comparison, from what git prints with `--raw --numstat -z`."""
    statuses, counts = dict[str, str](), dict[str, tuple[int, int]]()
    fields = iter(_names(raw))
    for item in fields:
        if item.startswith(":"):
            statuses[next(fields)] = item.rpartition(" ")[2]
        else:
            added, deleted, name = item.split("\t", 2)
            counts[name] = (_count(added), _count(deleted))
    return [
        FileChange(
            file=name,
            additions=counts.get(name, (0, 0))[0],
            deletions=counts.get(name, (0, 0))[1],
            status=_STATUSES.get(status, "modified"),
        )
        for name, status in statuses.items()
    ]


def _count(number: str) -> int:
    return int(number) if number.isdigit() else 0  # a dash for a binary file


def _with_patches(files: Sequence[FileChange]) -> list[str]:
    """The files whose patches are shown: in order, as many as are not too much together."""
    shown, lines = list[str](), 0
    for change in files[:MAX_PATCH_FILES]:
        lines += change.additions + change.deletions
        if lines > MAX_PATCH_LINES:
            break
        shown.append(change.file)
    return shown


def _patched(
    files: Sequence[FileChange], shown: Sequence[str], patch: str
) -> tuple[FileChange, ...]:
    """The files with their patches, which git prints in the same order."""
    pieces = [f"diff --git {piece}" for piece in f"\n{patch}".split("\ndiff --git ")[1:]]
    pieces = [piece if piece.endswith("\n") else f"{piece}\n" for piece in pieces]
    if len(pieces) != len(shown):
        return tuple(files)
    patches = dict(zip(shown, pieces, strict=True))
    return tuple(
        FileChange(
            file=change.file,
            additions=change.additions,
            deletions=change.deletions,
            status=change.status,
            patch=patches.get(change.file, ""),
        )
        for change in files
    )
