"""Runs the layers in front of the mean on ONNX Runtime, for a training of the layers after it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from retrievers.dense.cpu.builder import GraphBuilder, Weights
from retrievers.dense.cpu.session import count_threads, open_session
from retrievers.dense.multilingual.cpu_graph import add_mean
from retrievers.dense.multilingual.cpu_model import TABLE
from retrievers.dense.multilingual.pieces import WIDTH


def pool_on_cpu(weights: Weights, rows: Sequence[list[int]]) -> np.ndarray:
    """(texts, features): the means of texts, given as ids of word pieces. Convolutions are in int8, as in a search."""
    graph = GraphBuilder("int8")
    add_mean(graph, weights, "vector")
    session, table = open_session(graph.to_bytes("pieces", WIDTH)), weights[TABLE]

    def pool(ids: list[int]) -> np.ndarray:
        vector: np.ndarray = session.run(None, {"pieces": table[ids].astype(np.float32)[None]})[0]
        return vector

    with ThreadPoolExecutor(count_threads()) as threads:
        return np.concatenate(list(threads.map(pool, rows)))
