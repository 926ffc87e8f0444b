"""Loads the folder of a sentence-transformers model, or of the multilingual encoder, which is a module of our own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer

MULTILINGUAL = "retrievers.dense.multilingual.module.MultilingualEncoder"


def load_model(folder: Path, device: str, **model_kwargs: Any) -> SentenceTransformer:
    """The model of a folder. No code that a folder names is run, except ours."""
    if _module_types(folder) == [MULTILINGUAL]:
        from retrievers.dense.multilingual.module import MultilingualEncoder

        return SentenceTransformer(modules=[MultilingualEncoder.load(str(folder))], device=device)
    return SentenceTransformer(str(folder), device=device, model_kwargs=model_kwargs, local_files_only=True)


def _module_types(folder: Path) -> list[str]:
    """Classes that a model consists of; none where the folder is not one of sentence-transformers."""
    path = folder / "modules.json"
    return [module["type"] for module in json.loads(path.read_text())] if path.exists() else []
