"""Show how recall on held-out requests rises with use, and what careless and hostile callers change about it.

    python benchmarks/learning_from_calls.py                                      the bundled sample, about 5 minutes
    python benchmarks/learning_from_calls.py --data data/toole --queries 700      a public data set

Simulated agents (simulated_agents.py) write a gateway's log. `sources.calls` of renew makes examples of it, and a small
learner takes them: dense search with votes of the examples nearest to a query, as MassTool has them, on vectors that
are computed once. Each round a candidate is promoted if it is better on dev and nowhere worse, as in renew. Requests
that are asked, dev and the held-out ones are disjoint; the weights of the evidence are chosen on dev by --choose.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from harness import machine, make_parser, write_json
from simulated_agents import SimulatedUse, reworded

from pipelines.context import make_context
from pipelines.data.dataset import DataSet, limit_queries, load_dataset, stable_hash
from pipelines.evaluate.significance import randomisation_test
from pipelines.renew.collect import collect
from pipelines.renew.settings import EvidenceWeights, Sources
from retrievers.dense.embeddings import embed
from retrievers.dense.encoder import Encoder
from retrievers.text import document
from reward.metrics import judge, measure

NEIGHBOURS, MIN_COSINE, VOTE = 12, 0.2, 2.0
"""Examples that vote for their tools, the cosine from which on they do, and the weight of their votes."""
ROUNDS = (0, 100, 250, 500, 1000, 2000)
"""Uses of honest agents at the end of each round."""
GUARDED = {"min_callers": 2, "max_per_key": 250, "max_rank": 10, "max_per_tool": 50}
UNBOUND = {"max_rank": 0}
SCENARIOS: dict[str, dict[str, Any]] = {
    "honest": {},
    "careless": {"careless": 20},
    "hostile": {"hostile": 20},
    "careless, no bounds": {"careless": 20, "bounds": UNBOUND},
    "hostile, no bounds": {"hostile": 20, "bounds": UNBOUND},
    "hostile, no bounds, no comparison": {"hostile": 20, "bounds": UNBOUND, "compares": False},
    **{
        f"{keys} hostile{how}": {"hostile": 20, "keys": keys, **more}
        for keys in (2, 3)
        for how, more in (
            ("", {}),
            (" that add words", {"adds_words": True}),
            (", keys only", {"bounds": {"min_callers": 2, "max_per_key": 250, "max_rank": 0}}),
            (", no bounds", {"bounds": UNBOUND}),
            (", no comparison", {"compares": False}),
            (" that add words, no comparison", {"adds_words": True, "compares": False}),
            (", no bounds, no comparison", {"bounds": UNBOUND, "compares": False}),
        )
    },
}
"""20: two uses of each bad key per use of the ten honest ones together."""


class VectorBook:
    """Vectors of tools and texts, computed once."""

    def __init__(self, data: DataSet, pool: Sequence[str]) -> None:
        context = make_context("cpu")
        self._encoder, self._context = Encoder(context.find_model("bundled:tools"), 64, "cpu"), context
        self.ids = [tool.id for tool in data.tools]
        self.tools = embed(self._encoder, [document(tool) for tool in data.tools], context)
        queries = [query for gold in data.gold.values() for query in gold]
        self._vectors: dict[str, np.ndarray] = {}
        self._add([data.queries[query].text for query in queries])
        self.rewordings = self._reword(data, pool)
        self._add(list(self.rewordings.values()))

    def _add(self, texts: Sequence[str]) -> None:
        self._vectors |= zip(texts, embed(self._encoder, texts, self._context, "queries"), strict=True)

    def of(self, texts: Sequence[str]) -> np.ndarray:
        if unknown := [text for text in dict.fromkeys(texts) if text not in self._vectors]:
            self._add(unknown)
        return np.stack([self._vectors[text] for text in texts])

    def _reword(self, data: DataSet, pool: Sequence[str]) -> dict[str, str]:
        """Second searches for the requests whose tools the untrained index does not find."""
        described = {tool.id: tool.description for tool in data.tools}
        gold = data.gold["train"]
        lists = Learned(self, {}).lists([data.queries[query].text for query in pool], 5)
        missed = [query for query, tools in zip(pool, lists, strict=True) if not set(tools) & gold[query]]
        return {
            query: reworded(data.queries[query].text, described[min(gold[query])], stable_hash(query))
            for query in missed
        }


class Learned:
    """Dense search with the votes of examples."""

    def __init__(self, book: VectorBook, examples: Mapping[str, tuple[str, ...]]) -> None:
        self._book, texts = book, sorted(examples)
        self._kept: dict[tuple[str, int], list[str]] = {}
        column = {tool: index for index, tool in enumerate(book.ids)}
        self._examples = book.of(texts) if texts else np.zeros((0, book.tools.shape[1]), dtype=np.float32)
        self._votes = np.zeros((len(texts), len(book.ids)), dtype=np.float32)
        for row, text in enumerate(texts):
            for tool in examples[text]:
                self._votes[row, column[tool]] = 1.0

    def lists(self, texts: Sequence[str], k: int) -> list[list[str]]:
        vectors = self._book.of(texts)
        scores = vectors @ self._book.tools.T
        if len(self._examples):
            near = vectors @ self._examples.T
            if near.shape[1] > NEIGHBOURS:
                edge = np.partition(near, -NEIGHBOURS, axis=1)[:, -NEIGHBOURS, None]
                near = np.where(near >= edge, near, 0.0)
            scores = scores + VOTE * (np.where(near >= MIN_COSINE, near, 0.0) @ self._votes) / NEIGHBOURS
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        return [[self._book.ids[index] for index in row] for row in order]

    def search(self, text: str, k: int) -> list[str]:
        """The first k tools; kept, as requests are repeated."""
        if (text, k) not in self._kept:
            self._kept[text, k] = self.lists([text], k)[0]
        return self._kept[text, k]

    def recall(self, data: DataSet, split: str) -> np.ndarray:
        """Recall at 5 per query of a split."""
        queries = sorted(data.gold[split])
        lists = self.lists([data.queries[query].text for query in queries], 5)
        return measure("recall@5", judge(lists, [data.gold[split][query] for query in queries]))


@dataclass(frozen=True)
class Scenario:
    """Callers of the gateway, and the bounds of learning."""

    careless: int = 0
    hostile: int = 0
    keys: int = 1
    adds_words: bool = False
    bounds: Mapping[str, int] | None = None
    compares: bool = True


def examples_of(
    folder: Path, data: DataSet, bounds: Mapping[str, int], weights: EvidenceWeights
) -> dict[str, tuple[str, ...]]:
    """Examples that renew collects from a log."""
    sources = Sources(calls=(str(folder),), weights=weights, **bounds)
    collected = collect(sources, {tool.id: tool for tool in data.tools}, ())
    return {
        collected.queries[query].text: tuple(tools) for gold in collected.gold.values() for query, tools in gold.items()
    }


def curve(
    data: DataSet, book: VectorBook, scenario: Scenario, weights: EvidenceWeights, seed: int, split: str = "test"
) -> list[float]:
    """Recall at 5 of the live system after each round."""
    live, values, done = Learned(book, {}), [], 0
    bounds = GUARDED if scenario.bounds is None else scenario.bounds
    with tempfile.TemporaryDirectory() as name:
        pool = sorted(data.gold["train"])
        use = SimulatedUse(data, pool, book.rewordings, Path(name), seed, scenario.adds_words)
        for uses in ROUNDS:
            use.use(live.search, uses - done, scenario.careless, scenario.hostile, scenario.keys)
            done = uses
            candidate = Learned(book, examples_of(Path(name), data, bounds, weights))
            differences = candidate.recall(data, "dev") - live.recall(data, "dev")
            better = differences.sum() > 0 and randomisation_test(differences[:, None], seed)[0] < 0.05
            if better or not scenario.compares:
                live = candidate
            values.append(float(live.recall(data, split).mean()))
        use.log.close()
    return values


def choose(data: DataSet, book: VectorBook, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Recall on dev of a candidate for every choice of weights, best first."""
    rows = []
    grid = itertools.product((0.0, 0.5, 1.0), (0.0, 1.0), (0.0, 0.25, 0.5))
    plain = Learned(book, {})
    logs: dict[int, tempfile.TemporaryDirectory[str]] = {}
    for seed in seeds:
        logs[seed] = tempfile.TemporaryDirectory()
        use = SimulatedUse(data, sorted(data.gold["train"]), book.rewordings, Path(logs[seed].name), seed)
        use.use(plain.search, 1000, careless=10)
    for retried, failed, ignored in grid:
        weights = EvidenceWeights(retried=retried, failed=failed, ignored=ignored)
        values = [
            Learned(book, examples_of(Path(logs[seed].name), data, GUARDED, weights)).recall(data, "dev").mean()
            for seed in seeds
        ]
        rows.append({"retried": retried, "failed": failed, "ignored": ignored, "dev": float(np.mean(values))})
    for log in logs.values():
        log.cleanup()
    return sorted(rows, key=lambda row: -row["dev"])


def main() -> None:
    """Run every scenario, and print its curve."""
    parser = make_parser(__doc__)
    parser.add_argument("--data", default="bundled:sample", help="a data set folder (bundled:sample)")
    parser.add_argument("--queries", type=int, default=1200, help="queries that are asked, at most (1200)")
    parser.add_argument("--held-out", type=int, default=400, help="queries of dev and of test, at most (400)")
    parser.add_argument("--seeds", type=int, default=3, help="seeds 0 … (3)")
    parser.add_argument("--only", default="", help="scenarios whose names contain this")
    parser.add_argument("--choose", action="store_true", help="compare weights of the evidence on dev, and stop")
    options = parser.parse_args()
    data = limit_queries(load_dataset(options.data), options.queries, 0)
    held_out = {split: limit_queries(data, options.held_out, 0).gold[split] for split in ("dev", "test")}
    data = replace(data, gold={"train": data.gold["train"], **held_out})
    book, seeds = VectorBook(data, sorted(data.gold["train"])), range(options.seeds)
    if options.choose:
        rows = choose(data, book, seeds)
        for row in rows:
            print(row)
        write_json(options.out, {"machine": machine(), "data": options.data, "weights": rows})
        return
    result = {}
    print(f"{data.name}: {len(data.tools)} tools, { ({split: len(gold) for split, gold in data.gold.items()}) }")
    for name, settings in SCENARIOS.items():
        if options.only not in name:
            continue
        values = np.array([curve(data, book, Scenario(**settings), EvidenceWeights(), seed) for seed in seeds])
        result[name] = {"mean": values.mean(axis=0).tolist(), "min": values.min(axis=0).tolist()}
        points = "  ".join(f"{uses}: {mean:.3f}" for uses, mean in zip(ROUNDS, values.mean(axis=0), strict=True))
        print(f"{name:36} {points}  lowest at the end {values[:, -1].min():.3f}", flush=True)
    write_json(options.out, {"machine": machine(), "data": options.data, "uses": ROUNDS, "recall@5": result})


if __name__ == "__main__":
    main()
