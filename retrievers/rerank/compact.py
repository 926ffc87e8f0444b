"""A trained cross-encoder as a small difference from its encoder: a few megabytes that a package can ship.

The folder has the files of an encoder's adapter (`retrievers/dense/adapter.py`) beside the reranker's card. The encoder
becomes a cross-encoder first: its tensors get the names of one, and its head starts at zero.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from retrievers.dense.adapter import (
    ADAPTER,
    add_differences,
    check_base,
    compact,
    group_by_file,
    weights_hash,
    write_adapter,
)
from retrievers.errors import BadInput, ModelMissing
from retrievers.rerank.folder import open_reranker, write_card

BITS = 4
"""Per weight of a matrix; biases, norms and the head are stored in half precision."""
MODEL_FILE, PREFIX, HEAD = "model.safetensors", "bert.", "classifier"
SETTINGS = ("config.json", "config_sentence_transformers.json", "modules.json", "sentence_bert_config.json")
"""Files of the cross-encoder that are kept as they are; the tokenizer is the encoder's."""
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")
KIND = "cross-encoder"


def write_compact(base: Path, reranker: Path, target: Path, bits: int = BITS) -> int:
    """Write the compact form of a finished cross-encoder that was trained from the encoder `base`; return its bytes."""
    card = open_reranker(reranker).card
    if card.kind != KIND or card.method != "full":
        raise BadInput(f"the reranker in {reranker} is a {card.kind}; a compact form is made of cross-encoders")
    tuned = load_file(reranker / MODEL_FILE)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_headed(base, folder, {key: value.shape for key, value in tuned.items()})
        arrays = compact(folder, reranker, 1.0, 0, bits)
    shutil.rmtree(target, ignore_errors=True)
    facts = {"kind": KIND, "base": card.base, "base_weights": weights_hash(base), "bits": bits}
    size = write_adapter(target, arrays, facts)
    for setting in SETTINGS:
        shutil.copy(reranker / setting, target / setting)
    write_card(target, card)
    return size


def merge_reranker(base: Path, adapter: Path, target: Path) -> None:
    """Write the whole cross-encoder of a compact form."""
    check_base(base, adapter)
    try:
        differences = group_by_file(load_file(adapter / ADAPTER))
        for setting in SETTINGS:
            shutil.copy(adapter / setting, target / setting)
        for file in TOKENIZER:
            if (base / file).is_file():
                shutil.copy(base / file, target / file)
        width = json.loads((adapter / "config.json").read_text(encoding="utf-8"))["hidden_size"]
        _write_headed(base, target, {f"{HEAD}.weight": (1, width), f"{HEAD}.bias": (1,)})
        add_differences(target / MODEL_FILE, differences[MODEL_FILE])
    except (SafetensorError, OSError, KeyError, ValueError, IndexError) as error:
        raise ModelMissing(f"the compact reranker in {adapter} cannot be read ({error}); install it again") from error


def _write_headed(base: Path, folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """The weights of an encoder under the names of a cross-encoder, with a head of zeros in the given shapes."""
    weights = {f"{PREFIX}{name}": array for name, array in load_file(base / MODEL_FILE).items()}
    weights = {name: array.astype(np.float32) for name, array in weights.items() if array.dtype.kind == "f"}
    missing = {name: shape for name, shape in shapes.items() if name not in weights}
    if any(not name.startswith(HEAD) for name in missing) or not missing:
        raise BadInput("the cross-encoder was not trained from this encoder, or has another head than BERT's")
    save_file(weights | {name: np.zeros(shape, np.float32) for name, shape in missing.items()}, folder / MODEL_FILE)
