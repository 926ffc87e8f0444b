"""Reads the folder of a sentence-transformers model without sentence-transformers; refuses what it does not know."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from retrievers.dense.adapter import map_tensors
from retrievers.dense.cpu.mpnet import bert_names

WEIGHTS = "model.safetensors"
MULTILINGUAL = "retrievers.dense.multilingual.module.MultilingualEncoder"
"""The module of the multilingual encoder, as its `modules.json` names it."""
POOLING = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}
DOCUMENT_PROMPTS = ("document", "passage", "corpus")  # the library takes the first that a model has


class NoCpuRuntime(Exception):
    """The encoder cannot run without PyTorch; the message is a clause that says why."""


@dataclass(frozen=True, slots=True)
class BertFolder:
    """An encoder of the BERT family: its weights, mapped, and how texts become one vector."""

    weights: Mapping[str, np.ndarray]
    """By BERT's names, without the prefix of the model."""
    layers: int
    heads: int
    epsilon: float
    pooling: str
    """mean or cls."""
    max_tokens: int
    query_prompt: str
    document_prompt: str
    first_position: int = 0
    """Row of the first token among the vectors of positions."""
    relative: bool = False
    """MPNet: attention has a bias by the distance of two tokens."""


def read_folder(folder: Path, pooling: str = "") -> BertFolder:
    """Read an encoder; raises NoCpuRuntime for any other architecture, pooling or weight format.

    `pooling`: of a cross-encoder, whose folder names none.
    """
    config = _json(folder / "config.json")
    kind = str(config.get("model_type") or "unknown")
    relative = kind == "mpnet"
    if kind != "bert" and (not relative or pooling):
        raise NoCpuRuntime(f"its architecture, {kind}, has no graph here")
    if config.get("hidden_act") != "gelu" or config.get("position_embedding_type", "absolute") != "absolute":
        raise NoCpuRuntime("its activation or its positions differ from BERT's")
    pooling = pooling or _pooling(folder)
    settings = _json(folder / "sentence_bert_config.json", {})
    if settings.get("do_lower_case"):
        raise NoCpuRuntime("it changes texts to lower case before its tokenizer does")
    prompts = _json(folder / "config_sentence_transformers.json", {}).get("prompts") or {}
    first = int(config.get("pad_token_id", 1)) + 1 if relative else 0
    positions = int(config["max_position_embeddings"]) - first
    length = settings.get("max_seq_length") or _json(folder / "tokenizer_config.json", {}).get("model_max_length")
    if not (folder / "tokenizer.json").is_file():
        raise NoCpuRuntime("it has no tokenizer.json")
    weights = _weights(folder / WEIGHTS, kind)
    return BertFolder(
        bert_names(weights) if relative else weights,
        int(config["num_hidden_layers"]),
        int(config["num_attention_heads"]),
        float(config["layer_norm_eps"]),
        pooling,
        min(int(length or positions), positions),
        str(prompts.get("query") or ""),
        next((str(prompts[name]) for name in DOCUMENT_PROMPTS if name in prompts), ""),
        first,
        relative,
    )


def is_multilingual(folder: Path) -> bool:
    """True for the multilingual encoder, a module of this package."""
    try:
        modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(modules, list) and len(modules) == 1 and modules[0].get("type") == MULTILINGUAL


def _pooling(folder: Path) -> str:
    modules = _json(folder / "modules.json", [])
    kinds = [str(module["type"]).rpartition(".")[2] for module in modules]
    if not modules:
        return "mean"  # the library's default for a plain model
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]) or modules[0]["path"]:
        raise NoCpuRuntime(f"it consists of {', '.join(kinds)}")
    settings = _json(folder / modules[1]["path"] / "config.json")
    old = [POOLING.get(name, name) for name, chosen in settings.items() if name.startswith("pooling_mode_") and chosen]
    mode = settings.get("pooling_mode") or (old[0] if len(old) == 1 else "+".join(old))
    if mode not in POOLING.values() or not settings.get("include_prompt", True):
        raise NoCpuRuntime(f"its pooling, {mode}, has no graph here")
    return str(mode)


def _weights(file: Path, kind: str) -> dict[str, np.ndarray]:
    """The tensors of a model of this kind, mapped, without its prefix."""
    if not file.is_file():
        raise NoCpuRuntime(f"it has no {WEIGHTS}")
    weights = {name.removeprefix(f"{kind}."): array for name, array in map_tensors(file, "r")}
    if "embeddings.word_embeddings.weight" not in weights:
        raise NoCpuRuntime(f"{WEIGHTS} has tensors of an unknown name or number format")
    return weights


def _json(path: Path, default: Any = None) -> Any:
    if default is not None and not path.is_file():
        return default
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise NoCpuRuntime(f"{path.name} cannot be read") from error
