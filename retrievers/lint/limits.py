"""Limits of one tool, the same for every way into a catalogue: requests, imports, followed servers, commands.

>>> complaint(Tool("weather/forecast", "forecast"))
''
>>> complaint(Tool("\\u202e\\u200b", "forecast"))
'its id is not one line of printable characters without spaces at the ends'
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import regex

from retrievers.lint.finding import Finding, quoted
from retrievers.lint.hidden import hidden
from retrievers.text import INVISIBLE
from retrievers.types import Tool

MAX_LABEL = 512
"""Characters of an id, a name, a type, a provider or a category."""
MAX_DESCRIPTION = 20_000
"""Characters of a description, of a tool or of a parameter."""
MAX_PARAMETERS = 256
MAX_CHARACTERS = 200_000
"""Characters of a whole tool with its schema and its call; of 84,000 tools in public catalogues none has 40,000."""
MAX_SENTENCES = 20
"""Tools that a message names; the others are counted."""
# Something to see; and no tab, line end, or sign of bytes that were no text. U+2800 is a blank of braille.
_VISIBLE = regex.compile(r"[\p{L}\p{N}\p{P}\p{S}--\u2800]", regex.V1)
_ILLEGAL = regex.compile(r"[\t\n\r\ufffd\p{Cs}]|^\s|\s$")


@dataclass(frozen=True, slots=True)
class Admissible:
    """The tools within the limits, a sentence about each of the others, and findings about those within."""

    tools: list[Tool]
    refused: list[str]
    findings: list[Finding]


def admit(tools: Sequence[Tool]) -> Admissible:
    """Apply the limits, and check what is left for text that is hidden or meant for the model."""
    complaints = {tool.id: complaint(tool) for tool in tools}
    admitted = [tool for tool in tools if not complaints[tool.id]]
    refused = [describe_refusal(tool, complaints[tool.id]) for tool in tools if complaints[tool.id]]
    return Admissible(admitted, refused, list(hidden(admitted)))


def describe_refusal(tool: Tool, why: str) -> str:
    """A sentence about a tool that is refused; an id that cannot be seen is spelled out."""
    return f"{quoted(tool.id if is_printable(tool.id) else ascii(tool.id)[1:-1])}: {why}"


def complaint(tool: Tool) -> str:
    """The limit that a tool breaks; "" for none. Repeats nothing of the tool."""
    for what, text in (("id", tool.id), ("name", tool.name)):
        if not is_printable(text):
            return f"its {what} is not one line of printable characters without spaces at the ends"
    if not tool.id.strip("./"):
        return "its id consists of dots and slashes, which URLs drop"
    if len(tool.parameters) > MAX_PARAMETERS:
        return f"it has {len(tool.parameters):,} parameters, at most {MAX_PARAMETERS} are allowed"
    for what, size, most in _sizes(tool):
        if size > most:
            return f"its {what} has {size:,} characters, at most {most:,} are allowed"
    return ""


def is_printable(text: str) -> bool:
    """True for one line that a person can see and type: no control, invisible or direction marks, no broken bytes."""
    return bool(_VISIBLE.search(text)) and not _ILLEGAL.search(text) and not INVISIBLE.search(text)


def listed_sentences(sentences: Sequence[str]) -> Iterable[str]:
    """The first sentences, and how many more there are."""
    yield from sentences[:MAX_SENTENCES]
    if len(sentences) > MAX_SENTENCES:
        yield f"{len(sentences) - MAX_SENTENCES:,} more tools"


def _sizes(tool: Tool) -> Iterable[tuple[str, int, int]]:
    labels = (("id", tool.id), ("name", tool.name), ("provider", tool.provider), ("category", tool.category))
    yield from ((what, len(text), MAX_LABEL) for what, text in labels)
    yield "description", len(tool.description), MAX_DESCRIPTION
    total = sum(len(text) for _, text in labels) + len(tool.description) + len(tool.schema) + len(tool.call)
    for parameter in tool.parameters:
        yield "parameter's name", len(parameter.name), MAX_LABEL
        yield "parameter's type", len(parameter.type), MAX_LABEL
        yield "parameter's description", len(parameter.description), MAX_DESCRIPTION
        total += len(parameter.name) + len(parameter.type) + len(parameter.description)
    yield "text, with its schema and its call,", total, MAX_CHARACTERS
