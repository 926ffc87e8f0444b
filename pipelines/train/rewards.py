"""The reward of an alignment: answers are parsed by the template and scored by the frozen retrievers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.context import make_context
from pipelines.rerank.loading import RerankerParts, find_reranker, load_model, make_stage
from pipelines.rerank.settings import RerankSettings
from pipelines.search import ToolSearch
from pipelines.train.sources import TargetsFolder
from retrievers.base import Reranker
from retrievers.errors import BadInput, ModelMismatch
from retrievers.index import Index
from retrievers.kind import Context
from retrievers.rerank.cached import CachedReranker
from retrievers.settings import RewriteFusion
from retrievers.types import Ranking
from reward.base import RewriteAttempt
from reward.retrieval import Baseline, RetrievalReward
from reward.terms import TERMS, check_term
from rewrite.align.samples import AlignQuery
from rewrite.errors import BackendDown
from rewrite.template import Template
from rewrite.types import Answer


@dataclass(frozen=True, slots=True)
class RewardSettings:
    """The reward of an answer."""

    terms: dict[str, float] = field(default_factory=lambda: {"recall@5": 1.0, "rank@5": 0.2, "format": 0.1})
    """Metrics (recall@5, ndcg@5, comp@5, rank@5, mrr) and format, length, language, abstain, with weights."""
    fusion: RewriteFusion = field(default_factory=lambda: RewriteFusion("weighted", 0.6))
    """The ranking that is scored: as it will be served or, at raw: 0, the rewrite's alone."""
    baseline: Baseline = "none"
    """Zero of the reward. none: an answer that earns nothing; raw: leaving the query alone, so that the reward is the
    gain by the rewrite. Unreadable answers are below both."""
    rerank: RerankSettings | None = None
    """Pays for the reranked list, as it will be served; its model is loaded beside the policy."""

    def __post_init__(self) -> None:
        for name in self.terms:
            try:
                check_term(name)
            except ValueError as error:
                raise BadInput(str(error), "terms") from error
        if all(name in TERMS for name in self.terms):
            raise BadInput(f"a reward needs a metric such as recall@5, got {', '.join(self.terms)}", "terms")


class ServedSearch:
    """Rankings as `ToolSearch` serves them: fused, with exactly named tools in front."""

    def __init__(self, search: ToolSearch, fusion: RewriteFusion) -> None:
        self._search, self._fusion = search, fusion

    @property
    def fingerprint(self) -> str:
        return self._search.fingerprint

    @property
    def by_utterance(self) -> bool:
        return self._search.by_utterance

    def search(self, texts: Sequence[str], k: int, utterances: Sequence[str]) -> list[Ranking]:
        return self._search.retrieve(texts, k, utterances=utterances)

    def __call__(self, utterance: str, raw: Ranking, lists: Sequence[Ranking], k: int) -> Ranking:
        return self._search.fuse(utterance, raw, lists, k, self._fusion)

    def rerank(self, utterances: Sequence[str], rankings: Sequence[Ranking]) -> list[Ranking]:
        """The lists in their new order; a failing reranker stops the training."""
        reranked = self._search.rerank(utterances, rankings)
        if any(one.failure for one in reranked):
            raise BackendDown(
                "the reranker of the reward answers no number; leave `reward.rerank` out, or train it again"
            )
        return [one.ranking for one in reranked]


class ToolReward:
    """Scores answers. Indexes are opened when needed, again in every process that unpickles it."""

    def __init__(
        self, sources: Sequence[TargetsFolder], template: Template, settings: RewardSettings, context: Context
    ) -> None:
        self._template, self._settings, self._device = template, settings, context.device
        self._sources = {
            source.name: {key: str(source.facts[key]) for key in ("index", "retriever", "fingerprint")}
            for source in sources
        }
        self._context: Context | None = context
        self._opened: dict[str, RetrievalReward] = {}
        self._parts: RerankerParts | None = find_reranker(settings.rerank) if settings.rerank else None
        self._model: Reranker | None = None

    def open(self) -> None:
        """Open all indexes; one that changed since the targets were made is refused."""
        for name in self._sources:
            self._reward(name)

    def __call__(self, queries: Sequence[AlignQuery], answers: Sequence[Answer]) -> list[float]:
        """One reward per answer."""
        values: list[float] = self.explain(queries, answers)["reward"].tolist()
        return values

    def explain(self, queries: Sequence[AlignQuery], answers: Sequence[Answer]) -> dict[str, np.ndarray]:
        """Every term, and the reward; each retriever is called at most once."""
        attempts = [self._attempt(query, answer) for query, answer in zip(queries, answers, strict=True)]
        terms: dict[str, np.ndarray] = {"reward": np.zeros(len(attempts))}
        for source in dict.fromkeys(query.source for query in queries):
            rows = [row for row, query in enumerate(queries) if query.source == source]
            for name, values in self._reward(source).explain([attempts[row] for row in rows]).items():
                terms.setdefault(name, np.zeros(len(attempts)))[rows] = values
        return terms

    def _attempt(self, query: AlignQuery, answer: Answer) -> RewriteAttempt:
        rewrite = self._template.parse(answer)
        return RewriteAttempt(
            query.example.utterance,
            frozenset(query.example.gold),
            rewrite.lines,
            rewrite.status != "unparseable",
            answer.finished,
            max(0, len(answer.text) - len(self._template.none)),
        )

    def _reward(self, name: str) -> RetrievalReward:
        if name not in self._opened:
            source = self._sources[name]
            self._context = self._context or make_context(self._device)
            index = Index(Path(source["index"]), self._context)
            search = ToolSearch(index, source["retriever"], held_out=True)
            if self._parts is not None:
                self._model = self._model or CachedReranker(load_model(self._parts, self._device, self._context.vllm))
                search.reranker = make_stage(self._parts, self._model, search.words)
            if search.fingerprint != source["fingerprint"]:
                raise ModelMismatch(
                    f"the targets were made with {source['retriever']} of {source['index']} in the state "
                    f"{source['fingerprint']}, which is {search.fingerprint} now; make them again with "
                    "`rewrite-train targets`"
                )
            served = ServedSearch(search, self._settings.fusion)
            rerank = served.rerank if self._parts is not None else None
            self._opened[name] = RetrievalReward(served, served, self._settings.terms, self._settings.baseline, rerank)
        return self._opened[name]

    def __getstate__(self) -> dict[str, Any]:
        """Leave out open indexes; another process opens its own."""
        return {**self.__dict__, "_context": None, "_opened": {}, "_model": None}
