"""Segments: runs of tools that are written once, marked dead row by row, and folded together when they pile up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from retrievers.files import put_array, put_bytes
from retrievers.index import tools as tool_lines
from retrievers.index.manifest import Manifest, Segment
from retrievers.index.reader import blocks, live_mask, segment_tools
from retrievers.kind import Arrays, Block, Kind, NeedsTools, SeesExistingRows
from retrievers.text import document
from retrievers.types import Tool, ToolId

MOST_SEGMENTS = 12
"""More than this many segments are folded: each costs a search a little."""


def make_segment(folder: Path, tools: Sequence[Tool], text: tuple[str, ...], kinds: Mapping[str, Kind]) -> Segment:
    """Writes tools and every retriever's arrays for them."""
    return _store(folder, tools, make_arrays(tools, text, kinds))


def introduce(kinds: Mapping[str, Kind], held: Callable[[str], Sequence[Block]]) -> None:
    """Tells the kinds that want to know what the index holds of theirs."""
    for name, kind in kinds.items():
        if isinstance(kind, SeesExistingRows):
            kind.see_existing_rows(held(name))


def make_arrays(tools: Sequence[Tool], text: tuple[str, ...], kinds: Mapping[str, Kind]) -> dict[str, Arrays]:
    """Every retriever's arrays for these tools, wherever they are kept."""
    documents = [document(tool, text) for tool in tools]
    return {
        name: kind.tool_rows(tools, documents) if isinstance(kind, NeedsTools) else kind.rows(documents)
        for name, kind in kinds.items()
    }


def _store(folder: Path, tools: Sequence[Tool], arrays: Mapping[str, Arrays]) -> Segment:
    return Segment(
        count=len(tools),
        tools=put_bytes(folder, "tools", "jsonl", tool_lines.encode(tools)),
        arrays={
            name: {label: put_array(folder, f"{name}-{label}", array) for label, array in named.items()}
            for name, named in arrays.items()
        },
    )


def bury(manifest: Manifest, held: Sequence[tool_lines.Lines], ids: set[ToolId]) -> tuple[Segment, ...]:
    """The segments with the live rows of these tools marked dead."""
    if not ids:
        return manifest.segments
    segments = []
    for segment, lines in zip(manifest.segments, held, strict=True):
        dead = set(segment.dead) | {row for row, tool in enumerate(lines.ids) if tool in ids}
        segments.append(replace(segment, dead=tuple(sorted(dead))))
    return tuple(segments)


def untidy(manifest: Manifest) -> bool:
    """True once segments are many or a quarter of the rows is dead."""
    dead = sum(len(segment.dead) for segment in manifest.segments)
    return len(manifest.segments) > MOST_SEGMENTS or dead > max(16, manifest.live() // 4)


def fold(folder: Path, manifest: Manifest, kinds: Mapping[str, Kind]) -> Manifest:
    """Folds small segments into one once they are many, or everything once a quarter is dead."""
    if not untidy(manifest):
        return manifest
    dead = sum(len(segment.dead) for segment in manifest.segments)
    base = manifest.segments[0]
    tail = sum(segment.count for segment in manifest.segments[1:])
    # The first segment is the large one; it is only copied when what came after has grown to a quarter of it.
    keep_base = dead <= max(16, manifest.live() // 4) and tail * 4 < base.count
    kept = (base,) if keep_base else ()
    chosen = manifest.segments[len(kept) :]
    tools = [
        tool
        for segment in chosen
        for tool, alive in zip(segment_tools(folder, segment), live_mask(segment), strict=True)
        if alive
    ]
    merged = {name: kind.merge(blocks(folder, chosen, name)) for name, kind in kinds.items()}
    return replace(manifest, segments=(*kept, _store(folder, tools, merged)))
