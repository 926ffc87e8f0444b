"""Encoders on ONNX Runtime: BERT's family and the multilingual encoder, int8 where that is nearly exact."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from retrievers.dense.cpu.export import load_graph
from retrievers.dense.cpu.folder import BertFolder, is_multilingual, read_folder
from retrievers.dense.cpu.session import CpuEncoder, report_no_runtime

Make = Callable[[bytes], CpuEncoder]
"""Returns the encoder of a graph."""
Build = Callable[[str], bytes]
"""Returns the graph of a form."""
MIN_COSINE = 0.995  # of an int8 vector with the exact one, in the mean over the probes; below, float32 is used
PROBES = (
    "hotel",
    "what is the weather like in Paris tomorrow morning?",
    "get_user: returns the profile of one user by id. user_id: integer, required",
    "book a table for four, then send the address to everybody who is coming",
    "Converts an amount of money from one currency into another at today's rate. amount, from_currency, to_currency",
    "¿cuándo sale el próximo tren a Sevilla?",
    "list_files, delete_file, rename_file: work with files in a folder of the cloud storage, recursively if asked",
    "my order #4512 has not arrived yet and the tracking page shows nothing, can you find out where it is",
)


class CpuModel(CpuEncoder):
    """An encoder of BERT's family."""

    def __init__(self, folder: Path, model: BertFolder, graph: bytes) -> None:
        super().__init__(graph, model.query_prompt, model.document_prompt)
        self._words = model.weights["embeddings.word_embeddings.weight"]  # mapped: only rows that are used are read
        positions = model.weights["embeddings.position_embeddings.weight"].astype(np.float32)
        self._positions = positions + model.weights["embeddings.token_type_embeddings.weight"][0]
        self._tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_truncation(model.max_tokens)
        self._tokenizer.no_padding()

    def tokens(self, texts: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._tokenizer.encode_batch(texts)]

    def inputs(self, ids: list[int]) -> dict[str, np.ndarray]:
        return {"embedded": (self._words[ids].astype(np.float32) + self._positions[: len(ids)])[None]}


def load_cpu_model(folder: Path, fingerprint: str, cache: Path | None, form: str = "auto") -> CpuEncoder:
    """The model of a folder: int8 where that is nearly exact, else float32. Raises NoCpuRuntime with the reason."""
    with report_no_runtime():
        make, build = _multilingual(folder) if is_multilingual(folder) else _bert(folder)
        return make(load_graph(cache, f"{fingerprint}-{form}", lambda: _choose(make, build, form)))


def _bert(folder: Path) -> tuple[Make, Build]:
    model = read_folder(folder)

    def build(form: str) -> bytes:
        from retrievers.dense.cpu.graph import build_graph

        return build_graph(model, form)

    return partial(CpuModel, folder, model), build


def _multilingual(folder: Path) -> tuple[Make, Build]:
    from retrievers.dense.multilingual.cpu_model import MultilingualCpuModel, map_weights

    weights = map_weights(folder)

    def build(form: str) -> bytes:
        from retrievers.dense.multilingual.cpu_graph import build_multilingual

        return build_multilingual(weights, form)

    return partial(MultilingualCpuModel, folder, weights), build


def _choose(make: Make, build: Build, form: str) -> bytes:
    """The graph in int8 if its vectors of the probes are nearly exact, else in float32."""
    exact = build("float32")
    if form == "float32":
        return exact
    small = build("int8")
    vectors = [make(graph).encode_document(PROBES) for graph in (exact, small)]
    cosines = (vectors[0] * vectors[1]).sum(axis=1)
    return small if float(cosines.mean()) >= MIN_COSINE else exact
