"""Tool detection, the first step of a query's path: does the utterance need a tool at all?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipelines.data.labels import Label
from retrievers.base import Detector
from retrievers.index import Index
from retrievers.settings import hybrid_parts

CHUNK = 256
"""Queries per detector call."""


@dataclass(frozen=True, slots=True)
class Detection:
    """The detector's answer for one utterance."""

    needs_tool: bool
    probability: float
    threshold: float


def find_detector(index: Index, retriever: str) -> Detector | None:
    """The retriever itself if it detects, else the first part of a hybrid that does; None if there is none."""
    candidate = index.retriever(retriever)
    if isinstance(candidate, Detector):
        return candidate
    parts = hybrid_parts(index.manifest.retrievers[retriever].settings)
    return next((detector for part in parts if (detector := find_detector(index, part)) is not None), None)


def detect(detector: Detector, utterances: Sequence[str], threshold: float | None = None) -> list[Detection]:
    """One detection per utterance, by the detector's own threshold or the given one."""
    threshold = detector.threshold if threshold is None else threshold
    detections: list[Detection] = []
    for start in range(0, len(utterances), CHUNK):
        for probability in detector.probabilities(utterances[start : start + CHUNK]):
            detections.append(Detection(probability >= threshold, probability, threshold))
    return detections


@dataclass(frozen=True, slots=True)
class DetectionScores:
    """Detection quality on one source of labels. A share of no queries is None."""

    source: str
    needing: int
    others: int
    kept: float | None
    """Share of the queries needing a tool that were detected."""
    refused: float | None
    """Share of the other queries that were refused."""

    @property
    def balanced(self) -> float | None:
        """Balanced accuracy: the mean of both shares."""
        return None if self.kept is None or self.refused is None else (self.kept + self.refused) / 2


def score_detections(labels: Sequence[Label], detections: Sequence[Detection]) -> list[DetectionScores]:
    """Scores of all queries first, then of each source."""
    pairs = list(zip(labels, detections, strict=True))
    rows = [("all", pairs)]
    for name in sorted({label.source for label in labels if label.source}):
        rows.append((name, [pair for pair in pairs if pair[0].source == name]))
    scores = []
    for name, pairs in rows:
        needing = [detection.needs_tool for label, detection in pairs if label.needs]
        others = [not detection.needs_tool for label, detection in pairs if not label.needs]
        scores.append(DetectionScores(name, len(needing), len(others), _share(needing), _share(others)))
    return scores


def _share(right: Sequence[bool]) -> float | None:
    return sum(right) / len(right) if right else None
