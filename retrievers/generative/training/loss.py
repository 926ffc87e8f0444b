"""The loss of a batch of examples. All indices are computed on the CPU first, so that a GPU never waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from retrievers.generative.decoding.language_model import precision
from retrievers.generative.training.examples import TokenExample

LENGTH_STEP = 8
"""Lengths are rounded up to multiples of this: masked attention is faster then."""


def batch_loss(model: Any, batch: Sequence[TokenExample], device: str) -> tuple[Tensor, int]:
    """The mean cross entropy of the learned tokens, and the number of tokens read.

    Only the states before learned tokens are multiplied with the vocabulary, because most of an example is a prompt.
    Several answers to one prompt follow it side by side and do not see each other: a query with three tools teaches
    exactly what three examples would, and is read once.
    """
    grid, pairs, read = lay_out(batch)
    tokens, positions, owners = _to_device(grid, device)
    sources, targets = _to_device(pairs, device)
    mask = _attention_mask(owners)
    if getattr(model.config, "_attn_implementation", "sdpa") != "sdpa":  # others add the mask to the scores
        mask = torch.zeros(mask.shape, device=device).masked_fill(~mask, torch.finfo(torch.bfloat16).min)
    with precision(device):
        states = model.base_model(
            input_ids=tokens, attention_mask=mask, position_ids=positions, use_cache=False
        ).last_hidden_state
    # In single precision, as in search: in half precision two similar tools would have the same score.
    logits = model.get_output_embeddings()(states.flatten(0, 1).index_select(0, sources).float())
    return functional.cross_entropy(logits, targets), read


def lay_out(batch: Sequence[TokenExample]) -> tuple[np.ndarray, np.ndarray, int]:
    """(3, examples, longest): tokens, their positions, and the answer each belongs to, 0 being the prompt.

    Then (2, learned): the index in the flat batch of the state that predicts a learned token, and the token. Padding is
    on the right, where no token attends to it.
    """
    longest = max(len(example.tokens) for example in batch)
    longest = -(-longest // LENGTH_STEP) * LENGTH_STEP
    grid = np.zeros((3, len(batch), longest), dtype=np.int64)
    sources: list[np.ndarray] = []
    targets: list[np.ndarray] = []
    for row, example in enumerate(batch):
        tokens, learned = np.array(example.tokens), np.array(example.learned)
        positions = np.arange(len(tokens))
        before, owners = positions - 1, np.zeros_like(positions)
        if example.branches:
            first = example.branches[0]
            owners[list(example.branches)] = 1
            owners = owners.cumsum()
            starts = np.array([0, *example.branches])[owners]
            before[list(example.branches)] = first - 1  # every answer follows the end of the prompt
            positions = np.where(owners > 0, positions - starts + first, positions)
        grid[:, row, : len(tokens)] = tokens, positions, owners
        wanted = np.flatnonzero(learned & (before >= 0))
        sources.append(row * longest + before[wanted])
        targets.append(tokens[wanted])
    pairs = np.stack([np.concatenate(sources), np.concatenate(targets)])
    return grid, pairs, sum(len(example.tokens) for example in batch)


def _attention_mask(owners: Tensor) -> Tensor:
    """(examples, 1, longest, longest): a token attends to the prompt and to its own answer, up to itself."""
    reader, seen = owners[:, :, None], owners[:, None, :]
    order = torch.arange(owners.shape[1], device=owners.device)
    return (((seen == 0) | (seen == reader)) & (order[:, None] >= order)).unsqueeze(1)


def _to_device(array: np.ndarray, device: str) -> Tensor:
    """Copy without waiting for the GPU."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.startswith("cuda") else tensor.to(device)
