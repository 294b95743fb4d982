"""A small disk that is full for a while, and then is not."""

from __future__ import annotations

import errno
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SIZE = "32m"


class SmallDisk:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    @classmethod
    @contextmanager
    def mounted(cls, at: Path) -> Iterator[SmallDisk]:
        at.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(at)]
        subprocess.run(mount, check=True, capture_output=True)
        try:
            yield cls(at)
        finally:
            subprocess.run(["umount", "-l", str(at)], check=True)

    @classmethod
    def possible(cls) -> bool:
        """Whether one can be made here: that takes the right to mount."""
        try:
            with (
                tempfile.TemporaryDirectory(prefix="chaos-") as name,
                cls.mounted(Path(name) / "disk"),
            ):
                return True
        except (OSError, subprocess.CalledProcessError):
            return False

    def fill(self) -> None:
        with self._ballast.open("ab", buffering=0) as ballast:
            try:
                while True:
                    ballast.write(bytes(4096))
            except OSError as exc:
                if exc.errno != errno.ENOSPC:
                    raise

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)
