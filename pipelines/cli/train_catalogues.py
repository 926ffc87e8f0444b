"""`rewrite-train encoder` and `rewrite-train rerank`: models that are trained on many catalogues."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from pipelines import config as configs
from pipelines.context import make_context
from pipelines.train.encoder import run as encoder_run
from pipelines.train.encoder.choice import BlendScore
from pipelines.train.encoder.evaluation import CHOICE
from pipelines.train.encoder.settings import EncoderConfig
from pipelines.train.rerank import run as rerank_run
from pipelines.train.rerank.settings import RerankConfig
from retrievers.errors import BadInput


def run_encoder(arguments: argparse.Namespace) -> int:
    config = configs.load_from_args(arguments, EncoderConfig)
    if config is None:
        for line in encoder_run.describe(configs.load(arguments.config, EncoderConfig, arguments.set)):
            print(f"# {line}")
        return 0
    context, groups = make_context(arguments.device, True), _groups_to_leave_out(config, arguments.leave_one_out)
    for group in groups:
        print(encoder_run.leave_out(config, group, context) / "metrics.json")
    if groups:
        _print_choice(encoder_run.choose_blend(config))
        return 0
    metrics = encoder_run.final(config, context)
    _print_judged(metrics)
    print(f"{Path(config.output) / 'encoder'}: {metrics['bytes'] / 1e6:.1f} MB, blend {metrics['blend']:g}")
    sys.stdout.flush()
    return 0


def _groups_to_leave_out(config: EncoderConfig | RerankConfig, every: bool) -> list[str]:
    if every and len(config.groups) < 2:
        raise BadInput("--leave-one-out needs at least two groups")
    return [config.leave_out] if config.leave_out else list(config.groups) if every else []


def _print_choice(choices: list[BlendScore]) -> None:
    if not choices:
        print("other groups have to be left out yet, before a blend can be chosen")
        return
    for number, choice in enumerate(choices):
        losses = f"; clearly worse: {', '.join(choice.clear_losses)}" if choice.clear_losses else ""
        print(
            f"{'chosen' if number == 0 else '':>6} blend {choice.blend:<4g} mean {CHOICE} of the left-out sets "
            f"{choice.mean:.3f}, worst change {choice.worst:+.3f} ({choice.worst_set}){losses}"
        )
    if choices[0].blend == 0:
        print("no blend is better than the base without a clear loss somewhere; train longer, or on more sets")


def _print_judged(metrics: dict[str, Any]) -> None:
    for name, facts in metrics["sets"].items():
        scores = facts["scores"]
        systems = ", ".join(
            f"{system} {scores['0'][system][CHOICE]:.3f} -> {scores['adapter'][system][CHOICE]:.3f}"
            for system in scores["adapter"]
        )
        print(f"{name:>16} {CHOICE}, base -> adapter: {systems}")


def run_rerank(arguments: argparse.Namespace) -> int:
    config = configs.load_from_args(arguments, RerankConfig)
    if config is None:
        for line in rerank_run.describe(configs.load(arguments.config, RerankConfig, arguments.set)):
            print(f"# {line}")
        return 0
    context, groups = make_context(arguments.device, True), _groups_to_leave_out(config, arguments.leave_one_out)
    for group in groups:
        print(rerank_run.leave_out(config, group, context) / "metrics.json")
    if groups:
        lists = rerank_run.left_out_lists(config)
        if not lists:
            print("other groups have to be left out yet, before depth and weight can be chosen")
        _print_figures(rerank_run.figures_of(lists, None, config))
        return 0
    metrics = rerank_run.final(config, context)
    for choice in metrics["choices"]:
        verdict = f"top {choice['top']}, weight {choice['weight']:g}" if choice["weight"] else "no gain, weight 0"
        print(f"{choice['retriever']}: {verdict}, chosen on {metrics['chosen_on']}")
    _print_figures(metrics["judged"] or metrics["chosen"])
    print(f"{Path(config.output) / 'reranker'}: {metrics['bytes'] / 1e6:.1f} MB")
    sys.stdout.flush()
    return 0


def _print_figures(figures: dict[str, dict[str, Any]]) -> None:
    for words, rows in figures.items():
        print(f"{words}, first order -> reranked:")
        for name, row in rows.items():
            cells = ", ".join(
                f"{metric} {cell['first']:.3f} -> {cell['reranked']:.3f}" for metric, cell in row["metrics"].items()
            )
            speed = "" if row["ms_per_query"] is None else f", {row['ms_per_query']:.1f} ms per query"
            print(f"{name:>16} {cells}, p {row['metrics']['recall@5']['p_holm']:.3f}{speed}")
