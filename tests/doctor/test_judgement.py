"""What is right and what is wrong, decided from values."""

from __future__ import annotations

from pathlib import Path

import pytest

from opencode_a2a.doctor.judgement import (
    Answer,
    Arrival,
    Doors,
    judge_card,
    judge_certificate,
    judge_clock,
    judge_credentials,
    judge_login,
    judge_model,
    judge_open_files,
    judge_packages,
    judge_password,
    judge_peers,
    judge_python,
    judge_schema,
    judge_secret_files,
    judge_site_version,
    judge_store_size,
    judge_stream,
    judge_version,
)
from opencode_a2a.doctor.verdict import Verdict
from opencode_a2a.domain.release import Release
from opencode_a2a.store.examine import StoreFacts
from opencode_a2a.store.schema import SCHEMA

DAY = 86_400.0


def finding(verdict: Verdict | None) -> str | None:
    assert verdict is not None
    return verdict.finding


def test_a_python_that_was_not_tested_is_named() -> None:
    assert finding(judge_python((3, 11, 0))) is None
    assert finding(judge_python((3, 13, 9))) is None
    assert finding(judge_python((3, 99, 0))) == "python.untested"


@pytest.mark.parametrize(
    ("requirement", "version", "expected"),
    [
        ("orjson>=3.11,<4", "3.11", None),
        ("orjson<4,>=3.11", "3.11.4", None),
        ("orjson>=3.11,<4", "4.0.0rc1", "packages.other_version"),
        ("orjson>=3.11,<4", "3.9.15", "packages.other_version"),
        ("a2a-sdk==1.3.0", "1.3.0", None),
        ("a2a-sdk==1.3.0", "1.3", None),
        ("a2a-sdk[http-server]==1.3.0", "1.3.1", "packages.other_version"),
        ('uvloop>=0.22; python_version < "4"', "0.22.1", None),
        ("structlog", "1", None),
        ("structlog!=2.0", "2.0", "packages.other_version"),
        ("structlog>1,<=2", "2.0.0", None),
        ("structlog>=25.4", None, "packages.missing"),
    ],
)
def test_packages_are_held_against_what_is_required(
    requirement: str, version: str | None, expected: str | None
) -> None:
    assert finding(judge_packages("1", {requirement: version})) == expected


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (0o600, None),
        (0o400, None),
        (0o640, "files.group_readable"),
        (0o604, "files.readable"),
        (0o602, "files.readable"),
    ],
)
def test_who_can_use_a_file_decides(mode: int, expected: str | None) -> None:
    verdict = judge_secret_files({Path("/secrets/fine"): 0o600, Path("/secrets/it"): mode})
    assert finding(verdict) == expected
    assert ("chmod 600 /secrets/it" in verdict.fix) is (expected is not None)


@pytest.mark.parametrize(
    ("secret", "expected"),
    [
        ("test-token", "credentials.short"),
        ("  short   and padded  ".ljust(40), None),
        ("   short            ", "credentials.short"),
        ("abababababababababab", "credentials.repeats"),
        ("f3b1c09a77e2d845", None),
    ],
)
def test_a_secret_must_be_hard_to_guess(secret: str, expected: str | None) -> None:
    verdict = judge_credentials({"A2A_BEARER_TOKEN": secret}, makes_one=False)
    assert finding(verdict) == expected
    assert secret.strip() not in verdict.says


def test_only_up_can_do_without_a_credential() -> None:
    assert finding(judge_credentials({}, makes_one=True)) is None
    assert finding(judge_credentials({}, makes_one=False)) == "credentials.none"


@pytest.mark.parametrize(
    ("schema", "has_tasks", "expected"),
    [
        (SCHEMA, True, None),
        (None, False, None),
        (None, True, "store.foreign"),
        (0, True, "store.schema"),
        (9999, True, "store.schema"),
    ],
)
def test_the_schema_says_who_wrote_a_database(
    schema: int | None, has_tasks: bool, expected: str | None
) -> None:
    facts = StoreFacts(Path("tasks.db"), schema=schema, has_tasks=has_tasks)
    assert finding(judge_schema(facts)) == expected


@pytest.mark.parametrize(
    ("size", "free", "expected"),
    [
        (5_000, 10**12, None),
        (5_000, None, None),
        (5_000, 10**6, "store.full"),
        (5_000, 10**8, "store.nearly_full"),
        (5 * 10**9, 10**12, "store.large"),
        (5 * 10**9, None, "store.large"),
    ],
)
def test_a_database_needs_room(size: int, free: int | None, expected: str | None) -> None:
    facts = StoreFacts(Path("tasks.db"), size=size, free=free)
    assert finding(judge_store_size(facts)) == expected


def test_the_limit_for_open_files_is_held_against_what_is_needed() -> None:
    assert finding(judge_open_files(None, needed=9_000)) is None
    assert finding(judge_open_files(9_000, needed=9_000)) is None
    assert finding(judge_open_files(1_024, needed=9_000)) == "open_files.low"


@pytest.mark.parametrize(
    ("offset", "expected"),
    [(0.0, None), (-4.9, None), (6.0, "clock.drifts"), (-61.0, "clock.wrong")],
)
def test_a_clock_is_compared_with_that_of_the_service(offset: float, expected: str | None) -> None:
    verdict = judge_clock(10 * DAY, 0.0, offset)
    assert finding(verdict) == expected
    if expected:
        assert f"{'behind' if offset > 0 else 'ahead of'} that of the service" in verdict.says


def test_a_clock_before_the_installation_is_wrong_whatever_others_say() -> None:
    assert finding(judge_clock(10 * DAY, 12 * DAY, 0.0)) == "clock.wrong"
    assert finding(judge_clock(10 * DAY, 10.5 * DAY, None)) is None


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("1.18.33", None),
        ("1.18.99", None),
        ("1.17.19", "opencode.lacks"),
        ("2.0.15", None),
        ("1.15.13", "opencode.unsupported"),
        ("2.0.14", "opencode.unsupported"),
        ("1.19.0", "opencode.untested"),
        ("local", None),
    ],
)
def test_a_version_of_opencode_is_held_against_the_tested_ones(
    version: str, expected: str | None
) -> None:
    assert finding(judge_version(Release.named(version))) == expected


@pytest.mark.parametrize(
    ("doors", "expected"),
    [
        (Doors(without_password=False, with_password=True, from_elsewhere=False), None),
        (Doors(False, None, False, managed=True), None),
        (Doors(False, None, False), "opencode.refuses"),
        (Doors(False, False, False), "opencode.refuses"),
        (Doors(True, None, False), "opencode.open_here"),
        (Doors(True, None, True), "opencode.open"),
        (Doors(True, None, True, managed=True), "opencode.open"),
    ],
)
def test_an_open_opencode_is_worse_than_a_closed_one(doors: Doors, expected: str | None) -> None:
    assert finding(judge_password(doors)) == expected


def test_what_the_model_was_asked_is_said() -> None:
    fine = judge_model(Answer("Say a", "a\n b", seconds=1.25))
    assert (fine.finding, fine.says) == (None, "Asked “Say a”; it said “a b” after 1.2 s.")
    assert finding(judge_model(Answer("Say a", "  \n"))) == "model.failed"
    failed = judge_model(Answer("Say a", problem="No quota."))
    assert (failed.finding, failed.says) == ("model.failed", "Asked “Say a”. No quota.")
    assert len(judge_model(Answer("Say a", "word " * 100)).says) < 120


def test_cards_are_compared_member_by_member() -> None:
    card = {"name": "a", "version": "1", "skills": [1]}
    assert finding(judge_card(card, dict(card))) is None
    verdict = judge_card(card, {"name": "b", "version": "1", "url": "u"})
    assert verdict.finding == "service.other_card"
    assert "name, skills, url" in verdict.says


@pytest.mark.parametrize(
    ("without", "with_login", "expected"),
    [
        (401, 200, None),
        (401, None, None),
        (401, 503, None),
        (401, 401, "service.refuses"),
        (401, 403, "service.refuses"),
        (200, 200, "service.open"),
    ],
)
def test_a_credential_must_be_needed_and_accepted(
    without: int, with_login: int | None, expected: str | None
) -> None:
    assert finding(judge_login(without, with_login)) == expected


def test_another_version_that_runs_is_named() -> None:
    assert finding(judge_site_version("1.2.3", "1.2.3", ["1.0"])) is None
    assert finding(judge_site_version("1.2.2", "1.2.3", ["1.0"])) == "service.other_version"


@pytest.mark.parametrize(
    ("days", "expected"),
    [(90, None), (21, None), (20.9, "tls.ends_soon"), (3, "tls.ends_soon"), (2.9, "tls.ends_now")],
)
def test_a_certificate_has_days_left(days: float, expected: str | None) -> None:
    assert finding(judge_certificate(days * DAY)) == expected


def arrivals(*times: tuple[float, float | None]) -> list[Arrival]:
    return [Arrival(at, written) for at, written in times]


def test_events_that_arrive_together_but_were_written_apart_were_held_back() -> None:
    apart = arrivals((5.0, 100.0), (5.4, None), (6.0, 101.0))
    assert finding(judge_stream(apart, ended=True)) is None
    together = arrivals((6.0, 100.0), (6.0, None), (6.01, 101.0))
    assert finding(judge_stream(together, ended=True)) == "stream.buffered"
    assert finding(judge_stream(apart[:2], ended=False)) == "stream.cut"


def test_a_gap_that_is_too_small_says_nothing() -> None:
    assert judge_stream(arrivals((5.0, 100.0), (5.1, 100.1)), ended=True) is None
    assert judge_stream(arrivals((5.0, 100.0), (5.0, 100.9)), ended=True) is None
    assert finding(judge_stream(arrivals((5.0, 100.0), (5.3, 100.3)), ended=True)) is None
    assert judge_stream(arrivals((5.0, 100.0)), ended=True) is None
    assert judge_stream([], ended=True) is None


def test_a_peer_that_is_away_is_less_than_one_that_refuses() -> None:
    assert finding(judge_peers({}, count=0)) is None
    assert finding(judge_peers({}, count=2)) is None
    away = {"a": (True, "Nobody is there.")}
    assert finding(judge_peers(away, count=2)) == "peers.unreachable"
    assert finding(judge_peers(away | {"b": (False, "No.")}, count=2)) == "peers.refuses"
