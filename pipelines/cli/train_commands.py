"""`rewrite-train targets|sft|merge`."""

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
from pipelines.train.run_folder import alone, is_finished
from pipelines.train.sft import SftConfig, run_sft
from pipelines.train.targets.build import TargetsConfig, make_targets
from retrievers.dense.encoder import check_device
from retrievers.errors import BadInput
from retrievers.files import disk_room
from rewrite.sft.distributed import is_main_process, join_processes
from rewrite.sft.examples import write_examples
from rewrite.template import TEMPLATE_FILE


def targets(arguments: argparse.Namespace) -> int:
    config = configs.load_from_args(arguments, TargetsConfig)
    if config is None:
        return 0
    check_output(Path(config.output))
    made = make_targets(config, make_context(arguments.device, sys.stderr.isatty()))
    files = {f"{split}.jsonl": write_examples(examples) for split, examples in made.splits.items()}
    files |= {
        TEMPLATE_FILE: made.template.dump(),
        "config.yaml": configs.dump(config),
        "targets.json": as_json(made.facts),
    }
    if (before := Path(config.output) / "targets.json").is_file():
        before.unlink()  # written last: a folder that holds half of two targets is not one
    write_files(Path(config.output), files)
    facts = made.facts
    counts = ", ".join(f"{count} {split}" for split, count in facts["examples"].items())
    print(f"{config.output}: {counts} examples; {facts['abstained']} to train on leave the query alone")
    ways = {"tool": "each tool's best phrasing", "any": "any of them, by chance"}
    told = ways.get(config.choose, f"chosen for all: {facts['phrasing']}")
    if facts["phrasings"]:
        print(f"phrasings ({told}): " + ", ".join(f"{name} {value:.3f}" for name, value in facts["phrasings"].items()))
    if facts["unshown"]:
        left = ", ".join(f"{count} {split}" for split, count in facts["unshown"].items())
        print(f"left out, since none of their tools is among the candidates: {left} queries (missing: skip)")
    for label in ("raw", "oracle", "oracle_fused"):
        for split, scores in facts[label].items():
            print(
                f"{label.replace('_', ' '):>12} {split:>5}: "
                + ", ".join(f"{metric} {value:.3f}" for metric, value in scores.items())
            )
    return 0


def sft(arguments: argparse.Namespace) -> int:
    config = configs.load_from_args(arguments, SftConfig)
    metrics = None if config is None else trained(arguments, config, run_sft)
    if config is None or metrics is None:
        return 0
    name, facts = config.evaluation.metric, metrics["training"]
    if facts["last_loss"] > facts["first_loss"]:
        print(f"the loss rose from {facts['first_loss']:.3f} to {facts['last_loss']:.3f}; try a lower learning_rate")
    best = next(row for row in metrics["history"] if row["step"] == metrics["step"])
    share = config.evaluation.fusion.raw
    told = f"with a raw share of {share:g}" if share else "the rewrite alone, the raw query where there is none"
    print(
        f"dev {name}, {told}: raw {metrics['raw'][name]:.3f}, rewritten {metrics['best']:.3f} (step {metrics['step']})"
    )
    if best["eval_parsed"] < 0.9:
        print(f"only {best['eval_parsed']:.0%} of its answers can be parsed; train longer, or look at samples.md")
    print(beside_raw(metrics, name))
    print(Path(config.output) / "rewriter")
    return 0


def trained(arguments: argparse.Namespace, config: Any, run: Callable[..., Path]) -> dict[str, Any] | None:
    """Does a training and gives its figures; None in all processes but the first."""
    device, before = check_device(arguments.device), is_finished(Path(config.output))
    if not device.startswith(("cpu", "cuda")):
        raise BadInput(f"training runs on cpu or cuda, not on {device}")
    join_processes(cpu=device.startswith("cpu"))
    with alone(Path(config.output)) if is_main_process() else nullcontext():
        run(config, make_context(device, sys.stderr.isatty()), arguments.resume, device.startswith("cuda"))
    if not is_main_process():
        return None
    if before:
        print(f"the run in {config.output} was finished before; nothing was done")
    metrics: dict[str, Any] = json.loads((Path(config.output) / "metrics.json").read_text(encoding="utf-8"))
    return metrics


def beside_raw(metrics: dict[str, Any], name: str) -> str:
    """How the rewriter is best joined with the raw query."""
    chosen = metrics["fusion"][0]
    how = "not used at all" if chosen["fusion"]["raw"] == 1 else "{method}, raw {raw:g}".format(**chosen["fusion"])
    return f"beside the raw query, chosen on dev: {how} ({name} {chosen['score']:.3f})"


def merge(arguments: argparse.Namespace) -> int:
    from rewrite.merge import merge_adapter as merged

    parts = find_parts(RewriterSettings(path=str(arguments.rewriter), base=arguments.base))
    assert parts.model is not None  # only servers and rules have none
    with disk_room(arguments.output):
        print(merged(arguments.rewriter, parts.model, arguments.output))
    return 0
