"""Encoders by language: recall@5 on the sample, alone and fused; speed and memory in the same run.

python -m benchmarks.languages [--splits train,dev] [MODEL ...]
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections.abc import Mapping, Sequence

import numpy as np
import sentence_transformers  # noqa: F401 - so that no encoder is charged for loading it
import torch

from pipelines.context import make_context
from pipelines.data.dataset import load_dataset
from pipelines.models import find_model
from retrievers.dense.encoder import Encoder
from retrievers.fusion import fuse
from retrievers.kind import Block
from retrievers.language.english import is_english
from retrievers.lexical.bm25 import BM25Kind
from retrievers.rows import Rows
from retrievers.settings import BM25Settings, FusionSettings
from retrievers.text import FIELDS, clean, document
from retrievers.types import Ranking
from reward.metrics import measure_rankings

DEPTH = 100
WEIGHTS = ((1.0, 1.0), (1.4, 0.6), (0.6, 1.4))


def resident_mib() -> float:
    """Memory of this process."""
    with open("/proc/self/statm") as stream:
        return int(stream.read().split()[1]) * 4096 / 2**20


def encode(model: str, tools: Sequence[str], queries: Sequence[str]) -> np.ndarray:
    """(queries, tools): similarities, and one line about speed and memory."""
    before = resident_mib()
    encoder = Encoder(find_model(model), 64, "cpu")
    documents = encoder.documents(tools)
    started = time.process_time()
    vectors = encoder.queries(queries)
    seconds = time.process_time() - started
    print(f"{model}: {len(queries) / seconds:.0f} queries per second of one core, {resident_mib() - before:.0f} MiB")
    similarities: np.ndarray = vectors @ documents.T
    return similarities


def show(name: str, rankings: Sequence[Ranking], gold: Sequence[set[str]], languages: np.ndarray) -> None:
    """One line of recalls."""
    recalls = measure_rankings(["recall@5"], [ranking.ids for ranking in rankings], gold)["recall@5"]
    means = [recalls[languages == language].mean() for language in sorted(set(languages))]
    print(f"{name:<58}" + " ".join(f"{mean:.3f}" for mean in means) + f"  {recalls.mean():.3f}")


def show_fusions(
    systems: Mapping[str, list[Ranking]], english: Sequence[bool], gold: Sequence[set[str]], languages: np.ndarray
) -> None:
    """Every pair of systems with three weights, all of them, and the last one alone where a text is not English."""
    *_, (last, only) = systems.items()
    for (first, one), (second, other) in itertools.combinations(systems.items(), 2):
        for weights in WEIGHTS:
            pairs = zip(one, other, strict=True)
            fused = [fuse(pair, 5, FusionSettings(weights=weights)) for pair in pairs]
            show(f"{first} {weights[0]} + {second} {weights[1]}", fused, gold, languages)
            routed = [ranking if plain else own for ranking, plain, own in zip(fused, english, only, strict=True)]
            show(f"    other languages: {last} alone", routed, gold, languages)
    everything = [fuse(lists, 5, FusionSettings()) for lists in zip(*systems.values(), strict=True)]
    show("all of them", everything, gold, languages)
    routed = [ranking if plain else own for ranking, plain, own in zip(everything, english, only, strict=True)]
    show(f"    other languages: {last} alone", routed, gold, languages)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["bundled:minilm", "bundled:multilingual"])
    parser.add_argument("--data", default="bundled:sample")
    parser.add_argument("--splits", default="train,dev,test")
    parser.add_argument("--max-queries", type=int, default=100_000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    data = load_dataset(arguments.data)
    gold_of = {query: gold for split in arguments.splits.split(",") for query, gold in data.gold[split].items()}
    ids = random.Random(0).sample(sorted(gold_of), min(arguments.max_queries, len(gold_of)))
    queries, gold = [clean(data.queries[id].text) for id in ids], [set(gold_of[id]) for id in ids]
    languages = np.array([str(data.queries[id].metadata.get("language", "en")) for id in ids])
    documents = [clean(document(tool, FIELDS)) for tool in data.tools]
    rows = Rows(tuple(tool.id for tool in data.tools), np.ones(len(documents), dtype=bool))
    kind = BM25Kind(BM25Settings(), make_context("cpu"))
    bm25 = kind.open([Block(kind.rows(documents), rows.live)], rows, "", lambda name: bm25)
    systems = {"bm25": bm25.search(queries, DEPTH)}
    for model in arguments.models:
        systems[model] = [rows.best(row, DEPTH) for row in encode(model, documents, queries)]
    counts = " ".join(f"{language} {(languages == language).sum()}" for language in sorted(set(languages)))
    print(f"recall@5 by language ({counts}), then of all")
    for name, rankings in systems.items():
        show(name, rankings, gold, languages)
    show_fusions(systems, [is_english(query) for query in queries], gold, languages)


if __name__ == "__main__":
    main()
