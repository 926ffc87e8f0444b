"""`rewrite-train targets`, `sft`, `probe`, `pairs`, `align` and `merge`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from pipelines import config as configs
from pipelines.context import make_context
from pipelines.rewriters import RewriterSettings, find_parts
from pipelines.runs import as_json, check_output, write_files
from pipelines.train.align import AlignConfig
from pipelines.train.align import run_align as align
from pipelines.train.run_folder import alone, is_finished
from pipelines.train.sampling import PairsConfig, ProbeConfig
from pipelines.train.sampling import run_pairs as make_pairs
from pipelines.train.sampling import run_probe as probe
from pipelines.train.sft import SftConfig
from pipelines.train.sft import run_sft as fine_tune
from pipelines.train.targets.build import make_targets
from pipelines.train.targets.settings import TargetsConfig
from retrievers.dense.encoder import check_device
from retrievers.errors import BadInput
from retrievers.files import disk_room
from retrievers.kind import Context
from rewrite.align.pairs import PAIRS_FILE
from rewrite.align.probe import Probe
from rewrite.sft.distributed import is_main_process, join_processes
from rewrite.sft.examples import write_examples
from rewrite.template import TEMPLATE_FILE


def run_targets(arguments: argparse.Namespace) -> int:
    config = configs.load_from_args(arguments, TargetsConfig)
    if config is None:
        return 0
    output = Path(config.output)
    check_output(output)
    targets = make_targets(config, make_context(arguments.device, sys.stderr.isatty()))
    facts = targets.facts
    files = {f"{split}.jsonl": write_examples(examples) for split, examples in targets.splits.items()}
    files |= {
        TEMPLATE_FILE: targets.template.dump(),
        "config.yaml": configs.dump(config),
        "targets.json": as_json(facts),
    }
    (output / "targets.json").unlink(missing_ok=True)  # written last: without it the folder is incomplete
    write_files(output, files)
    counts = ", ".join(f"{count} {split}" for split, count in facts["examples"].items())
    print(f"{output}: {counts} examples; {facts['abstained']} training examples leave the query as it is")
    if facts["phrasings"]:
        ways = {"tool": "the best one of each tool", "any": "drawn at random"}
        choice = ways.get(config.phrasing_choice, f"for all tools: {facts['phrasing']}")
        print(
            f"phrasings ({choice}): " + ", ".join(f"{name} {value:.3f}" for name, value in facts["phrasings"].items())
        )
    if facts["unshown"]:
        left = ", ".join(f"{count} {split}" for split, count in facts["unshown"].items())
        print(f"left out, since none of their tools is a candidate: {left} queries (missing: skip)")
    for label in ("raw", "oracle", "oracle_fused"):
        for split, scores in facts[label].items():
            metrics = ", ".join(f"{metric} {value:.3f}" for metric, value in scores.items())
            print(f"{label.replace('_', ' '):>12} {split:>5}: {metrics}")
    return 0


def run_sft(arguments: argparse.Namespace) -> int:
    config = configs.load_from_args(arguments, SftConfig)
    metrics = None if config is None else _train(arguments, config, fine_tune)
    if config is None or metrics is None:
        return 0
    name, facts = config.evaluation.metric, metrics["training"]
    if facts["last_loss"] > facts["first_loss"]:
        print(f"the loss rose from {facts['first_loss']:.3f} to {facts['last_loss']:.3f}; try a lower learning_rate")
    best = next(row for row in metrics["history"] if row["step"] == metrics["step"])
    share = config.evaluation.fusion.raw
    mode = f"with a raw share of {share:g}" if share else "the rewrite alone, the raw query if there is none"
    print(
        f"dev {name}, {mode}: raw {metrics['raw'][name]:.3f}, rewritten {metrics['best']:.3f} (step {metrics['step']})"
    )
    if best["eval_parsed"] < 0.9:
        print(f"only {best['eval_parsed']:.0%} of its answers can be parsed; train longer, or look at samples.md")
    print(_describe_fusion(metrics, name))
    print(Path(config.output) / "rewriter")
    return 0


def run_align(arguments: argparse.Namespace) -> int:
    config = configs.load_from_args(arguments, AlignConfig)
    metrics = None if config is None else _train(arguments, config, align)
    if config is None or metrics is None:
        return 0
    name, facts = config.evaluation.metric, metrics["training"]
    if metrics["collapse"]:
        print(f"stopped early: {metrics['collapse']}")
    if metrics["kept"] == "start":
        print("no checkpoint beat the start on dev, so the start was kept; `rewrite-train probe` may show why")
    print(
        f"dev {name}: raw {metrics['raw'][name]:.3f}, start {metrics['start'][f'eval_{name}']:.3f}, aligned "
        f"{metrics['best']:.3f} (step {metrics['step']} of {facts['steps']})"
    )
    if 0 < facts.get("blend", 1.0) < 1:
        scores = ", ".join(f"{float(share):.0%} {score:.3f}" for share, score in facts["blends"].items())
        print(f"kept {facts['blend']:.0%} of the way from the start; dev {name} by share: {scores}")
    if facts.get("answers"):
        print(f"{facts['answers']:,} answers were sampled for training")
    if "reward_share" in facts:
        print(f"the reward took {facts['reward_share']:.1%} of the training's time")
    print(_describe_fusion(metrics, name))
    print(Path(config.output) / "report.html")
    print(Path(config.output) / "rewriter")
    return 0


def _train(arguments: argparse.Namespace, config: Any, run: Callable[..., Path]) -> dict[str, Any] | None:
    """Run a training and return its metrics; None in all processes but the main one."""
    device, finished = check_device(arguments.device), is_finished(Path(config.output))
    if not device.startswith(("cpu", "cuda")):
        raise BadInput(f"training runs on cpu or cuda, not on {device}")
    join_processes(cpu=device.startswith("cpu"))
    with alone(Path(config.output)) if is_main_process() else nullcontext():
        run(config, make_context(device, sys.stderr.isatty()), arguments.resume, device.startswith("cuda"))
    if not is_main_process():
        return None
    if finished:
        print(f"the run in {config.output} was finished before; nothing was done")
    metrics: dict[str, Any] = json.loads((Path(config.output) / "metrics.json").read_text(encoding="utf-8"))
    return metrics


def _describe_fusion(metrics: dict[str, Any], name: str) -> str:
    chosen = metrics["fusion"][0]
    fusion = "rewriter not used" if chosen["fusion"]["raw"] == 1 else "{method}, raw {raw:g}".format(**chosen["fusion"])
    return f"fusion with the raw query, chosen on dev: {fusion} ({name} {chosen['score']:.3f})"


def run_probe(arguments: argparse.Namespace) -> int:
    config = configs.load_from_args(arguments, ProbeConfig)
    if config is None:
        return 0
    result = probe(config, _join(arguments))
    if is_main_process():
        _print_probe(result)
    return 0


def run_pairs(arguments: argparse.Namespace) -> int:
    config = configs.load_from_args(arguments, PairsConfig)
    if config is None:
        return 0
    result, pairs = make_pairs(config, _join(arguments))
    if not is_main_process():
        return 0
    _print_probe(result)
    if result.hopeless:
        raise BadInput(result.verdict)
    print(f"{Path(config.output) / PAIRS_FILE}: {len(pairs)} pairs")
    return 0


def _join(arguments: argparse.Namespace) -> Context:
    """Join the other processes of `accelerate launch`, if there are any."""
    join_processes(cpu=not check_device(arguments.device).startswith("cuda"))
    return make_context(arguments.device, sys.stderr.isatty())


def _print_probe(result: Probe) -> None:
    print(
        f"{result.queries} queries x {result.answers} answers: {result.parsed:.0%} can be parsed, "
        f"{1 - result.finished:.0%} were cut at samples.max_tokens, "
        f"{result.distinct:.0%} of a query's answers differ, {result.too_long} queries are too long"
    )
    print(
        f"reward: raw query {result.raw:.3f}, mean answer {result.mean:.3f}, best of {result.answers} "
        f"{result.best:.3f}, the target {result.oracle:.3f}"
    )
    print(
        f"no spread: {result.no_spread:.0%} of the queries; expected pairs: {result.pairs_per_query:.2f} per query "
        f"({result.pairs} here)"
    )
    print(f"worth it? {result.verdict}")


def run_merge(arguments: argparse.Namespace) -> int:
    from rewrite.merge import merge_adapter

    parts = find_parts(RewriterSettings(path=str(arguments.rewriter), base=arguments.base))
    assert parts.model is not None  # only servers and rules have none
    with disk_room(arguments.output):
        print(merge_adapter(arguments.rewriter, parts.model, arguments.output))
    return 0
