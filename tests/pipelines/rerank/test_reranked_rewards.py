"""Rewards of reranked lists: paid for the order that is served, each new pair read once, failures stop the training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from doubles import plain_context
from rerankers import BrokenReranker, CountingReranker

from pipelines.rerank.stage import RerankStage
from pipelines.search import ToolSearch
from pipelines.train.rewards import ServedSearch
from retrievers.index import Index
from retrievers.rerank.cached import CachedReranker
from retrievers.settings import RewriteFusion
from reward.base import RewriteAttempt
from reward.retrieval import RetrievalReward
from rewrite.errors import BackendDown

QUERY = "list invoices of a customer"
LINES = ("list invoices", "find a customer")


def reward_with(index: Path, model: CountingReranker | None) -> tuple[RetrievalReward, ToolSearch]:
    stage = RerankStage(CachedReranker(model), 10, 1.0) if model else None
    search = ToolSearch(Index(index, plain_context()), "bm25", reranker=stage)
    served = ServedSearch(search, RewriteFusion("weighted", 0.5))
    return RetrievalReward(served, served, {"mrr": 1.0}, rerank=served.rerank if model else None), search


def test_the_reranked_order_is_paid(index: Path) -> None:
    model = CountingReranker()
    reward, search = reward_with(index, model)
    plain, _ = reward_with(index, None)
    [fused] = search.search_lines([LINES], [QUERY])
    [raw] = search.retrieve([QUERY], 100)
    first = search.fuse(QUERY, raw, fused, 100, RewriteFusion("weighted", 0.5))
    [reranked] = search.rerank([QUERY], [first])
    gold = max(first.ids[:10], key=lambda tool: first.ids.index(tool) - reranked.ranking.ids.index(tool))
    attempt = RewriteAttempt(QUERY, frozenset({gold}), LINES)
    assert reward([attempt]) == [1 / (1 + reranked.ranking.ids.index(gold))]
    assert plain([attempt])[0] < reward([attempt])[0]
    read = sum(len(texts) for _, texts in model.read)
    assert len(set(reward([attempt, attempt]))) == 1
    assert sum(len(texts) for _, texts in model.read) == read  # nothing is read twice


def test_a_failing_reranker_stops_the_training(index: Path) -> None:
    reward, _ = reward_with(index, BrokenReranker())
    with pytest.raises(BackendDown, match="answers no number"):
        reward([RewriteAttempt(QUERY, frozenset({"tool-001"}), LINES)])


def test_the_cache_forgets_what_was_used_first() -> None:
    model = CountingReranker()
    cached = CachedReranker(model, max_pairs=2)
    first = cached.score(["a", "b"], [["one", "two three"], ["one"]])
    again = cached.score(["a"], [["one"]])
    assert np.array_equal(first[0][:1], again[0])
    assert [query for query, _ in model.read] == ["a", "b", "a"]
    assert cached.score([], []) == []
