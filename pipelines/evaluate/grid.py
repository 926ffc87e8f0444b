"""A whole table of systems: every retriever alone, and behind every rewriter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pipelines.evaluate.systems import SystemSettings
from retrievers.errors import BadInput
from retrievers.settings import RewriteFusion


@dataclass(frozen=True, slots=True)
class Row:
    """A retriever of an index."""

    retriever: str = ""
    """The row's own name when not given."""
    index: str | None = None
    """The config's index when not given."""


@dataclass(frozen=True, slots=True)
class Column:
    """How a rewriter of the config is used in front of the retrievers."""

    rewriter: str = ""
    """The column's own name when not given."""
    retrievers: tuple[str, ...] = ()
    """The rows it is for; all when not given."""
    fusion: RewriteFusion | None = None
    """As the rewriter's card says when not given."""
    choose_fusion: bool = False
    """Choose it for each retriever on the dev split of the same data set."""

    def __post_init__(self) -> None:
        if self.fusion is not None and self.choose_fusion:
            raise BadInput("either give the fusion or have it chosen, not both", "fusion")


@dataclass(frozen=True, slots=True)
class Grid:
    """`{retrievers: {tuned: {retriever: dense, index: …}}, rewriters: {rules: {fusion: {raw: 0.6}}}}` has the systems
    `tuned` and `tuned+rules`."""

    retrievers: dict[str, Row]
    rewriters: dict[str, Column] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.retrievers:
            raise BadInput("a grid needs retrievers", "retrievers")
        for column in self.rewriters.values():
            if strange := [name for name in column.retrievers if name not in self.retrievers]:
                known = ", ".join(self.retrievers)
                raise BadInput(f"{strange[0]!r} is no row of the grid; it has {known}", "rewriters")
        names = [name for name, _ in self._named()]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise BadInput(f"two systems of the grid would be called {twice[0]!r}; rename a retriever", "retrievers")

    def systems(self) -> dict[str, SystemSettings]:
        """Row by row, the raw query first."""
        return dict(self._named())

    def _named(self) -> Iterator[tuple[str, SystemSettings]]:
        for name, row in self.retrievers.items():
            searched = row.retriever or name
            yield name, SystemSettings(retriever=searched, index=row.index)
            for title, column in self.rewriters.items():
                if column.retrievers and name not in column.retrievers:
                    continue
                yield (
                    f"{name}+{title}",
                    SystemSettings(
                        retriever=searched,
                        index=row.index,
                        rewriter=column.rewriter or title,
                        fusion=column.fusion,
                        choose_fusion=column.choose_fusion,
                    ),
                )


def own_raw(systems: Mapping[str, SystemSettings], default_index: str | None) -> dict[str, str]:
    """A system that rewrites -> the system that asks the same retriever the raw query, where there is one."""
    places = {name: (each.index or default_index, each.retriever) for name, each in systems.items()}
    plain: dict[tuple[str | None, str | None], str] = {}
    for name, system in systems.items():
        if system.rewriter is None and system.run is None:
            plain.setdefault(places[name], name)
    rewriting = [name for name, system in systems.items() if system.rewriter is not None and places[name] in plain]
    return {name: plain[places[name]] for name in rewriting}
