"""Systems with a rewriter: each rewriter answers each query once, however many systems use the answer."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pipelines.evaluate.context import EvalContext, RetrieverRef, Timed
from pipelines.evaluate.fusion_selection import FusionDevSet, FusionScore, choose_fusion
from pipelines.evaluate.reranked_systems import FusedLists
from pipelines.rewriters import RewriterParts, RewriterSettings, describe, find_parts, load_rewriter
from retrievers.errors import BadInput
from retrievers.settings import RewriteFusion
from retrievers.types import Ranking
from reward.metrics import DEPTH
from rewrite.rewriter import Rewriter
from rewrite.types import Rewrite

DEV = "dev"
"""The split on which fusions are chosen."""
METRIC = "recall@5"
"""The metric by which they are chosen."""


@dataclass(frozen=True, slots=True)
class RewriterUse:
    """The use of a rewriter by a system."""

    rewriter: str
    ref: RetrieverRef
    choose: bool


@dataclass(frozen=True, slots=True)
class RewriterAnswers:
    """A rewriter's answers to the queries of the evaluation, in their order."""

    rewrites: tuple[Rewrite, ...]
    seconds: float
    facts: Mapping[str, Any]
    """Model, template and settings of the rewriter."""


@dataclass(frozen=True, slots=True)
class SystemFusion:
    """The fusion of a system with a rewriter."""

    rewriter: str
    """Label of the rewriter's answers."""
    fusion: RewriteFusion
    tried: tuple[FusionScore, ...] = ()
    """Dev scores of all fusions tried, the chosen one first; empty if the config gives the fusion."""


class RewriterPool:
    """The rewriters of an evaluation: checked together, then loaded one after the other."""

    def __init__(
        self, evaluation: EvalContext, settings: Mapping[str, RewriterSettings], uses: Iterable[RewriterUse]
    ) -> None:
        """Check everything that can be checked before a model is loaded."""
        self._evaluation, self._settings, self._uses = evaluation, settings, list(uses)
        self._parts = {name: find_parts(settings[name]) for name in dict.fromkeys(use.rewriter for use in self._uses)}
        choosing = {use.rewriter for use in self._uses if use.choose}
        for name, parts in self._parts.items():
            _refuse_trained(name, parts, evaluation, name in choosing)
        if choosing:
            evaluation.queries.order(DEV)
        self._rewrites: dict[tuple[str, RetrieverRef | None, str], Timed[list[Rewrite]]] = {}
        self._rankings: dict[tuple[str, RetrieverRef, str], Timed[list[list[Ranking]]]] = {}

    def answer(self) -> None:
        """Run every rewriter on all its queries. Only one is in memory at a time."""
        for name, parts in self._parts.items():
            rewriter = load_rewriter(self._settings[name], parts, self._evaluation.context.device)
            for use in self._uses:
                # Dev first, so that a model's slow start does not count in the evaluation's time.
                for split in (*((DEV,) if use.choose else ()), self._evaluation.queries.split):
                    key = (name, self._candidates(use), split)
                    if use.rewriter == name and key not in self._rewrites:
                        self._rewrites[key] = self._run(rewriter, use, split)
            del rewriter
            free_memory()

    def _run(self, rewriter: Rewriter, use: RewriterUse, split: str) -> Timed[list[Rewrite]]:
        evaluation = self._evaluation
        search = evaluation.search(use.ref, self.parts(use).phrasing, split)
        raw = evaluation.raw(use.ref, split)
        inputs = search.rewrite_inputs(evaluation.queries.texts(split), raw.value, rewriter.template)
        return evaluation.timed(lambda: rewriter.rewrite(inputs, evaluation.context.show_progress))

    def rank(self, use: RewriterUse, fusion: RewriteFusion | None) -> tuple[FusedLists, SystemFusion]:
        """A system's rankings before they are reranked, and its fusion."""
        evaluation, split = self._evaluation, self._evaluation.queries.split
        search = evaluation.search(use.ref, split=split)
        tried = tuple(self._choose(use)) if use.choose else ()
        given = fusion or self._settings[use.rewriter].fusion
        chosen = tried[0].fusion if tried else given or self.parts(use).fusion or RewriteFusion()
        raw, rewrites = evaluation.raw(use.ref, split), self._rewrites_of(use, split)
        line_rankings, texts = self._search_rewrites(use, split), evaluation.queries.texts(split)
        fused = evaluation.timed(
            lambda: [
                search.fuse(text, ranking, lines, DEPTH, chosen)
                for text, ranking, lines in zip(texts, raw.value, line_rankings.value, strict=True)
            ]
        )
        seconds = raw.seconds + rewrites.seconds + line_rankings.seconds + fused.seconds
        parts = [[ranking, *lines] for ranking, lines in zip(raw.value, line_rankings.value, strict=True)]
        return FusedLists(fused.value, parts, seconds), SystemFusion(self._label(use), chosen, tried)

    def parts(self, use: RewriterUse) -> RewriterParts:
        """The parts of a system's rewriter."""
        return self._parts[use.rewriter]

    def answers(self) -> dict[str, RewriterAnswers]:
        """The answers of every rewriter, by label."""
        answers = {}
        for use in self._uses:
            rewrites = self._rewrites_of(use, self._evaluation.queries.split)
            sampling = self._settings[use.rewriter].sampling
            several = {name: getattr(sampling, name) for name in ("answers", "max_lines", "min_votes")}
            facts = describe(self.parts(use)) | (several if sampling.answers > 1 else {})
            answers[self._label(use)] = RewriterAnswers(tuple(rewrites.value), rewrites.seconds, facts)
        return answers

    def _choose(self, use: RewriterUse) -> list[FusionScore]:
        queries, search = self._evaluation.queries, self._evaluation.search(use.ref, split=DEV)
        raw, lines = self._evaluation.raw(use.ref, DEV).value, self._search_rewrites(use, DEV).value
        return choose_fusion([FusionDevSet(search, queries.texts(DEV), raw, lines, queries.gold(DEV))], METRIC)

    def _search_rewrites(self, use: RewriterUse, split: str) -> Timed[list[list[Ranking]]]:
        key = (use.rewriter, use.ref, split)
        if key not in self._rankings:
            search, rewrites = self._evaluation.search(use.ref, split=split), self._rewrites_of(use, split).value
            texts = self._evaluation.queries.texts(split)
            self._rankings[key] = self._evaluation.timed(lambda: search.search_rewrites(rewrites, texts))
        return self._rankings[key]

    def _rewrites_of(self, use: RewriterUse, split: str) -> Timed[list[Rewrite]]:
        return self._rewrites[use.rewriter, self._candidates(use), split]

    def _candidates(self, use: RewriterUse) -> RetrieverRef | None:
        """The retriever whose tools the rewriter sees; None if it sees none, so that all retrievers share answers."""
        return use.ref if self.parts(use).template.candidates else None

    def _label(self, use: RewriterUse) -> str:
        """The rewriter's name, with the retriever's if it answers several of them differently."""
        refs = {self._candidates(other) for other in self._uses if other.rewriter == use.rewriter}
        if len(refs) == 1:
            return use.rewriter
        same_name = sum(ref is not None and ref.retriever == use.ref.retriever for ref in refs) > 1
        return f"{use.rewriter} with {use.ref.retriever}" + (f" of {use.ref.index}" if same_name else "")


def _refuse_trained(name: str, parts: RewriterParts, evaluation: EvalContext, choosing: bool) -> None:
    """Refuse a rewriter trained under another protocol: it may have seen held-out tools or dev queries."""
    queries = evaluation.queries
    dataset, protocol = queries.data.name, queries.protocol
    for source in parts.data:
        trained = source.get("protocol")
        other = source.get("dataset") == dataset and trained != protocol
        if other and protocol != "official" and not source.get("left_out"):
            raise BadInput(
                f"the rewriter {name!r} was trained on {dataset} with protocol {trained}, so it has seen the tools "
                f"that {protocol} holds out; train it on targets made with `protocol: {protocol}`"
            )
        if other and (choosing or queries.split != "test"):
            raise BadInput(
                f"the rewriter {name!r} was trained on {dataset} with protocol {trained}, so it may have seen dev "
                f"queries of protocol {protocol}; evaluate test with a given fusion"
            )


def free_memory() -> None:
    """Release the memory of unused models, on the GPU too."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
