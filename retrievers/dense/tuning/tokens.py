"""Texts that are tokenized once and encoded often; where only the last layers are trained, the others run once too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Sequential, functional

CHUNK = 256  # texts per forward pass; of similar length, so that little is padding


class TokenizedTexts:
    """The tokens of texts. A model whose features are no padded rows is tokenized anew for every batch."""

    def __init__(self, model: Any, texts: Sequence[str], prompt: str, device: str) -> None:
        """`prompt`: query or document, the name of the model's prompt for these texts."""
        self._preprocess, self._device = model.preprocess, device
        before = (getattr(model, "prompts", None) or {}).get(prompt) or ""
        self._texts = [before + text for text in texts]
        self._by_length = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        self._rows: list[dict[str, Tensor]] = [{} for _ in texts]
        self._padding: dict[str, int] = {}
        for start in range(0, len(texts), CHUNK):
            if not self._tokenize(self._by_length[start : start + CHUNK]):
                self._rows = []
                break

    def __len__(self) -> int:
        return len(self._texts)

    def _tokenize(self, indices: Sequence[int]) -> bool:
        """Keep the tokens of some texts; False where they are not rows padded on the right."""
        features = _tensors(self._preprocess([self._texts[index] for index in indices]))
        mask = features.get("attention_mask")
        if mask is None or mask.dim() != 2 or any(value.shape != mask.shape for value in features.values()):
            return False
        lengths = mask.sum(dim=1).tolist()
        if not bool((mask == (torch.arange(mask.shape[1]) < mask.sum(dim=1, keepdim=True))).all()):
            return False
        if not bool(mask.all()):
            self._padding |= {name: int(value[mask == 0][0]) for name, value in features.items()}
        for row, index in enumerate(indices):
            self._rows[index] = {name: value[row, : lengths[row]].clone() for name, value in features.items()}
        return True

    def batch(self, indices: Sequence[int]) -> dict[str, Tensor]:
        """The features of some texts, on the device."""
        if not self._rows:
            features = _tensors(self._preprocess([self._texts[index] for index in indices]))
        else:
            rows = [self._rows[index] for index in indices]
            features = {
                name: torch.nn.utils.rnn.pad_sequence([row[name] for row in rows], True, self._padding.get(name, 0))
                for name in rows[0]
            }
        return {name: value.to(self._device, non_blocking=True) for name, value in features.items()}

    def encode(self, model: Any, indices: Sequence[int] | None = None, chunk: int = CHUNK) -> Tensor:
        """Unit vectors (texts, dimensions) of some texts, or of all; with gradient where gradients are on."""
        chosen = range(len(self._texts)) if indices is None else indices
        order = sorted(range(len(chosen)), key=lambda i: len(self._texts[chosen[i]]))
        parts = [
            model(self.batch([chosen[i] for i in order[start : start + chunk]]))["sentence_embedding"].float()
            for start in range(0, len(order), chunk)
        ]
        back = torch.empty(len(order), dtype=torch.long)
        back[torch.tensor(order)] = torch.arange(len(order))
        return functional.normalize(torch.cat(parts), dim=-1)[back.to(parts[0].device)]


class PooledTexts(TokenizedTexts):
    """Texts behind the layers that stay as they are."""

    def __init__(self, model: Any, texts: Sequence[str], prompt: str, device: str) -> None:
        super().__init__(model, texts, prompt, device)
        pooled = _pool_on_cpu(model[0], self._rows) if device == "cpu" else None
        self._pooled = self._pool(model[0]) if pooled is None else pooled

    def _pool(self, module: Any) -> dict[str, Tensor]:
        order = sorted(range(len(self)), key=lambda index: len(self._texts[index]))
        with torch.no_grad():
            parts = [
                module.pool(super(PooledTexts, self).batch(order[i : i + CHUNK])) for i in range(0, len(order), CHUNK)
            ]
        back = torch.tensor(order).argsort().to(self._device)
        return {name: torch.cat([part[name] for part in parts])[back] for name in parts[0]}

    def batch(self, indices: Sequence[int]) -> dict[str, Tensor]:
        rows = torch.tensor(indices, device=self._device)
        return {name: value[rows] for name, value in self._pooled.items()}


def _pool_on_cpu(module: Any, rows: Sequence[dict[str, Tensor]]) -> dict[str, Tensor] | None:
    """The same on ONNX Runtime, four times as fast; None where that is not installed."""
    weights = {name: value.numpy() for name, value in module.state_dict().items()}
    ids: list[list[int]] = [row["input_ids"].tolist() for row in rows]
    try:
        from retrievers.dense.multilingual.cpu_pool import pool_on_cpu

        pooled = torch.from_numpy(pool_on_cpu(weights, ids))
    except ModuleNotFoundError:
        return None
    roots = torch.tensor([len(own) for own in ids], dtype=torch.float32).sqrt()
    return {"pooled": pooled, "root": roots.unsqueeze(1)}


def read_texts(model: Any, texts: Sequence[str], prompt: str, device: str, frozen: Sequence[str]) -> TokenizedTexts:
    """Texts to encode with a model whose weights are trained, or blended, except those named in `frozen`."""
    pooled_by = getattr(model[0], "pooled_by", ()) if isinstance(model, Sequential) else ()
    if pooled_by and set(pooled_by) <= set(frozen):
        return PooledTexts(model, texts, prompt, device)
    return TokenizedTexts(model, texts, prompt, device)


def _tensors(features: Any) -> dict[str, Tensor]:
    return {name: value.cpu() for name, value in features.items() if torch.is_tensor(value)}
