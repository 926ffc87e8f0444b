"""The first step of a query's path: does it need a tool at all? And how well that is told, by source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipelines.data.labels import Label
from retrievers.base import Detector
from retrievers.index import Index

CHUNK = 256
"""Queries asked at a time."""


@dataclass(frozen=True, slots=True)
class Detection:
    """What the detector says of one utterance."""

    needs_tool: bool
    probability: float
    threshold: float


def find_detector(index: Index, retriever: str) -> Detector | None:
    """The retriever itself, or the first part of a hybrid that can tell; None: nobody here can."""
    found = index.retriever(retriever)
    if isinstance(found, Detector):
        return found
    parts = index.manifest.retrievers[retriever].settings.get("of", ())
    return next((each for part in parts if (each := find_detector(index, part)) is not None), None)


def detect(detector: Detector, utterances: Sequence[str], threshold: float | None = None) -> list[Detection]:
    """One verdict an utterance, by the detector's own threshold or another."""
    edge = detector.threshold if threshold is None else threshold
    found: list[Detection] = []
    for start in range(0, len(utterances), CHUNK):
        likely = detector.probabilities(utterances[start : start + CHUNK])
        found.extend(Detection(each >= edge, each, edge) for each in likely)
    return found


@dataclass(frozen=True, slots=True)
class Told:
    """How well one source's queries were told apart. A share of nothing is None."""

    source: str
    needing: int
    others: int
    kept: float | None
    """The share of queries needing a tool that was let through."""
    refused: float | None
    """The share of the others that was turned away."""

    @property
    def balanced(self) -> float | None:
        """The mean of both."""
        return None if self.kept is None or self.refused is None else (self.kept + self.refused) / 2


def tell(labels: Sequence[Label], found: Sequence[Detection]) -> list[Told]:
    """All together first, then source by source. A source of one kind only has no balance of its own."""
    sources = sorted({each.source for each in labels if each.source})
    rows = [("all", list(zip(labels, found, strict=True)))]
    rows += [(name, [pair for pair in rows[0][1] if pair[0].source == name]) for name in sources]
    told = []
    for name, pairs in rows:
        needing = [verdict.needs_tool for label, verdict in pairs if label.needs]
        others = [not verdict.needs_tool for label, verdict in pairs if not label.needs]
        told.append(Told(name, len(needing), len(others), _share(needing), _share(others)))
    return told


def _share(right: Sequence[bool]) -> float | None:
    return sum(right) / len(right) if right else None
