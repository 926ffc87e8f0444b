"""Right padding: rows of prompt and answer are rotated so that all padding is at the end, and train without a mask.

TRL pads prompts on the left, so that answers begin in one column, and answers on the right. With a mask PyTorch takes
slow attention, or one whose gradient was NaN for some models (docs/experiments.md). A row that begins at once needs no
mask: no token attends to what follows it, and padding is not scored.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rewrite.speedups.switch import speedups_enabled

SCORES = ("log_probs", "entropy")
"""Outputs of TRL's head per token but the first."""
AMPERE = (8, 0)


def needs_mask(trainer: Any) -> bool:
    """True where training needs the mask of its padding: before Ampere PyTorch would compute a whole attention matrix
    per head, and in a mixture of experts padding would count in the balance."""
    aux_loss = bool(getattr(trainer, "aux_loss_enabled", False))
    return not speedups_enabled() or is_before_ampere(trainer.args.device) or aux_loss


def is_before_ampere(device: torch.device) -> bool:
    """True for an NVIDIA card older than Ampere."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) < AMPERE


def drop_padding_mask(trainer: Any) -> None:
    """Makes a trainer whose rows are padded on the right train without the mask of the padding.

    No token attends to padding on the right, and it has no loss, so the gradient is the same. Without a mask PyTorch
    takes an attention that needs neither the memory nor the time of a whole matrix per head.
    """
    if needs_mask(trainer):
        return

    def before(module: Any, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return args, {**named, "attention_mask": None} if module.training else named

    trainer.model.register_forward_pre_hook(before, with_kwargs=True)


def pad_right(trainer: Any) -> None:
    """Makes a trainer's model and reference score rows padded on the right. Other calls, such as generation, keep their
    mask."""
    if needs_mask(trainer):
        return
    for model in (trainer.model, trainer.ref_model):
        if model is not None:
            _pad_right(model)


def _pad_right(model: Any) -> None:
    offsets: list[Tensor] = []

    def before(module: Any, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        offsets.clear()
        mask = named.get("attention_mask")
        if not (named.get("fused_lm_head") and isinstance(mask, Tensor)):
            return args, named
        offsets.append(mask.long().argmax(1))
        rotated = {name: rotate_rows(named[name], offsets[-1]) for name in ("input_ids", "labels")}
        return args, {**named, **rotated, "attention_mask": None}

    def after(module: Any, args: tuple[Any, ...], named: dict[str, Any], output: Any) -> Any:
        if offsets:
            back = -offsets.pop()
            for name in SCORES:
                if (scores := getattr(output, name)) is not None:
                    setattr(output, name, rotate_rows(scores, back))
        return output

    model.register_forward_pre_hook(before, with_kwargs=True)
    model.register_forward_hook(after, with_kwargs=True)


def rotate_rows(rows: Tensor, by: Tensor) -> Tensor:
    """Rotates each row left by `by`."""
    width = rows.shape[1]
    columns = torch.arange(width, device=rows.device)
    return rows.gather(1, (columns + by[:, None]) % width)
