"""The declared tables, the drivers and the documentation agree. Nothing is installed here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop import report
from tests.interop.declared import CLIENTS, OPENCODE_VERSIONS, STEPS
from tests.interop.steps import ANSWER, GRANTED, LONG_ANSWER, Step, Verdict, judge, steps

PLANNED = {step.name: step for step in steps("someone", "OpenCode")}


def test_every_client_has_a_driver_and_every_driver_a_client() -> None:
    drivers = {
        path.name for path in (Path(__file__).parent / "clients").iterdir() if path.is_file()
    }
    assert drivers == {client.driver for client in CLIENTS}


def test_the_results_are_those_of_the_declared_versions() -> None:
    results = report.read()
    tried = {name: row["packages"] for name, row in results["clients"]["rows"].items()}
    assert tried == {client.name: list(client.packages) for client in CLIENTS}
    assert set(results["opencode"]["rows"]) == set(OPENCODE_VERSIONS)


def test_every_result_has_every_step() -> None:
    for row in report.read()["clients"]["rows"].values():
        assert "problem" in row or tuple(row["steps"]) == STEPS


def test_the_page_shows_the_results() -> None:
    page = report.PAGE.read_text(encoding="utf-8")
    assert report.with_tables(page, report.read()) == page


def test_a_page_without_a_place_for_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match="interop: clients"):
        report.with_tables("# Compatibility\n", report.read())


@pytest.mark.parametrize(
    ("step", "shown", "sessions", "verdict"),
    [
        ("ask", ANSWER, ["a"], Verdict("yes")),
        ("ask", f"{ANSWER}\n", ["a"], Verdict("yes")),
        (
            "ask",
            f"thought {ANSWER}",
            ["a"],
            Verdict("no", f'shows more than the answer: "thought {ANSWER}"'),
        ),
        ("ask", "", ["a"], Verdict("no", 'does not show the answer: ""')),
        ("stream", [LONG_ANSWER[:20], LONG_ANSWER[20:]], ["a"], Verdict("yes")),
        ("stream", [LONG_ANSWER], ["a"], Verdict("partly", "the answer comes in one piece")),
        ("continue", ["The first answer.", "The second answer."], ["a", "a"], Verdict("yes")),
        (
            "continue",
            ["The first answer.", "The second answer."],
            ["a", "b"],
            Verdict("no", "the messages reach different sessions"),
        ),
        ("permission", ["asks for permission", f"TOOL RESULT: {GRANTED}"], [], Verdict("yes")),
        (
            "permission",
            ["", f"TOOL RESULT: {GRANTED}"],
            [],
            Verdict("partly", "the answer counts, but the question is not shown"),
        ),
        ("cancel", "canceled", ["a"], Verdict("yes")),
        ("cancel", "working", ["a"], Verdict("no", "state: working")),
    ],
)
def test_what_counts_as_done(
    step: str, shown: object, sessions: list[str], verdict: Verdict
) -> None:
    assert judge(PLANNED[step], {"shown": shown}, sessions=sessions) == verdict


def test_what_a_client_lacks_is_no_failure() -> None:
    assert judge(Step("cancel"), {"lacking": "none"}, sessions=[]) == Verdict("lacking", "none")
    assert judge(Step("cancel"), {"error": "broken"}, sessions=[]) == Verdict("no", "broken")
