"""An encoder on ONNX Runtime: texts to unit vectors, one core per text."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from retrievers.dense.cpu.export import load_graph
from retrievers.dense.cpu.folder import BertFolder, NoCpuRuntime, read_folder
from retrievers.out_of_memory import is_out_of_memory

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


class CpuModel:
    """Has the methods of a sentence-transformers model that an Encoder calls."""

    def __init__(self, folder: Path, graph: bytes, model: BertFolder) -> None:
        self._session = open_session(graph)
        self._words = model.weights["embeddings.word_embeddings.weight"]  # mapped: only rows that are used are read
        positions = model.weights["embeddings.position_embeddings.weight"].astype(np.float32)
        self._positions = positions + model.weights["embeddings.token_type_embeddings.weight"][0]
        self._query_prompt, self._document_prompt = model.query_prompt, model.document_prompt
        self._tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_truncation(model.max_tokens)
        self._tokenizer.no_padding()
        self._pool = ThreadPoolExecutor(count_threads(), "encoder")

    def encode_query(self, texts: Sequence[str], **_: object) -> np.ndarray:
        """(texts, dimensions), each row of length 1."""
        return self._encode([self._query_prompt + text for text in texts])

    def encode_document(self, texts: Sequence[str], **_: object) -> np.ndarray:
        """(texts, dimensions), each row of length 1."""
        return self._encode([self._document_prompt + text for text in texts])

    def _encode(self, texts: list[str]) -> np.ndarray:
        rows = [encoding.ids for encoding in self._tokenizer.encode_batch(texts)]
        if len(rows) == 1:
            return self._vector(rows[0])
        # Longest first: no core ends up alone with a long text.
        order = sorted(range(len(rows)), key=lambda index: -len(rows[index]))
        vectors = np.empty((len(rows), self._positions.shape[1]), np.float32)
        for index, vector in zip(order, self._pool.map(self._vector, [rows[index] for index in order]), strict=True):
            vectors[index] = vector
        return vectors

    def _vector(self, ids: list[int]) -> np.ndarray:
        """(1, dimensions)."""
        embedded = self._words[ids].astype(np.float32) + self._positions[: len(ids)]
        vector: np.ndarray = self._session.run(None, {"embedded": embedded[None]})[0]
        length = np.maximum(np.linalg.norm(vector, axis=1, keepdims=True), 1e-12)
        return vector / np.asarray(length, np.float32)


def load_cpu_model(folder: Path, fingerprint: str, cache: Path | None, form: str = "auto") -> CpuModel:
    """The model of a folder: int8 where that is nearly exact, else float32. Raises NoCpuRuntime with the reason."""
    with report_no_runtime():
        model = read_folder(folder)
        graph = load_graph(cache, f"{fingerprint}-{form}", lambda: _build(folder, model, form))
        return CpuModel(folder, graph, model)


@contextmanager
def report_no_runtime() -> Iterator[None]:
    """Turn errors of the runtime, and missing packages, into NoCpuRuntime."""
    try:
        yield
    except NoCpuRuntime:
        raise
    except ModuleNotFoundError as error:
        raise NoCpuRuntime(f"{error.name} is not installed") from error
    except Exception as error:  # the runtime's own errors have no common class
        if is_out_of_memory(error):
            raise
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise NoCpuRuntime(f"ONNX Runtime refused it: {reason}") from error


def _build(folder: Path, model: BertFolder, form: str) -> bytes:
    from retrievers.dense.cpu.graph import build_graph

    exact = build_graph(model, "float32")
    if form == "float32":
        return exact
    small = build_graph(model, "int8")
    vectors = [CpuModel(folder, graph, model).encode_document(PROBES) for graph in (exact, small)]
    cosines = (vectors[0] * vectors[1]).sum(axis=1)
    return small if float(cosines.mean()) >= MIN_COSINE else exact


def count_threads() -> int:
    """Cores that this process may use, or OMP_NUM_THREADS if that is less."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    named = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(cores, int(named))) if named.isdigit() and int(named) else cores


def open_session(graph: bytes) -> Any:
    """A graph, ready to run on one core."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # cores work on different texts
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
