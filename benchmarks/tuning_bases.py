"""Tune two encoders on a small part of a data set, on a CPU, to see which is the better base.

    OMP_NUM_THREADS=1 python benchmarks/tuning_bases.py data/toole data/toollens data/toolbench [--out FILE]

Writes some queries of each data set to runs/tuning-bases, and of its tools those that they need, filled up by others;
then builds configs/index/tuned.yaml from both bases with one short epoch, and evaluates both on test queries. Prints
R@5 on dev before and after, which decides, and on test with p. A finished index is not built again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import machine, make_parser, write_json

from pipelines import config as configs
from pipelines.context import make_context
from pipelines.data.dataset import DataSet, limit_queries, load_dataset, stable_hash
from pipelines.data.dataset_writer import write_dataset
from pipelines.evaluate.output import write_evaluation
from pipelines.evaluate.run import EvalConfig, evaluate
from pipelines.index.build import IndexConfig, build_index
from retrievers.types import Tool

ROOT = Path("runs/tuning-bases")
BASES = {"minilm": "bundled:minilm", "tools": "bundled:tools"}
BATCH = 32


def keep_tools(data: DataSet, needed: set[str], max_tools: int) -> list[Tool]:
    """The tools that are needed, and others drawn by a hash, in the order of the catalogue."""
    others = sorted((tool.id for tool in data.tools if tool.id not in needed), key=stable_hash)
    kept = needed | set(others[: max(0, max_tools - len(needed))])
    return [tool for tool in data.tools if tool.id in kept]


def write_part(source: Path, folder: Path, queries: int, judged: int, max_tools: int) -> None:
    """Write a data set with at most so much of each split and of the catalogue."""
    data = load_dataset(str(source))
    gold = {
        split: limit_queries(data, queries if split == "train" else judged, 0).gold[split]
        for split in ("train", "dev", "test")
    }
    needed = {tool for own in gold.values() for tools in own.values() for tool in tools}
    kept = [data.queries[query] for own in gold.values() for query in own]
    folder.parent.mkdir(parents=True, exist_ok=True)
    write_dataset(folder, keep_tools(data, needed, max_tools), kept, gold)


def tune_from(base: str, data: Path, text: str) -> dict[str, Any]:
    """Build the index of one base, if there is none yet; what its training says, with its CPU seconds."""
    index = ROOT / data.name / base
    facts = index.with_suffix(".json")
    if not facts.exists():
        train = "retrievers.dense.train"
        flags = [f"dataset={data.name}", f"index={ROOT}/<dataset>/{base}", f"text={text}"]
        flags += [f"retrievers.dense.model={BASES[base]}", f"catalogue={ROOT}/data/<dataset>", f"{train}.epochs=1"]
        flags += [f"{train}.data=[{{path: {ROOT}/data/<dataset>}}]"]
        flags += [f"{train}.batch_size={BATCH}", f"{train}.candidates=64", f"{train}.max_length=64"]
        began = time.process_time()
        build_index(configs.load(Path("configs/index/tuned.yaml"), IndexConfig, flags), make_context("cpu"))
        [training] = index.glob("**/training.json")
        training_facts = json.loads(training.read_text()) | {"cpu_seconds": round(time.process_time() - began)}
        facts.write_text(json.dumps(training_facts, indent=1) + "\n")
    read: dict[str, Any] = json.loads(facts.read_text())
    return read


def compare_bases(data: Path) -> dict[str, Any]:
    """Test figures of both bases after tuning, with p of the difference."""
    systems = {base: {"retriever": "dense", "index": str(ROOT / data.name / base)} for base in BASES}
    settings = {"output": str(ROOT / data.name / "eval"), "data": str(data), "systems": systems}
    evaluation = evaluate(configs.parse(EvalConfig, settings), make_context("cpu"))
    write_evaluation(evaluation)
    summary = evaluation.summary()
    [test] = [row for row in summary["comparisons"] if row["metric"] == "recall@5"]
    return {"test": {base: summary["systems"][base]["recall@5"] for base in BASES}, "p": test["p_value"]}


def main(arguments: Sequence[str] | None = None) -> None:
    """Tune and compare on each data set."""
    parser = make_parser(__doc__)
    parser.add_argument("data", nargs="+", type=Path)
    parser.add_argument("--queries", type=int, default=1280, help="training queries; 32 are a step")
    parser.add_argument("--judged", type=int, default=300, help="queries of dev and of test")
    parser.add_argument("--tools", type=int, default=600, help="tools, or as many as the queries need")
    options = parser.parse_args(arguments)
    results: dict[str, Any] = {}
    for source in options.data:
        part = ROOT / "data" / source.name
        if not part.exists():
            write_part(source, part, options.queries, options.judged, options.tools)
        text = "[description]" if source.name == "toollens" else "[name, description]"
        trained = {base: tune_from(base, part, text) for base in BASES}
        results[source.name] = {"dev": trained, **compare_bases(part)}
        for base, facts in trained.items():
            before, after = facts["before"]["recall@5"], facts["after"]
            scores = f"dev R@5 {before:.3f} {after:.3f}, blend {facts['blend']}"
            print(f"{source.name} {base}: {scores}, {facts['cpu_seconds']} CPU s")
        print(f"{source.name} test R@5 {results[source.name]['test']}, p {results[source.name]['p']:.3f}", flush=True)
        write_json(options.out, {"machine": machine(), "results": results})


if __name__ == "__main__":
    main()
