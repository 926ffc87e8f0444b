"""Rows of prompt and answer, turned so that all their padding stands behind: they then train without a mask.

TRL pads prompts on the left, so that answers begin in one column, and answers on the right. With a mask PyTorch takes
slow attention, or one whose gradient was no number for some models (docs/experiments.md). A row that begins at once
needs none: no token looks at what stands behind it, and of that nothing is scored.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rewrite.sft.run import needs_mask

SCORED = ("log_probs", "entropy")
"""What TRL's head tells of every token but the first."""


def turn_rows(trainer: Any) -> None:
    """From now on the trainer's model scores its answers so, and its reference too: both see a token in the same place.
    Whatever else asks them, to generate say, keeps its mask."""
    if needs_mask(trainer):
        return
    for model in (trainer.model, trainer.ref_model):
        if model is not None:
            _turn_rows(model)


def _turn_rows(model: Any) -> None:
    leading: list[Tensor] = []

    def before(module: Any, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        leading.clear()
        mask = named.get("attention_mask")
        if not (named.get("fused_lm_head") and isinstance(mask, Tensor)):
            return args, named
        leading.append(mask.long().argmax(1))
        turned = {name: turn(named[name], leading[-1]) for name in ("input_ids", "labels")}
        return args, {**named, **turned, "attention_mask": None}

    def after(module: Any, args: tuple[Any, ...], named: dict[str, Any], output: Any) -> Any:
        if leading:
            back = -leading.pop()
            for name in SCORED:
                if (scores := getattr(output, name)) is not None:
                    setattr(output, name, turn(scores, back))
        return output

    model.register_forward_pre_hook(before, with_kwargs=True)
    model.register_forward_hook(after, with_kwargs=True)


def turn(rows: Tensor, by: Tensor) -> Tensor:
    """Every row so many places to the left; what falls out in front comes in behind."""
    width = rows.shape[1]
    places = torch.arange(width, device=rows.device)
    return rows.gather(1, (places + by[:, None]) % width)
