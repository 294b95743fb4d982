"""The log: in either form one line per event, and nothing of a stranger's can pass for one."""

from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from opencode_a2a import logs
from tests import logging_for_tests

FORMS = {"logfmt": ("console", False), "terminal": ("console", True), "json": ("json", False)}
COLOURS = "\x1b["
# New lines of all kinds, a bell, colours, a cursor that moves, text that runs backwards or is
# invisible, half a character.
NASTY = "a\nb\r\x07\x1b[31mred\x1b[0m\x85\u2028\u2029\x0b\x7f\u202e\u2066\u200b\ufeff\x00\ud800 end"


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    handlers = list(logging.root.handlers)
    yield
    logging.root.handlers[:] = handlers
    logging_for_tests.configure()


def logged(form: str, level: str = "debug", **facts: object) -> str:
    name, colours = FORMS[form]
    stream = io.StringIO()
    logs.configure(level, name, stream, colours=colours)
    structlog.get_logger().info("request", **facts)
    return stream.getvalue()


def plain(text: str) -> str:
    """Without the colours that the terminal form writes itself."""
    for code in ("0", "1", "2", "31", "32", "33", "34", "35", "36"):
        text = text.replace(f"\x1b[{code}m", "")
    return text


def assert_harmless(form: str, said: str) -> None:
    lines = (plain(said) if form == "terminal" else said).split("\n")
    assert lines.pop() == ""
    assert len(lines) == 1
    assert lines[0].isprintable()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("char", NASTY)
def test_no_control_character_reaches_the_log(form: str, char: str) -> None:
    assert_harmless(form, logged(form, path=f"/x{char}level=error event=forged", method=char))
    assert_harmless(form, logged(form, names=[f"x{char}y"], facts={"a": f"x{char}"}))
    assert_harmless(form, logged(form, path=Path(f"/x{char}y")))


@pytest.mark.parametrize("form", FORMS)
@given(text=st.text(max_size=40))
def test_any_text_is_one_line(form: str, text: str) -> None:
    assert_harmless(form, logged(form, reason=text))


def test_json_tells_exactly_what_was_said() -> None:
    line = logged("json", path=NASTY, status=200, ms=1.5, principal=None, done=True)
    found = json.loads(line)
    assert list(found)[:3] == ["timestamp", "level", "event"]
    assert found.pop("timestamp").endswith("Z")
    assert found == {
        "level": "info",
        "event": "request",
        "path": NASTY,
        "status": 200,
        "ms": 1.5,
        "principal": None,
        "done": True,
    }


def test_ordinary_text_is_left_as_it_is() -> None:
    assert "title=Übung" in logged("logfmt", title="Übung", n=3)
    assert 'reason="disk full"' in logged("logfmt", reason="disk full")


@pytest.mark.parametrize("form", FORMS)
def test_a_traceback_cannot_forge_a_line(form: str) -> None:
    name, colours = FORMS[form]
    stream = io.StringIO()
    logs.configure("info", name, stream, colours=colours)
    forged = "x\x1b[2J\ntimestamp=2026-01-01T00:00:00Z level=info event=forged"
    try:
        raise RuntimeError(forged)
    except RuntimeError:
        structlog.get_logger().exception("request.internal_error")
    said = plain(stream.getvalue()) if form == "terminal" else stream.getvalue()
    first, *rest = said.removesuffix("\n").split("\n")
    assert "request.internal_error" in first
    assert "\x1b" not in said
    assert all(line.startswith("    ") for line in rest)
    assert bool(rest) == (form == "terminal")
    assert "RuntimeError" in said


@pytest.mark.parametrize("form", FORMS)
def test_what_a_library_says_goes_the_same_way(form: str) -> None:
    name, colours = FORMS[form]
    stream = io.StringIO()
    logs.configure("info", name, stream, colours=colours)
    logging.getLogger("asyncio").error("a task failed: %s", "x\ny\x1b")
    assert_harmless(form, stream.getvalue())
    assert "asyncio" in stream.getvalue()
    assert "a task failed" in stream.getvalue()


def test_a_secret_is_in_no_line() -> None:
    secret = "a-secret-of-this-test"
    logs.redactor.add(secret)
    for form in FORMS:
        said = logged(form, reason=f"login {secret} failed", facts={"inner": [secret]})
        assert secret not in said
        assert "[redacted]" in said


def test_the_level_counts() -> None:
    level = logging.getLogger("opencode_a2a")
    assert logged("logfmt", "warning") == ""
    assert not level.isEnabledFor(logging.INFO)
    assert logged("logfmt", "info") != ""
    assert level.isEnabledFor(logging.INFO)
    assert not level.isEnabledFor(logging.DEBUG)


ODD_SECRETS = [
    'ab\\cd"ef-secret-123',
    "it's-a-secret'x",
    "secret-with-a\ttab-in-it",
    "wört'\"geheim\u202e",
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("secret", ODD_SECRETS)
def test_a_secret_is_hidden_whatever_a_form_does_to_its_characters(form: str, secret: str) -> None:
    """It is looked for before anything is quoted or escaped."""
    logs.redactor.add(secret)
    values: list[object] = [secret, f"so: {secret}.", [secret], {"a": {secret: (secret,)}}]
    for value in [
        *values,
        Path(f"/x/{secret}"),
        ValueError(secret),
        KeyError(secret),
        secret.encode(),
    ]:
        said = logged(form, reason=value)
        assert said.count("[redacted]") == (2 if isinstance(value, dict) else 1), said
        for piece in ("secret", "geheim"):
            assert piece not in said


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("secret", ODD_SECRETS)
def test_a_secret_is_in_no_traceback(form: str, secret: str) -> None:
    logs.redactor.add(secret)
    name, colours = FORMS[form]
    stream = io.StringIO()
    logs.configure("info", name, stream, colours=colours)
    for error in (RuntimeError(f"no {secret}"), KeyError(secret), KeyError(f"'{secret}\"")):
        try:
            raise error
        except (RuntimeError, KeyError):
            structlog.get_logger().exception("request.internal_error")
    said = stream.getvalue()
    assert said.count("Traceback") == 3
    assert said.count("[redacted]") == 3
    assert secret[-6:] not in said


@pytest.mark.parametrize("form", FORMS)
def test_what_looks_like_the_beginning_of_a_key_hides_its_value_and_nothing_else(form: str) -> None:
    said = logged(form, path="/-----BEGIN PRIVATE KEY-----", facts=["https://u:p@h", 1], status=404)
    assert "BEGIN" not in said
    assert "u:p@" not in said
    for name in ("path", "facts", "status", "level"):
        assert name in said or form == "terminal"
    assert "404" in said
    if form == "json":
        found = json.loads(said)
        assert (found["path"], found["status"]) == ("/[redacted]", 404)
        assert found["facts"] == ["https://u:[redacted]@h", 1]


def test_a_value_without_end_is_shown_up_to_a_depth() -> None:
    endless: list[object] = ["x"]
    endless.append(endless)
    assert json.loads(logged("json", facts=endless))["facts"][1][1][0] == "x"


@pytest.mark.parametrize(
    ("level", "shown"),
    [(30, "warning"), (35, "warning"), (49, "error"), (50, "critical"), (99, "critical")],
)
def test_a_library_may_have_levels_of_its_own(level: int, shown: str) -> None:
    stream = io.StringIO()
    logs.configure("info", "json", stream)
    logging.getLogger("asyncio").log(level, "hello")
    assert json.loads(stream.getvalue())["level"] == shown


def test_a_library_whose_arguments_do_not_fit_is_not_disturbed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stream = io.StringIO()
    logging.root.handlers.clear()  # pytest's own raises
    logs.configure("info", "json", stream)
    logging.getLogger("asyncio").error("%d of %d", "hunter2")
    assert json.loads(stream.getvalue())["message"] == "%d of %d (with arguments that do not fit)"
    assert "hunter2" not in capsys.readouterr().err


@pytest.mark.parametrize("form", FORMS)
def test_a_log_that_cannot_be_written_does_not_disturb_the_service(form: str) -> None:
    """The disk is full (/dev/full says so), or the reader of the pipe has left."""
    name, colours = FORMS[form]
    closed = io.StringIO()
    closed.close()
    with Path("/dev/full").open("w", buffering=1) as full:
        for stream in (full, closed):
            logs.configure("debug", name, stream, colours=colours)
            structlog.get_logger().info("x")
            try:
                raise ValueError("x")
            except ValueError:
                structlog.get_logger().exception("x")
            logging.getLogger("asyncio").error("x")
        with suppress(OSError):  # what was not written is tried again
            full.close()


@pytest.mark.parametrize("form", ["console", "json"])
def test_the_journal_gets_the_level_as_it_reads_it_and_no_second_time(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "journal").open("w+") as stream:
        file = os.fstat(stream.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{file.st_dev}:{file.st_ino}")
        logs.configure("debug", form, stream)
        log = structlog.get_logger()
        for level in ("debug", "info", "warning", "error", "critical"):
            getattr(log, level)("request", status=200)
        log.log(logging.WARNING, "request", status=200)
        try:
            raise ValueError
        except ValueError:
            log.exception("request")
        stream.flush()
        stream.seek(0)
        lines = stream.read().splitlines()
    assert [line[:3] for line in lines] == ["<7>", "<6>", "<4>", "<3>", "<2>", "<4>", "<3>"]
    if form == "console":
        assert lines[1] == "<6>level=info event=request status=200"
    else:
        assert list(json.loads(lines[1][3:])) == ["timestamp", "level", "event", "status"]
