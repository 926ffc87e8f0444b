"""Progress and result of a job in figures, and the check that stops a job with too many bad rows."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from tqdm import tqdm

from pipelines.batch.journal import BAD, RowCounts
from retrievers.errors import BadInput
from retrievers.progress import duration
from rewrite.types import NOT_ASKED

MIN_ROWS = 100
"""Rows from which on the share of bad ones is checked."""
LOG_SECONDS = 30.0
"""Seconds between two progress lines."""
STATUSES = {
    "rewritten": "rewritten",
    "echo": "only repeated (echo)",
    "none": "left alone (none)",
    "unparseable": "unparseable",
    "too-long": "too long",
    f"{NOT_ASKED}card": "not asked: the fusion gives the raw query everything",
    f"{NOT_ASKED}detector": "not asked: they need no tool",
    f"{NOT_ASKED}confident": "not asked: the raw ranking is good enough",
}
"""Statuses of rows in words."""


class TooManyBadRows(BadInput):
    """The share of bad rows is so high that the input, or the way it is read, must be wrong."""


@dataclass(slots=True)
class BatchSummary(RowCounts):
    """A finished job in figures."""

    output: str = ""
    parsed: float | None = None
    """The share of answers that could be parsed; None where the rewriter was not asked."""
    fallbacks: int = 0
    """Rows that keep the raw query: too long for the model, or answered with nothing usable."""
    seconds: float = 0.0
    rows_per_second: float = 0.0
    resumed: int = 0
    """Rows that an earlier run of the job had finished."""
    already_finished: bool = False
    """True where the job was finished before and nothing was done."""

    def text(self) -> str:
        """The summary in a few lines."""
        if self.already_finished:
            return f"{self.output} was finished before ({self.rows:,} rows, {self.bad:,} bad); nothing was done"
        resumed = f", {self.resumed:,} of them by an earlier run" if self.resumed else ""
        lines = [f"{self.rows:,} rows{resumed}, {self.bad:,} bad; {self.rows_per_second:,.1f} rows/s"]
        if self.statuses:
            counts = [(self.statuses.get(status, 0), words) for status, words in STATUSES.items()]
            lines.append(", ".join(f"{count:,} {words}" for count, words in counts if count))
        if self.parsed is not None:
            lines.append(
                f"{self.parsed:.1%} of the answers were parsed; {self.answered:,} utterances answered, "
                f"{self.tokens:,} tokens, {self.lines:,} queries"
            )
        if self.nothing_fits:
            lines.append(f"{self.nothing_fits:,} rows for which no tool fits (min_score)")
        if self.not_reranked:
            lines.append(f"{self.not_reranked:,} rows in their first order, because the reranker failed")
        return "\n".join([*lines, self.output])


class ProgressReporter:
    """Counts rows and shows progress on standard error."""

    def __init__(self, total: int, done: int, show: bool | None = None) -> None:
        """`show`: True a bar, False nothing; None a bar on a terminal and lines elsewhere."""
        self._total, self._done, self._new = total, done, 0
        self._started = self._logged = time.monotonic()
        show_bar = sys.stderr.isatty() if show is None else show
        self._show_lines = show is None and not show_bar
        self._bar = (
            tqdm(total=max(total, done), initial=done, unit="row", smoothing=0.1, dynamic_ncols=True)
            if show_bar
            else None
        )

    @property
    def rate(self) -> float:
        """Rows per second since the start."""
        return self._new / max(self.seconds, 1e-9)

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    def add(self, rows: int, bad: int) -> None:
        """Count finished rows; `bad` is the number of bad rows so far."""
        self._done += rows
        self._new += rows
        if self._bar is not None:
            self._bar.update(rows)
            self._bar.set_postfix_str(f"{bad} bad" if bad else "", refresh=False)
        elif self._show_lines and time.monotonic() - self._logged >= LOG_SECONDS:
            self._logged = time.monotonic()
            left = max(0, self._total - self._done) / max(self.rate, 1e-9)
            sys.stderr.write(
                f"{self._done:,} of about {self._total:,} rows, {self.rate:,.1f} rows/s, {duration(left)} left"
                + (f", {bad:,} bad\n" if bad else "\n")
            )
            sys.stderr.flush()

    def close(self) -> None:
        """Clear the bar."""
        if self._bar is not None:
            self._bar.close()


def summarise(total: RowCounts, output: str, seconds: float, rate: float, resumed: int) -> BatchSummary:
    """The figures of a job."""
    wanted = sum(count for status, count in total.statuses.items() if not status.startswith(NOT_ASKED))
    fallbacks = total.statuses.get("unparseable", 0) + total.statuses.get("too-long", 0)
    return BatchSummary(
        **asdict(total),
        output=output,
        parsed=1 - fallbacks / wanted if wanted else None,
        fallbacks=fallbacks,
        seconds=round(seconds, 3),
        rows_per_second=round(rate, 2),
        resumed=resumed,
    )


def check_bad_share(total: RowCounts, max_share: float, lines: Sequence[bytes], last: bool = False) -> None:
    """Stop a job with too many bad rows; one of `lines` may show why."""
    too_many = total.bad > max_share * total.rows and total.rows >= MIN_ROWS
    if not (too_many or (last and total.bad == total.rows)):
        return
    bad = next((json.loads(line[1:]) for line in lines if line.startswith(BAD)), None)
    example = f", such as line {bad['line']} ({bad['error']})" if bad else ""
    raise TooManyBadRows(
        f"{total.bad:,} of {total.rows:,} rows are bad{example}; check the input's format and shape in the config. "
        "Finished rows are kept: correct the config and use --fresh, or raise max_bad_share and run again"
    )
