"""What a person's words say about a permission: yes, always, no, or nothing that is plain.

A table of phrases in six languages, and a few rules. A text allows only if every word of it belongs
to a phrase of the table, all of them of one language, so a negation or a condition, in whatever
words, never allows. Some phrases also begin a condition ("once approved", "si procede") or ask
somebody else ("please confirm"): the rules of `_is_plain` say where they count. A refusal may be
followed by a reason in free words, unless they sound like consent ("no, that's fine"). Anything
else is not understood: a decision cannot be taken back, so the person is asked again.

Upper and lower case, accents, full-width letters and skin tones make no difference.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache, lru_cache
from itertools import pairwise
from typing import NamedTuple

from .values import PermissionDecision

MAX_LENGTH = 10_000  # characters; what is longer is more than an answer


class Sense(Enum):
    YES = auto()
    ONCE = auto()  # yes, and no more than this
    ALWAYS = auto()
    NO = auto()
    THIS = auto()  # says only what is meant
    FILLER = auto()  # says nothing by itself
    UNCLEAR = auto()  # means something else than its words


ANY_LANGUAGE = "any"
# No phrase may hold a word that also denies or limits ("no problem", "ja, aber"), nor be one that
# some people use to decline ("it's fine", "danke", "結構です").
PHRASES: dict[str, dict[Sense, str]] = {
    ANY_LANGUAGE: {
        Sense.YES: "yes, ok, okay, 👍, 👌, ✅, 🆗",
        Sense.NO: "no, 👎, ❌, 🚫, ⛔, 🛑",
    },
    "English": {
        Sense.YES: """
            y, yep, yeah, yup, sure, of course, absolutely, definitely, certainly,
            alright, all right, agreed, i agree, allow, allowed, i allow, approve, approved,
            i approve, accept, accepted, i accept, confirm, confirmed, i confirm, grant, granted,
            i grant, permission granted, permitted, go, go ahead, go for it, do it, do that,
            do this, please do, run it, execute it, proceed, please proceed, you may, you can,
            you may proceed, by all means, sounds good, that sounds good, looks good,
            it looks good, this looks good, that looks good, lgtm, fine by me, with pleasure
        """,
        Sense.ONCE: "once, just once, this once, just this once, just this time",
        Sense.ALWAYS: "always",
        Sense.NO: """
            n, nope, nah, no no, no don't, no dont, no way, no thanks, no thank you, never,
            not now, not this time, not today, not ok, not okay, not allowed, not approved,
            absolutely not, certainly not, definitely not, of course not, better not, rather not,
            i'd rather not, don't, dont, do not, please don't, please do not, don't do it,
            dont do it, do not do it, don't do that, do not do that, don't do this,
            do not do this, don't allow, do not allow, i don't allow, i do not allow,
            don't approve, do not approve, i don't approve, i do not approve, don't run it,
            do not run it, don't proceed, do not proceed, reject, rejected, i reject, deny,
            denied, i deny, refuse, refused, i refuse, decline, declined, i decline, disapprove,
            disapproved, disallow, permission denied, forbidden, cancel, cancelled, canceled,
            abort, stop, leave it
        """,
        Sense.THIS: "it, this, that",
        Sense.FILLER: "please, pls, plz, thanks, thank you, thank you very much, thx, just",
        Sense.UNCLEAR: """
            please go, always sure, you may approve, you can approve, you may accept,
            you can accept, you may confirm, you can confirm, you may grant, you can grant,
            please do approve, please do accept, please do confirm, please do grant,
            confirm that, i confirm that
        """,
    },
    "German": {
        Sense.YES: """
            ja, jawohl, jo, klar, na klar, natürlich, gerne, gern, einverstanden, in ordnung, okey,
            erlaube, erlaubt, erlauben, das erlauben, es erlauben, ich erlaube es, ich erlaube das,
            genehmigt, genehmigen, das genehmigen, es genehmigen, ich genehmige, ich stimme zu,
            stimme zu, zugestimmt, bestätigt, mach, mach es, mach das, mach mal, mach ruhig,
            mach's, tu es, tu das, leg los, los, nur zu, machen, das machen, ausführen,
            das ausführen, führ es aus, führe es aus
        """,
        Sense.ONCE: """
            einmal, nur einmal, nur dieses mal, nur diesmal, einmal erlauben, nur einmal erlauben,
            nur diesmal erlauben, nur dieses mal erlauben
        """,
        Sense.ALWAYS: "immer",
        Sense.NO: """
            nein, nee, nö, nicht, nein danke, bitte nicht, lieber nicht, besser nicht, niemals,
            nie, nicht jetzt, jetzt nicht, heute nicht, diesmal nicht, auf keinen fall,
            keinesfalls, kommt nicht infrage, nicht machen, mach es nicht, mach das nicht,
            mach's nicht, tu es nicht, tu das nicht, nicht erlauben, nicht erlaubt,
            nicht genehmigt, nicht ausführen, nicht einverstanden, lass es, lass das,
            lass es sein, ablehnen, abgelehnt, ich lehne ab, verboten, verweigert, abbrechen,
            abbruch, stopp, halt, aufhören
        """,
        Sense.THIS: "es, das, dies",
        Sense.FILLER: "bitte, danke, danke schön, vielen dank",
        Sense.UNCLEAR: "immer gerne, immer gern, gerne einmal, gern einmal, machen das",
    },
    "French": {
        Sense.YES: """
            oui, d'accord, bien sûr, vas-y, allez-y, fais-le, faites-le, j'approuve, approuvé,
            approuver, j'accepte, accepté, accepter, j'autorise, autorisé, autoriser,
            je confirme, confirmé
        """,
        Sense.ONCE: "une fois, une seule fois, juste une fois, juste cette fois",
        Sense.ALWAYS: "toujours",
        Sense.NO: """
            non, non merci, jamais, pas maintenant, pas cette fois, pas d'accord, surtout pas,
            pas question, absolument pas, certainement pas, ne le fais pas, ne le faites pas,
            ne fais pas ça, ne faites pas ça, ne fais pas cela, n'autorise pas,
            je n'autorise pas, je ne veux pas, je refuse, refusé, refuser, rejeter, rejeté,
            interdit, annule, annuler, annulez, annulé, arrête, arrêtez, arrêter, laisse tomber
        """,
        Sense.THIS: "ça, cela",
        Sense.FILLER: "merci, merci beaucoup, s'il te plaît, s'il vous plaît, svp, stp",
        # "toujours" is also "still" and "anyway".
        Sense.UNCLEAR: """
            toujours d'accord, toujours approuvé, toujours accepté, toujours autorisé,
            vas-y toujours, allez-y toujours, fais-le toujours, faites-le toujours
        """,
    },
    "Spanish": {
        Sense.YES: """
            sí, sí por favor, sí gracias, vale, de acuerdo, adelante, claro, claro que sí,
            por supuesto, dale, hazlo, hágalo, apruebo, lo apruebo, aprobado, aprobar, acepto,
            aceptado, aceptar, autorizo, autorizado, autorizar, permitido, permitir, permito,
            confirmo, confirmado, procede, proceda
        """,
        Sense.ONCE: "una vez, una sola vez, solo una vez, solo esta vez, solo por esta vez",
        Sense.ALWAYS: "siempre",
        Sense.NO: """
            no gracias, nunca, jamás, ahora no, hoy no, esta vez no, mejor no, claro que no,
            por supuesto que no, de ninguna manera, no lo hagas, no lo haga, no hagas eso,
            no lo apruebo, no apruebo, no lo permito, no permitir, no permitido, no autorizado,
            no estoy de acuerdo, rechazo, rechazar, rechazado, lo rechazo, denegar, denegado,
            prohibido, cancela, cancelar, cancelado, cancélalo, detente, detener, déjalo
        """,
        Sense.THIS: "esto, eso",
        Sense.FILLER: "por favor, gracias, muchas gracias",
        Sense.UNCLEAR: "siempre adelante",
    },
    "Chinese": {
        Sense.YES: """
            好, 好的, 可以, 可以的, 行, 是, 是的, 同意, 我同意, 批准, 我批准, 允许, 我允许, 允許,
            准许, 准許, 确认, 确定, 確定, 当然, 当然可以, 當然, 當然可以, 做吧, 去做吧, 执行,
            执行吧, 執行, 執行吧
        """,
        Sense.ONCE: "一次, 仅此一次, 僅此一次, 只这一次, 只這一次",
        Sense.ALWAYS: "总是, 總是, 始终, 始終",
        Sense.NO: """
            不, 不要, 不行, 不可以, 不好, 不是, 不同意, 我不同意, 不允许, 不允許, 不批准, 不准,
            不能, 不执行, 不執行, 现在不行, 现在不要, 現在不行, 現在不要, 先不要, 别, 別, 别做,
            別做, 别这样, 不要做, 不要这样, 拒绝, 拒絕, 我拒绝, 我拒絕, 禁止, 取消, 停, 停止,
            停下, 住手, 算了, 不用了, 不必了
        """,
        Sense.FILLER: "请, 請, 谢谢, 謝謝, 麻烦了, 麻煩了",
        Sense.UNCLEAR: "行行好, 好好, 可以批准, 可以确认, 可以同意, 可以允许",
    },
    "Japanese": {
        Sense.YES: """
            はい, ええ, うん, オッケー, オーケー, いいですよ, どうぞ, 許可, 許可します, 許可する,
            許可して, 承認, 承認します, 承認する, 同意, 同意します, 賛成, 賛成です, お願いします,
            進めて, 進めてください, やって, やってください, 実行, 実行して, 実行してください,
            もちろん, もちろんです
        """,
        Sense.ONCE: """
            一度だけ, 一回だけ, 今回だけ, 今回のみ, 一度だけ許可, 一度だけ許可します,
            一回だけ許可, 一回だけ許可します, 今回だけ許可, 今回だけ許可します, 今回だけ承認します,
            今回のみ許可, 今回のみ許可します
        """,
        Sense.ALWAYS: "いつも, 常に",
        Sense.NO: """
            いいえ, いや, いやです, 嫌です, だめ, だめです, ダメ, ダメです, 駄目, 駄目です,
            やめて, やめてください, やめろ, やめます, しないで, しないでください, やらないで,
            やらないでください, 実行しないで, 実行しないでください, 許可しない, 許可しません,
            承認しない, 承認しません, 同意しません, 拒否, 拒否します, 却下, 却下します, 反対,
            反対です, 禁止します, 中止, 中止して, 中止してください, キャンセル, キャンセルして,
            キャンセルしてください, 止めて, 止めてください, ストップ, 今はだめ, 今はやめて
        """,
        Sense.THIS: "それ, これ",
        Sense.FILLER: "ください, 下さい, ありがとう, ありがとうございます, お願い",
        Sense.UNCLEAR: "いつもありがとう, いつもありがとうございます",
    },
}
_ALLOWING = frozenset({Sense.YES, Sense.ONCE, Sense.ALWAYS})
_SILENT = frozenset({Sense.THIS, Sense.FILLER})

# One of the first beside one of the second asks somebody else to decide: please confirm.
_ASKING = """
    please, pls, plz, bitte, s'il te plaît, s'il vous plaît, svp, stp, por favor, 请, 請,
    麻烦了, 麻煩了, ください, 下さい, お願い, お願いします
"""
_DECIDING = """
    approve, accept, confirm, grant, genehmigen, das genehmigen, es genehmigen, approuvé, approuver,
    accepté, accepter, autorisé, autoriser, confirmé, aprobar, aceptar, autorizar, 批准, 允许,
    允許, 准许, 准許, 同意, 确认, 确定, 確定, 許可, 許可して, 承認
"""
# What one of these is said of may be conceded only: granted that, you can …
_CONCEDING = """
    sure, certainly, of course, agreed, i agree, allowed, approved, accepted, confirmed, granted,
    permission granted, permitted, you may, you can
"""
# Always to confirm is to be asked each time.
_CONFIRMING = "confirm, confirmed, bestätigt, confirmé, confirmado, 确认, 确定, 確定"
# These may also be "if", or the concession of "可以是可以, 但…", unless they stand by themselves.
_BY_THEMSELVES = "sí, 是"
_IF = "si"  # without its accent it is a yes only as the first word

# These refuse also where a reason follows without a pause. "no" and "don't" do not: no problem.
_FIRM_NOES = """
    n, nope, nah, reject, rejected, deny, denied, refuse, refused, decline, declined, nein, nee, non
"""
# After "no", one of these makes it a refusal: no not that one, no please use the other.
_DENIALS = """
    not, never, don't, dont, please, thanks, nicht, nie, bitte, danke, pas, jamais, merci,
    nunca
"""
# A reason that holds one of these may be consent: no, that's fine.
_CONSENT_HINTS = """
    yes, yep, yeah, ok, okay, fine, ahead, proceed, mind, no problem, no worries, no objection,
    no objections, no issue, no issues, ja, klar, kein problem, keine sorge, macht nichts,
    schon gut, passt, in ordnung, oui, d'accord, vas-y, allez-y, pas de problème, pas de souci,
    aucun problème, sí, vale, adelante, claro, no hay problema, sin problema, ningún problema,
    no pasa nada, de acuerdo, 可以, 好的, 没问题, 沒問題, 没关系, 沒關係, 同意, はい, どうぞ,
    いいよ, いいです, 大丈夫, 問題ない, 問題ありません, 構わない, 構いません, かまわない,
    かまいません, 👍, 👌, ✅
"""

_BETWEEN = re.compile(r"""[\s.,!;:'"“”„«»‹›*`_–—\-。、・「」『』¡()]+""")
_PAUSE = re.compile(r"""\s*[,;:.!*"”»)–—。、]|\s+-+\s|[^\S\n]*\n""")
_INVISIBLE = frozenset("\ufe0e\ufe0f\u200b\u200d\u2060\ufeff") | {
    chr(tone) for tone in range(0x1F3FB, 0x1F400)
}
_APOSTROPHES = frozenset("’‘ʼ＇")
_HESITATION = re.compile(
    r"[.。・、,]\s*[.。・、,]|[,;:、–—]\s*$|\s-\s*$"
)  # or what is not finished


class _Found(NamedTuple):
    """A phrase in a text."""

    sense: Sense
    words: str
    start: int
    end: int


def read(text: str) -> PermissionDecision | None:
    """What a text decides about a permission, or None where it is not plain."""
    if len(text) > MAX_LENGTH:
        return None
    text = unicodedata.normalize("NFC", text)
    folded, origins = _fold(text)
    found, end = _phrases_in(folded)
    senses = {each.sense for each in found} - _SILENT
    if end == len(folded):
        if senses == {Sense.NO}:
            return None if _denies_twice(folded, found) else PermissionDecision("reject")
        if not senses or not senses <= _ALLOWING or not _is_plain(folded, found):
            return None
        accented = {
            each for each in found if "í" in text[origins[each.start] : origins[each.end]].lower()
        }
        if _holds_condition(folded, found, accented=accented):
            return None
        return PermissionDecision("always" if Sense.ALWAYS in senses else "once")
    first = next((each for each in found if each.sense not in _SILENT), None)
    if first is None or first.sense is not Sense.NO or not re.search(r"\w", folded[end:]):
        return None
    reason, patterns = folded[first.end :], _patterns()
    is_refusal = (
        first.words in patterns.firm_noes
        or _PAUSE.match(reason)
        or (first.words == "no" and patterns.denial.match(reason))
    )
    if not is_refusal or patterns.consent_hint.search(reason):
        return None
    return PermissionDecision("reject", text[origins[first.end] :].lstrip(" \t\n,;:.!-–—。、，！"))


def _is_plain(folded: str, found: list[_Found]) -> bool:
    """Whether phrases that allow, each by itself, do so together."""
    patterns = _patterns()
    senses = {each.sense for each in found}
    words = {each.words for each in found}
    languages = frozenset.intersection(*(patterns.languages[each.words] for each in found))
    if not languages or _HESITATION.search(folded):
        return False
    if words & patterns.asking and words & patterns.deciding:
        return False
    if Sense.ALWAYS in senses:
        this_alone = Sense.THIS in senses and Sense.YES not in senses  # is it what is always so?
        if this_alone or Sense.ONCE in senses or words & patterns.confirming:
            return False
    for phrase, after in pairwise(found):
        if phrase.words in patterns.conceding and after.sense is Sense.THIS:
            return False
    for index, (sense, _, _, end) in enumerate(found):
        following = found[index + 1 :]
        # Once approved, once that …
        if sense is Sense.ONCE and any(each.sense is not Sense.FILLER for each in following):
            return False
        # That you can …
        continues = following and following[0].sense is Sense.YES and not _PAUSE.match(folded, end)
        if sense is Sense.THIS and continues:
            return False
    return True


def _holds_condition(folded: str, found: list[_Found], *, accented: set[_Found]) -> bool:
    """Whether a phrase may begin a condition: hazlo si procede, ok, si …"""
    for index, phrase in enumerate(found):
        first = index == 0
        if phrase.words not in _patterns().by_themselves or (first and phrase in accented):
            continue
        begins = first or _PAUSE.match(folded, found[index - 1].end)
        ends = phrase is found[-1] or _PAUSE.match(folded, phrase.end)
        is_if = phrase.words == _IF and not first and phrase not in accented
        if not begins or not ends or is_if:
            return True
    return False


def _denies_twice(folded: str, found: list[_Found]) -> bool:
    """Whether one refusal may be what another denies: don't stop, no cancelar."""
    for phrase, following in pairwise(found):
        both = phrase.sense is following.sense is Sense.NO
        firm = phrase.words in _patterns().firm_noes
        if both and not firm and not _PAUSE.match(folded, phrase.end):
            return True
    return False


def _phrases_in(folded: str) -> tuple[list[_Found], int]:
    """The phrases that a text begins with, and where the next would be."""
    found: list[_Found] = []
    patterns, at = _patterns(), 0
    while True:
        if between := _BETWEEN.match(folded, at):
            at = between.end()
        phrase = patterns.phrase.match(folded, at)
        if phrase is None:
            return found, at
        words = _one_space(phrase[0])
        found.append(_Found(patterns.senses[words], words, start=at, end=phrase.end()))
        at = phrase.end()


def _fold(text: str) -> tuple[str, list[int]]:
    """The text without what makes no difference, and where each character of it came from."""
    folded: list[str] = []
    origins: list[int] = []
    for index, char in enumerate(text):
        for each in _fold_char(char):
            folded.append(each)
            origins.append(index)
    return "".join(folded), [*origins, len(text)]


@lru_cache(4096)
def _fold_char(char: str) -> str:
    if char in _INVISIBLE:
        return ""
    if char in _APOSTROPHES:
        return "'"
    # Accents, but not the marks that strike a letter out.
    plain = re.sub("[\u0300-\u032f]", "", unicodedata.normalize("NFKD", char))
    return unicodedata.normalize("NFKC", plain).casefold()


def _one_space(words: str) -> str:
    return re.sub(r"[\s-]+", " ", words)


def phrases(table: str) -> list[str]:
    """The phrases of a table, as they are found in a folded text."""
    return [
        _one_space(_fold(unicodedata.normalize("NFC", phrase.strip()))[0])
        for phrase in table.split(",")
    ]


def _any_of(phrases: list[str]) -> str:
    """A pattern for the longest of these phrases; words of letters must be whole."""
    found = []
    for phrase in sorted(phrases, key=len, reverse=True):
        pattern = r"[\s-]+".join(map(re.escape, phrase.split(" ")))
        spelled = phrase[-1].isalnum() and phrase[-1] < "\u0250"
        found.append(rf"(?<![a-z0-9]){pattern}(?![a-z0-9])" if spelled else pattern)
    return "|".join(found)


@dataclass(frozen=True, slots=True)
class _Patterns:
    senses: dict[str, Sense]
    languages: dict[str, frozenset[str]]
    phrase: re.Pattern[str]
    asking: frozenset[str]
    deciding: frozenset[str]
    conceding: frozenset[str]
    confirming: frozenset[str]
    by_themselves: frozenset[str]
    firm_noes: frozenset[str]
    denial: re.Pattern[str]
    consent_hint: re.Pattern[str]


@cache
def _patterns() -> _Patterns:
    """Made when first needed: it takes longer than a start should."""
    senses: dict[str, Sense] = {}
    languages: dict[str, frozenset[str]] = {}
    for language, tables in PHRASES.items():
        spoken = frozenset(PHRASES if language == ANY_LANGUAGE else {language})
        for sense, table in tables.items():
            for phrase in phrases(table):
                senses[phrase] = sense
                languages[phrase] = languages.get(phrase, frozenset()) | spoken
    return _Patterns(
        senses=senses,
        languages=languages,
        phrase=re.compile(_any_of(list(senses))),
        asking=frozenset(phrases(_ASKING)),
        deciding=frozenset(phrases(_DECIDING)),
        conceding=frozenset(phrases(_CONCEDING)),
        confirming=frozenset(phrases(_CONFIRMING)),
        by_themselves=frozenset(phrases(_BY_THEMSELVES)),
        firm_noes=frozenset(phrases(_FIRM_NOES)),
        denial=re.compile(rf"\s*(?:{_any_of(phrases(_DENIALS))})"),
        consent_hint=re.compile(_any_of(phrases(_CONSENT_HINTS))),
    )
