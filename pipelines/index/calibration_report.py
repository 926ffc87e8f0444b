"""Figures that show how far a relevance can be trusted, and the threshold that dev chooses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from retrievers.calibration.logistic import Calibration
from retrievers.calibration.relevance import GROUP, relevance

MAX_LOST = 0.05
"""Share of right answers that the chosen threshold may lose."""
THRESHOLDS = tuple(step / 100 for step in range(1, 100))
BINS = 10


@dataclass(frozen=True, slots=True)
class CalibrationQuery:
    """Evidence for the first tools of a query."""

    evidence: np.ndarray
    """(tools, columns)"""
    needed: np.ndarray
    """(tools,): true for gold tools."""
    hidden: bool
    """The gold tools were hidden, so that no tool fits."""


@dataclass(frozen=True, slots=True)
class JudgedAnswers:
    """The first five tools of every query."""

    relevance: np.ndarray
    hidden: np.ndarray
    right: np.ndarray
    """True where one of them is needed."""


@dataclass(frozen=True, slots=True)
class CalibrationReport:
    """Quality of a calibration, on queries that it was not fitted on."""

    error: float
    """Expected calibration error: mean distance of a relevance from the share of answers that are right."""
    auc: float
    """Probability that a query has a higher relevance than one whose tools are hidden."""
    min_score: float
    """The threshold."""
    lost: float
    """Share of the right answers that the threshold loses."""
    refused: float
    """Share of the queries with hidden tools that get no tool."""


def judge_answers(calibration: Calibration, queries: Sequence[CalibrationQuery]) -> JudgedAnswers:
    """The relevance of each query's first tools; 0 where nothing was found."""
    values = []
    for query in queries:
        probabilities = calibration.probabilities(query.evidence[:GROUP]).tolist()
        values.append(relevance(probabilities)[0] if probabilities else 0.0)
    hidden, right = ([query.hidden for query in queries], [bool(query.needed[:GROUP].any()) for query in queries])
    return JudgedAnswers(np.array(values), np.array(hidden, dtype=bool), np.array(right, dtype=bool))


def choose_threshold(sets: Sequence[JudgedAnswers]) -> float:
    """The highest threshold that loses at most `MAX_LOST` of the right answers, in the mean over catalogues."""
    good = [value for value in THRESHOLDS if np.mean([lost_share(judged, value) for judged in sets]) <= MAX_LOST]
    return max(good, default=0.0)


def lost_share(judged: JudgedAnswers, min_score: float) -> float:
    """Share of the right answers that a threshold loses; 0 where there are none."""
    right = judged.relevance[judged.right]
    return float((right < min_score).mean()) if len(right) else 0.0


def measure_answers(judged: JudgedAnswers, min_score: float) -> CalibrationReport:
    """The figures of some answers."""
    shown, hidden = judged.relevance[~judged.hidden], judged.relevance[judged.hidden]
    return CalibrationReport(
        calibration_error(judged.relevance, judged.right),
        area_under_curve(shown, hidden),
        min_score,
        lost_share(judged, min_score),
        float((hidden < min_score).mean()),
    )


def mean_report(reports: Sequence[CalibrationReport]) -> CalibrationReport:
    """The mean of several reports."""
    names = [field.name for field in fields(CalibrationReport)]
    return CalibrationReport(*(float(np.mean([getattr(one, name) for one in reports])) for name in names))


def calibration_error(values: np.ndarray, right: np.ndarray) -> float:
    """Expected calibration error over ten bins of equal width."""
    bins = np.minimum((values * BINS).astype(int), BINS - 1)
    masks = [bins == number for number in np.unique(bins)]
    return float(sum(mask.mean() * abs(values[mask].mean() - right[mask].mean()) for mask in masks))


def area_under_curve(higher: np.ndarray, lower: np.ndarray) -> float:
    """Probability that one of `higher` exceeds one of `lower`; ties count half."""
    return float((higher[:, None] > lower).mean() + 0.5 * (higher[:, None] == lower).mean())
