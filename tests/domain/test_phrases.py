"""What a person reads: everything needed to decide, and how to answer."""

from __future__ import annotations

import sys
import unicodedata
from dataclasses import replace

import pytest

from opencode_a2a.domain.phrases import (
    LONGEST_ACTION,
    LONGEST_STATUS,
    LONGEST_TITLE,
    asking,
    is_always_shown_whole,
    is_shown_whole,
    waiting,
)
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


def test_a_command_is_shown_before_what_the_agent_says_and_what_always_would_mean() -> None:
    assert asking(BASH) == (
        "The agent asks for permission: bash\n"
        "\n"
        "    rm -r build\n"
        "\n"
        "The agent says: Removes the build\n"
        "\n"
        "Answer yes for this once, always (from now on also rm *), or no. What follows “no, ” is "
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


def test_several_are_listed_with_their_ids() -> None:
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


def test_a_command_that_does_not_fit_says_so_first_and_shows_both_ends() -> None:
    command = "echo " + "x" * 5_000 + "; rm -r build"
    ask = PermissionAsk("per_1", "ses", "bash", (command,), command=command, title="Harmless")
    told = asking(ask)
    assert len(told.encode()) <= LONGEST_STATUS
    first, *_ = told.splitlines()
    assert first.startswith("This request is too long to be shown here")
    assert "metadata.shared.interrupt.details" in first
    assert "    echo xxx" in told
    assert "[… this is cut: " in told
    assert "xxx; rm -r build\n\nAnswer no. Or, when you have read all of it, begin with" in told
    assert "(per_1: yes)" in told
    assert not is_shown_whole(ask)


def test_nothing_that_the_agent_says_hides_what_it_would_do() -> None:
    lies = "Lists files. " * 400 + "\n" * 100 + "Answer yes"
    told = asking(replace(BASH, title=lies))
    assert told.startswith("The agent asks for permission: bash\n\n    rm -r build\n\nThe agent s")
    said = told.split("\n\n")[2]
    assert len(said.encode()) <= LONGEST_TITLE + len("The agent says: ")
    assert said.endswith("…")


def test_no_part_of_a_command_is_pushed_out_of_sight() -> None:
    command = "ls" + " " * 600 + "; rm a" + "\n \n" * 200 + "rm b\n\nAnswer\u202e\r yes\u3164"
    told = asking(replace(BASH, command=command))
    assert "    ls[600 spaces]; rm a\n    [399 empty lines]\n    rm b\n    \n    Answer" in told
    assert "Answer\\u202e\\u000d yes\\u3164\n" in told
    named = asking(replace(BASH, permission="edit", filepath="a\n\nb" + " " * 99 + "c"))
    assert named.startswith("The agent asks for permission: edit a⏎⏎b[99 spaces]c\n")


def test_no_character_that_cannot_be_seen_is_left() -> None:
    every = (chr(code) for code in range(sys.maxunicode + 1) if chr(code) not in "\n\t")
    hidden = [each for each in every if unicodedata.category(each) in ("Cc", "Cf", "Zl", "Zp")]
    shown = "".join(asking(replace(BASH, command=each)) for each in hidden)
    assert not set(hidden) & set(shown)


def test_a_command_of_many_lines_is_told_from_what_we_say() -> None:
    told = asking(replace(BASH, command="cat > a <<E\nx\n  y\nE"))
    assert "\n\n    cat > a <<E\n    x\n      y\n    E\n\n" in told


def test_what_always_would_allow_is_shown_whole_or_not_at_all() -> None:
    ask = replace(BASH, always=("rm *", "z" * 300))
    assert not is_always_shown_whole(ask)
    assert is_shown_whole(ask)
    told = asking(ask)
    assert "zz" not in told
    assert "metadata.shared.interrupt.details.always" in told
    assert "per_1: always" in told


def test_what_is_shown_whole_is_so_beside_others_and_after_a_note() -> None:
    least = len(asking(replace(BASH, command="")).encode())
    command = "y" * (LONGEST_ACTION - len("The agent asks for permission: bash\n\n    "))
    long = "per_" + "0" * 26
    first = replace(BASH, request_id=long, command=command, always=("z" * 300,), title="t" * 500)
    assert least < LONGEST_ACTION
    assert is_shown_whole(first)
    assert not is_shown_whole(replace(first, command=command + "y"))
    diff = "+x\n" * 9_999
    for ask in (first, replace(first, diff=diff)):
        for others in range(4):
            told = waiting([ask, *[replace(ask, request_id=long)] * others], "w" * 999)
            assert len(told.encode()) <= LONGEST_STATUS
            assert f"    {command}\n" in told
            assert "z" * 300 in told


@pytest.mark.parametrize("number", [2, 3, 30])
def test_many_long_requests_share_the_room(number: int) -> None:
    asks = [
        PermissionAsk(f"per_{n}", "ses", "bash", command="y" * 700, always=("z" * 999,))
        for n in range(number)
    ]
    told = waiting(asks, "w" * 999)
    assert len(told.encode()) <= LONGEST_STATUS
    assert f"The agent waits for {number} decisions." in told
    assert "[per_0] The agent asks for permission: bash" in told
    assert told.endswith(f"begin with its id: per_{number - 1}: …")
    assert "metadata.shared.interrupts." in told


def test_several_that_fit_are_listed_whole() -> None:
    told = waiting([BASH] * 6)
    assert told.count(asking(BASH)) == 6


def test_what_was_not_understood_comes_first() -> None:
    assert waiting([BASH], "Pardon?") == f"Pardon?\n\n{asking(BASH)}"
