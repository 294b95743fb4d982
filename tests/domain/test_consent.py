"""What words say about a permission, and what they must never be taken for."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from opencode_a2a.domain.consent import ANY_LANGUAGE, PHRASES, Sense, phrases, read
from opencode_a2a.domain.values import PermissionDecision
from tests.domain.logs import STEADY

ONCE, FOR_GOOD, STOP = (PermissionDecision(reply) for reply in ("once", "always", "reject"))
DECIDES = {Sense.YES: ONCE, Sense.ONCE: ONCE, Sense.ALWAYS: FOR_GOOD, Sense.NO: STOP}
LISTED = [
    (language, sense, phrase)
    for language, tables in PHRASES.items()
    for sense, table in tables.items()
    for phrase in phrases(table)
]
TABLE = {sense: [phrase for _, s, phrase in LISTED if s is sense] for sense in Sense}
FILLERS = TABLE[Sense.FILLER] + TABLE[Sense.THIS]
ALLOWING = [phrase for sense in (Sense.YES, Sense.ONCE, Sense.ALWAYS) for phrase in TABLE[sense]]

# Words that deny, limit or ask, in each language; also such whose every word allows elsewhere.
HEDGES = """
    no, not, never, nothing, don't, won't, cannot, but, except, unless, if, maybe, perhaps, later,
    yet, wait, first, why, what, instead, without, hardly, stop,
    nein, nicht, kein, keine, nie, nichts, aber, außer, wenn, falls, vielleicht, später, warte,
    warum, noch, ohne, erst, sondern,
    non, ne, pas, jamais, rien, mais, sauf, si jamais, peut-être, plus tard, attends,
    pourquoi, sans,
    nunca, nada, pero, excepto, quizás, tal vez, después, espera, por qué, todavía, sin,
    不, 没, 别, 但, 但是, 除非, 如果, 也许, 可能, 等等, 为什么, 吗, 先,
    ない, ません, だめ, でも, けど, もし, たぶん, かも, 後で, 待って, なぜ, ですか, まだ,
    once approved, once i confirm, once you can, this once granted, einmal genehmigt,
    une fois approuvé, si approuvé, si d'accord, una vez aprobado, si procede, si es permitido,
    可以是可以, 好是好, please confirm, 请确认,
    ?, ？, 👎, ❌
"""
HEDGE_WORDS = [word.strip() for word in HEDGES.split(",")]


def no(reason: str) -> PermissionDecision:
    return PermissionDecision("reject", reason)


@pytest.mark.parametrize(
    ("said", "decision"),
    [
        ("yes", ONCE),
        (" YES! ", ONCE),
        ("okay, go ahead", ONCE),
        ("Yes, thank you.", ONCE),
        ("yes, do it", ONCE),
        ("just this once", ONCE),
        ("allow it", ONCE),
        ("I approve", ONCE),
        ("please do", ONCE),
        ("**yes**", ONCE),
        ("“yes”", ONCE),
        ("ｙｅｓ！", ONCE),
        ("Ja, mach das bitte.", ONCE),
        ("D’accord, vas-y !", ONCE),
        ("¡Sí, adelante!", ONCE),
        ("Si\u0301", ONCE),
        ("好的，谢谢。", ONCE),
        ("はい、お願いします。", ONCE),
        ("👍🏽", ONCE),
        ("si", ONCE),
        ("SI, adelante", ONCE),
        ("Sí adelante", ONCE),
        ("si por favor", ONCE),
        ("vale, sí", ONCE),
        ("ok, SÍ", ONCE),
        ("confirm, please do", ONCE),
        ("I agree, do that", ONCE),
        ("permission granted, you can", ONCE),
        ("是，可以", ONCE),
        ("oui, une seule fois", ONCE),
        ("nur einmal erlauben, bitte", ONCE),
        ("今回だけ許可します", ONCE),
        ("das erlauben", ONCE),
        ("That looks good.", ONCE),
        ("ok danke", ONCE),
        ("bitte ausführen", ONCE),
        ("Always allow this, please", FOR_GOOD),
        ("always approve that", FOR_GOOD),
        ("sí, siempre", FOR_GOOD),
        ("Ja, immer", FOR_GOOD),
        ("总是允许", FOR_GOOD),
        ("no, thank you", STOP),
        ("no way", STOP),
        ("no don’t", STOP),
        ("no!! stop", STOP),
        ("no, no", STOP),
        ("nein abbrechen", STOP),
        ("don't do it", STOP),
        ("DO NOT", STOP),
        ("please do not", STOP),
        ("not now", STOP),
        ("cancel", STOP),
        ("Stop!", STOP),
        ("nicht machen", STOP),
        ("Bitte nicht.", STOP),
        ("surtout pas", STOP),
        ("no lo hagas", STOP),
        ("不要！", STOP),
        ("不行", STOP),
        ("やめて。", STOP),
        ("👎", STOP),
        ("no, use ls instead", no("use ls instead")),
        ("No: that is the\nwrong file", no("that is the\nwrong file")),
        ("reject – not in this folder", no("not in this folder")),
        ("no, always ask me", no("always ask me")),
        ("no not that one", no("not that one")),
        ("No, don't touch the tests", no("don't touch the tests")),
        ("no, no, use ls", no("no, use ls")),
        ("no thanks, I will do it myself", no("I will do it myself")),
        ("no\nread the file instead", no("read the file instead")),
        ("no, why do you need that?", no("why do you need that?")),
        ("nope use ls instead", no("use ls instead")),
        ("deny that, the problem is elsewhere", no("that, the problem is elsewhere")),
        ("Nein, nimm lieber ÄÖÜ", no("nimm lieber ÄÖÜ")),
        ("non, utilise ls", no("utilise ls")),
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
        "yes, but not in this folder",
        "yes but",
        "yes and no",
        "ok, no!",
        "sure, why not ask first",
        "never allow this",
        "not always",
        "not yet",
        "I would not accept that",
        "allow nothing",
        "cannot approve",
        "yesterday",
        "ok?",
        "OK？",
        "yes…",
        "why?",
        "wait",
        "maybe",
        "once, always",
        "always no",
        "yes 👎",
        "👍👎",
        "~~yes~~",
        "y\u0336e\u0336s\u0336",
        "> yes",
        "!= yes",
        "yes 2",
        "true",
        "please",
        "yes\nno",
        "yes\nand delete the rest",
        "reply: once",
        "no problem, go ahead",
        "no problem",
        "no worries",
        "no need to ask, just do it",
        "no, no problem",
        "no, go ahead",
        "no, do it",
        "no, that's fine",
        "no, I don't mind",
        "no?",
        "deny it?",
        "nope?",
        "no-brainer",
        "no one else needs to know",
        "reject? no, fine",
        "don't worry, go ahead",
        "don't touch the tests",
        "stop asking",
        "don't stop",
        "do not cancel it",
        "nicht abbrechen",
        "no cancelar",
        "don't stop, go",
        "never mind",
        "ja, aber nicht hier",
        "ja nicht",
        "kein Problem",
        "nein, kein Problem",
        "oui mais",
        "pas de problème, vas-y",
        "no hay problema",
        "no pasa nada, adelante",
        "好不好",
        "可以吗",
        "没问题",
        "不要停",
        "いいです",
        "結構です",
        "大丈夫です",
        "やめないで",
        # Every word of these is in the table.
        "go ahead once approved",
        "yes, once confirmed",
        "go ahead once i approve",
        "do it once you can",
        "une fois approuvé",
        "oui, si approuvé",
        "vas-y si d'accord",
        "una vez aprobado",
        "si procede",
        "hazlo si es permitido",
        "einmal bestätigt",
        "mach das einmal genehmigt",
        "可以是可以",
        "好是好",
        "please confirm",
        "please approve this",
        "请确认",
        "请批准",
        "always this",
        "immer das",
        "siempre eso",
        "いつもこれ",
        "toujours ça",
        "sure..",
        "好的。。。",
        "yes . .",
        "ok,,",
        "always confirm",
        "总是确认",
        "immer gerne",
        "いつもありがとうございます",
        "granted that you can",
        "eso sí",
        "vale, si procede",
        "SI PROCEDE",
        "si eso",
        "adelante si aprobado",
        "行是行",
        "是可以",
        "confirm please",
        "approve, please",
        "please accept",
        "please grant it",
        "bitte genehmigen",
        "por favor aprobar",
        "s'il te plaît confirmer",
        "承認お願いします",
        "許可してください",
        "承認してください",
        "toujours d'accord",
        "vas-y toujours",
        "you may approve this",
        "可以批准",
        "yes:",
        "go ahead -",
        "once yes",
        "once this",
        "ok das, por favor",
        "please go",
        "confirm that you can proceed",
        "ok, si",
        "vale, si",
        "adelante, si",
        "agreed that",
        "I agree that, yes",
        "granted this, you can",
        "granted, that",
        "sure that",
        "confirm that",
        "please do confirm",
        "siempre esto por favor",
        "oui, une fois confirmé",
        "d'accord une fois autorisé",
        "proceed once granted",
        "ok once allowed",
        "👍 once approved",
        "una vez permitido, hazlo",
        "ja, einmal erlaubt",
        "一次可以",
        "no si",
        "はい・・・",
        "はい、、、",
        "行行好",
        "好好做吧",
        "confirm once confirmed",
        "immer bestätigt",
        "always it",
        "常にそれ",
        "x" * 20_000,
        "no, " + "x" * 20_000,
    ],
)
def test_what_is_not_plain_decides_nothing(said: str) -> None:
    assert read(said) is None


def test_the_table_says_of_each_phrase_one_thing() -> None:
    known: dict[str, Sense] = {}
    for _, sense, phrase in LISTED:
        assert known.setdefault(phrase, sense) is sense, phrase


MANNERS = {
    ANY_LANGUAGE: [],
    "English": [", thanks", ". Thank you!"],
    "German": [", danke.", " vielen Dank"],
    "French": [" merci", ", merci beaucoup."],
    "Spanish": [", gracias.", ". ¡Muchas gracias!"],
    "Chinese": ["，谢谢。", "！"],
    "Japanese": ["、ありがとう。", "。"],
}


@STEADY
@given(
    st.sampled_from([each for each in LISTED if each[1] in DECIDES]),
    st.sampled_from(["", "“", "\n  ", "**"]),
    st.sampled_from([str.lower, str.upper, str.title, str.capitalize]),
    st.data(),
)
def test_every_phrase_counts_in_any_case_with_manners_of_its_language(
    listed: tuple[str, Sense, str], before: str, case: Callable[[str], str], data: st.DataObject
) -> None:
    language, sense, phrase = listed
    common = ["", ".", "!!", "！", "。"]
    after = data.draw(st.sampled_from(common + MANNERS[language]))
    assert read(before + case(phrase) + after) == DECIDES[sense]


@STEADY
@given(st.sampled_from(LISTED), st.sampled_from(LISTED))
def test_phrases_of_two_languages_do_not_allow_together(
    one: tuple[str, Sense, str], other: tuple[str, Sense, str]
) -> None:
    spoken = [{lang for lang, _, phrase in LISTED if phrase == each[2]} for each in (one, other)]
    assume(ANY_LANGUAGE not in spoken[0] | spoken[1] and not spoken[0] & spoken[1])
    decision = read(f"{one[2]}, {other[2]}")
    assert decision is None or decision.reply == "reject"


@STEADY
@given(st.lists(st.sampled_from(ALLOWING + FILLERS), min_size=1), st.data())
def test_nothing_allows_that_holds_a_word_which_denies_or_limits(
    words: list[str], data: st.DataObject
) -> None:
    hedge = data.draw(st.sampled_from(HEDGE_WORDS))
    words.insert(data.draw(st.integers(0, len(words))), hedge)
    for joint in (" ", ", ", ""):
        decision = read(joint.join(words)) if joint or not hedge.isascii() else None
        assert decision is None or decision.reply == "reject"


@STEADY
@given(st.lists(st.sampled_from(ALLOWING + FILLERS) | st.text(max_size=8)))
@example(["yes", "but"])
def test_nothing_allows_that_holds_another_word_than_those_that_do(words: list[str]) -> None:
    said = " ".join(words)
    decision = read(said)
    if decision is not None and decision.reply != "reject":
        plain = unicodedata.normalize("NFKC", said).casefold()
        assert set(re.findall(r"[a-z0-9]+", _unaccented(plain))) <= LATIN_WORDS
        assert {char for char in plain if char.isalpha() and char > "\u02ff"} <= OTHER_LETTERS


def _unaccented(text: str) -> str:
    return re.sub("[\u0300-\u036f]", "", unicodedata.normalize("NFD", text))


KNOWN = " ".join(ALLOWING + FILLERS)
LATIN_WORDS = set(re.findall(r"[a-z0-9]+", KNOWN))
OTHER_LETTERS = {char for char in KNOWN if char.isalpha() and char > "\u02ff"}
