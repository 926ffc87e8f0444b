"""Merges an adapter into its base model: the result needs neither peft nor the base model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError

from rewrite.backends.model_folder import adapter_mismatch, load_adapter, load_model, load_tokenizer, no_memory
from rewrite.errors import RewriteError
from rewrite.folder import open_rewriter, save_rewriter


def merge_adapter(rewriter: Path, base: Path, output: Path) -> Path:
    """Writes a rewriter folder with a whole model. In float32: half precision would round small changes away."""
    folder = open_rewriter(rewriter)
    if folder.adapter is None:
        raise RewriteError(f"the rewriter in {folder.path} is a whole model already; there is nothing to merge")
    if output.exists():
        raise RewriteError(f"{output} exists already; name another folder")
    tokenizer = load_tokenizer(base)
    model = load_adapter(load_model(base, torch.float32), folder.adapter, base)
    try:
        merged = model.merge_and_unload()
    except (OSError, ValueError, TypeError, KeyError, MemoryError, RuntimeError, SafetensorError) as error:
        raise no_memory(error, folder.adapter) or adapter_mismatch(folder.adapter, base) from error
    output.parent.mkdir(parents=True, exist_ok=True)
    save_rewriter(output, merged, tokenizer, replace(folder.card, method="full"), folder.template)
    return output
