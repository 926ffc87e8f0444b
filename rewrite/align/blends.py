"""Part of the way: weights between where a policy started and where it ended, chosen on dev.

What alignment teaches, how a tool is said best, comes with a drift of what was known before: which tools are meant.
Both are not lost at the same rate on the way back.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import torch

from rewrite.align.collapse import collapsed
from rewrite.align.settings import Limits
from rewrite.sft.callbacks import say
from rewrite.sft.dev_eval_trainer import Task, heard, looked_at
from rewrite.sft.distributed import first
from rewrite.sft.run import Trained, load_policy
from rewrite.types import Rewrite

Weights = Mapping[str, torch.Tensor]


def blended(
    task: Task, limits: Limits, blends: tuple[float, ...], trained: Trained, start: Mapping[str, float]
) -> Trained:
    """The best of a trained policy and of mixtures of it with its start; of equals, the one that went further."""
    if not blends or not trained.step:
        return trained
    model, started = trained.model, time.perf_counter()
    # Beside the model, which a GPU still holds with all that trained it.
    ended = {name: each.detach().to("cpu", copy=True) for name, each in model.named_parameters() if each.requires_grad}
    begun = beginning(task, ended)
    scores, best, share_of_best = {"1": trained.best}, trained, 1.0
    for share in sorted(set(blends), reverse=True):
        mix(trained, begun, ended, share)
        rewrites, figures = _judged(task, trained)
        score = figures[f"eval_{task.metric}"]
        scores[f"{share:g}"] = score
        why = collapsed(limits, figures, start)
        say(f"dev with {share:.0%} of the way from the start: {task.metric} {score:.3f}" + (f"; {why}" if why else ""))
        if score > best.best and not why:
            row = {**figures, "step": trained.step, "blend": share}
            written = {**trained.written, trained.step: rewrites}
            best = replace(trained, best=score, history=[*trained.history, row], written=written)
            share_of_best = share
    mix(trained, begun, ended, share_of_best)
    judged = best.facts.get("evaluation_seconds", 0.0) + round(time.perf_counter() - started, 1)
    return replace(best, facts=best.facts | {"blend": share_of_best, "blends": scores, "evaluation_seconds": judged})


def beginning(task: Task, ended: Weights) -> dict[str, torch.Tensor]:
    """The weights that these were before the first step. An adapter that was new then changed nothing: it is as it
    ended, with nothing in its second matrix."""
    fresh = task.adapter is None and any("lora_" in name for name in ended)
    start = {} if fresh else dict(load_policy(task.base, task.adapter).named_parameters())
    return {
        name: start[name].detach().to(each)
        if name in start
        else torch.zeros_like(each) if "lora_B" in name else each
        for name, each in ended.items()
    }  # fmt: skip


def mix(trained: Trained, begun: Weights, ended: Weights, share: float) -> None:
    """Leaves in the model the mixture of both, `share` of it what came out."""
    with torch.no_grad():
        for name, each in trained.model.named_parameters():
            if name in ended:
                each.copy_(torch.lerp(begun[name], ended[name], share))  # one weight at a time goes to the device


def _judged(task: Task, trained: Trained) -> tuple[list[Rewrite], dict[str, float]]:
    rewrites, figures = looked_at(task, trained.model, trained.tokenizer, False) if first() else ([], {})
    return rewrites, heard(figures)
