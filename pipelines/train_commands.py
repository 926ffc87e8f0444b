"""`rewrite-train targets|sft|merge`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from pipelines import config as configs
from pipelines.index import make_context
from pipelines.runs import as_json, write_files
from pipelines.sft import SftConfig, run_sft
from pipelines.targets import TargetsConfig, make_targets
from retrievers.encoder import check_device
from rewrite.sft.examples import write_examples
from rewrite.template import FILE


def targets(arguments: argparse.Namespace) -> int:
    config = configs.load(arguments.config, TargetsConfig, arguments.set)
    if arguments.dry_run:
        print(configs.dump(config).rstrip())
        return 0
    made = make_targets(config, make_context(arguments.device, sys.stderr.isatty()))
    files = {f"{split}.jsonl": write_examples(examples) for split, examples in made.splits.items()}
    files |= {FILE: made.template.dump(), "config.yaml": configs.dump(config), "targets.json": as_json(made.facts)}
    write_files(Path(config.output), files)
    facts = made.facts
    counts = ", ".join(f"{count} {split}" for split, count in facts["examples"].items())
    print(f"{config.output}: {counts} examples, {facts['abstained']} of them leave the query alone")
    told = "each tool's best phrasing" if config.choose == "tool" else f"chosen for all: {facts['phrasing']}"
    print(f"phrasings ({told}): " + ", ".join(f"{name} {value:.3f}" for name, value in facts["phrasings"].items()))
    for label in ("raw", "oracle"):
        for split, scores in facts[label].items():
            print(f"{label:>6} {split:>5}: " + ", ".join(f"{metric} {value:.3f}" for metric, value in scores.items()))
    return 0


def sft(arguments: argparse.Namespace) -> int:
    config = configs.load(arguments.config, SftConfig, arguments.set)
    if arguments.dry_run:
        print(configs.dump(config).rstrip())
        return 0
    device = check_device(arguments.device)
    context = make_context(device, sys.stderr.isatty())
    folder = run_sft(config, context, arguments.resume, device.startswith("cuda"))
    metrics = json.loads((Path(config.output) / "metrics.json").read_text(encoding="utf-8"))
    name = config.evaluation.metric
    print(f"dev {name}: raw {metrics['raw'][name]:.3f}, rewritten {metrics['best']:.3f} (step {metrics['step']})")
    print(folder)
    return 0
