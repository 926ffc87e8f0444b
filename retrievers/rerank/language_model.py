"""A language model in this process: the request is read once, and all its candidates continue from there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from retrievers.dense.encoder import check_device
from retrievers.rerank.loading import load_safely
from retrievers.rerank.padding import groups_by_length
from retrievers.rerank.prompt import YesNoPrompt
from retrievers.rerank.settings import LanguageModelSettings

MAX_PAIRS = {"cpu": 32}
GPU_PAIRS = 256
"""Candidates in one pass; more need memory for their copies of the requests' cached tokens."""
QUEUE = {"cpu": 64}
GPU_QUEUE = 1024
"""Candidates that are grouped by length; their requests are read in one pass."""


class LanguageModelReranker:
    """Scores tools by logit of yes minus logit of no."""

    max_training_pairs = 32
    """Pairs whose gradients are computed together."""
    max_training_characters = 16_000
    """Characters whose gradients are computed together, padding included: about 4,000 tokens, below 20 GB with 1.5B
    weights."""

    def __init__(
        self,
        model: Path,
        max_length: int,
        max_tool: int,
        device: str | None = None,
        adapter: Path | None = None,
        fingerprint: str = "",
    ) -> None:
        """`adapter` is merged into the model."""
        self.fingerprint, self.device = fingerprint, check_device(device)
        on_cpu = self.device == "cpu"
        options = {
            "dtype": torch.float32 if on_cpu else torch.bfloat16,  # bfloat16 is ten times slower on a CPU
            "attn_implementation": "sdpa" if on_cpu else "eager",  # bfloat16, SDPA and a mask gave NaN
            "local_files_only": True,
        }
        library: Any = AutoModelForCausalLM
        self.module: Any = load_safely(model, lambda: library.from_pretrained(str(model), **options).to(self.device))
        self.tokenizer: Any = load_safely(model, lambda: AutoTokenizer.from_pretrained(str(model)))
        if adapter is not None:
            from peft import PeftModel

            loaded: Any = load_safely(adapter, lambda: PeftModel.from_pretrained(self.module, str(adapter)))
            self.module = loaded.merge_and_unload()
        self._adapted: Any = None
        self.prompt = YesNoPrompt(self.tokenizer, max_length, max_tool)
        self.module.eval()

    def prepare_training(self, settings: LanguageModelSettings) -> None:
        """Add a LoRA adapter, or make all weights trainable in single precision.

        Training needs no mask, because padding is on the right and no token attends to what follows it. Without one
        PyTorch's attention is fast and its gradient a number.
        """
        self.module.set_attn_implementation("sdpa")
        if settings.method == "full":
            self.module.float()
            return
        from peft import LoraConfig, get_peft_model

        config = LoraConfig(r=settings.rank, lora_alpha=2 * settings.rank, target_modules="all-linear", lora_dropout=0)
        self._adapted = get_peft_model(self.module, config)

    @property
    def trained(self) -> Any:
        """The module with the weights that training changes."""
        return self._adapted if self._adapted is not None else self.module

    def _answers(self, hidden: Tensor) -> Tensor:
        head = self.module.get_output_embeddings()
        weights = head.weight[self.prompt.yes] - head.weight[self.prompt.no]
        scores: Tensor = hidden.float() @ weights.float()
        return scores

    def logits(self, requests: Sequence[str], tools: Sequence[str]) -> Tensor:
        """(pairs,): scores of whole prompts, with gradients; for training."""
        rows = []
        for request, tool in zip(requests, tools, strict=True):
            shared, [rest] = self.prompt.parts(request, [tool])
            rows.append([*shared, *rest])
        groups = groups_by_length([len(row) for row in rows], len(rows), self.device)
        scores = torch.cat([self._group_logits([rows[index] for index in group]) for group in groups])
        return scores[torch.tensor([index for group in groups for index in group]).argsort().to(scores.device)]

    def _group_logits(self, rows: Sequence[Sequence[int]]) -> Tensor:
        tokens, mask = self._padded(rows)
        with torch.autocast(self.device.split(":")[0], torch.bfloat16, enabled=self.device != "cpu"):
            hidden = self.module.get_decoder()(input_ids=tokens, use_cache=False)[0]
        return self._answers(hidden[torch.arange(len(rows)), mask.sum(dim=1) - 1])

    def cut(self, request: str, tools: Sequence[str]) -> tuple[str, list[str]]:
        """Request and tools unchanged: they are cut as tokens."""
        return request, list(tools)

    def score(self, queries: Sequence[str], documents: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """Queries of similar length together."""
        parts = [self.prompt.parts(query, tools) for query, tools in zip(queries, documents, strict=True)]
        scores = [np.empty(len(tools)) for tools in documents]
        with torch.inference_mode():
            for group in self._groups([(len(shared), len(rests)) for shared, rests in parts]):
                values = self._score_group([parts[row] for row in group])
                ends = np.cumsum([len(parts[row][1]) for row in group])[:-1]
                for row, own in zip(group, np.split(values, ends), strict=True):
                    scores[row] = own
        return scores

    def _groups(self, sizes: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
        """Rows of queries with candidates, the longest first, as many as are read together."""
        limit, group, pairs = QUEUE.get(self.device, GPU_QUEUE), list[int](), 0
        for row in sorted(range(len(sizes)), key=lambda row: -sizes[row][0]):
            if not sizes[row][1]:
                continue
            if group and pairs + sizes[row][1] > limit:
                yield group
                group, pairs = [], 0
            group.append(row)
            pairs += sizes[row][1]
        if group:
            yield group

    def _score_group(self, parts: Sequence[tuple[list[int], list[list[int]]]]) -> np.ndarray:
        """Read every request once, copy its cached tokens for each candidate, and read candidates of similar length."""
        shared, shared_mask = self._padded([prefix for prefix, _ in parts])
        cache = DynamicCache()
        self.module.get_decoder()(input_ids=shared, attention_mask=shared_mask, past_key_values=cache, use_cache=True)
        owners = [row for row, (_, rests) in enumerate(parts) for _ in rests]
        rests = [rest for _, own in parts for rest in own]
        values = np.empty(len(rests))
        limit = MAX_PAIRS.get(self.device, GPU_PAIRS)
        for group in groups_by_length([len(rest) for rest in rests], limit, self.device):
            owner = torch.tensor([owners[index] for index in group], device=self.device)
            values[group] = self._score_rests([rests[index] for index in group], cache, shared_mask, owner)
        return values

    def _score_rests(
        self, rests: Sequence[Sequence[int]], cache: DynamicCache, shared_mask: Tensor, owner: Tensor
    ) -> np.ndarray:
        """Scores of candidates that continue from the cached requests of their owners."""
        own_cache = DynamicCache()
        layers: Any = cache.layers
        for number, layer in enumerate(layers):
            own_cache.update(layer.keys[owner], layer.values[owner], number)
        tokens, mask = self._padded(rests)
        hidden = self.module.get_decoder()(
            input_ids=tokens,
            attention_mask=torch.cat([shared_mask[owner], mask], dim=1),
            position_ids=shared_mask.sum(dim=1)[owner][:, None] + torch.arange(tokens.shape[1], device=self.device),
            past_key_values=own_cache,
            use_cache=True,
        )[0]
        values: np.ndarray = self._answers(hidden[torch.arange(len(mask)), mask.sum(dim=1) - 1]).cpu().numpy()
        return values

    def _padded(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Tokens and mask, padded on the right: no token then has nothing to attend to."""
        width = max(map(len, rows))
        tokens = torch.zeros((len(rows), width), dtype=torch.long)
        mask = torch.zeros((len(rows), width), dtype=torch.long)
        for number, row in enumerate(rows):
            tokens[number, : len(row)] = torch.tensor(row)
            mask[number, : len(row)] = 1
        return tokens.to(self.device), mask.to(self.device)

    def save(self, folder: Path) -> None:
        """Write the adapter, or the whole model, with the tokenizer."""
        self.trained.save_pretrained(str(folder))
        self.tokenizer.save_pretrained(str(folder))
