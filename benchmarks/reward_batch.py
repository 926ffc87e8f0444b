"""Compare the reward of a training step with a naive one, which searches every text of every answer by itself.

    python benchmarks/reward_batch.py [--queries 16] [--answers 8] [--rounds 4] [--retriever dense] [--out results.json]

A step is what GRPO samples: some queries with several answers each, many of which share lines, as samples of one
model do. The answers are drawn from the utterances' own reductions by a seed. Both score the same attempts with the
same index and fusion, in turn; their rewards must be equal. Every step has new queries.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness import FigureTable, make_parser, take_turns, write_json

from pipelines.context import make_context
from pipelines.data.dataset import load_dataset
from pipelines.data.sample_data import SAMPLE
from pipelines.index.build import IndexConfig, build_index
from pipelines.search import ToolSearch
from pipelines.train.rewards import ServedSearch
from retrievers.index import Index
from retrievers.kind import Context
from retrievers.settings import BM25Settings, DenseSettings, RewriteFusion
from retrievers.types import Ranking
from reward.base import RewriteAttempt
from reward.metrics import DEPTH, judge, measure
from reward.retrieval import RetrievalReward
from rewrite.rules import variants

FUSION = RewriteFusion("weighted", 0.6)
METRIC = "recall@5"


def steps(queries: int, answers: int, rounds: int) -> Iterator[list[RewriteAttempt]]:
    """The attempts of each step; no query comes twice."""
    data, chance = load_dataset(SAMPLE), random.Random(0)
    order = sorted(data.gold["train"])
    chance.shuffle(order)
    if rounds * queries > len(order):
        raise SystemExit(f"the sample has {len(order)} training queries; use fewer --queries or --rounds")
    for number in range(rounds):
        step = []
        for query in order[number * queries : (number + 1) * queries]:
            text = data.queries[query].text
            lines = variants(text) or [text]
            for _ in range(answers):
                drawn = chance.sample(lines, min(len(lines), chance.randint(1, 3)))
                step.append(RewriteAttempt(text, data.gold["train"][query], tuple(drawn)))
        yield step


def naive(search: ToolSearch, context: Context, attempts: Sequence[RewriteAttempt]) -> list[float]:
    """Score one answer after the other, one text after the other, without any cache."""

    def ask(text: str) -> Ranking:
        _forget(context)  # our encoder's cache of recent queries is part of the comparison
        return search.retrieve([text], DEPTH)[0]

    rewards = []
    for attempt in attempts:
        raw, *lists = (ask(text) for text in (attempt.utterance, *attempt.lines))
        fused = search.fuse(attempt.utterance, raw, lists, DEPTH, FUSION)
        rewards.append(float(measure(METRIC, judge([fused.ids], [attempt.gold]))[0]))
    return rewards


def _forget(context: Context) -> None:
    for encoder in context.encoders.values():
        encoder.clear_cache()


def main() -> None:
    """Score with both in turn, print."""
    parser = make_parser(__doc__)
    parser.add_argument("--queries", type=int, default=16)
    parser.add_argument("--answers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--retriever", choices=("dense", "bm25"), default="dense")
    options = parser.parse_args()
    figures, context = FigureTable(), make_context("cpu")
    with tempfile.TemporaryDirectory() as scratch:
        settings = DenseSettings() if options.retriever == "dense" else BM25Settings()
        build_index(IndexConfig(f"{scratch}/index", (SAMPLE,), {options.retriever: settings}), context)
        index = Index(Path(scratch) / "index", context)
        search = ToolSearch(index, options.retriever)
        served = ServedSearch(search, FUSION)
        reward = RetrievalReward(served, served, {METRIC: 1.0})
        search.retrieve(["weather"], 1)
        attempts = list(steps(options.queries, options.answers, options.rounds))
        rewards: dict[str, list[float]] = {"ours": [], "naive": []}

        def score(name: str, step: Sequence[RewriteAttempt]) -> None:
            _forget(context)
            rewards[name] += reward(step) if name == "ours" else naive(search, context, step)

        runs = {name: lambda number, name=name: score(name, attempts[number]) for name in rewards}
        seconds = take_turns(runs, options.rounds)
    if any(abs(a - b) > 1e-9 for a, b in zip(rewards["ours"], rewards["naive"], strict=True)):
        raise SystemExit("the two rewards differ; nothing was measured")
    figures.title(f"Reward of {options.queries} x {options.answers} answers, {options.retriever}")
    for name, values in seconds.items():
        figures.note(f"{name}: one step", "s", values)
    figures.note_ratio("naive reward / ours", seconds["naive"], seconds["ours"])
    write_json(options.out, {"figures": figures.rows})


if __name__ == "__main__":
    main()
