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
from retrievers.rerank.prompt import YesNoPrompt
from retrievers.rerank.settings import LanguageModelSettings

MAX_PAIRS = {"cpu": 32}
GPU_PAIRS = 256
"""Candidates in one pass; more need memory for their copies of the requests' cached tokens."""


class LanguageModelReranker:
    """Scores tools by logit of yes minus logit of no."""

    max_training_pairs = 64
    """Pairs whose gradients are computed together."""
    max_training_characters = 32_000
    """Characters whose gradients are computed together, padding included: 8,000 tokens, 20 GB with 1.5B weights."""

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
        """Rows of queries with candidates, the longest first, as many as fit into one pass."""
        limit, group, pairs = MAX_PAIRS.get(self.device, GPU_PAIRS), list[int](), 0
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
        """Read every request once, copy its cached tokens for each candidate, and read the candidates."""
        decoder = self.module.get_decoder()
        shared, shared_mask = self._padded([prefix for prefix, _ in parts])
        cache = DynamicCache()
        decoder(input_ids=shared, attention_mask=shared_mask, past_key_values=cache, use_cache=True)
        owners = torch.tensor([row for row, (_, rests) in enumerate(parts) for _ in rests], device=self.device)
        cache.batch_select_indices(owners)
        tokens, mask = self._padded([rest for _, rests in parts for rest in rests])
        starts = shared_mask.sum(dim=1)[owners]
        hidden = decoder(
            input_ids=tokens,
            attention_mask=torch.cat([shared_mask[owners], mask], dim=1),
            position_ids=starts[:, None] + torch.arange(tokens.shape[1], device=self.device),
            past_key_values=cache,
            use_cache=True,
        )[0]
        values: np.ndarray = self._answers(hidden[torch.arange(len(mask)), mask.sum(dim=1) - 1]).cpu().numpy()
        return values.astype(np.float64)

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
