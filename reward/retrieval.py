"""The reward of a rewrite: what a frozen retriever finds for it, alone or beside the raw query, and its form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from retrievers.base import Retriever
from reward.base import Attempt, Findings, Fuse
from reward.lists import RankingCache
from reward.metrics import DEPTH, judge, measure
from reward.terms import TERMS, check_term, metric


class RetrievalReward:
    """A weighted sum of terms, for a batch of attempts at once. As picklable as its retriever and its fusion are."""

    def __init__(self, retriever: Retriever, fuse: Fuse, weights: Mapping[str, float]) -> None:
        """`weights` holds metrics (recall@5, ndcg@5, comp@5, rank@5, mrr) and the names in `TERMS`."""
        for name in weights:
            check_term(name)
        self.metrics = [name for name in weights if name not in TERMS]
        if not self.metrics:
            raise ValueError("a reward needs a metric, for example recall@5; the other terms know nothing of tools")
        self._fuse, self._weights = fuse, dict(weights)
        self.lists = RankingCache(retriever)

    def __call__(self, attempts: Sequence[Attempt]) -> list[float]:
        """One number an attempt."""
        values: list[float] = self.explain(attempts)["reward"].tolist()
        return values

    def explain(self, attempts: Sequence[Attempt]) -> dict[str, np.ndarray]:
        """Every term by itself, unweighted, the gain over the raw query, and the reward."""
        if not attempts:
            return {"reward": np.zeros(0)}
        findings = self.find(attempts)
        terms = {name: metric(name, findings) for name in self.metrics}
        terms |= {name: TERMS[name](findings) for name in self._weights if name in TERMS}
        total = np.sum([self._weights[name] * values for name, values in terms.items()], axis=0)
        raw = measure(self.metrics[0], findings.raw)
        return {**terms, "raw": raw, "gain": terms[self.metrics[0]] - raw, "reward": total}

    def find(self, attempts: Sequence[Attempt]) -> Findings:
        """The lists that would be served for the attempts, and the raw ones; the retriever is asked once at most."""
        texts = [text for each in attempts for text in (each.utterance, *each.lines)]
        known = self.lists(texts)
        gold = [each.gold for each in attempts]
        wanted = [(each.utterance, each.lines) for each in attempts]  # many say the same
        alone = [(each.utterance, ()) for each in attempts]
        fused = {
            (utterance, lines): self._fuse(utterance, known[utterance], [known[line] for line in lines], DEPTH).ids
            for utterance, lines in dict.fromkeys([*wanted, *alone])
        }
        served, raw = ([fused[each] for each in asked] for asked in (wanted, alone))
        return Findings(attempts, judge(served, gold), judge(raw, gold))
