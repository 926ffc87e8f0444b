"""Measure MassTool: the seconds of a training epoch, and its search against plain dense search, in one run.

python benchmarks/masstool.py [--tools 50000] [--pool 100000] [--queries 200] [--out results.json]
    [--skip-epoch | --only-epoch]

Vectors of tools and pool are synthetic (clustered, as real ones are), the queries and their encoder are real: both
kinds of search encode the same texts, each anew. OMP_NUM_THREADS sets the threads.
"""

from __future__ import annotations

import json
import platform
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from harness import make_parser, write_json
from synthetic import catalogues, make_queries

from pipelines.context import make_context
from pipelines.models import find_model
from retrievers.base import Retriever
from retrievers.dense.encoder import Encoder
from retrievers.dense.retriever import Dense
from retrievers.kind import Block, Context
from retrievers.masstool.artifacts import Artifacts, save_artifacts
from retrievers.masstool.kind import MassToolKind
from retrievers.masstool.serving.heads import untrained_heads
from retrievers.masstool.settings import MassToolSettings, MassToolTraining
from retrievers.masstool.training.tensors import LabelledVectors, TrainingTensors
from retrievers.masstool.training.trainer import HeadTrainer
from retrievers.rows import Rows
from retrievers.settings import TrainingSource

WIDTH = 384
BUILD_EFFORT = 48
"""Of the pool's graph: an index uses 200, which takes four times as long. A search costs the same."""
TRAIN = MassToolTraining(data=(TrainingSource("synthetic"),))


def clustered(count: int, chance: np.random.Generator, centres: np.ndarray) -> np.ndarray:
    """Unit vectors around random centres."""
    vectors = centres[chance.integers(len(centres), size=count)] + 0.04 * chance.normal(size=(count, WIDTH))
    normalized: np.ndarray = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return normalized


def epoch(queries: int = 15_181, tools: int = 464) -> dict[str, float]:
    """Seconds of one epoch of the heads on a set of ToolLens' size, and of one evaluation on dev."""
    chance = np.random.default_rng(0)
    centres = chance.normal(size=(500, WIDTH)) / WIDTH**0.5
    vectors = [torch.from_numpy(clustered(count, chance, centres)) for count in (tools, queries, 1711, 4000)]
    scenes = [
        sorted(chance.choice(tools, size=int(size), replace=False).tolist()) for size in chance.integers(1, 4, 900)
    ]
    gold = [scenes[scene] for scene in chance.integers(len(scenes), size=queries + 1711)]
    labels = LabelledVectors(vectors[3], torch.arange(4000) < 2000)
    tensors = TrainingTensors(vectors[0], vectors[1], gold[:queries], vectors[2], gold[queries:], labels, labels)
    trainer = HeadTrainer(tensors, MassToolSettings(train=TRAIN), make_context())
    trainer.epoch(0)
    trainer.dev()
    started = time.perf_counter()
    trainer.epoch(1)
    trained = time.perf_counter() - started
    trainer.dev()
    return {"epoch": trained, "epoch with dev": time.perf_counter() - started}


def retrievers(tools: int, pool: int, encoder: Encoder, work: Path) -> tuple[Dense, Retriever]:
    """Plain dense search and MassTool over the same tools, opened as an index opens them."""
    from retrievers.dense import ann

    chance = np.random.default_rng(1)
    centres = chance.normal(size=(2000, WIDTH)) / WIDTH**0.5
    ids = [f"tool-{number:06}" for number in range(tools)]
    vectors, keys = clustered(tools, chance, centres), clustered(pool, chance, centres)
    rows, live = Rows(ids, np.ones(tools, dtype=bool)), np.ones(tools, dtype=bool)
    settings = MassToolSettings(train=replace(TRAIN, epochs=1), threshold=-1.0, ann_above=max(50_000, tools))
    pairs = [(f"query {number}", tuple(ids[row] for row in chance.integers(tools, size=3))) for number in range(pool)]
    texts, heads = vectors[:100], untrained_heads(settings, WIDTH)
    started = time.perf_counter()
    graph = ann.build(keys, effort=BUILD_EFFORT)
    print(f"pool graph of {pool:,} queries built in {time.perf_counter() - started:.0f} s")
    artifacts = Artifacts(heads, texts, texts * 0, texts * 0, {}, keys, pairs, {"detection": None}, graph)
    work.mkdir()
    save_artifacts(work, artifacts)
    context = Context(lambda reference: encoder.folder, encoders={encoder.fingerprint: encoder})
    kind = MassToolKind(settings, context, work)
    started = time.perf_counter()
    blocks = [Block({"vectors": vectors, "signals": vectors}, live)]
    opened = kind.open(blocks, rows, "benchmark/masstool", lambda name: opened)
    print(f"opened in {time.perf_counter() - started:.1f} s")
    return Dense(encoder, [Block({"vectors": vectors}, live)], rows, "benchmark/dense"), opened


def compare(systems: Mapping[str, Retriever], texts: list[str], size: int, encoder: Encoder) -> dict[str, float]:
    """Median milliseconds of a search of `size` texts, in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in systems}
    for start in range(0, len(texts) - size + 1, size):
        for name, retriever in systems.items():
            encoder.clear_cache()
            began = time.perf_counter()
            retriever.search(texts[start : start + size], 10)
            seconds[name].append(time.perf_counter() - began)
    medians = {name: 1000 * statistics.median(values[min(2, len(values) - 1) :]) for name, values in seconds.items()}
    return {**medians, "ratio": medians["masstool"] / medians["dense"]}


def main() -> None:
    """Measure and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--tools", type=int, default=50_000)
    parser.add_argument("--pool", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--skip-epoch", action="store_true")
    parser.add_argument("--only-epoch", action="store_true")
    options = parser.parse_args()
    figures: dict[str, object] = {"machine": platform.machine(), "threads": torch.get_num_threads()}
    print(f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    if not options.skip_epoch:
        figures["epoch"] = epoch()
        print(json.dumps(figures["epoch"]))
    if options.only_epoch:
        return write_json(options.out, figures)
    encoder = Encoder(find_model("bundled:minilm"), 64, "cpu")
    texts = make_queries(catalogues(options.data), options.queries)
    with tempfile.TemporaryDirectory(prefix="masstool-") as scratch:
        dense, masstool = retrievers(options.tools, options.pool, encoder, Path(scratch) / "model")
        for size in (1, 16):
            figures[f"search {size}"] = compare({"dense": dense, "masstool": masstool}, texts, size, encoder)
            print(f"{size:>2} at a time, ms: {json.dumps(figures[f'search {size}'])}")
    write_json(options.out, figures)


if __name__ == "__main__":
    main()
