"""The rows that new tokens begin with.

Before training a token is the mean of the tokens of its tool's name, in what the model reads and in what makes it
speak. A token that comes after training has to hold its own against trained ones: it is made from what the model is
about to say when it reads the tool's document. That is a mixture of the tokens of tools it knows, moved just far
enough along the model's state that this document calls for the new token as strongly as other documents call for
theirs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from retrievers.generative.language_model import LanguageModel


def from_words(rows: Tensor, texts: Sequence[Sequence[int]]) -> Tensor:
    """(texts, dimensions): the mean row of each text's tokens; of all tokens where a text has none."""
    every = rows.float().mean(dim=0)
    found = [rows[list(tokens)].float().mean(dim=0) if tokens else every for tokens in texts]
    return torch.stack(found) if found else rows.new_zeros(0, rows.shape[1]).float()


def from_documents(
    language: LanguageModel, documents: Sequence[Sequence[int]], known: Sequence[int], own: float
) -> Tensor:
    """(documents, dimensions): output rows of tokens for these documents, given as prompts.

    `known` are the tokens of trained tools, `own` is how strongly those are called for by their own documents.
    """
    states = language.last_states(documents)  # (documents, dimensions)
    rows = language.outputs[list(known)].float()  # (tools, dimensions)
    mixed = torch.softmax(states @ rows.T, dim=-1) @ rows
    missing = own - (mixed * states).sum(dim=-1, keepdim=True)
    return mixed + missing * states / states.square().sum(dim=-1, keepdim=True)


def own_strength(language: LanguageModel, documents: Sequence[Sequence[int]], tokens: Sequence[int]) -> float:
    """The mean logit of tools' tokens after their own documents."""
    states, rows = language.last_states(documents), language.outputs[list(tokens)].float()
    return float((states * rows).sum(dim=-1).mean())


def as_array(rows: Tensor) -> np.ndarray:
    """For the index."""
    found: np.ndarray = rows.detach().cpu().numpy().astype(np.float32)
    return found
