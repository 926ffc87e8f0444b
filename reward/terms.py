"""What a reward can be made of beside the metrics. Every term is between 0 and 1, but for the gain.

format      the answer can be read, and no cap ended it
length      1 for nothing written, 0 for `LONG` characters or more
language    the rewrite is in the utterance's language, as far as one can tell
abstain     the query was left alone, and raw retrieval has all its tools in the first `SERVED` places
gain        the first metric's gain over the raw query: for reports; a group's baseline takes it away again
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
    """1 where an answer is as it should be."""
    return np.array([float(each.readable and each.finished) for each in findings.attempts])


def length(findings: Findings) -> np.ndarray:
    """The shorter the better."""
    return np.array([1.0 - min(1.0, each.length / LONG) for each in findings.attempts])


def language_kept(findings: Findings) -> np.ndarray:
    """1 unless a rewrite is in another language; 0 where there is nothing to read."""
    return np.array(
        [
            float(each.readable and (not each.lines or same_language(each.utterance, " ".join(each.lines))))
            for each in findings.attempts
        ]
    )


def abstain(findings: Findings) -> np.ndarray:
    """1 where leaving the query alone was right."""
    served = measure(f"comp@{SERVED}", findings.raw)
    silent = np.array([each.readable and not each.lines for each in findings.attempts], dtype=bool)
    values: np.ndarray = np.where(silent, served, 0.0)
    return values


TERMS: dict[str, Callable[[Findings], np.ndarray]] = {
    "format": format_,
    "length": length,
    "language": language_kept,
    "abstain": abstain,
}


def check_term(name: str) -> None:
    """Refuses what is neither a term nor a metric."""
    if name in TERMS:
        return
    try:
        parse_metric(name)
    except ValueError as error:
        raise ValueError(f"no term {name!r} of a reward; known are {', '.join(TERMS)}, and any metric") from error


def metric(name: str, findings: Findings) -> np.ndarray:
    """A metric of the served lists. What cannot be read is worth nothing, although serving would fall back on the raw
    query: else nonsense would be rewarded."""
    readable = np.array([each.readable for each in findings.attempts], dtype=bool)
    values: np.ndarray = np.where(readable, measure(name, findings.judged), 0.0)
    return values
