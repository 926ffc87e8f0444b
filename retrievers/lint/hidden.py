"""Checks for text written for the model rather than for people: hidden text, orders, keyword lists."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from retrievers.lint.finding import Finding, quoted
from retrievers.lint.vocabulary import MAX_CHARACTERS
from retrievers.text import INVISIBLE, normalize
from retrievers.types import Tool

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_SPACES = re.compile(r"\s{2,}")
_MARKUP = re.compile(
    r"<!--|display:\s*none|font-size:\s*0|</?\s*(?:important|system|instructions?|secret|admin|assistant|hidden)\s*>"
    r"|\[/?INST\]|<\|(?:im_start|im_end|system|assistant|endoftext)\|>",
    re.IGNORECASE,
)
_OTHERS = (
    r"(?:any|all|every|the)?\s*(?:other|another|competing|alternative|remaining)\s+(?:\w+\s+)?"
    r"(?:tools?|functions?|apis?|servers?)"
)
_ORDERS = [
    (words.split(), re.compile(pattern, re.IGNORECASE))
    for words, pattern in (
        (
            "ignore disregard forget override",
            r"\b(?:ignore|disregard|forget|override)\s+(?:\w+\s+){0,3}(?:instructions?|prompts?|rules|guidelines|tools?)\b",
        ),
        (
            "other competing alternative remaining",
            rf"\b(?:do\s+not|don'?t|never|avoid|stop|instead\s+of|rather\s+than|before)\s+(?:\w+\s+){{0,2}}{_OTHERS}",
        ),
        (
            "always must only",
            r"\b(?:always|must|only)\s+(?:use|call|choose|select|prefer|pick|invoke|run)\s+(?:this|it)\b",
        ),
        (
            "prefer choose select pick",
            r"\b(?:prefer|choose|select|pick)\s+(?:this|it)\s+(?:tool\s+)?"
            r"(?:over|instead|first|before|always|for\s+(?:every|all|any))\b",
        ),
        (
            "user human anyone",
            r"\b(?:do\s+not|don'?t|never|without)\s+(?:tell|telling|inform|informing|mention|mentioning|notify|"
            r"notifying|reveal|alert|show|ask|asking)\w*\s+(?:\w+\s+){0,3}(?:the\s+)?(?:user|human|anyone)\b",
        ),
        (
            "prompt instruction jailbreak",
            r"\b(?:system\s+prompt|prior\s+instructions|previous\s+instructions|hidden\s+instructions?|jailbreak)\b",
        ),
        (
            "ssh id_rsa .env private /etc/passwd history",
            r"\b(?:read|send|include|attach|pass|append)\s+(?:\w+\s+){0,6}(?:~?/\.ssh|id_rsa|\.env\b|private\s+keys?|"
            r"/etc/passwd|conversation\s+history|chat\s+history)",
        ),
        (
            "you",
            r"\byou\s+are\s+(?:now\s+)?(?:an?\s+)?(?:ai|assistant|language\s+model|agent)\b",
        ),
    )
]
"""Patterns, each with words one of which it needs: looking for these first makes the check four times as fast."""
_TURKISH = str.maketrans("\u0130\u0131", "ii")
_AFTER_LEAD = re.compile(r"\n\s*(?:Parameters|Server|Category|Tool|Args|Returns)\b|[\[{]")
_FUNCTION_WORDS = frozenset(
    """a an the of to in on for and or by with from as at is are be was it its this that these which can will you your
    if any all not into up about between when where how what who whose their our we has have no one than then such
    der die das und ein eine mit von zu den dem für auf ist im des le la les des un une et de du en dans pour par sur
    est que qui au aux el los las y del con por para una se es su al o e do da dos das um uma com para em no na os as
    il lo gli di che per con non si een het van op te""".split()
)
MIN_WORDS = 20  # a shorter description may be a list of words
MIN_FUNCTION_WORDS = 0.08  # share of function words in running text, which mostly has about 0.3


def hidden(tools: Sequence[Tool]) -> Iterator[Finding]:
    """Control characters, invisible text, orders to the model."""
    for tool in tools:
        reasons = list(dict.fromkeys(reason for text in _texts(tool) for reason in _reasons(text)))
        if reasons:
            message = (
                f"{quoted(tool.name)} contains {', '.join(reasons)}: read its text before a model does, and "
                "remove what is not meant for people"
            )
            yield Finding("hidden", (tool.id,), message, "error")


def _texts(tool: Tool) -> Iterator[str]:
    yield from (tool.name, tool.description, tool.provider, tool.category, tool.schema, tool.call)
    for parameter in tool.parameters:
        yield f"{parameter.name} {parameter.type} {parameter.description}"


def _reasons(text: str) -> Iterator[str]:
    has_controls, plain = _CONTROL.search(text), text
    if has_controls:
        yield "control characters"
    elif not text.isascii() and INVISIBLE.search(text):
        yield "invisible text"
    if has_controls or not text.isascii():
        # Patterns that ignore case take the Turkish letters for i; `lower` does not.
        plain = normalize(INVISIBLE.sub("", text)).translate(_TURKISH)
    plain = _SPACES.sub(" ", plain)  # the time of a pattern may grow with the square of a run of spaces
    if _MARKUP.search(plain):
        yield "hidden markup"
    lowered = plain.lower()
    if any(order.search(plain) for words, order in _ORDERS if any(word in lowered for word in words)):
        yield "orders to the model"


def stuffed(tools: Sequence[Tool]) -> Iterator[Finding]:
    """Descriptions that are lists of keywords."""
    for tool in tools:
        if is_keyword_list(tool.description):
            message = f"the description of {quoted(tool.name)} is a list of keywords: say in sentences what it does"
            yield Finding("stuffed", (tool.id,), message, "warning")


def is_keyword_list(text: str) -> bool:
    """True where the first lines of a text, those a person would write, are words without a sentence."""
    lead = _AFTER_LEAD.split(text[:MAX_CHARACTERS], maxsplit=1)[0]
    all_words = re.findall(r"[^\W\d_]+", lead.casefold())
    words = [word for word in all_words if word.isascii()]
    if len(words) < max(MIN_WORDS, len(all_words) / 2):
        return False  # short, or in a language without a list of function words
    return sum(word in _FUNCTION_WORDS for word in words) < MIN_FUNCTION_WORDS * len(words)
