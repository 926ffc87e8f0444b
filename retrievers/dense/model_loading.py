"""Loads the folder of a sentence-transformers model, or of the multilingual encoder, which is a module of our own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer

from retrievers.dense.cpu.folder import is_multilingual


def load_model(folder: Path, device: str, **model_kwargs: Any) -> SentenceTransformer:
    """The model of a folder. No code that a folder names is run, except ours."""
    if is_multilingual(folder):
        from retrievers.dense.multilingual.module import MultilingualEncoder

        return SentenceTransformer(modules=[MultilingualEncoder.load(str(folder))], device=device)
    return SentenceTransformer(str(folder), device=device, model_kwargs=model_kwargs, local_files_only=True)
