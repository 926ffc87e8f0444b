"""`rewrite-eval attack`: how far an attacker gets with a share of injected tools, and the cost of the defences.

An attack succeeds on a query if an injected tool ranks first, or if a needed tool that the clean catalogue shows among
the first k is no longer there. `seen` counts any injected tool among the first k, `hidden` nothing but injected tools.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Gt, Le, Lt

from pipelines.data.dataset import DataSet, load_dataset, stable_hash
from pipelines.evaluate.attacks import ATTACKS, Injection, draw_new_providers, inject, provider_of
from pipelines.search import ToolSearch
from retrievers.errors import BadInput
from retrievers.index import Index, add
from retrievers.kind import Context
from retrievers.lint.finding import Finding
from retrievers.trust.hubs import Hubs
from retrievers.trust.ranks import TrustEvidence, apply_trust, explores
from retrievers.trust.screening import NEIGHBOURS, Screening
from retrievers.trust.tiers import TrustSettings
from retrievers.types import Ranking, Tool, ToolId

DEPTH = 100
MIN_INJECTED = 5
PARTS = 5
"""Parts of a split whose logs serve each other."""


@dataclass(frozen=True, slots=True)
class AttackConfig:
    """`rewrite-eval attack`."""

    output: str
    """The run folder to write."""
    data: str
    """A data set folder, or `bundled:sample`."""
    index: str
    """An index of its tools; it is copied, never changed."""
    retrievers: tuple[str, ...]
    split: str = "test"
    attacks: tuple[str, ...] = ATTACKS
    rate: Annotated[float, Gt(0), Le(0.5)] = 0.01
    """Injected tools per tool of the catalogue."""
    rounds: Annotated[int, Ge(1)] = 10
    """Each draws other targets."""
    k: Annotated[int, Ge(1)] = 5
    newcomers: Annotated[float, Ge(0), Lt(1)] = 0.2
    """The share of the catalogue's own providers that are no more vetted than the attacker."""
    trust: TrustSettings = field(default_factory=TrustSettings)
    """The defences; tiers of providers are drawn."""
    log: Literal["none", "train", "split"] = "none"
    """Queries whose tools count as used: of the train split, or for each fifth of the split those of the others."""
    seed: Annotated[int, Ge(0)] = 0

    def __post_init__(self) -> None:
        unknown = [attack for attack in self.attacks if attack not in ATTACKS]
        if unknown or not self.attacks:
            raise BadInput(f"must be some of {', '.join(ATTACKS)}, got {', '.join(unknown) or 'none'}", "attacks")
        if not self.retrievers:
            raise BadInput("name at least one retriever of the index, got none", "retrievers")
        if self.trust.default != "vetted" or self.trust.vetted or self.trust.new or self.trust.blocked:
            raise BadInput("tiers are drawn here; leave out default, vetted, new and blocked", "trust")


@dataclass(slots=True)
class AttackScores:
    """Counts of an attack, with the defences off or on."""

    targets: int = 0
    success: int = 0
    seen: int = 0
    hidden: int = 0

    def add(self, shown: Sequence[ToolId], before: Sequence[ToolId], gold: frozenset[ToolId], bad: set[ToolId]) -> None:
        """Count one query."""
        injected = [tool in bad for tool in shown]
        lost = (gold & set(before)) - set(shown)
        self.targets += 1
        self.success += bool((injected and injected[0]) or lost)
        self.seen += any(injected)
        self.hidden += bool(injected) and all(injected)

    def shares(self) -> dict[str, float]:
        """Shares of the targets."""
        return {name: round(getattr(self, name) / max(1, self.targets), 4) for name in ("success", "seen", "hidden")}


class AttackedRetriever:
    """One retriever of a data set's index, under attack."""

    def __init__(self, config: AttackConfig, data: DataSet, retriever: str, context: Context) -> None:
        self._config, self._data, self._retriever, self._context = config, data, retriever, context
        self._providers = {tool.id: provider_of(tool) for tool in data.tools}
        drawn = draw_new_providers(data, config.newcomers, config.seed)
        self._trust = replace(config.trust, default="new", vetted=tuple(name for name, new in drawn.items() if not new))
        self._tools = {tool.id: tool for tool in data.tools}
        self._injected: dict[str, Tool] = {}
        self._uses = _uses_by_query(data, config)
        index = Index(Path(config.index), context)
        clean = ToolSearch(index, retriever)
        clean.check_tools(self._tools)
        self._hubs = Hubs.of(index)
        self._gold = data.split(config.split)
        self._order = sorted(self._gold)
        texts = [data.queries[query].text for query in self._order]
        self._clean = dict(zip(self._order, clean.search(texts, DEPTH), strict=True))
        self._screening = Screening(data.tools)
        self._honest = [tool for tool in data.tools if self._is_new(tool)]
        findings = [finding for finding in self._screen(self._honest, clean) if finding.check in config.trust.hold]
        self._held = {tool for finding in findings for tool in finding.tool_ids}
        self._flags = {flag: sum(finding.check == flag for finding in findings) for flag in config.trust.hold}

    def recall(self) -> dict[str, Any]:
        """Recall@k of the clean catalogue without and with the defences, and the tools held back.

        `arrived`: recall of new providers' tools alone, as if none of these had been used yet.
        """
        honest = {tool.id for tool in self._honest}
        plain = {query: self._clean[query].ids[: self._config.k] for query in self._order}
        defended = {query: self._defended(query, self._clean[query], set()) for query in self._order}
        unused = {query: self._defended(query, self._clean[query], set(), honest) for query in self._order}
        off, on = (_mean_recall(self._gold, shown) for shown in (plain, defended))
        arrived = {query: gold & honest for query, gold in self._gold.items() if gold & honest}
        return {
            "arrived": {
                "queries": len(arrived),
                "off": round(_mean_recall(arrived, plain), 4),
                "on": round(_mean_recall(arrived, unused), 4),
            },
            "queries": len(self._order),
            "off": round(off, 4),
            "on": round(on, 4),
            "cost": round(off - on, 4),
            "newcomers": len(self._honest),
            "held": {**self._flags, "all": len(self._held)},
        }

    def run(self, attack: str) -> dict[str, Any]:
        """All rounds of one attack."""
        config = self._config
        off, on, injected, caught = AttackScores(), AttackScores(), 0, 0
        budget = max(MIN_INJECTED, round(config.rate * len(self._data.tools)))
        for number in range(config.rounds):
            injection = inject(attack, self._data, config.split, budget, f"{config.seed}/{number}")
            search = self._poisoned(injection)
            findings = self._screen(injection.tools, search)
            held = {tool for finding in findings if finding.check in self._trust.hold for tool in finding.tool_ids}
            injected, caught = injected + len(injection.tools), caught + len(held)
            bad = {tool.id for tool in injection.tools}
            self._injected = {tool.id: tool for tool in injection.tools}
            self._providers.update({tool.id: provider_of(tool) for tool in injection.tools})
            texts = [self._data.queries[query].text for query in injection.targets]
            for query, ranking in zip(injection.targets, search.search(texts, DEPTH), strict=True):
                gold, before = self._gold[query], self._clean[query]
                off.add(ranking.ids[: config.k], before.ids[: config.k], gold, bad)
                on.add(self._defended(query, ranking, held), self._defended(query, before, set()), gold, bad)
        return {
            "targets": off.targets,
            "injected": injected,
            "held": caught,
            "off": off.shares(),
            "on": on.shares(),
        }

    def _defended(
        self, query: str, ranking: Ranking, held: set[ToolId], unused: Collection[ToolId] = ()
    ) -> tuple[ToolId, ...]:
        """The first k with the defences on. `unused`: tools that count as never used."""
        out, tools = held | self._held, {**self._tools, **self._injected}
        uses = {tool: count for tool, count in self._uses(query).items() if tool not in unused}
        kept = [hit for hit in ranking if hit.tool_id not in out]
        left = Ranking(tuple(hit.tool_id for hit in kept), tuple(hit.score for hit in kept))
        evidence = TrustEvidence(
            self._providers.__getitem__,
            uses,
            lambda one, other: self._screening.cosine(tools[one], tools[other]),
            lambda tool: int(tool in self._injected),
        )
        explore = explores(self._data.queries[query].text, str(self._config.seed))
        return apply_trust(left, self._config.k, self._trust, evidence, explore).ids

    def _is_new(self, tool: Tool) -> bool:
        return self._trust.tier(provider_of(tool)) == "new"

    def _screen(self, tools: Sequence[Tool], search: ToolSearch) -> list[Finding]:
        known: Mapping[str, Tool] = {**self._tools, **{tool.id: tool for tool in tools}}

        def named(tool: Tool) -> Tool:
            return tool if tool.provider else replace(tool, provider=provider_of(tool))

        def near(texts: Sequence[str]) -> list[list[Tool]]:
            rankings = search.retrieve(texts, NEIGHBOURS, "screening")
            return [[named(known[tool]) for tool in ranking.ids if tool in known] for ranking in rankings]

        return self._screening.screen([*map(named, tools)], near, self._is_new) + self._hubs.findings(tools)

    def _poisoned(self, injection: Injection) -> ToolSearch:
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "index"
            shutil.copytree(self._config.index, copy)
            add(copy, injection.tools, self._context)
            search = ToolSearch(Index(copy, self._context), self._retriever)
            search.search(["weather"], 1)  # reads everything into memory before the folder is deleted
            return search


def _mean_recall(gold: Mapping[str, frozenset[ToolId]], shown: Mapping[str, Sequence[ToolId]]) -> float:
    recalls = [len(tools & set(shown[query])) / len(tools) for query, tools in gold.items()]
    return float(np.mean(recalls)) if recalls else 0.0


def _uses_by_query(data: DataSet, config: AttackConfig) -> Callable[[str], Mapping[ToolId, int]]:
    """The uses of tools that were logged when a query comes."""
    gold = {"none": {}, "train": data.gold.get("train", {}), "split": data.split(config.split)}[config.log]
    if config.log != "split":
        uses = Counter(tool for tools in gold.values() for tool in tools)
        return lambda query: uses

    def part(query: str) -> int:
        return stable_hash(f"{config.seed}/log/{query}") % PARTS

    others = [
        Counter(tool for query, tools in gold.items() if part(query) != number for tool in tools)
        for number in range(PARTS)
    ]
    return lambda query: others[part(query)]


def attack(config: AttackConfig, context: Context) -> dict[str, Any]:
    """Run every attack on every retriever. Writes only temporary copies of the index."""
    data = load_dataset(config.data)
    results: dict[str, Any] = {}
    for retriever in config.retrievers:
        attacked = AttackedRetriever(config, data, retriever, context)
        results[retriever] = {
            "recall": attacked.recall(),
            "attacks": {name: attacked.run(name) for name in config.attacks},
        }
    return {"dataset": data.name, "split": config.split, "k": config.k, "rate": config.rate, "retrievers": results}
