"""Calibrated answers: the relevance of tools, the threshold `min_score`, and the reason for an empty answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from retrievers.calibration.evidence import HEAD, EvidenceReader
from retrievers.calibration.logistic import Calibration
from retrievers.calibration.relevance import DIGITS, relevance
from retrievers.calibration.shipped import shipped_calibration
from retrievers.errors import BadInput
from retrievers.index import Index
from retrievers.language.english import is_english
from retrievers.types import Ranking, ToolId


@dataclass(frozen=True, slots=True)
class NothingFits:
    """Why an answer is empty: its best tool, whose relevance is below `min_score`."""

    best: ToolId | None
    """None: no tool was found at all."""
    relevance: float
    min_score: float
    probability: float | None = None
    """That of the best tool, where `min_probability` left none."""
    min_probability: float | None = None

    def __str__(self) -> str:
        if self.best is None:
            return "no tool fits: none was found"
        if self.probability is not None and self.min_probability is not None:
            return (
                f"no tool fits: the best, {self.best}, has probability {self.probability:.2f}, below min_probability "
                f"{self.min_probability:g}"
            )
        return (
            f"no tool fits: the best, {self.best}, has relevance {self.relevance:.2f}, below min_score "
            f"{self.min_score:g}"
        )


@dataclass(frozen=True, slots=True)
class FittingTools:
    """The tools of an answer that reach `min_score` and `min_probability`."""

    ranking: Ranking
    relevance: tuple[float, ...] | None
    """One per tool; None: the retriever is not calibrated."""
    nothing_fits: NothingFits | None = None
    probabilities: tuple[float, ...] | None = None
    """One per tool: the estimated probability that the request needs this tool."""


@dataclass(frozen=True, slots=True)
class Calibrator:
    """Adds probabilities to the rankings of one retriever."""

    reader: EvidenceReader
    calibration: Calibration
    other_languages: Calibrator | None = None
    """Of the retriever that a hybrid asks about texts that are not English."""

    def depth(self, k: int) -> int:
        """Ranks to search for k tools: the mean of the first ten is part of the evidence."""
        return max(k, HEAD)

    def add(self, queries: Sequence[str], rankings: Sequence[Ranking], k: int) -> list[Ranking]:
        """The first k tools of each ranking, with probabilities."""
        if not self.other_languages:
            return self._add(queries, rankings, k)
        answers: dict[int, Ranking] = {}
        english = [is_english(query) for query in queries]
        for own, wanted in ((replace(self, other_languages=None), True), (self.other_languages, False)):
            read = [index for index, plain in enumerate(english) if plain == wanted]
            texts, lists = [queries[index] for index in read], [rankings[index] for index in read]
            answers.update(zip(read, own.add(texts, lists, k), strict=True))
        return [answers[index] for index in range(len(queries))]

    def _add(self, queries: Sequence[str], rankings: Sequence[Ranking], k: int) -> list[Ranking]:
        evidence = self.reader.read(queries, rankings)
        added = []
        for ranking, rows in zip(rankings, evidence, strict=True):
            values = self.calibration.probabilities(rows[:k]).round(DIGITS).tolist()
            added.append(replace(ranking.cut(k), probabilities=tuple(values)))
        return added


def find_calibration(index: Index, retriever: str) -> Calibration | None:
    """The calibration in the index, or the one that ships for such retrievers; None: there is none."""
    part = index.manifest.retrievers[retriever]
    if part.calibration:
        return Calibration(**{**part.calibration, "weights": tuple(part.calibration["weights"])})
    return shipped_calibration([index.manifest.retrievers[name].settings for name in part_names(index, retriever)])


def part_names(index: Index, retriever: str) -> tuple[str, ...]:
    """Names of the parts that a hybrid asks in English; any other retriever is its own only part."""
    return tuple(index.manifest.retrievers[retriever].settings.get("of", ())) or (retriever,)


def make_reader(index: Index, retriever: str) -> EvidenceReader:
    """Reads the evidence in rankings of a retriever."""
    return EvidenceReader(tuple(index.retriever(name) for name in part_names(index, retriever)))


def open_calibrator(index: Index, retriever: str) -> Calibrator | None:
    """The calibrator of a retriever; None if it is not calibrated, or not for every language."""
    calibration = find_calibration(index, retriever)
    others = index.manifest.retrievers[retriever].settings.get("other_languages", ())
    other = open_calibrator(index, others[0]) if len(others) == 1 else None
    if calibration is None or (others and other is None):
        return None
    return Calibrator(make_reader(index, retriever), calibration, other)


def check_min_score(value: float, name: str = "min_score") -> float:
    """The value, if it is a probability."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise BadInput(f"{name} must be a number between 0 and 1, got {value!r}")
    return value


def fitting_tools(
    ranking: Ranking,
    lists: Sequence[Ranking],
    named: Sequence[ToolId],
    min_score: float | None,
    min_probability: float | None = None,
) -> FittingTools:
    """Keep the tools of an answer that reach `min_score` and `min_probability`, and say why none is left.

    `lists`: the calibrated rankings that were fused into the answer. A tool has the probability of the answer itself,
    if that was reranked, else its highest one of the lists. A tool that the request names is certainly needed.
    """
    best: dict[ToolId, float] = {}
    for part in lists:
        for tool, probability in zip(part.ids, part.probabilities, strict=True):
            best[tool] = max(probability, best.get(tool, 0.0))
    best.update(zip(ranking.ids, ranking.probabilities, strict=False))
    best.update(dict.fromkeys(named, 1.0))
    own = [best.get(tool, 0.0) for tool in ranking.ids]
    values = relevance(own)
    count = len(ranking) if min_score is None else sum(value >= min_score for value in values)
    kept = [rank for rank in range(count) if min_probability is None or own[rank] >= min_probability]
    nothing = None
    if not kept and (min_score is not None or min_probability is not None):
        first, top = (ranking.ids[0], values[0]) if ranking else (None, 0.0)
        nothing = NothingFits(first, top, min_score or 0.0)
        if count:  # `min_score` left some
            likeliest = max(range(count), key=lambda rank: (own[rank], -rank))
            nothing = NothingFits(ranking.ids[likeliest], top, min_score or 0.0, own[likeliest], min_probability)
    return FittingTools(
        ranking.cut(count).without({ranking.ids[rank] for rank in range(count) if rank not in kept}),
        tuple(values[rank] for rank in kept),
        nothing,
        tuple(own[rank] for rank in kept),
    )
