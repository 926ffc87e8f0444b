"""All benchmarks that have a peer, one after the other, and one table of ratios.

    python benchmarks/run.py [--full] [--only NAME ...] [--out FOLDER]

Small takes minutes on two cores without a GPU. Full is the published sizes, and vLLM and TRL's fine-tuning as peers
too; it takes hours there. Every script measures its peer in the same run, in turn with ours, and writes JSON, which
stays in the output folder beside table.md. A benchmark that cannot be run here is a row that says why; one that fails
makes exit code 1.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from bench_table import Ratio, machine, row, table

from pipelines.context import make_context
from pipelines.data.sample_data import SAMPLE
from pipelines.index.build import IndexConfig, build_index
from retrievers.settings import DenseSettings

HERE = Path(__file__).parent
ROOT = HERE.parent


@dataclass(frozen=True)
class Bench:
    """One script, how it is called, and what is read from its JSON."""

    script: str
    small: Sequence[str] | None
    """None: only in the full run."""
    full: Sequence[str]
    read: Callable[[Any], list[Ratio]]
    library: str = ""
    """What must be installed."""
    needs: str = ""
    """What `make demo` must have made before."""
    index: bool = False
    """It is given an index of the sample."""


def figures(labels: dict[str, tuple[str, str]]) -> Callable[[Any], list[Ratio]]:
    """Reads rows of ratios by their names: name -> (what is measured, the peer)."""

    def read(facts: Any) -> list[Ratio]:
        found = {each["what"]: each for each in facts["figures"]}
        return [
            Ratio(what, peer, found[name]["median"], found[name]["min"], found[name]["max"], found[name]["n"])
            for name, (what, peer) in labels.items()
        ]

    return read


def loads(facts: Any) -> list[Ratio]:
    """The gateway's requests a second over the peer's, round by round."""
    found = []
    for name, peers in facts.items():
        if not isinstance(peers, dict) or "gateway" not in peers:
            continue
        [peer] = [other for other in peers if other != "gateway"]
        ours, theirs = (peers[each]["per_second_by_round"] for each in ("gateway", peer))
        called = {"bare": "retriever without a gateway", "vLLM": "bare vLLM"}[peer]
        found.append(_ratio(f"gateway, requests a second: {name}", called, ours, theirs))
    return found


def seconds(what: str, ours: str, peer: str) -> Callable[[Any], list[Ratio]]:
    """Reads seconds of both, round by round."""
    return lambda facts: [_ratio(what, peer, facts["seconds"][peer], facts["seconds"][ours])]


def _ratio(what: str, peer: str, above: Sequence[float], below: Sequence[float]) -> Ratio:
    values = [a / b for a, b in zip(above, below, strict=True)]
    return Ratio(what, peer, median(values), min(values), max(values), len(values))


LEXICAL = {
    "ratio: ours / rank_bm25 get_scores + argsort": ("BM25, queries a second", "rank-bm25"),
    "ratio: ours / bm25s retrieve": ("BM25, queries a second", "bm25s by hand"),
}
DENSE = {
    f"ratio: ours / sentence-transformers, {how}": (f"dense search, queries a second: {how}", "sentence-transformers")
    for how in ("one query at a time", "all in one call")
}
REWARD = {"ratio: naive reward / ours": ("reward of a training step, seconds", "naive per-query reward")}
BENCHES: dict[str, Bench] = {
    "bm25": Bench("index_scale.py", ["--tools", "5000"], ["--tools", "50000"], figures(LEXICAL)),
    "dense": Bench(
        "dense_search.py",
        ["--tools", "400", "--queries", "24"],
        ["--tools", "5000", "--queries", "200"],
        figures(DENSE),
    ),
    "reward": Bench("reward_batch.py", ["--queries", "8"], ["--queries", "32", "--rounds", "8"], figures(REWARD)),
    "grpo": Bench(
        "shared_prompts.py",
        ["--prompt-tokens", "128", "--answer-tokens", "8", "--rounds", "2"],
        ["--prompt-tokens", "600", "--answer-tokens", "32"],
        seconds("scores and gradient of eight answers to a prompt, seconds", "shared", "TRL"),
        "trl",
    ),
    "gateway": Bench("serve_load.py", ["--clients", "1", "8", "--seconds", "4"], [], loads, "fastapi", index=True),
    "gateway-vllm": Bench(
        "serve_load.py",
        None,
        ["--clients", "8", "--rewriter", "runs/sample/sft"],
        loads,
        "vllm",
        "runs/sample/sft/rewriter",
        index=True,
    ),
    "batch": Bench(
        "batch_vllm.py",
        None,
        [],
        seconds("batch job, from start to finished file", "rewrite-batch", "vllm run-batch"),
        "vllm",
    ),
    "sft": Bench(
        "sft_throughput.py",
        None,
        ["runs/sample/targets", "--batch", "4", "--steps", "25"],
        seconds("fine-tuning, seconds", "ours", "plain TRL"),
        "trl",
        "runs/sample/targets/train.jsonl",
    ),
}


@dataclass
class Results:
    """Rows of the table, as they come."""

    ratios: list[Ratio] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    failed: bool = False


def run(name: str, bench: Bench, full: bool, folder: Path, into: Results) -> None:
    """One benchmark in a process of its own."""
    words = bench.full if full else bench.small
    if words is None:
        into.missing[name] = "in the full run only"
        return
    if bench.library and find_spec(bench.library) is None:
        into.missing[name] = f"{bench.library} is not installed"
        return
    if bench.needs and not Path(bench.needs).exists():
        into.missing[name] = f"no {bench.needs}: run `make demo` first"
        return
    out = folder / f"{name}.json"
    out.unlink(missing_ok=True)
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": str(ROOT)}
    started = time.monotonic()
    if bench.index:
        config = IndexConfig(str(folder / "index"), (SAMPLE,), {"dense": DenseSettings()})
        build_index(config, make_context("cpu"))
        words = [*words, "--index", str(folder / "index")]
    print(f"\n== {name}: {bench.script} {' '.join(words)}", flush=True)
    done = subprocess.run([sys.executable, str(HERE / bench.script), *words, "--out", str(out)], env=environment)
    if done.returncode or not out.exists():
        into.missing[name], into.failed = f"FAILED with exit code {done.returncode}", True
        return
    into.ratios += bench.read(json.loads(out.read_text()))
    print(f"== {name}: {time.monotonic() - started:.0f} s", flush=True)


def main() -> int:
    """All of them, then the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="the published sizes, and vLLM and TRL as peers")
    parser.add_argument("--only", nargs="+", choices=list(BENCHES), metavar="NAME", help=", ".join(BENCHES))
    parser.add_argument("--out", type=Path, help="folder for JSON and table (runs/bench/small or full)")
    options = parser.parse_args()
    folder = options.out or Path("runs/bench") / ("full" if options.full else "small")
    folder.mkdir(parents=True, exist_ok=True)
    results = Results()
    for name in options.only or BENCHES:
        run(name, BENCHES[name], options.full, folder, results)
    facts = machine()
    told = table(facts, results.ratios, results.missing)
    (folder / "table.md").write_text(told)
    rows = [row(ratio) for ratio in results.ratios]
    (folder / "table.json").write_text(
        json.dumps({**facts, "ratios": rows, "missing": results.missing}, indent=1) + "\n"
    )
    print(f"\n{told}\n{folder}/table.md, table.json")
    return 1 if results.failed else 0


if __name__ == "__main__":
    sys.exit(main())
