"""How much memory and time an alignment will take that writes its answers on the way, told before it starts.

Beside the training itself there are answers to write, token by token, the reference to ask and, for PPO, a second
look at the policy. Every answer is taken to be as long as it may be: shorter ones make it faster than told.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from rewrite.align.settings import AlignTraining, GrpoSettings, PpoSettings, RlooSettings
from rewrite.sft.estimate import REACHED, Estimate, Size, activations, free, model_size, speed, training_flops
from rewrite.speedups.decoding import AT_ONCE

LAYER = 0.0008
"""Seconds that a layer takes for one more token of all answers, however few: Python, and the start of every kernel."""
RECORDED = 0.0001
"""The same where a whole step is recorded, on a CUDA device."""
Online = GrpoSettings | RlooSettings | PpoSettings


@dataclass(frozen=True, slots=True)
class _Plan:
    """What an algorithm does with its answers."""

    answers: int
    """Of a query."""
    at_once: int
    """How many are written together."""
    rows: int
    """How many are learned from together."""
    turns: int
    """How often each is learned from."""
    looks: int
    """How often each is looked at beside: by the reference, and by the policy as it was."""
    here: bool
    """Whether this process writes them."""
    recorded: bool
    """Whether it does so by recorded steps, where half precision is asked for by a copy of the model."""
    company: int = 1
    """How many of those learned from together share a prompt, which is read once for them."""


def plan_for(algo: Online, settings: AlignTraining, recorded: bool, shared: bool = False) -> _Plan:
    """What it does on a device that can record steps, or cannot, with a model whose answers can share a prompt, or
    cannot."""
    batch = settings.batch_size
    if isinstance(algo, PpoSettings):
        return _Plan(1, batch, min(batch, algo.minibatch), algo.passes, 2, True, recorded)
    looks = (algo.beta > 0) + (max(algo.iterations, algo.steps) > 1 or algo.by in ("colocate", "server"))
    here = algo.by == "transformers"
    together = batch * settings.accumulate * algo.steps
    at_once = min(together, AT_ONCE) if recorded else together
    company = min(batch, algo.answers) if shared and not settings.gradient_checkpointing else 1
    return _Plan(algo.answers, at_once, batch, algo.iterations, looks, here, recorded and here, company)


def estimate_online(
    base: Path,
    settings: AlignTraining,
    algo: Online,
    prompts: Sequence[int],
    device: torch.device,
    half: bool,
    processes: int = 1,
    shared: bool = False,
) -> Estimate:
    """The estimate of a whole run, for every process; `prompts` are their lengths in tokens, which answers share where
    the model can."""
    alone = isinstance(algo, PpoSettings) or (half and processes == 1)  # where the others record their steps
    size, plan = model_size(base, settings), plan_for(algo, settings, device.type == "cuda" and alone, shared)
    answers = len(prompts) * settings.epochs * plan.answers
    length, longest = fmean(prompts) / plan.company + algo.most_tokens, max(prompts) + algo.most_tokens
    prompt = plan.here * fmean(prompts) / (plan.answers if plan.recorded else 1)
    read = 2.0 * size.multiplied * answers * (plan.looks * length + prompt)
    flops = training_flops(size, settings, answers * length * plan.turns) + read
    fast = speed(device, half, min(int(plan.rows * length), 8192), size.config)
    seconds = flops / (fast * REACHED * processes)
    if plan.here:
        written = 2.0 * size.multiplied * answers * algo.most_tokens
        steps = math.ceil(answers / (plan.at_once * processes)) * algo.most_tokens
        slow = speed(device, half, plan.at_once, size.config)
        layers = int(size.config.num_hidden_layers) * (RECORDED if plan.recorded else LAYER)
        seconds += written / (slow * REACHED * processes) + steps * layers
        flops += written
    found = Estimate(
        size.parameters,
        size.trained,
        size.weights + _reference(size, algo),
        size.states,
        max(_learning(size, settings, algo, plan, longest, half), writing(size, algo, plan, longest, half)),
        free(device),
        flops,
        seconds,
        f"{len(prompts)} queries x {plan.answers} answers of up to {algo.most_tokens} tokens x "
        f"{settings.epochs:g} epochs",
    )
    return found if plan.here else replace(found, without="the evaluations, and without the answers, which vLLM writes")


def _reference(size: Size, algo: Online) -> int:
    """Bytes: a whole model for PPO, and for the others where no adapter can be taken off or kept twice."""
    if isinstance(algo, PpoSettings):
        return 4 * size.parameters
    return (4 * size.parameters if size.full else 4 * size.trained) if algo.beta > 0 else 0


def _learning(size: Size, settings: AlignTraining, algo: Online, plan: _Plan, longest: int, half: bool) -> int:
    """Bytes of a step of training. PPO scores the whole vocabulary for an answer at once, and keeps it for the way
    back; a prompt that is shared lies there once, but its keys and values for every head of every answer."""
    fitting = plan.rows % plan.company == 0 and plan.answers % plan.company == 0
    prompts = plan.rows // plan.company if fitting else min(plan.rows, plan.rows // plan.company + 2)
    tokens = plan.rows * algo.most_tokens + prompts * (longest - algo.most_tokens)
    kept = activations(size.config, tokens, half, settings.gradient_checkpointing)
    if plan.company > 1:
        heads = int(size.config.num_attention_heads)
        kept += _kept(size.config, heads, plan.rows * longest, half)
    scores = plan.rows * algo.most_tokens * int(size.config.vocab_size) * 12
    return kept + (scores if isinstance(algo, PpoSettings) else 0)


def _kept(config: Any, heads: int, tokens: int, half: bool) -> int:
    """Bytes of the keys and values of so many heads."""
    each = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    return 2 * int(config.num_hidden_layers) * heads * each * tokens * (2 if half else 4)


def writing(size: Size, algo: Online, plan: _Plan, longest: int, half: bool) -> int:
    """Bytes while answers are written, their keys and values and the copy that writes them, or looked at, PPO's scores
    of a minibatch's tokens."""
    config: Any = size.config
    heads = int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
    cache = _kept(config, heads, longest * plan.at_once, half) if plan.here else 0
    cache += 2 * size.parameters if plan.recorded and half else 0
    if not isinstance(algo, PpoSettings):
        return cache
    return max(cache, int(config.vocab_size) * plan.rows * algo.most_tokens * (10 if half else 12))
