"""The credentials file: who has which token, for what, and until when.

It holds the SHA-256 of each token, never the token. A slow hash, as passwords need, would protect
nothing here: nobody can guess 256 random bits, however fast a guess is. And whoever sends wrong
tokens could make the service work hard for each of them.

A writer takes a lock and replaces the file at once, so a reader sees all of a change or nothing.
The times of last use are in a file of their own: the service writes them, and never the hashes.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from .paths import make_private_directory, write_private_file

VERSION = 1
PREFIX = "oca_"  # by which people, and programs that look for leaked secrets, recognise a token
RANDOM_BYTES = 32
MAX_BYTES = 4_194_304  # of the file
MAX_NAME = 255


class CredentialsFileError(Exception):
    """The file cannot be used; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class StoredToken:
    """What is known of a token. A name has two while it is rotated."""

    id: str
    name: str
    principal: str
    sha256: str
    scopes: tuple[str, ...]  # or roles
    created_at: int  # seconds since 1970, as all times here
    expires_at: int | None = None

    def is_valid(self, now: float) -> bool:
        return self.expires_at is None or now < self.expires_at


def make_token() -> str:
    return PREFIX + secrets.token_urlsafe(RANDOM_BYTES)


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


class CredentialsFile:
    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def version(self) -> tuple[int, int, int, int] | None:
        """Another value after each change, also of its rights; None where there is no file."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size

    # -- reading

    def read(self) -> tuple[StoredToken, ...]:
        """The tokens, none if there is no file. CredentialsFileError: it cannot be used."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return ()
        except OSError as exc:
            raise CredentialsFileError(f"{self.path}: cannot be read ({exc.strerror})") from None
        with os.fdopen(descriptor, "rb") as file:
            self._check_rights(os.fstat(file.fileno()))
            text = file.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise CredentialsFileError(f"{self.path}: is larger than {MAX_BYTES} bytes")
        try:
            content = json.loads(text)
            if content["version"] != VERSION:
                raise CredentialsFileError(
                    f"{self.path}: is of version {content['version']!r}, and this program knows "
                    f"{VERSION}; use the program that wrote it"
                )
            found = tuple(_stored(each) for each in content["tokens"])
        except (ValueError, KeyError, TypeError) as exc:
            raise CredentialsFileError(
                f"{self.path}: is not a credentials file ({type(exc).__name__}). Restore it, or "
                "remove it and create the tokens again"
            ) from None
        return found

    def _check_rights(self, found: os.stat_result) -> None:
        """Refuse what others can write, who could let themselves in, and what everybody can read.

        A group may read it: root can own it, and the service be in that group.
        """
        if found.st_uid not in (0, os.geteuid()) and os.geteuid() != 0:
            raise CredentialsFileError(
                f"{self.path}: belongs to another user, who could let anybody in"
            )
        mode = stat.S_IMODE(found.st_mode)
        if mode & 0o022:
            raise CredentialsFileError(
                f"{self.path}: other users can write it, and could let anybody in. See what is in "
                f"it, then: chmod g-w,o= {self.path}"
            )
        if mode & 0o007:
            raise CredentialsFileError(
                f"{self.path}: every user can read it. Take that away: chmod o= {self.path}"
            )

    # -- writing

    def create(
        self,
        name: str,
        *,
        principal: str,
        scopes: Sequence[str],
        now: int,
        expires_at: int | None = None,
    ) -> str:
        """Add a token and return it; it cannot be shown again."""
        with self._changing(now) as tokens:
            if any(each.name == name for each in tokens):
                raise CredentialsFileError(
                    f"there is a token named {name} already. Choose another name, or: "
                    f"opencode-a2a token rotate {name}"
                )
            token, stored = _new(
                name, principal=principal, scopes=scopes, now=now, expires_at=expires_at
            )
            tokens.append(stored)
        return token

    def rotate(self, name: str, *, overlap: int, now: int, expires_at: int | None = None) -> str:
        """A new token of this name. The present ones stay valid for `overlap` more seconds.

        Unless it is said when the new one expires, it lasts as long as the one before.
        """
        with self._changing(now) as tokens:
            present = [each for each in tokens if each.name == name]
            if not present:
                raise _unknown(name)
            last = present[-1]  # two may have been made in the same second
            if expires_at is None and last.expires_at is not None:
                expires_at = now + last.expires_at - last.created_at
            token, stored = _new(
                name,
                principal=last.principal,
                scopes=last.scopes,
                now=now,
                expires_at=expires_at,
            )
            for each in present:
                end = now + overlap
                tokens[tokens.index(each)] = replace(
                    each, expires_at=end if each.expires_at is None else min(each.expires_at, end)
                )
            tokens.append(stored)
        return token

    def revoke(self, name: str, *, now: int) -> int:
        """Remove all tokens of this name; how many."""
        with self._changing(now) as tokens:
            kept = [each for each in tokens if each.name != name]
            if len(kept) == len(tokens):
                raise _unknown(name)
            removed = len(tokens) - len(kept)
            tokens[:] = kept
        return removed

    @contextmanager
    def _changing(self, now: int) -> Iterator[list[StoredToken]]:
        """The valid tokens, to be changed; they are written when the block is left."""
        try:
            with self._locked():
                tokens = [each for each in self.read() if each.is_valid(now)]
                yield tokens
                self._write({"version": VERSION, "tokens": [asdict(each) for each in tokens]})
        except OSError as exc:
            raise CredentialsFileError(f"{exc.filename or self.path}: {exc.strerror}") from None

    def _write(self, content: Mapping[str, Any]) -> None:
        """Replace the file. Whoever could read it still can, also where root writes it."""
        is_root, mode = os.geteuid() == 0, 0o600
        owner = None
        if self.path.exists():
            found = self.path.stat()
            owner = (found.st_uid if is_root else -1, found.st_gid)
            mode |= stat.S_IMODE(found.st_mode) & 0o040
        elif is_root:
            found = self.path.parent.stat()
            owner = (found.st_uid, found.st_gid)
        text = json.dumps(content, indent=1) + "\n"
        write_private_file(self.path, text, mode=mode, owner=owner, durable=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        make_private_directory(self.path.parent)
        lock = self.path.with_name(f"{self.path.name}.lock")
        # Root may work in a directory of the service, whose links it does not follow.
        flags = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(lock, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    # -- times of last use

    @property
    def _used_path(self) -> Path:
        return self.path.with_name(f"{self.path.name}.used")

    def last_used(self) -> dict[str, int]:
        """By the ids of tokens; nothing where that is not known."""
        try:
            found = json.loads(self._used_path.read_bytes())
            return {str(name): int(at) for name, at in found.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

    def note_used(self, used: Mapping[str, int]) -> None:
        """Write these times, beside those of other services with the same file. OSError."""
        known = {each.id for each in self.read()}
        before = self.last_used()
        merged = {
            name: max(used.get(name, 0), before.get(name, 0))
            for name in used.keys() | before.keys()
            if name in known
        }
        write_private_file(self._used_path, json.dumps(merged) + "\n")


def _new(
    name: str, *, principal: str, scopes: Sequence[str], now: int, expires_at: int | None
) -> tuple[str, StoredToken]:
    token = make_token()
    stored = StoredToken(
        id=secrets.token_hex(8),
        name=name,
        principal=principal,
        sha256=digest_of(token),
        scopes=tuple(scopes),
        created_at=now,
        expires_at=expires_at,
    )
    return token, stored


def _stored(entry: Mapping[str, Any]) -> StoredToken:
    """An entry of the file. KeyError, TypeError, ValueError: it is none."""
    stored = StoredToken(
        id=entry["id"],
        name=entry["name"],
        principal=entry["principal"],
        sha256=entry["sha256"],
        scopes=tuple(str(scope) for scope in entry["scopes"]),
        created_at=int(entry["created_at"]),
        expires_at=int(entry["expires_at"]) if entry["expires_at"] is not None else None,
    )
    texts: tuple[Any, ...] = (stored.id, stored.name, stored.principal)
    if not all(isinstance(text, str) and 0 < len(text) <= MAX_NAME for text in texts):
        raise ValueError
    if len(bytes.fromhex(stored.sha256)) != hashlib.sha256().digest_size:
        raise ValueError
    return stored


def _unknown(name: str) -> CredentialsFileError:
    return CredentialsFileError(
        f"there is no token named {name} that is valid. To see which there are: "
        "opencode-a2a token list"
    )
