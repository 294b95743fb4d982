"""A working tree, changed and asked by the `git` program.

`git_process.py` sees to it that git runs no program of the workspace. One thing is up to the
commands here: git must not look into submodules, where it would start itself with *their*
configuration. So they ask for commits of submodules only (`_IGNORE_CHANGES_INSIDE`), and files are
added with `update-index` instead of `add`, and committed with `commit-tree` instead of `commit`.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ..domain.values import FileChange
from ..errors import IsolationFailed, MergeRefused
from . import git
from .git_process import Answer, find_place, private_git

MAX_PATCH_LINES = 20_000  # of the files together whose patches are shown; the others are named
MAX_PATCH_FILES = 500
_IDENTITY = {
    f"GIT_{who}_{what}": text
    for who in ("AUTHOR", "COMMITTER")
    for what, text in (("NAME", "opencode-a2a"), ("EMAIL", "opencode-a2a@localhost"))
}
_STATUSES = {"A": "added", "D": "deleted"}  # everything else is a modification
_IGNORE_CHANGES_INSIDE = "--ignore-submodules=dirty"
_FILE, _SUBMODULE = "100644", "160000"  # modes


@dataclass(frozen=True, slots=True)
class Checkout:
    """The main working tree of a repository, or a linked one, or a directory in either."""

    directory: str
    workspace: Path  # in which no program is looked for

    # -- the program

    async def ask(
        self, *arguments: str, env: Mapping[str, str] | None = None, text: str | None = None
    ) -> Answer:
        """What git answers, failures included. `text` is what it reads from its input."""
        async with private_git(self.directory, self.workspace) as private:
            identity = {} if private.has_identity else _IDENTITY
            return await private.run(*arguments, env={**identity, **(env or {})}, text=text)

    async def do(
        self, *arguments: str, env: Mapping[str, str] | None = None, text: str | None = None
    ) -> str:
        """What git prints; `IsolationFailed` with its own words if it fails."""
        answer = await self.ask(*arguments, env=env, text=text)
        if answer.code != 0:
            raise IsolationFailed(
                f"git {arguments[0]} failed in {self.directory}: {answer.message}",
                directory=self.directory,
            )
        return answer.out

    async def _line(self, *arguments: str) -> str | None:
        """The one line that git prints, or None if it fails."""
        answer = await self.ask(*arguments)
        return answer.out.strip() if answer.code == 0 else None

    # -- what there is

    async def working_tree(self) -> str:
        """The top of the working tree around a directory; `IsolationFailed` where there is none."""
        async with private_git(self.directory, self.workspace) as private:
            top = private.place.top
        if top is None:
            raise IsolationFailed(
                f"{self.directory} is in a bare repository, without files to work on.",
                directory=self.directory,
            )
        return str(top)

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
        async with private_git(self.directory, self.workspace) as private:
            shared, bare = private.place.shared, private.place.top is None
        for directory, head in await asyncio.to_thread(lambda: list(git.checked_out(shared))):
            if head == f"ref: refs/heads/{branch}" and not (bare and directory == shared.parent):
                return str(directory)
        return None

    async def uncommitted(self) -> tuple[str, ...]:
        """The files with changes that no commit has; not those that git is told to ignore."""
        return tuple(map(git.readable, await self._uncommitted()))

    async def _uncommitted(self) -> list[str]:
        listing = ("status", "--porcelain", "-z", "--untracked-files=all", "--no-renames")
        answer = await self.do(*listing, _IGNORE_CHANGES_INSIDE)
        return [entry[3:] for entry in _names(answer)]

    async def has_ignored_files(self) -> bool:
        """Whether there are files that git is told to ignore, and so would not make again.

        Or of which it is told to take no notice, so that it does not see how they have changed.
        """
        command = ("ls-files", "--others", "--ignored", "--exclude-standard", "--directory", "-z")
        if await self.do(*command, "--no-empty-directory"):
            return True
        entries = _names(await self.do("ls-files", "-v", "-z"))  # h: assume-unchanged, S: skip
        unseen = [entry[2:] for entry in entries if entry[0].islower() or entry[0] == "S"]
        gone = await asyncio.to_thread(git.gone, Path(self.directory), unseen)
        return len(gone) < len(unseen)

    async def repositories_inside(self) -> list[str]:
        """Submodules that are checked out, and other repositories: no commit here has theirs."""
        top = Path(self.directory)
        found = [name for name in await self._uncommitted() if name.endswith("/")]
        for entry in _names(await self.do("ls-files", "--stage", "-z")):
            mode, name = entry[:6], entry.partition("\t")[2]
            if mode == _SUBMODULE and await asyncio.to_thread((top / name / ".git").exists):
                found.append(f"{name}/")
        return [git.readable(name) for name in found]

    async def filtered_between(self, one: str, other: str) -> list[str]:
        """The files changed between two commits that git would write through a filter."""
        written = await self._changed_between(one, other, "--diff-filter=d")
        return await self._with_program("filter", written, commit=other)

    async def merged_by_programs(self, one: str, other: str) -> list[str]:
        """The files that both sides have changed and for which a merge driver is configured."""
        base = await self._line("merge-base", one, other)
        if base is None:
            return []
        theirs = set(await self._changed_between(base, other))
        both = [name for name in await self._changed_between(base, one) if name in theirs]
        return await self._with_program("merge", both, commit=one)

    async def _with_program(
        self, attribute: str, names: Sequence[str], *, commit: str | None = None
    ) -> list[str]:
        """Those of the files for which git would run a configured program, such as Git LFS.

        The attributes that say so are those of the working tree, or of a commit.
        """
        async with private_git(self.directory, self.workspace) as private:
            drivers = private.drivers
        if not names or not drivers:
            return []
        command, text = ("check-attr", "-z", "--stdin"), _separated(names)
        if commit is None:
            answer = await self.do(*command, attribute, text=text)
        else:
            with tempfile.TemporaryDirectory(prefix="opencode-a2a-") as folder:
                env = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
                await self.do("read-tree", commit, env=env)
                answer = await self.do(*command, "--cached", attribute, env=env, text=text)
        fields = answer.split("\0")
        values = zip(fields[::3], fields[2::3], strict=False)
        return [git.readable(name) for name, value in values if f"{attribute}.{value}" in drivers]

    async def unmerged_files(self) -> list[str]:
        """The files with conflicts of a merge or rebase that somebody has begun."""
        entries = _names(await self.do("ls-files", "--unmerged", "-z"))
        return list(dict.fromkeys(git.readable(entry.partition("\t")[2]) for entry in entries))

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
        source = (await find_place(self.directory)).own / "index"
        with tempfile.TemporaryDirectory(prefix="opencode-a2a-") as folder:
            copy = Path(folder) / "index"
            with suppress(OSError):
                await asyncio.to_thread(git.copy_index, source, copy)
            env = {"GIT_INDEX_FILE": str(copy)}
            # Git compares with what the index knows: new files are put there as empty ones.
            new = _names(await self.do("ls-files", "--others", "--exclude-standard", "-z", env=env))
            empty = (await self.do("hash-object", "--stdin", text="")).strip()
            entries = (f"{_FILE} {empty}\t{name}\0" for name in new if not name.endswith("/"))
            await self.do("update-index", "-z", "--index-info", env=env, text="".join(entries))
            plain = ("--no-renames", "--no-ext-diff", "--no-textconv", "--no-color")
            compare = ("diff", *plain, _IGNORE_CHANGES_INSIDE)
            raw = await self.do(*compare, "--raw", "--numstat", "-z", base, env=env)
            files = _listed(raw)
            shown = _with_patches(files)
            # Without a name, git would compare all files.
            named = await self.do(*compare, base, "--", *_literal(shown), env=env) if shown else ""
        return _patched(files, shown, named)

    # -- changes

    async def add_worktree(self, directory: str, branch: str, *, at: str | None) -> None:
        """Make a worktree with a new branch `at` a commit, or with a branch that exists."""
        if at is not None:
            await self.do("update-ref", f"refs/heads/{branch}", at, "0" * len(at))
        shared, path = (await find_place(self.directory)).shared, Path(directory)
        try:
            place = await asyncio.to_thread(git.register, shared, path, branch)
        except OSError as exc:
            raise _file_problem("The worktree cannot be made", exc) from exc
        try:
            await replace(self, directory=directory).do("read-tree", "--reset", "-u", "HEAD")
            await asyncio.to_thread(git.unlock, place)
        except BaseException:
            with suppress(OSError):
                await asyncio.to_thread(git.remove, path)
            raise

    async def remove_worktree(self, directory: str) -> None:
        """Also one that is locked. Who calls has made sure that nothing is lost."""
        try:
            await asyncio.to_thread(git.remove, Path(directory))
        except OSError as exc:
            raise _file_problem("The worktree cannot be removed", exc) from exc

    async def delete_branch(self, branch: str, commit: str) -> None:
        """Delete a branch, unless it has moved on from this commit."""
        await self.do("update-ref", "-d", f"refs/heads/{branch}", commit)

    async def commit_all(self, branch: str, message: str) -> bool:
        """Commit what the working tree has on its branch. Whether there was something."""
        names = [name for name in await self._uncommitted() if not name.endswith("/")]
        place = await find_place(self.directory)
        others = await asyncio.to_thread(git.merge_heads, place)
        if not names and not others:
            return False
        gone = dict.fromkeys(await asyncio.to_thread(git.gone, Path(self.directory), names))
        there = [name for name in names if name not in gone]
        if filtered := await self._with_program("filter", there):
            raise MergeRefused(
                f"The attributes of the repository ask for a filter, such as Git LFS, for "
                f"{', '.join(filtered[:10])}, and this service runs none. Have the agent commit "
                "these files in the worktree, then try again.",
                files=filtered,
            )
        # First what is gone: git adds no link in place of a folder of which it still has files.
        update = ("update-index", "--add", "--remove", "--replace", "-z")
        await self.do(*update, "--force-remove", "--stdin", text=_separated(gone))
        await self.do(*update, "--stdin", text=_separated(there))
        tip = await self.tip(branch)
        tree = (await self.do("write-tree", "--missing-ok")).strip()
        if tip is None or (not others and tree == await self._line("rev-parse", f"{tip}^{{tree}}")):
            return False
        new = await self.commit_merge(tree, [tip, *others], message)
        await self.do("update-ref", "-m", "commit", f"refs/heads/{branch}", new, tip)
        await asyncio.to_thread(git.forget_merge, place)
        return True

    async def merged_tree(self, one: str, other: str) -> tuple[str | None, list[str]]:
        """The tree of a merge, or None and the conflicting files. No working tree is touched."""
        answer = await self.ask(
            "merge-tree", "--write-tree", "--name-only", "--no-messages", "-z", one, other
        )
        if answer.code not in (0, 1):
            raise IsolationFailed(
                f"git cannot merge without touching files (that needs git 2.38): {answer.message}"
            )
        tree, *files = _names(answer.out)
        return (tree, []) if answer.code == 0 else (None, [git.readable(name) for name in files])

    async def commit_merge(self, tree: str, parents: Sequence[str], message: str) -> str:
        words = [word for parent in parents for word in ("-p", parent)]
        return (await self.do("commit-tree", tree, *words, "-m", message)).strip()

    async def fast_forward(self, commit: str) -> Answer:
        """Move the branch that is checked out, and its files. Git refuses to overwrite changes."""
        place, before = await find_place(self.directory), await self.commit()
        if await asyncio.to_thread(git.has_begun, place):
            raise MergeRefused(
                f"Somebody has begun a merge, cherry-pick or revert in {self.directory}. Nothing "
                "was changed there. Have it finished or aborted, then try again."
            )
        answer = await self.ask("merge", "--ff-only", "--quiet", "--no-autostash", commit)
        if answer.code == 0 and before is not None:
            with suppress(OSError):  # it is moved already
                await asyncio.to_thread(git.remember, place, before)
        return answer

    async def move_branch(self, branch: str, commit: str, *, from_commit: str) -> Answer:
        """Move a branch that is checked out nowhere."""
        return await self.ask("update-ref", f"refs/heads/{branch}", commit, from_commit)

    async def changed_between(self, one: str, other: str) -> list[str]:
        return [git.readable(name) for name in await self._changed_between(one, other)]

    async def _changed_between(self, one: str, other: str, *options: str) -> list[str]:
        compare = ("diff-tree", "-r", "--name-only", "--no-renames", "-z", *options)
        return _names(await self.do(*compare, one, other))


def _file_problem(what: str, exc: OSError) -> IsolationFailed:
    return IsolationFailed(f"{what}: {exc.strerror or exc} ({exc.filename or 'in git'}).")


def _names(separated: str) -> list[str]:
    return [name for name in separated.split("\0") if name]


def _separated(names: Iterable[str]) -> str:
    return "".join(f"{name}\0" for name in names)


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
    patches = dict(zip(shown, pieces, strict=True)) if len(pieces) == len(shown) else {}
    return tuple(
        FileChange(
            file=git.readable(change.file),
            additions=change.additions,
            deletions=change.deletions,
            status=change.status,
            patch=git.readable(patches.get(change.file, "")),
        )
        for change in files
    )
