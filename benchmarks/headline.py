"""The headline table: ten catalogues that no encoder and no reranker was trained on, from MiniLM to labels of your own.

    OMP_NUM_THREADS=1 python benchmarks/headline.py data [--sets n8n ...] [--no-labels] [--out FILE] [--csv FILE]

`data` holds the public data sets (docs/data.md). For each set: writes its judged queries, builds
configs/index/headline.yaml and configs/index/headline-labels.yaml, evaluates configs/eval/headline.yaml, and measures
the CPU milliseconds of a query; then prints the table, with the figures of docs/figures/headline-h200.csv beside its
own. Finished sets are not run again: remove runs/headline/SET. `rewrite-eval --check configs/expected.yaml --run
runs/headline` compares the figures with the published ones. About an hour of one core, half of it without labels.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from harness import machine, make_parser, write_json
from headline_sets import JudgedSet, count_shared, judged_sets, write_judged
from headline_table import CPU, SetResult, markdown, read_published, read_result, set_rows, write_csv, write_means

from pipelines import config as configs
from pipelines.context import make_context
from pipelines.data.dataset import load_dataset
from pipelines.evaluate.output import write_evaluation
from pipelines.evaluate.run import EvalConfig, evaluate
from pipelines.index.build import IndexConfig, build_index
from pipelines.rewriters import make_rewriter
from pipelines.runs import as_json, write_files
from pipelines.search import ToolSearch
from pipelines.train.rerank.settings import RerankConfig
from retrievers.index import Index
from retrievers.kind import Context

ROOT = Path("runs/headline")
LABELS = "labels"
TIMED = 30
"""Queries per set whose time is measured, in three rounds."""
ROUNDS = 3


def load_config(judged: JudgedSet, labels: bool) -> EvalConfig:
    """The evaluation of a set: of all systems but the one that is trained on its labels, or of that one."""
    flags = [f"dataset={judged.name}"] + ["output=runs/headline/<dataset>/eval-labels"] * labels
    config = configs.load(Path("configs/eval/headline.yaml"), EvalConfig, flags)
    systems = {name: system for name, system in config.systems.items() if (name == LABELS) == labels}
    return replace(config, systems=systems)


def run_set(judged: JudgedSet, sets: RerankConfig, labels: bool, context: Context) -> SetResult:
    """Write, index and evaluate one set, as far as that is not done."""
    data = ROOT / "data" / judged.name
    if not data.exists():
        data.parent.mkdir(parents=True, exist_ok=True)
        write_judged(judged, sets, data)
    for with_labels, name in list(enumerate(("headline", "headline-labels")))[: 1 + labels]:
        config = load_config(judged, bool(with_labels))
        index = configs.load(Path(f"configs/index/{name}.yaml"), IndexConfig, [f"dataset={judged.name}"])
        if not (Path(index.index) / "manifest.json").exists():
            build_index(index, context)
        if not (Path(config.output) / CPU).exists():
            write_evaluation(evaluate(config, context))
            write_files(Path(config.output), {CPU: as_json({"cpu_ms": measure_cpu(config, context)})})
    training = sum(len(load_dataset(str(data)).gold.get(split, {})) for split in ("train", "dev"))
    folders = [Path(load_config(judged, bool(number)).output) for number in range(1 + labels)]
    return read_result(judged.name, folders, training, judged.official)


def measure_cpu(config: EvalConfig, context: Context) -> dict[str, float]:
    """CPU milliseconds of one query per system, median of queries searched one at a time and in turns."""
    data = load_dataset(config.data)
    texts = [data.queries[query].text for query in sorted(data.split("test"))[:TIMED]]
    folders = {system.index or config.index or "" for system in config.systems.values()}
    indexes = {folder: Index(Path(folder), context) for folder in folders}
    searches = {}
    for name, system in config.systems.items():
        rewriter = make_rewriter(config.rewriters[system.rewriter])[0] if system.rewriter else None
        index = indexes[system.index or config.index or ""]
        searches[name] = ToolSearch(index, system.retriever or "", rewriter, system.fusion)
    times: dict[str, list[list[float]]] = {name: [] for name in searches}
    for number in range(ROUNDS + 1):  # the first round warms up
        for name, search in searches.items():
            spent = [_cpu_ms(search, text, context) for text in texts]
            if number:
                times[name].append(spent)
    return {name: float(np.median(np.min(rounds, axis=0))) for name, rounds in times.items()}


def _cpu_ms(search: ToolSearch, text: str, context: Context) -> float:
    """CPU milliseconds of one search, its query encoded anew."""
    for encoder in context.encoders.values():
        encoder.clear_cache()
    began = time.process_time()
    search.search([text], 10)
    return (time.process_time() - began) * 1000


def main(arguments: list[str] | None = None) -> None:
    """Run all sets, then print the table."""
    parser = make_parser(__doc__)
    parser.add_argument("data", type=Path, help="the folder of the public data sets")
    parser.add_argument("--sets", nargs="+", help="some of the ten")
    parser.add_argument("--no-labels", action="store_true", help="train no MassTool")
    parser.add_argument("--csv", type=Path, default=ROOT / "headline.csv", help="the rows of all sets")
    options = parser.parse_args(arguments)
    config, sets = judged_sets(options.data, options.sets)
    results: list[SetResult] = []
    for judged in sets:
        # A context per set: an encoder keeps the query vectors of the last one.
        results.append(run_set(judged, config, not options.no_labels, make_context("cpu")))
        scores = {name: f"{own['recall@5'].mean():.3f}" for name, own in results[-1].values.items()}
        print(f"{judged.name}: {results[-1].queries} queries, {scores}", flush=True)
    published = read_published()
    write_csv(options.csv, set_rows(results, published))
    write_means(ROOT / "mean", results)
    print(markdown(results, published))
    shared = count_shared(config, sets, options.data)
    print(f"\nTools with the description of one that was trained on: {shared}")
    facts: dict[str, Any] = {"machine": machine(), "shared": shared}
    write_json(options.out, facts | {"table": markdown(results, published)})


if __name__ == "__main__":
    main()
