"""An index whose segments lie in memory: the same retrievers, fed by somebody who knows the tools.

Like an opened folder it never changes. `changed` gives another one that shares all that is the same, so that whoever
searches the old one is not disturbed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from retrievers.base import Retriever
from retrievers.fusion import ExactNames, LayeredNames
from retrievers.index import tools as tool_lines
from retrievers.index.manifest import Manifest
from retrievers.index.reader import Index, check_identity, open_kind
from retrievers.index.segments import MOST_SEGMENTS, introduce, make_arrays
from retrievers.kind import Arrays, Block, Context, Kind
from retrievers.rows import Rows
from retrievers.types import ToolId


@dataclass(frozen=True, slots=True)
class Run:
    """A run of tools that came at one time."""

    lines: tool_lines.Lines
    arrays: Mapping[str, Arrays]
    """retriever name -> its arrays"""
    live: np.ndarray

    def block(self, name: str) -> Block:
        """One retriever's share."""
        return Block(self.arrays[name], self.live)


class MemoryIndex(Index):
    """Tools and retrievers in memory, as they were at one version."""

    def __init__(
        self,
        source: str,
        manifest: Manifest,
        fingerprint: str,
        runs: Sequence[Run],
        models: Path,
        context: Context,
        before: MemoryIndex | None = None,
    ) -> None:
        """`source` is what messages call it, `models` the folder of models that were trained for it."""
        self.source, self.folder, self.context = source, models, context
        self.manifest, self.fingerprint, self.runs = manifest, fingerprint, tuple(runs)
        self._retrievers: dict[str, Retriever] = {}
        self._confirmed = dict.fromkeys(manifest.retrievers)  # a database's feedback is for training
        self._blocks = {name: [run.block(name) for run in self.runs] for name in manifest.retrievers}
        live = np.concatenate([run.live for run in self.runs])
        held = [run.lines for run in self.runs]
        self.rows = Rows([tool for lines in held for tool in lines.ids], live)
        self.tools = tool_lines.LiveTools(held, live)
        known: dict[tool_lines.Lines, ExactNames] = before._names if before else {}
        self._names: dict[tool_lines.Lines, ExactNames] = {
            lines: known.get(lines) or ExactNames(zip(lines.ids, lines.names, strict=True)) for lines in held
        }

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.source

    def exact_names(self) -> ExactNames:
        """What finds tools that are named outright; of what did not change nothing is made anew."""
        return LayeredNames(list(self._names.values()), self.tools.segment_of)

    def refreshed(self) -> MemoryIndex:
        """Itself: whoever feeds it makes its newer versions."""
        return self

    def changed(
        self, lines: Sequence[str], gone: AbstractSet[ToolId], fingerprint: str, context: Context
    ) -> MemoryIndex:
        """The index with these tools, one line of JSON each, put in or replaced, and others gone."""
        kinds = kinds_of(self.name, self.folder, self.manifest, context)
        runs = list(self.runs)
        if lines:
            introduce(kinds, self.blocks)
            fresh = make_run(self.name, lines, self.manifest.text, kinds)
            runs = [*_bury(runs, gone | set(fresh.lines.ids)), fresh]
        else:
            runs = _bury(runs, gone)
        runs = _fold(self.name, runs, kinds)
        return MemoryIndex(self.source, self.manifest, fingerprint, runs, self.folder, self.context, self)


def kinds_of(source: object, models: Path, manifest: Manifest, context: Context) -> dict[str, Kind]:
    """The kinds of an index's retrievers, each with the model that it was made with."""
    kinds = {}
    for name, part in manifest.retrievers.items():
        kinds[name] = open_kind(models, part, context)
        check_identity(source, name, part.identity, kinds[name].identity())
    return kinds


def make_run(source: str, lines: Sequence[str], text: tuple[str, ...], kinds: Mapping[str, Kind]) -> Run:
    """Tools, one line of JSON each, with every retriever's arrays for them."""
    held = tool_lines.Lines(source, list(lines))
    return Run(held, make_arrays(list(held), text, kinds), np.ones(len(held), dtype=bool))


def _bury(runs: Sequence[Run], ids: AbstractSet[ToolId]) -> list[Run]:
    """The runs with the rows of these tools marked dead."""
    if not ids:
        return list(runs)
    found = []
    for run in runs:
        rows = [row for row, tool in enumerate(run.lines.ids) if tool in ids and run.live[row]]
        live = run.live
        if rows:
            live = run.live.copy()
            live[rows] = False
        found.append(replace(run, live=live))
    return found


def _fold(source: str, runs: list[Run], kinds: Mapping[str, Kind]) -> list[Run]:
    """Small runs folded into one once they are many, or everything once a quarter is dead; as a folder does it."""
    live = sum(int(run.live.sum()) for run in runs)
    crowded = sum(len(run.live) for run in runs) - live > max(16, live // 4)
    if len(runs) <= MOST_SEGMENTS and not crowded:
        return runs
    # The first run is the large one; it is only copied when what came after has grown to a quarter of it.
    tail = sum(len(run.live) for run in runs[1:])
    kept = [] if crowded or tail * 4 >= len(runs[0].live) else [runs[0]]
    chosen = runs[len(kept) :]
    lines = [line for run in chosen for line, alive in zip(run.lines.texts, run.live, strict=True) if alive]
    if not lines and kept:
        return kept
    merged = {name: kind.merge([run.block(name) for run in chosen]) for name, kind in kinds.items()}
    return [*kept, Run(tool_lines.Lines(source, lines), merged, np.ones(len(lines), dtype=bool))]
