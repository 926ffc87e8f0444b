"""`rewrite-eval attack`: what an attacker reaches with a share of injected tools, and what the defences cost.

An attack succeeds on a query if an injected tool stands first, or if a needed tool that the clean catalogue shows
among the first k is no longer there. `seen` is stricter: any injected tool among the first k. `hidden` is what
flooding is published with: nothing but injected tools among them.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.data.dataset import DataSet, load_dataset
from pipelines.evaluate.attacks import ATTACKS, Injection, inject, newcomers, provider_of
from pipelines.search import ToolSearch
from retrievers.errors import BadInput
from retrievers.index import Index, add
from retrievers.kind import Context
from retrievers.lint.finding import Finding
from retrievers.trust.hubs import Hubs
from retrievers.trust.screening import NEIGHBOURS, Screening
from retrievers.trust.tiers import TrustSettings, apply_trust
from retrievers.types import Ranking, Tool, ToolId

DEPTH = 100
FEWEST = 5
"""Tools that an attacker has at least, however small the catalogue is."""


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
    rate: float = 0.01
    """Injected tools for each tool of the catalogue."""
    rounds: int = 10
    """Each draws other targets."""
    k: int = 5
    newcomers: float = 0.2
    """The share of the catalogue's own providers that are no more vetted than the attacker."""
    trust: TrustSettings = field(default_factory=TrustSettings)
    """The defences; who is vetted is drawn."""
    seed: int = 0

    def __post_init__(self) -> None:
        unknown = [attack for attack in self.attacks if attack not in ATTACKS]
        if unknown or not self.attacks:
            raise BadInput(f"attacks are {', '.join(ATTACKS)}, not {', '.join(unknown) or 'none'}", "attacks")
        if not self.retrievers:
            raise BadInput("name at least one retriever of the index", "retrievers")
        if not 0 < self.rate <= 0.5 or min(self.rounds, self.k) < 1 or not 0 <= self.newcomers < 1 or self.seed < 0:
            raise BadInput("rate is at most 0.5, rounds and k at least 1, newcomers a share, seed not negative")
        if self.trust.default != "vetted" or self.trust.vetted or self.trust.new or self.trust.blocked:
            raise BadInput("the tiers are drawn here; set only max_share, max_per_provider, allow_first, hold", "trust")


@dataclass(slots=True)
class Figures:
    """What an attack reached, with the defences off or on."""

    targets: int = 0
    success: int = 0
    seen: int = 0
    hidden: int = 0

    def add(self, shown: Sequence[ToolId], before: Sequence[ToolId], gold: frozenset[ToolId], bad: set[ToolId]) -> None:
        """One query."""
        injected = [tool in bad for tool in shown]
        lost = (gold & set(before)) - set(shown)
        self.targets += 1
        self.success += bool((injected and injected[0]) or lost)
        self.seen += any(injected)
        self.hidden += bool(injected) and all(injected)

    def shares(self) -> dict[str, float]:
        """As shares of the targets."""
        return {name: round(getattr(self, name) / max(1, self.targets), 4) for name in ("success", "seen", "hidden")}


class Attacked:
    """One retriever of a data set's index, under attack."""

    def __init__(self, config: AttackConfig, data: DataSet, retriever: str, context: Context) -> None:
        self._config, self._data, self._retriever, self._context = config, data, retriever, context
        self._providers = {tool.id: provider_of(tool) for tool in data.tools}
        drawn = newcomers(data, config.newcomers, config.seed)
        self._trust = replace(config.trust, default="new", vetted=tuple(name for name, new in drawn.items() if not new))
        self._tools = {tool.id: tool for tool in data.tools}
        index = Index(Path(config.index), context)
        clean = ToolSearch(index, retriever)
        clean.check_tools(self._tools)
        self._hubs = Hubs.of(index)
        self._order = sorted(data.split(config.split))
        texts = [data.queries[query].text for query in self._order]
        self._clean = dict(zip(self._order, clean.search(texts, DEPTH), strict=True))
        self._screening = Screening(data.tools)
        honest = [tool for tool in data.tools if self._new(tool)]
        found = [each for each in self._screened(honest, clean) if each.check in config.trust.hold]
        self._held = {tool for finding in found for tool in finding.tool_ids}
        self._flags = {flag: sum(each.check == flag for each in found) for flag in config.trust.hold}

    def recall(self) -> dict[str, Any]:
        """Recall@k of the clean catalogue without and with the defences, over all queries; and what was held."""
        gold, k = self._data.split(self._config.split), self._config.k
        off = [len(gold[query] & set(self._clean[query].ids[:k])) / len(gold[query]) for query in self._order]
        on = [
            len(gold[query] & set(self._defended(self._clean[query], set()))) / len(gold[query])
            for query in self._order
        ]
        cost = float(np.mean(off) - np.mean(on))
        honest = sum(self._new(tool) for tool in self._data.tools)
        return {
            "queries": len(self._order),
            "off": round(float(np.mean(off)), 4),
            "on": round(float(np.mean(on)), 4),
            "cost": round(cost, 4),
            "newcomers": honest,
            "held": {**self._flags, "all": len(self._held)},
        }

    def run(self, attack: str) -> dict[str, Any]:
        """All rounds of one attack."""
        config = self._config
        off, on, injected, caught = Figures(), Figures(), 0, 0
        budget = max(FEWEST, round(config.rate * len(self._data.tools)))
        for number in range(config.rounds):
            injection = inject(attack, self._data, config.split, budget, f"{config.seed}/{number}")
            search = self._poisoned(injection)
            held = self._flagged(injection.tools, search)
            injected, caught = injected + len(injection.tools), caught + len(held)
            bad = {tool.id for tool in injection.tools}
            self._providers.update({tool.id: provider_of(tool) for tool in injection.tools})
            texts = [self._data.queries[query].text for query in injection.targets]
            for query, ranking in zip(injection.targets, search.search(texts, DEPTH), strict=True):
                gold, before = self._data.split(config.split)[query], self._clean[query]
                off.add(ranking.ids[: config.k], before.ids[: config.k], gold, bad)
                on.add(self._defended(ranking, held), self._defended(before, set()), gold, bad)
        return {
            "targets": off.targets,
            "injected": injected,
            "held": caught,
            "off": off.shares(),
            "on": on.shares(),
        }

    def _defended(self, ranking: Ranking, held: set[ToolId]) -> tuple[ToolId, ...]:
        out = held | self._held
        kept = [hit for hit in ranking if hit.tool_id not in out]
        left = Ranking(tuple(hit.tool_id for hit in kept), tuple(hit.score for hit in kept))
        return apply_trust(left, self._config.k, self._providers.__getitem__, self._trust).ids

    def _new(self, tool: Tool) -> bool:
        return self._trust.tier(provider_of(tool)) == "new"

    def _flagged(self, tools: Sequence[Tool], search: ToolSearch) -> set[ToolId]:
        findings = self._screened(tools, search)
        return {tool for each in findings if each.check in self._trust.hold for tool in each.tool_ids}

    def _screened(self, tools: Sequence[Tool], search: ToolSearch) -> list[Finding]:
        known: Mapping[str, Tool] = {**self._tools, **{tool.id: tool for tool in tools}}

        def near(texts: Sequence[str]) -> list[list[Tool]]:
            rankings = search.retrieve(texts, NEIGHBOURS, "screening")
            return [[self._named(known[tool]) for tool in ranking.ids if tool in known] for ranking in rankings]

        found = self._screening.screen([self._named(tool) for tool in tools], near, self._new)
        return found + self._hubs.findings(tools)

    def _named(self, tool: Tool) -> Tool:
        return tool if tool.provider else replace(tool, provider=provider_of(tool))

    def _poisoned(self, injection: Injection) -> ToolSearch:
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "index"
            shutil.copytree(self._config.index, copy)
            add(copy, injection.tools, self._context)
            search = ToolSearch(Index(copy, self._context), self._retriever)
            search.search(["weather"], 1)  # all that it needs is in memory from now on
            return search


def attack(config: AttackConfig, context: Context) -> dict[str, Any]:
    """Every attack on every retriever. Writes nothing but a copy of the index that it deletes again."""
    data = load_dataset(config.data)
    found: dict[str, Any] = {}
    for retriever in config.retrievers:
        attacked = Attacked(config, data, retriever, context)
        found[retriever] = {
            "recall": attacked.recall(),
            "attacks": {name: attacked.run(name) for name in config.attacks},
        }
    return {"dataset": data.name, "split": config.split, "k": config.k, "rate": config.rate, "retrievers": found}
