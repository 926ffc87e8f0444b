"""The end of every system's path: reranking, thresholds, and the figures of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.calibration import check_min_score
from pipelines.evaluate.context import EvalContext, RetrieverRef
from pipelines.rerank.loading import RerankerParts, choose, find_reranker, load_model, make_stage, retriever_words
from pipelines.rerank.settings import RerankSettings
from pipelines.rerank.stage import RerankStage
from retrievers.base import Reranker
from retrievers.errors import BadInput
from retrievers.types import Ranking, ToolId

FIXED = 5
"""Tools of the fixed list that a threshold is compared with."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds of a system."""

    min_score: float | None = None
    min_probability: float | None = None


@dataclass(frozen=True, slots=True)
class FusedLists:
    """Rankings of a system before they are reranked."""

    rankings: Sequence[Ranking]
    parts: Sequence[Sequence[Ranking]]
    """Per query, the rankings of utterance and rewrite that were fused."""
    seconds: float
    """Of all steps behind them."""


@dataclass(frozen=True, slots=True)
class RerankerFigures:
    """The work of a reranker."""

    facts: Mapping[str, Any]
    failures: int
    """Queries whose list is in its first order because the model's answer was no number."""
    seconds: float


@dataclass(frozen=True, slots=True)
class ReturnedTools:
    """Tools that a threshold leaves, beside a fixed number of them."""

    precision: float
    recall: float
    tools: float
    """Mean number per query."""
    fixed_precision: float
    fixed_recall: float
    fixed_tools: float


@dataclass(frozen=True, slots=True)
class FinishedLists:
    """Rankings of a system as a caller gets them."""

    rankings: list[Ranking]
    seconds: float
    reranking: RerankerFigures | None
    returned: ReturnedTools | None


class RerankerPool:
    """The rerankers of an evaluation: checked together, each model loaded once."""

    def __init__(self, evaluation: EvalContext, uses: Mapping[str, tuple[RetrieverRef, RerankSettings]]) -> None:
        """`uses`: by the name of the system."""
        self._evaluation = evaluation
        self._parts = {name: find_reranker(settings) for name, (_, settings) in uses.items()}
        self._models: dict[RerankSettings, Reranker] = {}
        for name, parts in self._parts.items():
            self._refuse_trained(name, parts)

    def check_thresholds(self, name: str, ref: RetrieverRef, thresholds: Thresholds) -> None:
        """Refuse a threshold that neither retriever nor reranker can apply."""
        search, values = self._evaluation.search(ref), (thresholds.min_score, thresholds.min_probability)
        if name in self._parts and choose(self._parts[name], self._words(ref)).calibration:
            for value in values:
                if value is not None:
                    check_min_score(value)
        else:
            search.check_min_score(*values)

    def finish(self, name: str, ref: RetrieverRef, fused: FusedLists, thresholds: Thresholds) -> FinishedLists:
        """Rerank the lists of a system, and apply its thresholds."""
        queries = self._evaluation.queries
        search, texts = self._evaluation.search(ref), queries.texts(queries.split)
        stage = self._stage(name, ref) if name in self._parts else None
        if stage is not None:
            search.rerank(texts[:1], fused.rankings[:1], stage)  # a model's slow start does not count
        reranked = self._evaluation.timed(
            lambda: search.rerank(texts, fused.rankings, stage) if stage is not None else None
        )
        rankings = fused.rankings if reranked.value is None else [one.ranking for one in reranked.value]
        figures = None
        if stage is not None and reranked.value is not None:
            failures = sum(one.failure is not None for one in reranked.value)
            figures = RerankerFigures(stage.facts, failures, reranked.seconds)
        limits = (thresholds.min_score, thresholds.min_probability)
        kept = [
            search.keep_fitting(text, ranking, parts, *limits).ranking
            for text, ranking, parts in zip(texts, rankings, fused.parts, strict=True)
        ]
        asks = any(limit is not None for limit in limits)
        returned = _returned(kept, rankings, queries.gold(queries.split)) if asks else None
        return FinishedLists(kept, reranked.seconds, figures, returned)

    def _words(self, ref: RetrieverRef) -> str:
        return retriever_words(self._evaluation.index(ref.index), ref.retriever)

    def _stage(self, name: str, ref: RetrieverRef) -> RerankStage:
        parts, context = self._parts[name], self._evaluation.context
        if parts.settings not in self._models:
            self._models[parts.settings] = load_model(parts, context.device, context.vllm)
        return make_stage(parts, self._models[parts.settings], self._words(ref))

    def _refuse_trained(self, name: str, parts: RerankerParts) -> None:
        """Refuse a reranker that was trained on tools or queries which the evaluation holds out."""
        queries = self._evaluation.queries
        known = any(source.get("name") == queries.data.name for source in parts.folder.card.data)
        if known and (queries.protocol != "official" or queries.split == "train"):
            raise BadInput(
                f"the reranker of {name!r} was trained on {queries.data.name}, so it has seen tools and queries of "
                f"protocol {queries.protocol}, split {queries.split}; evaluate the official test or dev split"
            )


def _returned(kept: Sequence[Ranking], rankings: Sequence[Ranking], gold: Sequence[frozenset[ToolId]]) -> ReturnedTools:
    """Precision over all returned tools, and mean recall and number per query."""

    def figures(lists: Sequence[Sequence[ToolId]]) -> tuple[float, float, float]:
        hits = [sum(tool in needed for tool in tools) for tools, needed in zip(lists, gold, strict=True)]
        total = sum(map(len, lists))
        recall = sum(hit / len(needed) for hit, needed in zip(hits, gold, strict=True)) / len(lists)
        return sum(hits) / total if total else 0.0, recall, total / len(lists)

    return ReturnedTools(*figures([one.ids[:FIXED] for one in kept]), *figures([one.ids[:FIXED] for one in rankings]))
