"""What a person's words say about a permission: yes, always, no, or nothing that is plain.

Only a whole text that is one of these words decides. Anything else is not understood: a decision
cannot be taken back, so the person is asked again.
"""

from __future__ import annotations

import re
import unicodedata

from .values import PermissionDecision

MAX_LENGTH = 10_000  # characters; what is longer is more than an answer

# Of each language: yes, always, and no.
LANGUAGES = {
    "English": ("yes, y, ok, okay, allow, once, go ahead", "always", "no, n, stop, cancel, reject"),
    "German": ("ja, erlauben, einmal, mach das", "immer", "nein, stopp, abbrechen, ablehnen"),
    "French": ("oui, d'accord, autoriser, une fois", "toujours", "non, stop, annuler, refuser"),
    "Spanish": ("sí, si, vale, permitir, una vez", "siempre", "no, parar, cancelar, rechazar"),
    "Chinese": ("是, 好, 好的, 可以, 允许, 允許", "总是, 總是", "不, 不要, 不行, 拒绝, 拒絕, 取消"),
    "Japanese": ("はい, 許可, 一度だけ", "いつも, 常に", "いいえ, だめ, やめて, 拒否, 中止"),
}
YES, ALWAYS, NO = (
    frozenset(word for words in LANGUAGES.values() for word in words[sense].split(", "))
    for sense in range(3)
)
_WORD = re.compile(r"¡?([^.!。！]*[^\s.!。！])\s*(?:[.。]|[!！]+)?")
_REFUSAL = re.compile(r"([^,:，：、]*)[,:，：、](.+)", re.DOTALL)


def read(text: str) -> PermissionDecision | None:
    """What a text decides about a permission, or None where it is not plain."""
    if len(text) > MAX_LENGTH:
        return None
    word = _folded(text)
    if word in YES:
        return PermissionDecision("once")
    if word in ALWAYS:
        return PermissionDecision("always")
    if word in NO:
        return PermissionDecision("reject")
    refusal = _REFUSAL.fullmatch(text)
    if refusal is not None and _folded(refusal[1]) in NO and (reason := refusal[2].strip()):
        return PermissionDecision("reject", reason)
    return None


def _folded(text: str) -> str:
    """Without blanks around it and punctuation at its end; upper and lower case are the same."""
    plain = unicodedata.normalize("NFC", text).replace("’", "'").strip().casefold()
    found = _WORD.fullmatch(plain)
    return found[1] if found else plain
