"""A causal language model, known by the hash of its weights, loaded when first asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor

from retrievers.dense.encoder import check_device, fingerprint
from retrievers.errors import BadInput, ModelMissing
from retrievers.generative.chat_format import Frames
from retrievers.out_of_memory import report_out_of_memory

DOCUMENTS_AT_ONCE = 16
ON_A_GPU = 256
ROWS_AT_ONCE = 1024
"""Answers under way together where memory is not told, and at least."""


class LanguageModel:
    """Weights, tokenizer and the frames of its conversations."""

    def __init__(self, folder: Path, device: str | None = None) -> None:
        self.folder, self._device = folder, device
        self.fingerprint = fingerprint(folder)

    def holding(self, model: Any) -> LanguageModel:
        """This one with other weights in it: those that are being trained."""
        other = LanguageModel(self.folder, self._device)
        other.__dict__.update(model=model, tokenizer=self.tokenizer, frames=self.frames)
        other.__dict__["_config"] = model.config.get_text_config()
        return other

    def forget(self) -> None:
        """Nothing that was asked is remembered."""

    @cached_property
    def device(self) -> str:
        return check_device(self._device)

    @cached_property
    def tokenizer(self) -> Any:
        return load_tokenizer(self.folder)

    @cached_property
    def frames(self) -> Frames:
        return Frames(self.tokenizer)

    @cached_property
    def model(self) -> Any:
        loaded = load_model(self.folder)
        with report_out_of_memory(self.folder):
            return loaded.to(self.device).eval()

    @cached_property
    def _config(self) -> Any:
        from transformers import AutoConfig

        with loading(self.folder):
            return AutoConfig.from_pretrained(self.folder, local_files_only=True).get_text_config()

    @property
    def size(self) -> int:
        """Tokens that the model has rows for: at times more than its tokenizer knows."""
        return int(self._config.vocab_size)

    @property
    def width(self) -> int:
        """The dimensions of a row."""
        return int(self._config.hidden_size)

    @property
    def inputs(self) -> Tensor:
        """(tokens, dimensions): what the model reads for each token."""
        weights: Tensor = self.model.get_input_embeddings().weight.detach()
        return weights

    @property
    def outputs(self) -> Tensor:
        """(tokens, dimensions): what makes it say each token."""
        weights: Tensor = self.model.get_output_embeddings().weight.detach()
        return weights

    @property
    def bias(self) -> Tensor | None:
        """(tokens,): what is added to each token's score, in models that do so."""
        found: Tensor | None = getattr(self.model.get_output_embeddings(), "bias", None)
        return None if found is None else found.detach().float()

    @property
    def scale(self) -> float:
        """What a row is multiplied with when it is read: not 1 in Gemma's models, for example."""
        embedding = self.model.get_input_embeddings()
        return float(getattr(embedding, "scalar_embed_scale", getattr(embedding, "embed_scale", 1.0)))

    @property
    def tied(self) -> bool:
        """One row serves a token in both places; new tokens keep to what the model does."""
        return self.inputs.data_ptr() == self.outputs.data_ptr()

    def rows_at_once(self, tokens: int) -> int:
        """Answers of so many tokens that may be under way together: their keys and values take a sixteenth of a GPU's
        memory at most. A CPU gains nothing by more. Not of what is free: how a batch is cut is in its scores."""
        if not self.device.startswith("cuda"):
            return ROWS_AT_ONCE
        try:
            told = self._config
            heads = getattr(told, "num_key_value_heads", None) or told.num_attention_heads
            wide = getattr(told, "head_dim", None) or told.hidden_size // told.num_attention_heads
            kept = int(told.num_hidden_layers * 2 * heads * wide * 4 * tokens)
        except (AttributeError, RuntimeError):  # no attention, or another width in every layer
            return ROWS_AT_ONCE
        _, memory = torch.cuda.mem_get_info(torch.device(self.device))
        return max(ROWS_AT_ONCE, int(memory) // 16 // kept)

    def last_states(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """(prompts, dimensions): what the model is about to speak from."""
        found = []
        step = ON_A_GPU if self.device.startswith("cuda") else DOCUMENTS_AT_ONCE
        for start in range(0, len(prompts), step):
            tokens, mask = padded(prompts[start : start + step], self.device)
            with torch.no_grad(), precision(self.device):
                out = self.model.base_model(input_ids=tokens, attention_mask=mask, position_ids=positions(mask))
            found.append(out.last_hidden_state[:, -1].float())
        return torch.cat(found)


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a model folder."""
    from transformers import AutoTokenizer

    with loading(folder):
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    if tokenizer.eos_token_id is None:
        raise BadInput(f"the tokenizer in {folder} has no end token, so no answer of its model could end")
    return tokenizer


def load_model(folder: Path) -> Any:
    """The model in single precision: half is slower on a CPU, and on a GPU it is a matter of `precision`."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    with loading(folder):
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)


@contextmanager
def loading(folder: Path) -> Iterator[None]:
    """Turns whatever transformers makes of a folder that holds no language model into one sentence."""
    try:
        with report_out_of_memory(folder):
            yield
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        reason = str(error).split("\n")[0]
        raise ModelMissing(f"{folder} holds no causal language model that can be loaded ({reason})") from error


def precision(device: str) -> torch.autocast:
    """bfloat16 inside the model on GPUs that have it. Rows and scores stay as exact as they are."""
    cuda = device.startswith("cuda")
    return torch.autocast("cuda" if cuda else "cpu", torch.bfloat16, enabled=cuda and torch.cuda.is_bf16_supported())


def padded(prompts: Sequence[Sequence[int]], device: str) -> tuple[Tensor, Tensor]:
    """(prompts, longest) tokens with padding on the left, and the mask of what is none."""
    longest = max(map(len, prompts))
    tokens = np.zeros((len(prompts), longest), dtype=np.int64)
    mask = np.zeros((len(prompts), longest), dtype=np.int64)
    for place, prompt in enumerate(prompts):
        tokens[place, longest - len(prompt) :] = prompt
        mask[place, longest - len(prompt) :] = 1
    return torch.from_numpy(tokens).to(device), torch.from_numpy(mask).to(device)


def positions(mask: Tensor) -> Tensor:
    """Places counted from the first token that is no padding."""
    return (mask.cumsum(dim=-1) - 1).clamp(min=0)
