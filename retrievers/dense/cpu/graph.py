"""The graph of a BERT encoder for ONNX Runtime, written from its weights: no PyTorch, no exporter.

One text per run, without padding, so that a vector depends on its own text only. In the form `int8` weights have one
scale per output, and activations one scale per token, computed as the text runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from retrievers.dense.cpu.folder import BertFolder, NoCpuRuntime

Weights = Mapping[str, np.ndarray]
FORMS = ("int8", "float32")
OPSET, MODEL_FORMAT = 17, 8
RUNTIME_OPERATORS = "com.microsoft"
ZERO = 128  # activations are unsigned: what processors of either kind multiply fastest
LARGEST = 127


def build_graph(model: BertFolder, form: str) -> bytes:
    """The transformer of a model, from summed embeddings (1, tokens, width) to one vector (1, width)."""
    graph = GraphBuilder(form)
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
    mixed = graph.linear(hidden, f"{name}.mixed", weight, bias)
    outputs = [f"{part}.out" for part in parts]
    graph.add("Split", [mixed, graph.constant("thirds", np.full(3, len(bias) // 3))], *outputs, axis=2)
    context = graph.add(
        "MultiHeadAttention", outputs, f"{name}.context", domain=RUNTIME_OPERATORS, num_heads=model.heads
    )
    attended = graph.dense(context, f"{attention}.output.dense", weights)
    hidden = graph.norm(attended, f"{attention}.output.LayerNorm", weights, model.epsilon, hidden)
    wide = graph.dense(hidden, f"{name}.intermediate.dense", weights)
    # The fast form differs from the exact one by less than the int8 product before it.
    active = graph.add(
        "FastGelu" if graph.form == "int8" else "Gelu", [wide], f"{name}.active", domain=RUNTIME_OPERATORS
    )
    narrow = graph.dense(active, f"{name}.output.dense", weights)
    return graph.norm(narrow, f"{name}.output.LayerNorm", weights, model.epsilon, hidden)


class GraphBuilder:
    """Nodes and constants, by the names of their outputs. `form` is that of linear layers."""

    def __init__(self, form: str) -> None:
        self.form = form
        self._nodes: list[Any] = []
        self._constants: dict[str, Any] = {}

    def constant(self, name: str, value: np.ndarray) -> str:
        self._constants.setdefault(
            name, numpy_helper.from_array(np.ascontiguousarray(value).reshape(value.shape), name)
        )
        return name

    def add(self, operator: str, inputs: list[str], *outputs: str, domain: str = "", **attributes: Any) -> str:
        self._nodes.append(helper.make_node(operator, inputs, list(outputs), domain=domain, **attributes))
        return outputs[0]

    def norm(self, hidden: str, name: str, weights: Weights, epsilon: float, skip: str = "") -> str:
        """Layer norm of a tensor, or of its sum with `skip`."""
        inputs = [self.constant(f"{name}.{kind}", to_float(weights, f"{name}.{kind}")) for kind in ("weight", "bias")]
        if skip:
            hidden = self.add("Add", [hidden, skip], f"{name}.sum")
        return self.add("LayerNormalization", [hidden, *inputs], f"{name}.out", epsilon=epsilon)

    def dense(self, hidden: str, name: str, weights: Weights) -> str:
        """A linear layer of the model."""
        return self.linear(hidden, name, to_float(weights, f"{name}.weight"), to_float(weights, f"{name}.bias"))

    def linear(self, hidden: str, name: str, weight: np.ndarray, bias: np.ndarray) -> str:
        """A linear layer; `weight` is (outputs, inputs)."""
        if self.form == "float32":
            product = self.product(hidden, name, weight)
        else:
            product = self._int8_product(hidden, name, weight)
        return self.add("Add", [product, self.constant(f"{name}.bias", bias)], f"{name}.out")

    def product(self, hidden: str, name: str, weight: np.ndarray) -> str:
        """A linear layer without a bias, exact in either form."""
        return self.add("MatMul", [hidden, self.constant(f"{name}.t", weight.T)], f"{name}.product")

    def _int8_product(self, hidden: str, name: str, weight: np.ndarray) -> str:
        scale = np.maximum(np.abs(weight).max(axis=1), 1e-12).astype(np.float32) / np.float32(LARGEST)
        whole = self.constant(f"{name}.int8", np.rint(weight / scale[:, None]).astype(np.int8).T)
        size = self.add("Abs", [hidden], f"{name}.size")
        largest = self.add("ReduceMax", [size], f"{name}.largest", axes=[-1], keepdims=1)
        above_zero = self.add(
            "Max", [largest, self.constant("tiny", np.array(1e-12, np.float32))], f"{name}.above_zero"
        )
        part = self.constant("part", np.array(1 / LARGEST, np.float32))
        step = self.add("Mul", [above_zero, part], f"{name}.step")
        steps = self.add("Reshape", [step, self.constant("flat", np.array([-1]))], f"{name}.steps")
        count = self.add("Shape", [steps], f"{name}.count")
        zeros = self.add("Expand", [self.constant("zero", np.array([ZERO], np.uint8)), count], f"{name}.zeros")
        tokens = self.add("QuantizeLinear", [hidden, steps, zeros], f"{name}.tokens", axis=1)
        zero = self.constant("zero_point", np.array(ZERO, np.uint8))
        # The operator has one scale for all tokens, so that theirs is applied after it.
        one, scales = self.constant("one", np.array(1, np.float32)), self.constant(f"{name}.scale", scale)
        inputs, operator = [tokens, whole, one, scales, zero], "MatMulIntegerToFloat"
        scaled = self.add(operator, inputs, f"{name}.scaled", domain=RUNTIME_OPERATORS)
        return self.add("Mul", [scaled, step], f"{name}.product")

    def to_bytes(self, name: str, width: int) -> bytes:
        """The graph; its input `name` is (1, tokens, width), its output `vector` (1, width)."""
        inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, "tokens", width])]
        outputs = [helper.make_tensor_value_info("vector", TensorProto.FLOAT, [1, width])]
        graph = helper.make_graph(self._nodes, "encoder", inputs, outputs, list(self._constants.values()))
        operators = [helper.make_opsetid("", OPSET), helper.make_opsetid(RUNTIME_OPERATORS, 1)]
        model = helper.make_model(graph, opset_imports=operators, ir_version=MODEL_FORMAT)
        data: bytes = model.SerializeToString()
        return data


def to_float(weights: Weights, name: str) -> np.ndarray:
    """One of the weights in single precision."""
    return weights[name].astype(np.float32)
