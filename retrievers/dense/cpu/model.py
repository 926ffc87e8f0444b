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
from retrievers.dense.cpu.mpnet import BIAS, distance_bias
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
RANGE_TEXTS = (
    "play the next song",
    "Weather forecast: temperature, wind and rain of a city for up to ten days. city: string; units: metric, imperial",
    'create_invoice(customer_id, items, currency="EUR", due_date=None): Creates an invoice and returns its number.',
    "I need to fly from Lisbon to Oslo on the 14th of March with two kids, under $900 if possible, and a harbour view!",
    "GET https://api.example.com/v1/users/{id}/orders?limit=50&status=open -> 200 application/json, 404 if not found",
    "请帮我查一下明天上海的天气, 然后订一张去北京的高铁票。",
    "Wie viele Einwohner hat Köln, und was kostet ein Kilo Äpfel dort?",
    "sqrt(2) * (3 + 4.5) / 7: compute the mean, the median and the standard deviation of [1, 2, 3, 5, 8, 13]",
    "converts the temperature from Fahrenheit to Celsius",
    "Sends an e-mail to one or more recipients, with attachments. to: array of strings, required; subject: string",
    "a list of all movies by this director, sorted by rating, that are streamed in my country",
    "Returns the current price, volume and market capitalization of a stock or a currency by its symbol, e.g. BTC",
    "turn off the lights in the kitchen at 10 pm and set the alarm for tomorrow",
    "Search the knowledge base: full-text search over articles. query: string; page: integer, 1 by default",
    "translate 'where is the station' into Japanese",
    "DELETE /repos/{owner}/{repo}/branches/{branch}: deletes a branch of a repository. Needs the scope repo:write.",
)
"""Texts of the usual kinds, by which the ranges of activations are measured."""


class CpuModel(CpuEncoder):
    """An encoder of BERT's family."""

    def __init__(self, folder: Path, model: BertFolder, graph: bytes) -> None:
        super().__init__(graph, model.query_prompt, model.document_prompt)
        self._words = model.weights["embeddings.word_embeddings.weight"]  # mapped: only rows that are used are read
        positions = model.weights["embeddings.position_embeddings.weight"][model.first_position :].astype(np.float32)
        kinds = model.weights.get("embeddings.token_type_embeddings.weight")  # MPNet has none
        self._positions = positions if kinds is None else positions + kinds[0]
        self._bias = distance_bias(model.weights, model.max_tokens) if model.relative else None
        self._tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_truncation(model.max_tokens)
        self._tokenizer.no_padding()

    @property
    def table(self) -> np.ndarray:
        return self._words

    def tokens(self, texts: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._tokenizer.encode_batch(texts)]

    def inputs(self, ids: list[int]) -> dict[str, np.ndarray]:
        count = len(ids)
        inputs = {"embedded": (self._words[ids].astype(np.float32) + self._positions[:count])[None]}
        return inputs if self._bias is None else inputs | {BIAS: self._bias[:, :count, :count]}


def load_cpu_model(folder: Path, fingerprint: str, cache: Path | None, form: str = "auto") -> CpuEncoder:
    """The model of a folder: int8 where that is nearly exact, else float32. Raises NoCpuRuntime with the reason."""
    with report_no_runtime():
        make, build = _multilingual(folder) if is_multilingual(folder) else _bert(folder)
        return make(load_graph(cache, f"{fingerprint}-{form}", lambda: _choose(make, build, form)))


def _bert(folder: Path) -> tuple[Make, Build]:
    model = read_folder(folder)

    def build(form: str) -> bytes:
        from retrievers.dense.cpu.graph import build_graph

        if form != "int8":
            return build_graph(model, form)
        return build_graph(model, form, make(build_graph(model, "ranges")).measure_ranges(RANGE_TEXTS))

    make = partial(CpuModel, folder, model)
    return make, build


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
