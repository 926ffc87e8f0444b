"""TREC run files: rankings in a form that other tools read and write.

A line is `query Q0 tool rank score tag`, separated by spaces. Ids may hold spaces here, so those are written as %20.
A query for which nothing was found has one line with the tool `-`, so that it does not look like a missing one.
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
        for rank, (tool, score) in enumerate(ranking, 1):
            lines.append(f"{_word(query)} Q0 {_word(tool)} {rank} {score:.9f} {_word(tag)}\n")
    return "".join(lines)


def _word(text: str) -> str:
    return _BREAKING.sub(lambda match: quote(match[0], safe=""), text)


def read_run(path: Path, tools: Collection[str] | None = None) -> dict[str, Ranking]:
    """Rankings by query. Order is by score, not by the rank column, as in trec_eval; ties are ordered by id.

    With `tools`, a tool that is not among them is refused: a run over another corpus would silently score 0.
    """
    try:
        lines = path.read_bytes().decode("utf-8").split("\n")
    except FileNotFoundError as error:
        raise BadInput(f"no run file {path}") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: not UTF-8 at byte {error.start}") from error
    rankings: dict[str, dict[str, float]] = {}
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
            raise BadInput(f"{path}:{number}: a line is `query Q0 tool rank score tag`") from error
        scores = rankings.setdefault(unquote(query), {})
        if tool == NOTHING:
            continue
        if tools is not None and unquote(tool) not in tools:
            raise BadInput(f"{path}:{number}: the tool {unquote(tool)!r} is not in the corpus")
        if unquote(tool) in scores:
            raise BadInput(f"{path}:{number}: duplicate tool {unquote(tool)!r} for query {unquote(query)!r}")
        scores[unquote(tool)] = value
    return {query: ranked(scores.items(), len(scores)) for query, scores in rankings.items()}
