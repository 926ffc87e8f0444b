"""How a tool becomes text, and how text becomes words. The only place for either.

Names are split so that `getWeatherByCity`, `find_symbol` and `v2/get-meta-data` match words:

>>> words("getWeatherByCity"), words("v2/get-meta-data"), words("HTTPServer2")
(['get', 'Weather', 'By', 'City'], ['v2', 'get', 'meta', 'data'], ['HTTP', 'Server2'])
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from functools import lru_cache

import regex

from retrievers.types import Tool

LONGEST_QUERY = 20_000
"""Characters of a query that are read. No encoder looks further, and a pasted log file must not stall a search."""

_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# Letters, digits and the marks that belong to letters make words; re's \W would cut Hindi and Thai at every vowel sign.
_SEPARATORS = regex.compile(r"[^\p{L}\p{N}\p{M}]+")
# Scripts written without spaces: Thai, Lao, Myanmar, Khmer, kana, Han; and Hangul, which inflects, so that pairs help.
_UNSPACED = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+"
)


def clean(text: str) -> str:
    """Text that every tokenizer survives: no lone surrogates, no control characters, bounded length."""
    text = text[:LONGEST_QUERY].encode("utf-8", "replace").decode("utf-8")
    return _CONTROLS.sub(" ", text).strip()


def words(name: str) -> list[str]:
    """The words of an identifier, in their own case."""
    return [word for part in _SEPARATORS.split(name) for word in _humps(part)]


def _humps(part: str) -> list[str]:
    """camelCase and HTTPServer cut before their capitals, in any script that has capitals."""
    if part.islower() or not part:
        return [part] if part else []
    cuts = [0]
    for i in range(1, len(part)):
        before, after = part[i - 1], part[i + 1 : i + 2]
        if part[i].isupper() and (before.islower() or ((before.isupper() or before.isdigit()) and after.islower())):
            cuts.append(i)
    return [part[start:end] for start, end in zip(cuts, [*cuts[1:], len(part)], strict=True)]


FIELDS = ("name", "description", "parameters", "provider", "category")
"""What of a tool is indexed, unless an index says otherwise."""


def document(tool: Tool, fields: Collection[str] = FIELDS) -> str:
    """A tool as the text that is indexed: its name, what it does, what it takes, where it belongs.

    An identifier reads as its words, which is what encoders know, and stands as it is at the end, for people who paste
    it. (Both on one line cost MiniLM 3 to 5 points of recall on ToolE's camelCase names: docs/experiments.md.)
    """
    lines = []
    name = tool.name.strip()
    spaced = name if " " in name else " ".join(words(name)) or name
    if "name" in fields:
        lines.append(spaced)
    if "description" in fields and tool.description:
        lines.append(tool.description)
    if "parameters" in fields and tool.parameters:
        lines.append("Parameters: " + "; ".join(_parameter(p.name, p.type, p.description) for p in tool.parameters))
    belongs = [value for field, value in (("provider", tool.provider), ("category", tool.category)) if field in fields]
    belongs = [value for value in belongs if value and value.casefold() not in name.casefold()]
    if belongs:
        lines.append("From: " + ", ".join(belongs))
    if "name" in fields and spaced != name:
        lines.append(name)
    return "\n".join(lines)


def _parameter(name: str, kind: str, description: str) -> str:
    return name + (f" ({kind})" if kind else "") + (f": {description}" if description else "")


def tokens(text: str) -> list[str]:
    """Words for lexical search: any script, identifiers split, case and width folded.

    A camelCase word gives its parts and itself, since people write both `YouTube` and `youtube`. Runs of a script
    without spaces give overlapping pairs of characters.
    """
    found: list[str] = []
    for part in _SEPARATORS.split(unicodedata.normalize("NFKC", text)):
        if part:
            found.extend(_recent(part) if len(part) <= 40 else _of_part(part))
    return found


def _of_part(part: str) -> tuple[str, ...]:
    found: list[str] = []
    for piece in _runs(part):
        humps = _humps(piece)
        found.append(piece.casefold())
        if len(humps) > 1:
            found.extend(hump.casefold() for hump in humps)
    return tuple(_singular(token) for token in found if token not in STOPWORDS)


# The words of a catalogue repeat: remembered, they make an index of 50,000 tools in a third of the time.
_recent = lru_cache(maxsize=1 << 15)(_of_part)


def _singular(word: str) -> str:
    """English plurals folded (Harman's S-stemmer): people ask for flights, tools search a flight."""
    if len(word) < 4 or not word.isascii() or not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    return word[:-2] if word.endswith(("ses", "xes", "zes", "ches", "shes")) else word[:-1]


def _runs(part: str) -> list[str]:
    """A separator-free piece as words: runs of unspaced scripts become character pairs."""
    pieces: list[str] = []
    last = 0
    for match in _UNSPACED.finditer(part):
        if match.start() > last:
            pieces.append(part[last : match.start()])
        run = match.group()
        pieces.extend(run[i : i + 2] for i in range(max(1, len(run) - 1)))
        last = match.end()
    if last < len(part):
        pieces.append(part[last:])
    return pieces


STOPWORDS = frozenset(
    """a about also am an and any are as at be been being but by can could did do does doing each few for from had has
    have having he her here him his how i if in into is it its just me more most my need no not now of on only or other
    our out please same she should so some such than that the their them then there these they this those to too up us
    very want was we were what when where which who whom why will with would you your""".split()
)
"""English function words. Queries are whole sentences and documents are not, so plain idf does not quiet them."""
