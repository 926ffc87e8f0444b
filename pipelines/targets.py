"""`rewrite-train targets`: what a rewriter should answer, made from gold tools and a frozen retriever.

Every gold tool becomes one line. The retriever is asked with several phrasings of the tool, and the one that finds it
best is taken: for each tool by itself, or one phrasing for the whole catalogue, which a model can learn from the
candidates it is shown and use on tools it has never seen.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pipelines.data import DataSet, Gold, hashed, load_dataset
from pipelines.phrasing import NAMES, phrase
from pipelines.protocols import Protocol, apply_protocol
from pipelines.search import ToolSearch
from retrievers.errors import BadInput
from retrievers.fusion import interleave
from retrievers.index import Index
from retrievers.kinds import Context
from retrievers.types import Ranking, Tool, ToolId
from reward.metrics import judge, measure
from rewrite.sft.examples import Example
from rewrite.template import Template, load_template

ORACLE = ("recall@3", "recall@5", "ndcg@5", "comp@5")
DEPTH = 100


@dataclass(frozen=True, slots=True)
class TargetsConfig:
    """`rewrite-train targets`."""

    output: str
    """The folder to write: train.jsonl, dev.jsonl, align.jsonl, targets.json."""
    data: str
    """A data set folder, or `bundled:sample`."""
    index: str
    """The index of its catalogue."""
    retriever: str = "dense"
    """The frozen retriever of the index for which rewrites are made."""
    protocol: Protocol = "official"
    template: str = "imagine"
    """A bundled template or a YAML file; it says how many candidates are shown and how long a line may be."""
    phrasings: tuple[str, ...] = NAMES
    choose: Literal["tool", "set"] = "tool"
    """Take the best phrasing of every tool, or the one that is best for the whole catalogue."""
    order: Literal["id", "rank", "random"] = "rank"
    """Of an answer's lines: by tool id, as the raw query ranks the tools, or shuffled."""
    missing: Literal["imagine", "skip"] = "imagine"
    """What to do with gold tools that are not among the candidates shown: write them all the same, or leave them."""
    abstain: float = 0.0
    """The largest share of training examples that answer `no rewrite`: queries that raw retrieval serves already."""
    served_at: int = 5
    """A query is served when all its tools are among the first so many."""
    most_per_tool: int = 0
    """A training query is left out when all its tools have been seen this often; 0: none is. A model that meets a few
    tools again and again learns to name them whatever it is asked, which harms it on tools it has never seen."""
    hold_out_tools: float = 0.0
    """The share of tools whose queries are kept out of SFT, for alignment: they go to align.jsonl."""
    seed: int = 0

    def __post_init__(self) -> None:
        unknown = [name for name in self.phrasings if name not in NAMES]
        if unknown or not self.phrasings:
            raise BadInput(f"phrasings are {', '.join(NAMES)}, not {', '.join(unknown) or 'nothing'}", "phrasings")
        if not 0 <= self.abstain < 1 or not 0 <= self.hold_out_tools < 1:
            raise BadInput("abstain and hold_out_tools are shares, from 0 to below 1")
        if self.served_at < 1 or min(self.seed, self.most_per_tool) < 0:
            raise BadInput("served_at must be at least 1, seed and most_per_tool not negative")


@dataclass(frozen=True, slots=True)
class Targets:
    """All that a targets folder holds."""

    template: Template
    splits: Mapping[str, list[Example]]
    """train, dev and align"""
    facts: Mapping[str, Any]


def make_targets(config: TargetsConfig, context: Context) -> Targets:
    """Examples for every training and dev query, and what a model could reach that wrote them perfectly."""
    template = load_template(config.template)
    if template.candidates and config.choose == "tool":
        raise BadInput(
            f"the template {template.name} shows candidates, which read alike only with `choose: set`", "choose"
        )
    data = apply_protocol(load_dataset(config.data), config.protocol)
    splits = {split: data.gold[split] for split in ("train", "dev", "test") if data.gold.get(split)}
    if "train" not in splits:
        raise BadInput(f"the data set {data.name} has no training queries with gold tools to make targets from")
    search = ToolSearch(Index(Path(config.index), context), config.retriever)
    search.check_tools(tool.id for tool in data.tools)
    phrases, told, style = choose_phrasings(config, data, splits, search, template)
    oracle = {split: _oracle(search, gold, phrases) for split, gold in splits.items() if split != "train"}
    raw = _raw(data, splits, search) if template.candidates or config.abstain or config.order == "rank" else {}
    maker = _Maker(config, data, template, phrases, raw, style, search.fields)
    train = maker.examples(splits["train"])
    kept, held = _hold_out(train, config)
    abstained = maker.abstain(_even(kept, config))
    return Targets(
        template,
        {"train": abstained, "dev": maker.examples(splits.get("dev", {})), "align": held},
        {
            "data": config.data,
            "dataset": data.name,
            "protocol": config.protocol,
            "index": config.index,
            "retriever": config.retriever,
            "fingerprint": search.fingerprint,
            "template": {"name": template.name, "version": template.version},
            "phrasing": style,
            "phrasings": told,
            "oracle": oracle,
            "raw": {split: _scores([raw[q].ids for q in sorted(g)], g) for split, g in splits.items() if raw},
            "examples": {"train": len(abstained), "dev": len(splits.get("dev", {})), "align": len(held)},
            "abstained": sum(not example.lines for example in abstained),
        },
    )


def choose_phrasings(
    config: TargetsConfig, data: DataSet, splits: Mapping[str, Gold], search: ToolSearch, template: Template
) -> tuple[dict[ToolId, str], dict[str, float], str]:
    """tool -> its line; the mean reciprocal place each phrasing reached; the phrasing of the whole set, or ""."""
    tools = {tool.id: tool for tool in data.tools}
    needed = sorted({tool for gold in splits.values() for queries in gold.values() for tool in queries})
    learned = {tool for gold in splits["train"].values() for tool in gold}
    lines = {
        name: [phrase(tools[tool], name, template.most_characters, search.fields) for tool in needed]
        for name in config.phrasings
    }
    goodness = np.array([_goodness(search, lines[name], needed) for name in config.phrasings])
    # What is best over all is told by the tools of the training queries alone.
    means = goodness[:, [tool in learned for tool in needed]].mean(axis=1)
    favourite = int(means.argmax())
    told = {name: round(float(mean), 4) for name, mean in zip(config.phrasings, means, strict=True)}
    style = config.phrasings[favourite]
    if config.choose == "set":
        return dict(zip(needed, lines[style], strict=True)), told, style
    # Of equally good phrasings the one that is best over all: the more alike, the easier to learn.
    goodness[favourite] += 1e-9
    best = goodness.argmax(axis=0)
    chosen = {
        tool: lines[config.phrasings[row]][place] for place, (tool, row) in enumerate(zip(needed, best, strict=True))
    }
    return chosen, told, ""


def _goodness(search: ToolSearch, lines: Sequence[str], tools: Sequence[ToolId]) -> list[float]:
    """1 / place at which each line finds its tool."""
    rankings = search.ask(lines, DEPTH, "phrasings")
    return [
        1.0 / (ranking.ids.index(tool) + 1) if tool in ranking.ids else 0.0
        for ranking, tool in zip(rankings, tools, strict=True)
    ]


def _oracle(search: ToolSearch, gold: Gold, phrases: Mapping[ToolId, str]) -> dict[str, float]:
    """What a rewriter that writes every gold line perfectly would reach with this retriever, its lists interleaved."""
    needed = sorted({tool for tools in gold.values() for tool in tools})
    lists = dict(zip(needed, search.ask([phrases[tool] for tool in needed], DEPTH), strict=True))
    fused = [interleave([lists[tool] for tool in sorted(gold[query])], DEPTH).ids for query in sorted(gold)]
    return _scores(fused, gold)


def _scores(rankings: Sequence[Sequence[ToolId]], gold: Gold) -> dict[str, float]:
    judged = judge(rankings, [gold[query] for query in sorted(gold)])
    return {metric: round(float(measure(metric, judged).mean()), 4) for metric in ORACLE}


def _raw(data: DataSet, splits: Mapping[str, Gold], search: ToolSearch) -> dict[str, Ranking]:
    order = sorted({query for gold in splits.values() for query in gold})
    return dict(
        zip(order, search.ask([data.queries[query].text for query in order], DEPTH, "raw queries"), strict=True)
    )


@dataclass(frozen=True, slots=True)
class _Maker:
    config: TargetsConfig
    data: DataSet
    template: Template
    phrases: Mapping[ToolId, str]
    raw: Mapping[str, Ranking]
    style: str
    fields: Sequence[str]

    def examples(self, gold: Gold) -> list[Example]:
        """One example a query, in the order of their ids."""
        tools = {tool.id: tool for tool in self.data.tools} if self.template.candidates else {}
        return [self._example(query, gold[query], tools) for query in sorted(gold)]

    def _example(self, query: str, gold: frozenset[ToolId], tools: Mapping[ToolId, Tool]) -> Example:
        shown = self.raw[query].ids[: self.template.candidates] if self.template.candidates else ()
        order = self._order(query, gold)
        if self.template.candidates and self.config.missing == "skip":
            order = [tool for tool in order if tool in shown]
        lines = tuple(self.phrases[tool] for tool in order)
        texts = tuple(phrase(tools[t], self.style, self.template.most_characters, self.fields) for t in shown)
        return Example(query, self.data.queries[query].text, lines, tuple(sorted(gold)), texts)

    def _order(self, query: str, gold: frozenset[ToolId]) -> list[ToolId]:
        if self.config.order == "random":
            return random.Random(f"{self.config.seed}/{query}").sample(sorted(gold), len(gold))
        if self.config.order == "id":
            return sorted(gold)
        places = {tool: place for place, tool in enumerate(self.raw[query].ids)}
        return sorted(gold, key=lambda tool: (places.get(tool, DEPTH), tool))

    def abstain(self, examples: Sequence[Example]) -> list[Example]:
        """The examples, some of those that raw retrieval serves already answering `no rewrite`."""
        served = [
            example.id
            for example in examples
            if self.config.abstain and set(example.gold) <= set(self.raw[example.id].ids[: self.config.served_at])
        ]
        most = int(self.config.abstain * len(examples))
        chosen = set(sorted(served, key=lambda query: hashed(f"{self.config.seed}/{query}"))[:most])
        return [
            Example(each.id, each.utterance, (), each.gold, each.candidates) if each.id in chosen else each
            for each in examples
        ]


def _even(examples: Sequence[Example], config: TargetsConfig) -> list[Example]:
    """The examples without those whose tools have all been seen `most_per_tool` times, in an order drawn by hash."""
    if not config.most_per_tool:
        return list(examples)
    seen: Counter[ToolId] = Counter()
    chosen = set()
    for example in sorted(examples, key=lambda each: hashed(f"{config.seed}/{each.id}")):
        if min(seen[tool] for tool in example.gold) < config.most_per_tool:
            seen.update(example.gold)
            chosen.add(example.id)
    return [example for example in examples if example.id in chosen]


def _hold_out(examples: Sequence[Example], config: TargetsConfig) -> tuple[list[Example], list[Example]]:
    """Examples to learn from, and those that need a tool which is kept for alignment."""
    tools = sorted({tool for example in examples for tool in example.gold})
    order = sorted(tools, key=lambda tool: hashed(f"align/{config.seed}/{tool}"))
    held = set(order[: int(config.hold_out_tools * len(tools))])
    kept = [example for example in examples if not held & set(example.gold)]
    if not kept:
        raise BadInput("hold_out_tools leaves no query to learn from; make it smaller")
    return kept, [example for example in examples if held & set(example.gold)]
