"""Initial embeddings of new tokens.

Before training, a token is the mean of the tokens of its tool's name, in the input and the output embeddings. A token
that is added after training must compete with trained ones: it is made from the model's state after reading the tool's
document. That is a mixture of the tokens of known tools, moved just far enough along the state that this document
predicts the new token as strongly as other documents predict theirs.

Among tokens that many tools start with (ToolWeaver), such a mixture would be predicted whenever one of those is: the
new tool would rank above its whole branch. There a token starts as a mean one and is moved so that its document
predicts it as strongly, but the known tools' documents as little as possible.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from retrievers.generative.decoding.language_model import LanguageModel

RIDGE = 1.0
"""Relative to the mean square of a dimension: there may be fewer documents than dimensions."""


def mean_rows(rows: Tensor, texts: Sequence[Sequence[int]]) -> Tensor:
    """(texts, dimensions): the mean row of each text's tokens; of all tokens where a text has none."""
    overall = rows.float().mean(dim=0)
    means = [rows[list(tokens)].float().mean(dim=0) if tokens else overall for tokens in texts]
    return torch.stack(means) if means else rows.new_zeros(0, rows.shape[1]).float()


def rows_from_documents(
    language: LanguageModel, prompts: Sequence[Sequence[int]], known: Sequence[int], own_logit: float
) -> Tensor:
    """(prompts, dimensions): output rows of new tokens, one per document, given as prompts.

    `known` are the tokens of trained tools; `own_logit` is the mean logit of those after their own documents.
    """
    states = language.last_states(prompts)  # (prompts, dimensions)
    rows = language.outputs[list(known)].float()  # (tools, dimensions)
    mixed = torch.softmax(states @ rows.T, dim=-1) @ rows
    missing = own_logit - (mixed * states).sum(dim=-1, keepdim=True)
    return mixed + missing * states / states.square().sum(dim=-1, keepdim=True)


def rows_beside_branches(
    language: LanguageModel,
    prompts: Sequence[Sequence[int]],
    known: Sequence[int],
    own_logit: float,
    moment: np.ndarray,
) -> Tensor:
    """`rows_from_documents` where a known token starts the codes of many tools.

    `moment`: `second_moment` of the known tools' documents. Of all moves of a mean row that give a document that logit,
    take the one of least mean square over the known documents: ridge regression.
    """
    states = language.last_states(prompts)  # (prompts, dimensions)
    row = language.outputs[list(known)].float().mean(dim=0)
    square = torch.from_numpy(moment).to(states)
    square = square + RIDGE * square.diagonal().mean() * torch.eye(len(square)).to(states)
    moves = torch.linalg.solve(square, states.T).T
    missing = own_logit - (row * states).sum(dim=-1, keepdim=True)
    moved: Tensor = row + missing * moves / (moves * states).sum(dim=-1, keepdim=True)
    return moved


def second_moment(states: Tensor) -> Tensor:
    """(dimensions, dimensions): the mean of the states' outer products."""
    return states.T @ states / len(states)


def mean_own_logit(language: LanguageModel, states: Tensor, tokens: Sequence[int]) -> float:
    """The mean logit of tools' tokens, given the states after their own documents."""
    rows, bias = language.outputs[list(tokens)].float(), language.bias
    return float((states * rows).sum(dim=-1).mean() + (0.0 if bias is None else bias[list(tokens)].mean()))


def to_numpy(rows: Tensor) -> np.ndarray:
    """Single-precision array of a tensor."""
    array: np.ndarray = rows.detach().cpu().numpy().astype(np.float32)
    return array
