"""An opened index: a snapshot that does not change while others write."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from retrievers.base import Retriever
from retrievers.errors import BadInput, IndexBroken, ModelMismatch
from retrievers.files import check, get_array
from retrievers.fusion import ExactNames
from retrievers.index import confirmed_queries as confirmed
from retrievers.index import manifest as manifests
from retrievers.index.manifest import Manifest, Part, Segment
from retrievers.index.tools import LiveTools, ToolLines
from retrievers.kind import Block, Context, Kind, LearnsFromFeedback
from retrievers.registry import make_kind, settings_from_json
from retrievers.rows import Rows

ATTEMPTS = 20


def segment_tools(folder: Path, segment: Segment) -> ToolLines:
    """All tools of a segment, the dead ones too."""
    tools = ToolLines(check(folder, segment.tools))
    if len(tools) != segment.count:
        raise IndexBroken(f"{folder / segment.tools.file} holds {len(tools)} tools, not {segment.count}")
    return tools


def live_mask(segment: Segment) -> np.ndarray:
    """True for every row that is not dead."""
    live = np.ones(segment.count, dtype=bool)
    live[list(segment.dead)] = False
    return live


def blocks(
    folder: Path, segments: Sequence[Segment], name: str, known: dict[str, np.ndarray] | None = None
) -> list[Block]:
    """One retriever's rows of the segments. Arrays that are `known` by their file's name are not read again."""
    arrays: dict[str, np.ndarray] = {} if known is None else known
    result = []
    for segment in segments:
        for entry in segment.arrays[name].values():
            if entry.file not in arrays:
                arrays[entry.file] = get_array(folder, entry)
        labelled = {label: arrays[entry.file] for label, entry in segment.arrays[name].items()}
        result.append(Block(labelled, live_mask(segment)))
    return result


class Index:
    """Tools and retrievers of one index folder, as they were when it was opened.

    A model that was trained for the index is loaded by the first search: search once before others write twice.
    """

    def __init__(self, folder: Path, context: Context, before: Index | None = None) -> None:
        """`before`: an older version, whose unchanged segments are not read again."""
        self.folder, self.context = folder, context
        self._lines: dict[str, ToolLines] = before._lines if before else {}
        self._arrays: dict[str, np.ndarray] = dict(before._arrays) if before else {}
        self._retrievers: dict[str, Retriever] = {}
        self._load()

    def _load(self) -> None:
        """Read manifest, tools and arrays; again if a writer deleted files in between."""
        for attempt in range(ATTEMPTS):
            self.manifest, self.fingerprint = manifests.read(self.folder)
            try:
                self._lines = {
                    segment.tools.file: self._lines.get(segment.tools.file) or segment_tools(self.folder, segment)
                    for segment in self.manifest.segments
                }
                self._blocks = {
                    name: blocks(self.folder, self.manifest.segments, name, self._arrays)
                    for name in self.manifest.retrievers
                }
                self._confirmed = {
                    name: confirmed.read(self.folder, part.extras) for name, part in self.manifest.retrievers.items()
                }
                break
            except FileNotFoundError as error:
                # The same manifest may be back with its files by now, so one look is not enough.
                if (attempt and manifests.read(self.folder)[1] == self.fingerprint) or attempt == ATTEMPTS - 1:
                    raise IndexBroken(f"{error.filename} is missing from the index; build it again") from error
        used = self.manifest.files()
        self._arrays = {file: array for file, array in self._arrays.items() if file in used}
        lines = [self._lines[segment.tools.file] for segment in self.manifest.segments]
        live = np.concatenate([live_mask(segment) for segment in self.manifest.segments])
        self.rows = Rows([tool for segment_lines in lines for tool in segment_lines.ids], live)
        self.tools = LiveTools(lines, live)

    @property
    def name(self) -> str:
        """Name of the index in messages."""
        return str(self.folder)

    @property
    def names(self) -> list[str]:
        """Names of the retrievers this index holds."""
        return list(self.manifest.retrievers)

    def blocks(self, name: str) -> list[Block]:
        """One retriever's rows of every segment, in order."""
        return self._blocks[name]

    def exact_names(self) -> ExactNames:
        """Finds tools that an utterance names."""
        return ExactNames(self.tools.names())

    def retriever(self, name: str) -> Retriever:
        """One of the index's retrievers, ready to search."""
        if name not in self.manifest.retrievers:
            raise BadInput(f"{self.name} has no retriever {name!r}; it has {', '.join(self.names)}")
        if name not in self._retrievers:
            part = self.manifest.retrievers[name]
            kind = _open_kind(self.name, name, self.folder, part, self.context)
            confirmed_queries = self._confirmed[name]
            if confirmed_queries is not None and isinstance(kind, LearnsFromFeedback):
                kind.load_feedback(*confirmed_queries)
            self._retrievers[name] = kind.open(
                self._blocks[name], self.rows, f"{self.fingerprint}/{name}", self.retriever
            )
        return self._retrievers[name]

    def latest(self) -> Index:
        """This index, or its newest version where there is one. Loaded models are shared."""
        _, fingerprint = manifests.read(self.folder)
        return self if fingerprint == self.fingerprint else Index(self.folder, self.context, self)


def open_kinds(index: object, models: Path, manifest: Manifest, context: Context) -> dict[str, Kind]:
    """The kinds of an index's retrievers, each with the model that it was built with. `index` names it in messages."""
    return {name: _open_kind(index, name, models, part, context) for name, part in manifest.retrievers.items()}


def _open_kind(index: object, name: str, models: Path, part: Part, context: Context) -> Kind:
    kind = make_kind(settings_from_json(part.settings), context, models / part.model if part.model else None)
    identity = kind.identity()
    for fact, value in part.identity.items():
        if identity.get(fact) != value:  # the vectors of two models must not be mixed
            raise ModelMismatch(
                f"the retriever {name!r} of {index} was built with {fact} {value}, "
                f"but at hand are {fact} {identity.get(fact)}; use the same model or build the index again"
            )
    return kind
