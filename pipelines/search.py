"""ToolSearch: the one path of a query, for commands, evaluation, batch jobs and the server alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tqdm import tqdm

from pipelines.detection import Detection, detect, find_detector
from pipelines.phrasing import phrase
from retrievers.errors import BadInput
from retrievers.fusion import with_raw
from retrievers.generative.retriever import Generative
from retrievers.index import Index
from retrievers.settings import RewriteFusion
from retrievers.types import Ranking, ToolId
from rewrite.rewriter import Rewriter
from rewrite.template import Template
from rewrite.types import Ask, Rewrite

CHUNK = 256
"""Queries asked at a time: what a progress bar moves by."""
DEPTH = 100
"""Places kept of a list that will be fused with others."""


@dataclass(frozen=True, slots=True)
class Found:
    """What the path found for one utterance, and on the way."""

    ranking: Ranking
    raw: Ranking
    rewrite: Rewrite | None = None
    lists: tuple[Ranking, ...] = ()
    """One a line of the rewrite."""
    detection: Detection | None = None
    """None: the index has no detector, or it was not asked."""


class ToolSearch:
    """Utterances in, ranked tools out: the detector first where the index has one, then raw retrieval, and a rewriter
    beside it where there is one."""

    def __init__(
        self,
        index: Index,
        retriever: str,
        rewriter: Rewriter | None = None,
        fusion: RewriteFusion | None = None,
        phrasing: str = "named",
    ) -> None:
        """`phrasing` is how tools are shown to a rewriter that is shown some."""
        self._retriever, self._detector = index.retriever(retriever), find_detector(index, retriever)
        self._names = index.exact_names()
        self._rewriter, self._fusion, self._phrasing = rewriter, fusion or RewriteFusion(), phrasing
        self._progress = index.context.show_progress
        self.fingerprint = self._retriever.fingerprint
        self.fields, self.tools = index.manifest.text, index.tools

    @property
    def branches(self) -> Mapping[ToolId, tuple[int, ...]]:
        """Where in a tree of codes each tool is; empty where the retriever has none."""
        return self._retriever.branches if isinstance(self._retriever, Generative) else {}

    @property
    def detects(self) -> bool:
        """Can the index tell which utterances need a tool?"""
        return self._detector is not None

    def find(self, utterances: Sequence[str], k: int, detecting: bool = True) -> list[Ranking]:
        """One ranking an utterance. A tool that the utterance names outright stands first."""
        return [found.ranking for found in self.explain(utterances, k, detecting)]

    def explain(
        self, utterances: Sequence[str], k: int, detecting: bool = True, threshold: float | None = None
    ) -> list[Found]:
        """Rankings with what led to them. What needs no tool gets none, unless the detector is not asked.

        `threshold` takes the place of the detector's own.
        """
        verdicts = self.detect(utterances, threshold) if detecting else [None] * len(utterances)
        asked = [place for place, verdict in enumerate(verdicts) if verdict is None or verdict.needs_tool]
        found = [Found(Ranking(), Ranking(), detection=verdict) for verdict in verdicts]
        for place, each in zip(asked, self._explain([utterances[place] for place in asked], k), strict=True):
            found[place] = replace(each, detection=verdicts[place])
        return found

    def detect(self, utterances: Sequence[str], threshold: float | None = None) -> list[Detection | None]:
        """Whether each utterance needs a tool; None where the index cannot tell. One that names a tool needs it."""
        if self._detector is None:
            return [None] * len(utterances)
        verdicts = detect(self._detector, utterances, threshold)
        return [
            replace(verdict, needs_tool=verdict.needs_tool or bool(self._names.find(utterance)))
            for utterance, verdict in zip(utterances, verdicts, strict=True)
        ]

    def _explain(self, utterances: Sequence[str], k: int) -> list[Found]:
        if self._rewriter is None:
            raw = self._retriever.search(utterances, k)
            return [
                Found(self._names.promote(utterance, ranking, k), ranking)
                for utterance, ranking in zip(utterances, raw, strict=True)
            ]
        raw = self.ask(utterances, max(k, DEPTH))
        rewrites = self._rewriter.rewrite(self.asks(utterances, raw, self._rewriter.template), self._progress)
        lists = self.lists(rewrites)
        return [
            Found(self.fuse(utterance, ranking, lines, k), ranking, rewrite, tuple(lines))
            for utterance, ranking, rewrite, lines in zip(utterances, raw, rewrites, lists, strict=True)
        ]

    def fuse(
        self, utterance: str, raw: Ranking, lists: Sequence[Ranking], k: int, fusion: RewriteFusion | None = None
    ) -> Ranking:
        """The raw list and the lists of a rewrite as one."""
        return self._names.promote(utterance, with_raw(raw, lists, k, fusion or self._fusion), k)

    def asks(self, utterances: Sequence[str], raw: Sequence[Ranking], template: Template) -> list[Ask]:
        """What a rewriter is given: utterances, and the tools they found where its template shows some."""
        shown, most = template.candidates, template.most_characters
        if not shown:
            return [Ask(utterance) for utterance in utterances]
        return [
            Ask(
                utterance,
                tuple(phrase(self.tools[tool], self._phrasing, most, self.fields) for tool in ranking.ids[:shown]),
            )
            for utterance, ranking in zip(utterances, raw, strict=True)
        ]

    def lists(self, rewrites: Sequence[Rewrite], depth: int = DEPTH) -> list[list[Ranking]]:
        """For every rewrite one ranking a line, all lines asked together."""
        flat = list(dict.fromkeys(line for rewrite in rewrites for line in rewrite.lines))
        known = dict(zip(flat, self.ask(flat, depth), strict=True))
        return [[known[line] for line in rewrite.lines] for rewrite in rewrites]

    def ask(self, texts: Sequence[str], k: int, label: str = "searching") -> list[Ranking]:
        """The retriever's own rankings, with progress where somebody looks."""
        found: list[Ranking] = []
        steps = range(0, len(texts), CHUNK)
        for start in tqdm(steps, desc=label, leave=False) if self._progress and len(steps) > 4 else steps:
            found.extend(self._retriever.search(texts[start : start + CHUNK], k))
        return found

    def check_tools(self, ids: Iterable[str], index: str = "the index") -> None:
        """Refuses a data set whose tools are not the index's; `index` is what the message calls that."""
        strangers = sorted(set(ids) ^ self.tools.keys())
        if strangers:
            verb = "has" if strangers[0] in self.tools else "lacks"
            raise BadInput(f"{index} {verb} the tool {strangers[0]!r}, unlike the data set; build it from its corpus")
