"""What a person's words say about a permission: yes, always, no, or nothing that is plain.

A table of phrases in six languages, and one rule. A text allows only if every word of it belongs to
a phrase of the table, so a negation or a condition, in whatever words, never allows. A refusal may
be followed by a reason in free words, unless they sound like consent ("no, that's fine"). Anything
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

from .values import PermissionDecision

MAX_LENGTH = 10_000  # characters; what is longer is more than an answer


class Sense(Enum):
    YES = auto()
    ONCE = auto()  # yes, and no more than this
    ALWAYS = auto()
    NO = auto()
    FILLER = auto()  # says nothing by itself


# No phrase may hold a word that also denies or limits ("no problem", "ja, aber"), nor be one that
# some people use to decline ("it's fine", "danke", "結構です").
PHRASES: dict[Sense, str] = {
    Sense.YES: """
        yes, y, yep, yeah, yup, ok, okay, sure, of course, absolutely, definitely, certainly,
        alright, all right, agreed, i agree, allow, allowed, i allow, approve, approved,
        i approve, accept, accepted, i accept, confirm, confirmed, i confirm, grant, granted,
        i grant, permission granted, permitted, go, go ahead, go for it, do it, do that, do this,
        please do, run it, execute it, proceed, please proceed, you may, you can,
        you may proceed, by all means, sounds good, looks good, lgtm, fine by me, with pleasure,
        ja, jawohl, jo, klar, na klar, natürlich, gerne, gern, einverstanden, in ordnung, okey,
        erlaube, erlaubt, erlauben, ich erlaube es, genehmigt, genehmigen, ich genehmige,
        ich stimme zu, stimme zu, zugestimmt, bestätigt, mach, mach es, mach das, mach mal,
        mach ruhig, mach's, tu es, tu das, leg los, los, nur zu, machen, ausführen, führ es aus,
        führe es aus,
        oui, d'accord, bien sûr, vas-y, allez-y, fais-le, faites-le, j'approuve, approuvé,
        approuver, j'accepte, accepté, accepter, j'autorise, autorisé, autoriser, je confirme,
        confirmé,
        sí, vale, de acuerdo, adelante, claro, claro que sí, por supuesto, dale, hazlo, hágalo,
        apruebo, lo apruebo, aprobado, aprobar, acepto, aceptado, aceptar, autorizo, autorizado,
        autorizar, permitido, permitir, permito, confirmo, confirmado, procede, proceda,
        好, 好的, 可以, 可以的, 行, 是, 是的, 同意, 我同意, 批准, 我批准, 允许, 我允许, 允許,
        准许, 准許, 确认, 确定, 確定, 当然, 当然可以, 當然, 當然可以, 做吧, 去做吧, 执行,
        执行吧, 執行, 執行吧,
        はい, ええ, うん, オッケー, オーケー, いいですよ, どうぞ, 許可, 許可します, 許可する,
        許可して, 承認, 承認します, 承認する, 同意します, 賛成, 賛成です, お願いします, 進めて,
        進めてください, やって, やってください, 実行, 実行して, 実行してください, もちろん,
        もちろんです,
        👍, 👌, ✅, 🆗
    """,
    Sense.ONCE: """
        once, just once, this once, just this once, just this time,
        einmal, nur einmal, nur dieses mal, nur diesmal,
        une fois, une seule fois, juste une fois, juste cette fois,
        una vez, una sola vez, solo una vez, solo esta vez, solo por esta vez,
        一次, 仅此一次, 僅此一次, 只这一次, 只這一次,
        一度だけ, 一回だけ, 今回だけ, 今回のみ
    """,
    Sense.ALWAYS: """
        always, immer, toujours, siempre, 总是, 總是, 始终, 始終, いつも, 常に
    """,
    Sense.NO: """
        no, n, nope, nah, no no, no don't, no dont, no way, no thanks, no thank you, never, not now,
        not this time, not today, not ok, not okay, not allowed, not approved, absolutely not,
        certainly not, definitely not, of course not, better not, rather not, i'd rather not,
        don't, dont, do not, please don't, please do not, don't do it, dont do it, do not do it,
        don't do that, do not do that, don't do this, do not do this, don't allow, do not allow,
        i don't allow, i do not allow, don't approve, do not approve, i don't approve,
        i do not approve, don't run it, do not run it, don't proceed, do not proceed, reject,
        rejected, i reject, deny, denied, i deny, refuse, refused, i refuse, decline, declined,
        i decline, disapprove, disapproved, disallow, permission denied, forbidden, cancel,
        cancelled, canceled, abort, stop, leave it,
        nein, nee, nö, nicht, nein danke, bitte nicht, lieber nicht, besser nicht, niemals, nie,
        nicht jetzt, jetzt nicht, heute nicht, diesmal nicht, auf keinen fall, keinesfalls,
        kommt nicht infrage, nicht machen, mach es nicht, mach das nicht, mach's nicht,
        tu es nicht, tu das nicht, nicht erlauben, nicht erlaubt, nicht genehmigt,
        nicht ausführen, nicht einverstanden, lass es, lass das, lass es sein, ablehnen,
        abgelehnt, ich lehne ab, verboten, verweigert, abbrechen, abbruch, stopp, halt, aufhören,
        non, non merci, jamais, pas maintenant, pas cette fois, pas d'accord, surtout pas,
        pas question, absolument pas, certainement pas, ne le fais pas, ne le faites pas,
        ne fais pas ça, ne faites pas ça, ne fais pas cela, n'autorise pas, je n'autorise pas,
        je ne veux pas, je refuse, refusé, refuser, rejeter, rejeté, interdit, annule, annuler,
        annulez, annulé, arrête, arrêtez, arrêter, laisse tomber,
        no gracias, nunca, jamás, ahora no, hoy no, esta vez no, mejor no, claro que no,
        por supuesto que no, de ninguna manera, no lo hagas, no lo haga, no hagas eso,
        no lo apruebo, no apruebo, no lo permito, no permitir, no permitido, no autorizado,
        no estoy de acuerdo, rechazo, rechazar, rechazado, lo rechazo, denegar, denegado,
        prohibido, cancela, cancelar, cancelado, cancélalo, detente, detener, déjalo,
        不, 不要, 不行, 不可以, 不好, 不是, 不同意, 我不同意, 不允许, 不允許, 不批准, 不准, 不能,
        不执行, 不執行, 现在不行, 现在不要, 現在不行, 現在不要, 先不要, 别, 別, 别做, 別做,
        别这样, 不要做, 不要这样, 拒绝, 拒絕, 我拒绝, 我拒絕, 禁止, 取消, 停, 停止, 停下, 住手,
        算了, 不用了, 不必了,
        いいえ, いや, いやです, 嫌です, だめ, だめです, ダメ, ダメです, 駄目, 駄目です, やめて,
        やめてください, やめろ, やめます, しないで, しないでください, やらないで,
        やらないでください, 実行しないで, 実行しないでください, 許可しない, 許可しません,
        承認しない, 承認しません, 同意しません, 拒否, 拒否します, 却下, 却下します, 反対,
        反対です, 禁止します, 中止, 中止して, 中止してください, キャンセル, キャンセルして,
        キャンセルしてください, 止めて, 止めてください, ストップ, 今はだめ, 今はやめて,
        👎, ❌, 🚫, ⛔, 🛑
    """,
    Sense.FILLER: """
        please, pls, plz, thanks, thank you, thank you very much, thx, it, this, that, just,
        bitte, danke, danke schön, vielen dank, es, das, dies,
        merci, merci beaucoup, s'il te plaît, s'il vous plaît, svp, stp, ça, cela,
        por favor, gracias, muchas gracias, esto, eso,
        请, 請, 谢谢, 謝謝, 麻烦了, 麻煩了,
        ください, 下さい, ありがとう, ありがとうございます, お願い, それ, これ
    """,
}

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


def read(text: str) -> PermissionDecision | None:
    """What a text decides about a permission, or None where it is not plain."""
    if len(text) > MAX_LENGTH:
        return None
    text = unicodedata.normalize("NFC", text)
    folded, origins = _fold(text)
    found, end = _phrases_in(folded)
    senses = {sense for sense, _, _ in found} - {Sense.FILLER}
    if end == len(folded):
        if senses == {Sense.NO}:
            return None if _denies_twice(folded, found) else PermissionDecision("reject")
        allows = senses and Sense.NO not in senses and "..." not in folded
        if not allows or senses >= {Sense.ONCE, Sense.ALWAYS}:
            return None
        return PermissionDecision("always" if Sense.ALWAYS in senses else "once")
    first = next((each for each in found if each[0] is not Sense.FILLER), None)
    if first is None or first[0] is not Sense.NO or not re.search(r"\w", folded[end:]):
        return None
    _, phrase, after = first
    reason, patterns = folded[after:], _patterns()
    is_refusal = (
        phrase in patterns.firm_noes
        or _PAUSE.match(reason)
        or (phrase == "no" and patterns.denial.match(reason))
    )
    if not is_refusal or patterns.consent_hint.search(reason):
        return None
    return PermissionDecision("reject", text[origins[after] :].lstrip(" \t\n,;:.!-–—。、，！"))


def _denies_twice(folded: str, found: list[tuple[Sense, str, int]]) -> bool:
    """Whether one refusal may be what another denies: don't stop, no cancelar."""
    for (sense, phrase, end), (following, _, _) in pairwise(found):
        both = sense is following is Sense.NO
        if both and phrase not in _patterns().firm_noes and not _PAUSE.match(folded, end):
            return True
    return False


def _phrases_in(folded: str) -> tuple[list[tuple[Sense, str, int]], int]:
    """The phrases that a text begins with, each with where it ends, and where the next would be."""
    found: list[tuple[Sense, str, int]] = []
    patterns, at = _patterns(), 0
    while True:
        if between := _BETWEEN.match(folded, at):
            at = between.end()
        phrase = patterns.phrase.match(folded, at)
        if phrase is None:
            return found, at
        at = phrase.end()
        words = _one_space(phrase[0])
        found.append((patterns.senses[words], words, at))


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
    phrase: re.Pattern[str]
    firm_noes: frozenset[str]
    denial: re.Pattern[str]
    consent_hint: re.Pattern[str]


@cache
def _patterns() -> _Patterns:
    """Made when first needed: it takes longer than a start should."""
    senses = {phrase: sense for sense, table in PHRASES.items() for phrase in phrases(table)}
    return _Patterns(
        senses=senses,
        phrase=re.compile(_any_of(list(senses))),
        firm_noes=frozenset(phrases(_FIRM_NOES)),
        denial=re.compile(rf"\s*(?:{_any_of(phrases(_DENIALS))})"),
        consent_hint=re.compile(_any_of(phrases(_CONSENT_HINTS))),
    )
