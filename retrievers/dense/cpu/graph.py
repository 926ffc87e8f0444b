"""The graph of a BERT encoder for ONNX Runtime, written from its weights: no PyTorch, no exporter.

One text per run, without padding, so that a vector depends on its own text only.
"""

from __future__ import annotations

import numpy as np

from retrievers.dense.cpu.builder import RUNTIME_OPERATORS, GraphBuilder, Ranges
from retrievers.dense.cpu.folder import BertFolder, NoCpuRuntime

FORMS = ("int8", "float32")


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
    return graph.to_bytes("embedded", width)


def _layer(graph: GraphBuilder, model: BertFolder, name: str, hidden: str) -> str:
    attention, weights = f"{name}.attention", model.weights
    parts = [f"{attention}.self.{part}" for part in ("query", "key", "value")]
    weight, bias = (
        np.concatenate([weights[f"{part}.{kind}"] for part in parts]).astype(np.float32) for kind in ("weight", "bias")
    )
    width, head = len(bias) // 3, len(bias) // 3 // model.heads
    weight[:width] *= head**-0.5  # of queries, once for all
    bias[:width] *= head**-0.5
    mixed = graph.linear(hidden, f"{name}.mixed", weight, bias)
    context = _attend(graph, name, mixed, (model.heads, head))
    attended = graph.dense(context, f"{attention}.output.dense", weights)
    hidden = graph.norm(attended, f"{attention}.output.LayerNorm", weights, model.epsilon, hidden)
    wide = graph.dense(hidden, f"{name}.intermediate.dense", weights)
    # The fast form differs from the exact one by less than the int8 product before it.
    active = graph.add(
        "FastGelu" if graph.form == "int8" else "Gelu", [wide], f"{name}.active", domain=RUNTIME_OPERATORS
    )
    narrow = graph.dense(active, f"{name}.output.dense", weights, has_range=False)  # a few values are far above others
    return graph.norm(narrow, f"{name}.output.LayerNorm", weights, model.epsilon, hidden)


def _attend(graph: GraphBuilder, name: str, mixed: str, heads: tuple[int, int]) -> str:
    """Attention over all tokens by plain operators: for one text they take less time than the fused one.

    `mixed`: queries, keys and values, side by side; `heads`: their number and width.
    """
    split = graph.add("Reshape", [mixed, graph.constant("heads", np.array([-1, 3, *heads]))], f"{name}.heads")
    by_head = graph.add("Transpose", [split], f"{name}.by_head", perm=[1, 2, 0, 3])
    query, key, value = (f"{name}.{part}" for part in ("query", "key", "value"))
    graph.add("Split", [by_head, graph.constant("thirds", np.ones(3, np.int64))], query, key, value, axis=0)
    turned = graph.add("Transpose", [key], f"{key}.turned", perm=[0, 1, 3, 2])
    scores = graph.add("MatMul", [query, turned], f"{name}.scores")
    shares = graph.add("Softmax", [scores], f"{name}.shares", axis=-1)
    context = graph.add("MatMul", [shares, value], f"{name}.values")
    by_token = graph.add("Transpose", [context], f"{name}.by_token", perm=[0, 2, 1, 3])
    joined = graph.constant("joined", np.array([1, -1, heads[0] * heads[1]]))
    return graph.add("Reshape", [by_token, joined], f"{name}.context")
