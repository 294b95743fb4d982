"""The audit log: what a line says, and that lines get to where they should."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.contextvars import bound_contextvars

from opencode_a2a.domain.values import Caller
from opencode_a2a.errors import AuthorizationForbidden, Internal
from opencode_a2a.extensions.audit import acted_as_admin
from opencode_a2a.observe import audit, metrics
from opencode_a2a.observe.audit import Actor, AuditLog, File, Journal, open_output
from opencode_a2a.redaction import Redactor


def value(name: str) -> float:
    return metrics.REGISTRY.get_sample_value(f"{metrics.PREFIX}{name}") or 0.0


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    """The audit log of this process."""
    path, redactor = tmp_path / "audit.log", Redactor()
    redactor.add("hunter2-hunter2")
    audit.process.log = AuditLog(open_output(str(path)), redactor.value)
    yield path
    audit.process.log.output.close()
    audit.process.log = None


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_line_says_who_did_what_on_what_and_how_it_ended(file: Path) -> None:
    with bound_contextvars(request="r1", task="t1", unrelated="x"):
        audit.record("CancelTask", outcome="ok", by=Actor("alice", "192.0.2.7"), reply="once")
    (line,) = lines(file)
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "act": "CancelTask",
        "outcome": "ok",
        "principal": "alice",
        "address": "192.0.2.7",
        "request": "r1",
        "task": "t1",
        "reply": "once",
    }


def test_an_admin_is_allowed_what_may_still_fail(file: Path) -> None:
    caller = Caller("ops", frozenset({"admin"}))
    acted_as_admin(caller, action="cancel task", target="t1", owner="alice")
    (line,) = lines(file)
    assert (line["act"], line["outcome"], line["owner"]) == ("admin", "allowed", "alice")


def test_a_request_that_was_refused_is_there_too_without_its_content(file: Path) -> None:
    params = {"id": "t1", "message": {"parts": [{"text": "my words"}]}, "session_id": ["no text"]}
    with pytest.raises(AuthorizationForbidden), audit.acting("CancelTask", params):
        audit.note(command_sha256="ab12")
        raise AuthorizationForbidden("no", required_scope="tasks:write")
    (line,) = lines(file)
    assert (line["outcome"], line["id"]) == ("AUTHORIZATION_FORBIDDEN", "t1")
    assert line["command_sha256"] == "ab12"
    assert "my words" not in str(line)
    assert "session_id" not in line


def test_no_secret_and_no_second_line_gets_in(file: Path) -> None:
    audit.record("login", outcome="refused", path="/hunter2-hunter2\n{}", name="x" * 1000)
    (line,) = lines(file)
    assert "hunter2" not in str(line)
    assert len(line["name"]) == 200


def test_the_file_is_for_its_user_only_and_is_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    for line in (b"one", b"two"):
        with closing(File(path)) as log:
            log.write(line)
    assert path.read_bytes() == b"one\ntwo\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_that_was_moved_away_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.log"
    with closing(File(path)) as log:
        log.write(b"one")
        path.rename(tmp_path / "audit.log.1")
        log.write(b"two")
    assert (tmp_path / "audit.log.1").read_bytes() == b"one\n"
    assert path.read_bytes() == b"two\n"


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "audit.log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"audit\.log"):
        open_output(str(tmp_path / "audit.log"))


def test_the_journal_gets_a_line_as_its_message(tmp_path: Path) -> None:
    address = str(tmp_path / "journal")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.settimeout(10)
        journal.bind(address)
        with closing(Journal(address)) as log:
            log.write(b'{"act":"login"}')
        said = journal.recv(4096)
    assert b"SYSLOG_IDENTIFIER=opencode-a2a-audit\n" in said
    assert said.endswith(b"MESSAGE\n\x0f\0\0\0\0\0\0\0" + b'{"act":"login"}\n')


def test_a_journal_that_does_not_read_is_not_waited_for(tmp_path: Path) -> None:
    address = str(tmp_path / "journal")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(address)
        with closing(Journal(address)) as log, pytest.raises(BlockingIOError):
            for _ in range(100_000):  # its queue is shorter
                log.write(b"x" * 1000)


def test_a_journal_that_was_restarted_is_found_again(tmp_path: Path) -> None:
    address = tmp_path / "journal"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as first:
        first.bind(str(address))
        log = Journal(str(address))
    address.unlink()
    with closing(log), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as second:
        second.settimeout(10)
        second.bind(str(address))
        log.write(b"after the restart")
        assert b"after the restart" in second.recv(4096)


def test_a_pipe_is_refused_because_it_could_stop_the_service(tmp_path: Path) -> None:
    pipe = tmp_path / "audit.log"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(OSError, match="not a regular file"):
            File(pipe)
    finally:
        os.close(reader)


@contextmanager
def no_room(size: int) -> Iterator[None]:
    """Files do not grow beyond this size, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def test_a_line_that_did_not_fit_is_completed_when_there_is_room(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    with closing(File(path)) as log:
        log.write(b"one")
        with no_room(6), pytest.raises(OSError, match="too large"):
            log.write(b"two")
        log.write(b"three")
        log.write(b"four")
    assert path.read_bytes() == b"one\ntwo\nthree\nfour\n"


def test_a_full_disk_does_not_keep_the_service_from_ending(tmp_path: Path) -> None:
    log = File(tmp_path / "audit.log")
    with no_room(2):
        with pytest.raises(OSError, match="too large"):
            log.write(b"one")
        log.close()


def test_a_value_that_json_cannot_hold_is_counted_and_the_request_goes_on(file: Path) -> None:
    before = value("audit_errors_total")
    with audit.acting("CancelTask", {}):
        audit.note(target="\udcff")
    assert value("audit_errors_total") == before + 1
    assert lines(file) == []


def test_what_is_done_is_written_at_once_and_not_again_when_its_answer_fails(file: Path) -> None:
    with pytest.raises(RuntimeError), audit.acting("SendMessage", {"id": "t1"}):
        audit.done()
        assert [line["outcome"] for line in lines(file)] == ["ok"]
        raise RuntimeError("the client has left")
    assert len(lines(file)) == 1


def test_an_error_of_the_service_is_called_as_everywhere(file: Path) -> None:
    with pytest.raises(RuntimeError), audit.acting("CancelTask", {}):
        raise RuntimeError("a bug")
    assert [line["outcome"] for line in lines(file)] == [Internal.type]


class Full:
    """A disk without room."""

    def write(self, line: bytes) -> None:
        raise OSError(28, "No space left on device")

    def reopen(self) -> None:
        raise OSError(28, "No space left on device")

    def close(self) -> None:
        """There is nothing open."""


def test_a_line_that_cannot_be_written_is_counted_and_the_service_goes_on() -> None:
    audit.process.log = AuditLog(Full(), lambda value: value)
    try:
        before = value("audit_errors_total")
        audit.record("CancelTask", outcome="ok")
        audit.record("CancelTask", outcome="ok")
    finally:
        audit.process.log = None
    assert value("audit_errors_total") == before + 2


def test_without_an_audit_log_nothing_is_written() -> None:
    with audit.acting("CancelTask", {"id": "t"}):
        audit.note(more="x")
    audit.record("login", outcome="refused")
