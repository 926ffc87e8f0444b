"""Targets of several data sets, read and checked, and the judge of what a rewriter makes of their dev queries."""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.evaluate.fusion_selection import FusionDevSet, FusionScore, choose_fusion
from pipelines.search import DEPTH, ToolSearch
from retrievers.errors import BadInput, ModelMismatch
from retrievers.index import Index
from retrievers.kind import Context
from retrievers.settings import RewriteFusion
from retrievers.types import ToolId
from reward.metrics import parse_metric
from rewrite.sft.examples import Example, read_examples
from rewrite.template import Template, load_template
from rewrite.types import Rewrite

TOLD = ("dataset", "protocol", "retriever", "fingerprint", "examples", "oracle")
"""What a card tells of the data."""


@dataclass(frozen=True, slots=True)
class SftSource:
    """Targets of one data set."""

    targets: str
    """A folder that `rewrite-train targets` wrote."""
    weight: float = 1.0
    """How often its examples are seen in an epoch: 0.5 takes every second, 2 each twice."""

    def __post_init__(self) -> None:
        if self.weight <= 0:
            raise BadInput("a source's weight must be positive; leave the source out instead", "weight")


@dataclass(frozen=True, slots=True)
class DevSettings:
    """How dev is judged while training."""

    queries: int = 200
    """Dev queries of every data set, drawn by the seed."""
    metric: str = "recall@5"
    fusion: RewriteFusion = field(default_factory=lambda: RewriteFusion("interleave", 0.0))
    """With the raw query or, at raw: 0, the rewrite alone."""
    answer_tokens: int = 192
    batch_size: int = 64
    samples: int = 4
    """Rewrites shown in the log at every evaluation."""

    def __post_init__(self) -> None:
        _, k = parse_metric(self.metric)
        if k is not None and k > DEPTH:
            raise BadInput(f"{self.metric} looks deeper than the {DEPTH} places that are kept", "metric")
        if min(self.queries, self.answer_tokens, self.batch_size) < 1 or self.samples < 0:
            raise BadInput("queries, answer_tokens and batch_size must be at least 1")


@dataclass(frozen=True, slots=True)
class Source:
    """A targets folder, read."""

    name: str
    """The data set's, with a number behind it where several targets are of one."""
    facts: Mapping[str, Any]
    train: list[Example]
    dev: list[Example]
    weight: float

    def told(self) -> dict[str, Any]:
        """What a card says of it; targets that were made long ago do not tell how their retriever searches."""
        known = [key for key in (*TOLD, "searches") if key in self.facts]
        return {key: self.facts[key] for key in known} | {"weight": self.weight}


def read_sources(data: Sequence[SftSource]) -> tuple[list[Source], Template]:
    """All targets folders, which must share one template and one way of showing tools."""
    sources: list[Source] = []
    for each in data:
        sources.append(_read_source(each, [source.facts["dataset"] for source in sources]))
    templates = [load_template(Path(each.targets)) for each in data]
    if any(template != templates[0] for template in templates):
        raise BadInput("the targets were made with different templates; make them again with one")
    if templates[0].candidates and len({str(source.facts["phrasing"]) for source in sources}) > 1:
        raise BadInput("the targets show tools in different phrasings; make them again with one `phrasings`")
    return sources, templates[0]


def _read_source(source: SftSource, before: Sequence[str]) -> Source:
    folder = Path(source.targets)
    try:
        facts = json.loads((folder / "targets.json").read_text(encoding="utf-8"))
        missing = [key for key in (*TOLD, "index", "phrasing") if key not in facts]
    except FileNotFoundError as error:
        raise BadInput(f"no finished targets in {folder}; make them with `rewrite-train targets`") from error
    except (ValueError, TypeError) as error:
        raise BadInput(f"{folder / 'targets.json'} is damaged; make the targets again") from error
    if missing:
        raise BadInput(f"{folder / 'targets.json'} lacks {missing[0]}; make the targets again")
    train, dev = read_examples(folder / "train.jsonl"), read_examples(folder / "dev.jsonl")
    if not train or not dev:
        raise BadInput(f"{folder} has {len(train)} training and {len(dev)} dev examples; take a data set with both")
    known = before.count(facts["dataset"])
    name = f"{facts['dataset']}-{known + 1}" if known else str(facts["dataset"])
    return Source(name, facts, train, dev, source.weight)


def choose_dev(sources: Sequence[Source], queries: int, seed: int) -> list[list[Example]]:
    """For every data set the dev examples that are judged, drawn by the seed."""
    return [
        random.Random(f"{seed}/{source.name}").sample(source.dev, min(queries, len(source.dev))) for source in sources
    ]


def spread(sizes: Sequence[int], count: int) -> list[int]:
    """Places in the joined list of several sets, taken from each set in turn."""
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    turns = [(turn, start + turn) for start, size in zip(starts, sizes, strict=True) for turn in range(size)]
    return sorted(place for _, place in sorted(turns)[:count])


class DevJudge:
    """Judges rewrites of dev queries by what the frozen retrievers find for them."""

    def __init__(
        self,
        sources: Sequence[Source],
        dev: Sequence[list[Example]],
        settings: DevSettings,
        context: Context,
        seen: Collection[tuple[str, ToolId]] = (),
    ) -> None:
        """`seen`: the tools (data set, id) that training queries need; with some, dev is also judged by whether all
        tools of a query are among them."""
        self._settings, self._seen = settings, frozenset(seen)
        self._searches: list[tuple[str, ToolSearch, list[Example]]] = []
        for source, chosen in zip(sources, dev, strict=True):
            search = ToolSearch(Index(Path(source.facts["index"]), context), source.facts["retriever"])
            if search.fingerprint != source.facts["fingerprint"]:
                raise ModelMismatch(
                    f"the targets of {source.name} were made with another state of {source.facts['index']}; "
                    "make them again with `rewrite-train targets`"
                )
            self._searches.append((source.name, search, chosen))
        self._raw = [search.retrieve([each.utterance for each in dev], DEPTH) for _, search, dev in self._searches]

    def __call__(self, rewrites: Sequence[Rewrite]) -> dict[str, float]:
        """The metric of every data set, and their mean."""
        metric, fusion = self._settings.metric, self._settings.fusion
        names = [name for name, _, _ in self._searches]
        scores = [case.scores(fusion, metric) for case in self._cases(rewrites)]
        found = {f"{name}_{metric}": float(each.mean()) for name, each in zip(names, scores, strict=True)}
        return {metric: sum(found.values()) / len(found), **found, **self._by_tools(scores)}

    def _by_tools(self, scores: Sequence[np.ndarray]) -> dict[str, float]:
        """The metric over queries all of whose tools were trained on, and over the others."""
        if not self._seen:
            return {}
        sides: dict[str, list[float]] = {"seen": [], "unseen": []}
        for (name, _, dev), each in zip(self._searches, scores, strict=True):
            for example, score in zip(dev, each.tolist(), strict=True):
                known = all((name, tool) in self._seen for tool in example.gold)
                sides["seen" if known else "unseen"].append(score)
        return {f"{side}_{self._settings.metric}": sum(each) / len(each) for side, each in sides.items() if each}

    def fusion(self, rewrites: Sequence[Rewrite]) -> list[FusionScore]:
        """How the rewrites are best joined with the raw queries, over all data sets: the chosen way first."""
        return choose_fusion(self._cases(rewrites), self._settings.metric)

    def _cases(self, rewrites: Sequence[Rewrite]) -> list[FusionDevSet]:
        cases, start = [], 0
        for (_, search, dev), raw in zip(self._searches, self._raw, strict=True):
            lists = search.search_rewrites(rewrites[start : start + len(dev)])
            start += len(dev)
            gold = [frozenset(example.gold) for example in dev]
            cases.append(FusionDevSet(search, [example.utterance for example in dev], raw, lists, gold))
        return cases

    def raw(self) -> dict[str, float]:
        """What the raw queries reach."""
        return self([Rewrite((), "none")] * sum(len(dev) for _, _, dev in self._searches))
