"""The graph of a BERT encoder for ONNX Runtime, written from its weights: no PyTorch, no exporter.

One text per run, without padding, so that a vector depends on its own text only.
"""

from __future__ import annotations

import numpy as np

from retrievers.dense.cpu.builder import RUNTIME_OPERATORS, GraphBuilder, Ranges
from retrievers.dense.cpu.folder import BertFolder, NoCpuRuntime
from retrievers.dense.cpu.mpnet import BIAS

FORMS = ("int8", "float32")
GELU_MINIMUM = -0.1701


def build_graph(model: BertFolder, form: str, ranges: Ranges | None = None) -> bytes:
    """The transformer of a model, from summed embeddings (1, tokens, width) to one vector (1, width).

    `form`: one of FORMS, or `ranges`, whose further outputs are the ranges of an int8 graph, per text.
    """
    graph = GraphBuilder(form, ranges)
    try:
        hidden = graph.norm("embedded", "embeddings.LayerNorm", model.weights, model.epsilon)
        for layer in range(model.layers):
            hidden = _layer(graph, model, f"encoder.layer.{layer}", hidden)
    except KeyError as error:
        raise NoCpuRuntime(f"it has no weights {error}") from error
    if model.pooling == "mean":
        graph.add("ReduceMean", [hidden], "vector", axes=[1], keepdims=0)
    else:
        graph.add("Gather", [hidden, graph.constant("first", np.array(0))], "vector", axis=1)
    width = len(model.weights["embeddings.LayerNorm.weight"])
    return graph.to_bytes("embedded", width, {BIAS: [model.heads, "tokens", "tokens"]} if model.relative else {})


def _layer(graph: GraphBuilder, model: BertFolder, name: str, hidden: str) -> str:
    attention, weights = f"{name}.attention", model.weights
    parts = [f"{attention}.self.{part}" for part in ("query", "key", "value")]
    weight, bias = (
        np.concatenate([weights[f"{part}.{kind}"] for part in parts]).astype(np.float32) for kind in ("weight", "bias")
    )
    width, head = len(bias) // 3, len(bias) // 3 // model.heads
    weight[:width] *= head**-0.5  # of queries, once for all
    bias[:width] *= head**-0.5
    parts = graph.linear_parts(hidden, f"{name}.mixed", weight, bias, 3)
    context = _attend(graph, name, parts, (model.heads, head), BIAS if model.relative else "")
    attended = graph.dense(context, f"{attention}.output.dense", weights)
    hidden = graph.norm(attended, f"{attention}.output.LayerNorm", weights, model.epsilon, hidden)
    wide = graph.dense(hidden, f"{name}.intermediate.dense", weights)
    # The fast form differs from the exact one by less than the int8 product before it.
    active = graph.add(
        "FastGelu" if graph.form == "int8" else "Gelu", [wide], f"{name}.active", domain=RUNTIME_OPERATORS
    )
    # A scale per token: a few values are far above others.
    narrow = graph.dense(active, f"{name}.output.dense", weights, at_least=GELU_MINIMUM)
    return graph.norm(narrow, f"{name}.output.LayerNorm", weights, model.epsilon, hidden)


def _attend(graph: GraphBuilder, name: str, parts: list[str], heads: tuple[int, int], bias: str) -> str:
    """Attention over all tokens by plain operators: for one text they take less time than the fused one.

    `parts`: queries, keys and values; `heads`: their number and width; `bias`: added to the scores, unless empty.
    """
    shape = graph.constant("heads", np.array([-1, *heads]))
    orders = {"query": [1, 0, 2], "key": [1, 2, 0], "value": [1, 0, 2]}
    query, key, value = (
        graph.add("Transpose", [graph.add("Reshape", [part, shape], f"{part}.heads")], f"{name}.{kind}", perm=order)
        for part, (kind, order) in zip(parts, orders.items(), strict=True)
    )
    scores = graph.add("MatMul", [query, key], f"{name}.scores")
    scores = graph.add("Add", [scores, bias], f"{name}.biased") if bias else scores
    shares = graph.add("Softmax", [scores], f"{name}.shares", axis=-1)
    context = graph.add("MatMul", [shares, value], f"{name}.values")
    by_token = graph.add("Transpose", [context], f"{name}.by_token", perm=[1, 0, 2])
    joined = graph.constant("joined", np.array([1, -1, heads[0] * heads[1]]))
    return graph.add("Reshape", [by_token, joined], f"{name}.context")
