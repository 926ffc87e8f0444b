"""Finds new tools whose vector is near to everything: they would be found for any query.

A few hundred tools of the catalogue serve as probes. An honest new tool is among the ten nearest of a few probes; a hub
is among those of many.
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
# A new tool is a hub from this share of the probes on, and this multiple of the usual share in a catalogue of its size.
MIN_SHARE, FACTOR = 0.05, 6
MIN_TOOLS = 400  # a smaller catalogue is not checked: everything is near in it


class Hubs:
    """Finds hubs by the vectors of one catalogue."""

    def __init__(self, dense: Dense | None, fields: Sequence[str]) -> None:
        """`dense`: None where the catalogue has no vectors."""
        self._fields = fields
        vectors = dense.live_vectors() if dense is not None else np.empty((0, 0), np.float32)
        self._dense = dense if len(vectors) >= MIN_TOOLS else None
        if self._dense is not None:
            self._probes = vectors[:: max(1, len(vectors) // PROBES)][:PROBES]
            scores = self._probes @ vectors.T
            index = scores.shape[1] - NEAREST - 1  # the nearest of all is the probe itself
            self._floor = np.partition(scores, index, axis=1)[:, index]
            self._share = max(MIN_SHARE, FACTOR * NEAREST / len(vectors))

    @classmethod
    def of(cls, index: Index) -> Hubs:
        """Hubs by an index's first dense retriever."""
        names = [name for name, part in index.manifest.retrievers.items() if part.settings.get("kind") == "dense"]
        dense = index.retriever(names[0]) if names and len(index.tools) >= MIN_TOOLS else None
        return cls(dense if isinstance(dense, Dense) else None, index.manifest.text)

    def findings(self, tools: Sequence[Tool], vectors: np.ndarray | None = None) -> list[Finding]:
        """A finding for each of the new tools that is a hub; `vectors`: theirs, where they are known."""
        if self._dense is None or not tools:
            return []
        if vectors is None:
            vectors = self._dense.embed([document(tool, self._fields) for tool in tools])
        # A cosine of 1 is the tool's own older version, which does not count.
        scores = self._probes @ vectors.T
        near = ((scores > self._floor[:, None]) & (scores < 0.999)).mean(axis=0)
        findings = []
        for tool, share in zip(tools, near.tolist(), strict=True):
            message = (
                f"{quoted(tool.name)} would be among the {NEAREST} nearest of {share:.0%} of the catalogue's tools: "
                "say what only this tool does"
            )
            if share >= self._share:
                findings.append(Finding("hub", (tool.id,), message, "warning"))
        return findings
