"""Reduces an utterance to its clauses, without names, numbers, quotes and courtesies.

To an encoder "area of a triangle with base and height" is nearer to a tool than "Please find the area of a triangle
with a base of 10 units, for my son Tom". `rewrite-train targets` finds out which reduction helps a retriever. Rules for
English courtesies do nothing in other languages, the others work in any.

>>> variants("Please tell me the weather in Oslo. And book a table at 'Noma' for 4")[0]
'weather. And book a table'
"""

from __future__ import annotations

import regex

MAX_CLAUSES = 6
_CUTS = regex.compile(
    r"""(?<=[.?!;:])\s+ | (?<=[。？！；]) | ,\s+(?=(?:and|also|then|but|so)\b)
      | \s+(?=(?:and|then)\s+(?:also\s+|then\s+)?(?:can|could|find|get|give|show|tell|check|suggest|provide|recommend
        |fetch|what|how|which|help|book|send|i|also|list|search|translate|convert|calculate)\b)""",
    regex.VERBOSE | regex.IGNORECASE,
)
_OPENINGS = regex.compile(
    r"""^(?: (?:please|hi|hello|hey|ok|okay|so|also|and|then|additionally|furthermore|lastly|finally|moreover)[,!.\s]+
      | (?:can|could|would|will)\s+you\s+(?:please\s+|also\s+|kindly\s+)*(?:help\s+me\s+(?:to\s+|with\s+)?)?
      | i(?:'d|\s+would)\s+(?:also\s+)?(?:like|love)\s+(?:you\s+)?to\s+
      | i\s+(?:also\s+)?(?:want|need|wish|have)\s+(?:you\s+)?to\s+ | help\s+me\s+(?:to\s+)?
      | (?:give|show|tell|get|provide|find|fetch)\s+me\s+(?:with\s+)?(?:the\s+|some\s+|a\s+list\s+of\s+)?
      | (?:what|which)\s+(?:is|are)\s+(?:the\s+)?
      | i(?:'m|\s+am)\s+(?:looking\s+for|trying\s+to|interested\s+in|planning\s+to)\s+ )""",
    regex.VERBOSE | regex.IGNORECASE,
)
_QUOTED = regex.compile(
    r"""https?://\S+ | (?<!\S)\S+@\S+ | "[^"]*" | “[^”]{0,500}” | «[^»]{0,500}» | (?<!\w)'[^']*'(?!\w)
      | \([^)]{0,500}\)""",
    regex.VERBOSE,
)
_NUMBERS = regex.compile(r"(?<![\p{L}\d])[-+$€£#]?\d[\d.,:/%-]*(?:st|nd|rd|th)?(?!\w)")
_JOINTS = frozenset("in at from to for of on near about named called by with and as".split())
_ENGLISH = frozenset("the a an to of my is are for i me and with".split())
"""In a text without any of these words, as in German, a capital may begin a noun."""
_NAMES = regex.compile(r"\p{Lu}\p{Ll}+")
_SPACED = regex.compile(r"\s+(?=[,.?!;:])")


def split_clauses(text: str) -> list[str]:
    """Splits the text where a new need may begin; empty where it has one clause."""
    parts = [part.strip(" ,;") for part in _CUTS.split(" ".join(text.split()))]
    kept = [part for part in parts if _has_content(part)]
    return kept[:MAX_CLAUSES] if len(kept) > 1 else []


def reduce_text(text: str) -> str:
    """Removes quotes, numbers, names and opening courtesies; "" where nothing is left or nothing changed."""
    bare = _NUMBERS.sub(" ", _QUOTED.sub(" ", text))
    words = _SPACED.sub("", " ".join(bare.split())).split()
    short = " ".join(_drop_dangling(_drop_names(words) if _ENGLISH & {word.casefold() for word in words} else words))
    for _ in range(3):
        short = _OPENINGS.sub("", short)
    short = short.strip(" ,.?!;:")
    return short if _has_content(short) and short != text.strip() else ""


def _drop_names(words: list[str]) -> list[str]:
    """Drops capitalized words within a sentence; punctuation at their end stays."""
    kept: list[str] = []
    is_first = True
    for word in words:
        is_name = not is_first and _NAMES.match(word) and word not in ("I'm", "I'd", "I've")
        is_first = word[-1] in ".?!:"
        if not is_name:
            kept.append(word)
            continue
        while kept and kept[-1].casefold() in _JOINTS:
            kept.pop()
        if kept and word[-1] in ".?!,":
            kept[-1] = kept[-1].rstrip(",") + word[-1]
    return kept


def _drop_dangling(words: list[str]) -> list[str]:
    """Drops prepositions that have lost their noun."""
    kept: list[str] = []
    for word in words:
        while kept and kept[-1].casefold() in _JOINTS and word.casefold() in _JOINTS - {"the"}:
            kept.pop()
        kept.append(word)
    while kept and kept[-1].strip(".?!,").casefold() in _JOINTS:
        kept.pop()
    return kept


def variants(text: str) -> list[str]:
    """All distinct reductions: of the whole text, its clauses, and its clauses reduced."""
    parts = split_clauses(text)
    reductions = [reduce_text(text), *parts, *map(reduce_text, parts)]
    return list(dict.fromkeys(reduction for reduction in reductions if reduction))


def _has_content(text: str) -> bool:
    return len(text.split()) >= 2 or (len(text) >= 4 and not text.isascii())
