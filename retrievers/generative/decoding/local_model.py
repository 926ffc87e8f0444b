"""Answers in the making, by transformers: one forward pass a step, with the keys and values of what was said kept."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from retrievers.generative.decoding.language_model import LanguageModel, padded, positions, precision


class Vocabulary:
    """The model's rows and, after them, those of tokens that came after its training."""

    def __init__(self, language: LanguageModel, inputs: np.ndarray, outputs: np.ndarray) -> None:
        self.language = language
        self._inputs = torch.from_numpy(inputs).float().to(language.device)
        self._outputs = torch.from_numpy(outputs).float().to(language.device)
        self.count = language.size + len(inputs)

    def read(self, tokens: Tensor) -> Tensor:
        """What the model reads for tokens."""
        size, scale = self.language.size, self.language.scale
        if not len(self._inputs):
            return self.language.inputs[tokens] * scale
        late = (tokens >= size).unsqueeze(-1)
        new = self._inputs[(tokens - size).clamp(min=0)]
        return torch.where(late, new, self.language.inputs[tokens.clamp(max=size - 1)].float()) * scale

    def logits(self, states: Tensor, tokens: Tensor) -> Tensor:
        """(rows, tokens): how strongly each token is called for."""
        size = self.language.size
        rows = self.language.outputs[tokens.clamp(max=size - 1)].float()
        late = tokens >= size
        if len(self._outputs):
            rows[late] = self._outputs[tokens[late] - size]
        found = states @ rows.T
        bias = self.language.bias
        return found if bias is None else found + bias[tokens.clamp(max=size - 1)].masked_fill(late, 0.0)

    def words(self, states: Tensor, count: int) -> Tensor:
        """(rows, count): how strongly each of the model's first tokens is called for."""
        found, bias = states @ self.language.outputs[:count].float().T, self.language.bias
        return found if bias is None else found + bias[:count]

    def weigh(self, states: Tensor) -> Tensor:
        """(rows,): the logarithm of the sum over the whole vocabulary."""
        old = torch.logsumexp(self.words(states, self.language.size), dim=-1)
        if not len(self._outputs):
            return old
        return torch.logaddexp(old, torch.logsumexp(states @ self._outputs.T, dim=-1))


class LocalRun:
    """One batch of prompts on its way."""

    def __init__(self, vocabulary: Vocabulary, prompts: Sequence[Sequence[int]], whole: bool) -> None:
        """`whole`: probabilities are shares of all tokens, not of those that may follow."""
        self._vocabulary, self._whole = vocabulary, whole
        self._device = vocabulary.language.device
        tokens, self._mask = padded(prompts, self._device)
        self._step(vocabulary.read(tokens), positions(self._mask), None)

    def _step(self, embedded: Tensor, places: Tensor, cache: object | None) -> None:
        with torch.no_grad(), precision(self._device):
            out = self._vocabulary.language.model.base_model(
                inputs_embeds=embedded,
                attention_mask=self._mask,
                position_ids=places,
                past_key_values=cache,
                use_cache=True,
            )
        self._cache, self._states = out.past_key_values, out.last_hidden_state[:, -1].float()

    def scores(self, starts: np.ndarray, tokens: np.ndarray, most: int) -> np.ndarray:
        """As `Run.scores`; all of them are told."""
        different, place = _places(starts, tokens)
        rows = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        with torch.no_grad():
            every = self._vocabulary.logits(self._states, torch.from_numpy(different).to(self._device))
            logits: np.ndarray = every.cpu().numpy().astype(np.float64)[rows, place]
            if self._whole:
                sums: np.ndarray = self._vocabulary.weigh(self._states).cpu().numpy().astype(np.float64)
            else:
                most_likely = np.maximum.reduceat(logits, starts[:-1])
                sums = most_likely + np.log(np.add.reduceat(np.exp(logits - most_likely[rows]), starts[:-1]))
        told: np.ndarray = logits - sums[rows]
        return told

    def likeliest(self, words: int) -> np.ndarray:
        """The likeliest token of each row, among the first so many of the vocabulary."""
        with torch.no_grad():
            logits = self._vocabulary.words(self._states, words)
        found: np.ndarray = logits.argmax(dim=-1).cpu().numpy()
        return found

    def advance(self, rows: np.ndarray, tokens: np.ndarray) -> None:
        """As `Run.advance`."""
        chosen = torch.from_numpy(rows).to(self._device)
        self._cache.reorder_cache(chosen)
        kept = self._mask[chosen]
        self._mask = torch.cat([kept, kept.new_ones(len(rows), 1)], dim=1)
        said = torch.from_numpy(tokens).to(self._device).unsqueeze(1)
        self._step(self._vocabulary.read(said), positions(self._mask)[:, -1:], self._cache)


def _places(starts: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The different tokens, and which of them each is; quick where all rows have the same, as at the root."""
    width, count = int(starts[1]), len(starts) - 1
    if count > 1 and len(tokens) == width * count and (tokens.reshape(count, width) == tokens[:width]).all():
        different, place = np.unique(tokens[:width], return_inverse=True)
        return different, np.tile(place, count)
    return np.unique(tokens, return_inverse=True)
