"""Reward of a rewrite: metrics of a frozen retriever's results, alone or fused with the raw query, and its form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from reward.base import Findings, FrozenSearch, Fuse, RewriteAttempt
from reward.lists import RankingCache
from reward.metrics import DEPTH, judge, measure
from reward.terms import TERMS, check_term, metric


class RetrievalReward:
    """A weighted sum of terms, for a batch of attempts at once. As picklable as its retriever and its fusion are."""

    def __init__(self, retriever: FrozenSearch, fuse: Fuse, weights: Mapping[str, float]) -> None:
        """`weights` holds metrics (recall@5, ndcg@5, comp@5, rank@5, mrr) and the names in `TERMS`."""
        for name in weights:
            check_term(name)
        self.metrics = [name for name in weights if name not in TERMS]
        if not self.metrics:
            raise ValueError("a reward needs a metric, for example recall@5; the other terms do not measure retrieval")
        self._fuse, self._weights = fuse, dict(weights)
        self.lists = RankingCache(retriever)

    def __call__(self, attempts: Sequence[RewriteAttempt]) -> list[float]:
        """One reward per attempt."""
        values: list[float] = self.explain(attempts)["reward"].tolist()
        return values

    def explain(self, attempts: Sequence[RewriteAttempt]) -> dict[str, np.ndarray]:
        """All terms, unweighted, the gain over the raw query, and the reward."""
        if not attempts:
            return {"reward": np.zeros(0)}
        findings = self.find(attempts)
        terms = {name: metric(name, findings) for name in self.metrics}
        terms |= {name: TERMS[name](findings) for name in self._weights if name in TERMS}
        total = np.sum([self._weights[name] * values for name, values in terms.items()], axis=0)
        raw = measure(self.metrics[0], findings.raw)
        return {**terms, "raw": raw, "gain": terms[self.metrics[0]] - raw, "reward": total}

    def find(self, attempts: Sequence[RewriteAttempt]) -> Findings:
        """Judged rankings of the attempts and of the raw queries; the retriever is called at most once."""
        key = self.lists.key
        known = self.lists(
            key(text, attempt.utterance) for attempt in attempts for text in (attempt.utterance, *attempt.lines)
        )
        gold = [attempt.gold for attempt in attempts]
        rewritten = [(attempt.utterance, attempt.lines) for attempt in attempts]  # many are equal
        alone = [(attempt.utterance, ()) for attempt in attempts]
        fused = {
            (utterance, lines): self._fuse(
                utterance, known[key(utterance, utterance)], [known[key(line, utterance)] for line in lines], DEPTH
            ).ids
            for utterance, lines in dict.fromkeys([*rewritten, *alone])
        }
        served, raw = ([fused[key] for key in keys] for keys in (rewritten, alone))
        return Findings(attempts, judge(served, gold), judge(raw, gold))
