"""Systems with a rewriter: each rewriter answers each query once, however many systems use the answer."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pipelines.evaluate.context import Bench, Place, Timed
from pipelines.evaluate.fusion_selection import Case, Tried, choose_fusion
from pipelines.rewriters import Parts, RewriterSettings, describe, find_parts, load_rewriter
from retrievers.errors import BadInput
from retrievers.settings import RewriteFusion
from retrievers.types import Ranking
from reward.metrics import DEPTH
from rewrite.rewriter import Rewriter
from rewrite.types import Rewrite

DEV = "dev"
"""The split on which weights are chosen."""
METRIC = "recall@5"
"""By what they are chosen."""


@dataclass(frozen=True, slots=True)
class Use:
    """A system's use of a rewriter."""

    rewriter: str
    place: Place
    choose: bool


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What a rewriter answered to the queries of the evaluation, in their order."""

    rewrites: tuple[Rewrite, ...]
    seconds: float
    facts: Mapping[str, Any]
    """What it is made of."""


@dataclass(frozen=True, slots=True)
class Fused:
    """How a system joins the raw query with its rewrite."""

    rewriter: str
    """As the answers are labelled."""
    fusion: RewriteFusion
    tried: tuple[Tried, ...] = ()
    """What dev says of every way that was tried, the one that was taken first; empty where the config chose."""


class Rewriters:
    """The rewriters of an evaluation: checked together, then loaded one after the other."""

    def __init__(self, bench: Bench, settings: Mapping[str, RewriterSettings], uses: Iterable[Use]) -> None:
        """Refuses what can be refused before anything takes long."""
        self._bench, self._settings, self._uses = bench, settings, list(uses)
        self._parts = {name: find_parts(settings[name]) for name in dict.fromkeys(use.rewriter for use in self._uses)}
        choosing = {use.rewriter for use in self._uses if use.choose}
        for name, parts in self._parts.items():
            _refuse_seen(name, parts, bench, name in choosing)
        if choosing:
            bench.trial.order(DEV)
        self._rewrites: dict[tuple[str, Place | None, str], Timed[list[Rewrite]]] = {}
        self._lists: dict[tuple[str, Place, str], Timed[list[list[Ranking]]]] = {}

    def answer(self) -> None:
        """Asks every rewriter all that it will be asked. Only one is in memory at a time."""
        for name, parts in self._parts.items():
            rewriter = load_rewriter(self._settings[name], parts, self._bench.context.device)
            for use in self._uses:
                # Dev first: what a model takes longer for at the beginning is not in the evaluation's time.
                for split in (*((DEV,) if use.choose else ()), self._bench.trial.split):
                    if use.rewriter == name and (name, self._shown(use), split) not in self._rewrites:
                        self._rewrites[name, self._shown(use), split] = self._asked(rewriter, use, split)
            del rewriter
            free_memory()

    def _asked(self, rewriter: Rewriter, use: Use, split: str) -> Timed[list[Rewrite]]:
        bench = self._bench
        search, raw = bench.search(use.place, self._parts[use.rewriter].phrasing), bench.raw(use.place, split)
        asks = search.rewrite_inputs(bench.trial.texts(split), raw.value, rewriter.template)
        return bench.timed(lambda: rewriter.rewrite(asks, bench.context.show_progress))

    def rank(self, use: Use, fusion: RewriteFusion | None) -> tuple[list[Ranking], float, Fused]:
        """The system's rankings, the seconds they took with all that led to them, and how they were fused."""
        bench, split, search = self._bench, self._bench.trial.split, self._bench.search(use.place)
        tried = tuple(self._tried(use)) if use.choose else ()
        brought = self._parts[use.rewriter].fusion or RewriteFusion()
        chosen = tried[0].fusion if tried else fusion or brought
        raw, rewrites, lists = bench.raw(use.place, split), self._answers(use, split), self._found(use, split)
        texts = bench.trial.texts(split)
        fused = bench.timed(
            lambda: [
                search.fuse(text, first, lines, DEPTH, chosen)
                for text, first, lines in zip(texts, raw.value, lists.value, strict=True)
            ]
        )
        seconds = raw.seconds + rewrites.seconds + lists.seconds + fused.seconds
        return fused.value, seconds, Fused(self._label(use), chosen, tried)

    def parts(self, use: Use) -> Parts:
        """What the rewriter of a system is made of."""
        return self._parts[use.rewriter]

    def rewritten(self) -> dict[str, Rewritten]:
        """What every rewriter answered, by its label."""
        found = {}
        for use in self._uses:
            answers = self._answers(use, self._bench.trial.split)
            sampling = self._settings[use.rewriter].sampling
            several = {name: getattr(sampling, name) for name in ("answers", "joined", "votes")}
            facts = describe(self._parts[use.rewriter]) | (several if sampling.answers > 1 else {})
            found[self._label(use)] = Rewritten(tuple(answers.value), answers.seconds, facts)
        return found

    def _tried(self, use: Use) -> list[Tried]:
        bench, search = self._bench, self._bench.search(use.place)
        texts, gold, raw = bench.trial.texts(DEV), bench.trial.gold(DEV), bench.raw(use.place, DEV).value
        return choose_fusion([Case(search, texts, raw, self._found(use, DEV).value, gold)], METRIC)

    def _found(self, use: Use, split: str) -> Timed[list[list[Ranking]]]:
        """What the lines of the rewrites find."""
        key = (use.rewriter, use.place, split)
        if key not in self._lists:
            search, rewrites = self._bench.search(use.place), self._answers(use, split).value
            self._lists[key] = self._bench.timed(lambda: search.search_rewrites(rewrites))
        return self._lists[key]

    def _answers(self, use: Use, split: str) -> Timed[list[Rewrite]]:
        return self._rewrites[use.rewriter, self._shown(use), split]

    def _shown(self, use: Use) -> Place | None:
        """Whose tools the rewriter is shown; None where it is shown none, so that all retrievers share its answers."""
        return use.place if self._parts[use.rewriter].template.candidates else None

    def _label(self, use: Use) -> str:
        """The rewriter's name, with the retriever's where it answers several of them differently."""
        places = {self._shown(other) for other in self._uses if other.rewriter == use.rewriter}
        if len(places) == 1:
            return use.rewriter
        alike = sum(place is not None and place.retriever == use.place.retriever for place in places) > 1
        return f"{use.rewriter} with {use.place.retriever}" + (f" of {use.place.index}" if alike else "")


def _refuse_seen(name: str, parts: Parts, bench: Bench, choosing: bool) -> None:
    """A rewriter trained under another protocol has seen tools, or dev queries, that this one keeps from it."""
    data, protocol = bench.trial.data, bench.trial.protocol
    for learned in parts.data:
        other = learned.get("dataset") == data.name and learned.get("protocol") != protocol
        if other and protocol == "unseen-tools":
            raise BadInput(
                f"the rewriter {name!r} was trained on {data.name} with protocol {learned.get('protocol')}, so it has "
                f"seen the tools that {protocol} calls unseen; train it on targets made with `protocol: {protocol}`"
            )
        if other and (choosing or bench.trial.split != "test"):
            raise BadInput(
                f"the rewriter {name!r} was trained on {data.name} with protocol {learned.get('protocol')}, so the dev "
                f"queries of protocol {protocol} may be among those it learned; evaluate test with a given fusion"
            )


def free_memory() -> None:
    """Gives back what a model held that nobody uses any more, on the GPU too."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
