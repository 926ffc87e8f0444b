"""`rewrite-train encoder`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from pipelines import config as configs
from pipelines.context import make_context
from pipelines.train.encoder.choice import BlendScore
from pipelines.train.encoder.evaluation import CHOICE
from pipelines.train.encoder.run import choose_blend, describe, final, leave_out
from pipelines.train.encoder.settings import EncoderConfig
from retrievers.errors import BadInput


def run_encoder(arguments: argparse.Namespace) -> int:
    config = configs.load_from_args(arguments, EncoderConfig)
    if config is None:
        for line in describe(configs.load(arguments.config, EncoderConfig, arguments.set)):
            print(f"# {line}")
        return 0
    context = make_context(arguments.device, True)
    if arguments.leave_one_out and len(config.groups) < 2:
        raise BadInput("--leave-one-out needs at least two groups")
    groups = [config.leave_out] if config.leave_out else list(config.groups) if arguments.leave_one_out else []
    for group in groups:
        print(leave_out(config, group, context) / "metrics.json")
    if groups:
        _print_choice(choose_blend(config))
        return 0
    metrics = final(config, context)
    _print_judged(metrics)
    print(f"{Path(config.output) / 'encoder'}: {metrics['bytes'] / 1e6:.1f} MB, blend {metrics['blend']:g}")
    sys.stdout.flush()
    return 0


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
