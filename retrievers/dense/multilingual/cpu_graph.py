"""The graph of the multilingual encoder for ONNX Runtime; module.py has the same in PyTorch.

In the form `int8` the convolutions are, which take nearly all of the time; the network after the mean stays exact.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from retrievers.dense.cpu.builder import GraphBuilder, Weights, to_float
from retrievers.dense.cpu.folder import NoCpuRuntime
from retrievers.dense.multilingual.pieces import EPSILON, ORDERS, WIDTH, padding


def build_multilingual(weights: Weights, form: str) -> bytes:
    """From the vectors of word pieces (1, pieces, width) to one vector (1, width)."""
    graph = GraphBuilder(form)
    try:
        _network(graph, weights, add_mean(graph, weights, "mean"))
    except KeyError as error:
        raise NoCpuRuntime(f"it has no weights {error}") from error
    return graph.to_bytes("pieces", WIDTH)


def add_mean(graph: GraphBuilder, weights: Weights, name: str) -> str:
    """The mean over word pieces (1, features)."""
    joined = graph.add("Concat", ["pieces", *_branches(graph, weights)], "joined", axis=2)
    normed = graph.norm(joined, "norm", weights, EPSILON)
    return graph.add("ReduceMean", [normed], name, axes=[1], keepdims=0)


def _branches(graph: GraphBuilder, weights: Weights) -> list[str]:
    """Two residual convolutions per order of n-grams; all branches have one projection together."""
    names = [f"branches.{index}" for index in range(len(ORDERS))]
    weight, bias = (
        np.concatenate([to_float(weights, f"{name}.project.{kind}") for name in names]) for kind in ("weight", "bias")
    )
    projected = graph.linear("pieces", "projected", weight, bias)
    parts = [f"{name}.projected" for name in names]
    sizes = graph.constant("sizes", np.full(len(names), len(bias) // len(names)))
    graph.add("Split", [projected, sizes], *parts, axis=2)
    outputs = []
    for name, part, order in zip(names, parts, ORDERS, strict=True):
        hidden = graph.norm(part, f"{name}.norm", weights, EPSILON)
        for layer in range(2):
            hidden = _convolve(graph, weights, f"{name}.convolutions.{layer}", hidden, order)
        outputs.append(hidden)
    return outputs


def _convolve(graph: GraphBuilder, weights: Weights, name: str, hidden: str, order: int) -> str:
    """A convolution as one product with the n-grams side by side, so that it has a form in int8."""
    before, after = padding(order)
    pads = graph.constant(f"pads.{order}", np.array([0, before, 0, 0, after, 0]))
    padded = graph.add("Pad", [hidden, pads], f"{name}.padded")
    axis, shifted = graph.constant("pieces.axis", np.array([1])), []
    for shift in range(order):
        first = graph.constant(f"first.{shift}", np.array([shift]))
        left_over = order - 1 - shift
        end = graph.constant(f"end.{left_over}", np.array([-left_over if left_over else np.iinfo(np.int64).max]))
        shifted.append(graph.add("Slice", [padded, first, end, axis], f"{name}.shifted.{shift}"))
    grams = graph.add("Concat", shifted, f"{name}.grams", axis=2)
    kernel = to_float(weights, f"{name}.weight").transpose(0, 2, 1)  # (outputs, order, inputs)
    product = graph.linear(grams, name, kernel.reshape(len(kernel), -1), to_float(weights, f"{name}.bias"))
    active = graph.add("Relu", [product], f"{name}.active")
    return graph.add("Add", [active, hidden], f"{name}.residual")


def _network(graph: GraphBuilder, weights: Weights, mean: str) -> None:
    """The network after the mean, whose last layer is the vector."""

    def layer(name: str, hidden: str) -> str:
        return graph.product(hidden, name, to_float(weights, f"{name}.weight"))

    def relu(hidden: str) -> str:
        return graph.add("Relu", [hidden], f"{hidden}.active")

    shape = graph.add("Shape", ["pieces"], "shape")
    count = graph.add("Gather", [shape, graph.constant("second", np.array(1))], "count", axis=0)
    root = graph.add("Sqrt", [graph.add("Cast", [count], "count.float", to=TensorProto.FLOAT)], "root")
    projected = graph.add(
        "Add", [layer("project", mean), graph.constant("project.bias", to_float(weights, "project.bias"))], "projection"
    )
    text = graph.add("Mul", [projected, root], "text")
    deep = graph.add("Add", [layer("second", relu(layer("first", text))), layer("second_shortcut", text)], "deep")
    hidden = relu(deep)
    final = graph.add("Add", [layer("fourth", relu(layer("third", hidden))), layer("fourth_shortcut", hidden)], "final")
    graph.add("Tanh", [final], "vector")
