"""Blends: weights between a policy's start and its end, chosen on dev.

Alignment teaches better phrasing and loses some knowledge of which tools are meant. Going part of the way back does not
lose both at the same rate.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import torch

from rewrite.align.collapse import collapse_reason
from rewrite.align.settings import CollapseLimits
from rewrite.sft.callbacks import log_line
from rewrite.sft.dev_eval_trainer import RewriterTask, broadcast_metrics, evaluate_dev
from rewrite.sft.distributed import is_main_process
from rewrite.sft.models import load_policy
from rewrite.sft.run import TrainingResult

Weights = Mapping[str, torch.Tensor]


def choose_blend(
    task: RewriterTask,
    limits: CollapseLimits,
    blends: tuple[float, ...],
    result: TrainingResult,
    start: Mapping[str, float],
) -> TrainingResult:
    """The best of a trained policy and its blends with the start; among equals, the one nearer to the end."""
    if not blends or not result.step:
        return result
    model, started = result.model, time.perf_counter()
    # On the CPU: the GPU still holds the model and its optimizer.
    ended = {name: w.detach().to("cpu", copy=True) for name, w in model.named_parameters() if w.requires_grad}
    begun = start_weights(task, ended)
    scores, best, best_share = {"1": result.best}, result, 1.0
    for share in sorted(set(blends), reverse=True):
        blend(result, begun, ended, share)
        rewrites, metrics = evaluate_dev(task, model, result.tokenizer, False) if is_main_process() else ([], {})
        metrics = broadcast_metrics(metrics)
        score = scores[f"{share:g}"] = metrics[f"eval_{task.metric}"]
        reason = collapse_reason(limits, metrics, start)
        note = f"; {reason}" if reason else ""
        log_line(f"dev with {share:.0%} of the way from the start: {task.metric} {score:.3f}{note}")
        if score > best.best and not reason:
            row = {**metrics, "step": result.step, "blend": share}
            written = {**result.written, result.step: rewrites}
            best = replace(result, best=score, history=[*result.history, row], written=written)
            best_share = share
    blend(result, begun, ended, best_share)
    seconds = best.facts.get("evaluation_seconds", 0.0) + round(time.perf_counter() - started, 1)
    return replace(best, facts=best.facts | {"blend": best_share, "blends": scores, "evaluation_seconds": seconds})


def start_weights(task: RewriterTask, ended: Weights) -> dict[str, torch.Tensor]:
    """The trained weights before the first step. A new adapter changed nothing then: its second matrix was zero."""
    is_new = task.adapter is None and any("lora_" in name for name in ended)
    start = {} if is_new else dict(load_policy(task.base, task.adapter).named_parameters())
    return {
        name: start[name].detach().to(w) if name in start else torch.zeros_like(w) if "lora_B" in name else w
        for name, w in ended.items()
    }


def blend(result: TrainingResult, begun: Weights, ended: Weights, share: float) -> None:
    """Sets the model's weights to `share` of the way from `begun` to `ended`."""
    with torch.no_grad():
        for name, weight in result.model.named_parameters():
            if name in ended:
                weight.copy_(torch.lerp(begun[name], ended[name], share))  # one weight at a time goes to the device
