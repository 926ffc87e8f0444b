"""Adapter + base model -> one model that needs neither peft nor the base model any more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from peft import PeftModel
from safetensors import SafetensorError

from rewrite.backends.model_folder import adapter_config, load_model, load_tokenizer, misfit, no_memory
from rewrite.errors import Unfit
from rewrite.folder import open_folder, save_folder


def merge(rewriter: Path, base: Path, output: Path) -> Path:
    """Writes a rewriter's folder that holds a whole model. In float32: with fewer digits small changes are lost."""
    folder = open_folder(rewriter)
    if folder.adapter is None:
        raise Unfit(f"the rewriter in {folder.path} is a whole model already; there is nothing to merge")
    if output.exists():
        raise Unfit(f"{output} exists already; name another folder")
    tokenizer = load_tokenizer(base)
    adapter_config(folder.adapter, base)
    model = load_model(base, torch.float32)
    try:
        joined = PeftModel.from_pretrained(model, str(folder.adapter)).merge_and_unload()
    except (OSError, ValueError, TypeError, KeyError, MemoryError, RuntimeError, SafetensorError) as error:
        raise no_memory(error, folder.adapter) or misfit(folder.adapter, base) from error
    output.parent.mkdir(parents=True, exist_ok=True)
    save_folder(output, joined, tokenizer, replace(folder.card, method="full"), folder.template)
    return output
