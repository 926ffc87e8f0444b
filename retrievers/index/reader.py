"""An opened index: a snapshot that stays as it is while others write."""

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
from retrievers.index import tools as tool_lines
from retrievers.index.manifest import Part, Segment
from retrievers.kind import Block, Context, Kind, LearnsFromFeedback
from retrievers.registry import make_kind, settings_from_json
from retrievers.rows import Rows

ATTEMPTS = 20


def segment_tools(folder: Path, segment: Segment) -> tool_lines.Lines:
    """All tools of a segment, the dead ones too."""
    tools = tool_lines.Lines(check(folder, segment.tools))
    if len(tools) != segment.count:
        raise IndexBroken(f"{folder / segment.tools.file} holds {len(tools)} tools, not {segment.count}")
    return tools


def live_mask(segment: Segment) -> np.ndarray:
    """True for every row that can be found."""
    live = np.ones(segment.count, dtype=bool)
    live[list(segment.dead)] = False
    return live


def blocks(
    folder: Path, segments: Sequence[Segment], name: str, known: dict[str, np.ndarray] | None = None
) -> list[Block]:
    """One retriever's share of the segments. Arrays that are `known` by their file's name are not read again."""
    found: dict[str, np.ndarray] = {} if known is None else known
    shares = []
    for segment in segments:
        for entry in segment.arrays[name].values():
            if entry.file not in found:
                found[entry.file] = get_array(folder, entry)
        arrays = {label: found[entry.file] for label, entry in segment.arrays[name].items()}
        shares.append(Block(arrays, live_mask(segment)))
    return shares


class Index:
    """Tools and retrievers of one index folder, as they were when it was opened.

    An encoder that was trained for the index is loaded by its first search: search once before others write twice.
    """

    def __init__(self, folder: Path, context: Context, before: Index | None = None) -> None:
        """`before`: an older version of it, whose segments need not be read again where they are the same."""
        self.folder, self.context = folder, context
        self._lines: dict[str, tool_lines.Lines] = before._lines if before else {}
        self._arrays: dict[str, np.ndarray] = dict(before._arrays) if before else {}
        self._retrievers: dict[str, Retriever] = {}
        self._load()

    def _load(self) -> None:
        """Reads manifest, tools and arrays; again if a writer swept files away in between."""
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
                # The same manifest may be back with its files by now, so that one look is not enough.
                if (attempt and manifests.read(self.folder)[1] == self.fingerprint) or attempt == ATTEMPTS - 1:
                    raise IndexBroken(f"{error.filename} is missing from the index; build it again") from error
        used = self.manifest.files()
        self._arrays = {file: array for file, array in self._arrays.items() if file in used}
        held = [self._lines[segment.tools.file] for segment in self.manifest.segments]
        live = np.concatenate([live_mask(segment) for segment in self.manifest.segments])
        self.rows = Rows([tool for lines in held for tool in lines.ids], live)
        self.tools = tool_lines.LiveTools(held, live)

    @property
    def name(self) -> str:
        """What messages call it."""
        return str(self.folder)

    @property
    def names(self) -> list[str]:
        """Names of the retrievers this index holds."""
        return list(self.manifest.retrievers)

    def blocks(self, name: str) -> list[Block]:
        """One retriever's share of every segment, in the order of the rows."""
        return self._blocks[name]

    def exact_names(self) -> ExactNames:
        """What finds tools that are named outright."""
        return ExactNames(self.tools.names())

    def retriever(self, name: str) -> Retriever:
        """One of the index's retrievers, ready to search."""
        if name not in self.manifest.retrievers:
            raise BadInput(f"{self.name} has no retriever {name!r}; it has {', '.join(self.names)}")
        if name not in self._retrievers:
            part = self.manifest.retrievers[name]
            kind = open_kind(self.folder, part, self.context)
            check_identity(self.name, name, part.identity, kind.identity())
            remembered = self._confirmed[name]
            if remembered is not None and isinstance(kind, LearnsFromFeedback):
                kind.load_feedback(*remembered)
            self._retrievers[name] = kind.open(
                self._blocks[name], self.rows, f"{self.fingerprint}/{name}", self.retriever
            )
        return self._retrievers[name]

    def refreshed(self) -> Index:
        """This index, or its newer version where there is one. Loaded models are shared."""
        _, fingerprint = manifests.read(self.folder)
        return self if fingerprint == self.fingerprint else Index(self.folder, self.context, self)


def open_kind(folder: Path, part: Part, context: Context) -> Kind:
    """The kind of a retriever that is already in an index, with the model that was trained for it."""
    return make_kind(settings_from_json(part.settings), context, folder / part.model if part.model else None)


def check_identity(folder: object, name: str, recorded: dict[str, str], found: dict[str, str]) -> None:
    """Refuses to mix the vectors of two models."""
    for fact, value in recorded.items():
        if found.get(fact) != value:
            raise ModelMismatch(
                f"the retriever {name!r} of {folder} was built with {fact} {value}, "
                f"but at hand are {fact} {found.get(fact)}; use the same model or build the index again"
            )
