"""What became of a job's rows, and when too many of them are bad."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from pipelines.batch.journal import BAD, Tally
from retrievers.errors import BadInput

ENOUGH = 100
"""Rows after which a share means something."""


class TooManyBad(BadInput):
    """So many rows are bad that the input, or how it is read, must be wrong."""


@dataclass(slots=True)
class Summary:
    """A finished job in figures."""

    output: str
    rows: int
    bad: int
    asked: int
    """Utterances that a model was asked for; equal ones once, known ones not at all."""
    parsed: float | None
    """The share of rows whose answer could be read; None without a rewriter."""
    fallbacks: int
    """Rows that were left with the raw query: too long to be asked, or answered with nothing usable."""
    tokens: int
    lines: int
    statuses: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    rows_per_second: float = 0.0
    kept: int = 0
    """Rows that an earlier, broken-off run had done."""
    already: bool = False
    """True where the job was finished before and nothing was done."""

    def told(self) -> str:
        """In a few lines."""
        if self.already:
            return f"{self.output} was finished before ({self.rows:,} rows, {self.bad:,} bad); nothing was done"
        kept = f", {self.kept:,} of them by an earlier run" if self.kept else ""
        lines = [f"{self.rows:,} rows{kept}, {self.bad:,} bad; {self.rows_per_second:,.1f} rows/s"]
        if self.parsed is not None:
            lines.append(
                f"{self.parsed:.1%} of the answers could be read, {self.fallbacks:,} rows fall back to the raw query; "
                f"{self.asked:,} utterances asked, {self.tokens:,} tokens, {self.lines:,} queries"
            )
        return "\n".join([*lines, self.output])


def summarise(total: Tally, output: str, seconds: float, rate: float, kept: int) -> Summary:
    """A job's figures out of its tally."""
    good = total.rows - total.bad
    fallbacks = total.statuses.get("unparseable", 0) + total.statuses.get("too-long", 0)
    parsed = 1 - fallbacks / good if total.statuses and good else None
    return Summary(
        output,
        total.rows,
        total.bad,
        total.asked,
        parsed,
        fallbacks,
        total.tokens,
        total.lines,
        total.statuses,
        round(seconds, 3),
        round(rate, 2),
        kept,
    )


def check_share(total: Tally, most: float, lines: Sequence[bytes], last: bool = False) -> None:
    """Stops a job of which too many rows are bad; `lines` may tell why."""
    too_many = total.bad > most * total.rows and total.rows >= ENOUGH
    if not (too_many or (last and total.bad == total.rows)):
        return
    reason = next((json.loads(line[1:]) for line in lines if line.startswith(BAD)), None)
    told = f", such as line {reason['line']} ({reason['error']})" if reason else ""
    raise TooManyBad(
        f"{total.bad:,} of {total.rows:,} rows are bad{told}; is the input of the format and shape that the config "
        "says? What is finished is kept: mend the config with --fresh, or raise most_bad and run again"
    )
