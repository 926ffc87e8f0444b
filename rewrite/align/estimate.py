"""Estimates memory and time of an alignment that generates answers while training.

In addition to the training there are answers to generate, the reference to evaluate and, for PPO, a second evaluation
of the policy. Every answer is taken to be as long as it may be: shorter ones are faster.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from rewrite.align.settings import GrpoSettings, PpoSettings, RlooSettings
from rewrite.settings import SftSettings
from rewrite.sft.estimate import (
    EFFICIENCY,
    ModelSize,
    TrainingEstimate,
    activations,
    free_memory,
    model_size,
    speed,
    training_flops,
)
from rewrite.speedups.decoding import MAX_ANSWERS

LAYER_SECONDS = 0.0008
"""Seconds per layer and token of all answers, however few: Python and kernel launches."""
RECORDED_SECONDS = 0.0001
"""The same where a whole step is recorded, on a CUDA device."""
OnlineSettings = GrpoSettings | RlooSettings | PpoSettings


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """Numbers of answers that an algorithm generates and learns from."""

    answers: int
    """Answers per query."""
    generated: int
    """Answers generated together."""
    rows: int
    """Answers per training step."""
    passes: int
    """Passes over each answer."""
    scorings: int
    """Further forward passes over each answer: by the reference, and by the policy as it was."""
    in_process: bool
    """True where this process generates them."""
    recorded: bool
    """True where it does so by recorded steps; in half precision with a copy of the model."""
    shared: int = 1
    """Answers of a step that share a prompt, which is read once for them."""


def plan_rollouts(algo: OnlineSettings, settings: SftSettings, recorded: bool, shared: bool = False) -> RolloutPlan:
    """The plan on a device that can (not) record steps, with a model whose answers can (not) share a prompt."""
    batch = settings.batch_size
    if isinstance(algo, PpoSettings):
        generated = min(batch, MAX_ANSWERS) if recorded else batch
        return RolloutPlan(1, generated, min(batch, algo.minibatch_size), algo.passes, 2, True, recorded)
    in_process = algo.engine == "transformers"
    scorings = (algo.beta > 0) + (max(algo.iterations, algo.steps) > 1 or not in_process)
    together = batch * settings.gradient_accumulation_steps * algo.steps
    generated = min(together, MAX_ANSWERS) if recorded else together
    share = min(batch, algo.answers) if shared and not settings.gradient_checkpointing else 1
    recorded = recorded and in_process
    return RolloutPlan(algo.answers, generated, batch, algo.iterations, scorings, in_process, recorded, share)


def estimate_online(
    base: Path,
    settings: SftSettings,
    algo: OnlineSettings,
    prompts: Sequence[int],
    device: torch.device,
    half: bool,
    processes: int = 1,
    shared: bool = False,
) -> TrainingEstimate:
    """Estimates a whole run, per process. `prompts` are their lengths in tokens; answers share them where `shared`."""
    alone = isinstance(algo, PpoSettings) or (half and processes == 1)  # where the others record their steps
    size, plan = model_size(base, settings), plan_rollouts(algo, settings, device.type == "cuda" and alone, shared)
    answers = len(prompts) * settings.epochs * plan.answers
    length, longest = fmean(prompts) / plan.shared + algo.max_tokens, max(prompts) + algo.max_tokens
    prompt = plan.in_process * fmean(prompts) / (plan.answers if plan.recorded else 1)
    read = 2.0 * size.multiplied * answers * (plan.scorings * length + prompt)
    flops = training_flops(size, settings, answers * length * plan.passes) + read
    seconds = flops / (speed(device, half, min(int(plan.rows * length), 8192), size.config) * EFFICIENCY * processes)
    if plan.in_process:
        generation = 2.0 * size.multiplied * answers * algo.max_tokens
        steps = math.ceil(answers / (plan.generated * processes)) * algo.max_tokens
        layers = int(size.config.num_hidden_layers) * (RECORDED_SECONDS if plan.recorded else LAYER_SECONDS)
        slow = speed(device, half, plan.generated, size.config)
        seconds += generation / (slow * EFFICIENCY * processes) + steps * layers
        flops += generation
    estimate = TrainingEstimate(
        size.parameters,
        size.trained,
        size.weights + _reference_bytes(size, algo),
        size.states,
        max(_training_bytes(size, settings, algo, plan, longest, half), rollout_bytes(size, algo, plan, longest, half)),
        free_memory(device),
        flops,
        seconds,
        f"{len(prompts)} queries x {plan.answers} answers of up to {algo.max_tokens} tokens x "
        f"{settings.epochs:g} epochs",
    )
    if plan.in_process:
        return estimate
    return replace(estimate, without="the evaluations, and without the answers, which vLLM generates")


def _reference_bytes(size: ModelSize, algo: OnlineSettings) -> int:
    """Bytes of the reference: a whole model for PPO and for fully trained policies, else a second adapter."""
    if isinstance(algo, PpoSettings):
        return 4 * size.parameters
    return (4 * size.parameters if size.full else 4 * size.trained) if algo.beta > 0 else 0


def _training_bytes(
    size: ModelSize, settings: SftSettings, algo: OnlineSettings, plan: RolloutPlan, longest: int, half: bool
) -> int:
    """Bytes of a training step. PPO keeps the scores of the whole vocabulary; a shared prompt is kept once, but its
    keys and values once per head of every answer."""
    fitting = plan.rows % plan.shared == 0 and plan.answers % plan.shared == 0
    prompts = plan.rows // plan.shared if fitting else min(plan.rows, plan.rows // plan.shared + 2)
    tokens = plan.rows * algo.max_tokens + prompts * (longest - algo.max_tokens)
    kept = activations(size.config, tokens, half, settings.gradient_checkpointing)
    if plan.shared > 1:
        kept += _cache_bytes(size.config, int(size.config.num_attention_heads), plan.rows * longest, half)
    scores = plan.rows * algo.max_tokens * int(size.config.vocab_size) * 12
    return kept + (scores if isinstance(algo, PpoSettings) else 0)


def _cache_bytes(config: Any, heads: int, tokens: int, half: bool) -> int:
    width = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    return 2 * int(config.num_hidden_layers) * heads * width * tokens * (2 if half else 4)


def rollout_bytes(size: ModelSize, algo: OnlineSettings, plan: RolloutPlan, longest: int, half: bool) -> int:
    """Bytes while answers are generated (keys, values and the generating copy) or scored (PPO's minibatch)."""
    config: Any = size.config
    heads = int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
    cache = _cache_bytes(config, heads, longest * plan.generated, half) if plan.in_process else 0
    cache += 2 * size.parameters if plan.recorded and half else 0
    if not isinstance(algo, PpoSettings):
        return cache
    return max(cache, int(config.vocab_size) * plan.rows * algo.max_tokens * (10 if half else 12))
