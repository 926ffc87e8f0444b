"""A user's own words with less around them: clauses one by one, and without names, numbers, quotes and politeness.

Encoders place "area of a triangle with base and height" nearer to a tool than "Please find the area of a triangle with
a base of 10 units, for my son Tom". Which reduction helps is for a retriever to say (`rewrite-train targets`); here
they are only made. Rules for English courtesies do nothing in other languages, the rest works in any.

>>> variants("Please tell me the weather in Oslo. And book a table at 'Noma' for 4")[0]
'weather. And book a table'
"""

from __future__ import annotations

import regex

MOST_CLAUSES = 6
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
    r"""https?://\S+ | \S+@\S+ | "[^"]*" | “[^”]*” | «[^»]*» | (?<!\w)'[^']*'(?!\w) | \([^)]*\)""", regex.VERBOSE
)
_NUMBERS = regex.compile(r"(?<![\p{L}\d])[-+$€£#]?\d[\d.,:/%-]*(?:st|nd|rd|th)?(?!\w)")
_JOINTS = frozenset("in at from to for of on near about named called by with and as".split())
_ENGLISH = frozenset("the a an to of my is are for i me and with".split())
"""In a text without any of these a capital may stand for a noun."""
_NAMES = regex.compile(r"\p{Lu}\p{Ll}+")
_SPACED = regex.compile(r"\s+(?=[,.?!;:])")


def clauses(text: str) -> list[str]:
    """The text cut where a new need may begin; empty where it is of one piece."""
    parts = [part.strip(" ,;") for part in _CUTS.split(" ".join(text.split()))]
    kept = [part for part in parts if _says_something(part)]
    return kept[:MOST_CLAUSES] if len(kept) > 1 else []


def reduced(text: str) -> str:
    """The text without quotes, numbers, names and opening courtesies; "" where nothing is left, or nothing changed."""
    bare = _NUMBERS.sub(" ", _QUOTED.sub(" ", text))
    words = _SPACED.sub("", " ".join(bare.split())).split()
    short = " ".join(_joined(_nameless(words) if _ENGLISH & {word.casefold() for word in words} else words))
    for _ in range(3):
        short = _OPENINGS.sub("", short)
    short = short.strip(" ,.?!;:")
    return short if _says_something(short) and short != text.strip() else ""


def _nameless(words: list[str]) -> list[str]:
    """English words without those that a capital makes a name; what ended the sentence still ends it."""
    kept: list[str] = []
    begins = True
    for word in words:
        name = not begins and _NAMES.match(word) and word not in ("I'm", "I'd", "I've")
        begins = word[-1] in ".?!:"
        if not name:
            kept.append(word)
            continue
        while kept and kept[-1].casefold() in _JOINTS:
            kept.pop()
        if kept and word[-1] in ".?!,":
            kept[-1] = kept[-1].rstrip(",") + word[-1]
    return kept


def _joined(words: list[str]) -> list[str]:
    """The words without prepositions that have lost what they stood before."""
    kept: list[str] = []
    for word in words:
        while kept and kept[-1].casefold() in _JOINTS and word.casefold() in _JOINTS - {"the"}:
            kept.pop()
        kept.append(word)
    while kept and kept[-1].strip(".?!,").casefold() in _JOINTS:
        kept.pop()
    return kept


def variants(text: str) -> list[str]:
    """Every reduction of the text, each once: the whole, the clauses, the clauses reduced."""
    parts = clauses(text)
    found = [reduced(text), *parts, *map(reduced, parts)]
    return list(dict.fromkeys(each for each in found if each))


def _says_something(text: str) -> bool:
    return len(text.split()) >= 2 or (len(text) >= 4 and not text.isascii())
