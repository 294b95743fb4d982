"""What a person reads: everything needed to decide, and how to answer."""

from __future__ import annotations

import pytest

from opencode_a2a.domain.phrases import LONGEST_STATUS, asking, waiting
from opencode_a2a.domain.values import Choice, PermissionAsk, Question, QuestionAsk

BASH = PermissionAsk(
    "per_1",
    "ses",
    "bash",
    ("rm -r build",),
    command="rm -r build",
    title="Removes the build",
    always=("rm *",),
)
WHICH = Question("Pick", "Which one?", (Choice("A", "the first"), Choice("B")))


def question(*questions: Question) -> QuestionAsk:
    return QuestionAsk("que_1", "ses", questions)


def how(*questions: Question) -> str:
    return asking(question(*questions)).rpartition("\n\n")[2]


def test_a_command_is_shown_with_its_reason_and_what_always_would_mean() -> None:
    assert asking(BASH) == (
        "The agent asks for permission: bash\n"
        "Removes the build\n"
        "\n"
        "    rm -r build\n"
        "\n"
        "Answer yes for this once, always (from now on also rm *), or no. What follows a no is "
        "told to the agent, which then looks for another way; a bare no stops it."
    )


def test_an_edit_is_shown_with_its_file_and_its_difference() -> None:
    edit = PermissionAsk("per_1", "ses", "edit", ("a.py",), filepath="a.py", diff="-1\n+2")
    assert asking(edit).startswith("The agent asks for permission: edit a.py\n\n-1\n+2\n\nAnswer")


def test_a_place_outside_the_workspace_is_named() -> None:
    outside = PermissionAsk("per_1", "ses", "external_directory", ("/x/*",), command="cat /x/y")
    told = asking(outside)
    assert told.startswith("The agent asks for permission: external_directory (/x/*)\n\n    cat")


def test_a_tool_that_nothing_else_is_known_of_is_shown_with_its_arguments() -> None:
    tool = PermissionAsk("per_1", "ses", "mail_send", ("*",), arguments={"an": "Ädä"})
    assert asking(tool).startswith(
        'The agent asks for permission: mail_send (*)\n\n{\n  "an": "Ädä"\n}\n\nAnswer yes'
    )


def test_a_question_is_shown_with_its_options() -> None:
    assert asking(question(WHICH)) == (
        "The agent asks:\n\nWhich one?\n1. A: the first\n2. B\n\n"
        "Answer with an option (its name or its number), or in your own words, or with reject to "
        "stop the agent."
    )


def test_how_to_answer_depends_on_what_is_asked() -> None:
    options = WHICH.options
    assert "own words" not in how(Question("", "?", options, custom=False))
    assert "one or more of the options" in how(Question("", "?", options, multiple=True))
    assert how(Question("", "?")).startswith("Answer in your own words, or")
    assert how(WHICH, WHICH).startswith("Answer with one line for each question, or")
    assert how().startswith("Answer in your own words, or")


def test_several_are_told_with_their_ids() -> None:
    told = waiting([BASH, question(WHICH)])
    assert told.startswith("The agent waits for 2 decisions.\n\n[per_1] The agent asks for perm")
    assert "\n\n[que_1] The agent asks:" in told
    assert told.endswith("To answer another, begin with its id: que_1: …")
    assert waiting([BASH]) == asking(BASH)


def test_a_text_that_would_be_long_says_what_is_missing_and_where_it_is() -> None:
    diff = "--- a.py\n+++ a.py\n" + "-old\n" * 300 + "+näw\n" * 2_000
    edit = PermissionAsk("per_1", "ses", "edit", ("a.py",), filepath="a.py", diff=diff)
    told = asking(edit)
    assert len(told.encode()) <= LONGEST_STATUS
    assert told.startswith("The agent asks for permission: edit a.py\n\n--- a.py\n+++ a.py\n-old")
    assert "2000 lines added and 300 removed, all of it in metadata.shared.interrupt.det" in told
    assert told.endswith(how_to_answer := asking(edit).rpartition("\n\n")[2])
    assert how_to_answer.startswith("Answer yes for this once")


def test_both_ends_of_a_long_command_are_shown() -> None:
    command = "echo " + "x" * 5_000 + "; rm -r build"
    told = asking(PermissionAsk("per_1", "ses", "bash", (command,), command=command))
    assert len(told.encode()) <= LONGEST_STATUS
    assert "    echo xxx" in told
    assert "xxx; rm -r build\n\nAnswer yes" in told
    assert f"{len(command)} characters" not in told  # the request has more than its command
    assert "[… this is cut: " in told


@pytest.mark.parametrize("number", [2, 3, 30])
def test_many_long_requests_share_the_room(number: int) -> None:
    asks = [
        PermissionAsk(f"per_{n}", "ses", "bash", command="y" * 999, always=("z" * 999,))
        for n in range(number)
    ]
    told = waiting(asks, "w" * 999)
    assert len(told.encode()) <= LONGEST_STATUS
    assert f"The agent waits for {number} decisions." in told
    assert "[per_0] The agent asks for permission: bash" in told
    assert told.endswith(f"begin with its id: per_{number - 1}: …")
    assert ("metadata.shared.interrupts" in told) is (number > 2)


def test_several_that_fit_are_told_whole() -> None:
    told = waiting([BASH] * 6)
    assert told.count(asking(BASH)) == 6


def test_what_was_not_understood_comes_first() -> None:
    assert waiting([BASH], "Pardon?") == f"Pardon?\n\n{asking(BASH)}"
