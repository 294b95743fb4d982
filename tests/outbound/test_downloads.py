"""Files that an agent hands over, where a person wants to have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from opencode_a2a.outbound.downloads import file_name, write_file
from opencode_a2a.outbound.transcript import File


@pytest.mark.parametrize(
    ("name", "url", "media_type", "kept"),
    [
        ("report.pdf", None, "application/pdf", "report.pdf"),
        ("../../etc/passwd", None, "", "passwd"),
        ("..\\..\\boot.ini", None, "", "boot.ini"),
        ("/etc/cron.d/x", None, "", "x"),
        (".bashrc", None, "", "bashrc"),
        ("..", None, "", "file"),
        ("-rf *;\x1b[2J\n.txt", None, "", "rf ____2J_.txt"),
        ("a\0b", None, "", "a_b"),
        ("ünïcode 文.txt", None, "", "ünïcode 文.txt"),
        ("", None, "image/png", "file.png"),
        ("", "https://x.example/files/plot.svg?size=3", "", "plot.svg"),
        ("", "https://x.example/", "text/plain", "file.txt"),
        ("x" * 400 + ".tar.gz", None, "", "x" * 100 + ".gz"),
    ],
)
def test_a_name_stays_in_its_directory(
    name: str, url: str | None, media_type: str, kept: str
) -> None:
    assert file_name(File(name, media_type, url)) == kept


def test_nothing_is_overwritten_and_no_link_is_followed(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    assert write_file(folder, "a.txt", b"1") == folder / "a.txt"
    (folder / "a-2.txt").symlink_to(tmp_path / "elsewhere")
    assert write_file(folder, "a.txt", b"2") == folder / "a-3.txt"
    assert [(folder / name).read_bytes() for name in ("a.txt", "a-3.txt")] == [b"1", b"2"]
    assert list(tmp_path.iterdir()) == [tmp_path / "new"]
