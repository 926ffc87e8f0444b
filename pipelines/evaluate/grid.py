"""A table of systems: every retriever alone, and behind every rewriter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pipelines.evaluate.systems import SystemSettings
from retrievers.errors import BadInput
from retrievers.settings import RewriteFusion


@dataclass(frozen=True, slots=True)
class GridRetriever:
    """A retriever of an index."""

    retriever: str = ""
    """The row's own name when not given."""
    index: str | None = None
    """The config's index when not given."""


@dataclass(frozen=True, slots=True)
class GridRewriter:
    """The use of a rewriter of the config in front of the retrievers."""

    rewriter: str = ""
    """The column's own name when not given."""
    retrievers: tuple[str, ...] = ()
    """Rows that this column is for; all when not given."""
    fusion: RewriteFusion | None = None
    """As the rewriter's card says when not given."""
    choose_fusion: bool = False
    """Choose the fusion for each retriever on the dev split of the same data set."""

    def __post_init__(self) -> None:
        if self.fusion is not None and self.choose_fusion:
            raise BadInput("give the fusion or choose it (`choose_fusion: true`), not both", "fusion")


@dataclass(frozen=True, slots=True)
class EvalGrid:
    """`{retrievers: {tuned: {retriever: dense, index: …}}, rewriters: {rules: {fusion: {raw: 0.6}}}}` has the systems
    `tuned` and `tuned+rules`."""

    retrievers: dict[str, GridRetriever]
    rewriters: dict[str, GridRewriter] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.retrievers:
            raise BadInput("a grid needs at least one retriever, got none", "retrievers")
        for column in self.rewriters.values():
            for name in column.retrievers:
                if name not in self.retrievers:
                    known = ", ".join(self.retrievers)
                    raise BadInput(f"the grid has no row {name!r}; it has {known}", "rewriters")
        names = [name for name, _ in self._named()]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise BadInput(f"two systems of the grid would be called {twice[0]!r}; rename a retriever", "retrievers")

    def systems(self) -> dict[str, SystemSettings]:
        """All systems, row by row, the raw query first."""
        return dict(self._named())

    def _named(self) -> Iterator[tuple[str, SystemSettings]]:
        for name, row in self.retrievers.items():
            retriever = row.retriever or name
            yield name, SystemSettings(retriever=retriever, index=row.index)
            for title, column in self.rewriters.items():
                if not column.retrievers or name in column.retrievers:
                    yield (
                        f"{name}+{title}",
                        SystemSettings(
                            retriever=retriever,
                            index=row.index,
                            rewriter=column.rewriter or title,
                            fusion=column.fusion,
                            choose_fusion=column.choose_fusion,
                        ),
                    )


def raw_counterparts(systems: Mapping[str, SystemSettings], default_index: str | None) -> dict[str, str]:
    """Map each rewriting system to the system that sends the raw query to the same retriever, if there is one."""
    retrievers = {name: (system.index or default_index, system.retriever) for name, system in systems.items()}
    raw: dict[tuple[str | None, str | None], str] = {}
    for name, system in systems.items():
        if system.rewriter is None and system.run is None and system.rerank is None:
            raw.setdefault(retrievers[name], name)
    rewriting = [name for name, system in systems.items() if system.rewriter is not None]
    return {name: raw[retrievers[name]] for name in rewriting if retrievers[name] in raw}
