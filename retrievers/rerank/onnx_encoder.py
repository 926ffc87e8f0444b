"""A cross-encoder on ONNX Runtime, for CPUs: one pair per run and core, int8 where that keeps the order."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from retrievers.dense.cpu.export import load_graph
from retrievers.dense.cpu.folder import BertFolder, NoCpuRuntime, read_folder
from retrievers.dense.cpu.session import count_threads, open_session, report_no_runtime
from retrievers.rerank.cutting import TextCutter
from retrievers.rerank.settings import MIN_TOOL, SPECIAL

MIN_CORRELATION = 0.99
"""Of int8 scores with exact ones over the probes; below, float32 is used."""
PROBE_REQUESTS = (
    "will I need a coat in Oslo tonight",
    "move 300 kronor to my savings, then tell me what is left in euro",
    "find the cheapest train to Lyon on Friday and book two seats by the window",
    "list the open invoices of our largest customer",
)
PROBE_TOOLS = (
    "weather forecast: temperature, wind and rain of a city for up to ten days",
    "convert currency: an amount of money at today's rate",
    "transfer money: between accounts of one customer",
    "search trains: connections between two stations, with prices",
    "reserve seats: in a train that was found before",
    "list invoices: of a customer, by status and date",
    "play music: a song, an album or a radio station",
    "delete file: removes a file for good",
)


class OnnxCrossEncoder:
    """Scores pairs of request and tool without PyTorch."""

    def __init__(
        self, folder: Path, graph: bytes, model: BertFolder, limits: tuple[int, int], fingerprint: str
    ) -> None:
        """`limits`: tokens of request and tool together, and of a tool."""
        self.fingerprint, self.engine, self._session = fingerprint, "onnx", open_session(graph)
        max_length, max_tool = min(limits[0], len(model.weights["embeddings.position_embeddings.weight"])), limits[1]
        self._words = model.weights["embeddings.word_embeddings.weight"]  # mapped: only rows that are used are read
        self._positions = model.weights["embeddings.position_embeddings.weight"].astype(np.float32)
        self._types = model.weights["embeddings.token_type_embeddings.weight"].astype(np.float32)
        self._pooler, self._pooler_bias, self._head, self._head_bias = (
            model.weights[name].astype(np.float32)
            for name in ("pooler.dense.weight", "pooler.dense.bias", "classifier.weight", "classifier.bias")
        )
        self._tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        plain: Any = Tokenizer.from_str(self._tokenizer.to_str())
        self._tokenizer.enable_truncation(max_length, strategy="only_second")
        self._cutter = TextCutter(
            lambda text: list(plain.encode(text, add_special_tokens=False).offsets),
            max_length - SPECIAL - MIN_TOOL,
            max_tool,
        )
        self._pool = ThreadPoolExecutor(count_threads(), "reranker")

    def score(self, queries: Sequence[str], documents: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """All pairs, one core per pair, the longest first: no core ends up alone with a long one."""
        pairs = [
            (request, self._cutter.tool(tool))
            for query, tools in zip(queries, documents, strict=True)
            for request in [self._cutter.request(query)]
            for tool in tools
        ]
        encodings = self._tokenizer.encode_batch(pairs)
        order = sorted(range(len(pairs)), key=lambda index: -len(encodings[index]))
        vectors = np.empty((len(pairs), self._positions.shape[1]), np.float32)
        for index, vector in zip(order, self._pool.map(self._vector, [encodings[i] for i in order]), strict=True):
            vectors[index] = vector
        pooled = np.tanh(vectors @ self._pooler.T + self._pooler_bias)
        scores = (pooled @ self._head[0] + self._head_bias[0]).astype(np.float64)
        ends = np.cumsum([len(tools) for tools in documents], dtype=int)
        return [scores[end - len(tools) : end] for end, tools in zip(ends, documents, strict=True)]

    def _vector(self, encoding: Any) -> np.ndarray:
        """(1, width): the first token's, before the pooler."""
        embedded = self._words[encoding.ids].astype(np.float32) + self._types[encoding.type_ids]
        vector: np.ndarray = self._session.run(None, {"embedded": (embedded + self._positions[: len(embedded)])[None]})[
            0
        ]
        return vector


def load_onnx_encoder(folder: Path, limits: tuple[int, int], fingerprint: str, cache: Path | None) -> OnnxCrossEncoder:
    """The cross-encoder of a folder: int8 where that keeps the order. Raises NoCpuRuntime with the reason."""
    with report_no_runtime():
        model = read_folder(folder, "cls")
        if len(model.weights.get("classifier.weight", ())) != 1 or "pooler.dense.weight" not in model.weights:
            raise NoCpuRuntime("it has another head than BERT's for one score")
        graph = load_graph(cache, f"reranker-{fingerprint}", lambda: _build(folder, model, limits))
        return OnnxCrossEncoder(folder, graph, model, limits, fingerprint)


def _build(folder: Path, model: BertFolder, limits: tuple[int, int]) -> bytes:
    from retrievers.dense.cpu.graph import build_graph

    exact, small = (build_graph(model, form) for form in ("float32", "int8"))
    tools = [PROBE_TOOLS] * len(PROBE_REQUESTS)
    scores = [
        np.concatenate(OnnxCrossEncoder(folder, graph, model, limits, "").score(PROBE_REQUESTS, tools))
        for graph in (exact, small)
    ]
    if np.allclose(scores[0], scores[0][0]):  # nothing to correlate
        return exact
    return small if float(np.corrcoef(scores)[0, 1]) >= MIN_CORRELATION else exact
