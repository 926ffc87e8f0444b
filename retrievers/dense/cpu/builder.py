"""Writes graphs for ONNX Runtime: nodes, constants, layer norms, and linear layers in float32 or int8.

In int8 weights have one scale per output. Activations have a fixed scale per channel where ranges are given, part of
which moves into the weights (after SmoothQuant), else one scale per token, computed as the text runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

Weights = Mapping[str, np.ndarray]
Ranges = Mapping[str, np.ndarray]
"""Largest absolute input of each channel of a linear layer, by its name."""
OPSET, MODEL_FORMAT = 17, 8
RUNTIME_OPERATORS = "com.microsoft"
ZERO = 128  # activations are unsigned: what processors of either kind multiply fastest
LARGEST = 127
MARGIN = 1.25
"""By which an input may exceed its measured range; above, it is cut."""
SHARE = 0.7
"""Of differences between channels that moves into the weights; .6 to .7 is best for the bundled encoders."""
SMALLEST = np.float32(1e-6)


class GraphBuilder:
    """Nodes and constants, by the names of their outputs. `form` is that of linear layers.

    The form `ranges` is float32 with the largest absolute input of each linear layer as further outputs.
    """

    def __init__(self, form: str, ranges: Ranges | None = None) -> None:
        self.form, self._ranges = form, ranges or {}
        self._outputs: list[str] = []
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

    def dense(self, hidden: str, name: str, weights: Weights, at_least: float | None = None) -> str:
        """A linear layer of the model."""
        weight, bias = to_float(weights, f"{name}.weight"), to_float(weights, f"{name}.bias")
        return self.linear(hidden, name, weight, bias, at_least)

    def linear(
        self, hidden: str, name: str, weight: np.ndarray, bias: np.ndarray, at_least: float | None = None
    ) -> str:
        """A linear layer; `weight` is (outputs, inputs). With `at_least`, the smallest value that inputs can have, its
        int8 inputs have a scale per token."""
        return self.linear_parts(hidden, name, weight, bias, 1, at_least)[0]

    def linear_parts(
        self, hidden: str, name: str, weight: np.ndarray, bias: np.ndarray, count: int, at_least: float | None = None
    ) -> list[str]:
        """A linear layer as `count` products of equal size that share the int8 form of its inputs."""
        if self.form == "ranges" and at_least is None:
            size = self.add("Abs", [hidden], f"{name}.size")
            self._outputs.append(self.add("ReduceMax", [size], f"{name}.range", axes=[0, 1], keepdims=0))
        multiply: Callable[[str, str, np.ndarray, np.ndarray], str]
        if name in self._ranges:
            steps = self._fixed_steps(name, weight)
            hidden, weight = self._in_fixed_steps(hidden, name, steps), weight * steps
            multiply = self._fixed_product
        elif self.form == "int8":
            hidden, step = self._in_steps_per_token(hidden, name, at_least)
            multiply = partial(self._product_per_token, step)
        else:
            multiply = self._float_product
        names = [name] if count == 1 else [f"{name}.{part}" for part in range(count)]
        parts = zip(names, np.split(weight, count), np.split(bias, count), strict=True)
        return [multiply(hidden, part, rows, offset) for part, rows, offset in parts]

    def product(self, hidden: str, name: str, weight: np.ndarray) -> str:
        """A linear layer without a bias, exact in either form."""
        return self.add("MatMul", [hidden, self.constant(f"{name}.t", weight.T)], f"{name}.product")

    def _float_product(self, hidden: str, name: str, weight: np.ndarray, bias: np.ndarray) -> str:
        product = self.product(hidden, name, weight)
        return self.add("Add", [product, self.constant(f"{name}.bias", bias)], f"{name}.out")

    def _in_steps_per_token(self, hidden: str, name: str, at_least: float | None) -> tuple[str, str]:
        """Inputs in whole numbers of steps, and the step of each token."""
        size = hidden if at_least is not None else self.add("Abs", [hidden], f"{name}.size")
        largest = self.add("ReduceMax", [size], f"{name}.largest", axes=[-1], keepdims=1)
        lowest = self.constant(f"{name}.lowest", np.array(max(-(at_least or 0), 1e-12), np.float32))
        above_zero = self.add("Max", [largest, lowest], f"{name}.above_zero")
        part = self.constant("part", np.array(1 / LARGEST, np.float32))
        step = self.add("Mul", [above_zero, part], f"{name}.step")
        steps = self.add("Reshape", [step, self.constant("flat", np.array([-1]))], f"{name}.steps")
        count = self.add("Shape", [steps], f"{name}.count")
        zeros = self.add("Expand", [self.constant("zero", np.array([ZERO], np.uint8)), count], f"{name}.zeros")
        return self.add("QuantizeLinear", [hidden, steps, zeros], f"{name}.tokens", axis=1), step

    def _product_per_token(self, step: str, tokens: str, name: str, weight: np.ndarray, bias: np.ndarray) -> str:
        """The operator has one scale for all tokens, so that theirs is applied after it."""
        scaled = self.add(
            "MatMulIntegerToFloat", self._int8_inputs(tokens, name, weight), f"{name}.scaled", domain=RUNTIME_OPERATORS
        )
        product = self.add("Mul", [scaled, step], f"{name}.product")
        return self.add("Add", [product, self.constant(f"{name}.bias", bias)], f"{name}.out")

    def _fixed_steps(self, name: str, weight: np.ndarray) -> np.ndarray:
        """Of each input; weights are multiplied by them."""
        largest = np.maximum(self._ranges[name] * MARGIN, SMALLEST)
        weights = np.maximum(np.abs(weight).max(axis=0), SMALLEST)
        balanced = largest**SHARE / weights ** (1 - SHARE)
        steps: np.ndarray = (balanced * (largest / balanced).max() / LARGEST).astype(np.float32)
        return steps

    def _in_fixed_steps(self, hidden: str, name: str, steps: np.ndarray) -> str:
        in_steps = self.add("Mul", [hidden, self.constant(f"{name}.steps", 1 / steps)], f"{name}.in_steps")
        one, zero = self._one_and_zero()
        return self.add("QuantizeLinear", [in_steps, one, zero], f"{name}.tokens")

    def _fixed_product(self, tokens: str, name: str, weight: np.ndarray, bias: np.ndarray) -> str:
        inputs = [*self._int8_inputs(tokens, name, weight), "", self.constant(f"{name}.bias", bias)]
        return self.add("MatMulIntegerToFloat", inputs, f"{name}.out", domain=RUNTIME_OPERATORS)

    def _int8_inputs(self, tokens: str, name: str, weight: np.ndarray) -> list[str]:
        whole, scales = self._int8_weight(name, weight)
        one, zero = self._one_and_zero()
        return [tokens, whole, one, scales, zero]

    def _one_and_zero(self) -> tuple[str, str]:
        return self.constant("one", np.array(1, np.float32)), self.constant("zero_point", np.array(ZERO, np.uint8))

    def _int8_weight(self, name: str, weight: np.ndarray) -> tuple[str, str]:
        """The weight in whole numbers, and the scales of its outputs."""
        scale = np.maximum(np.abs(weight).max(axis=1), 1e-12).astype(np.float32) / np.float32(LARGEST)
        whole = np.rint(weight / scale[:, None]).astype(np.int8).T
        return self.constant(f"{name}.int8", whole), self.constant(f"{name}.scale", scale)

    def to_bytes(self, name: str, width: int, others: Mapping[str, list[int | str]] | None = None) -> bytes:
        """The graph; its input `name` is (1, tokens, width), its output `vector` (1, width); `others` have shapes."""
        shapes: dict[str, list[int | str]] = {name: [1, "tokens", width], **(others or {})}
        inputs = [helper.make_tensor_value_info(own, TensorProto.FLOAT, shape) for own, shape in shapes.items()]
        outputs = [helper.make_tensor_value_info("vector", TensorProto.FLOAT, [1, width])]
        outputs += [helper.make_tensor_value_info(output, TensorProto.FLOAT, None) for output in self._outputs]
        graph = helper.make_graph(self._nodes, "encoder", inputs, outputs, list(self._constants.values()))
        operators = [helper.make_opsetid("", OPSET), helper.make_opsetid(RUNTIME_OPERATORS, 1)]
        model = helper.make_model(graph, opset_imports=operators, ir_version=MODEL_FORMAT)
        data: bytes = model.SerializeToString()
        return data


def to_float(weights: Weights, name: str) -> np.ndarray:
    """One of the weights in single precision."""
    return weights[name].astype(np.float32)
