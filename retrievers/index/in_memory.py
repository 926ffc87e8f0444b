"""An index whose segments are in memory, for callers that have the tools, such as a database.

Like an opened folder it never changes. `with_changes` gives another one that shares all that is the same, so that
searches of the old one are not disturbed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from retrievers.base import Retriever
from retrievers.fusion import ExactNames, LayeredNames
from retrievers.index.manifest import Manifest
from retrievers.index.reader import Index, open_kinds
from retrievers.index.segments import make_arrays, merge_start, show_existing_rows
from retrievers.index.tools import LiveTools, ToolLines
from retrievers.kind import Arrays, Block, Context, Kind
from retrievers.rows import Rows
from retrievers.types import ToolId


@dataclass(frozen=True, slots=True)
class MemorySegment:
    """Tools that were added at one time."""

    lines: ToolLines
    arrays: Mapping[str, Arrays]
    """retriever name -> its arrays"""
    live: np.ndarray

    def block(self, name: str) -> Block:
        """One retriever's rows."""
        return Block(self.arrays[name], self.live)


class MemoryIndex(Index):
    """Tools and retrievers in memory, as they were at one version."""

    def __init__(
        self,
        source: str,
        manifest: Manifest,
        fingerprint: str,
        segments: Sequence[MemorySegment],
        models: Path,
        context: Context,
        before: MemoryIndex | None = None,
    ) -> None:
        """`source` names it in messages, `models` is the folder of its trained models."""
        self.source, self.folder, self.context = source, models, context
        self.manifest, self.fingerprint, self.segments = manifest, fingerprint, tuple(segments)
        self._retrievers: dict[str, Retriever] = {}
        self._confirmed = dict.fromkeys(manifest.retrievers)  # a database's feedback is for training
        self._blocks = {name: [segment.block(name) for segment in segments] for name in manifest.retrievers}
        live = np.concatenate([segment.live for segment in segments])
        lines = [segment.lines for segment in segments]
        self.rows = Rows([tool for segment_lines in lines for tool in segment_lines.ids], live)
        self.tools = LiveTools(lines, live)
        known: dict[ToolLines, ExactNames] = before._names if before else {}
        self._names: dict[ToolLines, ExactNames] = {
            held: known.get(held) or ExactNames(zip(held.ids, held.names, strict=True)) for held in lines
        }

    @property
    def name(self) -> str:
        return self.source

    def exact_names(self) -> ExactNames:
        return LayeredNames(list(self._names.values()), self.tools.segment_of)

    def latest(self) -> MemoryIndex:
        """Itself: its owner makes the newer versions."""
        return self

    def with_changes(
        self, lines: Sequence[str], removed: AbstractSet[ToolId], fingerprint: str, context: Context
    ) -> MemoryIndex:
        """The index with these tools, one line of JSON each, added or replaced, and others removed."""
        kinds = open_kinds(self.name, self.folder, self.manifest, context)
        fresh = []
        if lines:
            show_existing_rows(kinds, self.blocks)
            fresh = [make_memory_segment(self.name, lines, self.manifest.text, kinds)]
            removed = removed | set(fresh[0].lines.ids)
        segments = _merge(self.name, [*_mark_dead(self.segments, removed), *fresh], kinds)
        return MemoryIndex(self.source, self.manifest, fingerprint, segments, self.folder, self.context, self)


def make_memory_segment(
    source: str, lines: Sequence[str], text: tuple[str, ...], kinds: Mapping[str, Kind]
) -> MemorySegment:
    """Tools, one line of JSON each, with every retriever's arrays for them."""
    tools = ToolLines(source, list(lines))
    return MemorySegment(tools, make_arrays(list(tools), text, kinds), np.ones(len(tools), dtype=bool))


def _mark_dead(segments: Sequence[MemorySegment], ids: AbstractSet[ToolId]) -> list[MemorySegment]:
    marked = []
    for segment in segments:
        rows = [row for row, tool in enumerate(segment.lines.ids) if tool in ids] if ids else []
        live = segment.live.copy()
        live[rows] = False
        marked.append(replace(segment, live=live) if rows else segment)
    return marked


def _merge(source: str, segments: list[MemorySegment], kinds: Mapping[str, Kind]) -> list[MemorySegment]:
    """Merge segments when an index folder would."""
    dead = sum(int((~segment.live).sum()) for segment in segments)
    start = merge_start([len(segment.live) for segment in segments], dead)
    if start is None:
        return segments
    kept, chosen = segments[:start], segments[start:]
    lines = [line for segment in chosen for line, alive in zip(segment.lines.texts, segment.live, strict=True) if alive]
    if not lines and kept:
        return kept
    merged = {name: kind.merge([segment.block(name) for segment in chosen]) for name, kind in kinds.items()}
    return [*kept, MemorySegment(ToolLines(source, lines), merged, np.ones(len(lines), dtype=bool))]
