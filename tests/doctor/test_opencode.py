"""What can be wrong with OpenCode, produced by a fake one and by other servers."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from opencode_a2a.cli import executable
from opencode_a2a.cli.failure import CommandError
from opencode_a2a.cli.instances import RegisteredInstance
from opencode_a2a.doctor.checks import COMBINED, CombinedLook
from opencode_a2a.doctor.opencode import OPENCODE, OpenCodeLook
from opencode_a2a.doctor.site import SiteLook
from opencode_a2a.doctor.subject import OpenCodeServer, Site
from opencode_a2a.doctor.verdict import Level
from opencode_a2a.opencode.http import Endpoint
from tests.doctor.looking import answer, look, nobody, serving
from tests.fakes.opencode import FakeOpenCode, serve

HEALTH = b'{"healthy": true, "version": "1.18.33"}'
NOT_RUNNING = Site(None, why_not="No service of yours runs for this workspace.")


def at(url: str | None, password: str | None = None, command: str = "/bin/false") -> OpenCodeLook:
    endpoint = Endpoint(url, password=password) if url is not None else None
    return OpenCodeLook(OpenCodeServer(Path("/project"), endpoint, lambda: command))


def asking(opencode: OpenCodeLook, prompt: str = "Say it") -> CombinedLook:
    return CombinedLook(SiteLook(NOT_RUNNING), opencode, prompt=prompt)


async def test_all_is_well_with_an_opencode_that_works() -> None:
    async with serve(password="secret") as fake:
        look_at = at(fake.base_url, "secret")
        for name in ("opencode", "opencode password", "opencode version", "opencode events"):
            assert (await look(OPENCODE, name, look_at)).level is Level.OK
        assert (await look(OPENCODE, "provider", look_at)).says.startswith("Model: ")
        verdict = await look(COMBINED, "model", asking(look_at))
        assert (verdict.level, "it said “ECHO: Say it”" in verdict.says) == (Level.OK, True)
        assert not fake.sessions, "the session of the question is removed"


# -- the executable


async def test_an_opencode_that_cannot_be_found_or_run_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    project = tmp_path / "project"

    def find() -> str:
        try:
            return executable.find("opencode", project)
        except CommandError as exc:
            raise LookupError(str(exc)) from None

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(executable, "CHECKOUT", tmp_path)
    server = OpenCodeServer(project, None, find)
    verdict = await look(OPENCODE, "opencode executable", OpenCodeLook(server))
    assert verdict.finding == "opencode.missing"
    assert "--install-opencode" in verdict.fix
    (tmp_path / "opencode").write_text("#!/bin/sh\necho no version\n")
    (tmp_path / "opencode").chmod(0o755)
    verdict = await look(OPENCODE, "opencode executable", OpenCodeLook(server))
    assert verdict.finding == "opencode.broken"
    (tmp_path / "opencode").write_text("#!/bin/sh\necho opencode v2.0.3\n")
    verdict = await look(OPENCODE, "opencode executable", OpenCodeLook(server))
    assert (verdict.finding, "2.0.3" in verdict.says) == ("opencode.broken", True)
    nowhere = at(None, command=str(tmp_path / "nowhere"))
    assert (await look(OPENCODE, "opencode executable", nowhere)).finding == "opencode.broken"


async def test_no_executable_is_needed_where_an_opencode_runs() -> None:
    def find() -> str:
        raise LookupError("none")

    server = OpenCodeServer(Path("/project"), Endpoint("http://127.0.0.1:9"), find)
    verdict = await look(OPENCODE, "opencode executable", OpenCodeLook(server))
    assert verdict.level is Level.OK


# -- the server


async def test_an_opencode_that_is_not_there_is_found_once() -> None:
    with nobody() as url:
        look_at = at(url)
        assert (await look(OPENCODE, "opencode", look_at)).finding == "opencode.unreachable"
        for check in OPENCODE[2:]:
            verdict = await look(OPENCODE, check.name, look_at)
            assert (verdict.level, verdict.says) == (Level.UNKNOWN, "OpenCode does not answer.")
        assert (await look(COMBINED, "model", asking(look_at))).level is Level.UNKNOWN


async def test_where_up_would_start_one_nothing_is_tried() -> None:
    for check in OPENCODE[1:]:
        verdict = await look(OPENCODE, check.name, at(None))
        assert (verdict.level, "`opencode-a2a up`" in verdict.fix) == (Level.UNKNOWN, True)


async def test_what_is_not_opencode_is_found() -> None:
    async with serve() as fake:
        fake.control("fault", mode="html")
        assert (await look(OPENCODE, "opencode", at(fake.base_url))).finding == (
            "opencode.other_program"
        )
    async with serving(lambda _: answer(b"{}", status="404 Not Found")) as url:
        assert (await look(OPENCODE, "opencode", at(url))).finding == "opencode.other_program"


@pytest.mark.parametrize(
    ("version", "finding"),
    [
        ("1.16.2", "opencode.unsupported"),
        ("1.19.0", "opencode.untested"),
        ("1.17.19", "opencode.lacks"),
    ],
)
async def test_versions_outside_the_tested_range_are_found(version: str, finding: str) -> None:
    async with serve() as fake:
        fake.version = version
        verdict = await look(OPENCODE, "opencode version", at(fake.base_url))
        assert (verdict.finding, f"OpenCode {version}" in verdict.says) == (finding, True)
        if finding == "opencode.unsupported":
            for name in ("opencode events", "provider"):
                verdict = await look(OPENCODE, name, at(fake.base_url))
                assert (verdict.level, "not supported" in verdict.says) == (Level.UNKNOWN, True)


@pytest.mark.parametrize("password", [None, "wrong"])
async def test_a_wrong_or_missing_password_is_found(password: str | None) -> None:
    async with serve(password="right") as fake:
        look_at = at(fake.base_url, password)
        verdict = await look(OPENCODE, "opencode password", look_at)
        assert verdict.finding == "opencode.refuses"
        assert (await look(OPENCODE, "opencode", look_at)).level is Level.OK, "it answers"
        for name in ("opencode version", "opencode events", "provider"):
            assert (await look(OPENCODE, name, look_at)).level is Level.UNKNOWN


async def test_an_opencode_without_a_password_on_loopback_is_found() -> None:
    async with serve() as fake:
        verdict = await look(OPENCODE, "opencode password", at(fake.base_url, "unneeded"))
        assert verdict.finding == "opencode.open_here"


async def test_an_opencode_that_is_open_to_other_machines_is_found_by_its_loopback_address() -> (
    None
):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no other address")
    async with serve(host="0.0.0.0") as fake:
        verdict = await look(OPENCODE, "opencode password", at(fake.base_url))
        assert verdict.finding == "opencode.open"


async def test_an_opencode_that_up_has_started_is_asked_only_without_its_password() -> None:
    async with serve(password="only up knows") as fake:
        own = RegisteredInstance(
            "http://127.0.0.1:1", "/project", 1, "up", "1", fake.base_url, 0, "1.18.33"
        )
        server = OpenCodeServer(
            Path("/project"), Endpoint(fake.base_url), lambda: "/bin/false", managed_by=own
        )
        look_at = OpenCodeLook(server)
        for name in ("opencode", "opencode password", "opencode version"):
            assert (await look(OPENCODE, name, look_at)).level is Level.OK
        for name in ("opencode events", "provider"):
            assert (await look(OPENCODE, name, look_at)).level is Level.UNKNOWN


# -- events, provider, model, clock


def events(path: str) -> bytes:
    """Hangs up where the events should be."""
    return b"" if path.startswith("/global/event") else answer(HEALTH)


async def test_events_that_are_cut_or_do_not_come_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("opencode_a2a.doctor.opencode.EVENT_SECONDS", 1.0)
    async with serving(events) as url:
        assert (await look(OPENCODE, "opencode events", at(url))).finding == "opencode.no_events"
    async with serve() as fake:
        fake.control("stall", on=True)  # the stream is open, and nothing comes
        verdict = await look(OPENCODE, "opencode events", at(fake.base_url))
        assert verdict.finding == "opencode.no_events"


async def test_an_opencode_without_a_provider_or_with_a_broken_configuration_is_found() -> None:
    gateway = {"id": "opencode", "options": {"apiKey": "public"}}
    bodies = {
        "/global/health": HEALTH,
        "/config": b"{}",
        "/config/providers": json.dumps({"providers": [gateway]}).encode(),
    }
    async with serving(lambda path: answer(bodies[path.partition("?")[0]])) as url:
        assert (await look(OPENCODE, "provider", at(url))).finding == "provider.none"
    broken = {"name": "ConfigInvalidError", "data": {"path": "/etc/x.json", "message": "sk-1234"}}

    def respond(path: str) -> bytes:
        problem = answer(json.dumps(broken).encode(), status="500 Oops")
        return answer(HEALTH) if "health" in path else problem

    async with serving(respond) as url:
        verdict = await look(OPENCODE, "provider", at(url))
        assert (verdict.finding, "/etc/x.json" in verdict.says) == ("provider.unreadable", True)
        assert "sk-1234" not in verdict.says


@pytest.mark.parametrize("fault", ["[[error:401]]", "[[error:500]]"])
async def test_a_model_that_does_not_answer_is_found(fault: str) -> None:
    async with serve() as fake:
        verdict = await look(COMBINED, "model", asking(at(fake.base_url), fault))
        assert verdict.finding == "model.failed"
        assert not {"secret body", "x-secret"} & set(verdict.says.split())
        assert not fake.sessions


async def test_a_model_that_is_silent_is_found_and_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("opencode_a2a.doctor.question.ANSWER_SECONDS", 2.0)
    async with serve() as fake:
        verdict = await look(COMBINED, "model", asking(at(fake.base_url), "[[hang]]"))
        assert verdict.finding == "model.failed"
        assert not fake.sessions
        assert not _at_work(fake)


def _at_work(fake: FakeOpenCode) -> list[str]:
    return [run.session.id for run in fake.runs.values() if not run.task.done()]


async def test_no_model_is_asked_where_that_is_not_wanted() -> None:
    async with serve() as fake:
        combined = CombinedLook(SiteLook(NOT_RUNNING, asks=False), at(fake.base_url), asks=False)
        verdict = await look(COMBINED, "model", combined)
        assert (verdict.level, fake.counts["prompts"]) == (Level.UNKNOWN, [])
