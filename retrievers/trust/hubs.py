"""Newcomers whose vector is near to everything: they would be found whatever is asked for.

A few hundred tools of the catalogue stand for what is asked. An honest newcomer comes among the ten nearest of a few
of them; a hub comes among those of many.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from retrievers.dense.retriever import Dense
from retrievers.index import Index
from retrievers.lint.finding import Finding, quoted
from retrievers.text import document
from retrievers.types import Tool

PROBES = 400
NEAREST = 10
SHARE = 0.05
"""Of the probes from which on a newcomer is a hub,"""
FACTOR = 6
"""and so many times what is usual in a catalogue of this size; no tool of ToolLens reaches that."""
SMALLEST = 400
"""Tools that a catalogue must have: in a small one everything is near."""


class Hubs:
    """How near the tools of one catalogue are to each other, by its first dense retriever."""

    def __init__(self, dense: Dense | None, fields: Sequence[str]) -> None:
        """`dense`: None where the catalogue has no vectors."""
        self._fields = fields
        vectors = dense.live_vectors() if dense is not None else np.empty((0, 0), np.float32)
        self._dense = dense if len(vectors) >= SMALLEST else None
        if self._dense is not None:
            self._probes = vectors[:: max(1, len(vectors) // PROBES)][:PROBES]
            scores = self._probes @ vectors.T
            place = scores.shape[1] - NEAREST - 1  # the nearest of all is the probe itself
            self._floor = np.partition(scores, place, axis=1)[:, place]
            self._share = max(SHARE, FACTOR * NEAREST / len(vectors))

    @classmethod
    def of(cls, index: Index) -> Hubs:
        """Those of an index."""
        names = [name for name, part in index.manifest.retrievers.items() if part.settings.get("kind") == "dense"]
        found = index.retriever(names[0]) if names and len(index.tools) >= SMALLEST else None
        return cls(found if isinstance(found, Dense) else None, index.manifest.text)

    def findings(self, tools: Sequence[Tool], vectors: np.ndarray | None = None) -> list[Finding]:
        """Those of the newcomers that are hubs; `vectors`: theirs, where they are known."""
        if self._dense is None or not tools:
            return []
        if vectors is None:
            vectors = self._dense.embed([document(tool, self._fields) for tool in tools])
        # Its own older version is not held against a tool that comes back: a cosine of 1 is itself.
        scores = self._probes @ vectors.T
        near = ((scores > self._floor[:, None]) & (scores < 0.999)).mean(axis=0)
        return [
            Finding("hub", (tool.id,), _told(tool, share), "warning")
            for tool, share in zip(tools, near.tolist(), strict=True)
            if share >= self._share
        ]


def _told(tool: Tool, share: float) -> str:
    return (
        f"{quoted(tool.name)} would be among the {NEAREST} nearest of {share:.0%} of the catalogue's tools: say what "
        "only this tool does"
    )
