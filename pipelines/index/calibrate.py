"""Calibrate a retriever on labelled queries: each as it is, and once more with its gold tools hidden.

The second form is a request that the catalogue cannot serve, so that no other data is needed. Both count the same.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from pipelines.calibration import make_reader
from pipelines.data.dataset import DataSet, stable_hash
from pipelines.held_out import open_held_out
from pipelines.index.calibration_report import (
    CalibrationQuery,
    CalibrationReport,
    choose_threshold,
    judge_answers,
    mean_report,
    measure_answers,
)
from pipelines.index.trained_on import refuse_trained
from retrievers.calibration.evidence import HEAD
from retrievers.calibration.logistic import Calibration, fit
from retrievers.errors import BadInput
from retrievers.fusion import DEPTH
from retrievers.hybrid import Hybrid
from retrievers.index import Index
from retrievers.language.english import is_english
from retrievers.types import ToolId

MIN_QUERIES = 50
MAX_QUERIES = 2_000
"""More queries change little; a hash draws them."""


def collect_evidence(
    index: Index, retriever: str, texts: Sequence[str], gold: Sequence[Collection[ToolId]]
) -> list[CalibrationQuery]:
    """Search for the queries, held out where the retriever remembers them. Both forms of a query are adjacent."""
    searcher, held_out = index.retriever(retriever), open_held_out(index, retriever)
    shown = held_out.search(texts, DEPTH, texts) if held_out else searcher.search(texts, DEPTH)
    hidden = [ranking.without(tools) for ranking, tools in zip(shown, gold, strict=True)]
    if isinstance(searcher, Hybrid):
        hidden = [searcher.fuse(ranking.parts, DEPTH) for ranking in hidden]
    rankings = [
        replace(form.cut(HEAD), parts=form.parts) for forms in zip(shown, hidden, strict=True) for form in forms
    ]
    evidence = make_reader(index, retriever).read([text for text in texts for _ in range(2)], rankings)
    return [
        CalibrationQuery(rows, np.array([tool in gold[i // 2] for tool in ranking.ids]), bool(i % 2))
        for i, (ranking, rows) in enumerate(zip(rankings, evidence, strict=True))
    ]


def fit_calibration(sets: Sequence[Sequence[CalibrationQuery]], rising: Sequence[bool]) -> Calibration:
    """One calibration for several catalogues, which weigh the same. Its threshold is chosen on them, too."""
    rows = [np.concatenate([query.evidence for query in queries]) for queries in sets]
    needed = np.concatenate([query.needed for queries in sets for query in queries]).astype(np.float64)
    weights = np.concatenate([np.full(len(one), 1 / max(1, len(one))) for one in rows])
    calibration = fit(np.concatenate(rows), needed, weights, rising)
    return replace(calibration, min_score=choose_threshold([judge_answers(calibration, queries) for queries in sets]))


def calibrate_retriever(
    index: Index, retriever: str, data: DataSet, split: str = "dev"
) -> tuple[Calibration, CalibrationReport]:
    """Fit on the queries of a split. The report is of its halves, each measured by a fit on the other."""
    refuse_trained(f"the retriever {retriever!r}", index, retriever, data.name, "official", True, split == "train")
    gold = {query: tools for query, tools in data.split(split).items() if all(tool in index.tools for tool in tools)}
    if index.manifest.retrievers[retriever].settings.get("other_languages"):  # which are calibrated by themselves
        gold = {query: tools for query, tools in gold.items() if is_english(data.queries[query].text)}
    order = sorted(gold, key=lambda query: stable_hash(f"calibrate/{query}"))[:MAX_QUERIES]
    if len(order) < MIN_QUERIES:
        raise BadInput(
            f"a calibration needs {MIN_QUERIES} queries, and {index.name} has the tools of {len(order)} {split} "
            f"queries of {data.name}; label more, or name another --split"
        )
    texts = [data.queries[query].text for query in order]
    queries = collect_evidence(index, retriever, texts, [gold[query] for query in order])
    rising, middle = make_reader(index, retriever).rising, len(order) // 2 * 2
    halves = [queries[:middle], queries[middle:]]
    fits = [fit_calibration([half], rising) for half in halves]
    reports = [
        measure_answers(judge_answers(fitted, other), fitted.min_score)
        for fitted, other in zip(fits, halves[::-1], strict=True)
    ]
    return fit_calibration([queries], rising), mean_report(reports)
