"""Evaluate a rewriter on dev queries by retrieval, while it is trained."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
from annotated_types import Ge

from pipelines.evaluate.fusion_selection import FusionDevSet, FusionScore, choose_fusion
from pipelines.search import DEPTH, ToolSearch
from pipelines.train.sources import TargetsFolder
from retrievers.errors import BadInput, ModelMismatch
from retrievers.index import Index
from retrievers.kind import Context
from retrievers.settings import RewriteFusion
from retrievers.types import ToolId
from reward.metrics import parse_metric
from rewrite.sft.examples import Example
from rewrite.types import Rewrite


@dataclass(frozen=True, slots=True)
class DevSettings:
    """Evaluation on dev while training."""

    queries: Annotated[int, Ge(1)] = 200
    """Dev queries per data set, drawn by the seed."""
    metric: str = "recall@5"
    """The metric that picks the best checkpoint."""
    fusion: RewriteFusion = field(default_factory=lambda: RewriteFusion("interleave", 0.0))
    """Fusion with the raw query; at raw: 0 the rewrite alone."""
    max_tokens: Annotated[int, Ge(1)] = 192
    """Tokens after which an answer is cut."""
    batch_size: Annotated[int, Ge(1)] = 64

    def __post_init__(self) -> None:
        _, k = parse_metric(self.metric)
        if k is not None and k > DEPTH:
            raise BadInput(f"rankings are {DEPTH} tools deep, got {self.metric!r}", "metric")


def choose_dev(sources: Sequence[TargetsFolder], queries: int, seed: int) -> list[list[Example]]:
    """Draw the dev examples of every data set."""
    return [
        random.Random(f"{seed}/{source.name}").sample(source.dev, min(queries, len(source.dev))) for source in sources
    ]


def spread(sizes: Sequence[int], count: int) -> list[int]:
    """Indices into the concatenation of several sets, taken from each set in turn."""
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    turns = [(turn, start + turn) for start, size in zip(starts, sizes, strict=True) for turn in range(size)]
    return sorted(index for _, index in sorted(turns)[:count])


class DevEvaluator:
    """Scores rewrites of dev queries by what the frozen retrievers find with them."""

    def __init__(
        self,
        sources: Sequence[TargetsFolder],
        dev: Sequence[list[Example]],
        settings: DevSettings,
        context: Context,
        seen_tools: Collection[tuple[str, ToolId]] = (),
    ) -> None:
        """`seen_tools` (data set, id): with some, queries whose tools were all seen are also scored apart."""
        self._settings, self._seen_tools = settings, frozenset(seen_tools)
        self._sets: list[tuple[str, ToolSearch, list[Example]]] = []
        for source, examples in zip(sources, dev, strict=True):
            index = Index(Path(source.facts["index"]), context)
            search = ToolSearch(index, source.facts["retriever"], held_out=True)
            if search.fingerprint != source.facts["fingerprint"]:
                raise ModelMismatch(
                    f"the targets of {source.name} were made with another state of {source.facts['index']}; "
                    "make them again with `rewrite-train targets`"
                )
            self._sets.append((source.name, search, examples))
        self._raw = [
            search.retrieve([example.utterance for example in examples], DEPTH) for _, search, examples in self._sets
        ]

    def __call__(self, rewrites: Sequence[Rewrite]) -> dict[str, float]:
        """The metric of every data set, and their mean."""
        metric, fusion = self._settings.metric, self._settings.fusion
        scores = [dev_set.scores(fusion, metric) for dev_set in self._dev_sets(rewrites)]
        means = {f"{name}_{metric}": float(row.mean()) for (name, _, _), row in zip(self._sets, scores, strict=True)}
        return {metric: sum(means.values()) / len(means), **means, **self._by_seen_tools(scores)}

    def _by_seen_tools(self, scores: Sequence[np.ndarray]) -> dict[str, float]:
        """The metric over queries whose tools were all seen in training, and over the others."""
        if not self._seen_tools:
            return {}
        sides: dict[str, list[float]] = {"seen": [], "unseen": []}
        for (name, _, examples), row in zip(self._sets, scores, strict=True):
            for example, score in zip(examples, row.tolist(), strict=True):
                seen = all((name, tool) in self._seen_tools for tool in example.gold)
                sides["seen" if seen else "unseen"].append(score)
        return {f"{side}_{self._settings.metric}": sum(row) / len(row) for side, row in sides.items() if row}

    def choose_fusion(self, rewrites: Sequence[Rewrite]) -> list[FusionScore]:
        """Fusions of the rewrites with the raw queries, the chosen one first."""
        return choose_fusion(self._dev_sets(rewrites), self._settings.metric)

    def _dev_sets(self, rewrites: Sequence[Rewrite]) -> list[FusionDevSet]:
        dev_sets, start = [], 0
        for (_, search, examples), raw in zip(self._sets, self._raw, strict=True):
            utterances = [example.utterance for example in examples]
            lists = search.search_rewrites(rewrites[start : start + len(examples)], utterances)
            start += len(examples)
            gold = [frozenset(example.gold) for example in examples]
            dev_sets.append(FusionDevSet(search, utterances, raw, lists, gold))
        return dev_sets

    def raw_scores(self) -> dict[str, float]:
        """The scores of the raw queries."""
        return self([Rewrite((), "none")] * sum(len(examples) for _, _, examples in self._sets))
