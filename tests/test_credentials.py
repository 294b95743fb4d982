"""The credentials file: what is in it, who may write it, and what becomes of two writers."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from opencode_a2a.credentials import CredentialsFile, CredentialsFileError, StoredToken

NOW = 1_000_000


@pytest.fixture
def file(tmp_path: Path) -> CredentialsFile:
    return CredentialsFile(tmp_path / "folder" / "credentials.json")


def create(file: CredentialsFile, name: str = "ci", **more: int | None) -> str:
    return file.create(name, principal=name, scopes=["tasks:read"], now=NOW, **more)


def valid(file: CredentialsFile, token: str, now: int = NOW) -> bool:
    digest = hashlib.sha256(token.encode()).hexdigest()
    return any(each.sha256 == digest and each.is_valid(now) for each in file.read())


def test_a_token_has_256_random_bits_and_only_its_hash_is_kept(file: CredentialsFile) -> None:
    token = create(file)
    assert len(token.removeprefix("oca_")) == 43
    assert token not in file.path.read_text()
    assert valid(file, token)
    assert create(file, "other") != token


def test_the_file_is_for_its_user_alone(file: CredentialsFile) -> None:
    create(file)
    for path in (file.path, file.path.parent):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077
    file.path.chmod(0o644)
    with pytest.raises(CredentialsFileError, match="every user can read it"):
        file.read()


def test_a_group_that_may_read_it_still_may_after_a_change(file: CredentialsFile) -> None:
    create(file)
    os.chown(file.path, -1, os.getgid())
    file.path.chmod(0o640)
    file.read()
    file.revoke("ci", now=NOW)
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o640


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another group")
def test_what_root_revokes_the_service_can_still_read(file: CredentialsFile) -> None:
    create(file)
    os.chown(file.path, 0, 65534)
    file.path.chmod(0o640)
    file.revoke("ci", now=NOW)
    found = file.path.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (0, 65534, 0o640)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_can_write_is_refused(file: CredentialsFile, mode: int) -> None:
    create(file)
    file.path.chmod(mode)
    with pytest.raises(CredentialsFileError, match="chmod g-w,o="):
        file.read()
    with pytest.raises(CredentialsFileError):
        create(file, "other")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"version": 1}',
        '{"version": 1, "tokens": [{}]}',
        '{"version": 1, "tokens": 7}',
        "\xff",
    ],
)
def test_what_is_no_credentials_file_is_refused_and_left_as_it_is(
    file: CredentialsFile, text: str
) -> None:
    create(file)
    file.path.write_bytes(text.encode("latin-1"))
    with pytest.raises(CredentialsFileError, match="is not a credentials file"):
        create(file, "other")
    assert file.path.read_bytes() == text.encode("latin-1")


def test_a_file_of_a_later_version_is_left_alone(file: CredentialsFile) -> None:
    file.path.parent.mkdir()
    file.path.write_text('{"version": 2, "tokens": []}')
    file.path.chmod(0o600)
    with pytest.raises(CredentialsFileError, match="version 2"):
        file.read()


def test_both_tokens_are_valid_while_one_replaces_the_other(file: CredentialsFile) -> None:
    first = create(file)
    second = file.rotate("ci", overlap=60, now=NOW)
    assert valid(file, first, NOW + 59)
    assert not valid(file, first, NOW + 60)
    assert valid(file, second, NOW + 10**9)
    third = file.rotate("ci", overlap=3600, now=NOW + 30)
    assert not valid(file, first, NOW + 60)  # no longer than was said before
    assert valid(file, second, NOW + 60)
    assert valid(file, third, NOW + 60)
    assert {each.principal for each in file.read()} == {"ci"}


def test_a_new_token_lasts_as_long_as_the_one_before(file: CredentialsFile) -> None:
    create(file, expires_at=NOW + 90)
    later = file.rotate("ci", overlap=0, now=NOW + 50)
    assert valid(file, later, NOW + 139)
    assert not valid(file, later, NOW + 140)


def test_of_two_tokens_of_one_second_the_later_one_is_followed(file: CredentialsFile) -> None:
    create(file)
    file.rotate("ci", overlap=60, now=NOW)
    third = file.rotate("ci", overlap=60, now=NOW)
    assert valid(file, third, NOW + 10**9)


def test_the_name_of_an_expired_token_is_free(file: CredentialsFile) -> None:
    create(file, expires_at=NOW + 1)
    file.create("ci", principal="ci", scopes=["tasks:read"], now=NOW + 5)
    assert [each.created_at for each in file.read()] == [NOW + 5]


def test_revoking_takes_all_tokens_of_a_name(file: CredentialsFile) -> None:
    tokens = [create(file), file.rotate("ci", overlap=60, now=NOW), create(file, "other")]
    assert file.revoke("ci", now=NOW) == 2
    assert [valid(file, token) for token in tokens] == [False, False, True]
    with pytest.raises(CredentialsFileError, match="no token named ci"):
        file.revoke("ci", now=NOW)
    with pytest.raises(CredentialsFileError, match="no token named ci"):
        file.rotate("ci", overlap=0, now=NOW)


def test_what_has_expired_is_removed_with_the_next_change(file: CredentialsFile) -> None:
    create(file, expires_at=NOW + 1)
    file.create("other", principal="other", scopes=[], now=NOW + 5)
    assert [each.name for each in file.read()] == ["other"]


def test_of_many_writers_none_is_lost(file: CredentialsFile) -> None:
    names = [f"caller-{number}" for number in range(24)]
    with ThreadPoolExecutor(8) as pool:  # each opens the lock by itself, as a process would
        list(pool.map(lambda name: create(file, name), names))
    assert sorted(each.name for each in file.read()) == sorted(names)
    left = {each.name for each in file.path.parent.iterdir()}
    assert left == {"credentials.json", "credentials.json.lock"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can write for another user")
def test_root_can_write_it_for_the_user_of_the_service(file: CredentialsFile) -> None:
    file.path.parent.mkdir()
    os.chown(file.path.parent, 65534, 65534)
    create(file)
    file.rotate("ci", overlap=0, now=NOW)
    assert file.path.stat().st_uid == 65534


def test_a_link_in_the_place_of_the_lock_is_not_followed(file: CredentialsFile) -> None:
    create(file)
    lock = file.path.with_name("credentials.json.lock")
    lock.unlink()
    lock.symlink_to(file.path.parent / "elsewhere")
    with pytest.raises(CredentialsFileError):
        create(file, "other")
    assert not (file.path.parent / "elsewhere").exists()


def test_times_of_use_stand_beside_the_hashes(file: CredentialsFile) -> None:
    create(file)
    [stored] = file.read()
    before = file.version
    file.note_used({stored.id: NOW + 5, "unknown": NOW})
    file.note_used({stored.id: NOW + 3})  # another service, a little behind
    assert file.last_used() == {stored.id: NOW + 5}
    assert file.version == before
    (file.path.parent / "credentials.json.used").write_text("broken")
    assert file.last_used() == {}


def test_a_change_can_be_seen_without_reading(file: CredentialsFile) -> None:
    assert file.version is None
    assert file.read() == ()
    create(file)
    first = file.version
    create(file, "other")
    assert file.version not in (None, first)


def test_a_change_of_the_rights_can_be_seen_too(file: CredentialsFile) -> None:
    create(file)
    before = file.version
    file.path.chmod(0o640)
    assert file.version != before


def test_an_entry_reads_back_as_it_was_written(file: CredentialsFile) -> None:
    create(file, expires_at=NOW + 60)
    [stored] = file.read()
    assert stored == StoredToken(
        **{**json.loads(file.path.read_text())["tokens"][0], "scopes": ("tasks:read",)}
    )
