"""Decoding by transformers: one forward pass per step, with the keys and values of earlier tokens cached."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from retrievers.generative.decoding.language_model import LanguageModel, pad_left, position_ids, precision


class ExtendedVocabulary:
    """The model's token embeddings and, after them, those of tokens added since its training."""

    def __init__(
        self, language: LanguageModel, inputs: np.ndarray | None = None, outputs: np.ndarray | None = None
    ) -> None:
        none = np.zeros((0, language.hidden_size), np.float32)
        self.language = language
        self._inputs, self._outputs = (
            torch.from_numpy(none if rows is None else rows).float().to(language.device) for rows in (inputs, outputs)
        )

    def embed(self, tokens: Tensor) -> Tensor:
        """The input embeddings of tokens."""
        size, scale = self.language.vocab_size, self.language.scale
        if not len(self._inputs):
            return self.language.inputs[tokens] * scale
        is_new = (tokens >= size).unsqueeze(-1)
        new = self._inputs[(tokens - size).clamp(min=0)]
        return torch.where(is_new, new, self.language.inputs[tokens.clamp(max=size - 1)].float()) * scale

    def logits(self, states: Tensor, tokens: Tensor) -> Tensor:
        """(rows, tokens): the logits of these tokens."""
        size = self.language.vocab_size
        rows = self.language.outputs[tokens.clamp(max=size - 1)].float()
        is_new = tokens >= size
        if len(self._outputs):
            rows[is_new] = self._outputs[tokens[is_new] - size]
        logits = states @ rows.T
        bias = self.language.bias
        return logits if bias is None else logits + bias[tokens.clamp(max=size - 1)].masked_fill(is_new, 0.0)

    def first_logits(self, states: Tensor, count: int) -> Tensor:
        """(rows, count): the logits of the model's first tokens."""
        logits, bias = states @ self.language.outputs[:count].float().T, self.language.bias
        return logits if bias is None else logits + bias[:count]

    def log_normalizer(self, states: Tensor) -> Tensor:
        """(rows,): the log of the sum of exp(logit) over the whole vocabulary."""
        old = torch.logsumexp(self.first_logits(states, self.language.vocab_size), dim=-1)
        if not len(self._outputs):
            return old
        return torch.logaddexp(old, torch.logsumexp(states @ self._outputs.T, dim=-1))


class LocalDecoder:
    """Decodes one batch of prompts; implements `Decoder`."""

    def __init__(self, vocabulary: ExtendedVocabulary, prompts: Sequence[Sequence[int]], over_all_tokens: bool) -> None:
        """`over_all_tokens`: probabilities are shares of all tokens, not of those that may follow."""
        self._vocabulary, self._over_all_tokens = vocabulary, over_all_tokens
        self._device = vocabulary.language.device
        tokens, self._mask = pad_left(prompts, self._device)
        self._step(vocabulary.embed(tokens), position_ids(self._mask), None)

    def _step(self, embedded: Tensor, positions: Tensor, cache: object | None) -> None:
        with torch.no_grad(), precision(self._device):
            out = self._vocabulary.language.model.base_model(
                inputs_embeds=embedded,
                attention_mask=self._mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
            )
        self._cache, self._states = out.past_key_values, out.last_hidden_state[:, -1].float()

    def log_probs(self, starts: np.ndarray, tokens: np.ndarray, top: int) -> np.ndarray:
        """The values of all tokens; `top` is not used."""
        different, index = _unique_tokens(starts, tokens)
        rows = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        with torch.no_grad():
            every = self._vocabulary.logits(self._states, torch.from_numpy(different).to(self._device))
            logits: np.ndarray = every.cpu().numpy().astype(np.float64)[rows, index]
            if self._over_all_tokens:
                sums: np.ndarray = self._vocabulary.log_normalizer(self._states).cpu().numpy().astype(np.float64)
            else:
                largest = np.maximum.reduceat(logits, starts[:-1])
                sums = largest + np.log(np.add.reduceat(np.exp(logits - largest[rows]), starts[:-1]))
        log_probs: np.ndarray = logits - sums[rows]
        return log_probs

    def likeliest(self, count: int) -> np.ndarray:
        """The likeliest token of each row, among the first `count` of the vocabulary."""
        with torch.no_grad():
            logits = self._vocabulary.first_logits(self._states, count)
        tokens: np.ndarray = logits.argmax(dim=-1).cpu().numpy()
        return tokens

    def advance(self, rows: np.ndarray, tokens: np.ndarray) -> None:
        chosen = torch.from_numpy(rows).to(self._device)
        self._cache.reorder_cache(chosen)
        kept = self._mask[chosen]
        self._mask = torch.cat([kept, kept.new_ones(len(rows), 1)], dim=1)
        new = torch.from_numpy(tokens).to(self._device).unsqueeze(1)
        self._step(self._vocabulary.embed(new), position_ids(self._mask)[:, -1:], self._cache)


def _unique_tokens(starts: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The different tokens and the index of each token in them; fast where all rows have the same, as at the root."""
    width, count = int(starts[1]), len(starts) - 1
    if count > 1 and len(tokens) == width * count and (tokens.reshape(count, width) == tokens[:width]).all():
        different, index = np.unique(tokens[:width], return_inverse=True)
        return different, np.tile(index, count)
    return np.unique(tokens, return_inverse=True)
