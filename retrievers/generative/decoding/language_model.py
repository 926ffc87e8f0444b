"""A causal language model, identified by the hash of its weights, loaded on first use."""

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
from retrievers.generative.chat_format import ChatFormat
from retrievers.out_of_memory import report_out_of_memory

DOCUMENT_BATCH = 16
GPU_DOCUMENT_BATCH = 256
MAX_ROWS = 1024
"""Beams decoded together where the memory they need is unknown, and the minimum elsewhere."""


class LanguageModel:
    """Weights, tokenizer and chat format."""

    def __init__(self, folder: Path, device: str | None = None) -> None:
        self.folder, self._device = folder, device
        self.fingerprint = fingerprint(folder)

    def with_model(self, model: Any) -> LanguageModel:
        """The same language model with other weights: those in training."""
        other = LanguageModel(self.folder, self._device)
        other.__dict__.update(model=model, tokenizer=self.tokenizer, chat=self.chat)
        other.__dict__["_config"] = model.config.get_text_config()
        return other

    def clear_cache(self) -> None:
        """Do nothing: no query is cached."""

    @cached_property
    def device(self) -> str:
        return check_device(self._device)

    @cached_property
    def tokenizer(self) -> Any:
        return load_tokenizer(self.folder)

    @cached_property
    def chat(self) -> ChatFormat:
        return ChatFormat(self.tokenizer)

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
    def vocab_size(self) -> int:
        """Tokens that the model has embeddings for; its tokenizer may know fewer."""
        return int(self._config.vocab_size)

    @property
    def hidden_size(self) -> int:
        return int(self._config.hidden_size)

    @property
    def inputs(self) -> Tensor:
        """(tokens, dimensions): the input embeddings."""
        weights: Tensor = self.model.get_input_embeddings().weight.detach()
        return weights

    @property
    def outputs(self) -> Tensor:
        """(tokens, dimensions): the output embeddings."""
        weights: Tensor = self.model.get_output_embeddings().weight.detach()
        return weights

    @property
    def bias(self) -> Tensor | None:
        """(tokens,): the bias of the logits, in models that have one."""
        bias: Tensor | None = getattr(self.model.get_output_embeddings(), "bias", None)
        return None if bias is None else bias.detach().float()

    @property
    def scale(self) -> float:
        """The factor on input embeddings: not 1 in Gemma's models, for example."""
        embedding = self.model.get_input_embeddings()
        return float(getattr(embedding, "scalar_embed_scale", getattr(embedding, "embed_scale", 1.0)))

    @property
    def tied(self) -> bool:
        """True where input and output embeddings are the same; new tokens follow the model."""
        return self.inputs.data_ptr() == self.outputs.data_ptr()

    def max_rows(self, tokens: int) -> int:
        """Beams of that length that are decoded together: their keys and values take 1/16 of a GPU's memory at most.

        It goes by total memory, not free memory, because batching shows in the last digits of scores.
        """
        if not self.device.startswith("cuda"):
            return MAX_ROWS
        try:
            config = self._config
            heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
            head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
            row_bytes = int(config.num_hidden_layers * 2 * heads * head_size * 4 * tokens)
        except (AttributeError, RuntimeError):  # no attention, or a different width per layer
            return MAX_ROWS
        _, memory = torch.cuda.mem_get_info(torch.device(self.device))
        return max(MAX_ROWS, int(memory) // 16 // row_bytes)

    def last_states(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """(prompts, dimensions): the hidden state from which the first answer token is predicted."""
        states = []
        step = GPU_DOCUMENT_BATCH if self.device.startswith("cuda") else DOCUMENT_BATCH
        for start in range(0, len(prompts), step):
            tokens, mask = pad_left(prompts[start : start + step], self.device)
            with torch.no_grad(), precision(self.device):
                out = self.model.base_model(input_ids=tokens, attention_mask=mask, position_ids=position_ids(mask))
            states.append(out.last_hidden_state[:, -1].float())
        return torch.cat(states)


def load_tokenizer(folder: Path) -> Any:
    """Load the tokenizer of a model folder."""
    from transformers import AutoTokenizer

    with loading(folder):
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    if tokenizer.eos_token_id is None:
        raise BadInput(f"the tokenizer in {folder} has no end token, so no answer of its model could end")
    return tokenizer


def load_model(folder: Path, attention: str | None = None) -> Any:
    """Load the model in single precision: half is slower on a CPU, and `precision` handles GPUs.

    `attention`: transformers' `attn_implementation`; None: its default.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    with loading(folder):
        return AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, attn_implementation=attention
        )


@contextmanager
def loading(folder: Path) -> Iterator[None]:
    """Raise `ModelMissing` for any error of transformers about a folder without a usable language model."""
    try:
        with report_out_of_memory(folder):
            yield
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        reason = str(error).split("\n")[0]
        raise ModelMissing(f"{folder} holds no causal language model that can be loaded ({reason})") from error


def extend_vocabulary(model: Any, inputs: np.ndarray, outputs: np.ndarray) -> bool:
    """Add rows to the input and output embeddings; True where the model has one row for both, and keeps that."""
    before = model.get_input_embeddings().weight.shape[0]
    tied = bool(model.get_input_embeddings().weight.data_ptr() == model.get_output_embeddings().weight.data_ptr())
    if not len(inputs):
        return tied
    model.resize_token_embeddings(before + len(inputs), mean_resizing=False)
    with torch.no_grad():
        read, write = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        # Output rows last: where there is one row for both, the one that makes a token be generated counts.
        read[before:] = torch.from_numpy(inputs).to(read)
        write[before:] = torch.from_numpy(outputs).to(write)
    return tied


def precision(device: str) -> torch.autocast:
    """bfloat16 inside the model on GPUs that have it. Embeddings and scores keep their precision."""
    cuda = device.startswith("cuda")
    return torch.autocast("cuda" if cuda else "cpu", torch.bfloat16, enabled=cuda and torch.cuda.is_bf16_supported())


def pad_left(prompts: Sequence[Sequence[int]], device: str) -> tuple[Tensor, Tensor]:
    """(prompts, longest) tokens padded on the left, and their attention mask."""
    longest = max(map(len, prompts))
    tokens = np.zeros((len(prompts), longest), dtype=np.int64)
    mask = np.zeros((len(prompts), longest), dtype=np.int64)
    for row, prompt in enumerate(prompts):
        tokens[row, longest - len(prompt) :] = prompt
        mask[row, longest - len(prompt) :] = 1
    return torch.from_numpy(tokens).to(device), torch.from_numpy(mask).to(device)


def position_ids(mask: Tensor) -> Tensor:
    """Positions counted from the first token that is not padding."""
    return (mask.cumsum(dim=-1) - 1).clamp(min=0)
