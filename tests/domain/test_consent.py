"""What words say about a permission, and what they must never be taken for."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opencode_a2a.domain.consent import ALWAYS, NO, YES, read
from opencode_a2a.domain.values import PermissionDecision
from tests.domain.logs import STEADY

ONCE, FOR_GOOD, STOP = (PermissionDecision(reply) for reply in ("once", "always", "reject"))


def no(reason: str) -> PermissionDecision:
    return PermissionDecision("reject", reason)


@pytest.mark.parametrize(
    ("said", "decision"),
    [
        ("yes", ONCE),
        (" YES! ", ONCE),
        ("Ok.", ONCE),
        ("go ahead", ONCE),
        ("once", ONCE),
        ("Ja !", ONCE),
        ("D’accord", ONCE),
        ("¡Sí!", ONCE),
        ("Si\u0301", ONCE),
        ("好的。", ONCE),
        ("はい！", ONCE),
        ("always", FOR_GOOD),
        ("Immer.", FOR_GOOD),
        ("总是", FOR_GOOD),
        ("no", STOP),
        ("Stop!", STOP),
        ("cancel", STOP),
        ("Nein.", STOP),
        ("不要！", STOP),
        ("やめて。", STOP),
        ("no, use ls instead", no("use ls instead")),
        ("No: that is the\nwrong file", no("that is the\nwrong file")),
        ("no, always ask me", no("always ask me")),
        ("no, no, use ls", no("no, use ls")),
        ("No, don't touch the tests.", no("don't touch the tests.")),
        ("Nein, nimm lieber ÄÖÜ", no("nimm lieber ÄÖÜ")),
        ("不要，用 ls", no("用 ls")),
        ("やめて、lsを使って", no("lsを使って")),
    ],
)
def test_plain_words_decide(said: str, decision: PermissionDecision) -> None:
    assert read(said) == decision


@pytest.mark.parametrize(
    "said",
    [
        "",
        "!",
        "no,",
        ", no",
        "ok?",
        "OK？",
        "yes…",
        "yes...",
        "yes:",
        "yes,",
        "yes, but not in this folder",
        "yes and no",
        "yes\nno",
        "yes 2",
        "> yes",
        "!= yes",
        "~~yes~~",
        "y\u0336e\u0336s\u0336",
        "yesterday",
        "once, always",
        "not yet",
        "never allow this",
        "no problem, go ahead",
        "no problem",
        "no?",
        "don't stop",
        "maybe",
        "reply: once",
        "kein Problem",
        "pas de problème, vas-y",
        "好不好",
        "可以吗",
        "いいです",
        "go ahead once approved",
        "x" * 20_000,
        "a" + " " * 9_000 + "b.c",
        "no, " + "x" * 20_000,
    ],
)
def test_what_is_not_plain_decides_nothing(said: str) -> None:
    assert read(said) is None


def test_a_word_says_one_thing_and_is_written_as_it_is_compared() -> None:
    assert len(YES | ALWAYS | NO) == len(YES) + len(ALWAYS) + len(NO)
    for word in YES | ALWAYS | NO:
        assert word == unicodedata.normalize("NFC", word).strip().casefold()


@STEADY
@given(st.lists(st.sampled_from([*YES, *ALWAYS, *NO, "not", "but", "?", "if"]), min_size=2))
def test_nothing_allows_that_holds_more_than_one_word(words: list[str]) -> None:
    for between in (" ", ", ", "\n", ": "):
        decision = read(between.join(words))
        assert decision is None or decision.reply == "reject"
