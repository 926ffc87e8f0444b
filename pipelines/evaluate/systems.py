"""The systems of an evaluation: whatever ranks tools for queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipelines.data.dataset import DataSet
from pipelines.data.splits import Protocol
from pipelines.data.trec import read_run
from pipelines.evaluate.context import Bench, Place, Trial
from pipelines.evaluate.rewritten_systems import DEV, Fused, Rewriters, Rewritten, Use
from pipelines.rewriters import RewriterSettings
from pipelines.system_description import SystemDescription, describe_system
from retrievers.errors import BadInput
from retrievers.index import Index
from retrievers.kind import Context
from retrievers.settings import RewriteFusion
from retrievers.types import Ranking, ToolId
from reward.metrics import DEPTH


@dataclass(frozen=True, slots=True)
class SystemSettings:
    """Something that ranks tools: a retriever of an index, with a rewriter before it perhaps, or a run file."""

    retriever: str | None = None
    index: str | None = None
    """The config's index when not given."""
    run: str | None = None
    """A TREC run file made elsewhere."""
    rewriter: str | None = None
    """One of the config's rewriters; what it writes is searched beside the raw query."""
    fusion: RewriteFusion | None = None
    """How the lists of the raw query and of its rewrite become one; as the rewriter's card says when not given."""
    choose_fusion: bool = False
    """Choose that on the dev split of the same data set."""

    def __post_init__(self) -> None:
        if (self.retriever is None) == (self.run is None):
            raise BadInput("a system is either a retriever of an index or a run file")
        if self.run is not None and self.rewriter is not None:
            raise BadInput("a run file is final; a rewriter needs a retriever", "rewriter")
        if self.rewriter is None and (self.fusion is not None or self.choose_fusion):
            raise BadInput("there is nothing to fuse with the raw query without a `rewriter`")
        if self.fusion is not None and self.choose_fusion:
            raise BadInput("either give the fusion or have it chosen, not both", "fusion")


@dataclass(frozen=True, slots=True)
class Ranked:
    """What a system answered."""

    rankings: Mapping[str, Ranking]
    fingerprint: str
    seconds: float | None
    """With rewriting, where the system rewrites."""
    fused: Fused | None = None
    branches: Mapping[ToolId, tuple[int, ...]] = field(default_factory=dict)
    """Where in a tree of codes its tools are, where it has one."""
    made_of: SystemDescription | None = None
    """None: a run file, of which nobody here knows."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What all systems answered, and the rewriters behind them."""

    systems: Mapping[str, Ranked]
    rewriters: Mapping[str, Rewritten] = field(default_factory=dict)


def ask(
    systems: Mapping[str, SystemSettings],
    rewriters: Mapping[str, RewriterSettings],
    default_index: str | None,
    trial: Trial,
    context: Context,
) -> Answers:
    """Every system's rankings for the queries. What can be refused is refused before anything is asked."""
    bench, order, data = Bench(trial, context), trial.order(trial.split), trial.data
    known = {tool.id for tool in data.tools}
    runs: dict[str, Mapping[str, Ranking]] = {}
    places: dict[str, Place] = {}
    uses: dict[str, Use] = {}
    for name, system in systems.items():
        if system.run is not None:
            runs[name] = read_run(Path(system.run), known)
            _same_queries(name, runs[name], order)
            continue
        places[name] = _place(name, system, default_index, bench)
        if system.rewriter is not None:
            uses[name] = Use(system.rewriter, places[name], system.choose_fusion)
    behind = Rewriters(bench, rewriters, uses.values())
    behind.answer()
    answers = {}
    for name, system in systems.items():
        if name in runs:
            answers[name] = Ranked(runs[name], f"run:{Path(system.run or '').name}", None)
            continue
        found, seconds, fused = behind.rank(uses[name], system.fusion) if name in uses else _raw(bench, places[name])
        ranked = dict(zip(order, found, strict=True))
        search = bench.search(places[name])
        parts = behind.parts(uses[name]) if name in uses else None
        made = describe_system(bench.index(places[name].index), places[name].retriever, context.find_model, parts)
        answers[name] = Ranked(ranked, search.fingerprint, seconds, fused, search.branches, made)
    return Answers(answers, behind.rewritten())


def _raw(bench: Bench, place: Place) -> tuple[list[Ranking], float, None]:
    """The rankings of a system that does not rewrite, and the seconds they took."""
    search, raw, texts = bench.search(place), bench.raw(place, bench.trial.split), bench.trial.texts(bench.trial.split)
    named = bench.timed(
        lambda: [search.fuse(text, found, (), DEPTH) for text, found in zip(texts, raw.value, strict=True)]
    )
    return named.value, raw.seconds + named.seconds, None


def _place(name: str, system: SystemSettings, default_index: str | None, bench: Bench) -> Place:
    """Where a system searches, once it is clear that it may."""
    folder = system.index or default_index
    if folder is None or system.retriever is None:
        raise BadInput(f"the system {name!r} names no index, and neither does the config")
    place, index = Place(folder, system.retriever), bench.index(folder)
    bench.search(place).check_tools((tool.id for tool in bench.trial.data.tools), f"the index of {name!r}")
    _refuse_seen(name, index, system.retriever, bench.trial.data, bench.trial.protocol)
    asked = DEV if system.choose_fusion else bench.trial.split
    _refuse_remembered(name, index, system.retriever, bench.trial.data.name, asked)
    return place


def _same_queries(name: str, rankings: Mapping[str, Ranking], order: Sequence[str]) -> None:
    missing, extra = sorted(set(order) - rankings.keys()), sorted(rankings.keys() - set(order))
    if missing or extra:
        what = (
            f"does not rank query {missing[0]!r}" if missing else f"ranks query {extra[0]!r}, which is not in the split"
        )
        raise BadInput(f"the system {name!r} {what}; systems must rank the same {len(order)} queries")


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


def _refuse_remembered(name: str, index: Index, retriever: str, dataset: str, split: str) -> None:
    """Once trained, MassTool keeps the queries of train and dev with their tools: asked again, it knows the answers."""
    part = index.manifest.retrievers.get(retriever)
    for inner in part.settings.get("of", ()) if part else ():
        _refuse_remembered(name, index, inner, dataset, split)
    training = part.settings.get("train") if part and part.settings["kind"] == "masstool" else None
    names = {Path(source["path"].removeprefix("bundled:")).name for source in training["data"]} if training else set()
    if split != "test" and dataset in names:
        raise BadInput(
            f"the system {name!r} remembers the {split} queries of {dataset} with their tools, so they cannot tell how "
            "good it is; its training.json has what dev said before that, and test can be asked with a given fusion"
        )
