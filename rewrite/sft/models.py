"""Loads the model and the tokenizer that are trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from datasets.utils import logging as datasets_logging
from peft import LoraConfig
from transformers.utils import logging as transformers_logging
from transformers.utils.import_utils import is_flash_attn_2_available

from rewrite.backends.model_folder import load_adapter, load_model, load_tokenizer
from rewrite.settings import SftSettings


def load_training_tokenizer(base: Path) -> Any:
    """The tokenizer with a pad token that is not its end token: else a model would not learn where an answer ends."""
    tokenizer = load_tokenizer(base)
    if tokenizer.pad_token_id is None or tokenizer.pad_token_id == tokenizer.eos_token_id:
        spare = [token for token in ("<|endoftext|>", "<pad>", "<unk>") if token in tokenizer.get_vocab()]
        tokenizer.pad_token = next((token for token in spare if token != tokenizer.eos_token), tokenizer.eos_token)
    return tokenizer


def load_base(base: Path, attention: str = "auto", packed: bool = False) -> Any:
    """The model in float32: the optimizer needs the precision, mixed precision gives the speed."""
    if attention == "auto" and packed and is_flash_attn_2_available():
        attention = "flash_attention_2"
    options = {} if attention == "auto" else {"attn_implementation": attention}
    return load_model(base, torch.float32, **options)


def load_policy(base: Path, adapter: Path | None, attention: str = "auto", packed: bool = False) -> Any:
    """The model that is trained: as it is, or with an adapter that is trained further.

    cuDNN's attention is disabled: on Hopper, from PyTorch 2.11 on, its gradient under a mask is NaN for some lengths
    (pytorch/pytorch issue 196678, seen with Qwen2.5 in particular).
    """
    torch.backends.cuda.enable_cudnn_sdp(False)
    model = load_base(base, attention, packed)
    return model if adapter is None else load_adapter(model, adapter, base, is_trainable=True)


def lora_config(settings: SftSettings, adapter: Path | None = None) -> LoraConfig | None:
    """The new adapter to train; None where there is one already, or the whole model is trained."""
    if settings.method == "full" or adapter is not None:
        return None
    lora = settings.lora
    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )


def silence_progress(progress: bool) -> None:
    """Turns off the libraries' progress bars unless `progress`."""
    if not progress:
        datasets_logging.disable_progress_bar()
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
