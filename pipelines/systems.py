"""The systems of an evaluation: whatever ranks tools for queries."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from pipelines.data import DataSet
from pipelines.protocols import Protocol
from pipelines.search import ToolSearch
from pipelines.trec import read_run
from retrievers.errors import BadInput
from retrievers.index import Index
from retrievers.kinds import Context
from retrievers.types import Ranking
from reward.metrics import DEPTH

CHUNK = 256
"""Queries asked at a time: what a progress bar moves by."""


@dataclass(frozen=True, slots=True)
class SystemSettings:
    """Something that ranks tools: a retriever of an index, or a run file."""

    retriever: str | None = None
    index: str | None = None
    """The config's index when not given."""
    run: str | None = None
    """A TREC run file made elsewhere."""

    def __post_init__(self) -> None:
        if (self.retriever is None) == (self.run is None):
            raise BadInput("a system is either a retriever of an index or a run file")


@dataclass(frozen=True, slots=True)
class Ranked:
    """What a system answered."""

    rankings: Mapping[str, Ranking]
    fingerprint: str
    seconds: float | None


def ask(
    systems: Mapping[str, SystemSettings],
    default_index: str | None,
    data: DataSet,
    protocol: Protocol,
    order: Sequence[str],
    context: Context,
) -> dict[str, Ranked]:
    """Every system's rankings for the queries, in their order."""
    texts = [data.queries[query].text for query in order]
    opened: dict[str, Index] = {}
    answers = {}
    for name, system in systems.items():
        if system.run is not None:
            rankings = read_run(Path(system.run), {tool.id for tool in data.tools})
            _same_queries(name, rankings, order)
            answers[name] = Ranked(rankings, f"run:{Path(system.run).name}", None)
            continue
        folder = system.index or default_index
        if folder is None or system.retriever is None:
            raise BadInput(f"the system {name!r} names no index, and neither does the config")
        index = opened.get(folder) or Index(Path(folder), context)
        opened[folder] = index
        _same_tools(name, index, data)
        _refuse_seen(name, index, system.retriever, data, protocol)
        search = ToolSearch(index, system.retriever)
        search.find(texts[:1], 1)  # loads the model, so that the time below is the search's own
        for encoder in context.encoders.values():
            encoder.forget()
        found: list[Ranking] = []
        started = time.perf_counter()
        steps = range(0, len(texts), CHUNK)
        for start in tqdm(steps, desc=name, leave=False) if context.show_progress else steps:
            found.extend(search.find(texts[start : start + CHUNK], DEPTH))
        answers[name] = Ranked(dict(zip(order, found, strict=True)), search.fingerprint, time.perf_counter() - started)
    return answers


def _same_queries(name: str, rankings: Mapping[str, Ranking], order: Sequence[str]) -> None:
    missing, extra = sorted(set(order) - rankings.keys()), sorted(rankings.keys() - set(order))
    if missing or extra:
        what = (
            f"does not rank query {missing[0]!r}" if missing else f"ranks query {extra[0]!r}, which is not in the split"
        )
        raise BadInput(f"the system {name!r} {what}; systems must rank the same {len(order)} queries")


def _same_tools(name: str, index: Index, data: DataSet) -> None:
    strangers = sorted({tool.id for tool in data.tools} ^ index.tools.keys())
    if strangers:
        verb = "has" if strangers[0] in index.tools else "lacks"
        raise BadInput(
            f"the index of {name!r} {verb} the tool {strangers[0]!r}, unlike {data.name}; build it from the same corpus"
        )


def _refuse_seen(name: str, index: Index, retriever: str, data: DataSet, protocol: Protocol) -> None:
    """An encoder that was trained on the official split has seen the tools that this protocol calls unseen."""
    part = index.manifest.retrievers.get(retriever)
    for inner in part.settings.get("of", ()) if part else ():
        _refuse_seen(name, index, inner, data, protocol)
    training = part.settings.get("train") if part else None
    if protocol != "unseen-tools" or not training or training["protocol"] == protocol:
        return
    names = {Path(source["path"].removeprefix("bundled:")).name for source in training["data"]}
    if data.name in names - {training["hold_out"]}:
        raise BadInput(
            f"the system {name!r} was trained on {data.name} with protocol {training['protocol']}, so it has seen the "
            f"tools that {protocol} calls unseen; train it with `protocol: {protocol}`"
        )
