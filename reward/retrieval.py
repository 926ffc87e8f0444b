"""Reward of a rewrite: metrics of a frozen retriever's results, alone or fused with the raw query, and its form.

An unreadable answer earns less than leaving the query alone, and less than nothing, with any weights: a server
falls back on the raw query, and nonsense must not be paid for what that finds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from reward.base import Findings, FrozenSearch, Fuse, RerankAll, RewriteAttempt
from reward.lists import RankingCache
from reward.metrics import DEPTH, judge, measure
from reward.terms import TERMS, check_term

Baseline = Literal["none", "raw"]
"""Zero of the reward: earning nothing, or what leaving the query alone earns."""
UNREADABLE_PENALTY = 0.2
"""Distance of an unreadable answer below nothing, or below leaving the query alone where that earns less."""


class RetrievalReward:
    """A weighted sum of terms, for a batch of attempts at once. As picklable as its retriever and its fusion are."""

    def __init__(
        self,
        retriever: FrozenSearch,
        fuse: Fuse,
        weights: Mapping[str, float],
        baseline: Baseline = "none",
        rerank: RerankAll | None = None,
    ) -> None:
        """`weights` holds metrics (recall@5, ndcg@5, comp@5, rank@5, mrr) and the names in `TERMS`.

        `rerank`: pays for reranked lists.
        """
        self._rerank = rerank
        for name in weights:
            check_term(name)
        self.metrics = [name for name in weights if name not in TERMS]
        if not self.metrics:
            raise ValueError("a reward needs a metric, for example recall@5; the other terms do not measure retrieval")
        self._fuse, self._weights, self._baseline = fuse, dict(weights), baseline
        self.lists = RankingCache(retriever)

    def __call__(self, attempts: Sequence[RewriteAttempt]) -> list[float]:
        """One reward per attempt."""
        values: list[float] = self.explain(attempts)["reward"].tolist()
        return values

    def explain(self, attempts: Sequence[RewriteAttempt]) -> dict[str, np.ndarray]:
        """All terms, unweighted, the reward of leaving the query alone, the gain over it, and the reward."""
        if not attempts:
            return {"reward": np.zeros(0)}
        findings = self.find(attempts)
        terms, alone = self._terms(findings), self._sum(self._terms(findings.without_rewrites()))
        readable = np.array([attempt.readable for attempt in attempts], dtype=bool)
        total = np.where(readable, self._sum(terms), np.minimum(alone, 0.0) - UNREADABLE_PENALTY)
        gain = total - alone
        return {**terms, "alone": alone, "gain": gain, "reward": gain if self._baseline == "raw" else total}

    def _terms(self, findings: Findings) -> dict[str, np.ndarray]:
        """Every term of every attempt, unweighted; 0 for unreadable ones."""
        readable = np.array([attempt.readable for attempt in findings.attempts], dtype=bool)
        values = {name: measure(name, findings.judged) for name in self.metrics}
        values |= {name: TERMS[name](findings) for name in self._weights if name in TERMS}
        return {name: np.where(readable, value, 0.0) for name, value in values.items()}

    def _sum(self, terms: Mapping[str, np.ndarray]) -> np.ndarray:
        total: np.ndarray = np.sum([self._weights[name] * values for name, values in terms.items()], axis=0)
        return total

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
            )
            for utterance, lines in dict.fromkeys([*rewritten, *alone])
        }
        if self._rerank is not None:
            lists = self._rerank([utterance for utterance, _ in fused], list(fused.values()))
            fused = dict(zip(fused, lists, strict=True))
        served, raw = ([fused[key].ids for key in keys] for keys in (rewritten, alone))
        return Findings(attempts, judge(served, gold), judge(raw, gold))
