"""Tools as text, text as words, and text without invisible characters.

Names are split so that `getWeatherByCity`, `find_symbol` and `v2/get-meta-data` match words:

>>> words("getWeatherByCity"), words("v2/get-meta-data"), words("HTTPServer2")
(['get', 'Weather', 'By', 'City'], ['v2', 'get', 'meta', 'data'], ['HTTP', 'Server2'])
>>> visible("pay\\u200bpal \\U000e0061bc \\u202eevil"), visible("a\\tb\\nc")
('paypal bc evil', 'a\\tb\\nc')
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from functools import lru_cache

import regex

from retrievers.types import Tool

MAX_QUERY = 20_000
"""Characters of a query that are read. No encoder reads more, and a pasted log file must not stall a search."""

_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_MARKS = regex.compile(r"(\p{M}{30})\p{M}+")
# Letters, digits and the marks that belong to letters make words; re's \W would cut Hindi and Thai at every vowel sign.
_SEPARATORS = regex.compile(r"[^\p{L}\p{N}\p{M}]+")
# Scripts written without spaces: Thai, Lao, Myanmar, Khmer, kana, Han; and Hangul, which inflects, so that pairs help.
_UNSPACED = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+"
)
INVISIBLE = regex.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"  # controls, without tab and line ends
    r"|[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff"
    r"\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
    r"|(?<![\p{L}--\p{Latin}]|\p{M}|\p{So}|\ufe0f|\p{Sk})[\u200c\u200d]|[\u200c\u200d](?![\p{L}--\p{Latin}]|\p{So}|\p{M})",
    regex.V1,
)
"""Characters that a model sees and a person does not: controls, tags, zero-width and direction marks. Two joiners are
allowed where a script needs them: between letters that are not Latin, and inside emoji."""


def visible(text: str) -> str:
    """The text as a person sees it."""
    seen: str = INVISIBLE.sub("", text)
    return seen


def clean(text: str) -> str:
    """Text that every tokenizer accepts: no lone surrogates, no control characters, bounded length."""
    text = text[:MAX_QUERY].encode("utf-8", "replace").decode("utf-8")
    return _CONTROLS.sub(" ", text).strip()


def normalize(text: str) -> str:
    """The text in normal form NFKC. Of the marks on one letter thirty are kept, as in Unicode's stream-safe format:
    putting n of them in order takes n * n steps, during which no other thread runs."""
    return text if text.isascii() else unicodedata.normalize("NFKC", _MARKS.sub(r"\1", text))


def words(name: str) -> list[str]:
    """The words of an identifier, in their own case."""
    return [word for part in _SEPARATORS.split(name) for word in _humps(part)]


def _humps(part: str) -> list[str]:
    """camelCase and HTTPServer split before their capitals, in any script that has capitals."""
    if part.islower() or not part:
        return [part] if part else []
    cuts = [0]
    for i in range(1, len(part)):
        before, after = part[i - 1], part[i + 1 : i + 2]
        if part[i].isupper() and (before.islower() or ((before.isupper() or before.isdigit()) and after.islower())):
            cuts.append(i)
    return [part[start:end] for start, end in zip(cuts, [*cuts[1:], len(part)], strict=True)]


FIELDS = ("name", "description", "parameters", "provider", "category")
"""Parts of a tool that are indexed by default."""


def document(tool: Tool, fields: Collection[str] = FIELDS) -> str:
    """The text of a tool that is indexed: name, description, parameters, provider and category.

    An identifier is written as its words, which encoders know, and unchanged in the last line, for users who paste it.
    Both on one line cost MiniLM 3 to 5 points of recall on ToolE's camelCase names.
    """
    lines = []
    name = tool.name.strip()
    spaced = spaced_name(name)
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


def spaced_name(name: str) -> str:
    """A name as its words: `getWeather` -> `get Weather`."""
    name = name.strip()
    return name if " " in name else " ".join(words(name)) or name


def _parameter(name: str, kind: str, description: str) -> str:
    return name + (f" ({kind})" if kind else "") + (f": {description}" if description else "")


def tokens(text: str) -> list[str]:
    """Words for lexical search: any script, identifiers split, case and width folded.

    A camelCase word gives its parts and itself, since people write both `YouTube` and `youtube`. Runs of a script
    without spaces give overlapping pairs of characters.
    """
    result: list[str] = []
    for part in _SEPARATORS.split(normalize(text)):
        if part:
            result.extend(_cached_tokens(part) if len(part) <= 40 else _part_tokens(part))
    return result


def name_tokens(name: str) -> list[str]:
    """Words of a tool's name as a request has them in any case: an identifier's parts, and the whole words of a name
    with spaces.

    >>> name_tokens("getWeather"), name_tokens("GitHub Issues")
    (['get', 'weather'], ['github', 'issue'])
    """
    return tokens(name.casefold() if " " in name.strip() else spaced_name(name))


def _part_tokens(part: str) -> tuple[str, ...]:
    pieces: list[str] = []
    for piece in _runs(part):
        humps = _humps(piece)
        pieces.append(piece.casefold())
        if len(humps) > 1:
            pieces.extend(hump.casefold() for hump in humps)
    return tuple(_singular(token) for token in pieces if token not in STOPWORDS)


# The words of a catalogue repeat: with a cache an index of 50,000 tools takes a third of the time.
_cached_tokens = lru_cache(maxsize=1 << 15)(_part_tokens)


def _singular(word: str) -> str:
    """Fold English plurals (Harman's S-stemmer): users ask for flights, tools search a flight."""
    if len(word) < 4 or not word.isascii() or not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    return word[:-2] if word.endswith(("ses", "xes", "zes", "ches", "shes")) else word[:-1]


def _runs(part: str) -> list[str]:
    """Split a part without separators: runs of unspaced scripts become character pairs."""
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
