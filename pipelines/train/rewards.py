"""The reward of an alignment: answers parsed by the template, scored by the frozen retrievers of their data sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.context import make_context
from pipelines.search import ToolSearch
from pipelines.train.training_sources import Source
from retrievers.errors import BadInput, ModelMismatch
from retrievers.index import Index
from retrievers.kind import Context
from retrievers.settings import RewriteFusion
from retrievers.types import Ranking
from reward.base import RewriteAttempt
from reward.retrieval import RetrievalReward
from reward.terms import TERMS, check_term
from rewrite.align.query import AlignQuery
from rewrite.template import Template
from rewrite.types import Answer


@dataclass(frozen=True, slots=True)
class RewardSettings:
    """What an answer earns."""

    terms: dict[str, float] = field(default_factory=lambda: {"recall@5": 1.0, "rank@5": 0.2, "format": 0.1})
    """Metrics (recall@5, ndcg@5, comp@5, rank@5, mrr) and format, length, language, abstain, each with its weight."""
    fusion: RewriteFusion = field(default_factory=lambda: RewriteFusion("weighted", 0.6))
    """The list that is scored: the one that will be served or, at raw: 0, the rewrite's alone."""
    fingerprint: str = ""
    """The state of the index that is meant; another one is refused. Empty: the one that the targets were made with."""

    def __post_init__(self) -> None:
        for name in self.terms:
            try:
                check_term(name)
            except ValueError as error:
                raise BadInput(str(error), "terms") from error
        if all(name in TERMS for name in self.terms):
            raise BadInput("a reward needs a metric, for example recall@5", "terms")


@dataclass(frozen=True, slots=True)
class _Place:
    index: str
    retriever: str
    fingerprint: str


class _Served:
    """Lists as `ToolSearch` serves them: fused, with tools that are named outright in front."""

    def __init__(self, search: ToolSearch, fusion: RewriteFusion) -> None:
        self._search, self._fusion = search, fusion

    @property
    def fingerprint(self) -> str:
        return self._search.fingerprint

    def search(self, queries: Sequence[str], k: int) -> list[Ranking]:
        return self._search.retrieve(queries, k)

    def __call__(self, utterance: str, raw: Ranking, lists: Sequence[Ranking], k: int) -> Ranking:
        return self._search.fuse(utterance, raw, lists, k, self._fusion)


class ToolReward:
    """Callable with queries and answers. Indexes are opened when needed, again in every process it is sent to."""

    def __init__(
        self, sources: Sequence[Source], template: Template, settings: RewardSettings, context: Context
    ) -> None:
        self._template, self._settings, self._device = template, settings, context.device
        self._places = {
            each.name: _Place(
                str(each.facts["index"]),
                str(each.facts["retriever"]),
                settings.fingerprint or each.facts["fingerprint"],
            )
            for each in sources
        }
        self._context: Context | None = context
        self._opened: dict[str, RetrievalReward] = {}

    def open(self) -> None:
        """Opens all indexes: one in another state than the one that is meant is refused."""
        for name in self._places:
            self._reward(name)

    def __call__(self, queries: Sequence[AlignQuery], answers: Sequence[Answer]) -> list[float]:
        """One number an answer."""
        values: list[float] = self.explain(queries, answers)["reward"].tolist()
        return values

    def explain(self, queries: Sequence[AlignQuery], answers: Sequence[Answer]) -> dict[str, np.ndarray]:
        """Every term by itself, and the reward; each retriever is asked once at most."""
        attempts = [self._attempt(query, answer) for query, answer in zip(queries, answers, strict=True)]
        found: dict[str, np.ndarray] = {"reward": np.zeros(len(attempts))}
        for source in dict.fromkeys(query.source for query in queries):
            rows = [place for place, query in enumerate(queries) if query.source == source]
            for name, values in self._reward(source).explain([attempts[place] for place in rows]).items():
                found.setdefault(name, np.zeros(len(attempts)))[rows] = values
        return found

    def _attempt(self, query: AlignQuery, answer: Answer) -> RewriteAttempt:
        rewrite = self._template.parse(answer)
        return RewriteAttempt(
            query.example.utterance,
            frozenset(query.example.gold),
            rewrite.lines,
            rewrite.status != "unparseable",
            answer.finished,
            len(answer.text),
        )

    def _reward(self, source: str) -> RetrievalReward:
        if source not in self._opened:
            place = self._places[source]
            self._context = self._context or make_context(self._device)
            served = _Served(
                ToolSearch(Index(Path(place.index), self._context), place.retriever), self._settings.fusion
            )
            if served.fingerprint != place.fingerprint:
                raise ModelMismatch(
                    f"the reward wants {place.retriever} of {place.index} in the state {place.fingerprint}, and finds "
                    f"{served.fingerprint}; make the targets again with `rewrite-train targets`, or name this state as "
                    "reward.fingerprint"
                )
            self._opened[source] = RetrievalReward(served, served, self._settings.terms)
        return self._opened[source]

    def __getstate__(self) -> dict[str, Any]:
        """Another process opens its own indexes."""
        return {**self.__dict__, "_context": None, "_opened": {}}
