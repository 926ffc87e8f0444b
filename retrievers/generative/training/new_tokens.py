"""The rows that new tokens begin with.

Before training a token is the mean of the tokens of its tool's name, in what the model reads and in what makes it
speak. A token that comes after training has to hold its own against trained ones: it is made from what the model is
about to say when it reads the tool's document. That is a mixture of the tokens of tools it knows, moved just far
enough along the model's state that this document calls for the new token as strongly as other documents call for
theirs.

Beside tokens that many tools begin with, such a mixture would be called for by whatever calls for one of those: a
newcomer would stand before everybody of its branch. There a token begins as a mean one, and is moved to where its
document calls for it as strongly, but the known tools' documents as little as can be.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from retrievers.generative.decoding.language_model import LanguageModel

RIDGE = 1.0
"""Of the mean square of a dimension: there may be fewer documents than dimensions."""


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


def beside_branches(
    language: LanguageModel, documents: Sequence[Sequence[int]], known: Sequence[int], own: float, spread: np.ndarray
) -> Tensor:
    """As `from_documents`, where a known token is the beginning of many tools.

    `spread`: what `spread_of` tells of the known tools' documents. Of all moves of a mean row that make a document call
    for it with `own`, the one of least mean square over the known documents, with a ridge: least squares has it in one
    line.
    """
    states = language.last_states(documents)  # (documents, dimensions)
    row = language.outputs[list(known)].float().mean(dim=0)
    square = torch.from_numpy(spread).to(states)
    square = square + RIDGE * square.diagonal().mean() * torch.eye(len(square)).to(states)
    moves = torch.linalg.solve(square, states.T).T
    missing = own - (row * states).sum(dim=-1, keepdim=True)
    found: Tensor = row + missing * moves / (moves * states).sum(dim=-1, keepdim=True)
    return found


def spread_of(states: Tensor) -> Tensor:
    """(dimensions, dimensions): the mean of the states' outer products."""
    return states.T @ states / len(states)


def own_strength(language: LanguageModel, states: Tensor, tokens: Sequence[int]) -> float:
    """The mean logit of tools' tokens, given the states after their own documents."""
    rows, bias = language.outputs[list(tokens)].float(), language.bias
    return float((states * rows).sum(dim=-1).mean() + (0.0 if bias is None else bias[list(tokens)].mean()))


def as_array(rows: Tensor) -> np.ndarray:
    """For the index."""
    found: np.ndarray = rows.detach().cpu().numpy().astype(np.float32)
    return found
