"""Segments: runs of tools that are written once, marked dead row by row, and merged when they are many."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from retrievers.files import put_array, put_bytes
from retrievers.index import tools as tool_lines
from retrievers.index.manifest import Manifest, Segment
from retrievers.index.reader import blocks, live_mask, segment_tools
from retrievers.kind import Arrays, Block, Kind, NeedsTools, ReadsNames, SeesExistingRows
from retrievers.text import document
from retrievers.types import Tool, ToolId

MAX_SEGMENTS = 12  # more segments than this are merged: each slows a search a little


def make_segment(folder: Path, tools: Sequence[Tool], text: tuple[str, ...], kinds: Mapping[str, Kind]) -> Segment:
    """Write tools and every retriever's arrays for them."""
    return _store(folder, tools, make_arrays(tools, text, kinds))


def make_arrays(tools: Sequence[Tool], text: tuple[str, ...], kinds: Mapping[str, Kind]) -> dict[str, Arrays]:
    """Every retriever's arrays for these tools."""
    documents = [document(tool, text) for tool in tools]

    def rows(kind: Kind) -> Arrays:
        if isinstance(kind, NeedsTools):
            return kind.tool_rows(tools, documents)
        if isinstance(kind, ReadsNames) and "name" in text:
            return kind.rows_with_names(documents, [tool.name for tool in tools])
        return kind.rows(documents)

    return {name: rows(kind) for name, kind in kinds.items()}


def show_existing_rows(kinds: Mapping[str, Kind], existing: Callable[[str], Sequence[Block]]) -> None:
    """Pass the index's rows to the kinds that need them before new rows are made."""
    for name, kind in kinds.items():
        if isinstance(kind, SeesExistingRows):
            kind.see_existing_rows(existing(name))


def _store(folder: Path, tools: Sequence[Tool], arrays: Mapping[str, Arrays]) -> Segment:
    return Segment(
        count=len(tools),
        tools=put_bytes(folder, "tools", "jsonl", tool_lines.encode(tools)),
        arrays={
            name: {label: put_array(folder, f"{name}-{label}", array) for label, array in named.items()}
            for name, named in arrays.items()
        },
    )


def mark_dead(manifest: Manifest, lines: Sequence[tool_lines.ToolLines], ids: set[ToolId]) -> tuple[Segment, ...]:
    """The segments with the rows of these tools marked dead."""
    if not ids:
        return manifest.segments
    segments = []
    for segment, segment_lines in zip(manifest.segments, lines, strict=True):
        dead = set(segment.dead) | {row for row, tool in enumerate(segment_lines.ids) if tool in ids}
        segments.append(replace(segment, dead=tuple(sorted(dead))))
    return tuple(segments)


def merge_start(sizes: Sequence[int], num_dead: int) -> int | None:
    """Index from which on segments are merged: once they are many, or all once a quarter is dead; None: not yet."""
    crowded = num_dead > max(16, (sum(sizes) - num_dead) // 4)
    if len(sizes) <= MAX_SEGMENTS and not crowded:
        return None
    # The first segment is the large one; it is only copied when those after it have grown to a quarter of it.
    return 0 if crowded or sum(sizes[1:]) * 4 >= sizes[0] else 1


def needs_merge(manifest: Manifest) -> bool:
    """True once segments are many or a quarter of the rows is dead."""
    return _merge_start(manifest) is not None


def _merge_start(manifest: Manifest) -> int | None:
    dead = sum(len(segment.dead) for segment in manifest.segments)
    return merge_start([segment.count for segment in manifest.segments], dead)


def merge_segments(folder: Path, manifest: Manifest, kinds: Mapping[str, Kind]) -> Manifest:
    """Merge segments where it is due."""
    start = _merge_start(manifest)
    if start is None:
        return manifest
    chosen = manifest.segments[start:]
    tools = [
        tool
        for segment in chosen
        for tool, alive in zip(segment_tools(folder, segment), live_mask(segment), strict=True)
        if alive
    ]
    merged = {name: kind.merge(blocks(folder, chosen, name)) for name, kind in kinds.items()}
    return replace(manifest, segments=(*manifest.segments[:start], _store(folder, tools, merged)))
