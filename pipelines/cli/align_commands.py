"""`rewrite-train probe|pairs|align`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pipelines import config as configs
from pipelines.cli.train_commands import beside_raw, trained
from pipelines.context import make_context
from pipelines.train.align import AlignConfig, run_align
from pipelines.train.sampling import PairsConfig, ProbeConfig, run_pairs, run_probe
from retrievers.dense.encoder import check_device
from retrievers.errors import BadInput
from retrievers.kind import Context
from rewrite.align.pairs import PAIRS_FILE
from rewrite.align.probe import Probe
from rewrite.sft.distributed import is_main_process, join_processes


def probe(arguments: argparse.Namespace) -> int:
    config = configs.load_from_args(arguments, ProbeConfig)
    if config is None:
        return 0
    found = run_probe(config, _together(arguments))
    if is_main_process():
        _tell(found)
    return 0


def _together(arguments: argparse.Namespace) -> Context:
    """The world of a command that several processes may share."""
    join_processes(cpu=not check_device(arguments.device).startswith("cuda"))
    return make_context(arguments.device, sys.stderr.isatty())


def pairs(arguments: argparse.Namespace) -> int:
    config = configs.load_from_args(arguments, PairsConfig)
    if config is None:
        return 0
    found, made = run_pairs(config, _together(arguments))
    if not is_main_process():
        return 0
    _tell(found)
    if found.hopeless:
        raise BadInput(found.verdict)
    print(f"{Path(config.output) / PAIRS_FILE}: {len(made)} pairs")
    return 0


def _tell(found: Probe) -> None:
    """The figures, and what they mean."""
    print(
        f"{found.queries} queries x {found.answers} answers: {found.parsed:.0%} can be parsed, "
        f"{1 - found.finished:.0%} were cut at samples.max_tokens, {found.distinct:.0%} of a query's answers differ, "
        f"{found.too_long} queries are too long"
    )
    print(
        f"reward: leaving the query alone {found.raw:.3f}, mean answer {found.mean:.3f}, best of {found.answers} "
        f"{found.best:.3f}, the target {found.oracle:.3f}"
    )
    print(
        f"no spread: {found.no_spread:.0%} of the queries; expected pairs: {found.pairs_per_query:.2f} a query "
        f"({found.pairs} here)"
    )
    print(f"worth it? {found.verdict}")


def align(arguments: argparse.Namespace) -> int:
    config = configs.load_from_args(arguments, AlignConfig)
    metrics = None if config is None else trained(arguments, config, run_align)
    if config is None or metrics is None:
        return 0
    name, facts = config.evaluation.metric, metrics["training"]
    if metrics["collapse"]:
        print(f"stopped early: {metrics['collapse']}")
    if metrics["kept"] == "start":
        print("no checkpoint beat the start on dev, so the start was kept; `rewrite-train probe` tells why that may be")
    print(
        f"dev {name}: raw {metrics['raw'][name]:.3f}, start {metrics['start'][f'eval_{name}']:.3f}, aligned "
        f"{metrics['best']:.3f} (step {metrics['step']} of {facts['steps']})"
    )
    if 0 < facts.get("blend", 1.0) < 1:
        told = ", ".join(f"{float(share):.0%} {score:.3f}" for share, score in facts["blends"].items())
        print(f"kept {facts['blend']:.0%} of the way from the start; dev {name} by share: {told}")
    if "reward_share" in facts:
        print(f"the reward took {facts['reward_share']:.1%} of the training's time")
    print(beside_raw(metrics, name))
    print(Path(config.output) / "report.html")
    print(Path(config.output) / "rewriter")
    return 0
