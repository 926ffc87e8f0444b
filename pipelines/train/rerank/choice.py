"""Choose depth and weight with caution, and calibrate: on sets that were left out of training, or else on dev.

Settings under which a set clearly loses recall, by more than `max_loss` beyond one standard error, are out. Unless the
best of the rest gains at least two standard errors over the first order, that order stays: weight 0. Otherwise, of the
settings that are at most one standard error worse than the best, the one with the smallest weight, then depth, is
taken: a gain that may be chance is not worth the risk of harm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from pipelines.index.calibrate import fit_calibration
from pipelines.index.calibration_report import CalibrationQuery
from pipelines.rerank.stage import READER, read_evidence
from pipelines.train.rerank.scored_lists import CHOICE, ScoredLists
from retrievers.calibration.evidence import HEAD
from retrievers.calibration.logistic import Calibration
from retrievers.rerank.folder import RerankChoice

THRESHOLDS = tuple(step / 20 for step in range(1, 20))
MIN_GAIN = 2.0
"""Standard errors that a reranker must gain over the first order."""
FIXED = 5
"""Tools of the fixed list that thresholds are compared with."""


@dataclass(frozen=True, slots=True)
class SettingScore:
    """One depth and weight on all sets."""

    top: int
    weight: float
    mean: float
    """Mean over sets."""
    worst: float
    """Change of the set that lost most."""
    worst_set: str
    clear_losses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ThresholdFigures:
    """Tools with at least a probability, at most five, beside the first five; means over sets."""

    min_probability: float
    precision: float
    recall: float
    tools: float
    """Mean number per query."""


def score_settings(
    sets: Mapping[str, ScoredLists], weights: Sequence[float], tops: Sequence[int], max_loss: float
) -> list[SettingScore]:
    """All settings, the chosen one first, the others by mean."""
    first = {name: lists.measure(min(tops), 0.0)[CHOICE] for name, lists in sets.items()}
    grid = [(min(tops), 0.0), *((top, weight) for weight in weights if weight for top in tops)]
    changes = [
        {name: lists.measure(top, weight)[CHOICE] - first[name] for name, lists in sets.items()} for top, weight in grid
    ]
    scores = [_score(first, change, *setting, max_loss) for setting, change in zip(grid, changes, strict=True)]
    safe = [row for row, score in enumerate(scores) if not score.clear_losses]
    best = max(safe, key=lambda row: scores[row].mean)
    if _no_worse(changes[0], changes[best], MIN_GAIN):
        best = 0
    good = [row for row in safe if _no_worse(changes[row], changes[best])]
    chosen = min(good, key=lambda row: (scores[row].weight, scores[row].top))
    rest = sorted((score for score in scores if score is not scores[chosen]), key=lambda score: -score.mean)
    return [scores[chosen], *rest]


def _score(
    first: Mapping[str, np.ndarray], changes: Mapping[str, np.ndarray], top: int, weight: float, max_loss: float
) -> SettingScore:
    means = {name: float(change.mean()) for name, change in changes.items()}
    errors = {name: float(change.std() / np.sqrt(len(change))) for name, change in changes.items()}
    worst = min(means, key=lambda name: means[name])
    return SettingScore(
        top,
        weight,
        float(np.mean([first[name].mean() + means[name] for name in means])),
        means[worst],
        worst,
        tuple(name for name in means if means[name] + errors[name] < -max_loss),
    )


def _no_worse(these: Mapping[str, np.ndarray], those: Mapping[str, np.ndarray], errors: float = 1.0) -> bool:
    """True if the mean over sets falls short by at most some standard errors of the difference."""
    differences = [those[name] - these[name] for name in these]
    variance = float(np.sum([row.var() / len(row) for row in differences])) / len(differences) ** 2
    return bool(np.mean([row.mean() for row in differences]) <= errors * variance**0.5 + 1e-12)


def collect_evidence(lists: ScoredLists, top: int, weight: float) -> list[CalibrationQuery]:
    """Evidence of each query's first tools, as they are and with the needed ones hidden; both are adjacent."""
    queries = []
    for query in range(len(lists)):
        gold = frozenset(np.flatnonzero(lists.needed[query]).tolist())
        for hidden in (frozenset[int](), gold):
            order = lists.order(query, top, weight, hidden)
            ids = [f"{rank:03}" for rank in order]
            candidates = sorted(order)[:top]
            scores = lists.scores[query, candidates]
            known = [f"{rank:03}" for rank in candidates]
            kept = [i for i, tool in enumerate(ids) if tool in set(known)][:HEAD]
            evidence = read_evidence("", ids[: len(known)], known, scores)[: len(kept)]
            needed = np.array([rank in gold for rank in order[: len(evidence)]], dtype=bool)
            queries.append(CalibrationQuery(evidence, needed, bool(hidden)))
    return queries


def calibrate(
    sets: Mapping[str, ScoredLists], top: int, weight: float
) -> tuple[Calibration, list[ThresholdFigures], ThresholdFigures]:
    """The calibration, figures of thresholds on halves that it was not fitted on, and those of five tools."""
    evidence = [collect_evidence(lists, top, weight) for lists in sets.values()]
    evidence = [queries for queries in evidence if any(query.needed.any() for query in queries)]
    halves = [[queries[: len(queries) // 4 * 2] for queries in evidence]]
    halves.append([queries[len(queries) // 4 * 2 :] for queries in evidence])
    gold = [lists.gold for lists in sets.values() if lists.needed.any()]
    split = [[own[: len(own) // 2] for own in gold], [own[len(own) // 2 :] for own in gold]]
    fits = [fit_calibration(half, READER.rising) for half in halves]
    parts = list(zip(fits[::-1], halves, split, strict=True))
    figures = [_mean([_figures(*part, threshold) for part in parts], threshold) for threshold in THRESHOLDS]
    return fit_calibration(evidence, READER.rising), figures, _mean([_figures(*part, None) for part in parts], 0.0)


def _figures(
    fitted: Calibration,
    sets: Sequence[Sequence[CalibrationQuery]],
    gold: Sequence[np.ndarray],
    threshold: float | None,
) -> list[tuple[float, float, float]]:
    """Precision, recall and number of tools per set, of the queries whose tools are not hidden."""
    rows = []
    for queries, sizes in zip(sets, gold, strict=True):
        returned = hits = recall = 0.0
        for query, size in zip(queries[::2], sizes, strict=False):
            first = query.needed[:FIXED]
            kept = np.ones(len(first), bool)
            if threshold is not None:
                kept = fitted.probabilities(query.evidence[:FIXED]) >= threshold
            returned, hits = returned + kept.sum(), hits + (first & kept).sum()
            recall += (first & kept).sum() / size
        count = max(1, len(sizes))
        rows.append((hits / returned if returned else 0.0, recall / count, returned / count))
    return rows


def _mean(parts: Sequence[Sequence[tuple[float, float, float]]], threshold: float) -> ThresholdFigures:
    return ThresholdFigures(threshold, *map(float, np.mean([row for rows in parts for row in rows], axis=0)))


def choose_settings(
    words: str,
    sets: Mapping[str, ScoredLists],
    weights: Sequence[float],
    tops: Sequence[int],
    max_loss: float,
) -> tuple[RerankChoice, dict[str, object]]:
    """Depth, weight and calibration in front of one retriever, with the figures behind them."""
    settings = score_settings(sets, weights, tops, max_loss)
    chosen, facts = settings[0], dict[str, object](settings=[asdict(one) for one in settings])
    if not chosen.weight or not any(lists.needed.any() for lists in sets.values()):
        return RerankChoice(words, chosen.top, chosen.weight), facts
    calibration, figures, fixed = calibrate(sets, chosen.top, chosen.weight)
    best = max(figures, key=lambda one: one.precision * one.recall / max(1e-9, one.precision + one.recall))
    facts |= {"thresholds": [asdict(one) for one in figures], "first_five": asdict(fixed)}
    known = {"intercept": calibration.intercept, "weights": list(calibration.weights)}
    known["min_score"] = calibration.min_score
    return RerankChoice(words, chosen.top, chosen.weight, known, best.min_probability), facts
