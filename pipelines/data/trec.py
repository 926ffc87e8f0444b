"""TREC run files: the form in which anybody's rankings can be compared with ours.

A line is `query Q0 tool place score tag`, separated by spaces. Ids may hold spaces here, so those are written as %20.
A query for which nothing was found has one line with the tool `-`, so that it is not taken for one that was not asked.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from urllib.parse import quote, unquote

from retrievers.errors import BadInput
from retrievers.types import Ranking, ranked

NOTHING = "-"
_BREAKING = re.compile(r"[\s%]")


def write_run(rankings: Mapping[str, Ranking], tag: str) -> str:
    """The text of a run file."""
    lines = []
    for query, ranking in rankings.items():
        if not ranking:
            lines.append(f"{_word(query)} Q0 {NOTHING} 1 0 {_word(tag)}\n")
        for place, (tool, score) in enumerate(ranking, 1):
            lines.append(f"{_word(query)} Q0 {_word(tool)} {place} {score:.9f} {_word(tag)}\n")
    return "".join(lines)


def _word(text: str) -> str:
    return _BREAKING.sub(lambda match: quote(match[0], safe=""), text)


def read_run(path: Path, tools: Collection[str] | None = None) -> dict[str, Ranking]:
    """Rankings by query. Order is by score, not by the place column, as trec_eval has it; ties stand by id.

    With `tools`, a tool that is not among them is refused: a run over another corpus would score 0 without a word.
    """
    try:
        lines = path.read_bytes().decode("utf-8").split("\n")
    except FileNotFoundError as error:
        raise BadInput(f"no run file {path}") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: not UTF-8 at byte {error.start}") from error
    found: dict[str, dict[str, float]] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        cells = line.split()
        try:
            query, _, tool, _, score, _ = cells
            value = float(score)
            if not math.isfinite(value):
                raise ValueError(score)
        except ValueError as error:
            raise BadInput(f"{path}:{number}: a line is `query Q0 tool place score tag`") from error
        held = found.setdefault(unquote(query), {})
        if tool == NOTHING:
            continue
        if tools is not None and unquote(tool) not in tools:
            raise BadInput(f"{path}:{number}: the tool {unquote(tool)!r} is not in the corpus")
        if unquote(tool) in held:
            raise BadInput(f"{path}:{number}: the tool {unquote(tool)!r} stands twice for query {unquote(query)!r}")
        held[unquote(tool)] = value
    return {query: ranked(held.items(), len(held)) for query, held in found.items()}
