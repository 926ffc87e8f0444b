"""Run every benchmark that has a peer, and print one table of ratios.

    python benchmarks/run.py [--full] [--only NAME ...] [--out FOLDER]

The small run takes minutes on two cores without a GPU. --full uses the published sizes and adds vLLM and TRL's
fine-tuning as peers; it takes hours there. Every script measures its peer in the same run, in turn with ours, and
writes JSON, which stays in the output folder next to table.md. A benchmark that cannot run here is a row that says
why; one that fails makes exit code 1.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from harness import machine, write_json

from pipelines.context import make_context
from pipelines.data.sample_data import SAMPLE
from pipelines.index.build import IndexConfig, build_index
from retrievers.settings import DenseSettings

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Ratio:
    """Ours over a peer's; above 1 ours is better."""

    what: str
    peer: str
    median: float
    min: float
    max: float
    rounds: int


@dataclass(frozen=True)
class Benchmark:
    """One script, its arguments, and how its JSON is read."""

    script: str
    small: Sequence[str] | None
    """None: only in the full run."""
    full: Sequence[str]
    read: Callable[[Any], list[Ratio]]
    library: str = ""
    """Library that must be installed."""
    needs: str = ""
    """File that `make demo-train` must have written."""
    index: bool = False
    """Pass an index of the sample as `--index`."""


def figures(labels: dict[str, tuple[str, str]]) -> Callable[[Any], list[Ratio]]:
    """Read rows of ratios by their names: name -> (what is measured, the peer)."""

    def read(facts: Any) -> list[Ratio]:
        rows = {row["what"]: row for row in facts["figures"]}
        return [
            Ratio(what, peer, rows[name]["median"], rows[name]["min"], rows[name]["max"], rows[name]["n"])
            for name, (what, peer) in labels.items()
        ]

    return read


def present_figures(labels: dict[str, tuple[str, str]]) -> Callable[[Any], list[Ratio]]:
    """As `figures`, without the rows of peers that could not run."""

    def read(facts: Any) -> list[Ratio]:
        rows = {row["what"] for row in facts["figures"]}
        return figures({name: label for name, label in labels.items() if name in rows})(facts)

    return read


def loads(facts: Any) -> list[Ratio]:
    """Read the gateway's requests per second over the peer's, round by round."""
    ratios = []
    for name, peers in facts.items():
        if not isinstance(peers, dict) or "gateway" not in peers:
            continue
        [peer] = [other for other in peers if other != "gateway"]
        ours, theirs = (peers[key]["per_second_by_round"] for key in ("gateway", peer))
        label = {"bare": "retriever without a gateway", "vLLM": "bare vLLM"}[peer]
        ratios.append(_ratio(f"gateway, requests per second: {name}", label, ours, theirs))
    return ratios


def seconds(what: str, ours: str, peer: str) -> Callable[[Any], list[Ratio]]:
    """Read seconds of both, round by round."""
    return lambda facts: [_ratio(what, peer, facts["seconds"][peer], facts["seconds"][ours])]


def _ratio(what: str, peer: str, above: Sequence[float], below: Sequence[float]) -> Ratio:
    values = [a / b for a, b in zip(above, below, strict=True)]
    return Ratio(what, peer, median(values), min(values), max(values), len(values))


LEXICAL = {
    "ratio: ours / rank_bm25 get_scores + argsort": ("BM25, queries per second", "rank-bm25"),
    "ratio: ours / bm25s retrieve": ("BM25, queries per second", "bm25s by hand"),
}
DENSE = {
    f"ratio: ours / sentence-transformers, {mode}": (
        f"dense search, queries per second: {mode}",
        "sentence-transformers",
    )
    for mode in ("one query at a time", "all in one call")
}
CPU_ENCODER = {
    f"ratio: ours / {peer}, {what}": (f"encoder on a CPU, {what} per second", peer)
    for what in ("queries", "tools")
    for peer in ("sentence-transformers", "sentence-transformers on ONNX", "FastEmbed")
}
CPU_SERVING = {
    "ratio: start, PyTorch / ours": ("server on a CPU, seconds to the first answer", "the same on PyTorch"),
    "ratio: memory, PyTorch / ours": ("server on a CPU, resident memory", "the same on PyTorch"),
} | {
    f"ratio: requests, ours / PyTorch, {clients} clients": (
        f"server on a CPU, requests per second, {clients} clients",
        "the same on PyTorch",
    )
    for clients in (1, 16)
}
CPU_SERVING |= {
    f"ratio: {share}, PyTorch / ours, {clients} clients": (
        f"server on a CPU, {share} of a search, {clients} clients",
        "the same on PyTorch",
    )
    for share in ("p50", "p99")
    for clients in (1, 16)
}
CPU_ENGINES = {
    f"ratio: vLLM / ONNX Runtime GenAI, {bits} bits, by the clock": (
        f"a rewrite of 32 tokens on a CPU, seconds, {bits} bits",
        "vLLM",
    )
    for bits in (8, 4)
}
REWARD = {"ratio: naive reward / ours": ("reward of a training step, seconds", "naive per-query reward")}
GRPO = seconds("scores and gradient of eight answers to a prompt, seconds", "shared", "TRL")
BATCH = seconds("batch job, from start to finished file", "rewrite-batch", "vllm run-batch")
SFT = seconds("fine-tuning, seconds", "ours", "plain TRL")
BENCHES: dict[str, Benchmark] = {
    "bm25": Benchmark("index_scale.py", ["--tools", "5000"], ["--tools", "50000"], figures(LEXICAL)),
    "dense": Benchmark(
        "dense_search.py",
        ["--tools", "400", "--queries", "24"],
        ["--tools", "5000", "--queries", "200"],
        figures(DENSE),
    ),
    "cpu-encoder": Benchmark("cpu_encoder.py", [], ["--queries", "32", "--tools", "112"], present_figures(CPU_ENCODER)),
    "cpu-serving": Benchmark(
        "cpu_serving.py",
        ["--seconds", "4", "--rounds", "2"],
        [],
        figures(CPU_SERVING),
        "fastapi",
    ),
    "cpu-engines": Benchmark(
        "cpu_engines.py",
        ["--rounds", "2", "--requests", "2"],
        ["--requests", "8"],
        figures(CPU_ENGINES),
        "onnxruntime_genai",
    ),
    "reward": Benchmark("reward_batch.py", ["--queries", "8"], ["--queries", "32", "--rounds", "8"], figures(REWARD)),
    "grpo": Benchmark(
        "shared_prompts.py",
        ["--prompt-tokens", "128", "--answer-tokens", "8", "--rounds", "2"],
        ["--prompt-tokens", "600", "--answer-tokens", "32"],
        GRPO,
        "trl",
    ),
    "gateway": Benchmark("serve_load.py", ["--clients", "1", "8", "--seconds", "4"], [], loads, "fastapi", index=True),
    "gateway-vllm": Benchmark(
        "serve_load.py",
        None,
        ["--clients", "8", "--rewriter", "runs/sample/sft"],
        loads,
        "vllm",
        "runs/sample/sft/rewriter",
        index=True,
    ),
    "batch": Benchmark("batch_vllm.py", None, [], BATCH, "vllm"),
    "sft": Benchmark(
        "sft_throughput.py",
        None,
        ["runs/sample/targets", "--batch", "4", "--steps", "25"],
        SFT,
        "trl",
        "runs/sample/targets/train.jsonl",
    ),
}


@dataclass
class Results:
    """Rows of the table."""

    ratios: list[Ratio] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    failed: bool = False


def run(name: str, bench: Benchmark, full: bool, folder: Path, results: Results) -> None:
    """Run one benchmark in a process of its own."""
    arguments = bench.full if full else bench.small
    if arguments is None:
        results.missing[name] = "in the full run only"
        return
    if bench.library and find_spec(bench.library) is None:
        results.missing[name] = f"{bench.library} is not installed"
        return
    if bench.needs and not Path(bench.needs).exists():
        results.missing[name] = f"no {bench.needs}: run `make demo-train` first"
        return
    out = folder / f"{name}.json"
    out.unlink(missing_ok=True)
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": str(HERE.parent)}
    started = time.monotonic()
    if bench.index:
        config = IndexConfig(str(folder / "index"), (SAMPLE,), {"dense": DenseSettings()})
        build_index(config, make_context("cpu"))
        arguments = [*arguments, "--index", str(folder / "index")]
    print(f"\n== {name}: {bench.script} {' '.join(arguments)}", flush=True)
    done = subprocess.run([sys.executable, str(HERE / bench.script), *arguments, "--out", str(out)], env=environment)
    if done.returncode or not out.exists():
        results.missing[name], results.failed = f"FAILED with exit code {done.returncode}", True
        return
    facts = json.loads(out.read_text())
    results.ratios += bench.read(facts)
    results.missing.update(facts.get("missing", {}))
    print(f"== {name}: {time.monotonic() - started:.0f} s", flush=True)


def table(facts: Mapping[str, str], results: Results) -> str:
    """The ratios as Markdown."""
    lines = [f"{name}: {value}  " for name, value in facts.items()]
    lines += ["", "| ours against | what | ratio | spread | rounds |", "|---|---|--:|--:|--:|"]
    for ratio in results.ratios:
        spread = f"{ratio.min:.2f} - {ratio.max:.2f}"
        lines.append(f"| {ratio.peer} | {ratio.what} | **{ratio.median:.2f}** | {spread} | {ratio.rounds} |")
    lines += [f"| {name} | | not run: {reason} | | |" for name, reason in results.missing.items()]
    return "\n".join([*lines, "", "Above 1 ours is better. Median of the rounds; peers in turn, in the same run.", ""])


def main() -> int:
    """Run the chosen benchmarks, then write the table."""
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
    text = table(facts, results)
    (folder / "table.md").write_text(text)
    rows = [asdict(ratio) for ratio in results.ratios]
    write_json(folder / "table.json", {**facts, "ratios": rows, "missing": results.missing})
    print(f"\n{text}\n{folder}/table.md, table.json")
    return 1 if results.failed else 0


if __name__ == "__main__":
    sys.exit(main())
