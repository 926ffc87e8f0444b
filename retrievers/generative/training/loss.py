"""The loss of a batch of lessons, made so that a GPU never waits: all indices are counted out before it is asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from retrievers.generative.decoding.language_model import precision
from retrievers.generative.training.examples import Lesson

ROUND = 8
"""Lengths are multiples of this: attention with a mask is quicker so."""


def lesson_loss(model: Any, batch: Sequence[Lesson], device: str) -> tuple[Tensor, int]:
    """The mean cross entropy of what is to be learned, and how many tokens were read.

    Only the states before learned tokens are multiplied with the vocabulary: most of a lesson is a question. Several
    answers to one question stand behind it side by side and do not see each other, so a question with three tools
    teaches exactly what three lessons would, and is read once.
    """
    grid, pairs, read = laid_out(batch)
    tokens, places, owners = _sent(grid, device)
    sources, targets = _sent(pairs, device)
    mask = _mask(owners)
    if getattr(model.config, "_attn_implementation", "sdpa") != "sdpa":  # others add a mask to the scores
        mask = torch.zeros(mask.shape, device=device).masked_fill(~mask, torch.finfo(torch.bfloat16).min)
    with precision(device):
        states = model.base_model(
            input_ids=tokens, attention_mask=mask, position_ids=places, use_cache=False
        ).last_hidden_state
    # As exact as a search: in half precision two tools that are hard to tell apart have the same score.
    logits = model.get_output_embeddings()(states.flatten(0, 1).index_select(0, sources).float())
    return functional.cross_entropy(logits, targets), read


def laid_out(batch: Sequence[Lesson]) -> tuple[np.ndarray, np.ndarray, int]:
    """(3, lessons, longest): tokens, their places, and the answer each belongs to, 0 being what all answers see.

    Then (2, learned): the place in the batch of the state that says a learned token, and the token. Padding is on the
    right, where nothing looks at it.
    """
    longest = max(len(lesson.tokens) for lesson in batch)
    longest = -(-longest // ROUND) * ROUND
    grid = np.zeros((3, len(batch), longest), dtype=np.int64)
    sources: list[np.ndarray] = []
    targets: list[np.ndarray] = []
    for row, lesson in enumerate(batch):
        tokens, learned = np.array(lesson.tokens), np.array(lesson.learned)
        places = np.arange(len(tokens))
        before, owners = places - 1, np.zeros_like(places)
        if lesson.branches:
            first = lesson.branches[0]
            owners[list(lesson.branches)] = 1
            owners = owners.cumsum()
            starts = np.array([0, *lesson.branches])[owners]
            before[list(lesson.branches)] = first - 1  # an answer begins where the question ends
            places = np.where(owners > 0, places - starts + first, places)
        grid[:, row, : len(tokens)] = tokens, places, owners
        wanted = np.flatnonzero(learned & (before >= 0))
        sources.append(row * longest + before[wanted])
        targets.append(tokens[wanted])
    pairs = np.stack([np.concatenate(sources), np.concatenate(targets)])
    return grid, pairs, sum(len(lesson.tokens) for lesson in batch)


def _mask(owners: Tensor) -> Tensor:
    """(lessons, 1, longest, longest): what each token sees: the question, and of the answers its own, so far."""
    asked, seen = owners[:, :, None], owners[:, None, :]
    order = torch.arange(owners.shape[1], device=owners.device)
    return (((seen == 0) | (seen == asked)) & (order[:, None] >= order)).unsqueeze(1)


def _sent(array: np.ndarray, device: str) -> Tensor:
    """On the device; on its way there while the next thing is done."""
    held = torch.from_numpy(array)
    return held.pin_memory().to(device, non_blocking=True) if device.startswith("cuda") else held.to(device)
