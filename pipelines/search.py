"""ToolSearch: the one path of a query, shared by commands, evaluation, batch jobs and the server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tqdm import tqdm

from pipelines.calibration import FittingTools, NothingFits, check_min_score, fitting_tools, open_calibrator
from pipelines.detection import Detection, detect, find_detector
from pipelines.held_out import open_held_out
from pipelines.phrasing import phrase
from pipelines.rerank.loading import retriever_words
from pipelines.rerank.stage import RerankedRanking, RerankFailure, RerankStage
from retrievers.errors import BadInput
from retrievers.fusion import with_raw
from retrievers.generative.retriever import GenerativeRetriever
from retrievers.index import Index
from retrievers.rerank.ordering import count_fixed
from retrievers.settings import RewriteFusion
from retrievers.text import clean, document
from retrievers.types import Ranking, ToolId
from rewrite.rewriter import Rewriter
from rewrite.template import Template
from rewrite.types import Rewrite, RewriteRequest

CHUNK = 256
"""Queries per retriever call, and per step of the progress bar."""
DEPTH = 100
"""Tools kept of a ranking that will be fused with others."""


@dataclass(frozen=True, slots=True)
class ToolSearchResult:
    """The ranking of one utterance, with the steps that led to it."""

    ranking: Ranking
    raw: Ranking
    rewrite: Rewrite | None = None
    line_rankings: tuple[Ranking, ...] = ()
    """One per line of the rewrite."""
    detection: Detection | None = None
    """None: the index has no detector, or detection was off."""
    relevance: tuple[float, ...] | None = None
    """Per tool, the probability that its group of five tools holds one that is needed; None: not calibrated."""
    nothing_fits: NothingFits | None = None
    """Why `min_score` or `min_probability` left no tool."""
    probabilities: tuple[float, ...] | None = None
    """Per tool, the probability that the request needs it; None: not calibrated."""
    rerank_failure: RerankFailure | None = None
    """Why the ranking is in its first order although there is a reranker."""


class ToolSearch:
    """Utterances in, ranked tools out: detector, raw retrieval, rewriter, fusion, reranker.

    Detector, rewriter and reranker are optional.
    """

    def __init__(
        self,
        index: Index,
        retriever: str,
        rewriter: Rewriter | None = None,
        fusion: RewriteFusion | None = None,
        phrasing: str = "named",
        held_out: bool = False,
        reranker: RerankStage | None = None,
    ) -> None:
        """`phrasing` names the form in which candidate tools are shown to the rewriter.

        `held_out`: for training and dev. A retriever that remembers queries searches as if it did not know the
        utterance, near copies of it and dev queries.
        """
        self.retriever, self._detector = index.retriever(retriever), find_detector(index, retriever)
        self.held_out = open_held_out(index, retriever) if held_out else None
        self._names = index.exact_names()
        self._calibrator, self._name = open_calibrator(index, retriever), f"{retriever!r} of {index.name}"
        self.words = retriever_words(index, retriever)
        """The retriever in words, by which a reranker's card knows it."""
        self._rewriter, self._fusion, self._phrasing = rewriter, fusion or RewriteFusion(), phrasing
        self._progress, self.reranker = index.context.show_progress, reranker
        self.fingerprint = self.retriever.fingerprint
        self.fields, self.tools = index.manifest.text, index.tools

    @property
    def by_utterance(self) -> bool:
        """True if the ranking of a text depends on the utterance for which it was written."""
        return self.held_out is not None

    @property
    def branches(self) -> Mapping[ToolId, tuple[int, ...]]:
        """Each tool's path in the tree of codes; empty for retrievers without codes."""
        return self.retriever.branches if isinstance(self.retriever, GenerativeRetriever) else {}

    @property
    def has_detector(self) -> bool:
        """True if the index can decide which utterances need a tool."""
        return self._detector is not None

    @property
    def is_calibrated(self) -> bool:
        """True if tools have a relevance and a probability, which `min_score` and `min_probability` need."""
        return self._calibrator is not None or (self.reranker is not None and self.reranker.calibration is not None)

    def search(
        self,
        utterances: Sequence[str],
        k: int,
        detect: bool = True,
        min_score: float | None = None,
        min_probability: float | None = None,
    ) -> list[Ranking]:
        """Rank the tools of each utterance. Tools named in the utterance come first.

        `min_score`: leave out tools with a lower relevance, the probability that their group of five has a right one.
        `min_probability`: leave out tools that are less probably needed themselves.
        """
        results = self.explain(utterances, k, detect, min_score=min_score, min_probability=min_probability)
        return [result.ranking for result in results]

    def explain(
        self,
        utterances: Sequence[str],
        k: int,
        detect: bool = True,
        threshold: float | None = None,
        min_score: float | None = None,
        min_probability: float | None = None,
    ) -> list[ToolSearchResult]:
        """Rank with all intermediate results. Utterances that need no tool get an empty ranking if `detect` is on.

        `threshold` replaces the detector's own.
        """
        self.check_min_score(min_score, min_probability)
        detections = self.detect(utterances, threshold) if detect else [None] * len(utterances)
        needed = [i for i, detection in enumerate(detections) if detection is None or detection.needs_tool]
        results = [ToolSearchResult(Ranking(), Ranking(), detection=detection) for detection in detections]
        for i, result in zip(needed, self._explain([utterances[i] for i in needed], k), strict=True):
            lists = (result.raw, *result.line_rankings)
            fitting = self.keep_fitting(utterances[i], result.ranking, lists, min_score, min_probability)
            results[i] = replace(
                result,
                ranking=fitting.ranking,
                detection=detections[i],
                relevance=fitting.relevance,
                nothing_fits=fitting.nothing_fits,
                probabilities=fitting.probabilities,
            )
        return results

    def check_min_score(self, min_score: float | None, min_probability: float | None = None) -> None:
        """Refuse thresholds that are no probabilities, or that a retriever without calibration cannot apply."""
        for name, value in (("min_score", min_score), ("min_probability", min_probability)):
            if value is None:
                continue
            check_min_score(value, name)
            if not self.is_calibrated:
                raise BadInput(
                    f"{name} needs a calibrated retriever, and {self._name} is not; run `rewrite-index calibrate`"
                )

    def keep_fitting(
        self,
        utterance: str,
        ranking: Ranking,
        lists: Sequence[Ranking],
        min_score: float | None = None,
        min_probability: float | None = None,
    ) -> FittingTools:
        """The relevance of an answer's tools, and the answer without those below the thresholds.

        `lists`: the rankings of utterance and rewrite that were fused into it.
        """
        if self._calibrator is None and not ranking.probabilities:
            return FittingTools(ranking, None)
        return fitting_tools(ranking, lists, self._names.find(utterance), min_score, min_probability)

    def detect(self, utterances: Sequence[str], threshold: float | None = None) -> list[Detection | None]:
        """Decide which utterances need a tool; None without a detector. An utterance that names a tool needs it."""
        if self._detector is None:
            return [None] * len(utterances)
        detections = detect(self._detector, utterances, threshold)
        return [
            replace(detection, needs_tool=detection.needs_tool or bool(self._names.find(utterance)))
            for utterance, detection in zip(utterances, detections, strict=True)
        ]

    def _explain(self, utterances: Sequence[str], k: int) -> list[ToolSearchResult]:
        if self._rewriter is None:
            depth = k if self.reranker is None else max(k, DEPTH)
            raw = self.retrieve(utterances, depth) if self.held_out else self._search(utterances, depth, utterances)
            lists: list[list[Ranking]] = [[] for _ in raw]
            return self._results(utterances, raw, [None] * len(raw), lists, k)
        raw = self.retrieve(utterances, max(k, DEPTH))
        inputs = self.rewrite_inputs(utterances, raw, self._rewriter.template)
        rewrites = self._rewriter.rewrite(inputs, self._progress)
        return self._results(utterances, raw, rewrites, self.search_rewrites(rewrites, utterances), k)

    def _results(
        self,
        utterances: Sequence[str],
        raw: Sequence[Ranking],
        rewrites: Sequence[Rewrite | None],
        lists: Sequence[Sequence[Ranking]],
        k: int,
    ) -> list[ToolSearchResult]:
        """Fuse and rerank."""
        depth = k if self.reranker is None else max(k, DEPTH)
        rows = list(zip(utterances, raw, lists, strict=True))
        fused = [self.fuse(utterance, ranking, lines, depth) for utterance, ranking, lines in rows]
        return [
            ToolSearchResult(one.ranking.cut(k), ranking, rewrite, tuple(lines), rerank_failure=one.failure)
            for one, (_, ranking, lines), rewrite in zip(self.rerank(utterances, fused), rows, rewrites, strict=True)
        ]

    def rerank(
        self, utterances: Sequence[str], rankings: Sequence[Ranking], reranker: RerankStage | None = None
    ) -> list[RerankedRanking]:
        """Rerank fused lists by `reranker`, else by its own; tools that the utterance names stay in front."""
        stage = reranker or self.reranker
        if stage is None:
            return [RerankedRanking(ranking) for ranking in rankings]
        pairs = zip(utterances, rankings, strict=True)
        fixed = [count_fixed(ranking, self._names.find(utterance)) for utterance, ranking in pairs]
        return stage.rerank(utterances, rankings, fixed, lambda tool: clean(document(self.tools[tool], self.fields)))

    def fuse(
        self, utterance: str, raw: Ranking, lines: Sequence[Ranking], k: int, fusion: RewriteFusion | None = None
    ) -> Ranking:
        """Fuse the raw ranking with the rankings of a rewrite's lines."""
        return self._names.promote(utterance, with_raw(raw, lines, k, fusion or self._fusion), k)

    def rewrite_inputs(
        self, utterances: Sequence[str], raw: Sequence[Ranking], template: Template
    ) -> list[RewriteRequest]:
        """Make the rewriter's inputs: utterances, with candidate tools from `raw` if the template shows some."""
        if not template.candidates:
            return [RewriteRequest(utterance) for utterance in utterances]
        return [
            RewriteRequest(
                utterance,
                tuple(
                    phrase(self.tools[tool], self._phrasing, template.max_characters, self.fields)
                    for tool in ranking.ids[: template.candidates]
                ),
            )
            for utterance, ranking in zip(utterances, raw, strict=True)
        ]

    def search_rewrites(self, rewrites: Sequence[Rewrite], utterances: Sequence[str]) -> list[list[Ranking]]:
        """For every rewrite, one ranking per line."""
        return self.search_lines([rewrite.lines for rewrite in rewrites], utterances)

    def search_lines(
        self, lines: Sequence[Sequence[str]], utterances: Sequence[str], label: str = "searching"
    ) -> list[list[Ranking]]:
        """For every utterance, one ranking per line written for it; all distinct searches are made together."""
        owners = utterances if self.by_utterance else [""] * len(utterances)
        keys = [[(line, owner) for line in own] for own, owner in zip(lines, owners, strict=True)]
        unique = list(dict.fromkeys(key for own in keys for key in own))
        texts = [line for line, _ in unique]
        searched = self.retrieve(texts, DEPTH, label, [owner for _, owner in unique])
        rankings = dict(zip(unique, searched, strict=True))
        return [[rankings[key] for key in own] for own in keys]

    def retrieve(
        self, texts: Sequence[str], k: int, label: str = "searching", utterances: Sequence[str] | None = None
    ) -> list[Ranking]:
        """Run the retriever alone: no detector, no rewriter, no exact names. Shows progress on a terminal.

        `utterances`: those for which the texts were written, if they are not utterances themselves.
        """
        rankings: list[Ranking] = []
        owners = texts if utterances is None else utterances
        steps = range(0, len(texts), CHUNK)
        for start in tqdm(steps, desc=label, leave=False) if self._progress and len(steps) > 4 else steps:
            part = slice(start, start + CHUNK)
            rankings.extend(self._search(texts[part], k, owners[part]))
        return rankings

    def _search(self, texts: Sequence[str], k: int, owners: Sequence[str]) -> list[Ranking]:
        """Rankings with probabilities, if the retriever is calibrated."""
        depth = self._calibrator.depth(k) if self._calibrator else k
        if self.held_out is not None:
            rankings = self.held_out.search(texts, depth, owners)
        else:
            rankings = self.retriever.search(texts, depth)
        return self._calibrator.add(texts, rankings, k) if self._calibrator else [one.cut(k) for one in rankings]

    def check_tools(self, ids: Iterable[str], index: str = "the index") -> None:
        """Refuse a data set whose tools differ from the index's; `index` is its name in the message."""
        different = sorted(set(ids) ^ self.tools.keys())
        if different:
            verb = "has" if different[0] in self.tools else "lacks"
            raise BadInput(f"{index} {verb} the tool {different[0]!r}, unlike the data set; build it from its corpus")
