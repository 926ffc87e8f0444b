"""The reward of a training step against the naive one, which asks the retriever for every text of every answer.

    python benchmarks/reward_batch.py [--queries 16] [--answers 8] [--rounds 4] [--retriever dense] [--out results.json]

A step is what GRPO draws: some queries, several answers each, of which many have lines in common, as samples of one
model do. The answers here are made of the utterances' own reductions, drawn by a seed. Both score the same attempts
with the same index and fusion, in turn; that their rewards are equal is checked. Every step has new queries.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from scale_figures import Figures

from pipelines.context import make_context
from pipelines.data.dataset import load_dataset
from pipelines.data.sample_data import SAMPLE
from pipelines.index.build import IndexConfig, build_index
from pipelines.search import ToolSearch
from retrievers.index import Index
from retrievers.kind import Context
from retrievers.settings import BM25Settings, DenseSettings, RewriteFusion
from retrievers.types import Ranking
from reward.base import Attempt
from reward.metrics import DEPTH, judge, measure
from reward.retrieval import RetrievalReward
from rewrite.rules import variants

FUSION = RewriteFusion("weighted", 0.6)
METRIC = "recall@5"


def steps(queries: int, answers: int, rounds: int) -> Iterator[list[Attempt]]:
    """Attempts of so many steps; no query comes twice."""
    data, chance = load_dataset(SAMPLE), random.Random(0)
    order = sorted(data.gold["train"])
    chance.shuffle(order)
    if rounds * queries > len(order):
        raise SystemExit(f"the sample has {len(order)} training queries; ask for fewer")
    for turn in range(rounds):
        step = []
        for query in order[turn * queries : (turn + 1) * queries]:
            text = data.queries[query].text
            lines = variants(text) or [text]
            for _ in range(answers):
                drawn = chance.sample(lines, min(len(lines), chance.randint(1, 3)))
                step.append(Attempt(text, data.gold["train"][query], tuple(drawn)))
        yield step


def naive(search: ToolSearch, context: Context, attempts: Sequence[Attempt]) -> list[float]:
    """One answer after the other, one text after the other, and nothing is remembered."""

    def ask(text: str) -> Ranking:
        _forget(context)  # our encoder's memory of recent queries is part of what is compared
        return search.retrieve([text], DEPTH)[0]

    rewards = []
    for each in attempts:
        raw, *lists = (ask(text) for text in (each.utterance, *each.lines))
        served = search.fuse(each.utterance, raw, lists, DEPTH, FUSION)
        rewards.append(float(measure(METRIC, judge([served.ids], [each.gold]))[0]))
    return rewards


def _forget(context: Context) -> None:
    for encoder in context.encoders.values():
        encoder.forget()


def main() -> None:
    """Both in turn, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=16)
    parser.add_argument("--answers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--retriever", choices=("dense", "bm25"), default="dense")
    parser.add_argument("--out", type=Path, help="a JSON file for the figures")
    options = parser.parse_args()
    figures, context = Figures(), make_context("cpu")
    with tempfile.TemporaryDirectory() as scratch:
        settings = DenseSettings() if options.retriever == "dense" else BM25Settings()
        build_index(IndexConfig(f"{scratch}/index", (SAMPLE,), {options.retriever: settings}), context)
        index = Index(Path(scratch) / "index", context)
        search, retriever = ToolSearch(index, options.retriever), index.retriever(options.retriever)
        reward = RetrievalReward(retriever, partial(search.fuse, fusion=FUSION), {METRIC: 1.0})
        retriever.search(["weather"], 1)
        seconds: dict[str, list[float]] = {"ours": [], "naive": []}
        for turn, attempts in enumerate(steps(options.queries, options.answers, options.rounds)):
            found = {}
            for name in sorted(seconds, reverse=bool(turn % 2)):
                _forget(context)
                started = time.perf_counter()
                found[name] = reward(attempts) if name == "ours" else naive(search, context, attempts)
                seconds[name].append(time.perf_counter() - started)
            if any(abs(a - b) > 1e-9 for a, b in zip(found["ours"], found["naive"], strict=True)):
                raise SystemExit("the two rewards differ; nothing was measured")
    figures.title(f"Reward of {options.queries} x {options.answers} answers, {options.retriever}")
    for name, values in seconds.items():
        figures.note(f"{name}: a step", "s", values)
    ratios = [b / a for a, b in zip(seconds["ours"], seconds["naive"], strict=True)]
    figures.note("ratio: naive reward / ours", "x", ratios, digits=2)
    if options.out:
        options.out.write_text(json.dumps({"figures": figures.rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
