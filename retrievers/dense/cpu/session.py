"""Runs a graph on ONNX Runtime: texts to unit vectors, one core per text."""

from __future__ import annotations

import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np

from retrievers.dense.cpu.folder import NoCpuRuntime
from retrievers.errors import ModelMissing
from retrievers.out_of_memory import is_out_of_memory

SLOW_FUSION = "SkipLayerNormFusion"
"""One operator for a sum and its layer norm, which takes several times as long as the two."""


class CpuEncoder(ABC):
    """Has the methods of a sentence-transformers model that an Encoder calls."""

    def __init__(self, graph: bytes, query_prompt: str = "", document_prompt: str = "") -> None:
        self._session = open_session(graph)
        self._query_prompt, self._document_prompt = query_prompt, document_prompt
        self._pool = ThreadPoolExecutor(count_threads(), "encoder")

    @abstractmethod
    def tokens(self, texts: list[str]) -> list[list[int]]:
        """Ids of each text's tokens."""

    @abstractmethod
    def inputs(self, ids: list[int]) -> dict[str, np.ndarray]:
        """Inputs of the graph for one text."""

    @property
    @abstractmethod
    def table(self) -> np.ndarray:
        """Vectors of all tokens, mapped: rows are read from the file as texts need them."""

    def release_pages(self) -> None:
        """Give back the pages of the table that were read: each new word adds 64 kB to the memory of the process, up to
        hundreds of MB. The system keeps them in its cache, so that the next text finds them there."""
        mapping = getattr(self.table, "_mmap", None)
        if mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
            mapping.madvise(mmap.MADV_DONTNEED)

    def encode_query(self, texts: Sequence[str], **_: object) -> np.ndarray:
        """(texts, dimensions), each row of length 1."""
        return self._encode([self._query_prompt + text for text in texts])

    def encode_document(self, texts: Sequence[str], **_: object) -> np.ndarray:
        """(texts, dimensions), each row of length 1."""
        return self._encode([self._document_prompt + text for text in texts])

    def measure_ranges(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        """The largest values, over the texts, of a graph's outputs of the form `ranges`, by the names of layers."""
        names = [output.name.rpartition(".")[0] for output in self._session.get_outputs()[1:]]
        runs = [self._session.run(None, self.inputs(ids))[1:] for ids in self.tokens(list(texts))]
        return {name: np.max(values, axis=0) for name, values in zip(names, zip(*runs, strict=True), strict=True)}

    def _encode(self, texts: list[str]) -> np.ndarray:
        rows = self.tokens(texts)
        if len(rows) == 1:
            return self._vector(rows[0])
        # Longest first: no core ends up alone with a long text.
        order = sorted(range(len(rows)), key=lambda index: -len(rows[index]))
        vectors = list(self._pool.map(self._vector, [rows[index] for index in order]))
        stacked: np.ndarray = np.concatenate(vectors)[np.argsort(order)]
        return stacked

    def _vector(self, ids: list[int]) -> np.ndarray:
        """(1, dimensions)."""
        vector: np.ndarray = self._session.run(None, self.inputs(ids))[0]
        length = np.maximum(np.linalg.norm(vector, axis=1, keepdims=True), 1e-12)
        return vector / np.asarray(length, np.float32)


@contextmanager
def report_no_runtime() -> Iterator[None]:
    """Turn errors of the runtime, and missing packages, into NoCpuRuntime."""
    try:
        yield
    except (NoCpuRuntime, ModelMissing):
        raise
    except ModuleNotFoundError as error:
        raise NoCpuRuntime(f"{error.name} is not installed") from error
    except Exception as error:  # the runtime's own errors have no common class
        if is_out_of_memory(error):
            raise
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise NoCpuRuntime(f"ONNX Runtime refused it: {reason}") from error


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
    return onnxruntime.InferenceSession(
        graph, options, providers=["CPUExecutionProvider"], disabled_optimizers=[SLOW_FUSION]
    )
