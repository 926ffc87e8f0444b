"""Simulated agents that search and call over a log as a gateway writes it: honest, careless and hostile ones.

An honest agent searches for a request, and mostly recognises the right tool in the list; if it is not there, it mostly
searches again in other words. A careless one calls the first tool. A hostile one calls one tool for every request,
found among all tools, or by adding the tool's own words to the request; several push the same tool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pipelines.data.dataset import DataSet
from pipelines.serve.calls.audit import AuditLog
from pipelines.serve.calls.outcomes import Outcome
from pipelines.serve.calls.settings import CallSettings

HONEST = 10
"""Keys of honest agents."""
LISTED = 5
RECOGNISES, MISTAKES, RETRIES, FAILS, WRONG_WORKS = 0.9, 0.1, 0.7, 0.1, 0.5
"""Chances: the right tool in the list is called; a wrong one is called if none is right; another search follows a miss;
a right call fails; a call of a wrong tool succeeds."""
Search = Callable[[str, int], list[str]]
"""Ids of the first tools for a text."""


def reworded(text: str, description: str, seed: int) -> str:
    """The request again, with some of the words that describe its tool."""
    words = sorted({word.strip(".,;:()").lower() for word in description.split() if len(word) > 4})
    chosen = np.random.default_rng(seed).choice(words, min(3, len(words)), replace=False) if words else []
    return " ".join([text, *chosen])


@dataclass
class SimulatedUse:
    """Uses of one gateway, written to its log."""

    data: DataSet
    pool: Sequence[str]
    """Queries that are asked."""
    rewordings: Mapping[str, str]
    folder: Path
    seed: int
    adds_words: bool = False
    """Hostile agents add the words of their tool to the request, so that it is listed first."""
    now: float = 1_800_000_000.0
    log: AuditLog = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log = AuditLog(CallSettings(log=str(self.folder), log_queries=True), clock=lambda: self.now)
        self._rng = np.random.default_rng(self.seed)
        self.gold = {query: tools for gold in self.data.gold.values() for query, tools in gold.items()}
        self.target = sorted(tool.id for tool in self.data.tools)[self.seed]
        """The tool that hostile agents push."""
        described = next(tool.description for tool in self.data.tools if tool.id == self.target)
        self.words = " ".join(described.split()[:8])

    def chance(self, share: float) -> bool:
        return bool(self._rng.random() < share)

    def use(self, search: Search, uses: int, careless: int = 0, hostile: int = 0, keys: int = 1) -> None:
        """Let agents work. `careless`, `hostile`: uses of each of the `keys` of this kind, per ten honest ones."""
        for _ in range(uses):
            self._honest(f"honest-{self._rng.integers(HONEST)}", search)
            for name, extra in (("careless", careless), ("hostile", hostile)):
                for key in range(keys if extra else 0):
                    for _ in range(extra // 10 + self.chance(extra / 10 - extra // 10)):
                        self._other(name, f"{name}-{key}", search)

    def _draw(self) -> str:
        return str(self.pool[int(self._rng.integers(len(self.pool)))])

    def _honest(self, key: str, search: Search) -> None:
        query = self._draw()
        texts = [self.data.queries[query].text, self.rewordings.get(query, "")]
        for text in filter(None, texts):
            self.now += 5.0
            tools = search(text, LISTED)
            self.log.add_search(key, text, tools, "index")
            right = [tool for tool in tools if tool in self.gold[query]]
            if right and self.chance(RECOGNISES):
                for tool in right:
                    self._call(key, tool, 1 - FAILS)
                break
            if self.chance(MISTAKES):
                wrong = [tool for tool in tools if tool not in self.gold[query]]
                self._call(key, str(self._rng.choice(wrong or tools)), WRONG_WORKS)
                break
            if not self.chance(RETRIES):
                break
        self.now += 20.0

    def _other(self, kind: str, key: str, search: Search) -> None:
        query = self._draw()
        text = self.data.queries[query].text
        if kind == "hostile" and self.adds_words:
            text = f"{text} {self.words}"
        tools = search(text, LISTED if kind == "careless" else 200)
        if kind == "hostile":
            tools = [*dict.fromkeys([*tools, self.target])]
        self.now += 1.0
        self.log.add_search(key, text, tools, "index")
        tool = tools[0] if kind == "careless" else self.target
        right = tool in self.gold[query] or kind == "hostile"
        self._call(key, tool, 1 - FAILS if right else WRONG_WORKS)

    def _call(self, key: str, tool: str, works: float) -> None:
        outcome: Outcome = "ok" if self.chance(works) else "tool_error"
        self.log.add_call(key, tool, {}, 0.1, outcome)
