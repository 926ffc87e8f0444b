"""Terms of a reward other than metrics. Every term is between 0 and 1; an unreadable answer earns none of them.

format      the answer was not cut at the token limit
length      1 for nothing written, 0 for `LONG` characters or more
language    the rewrite is in the utterance's language, as far as it can be detected
abstain     the query was left alone, and raw retrieval has all its tools in the top `SERVED`
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from reward.base import Findings
from reward.language import same_language
from reward.metrics import measure, parse_metric

LONG = 480
SERVED = 5


def format_(findings: Findings) -> np.ndarray:
    """1 where an answer is finished."""
    return np.array([float(attempt.finished) for attempt in findings.attempts])


def length(findings: Findings) -> np.ndarray:
    """1 for an empty answer, falling to 0 at `LONG` characters."""
    return np.array([1.0 - min(1.0, attempt.length / LONG) for attempt in findings.attempts])


def language_kept(findings: Findings) -> np.ndarray:
    """1 unless a rewrite is in another language."""
    return np.array(
        [
            float(not attempt.lines or same_language(attempt.utterance, " ".join(attempt.lines)))
            for attempt in findings.attempts
        ]
    )


def abstain(findings: Findings) -> np.ndarray:
    """1 where leaving the query alone was right."""
    served = measure(f"comp@{SERVED}", findings.raw)
    silent = np.array([not attempt.lines for attempt in findings.attempts], dtype=bool)
    values: np.ndarray = np.where(silent, served, 0.0)
    return values


TERMS: dict[str, Callable[[Findings], np.ndarray]] = {
    "format": format_,
    "length": length,
    "language": language_kept,
    "abstain": abstain,
}


def check_term(name: str) -> None:
    """Refuses a name that is neither a term nor a metric."""
    if name in TERMS:
        return
    try:
        parse_metric(name)
    except ValueError as error:
        raise ValueError(f"no term {name!r} of a reward; known are {', '.join(TERMS)}, and any metric") from error
