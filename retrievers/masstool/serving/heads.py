"""Trained heads, for searching and detecting: the formulas of model.py without training, in numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from retrievers.masstool.hashed_words import word_logits
from retrievers.masstool.serving.arrays import sigmoid, softmax, unit_rows
from retrievers.masstool.serving.pool_graph import PoolGraph, PoolNeighbours
from retrievers.masstool.settings import MassToolSettings

VIEWS = ("tool", "scene")
SCALES = ("votes", "sharpness", "tools", "adapter", "transfer")
"""Factors that dev chooses once training is over: how much of each learned part to use."""
TEMPERATURE = 0.05
"""Temperature of the softmax over tools, and of the attention when training starts."""
MASKED = -1e9
"""Logit of an item outside the softmax; unlike -inf it gives no NaN where all are outside."""


class ServingHeads:
    """Folds queries and their neighbours into one vector each."""

    num_cosines: ClassVar[int] = 1
    has_sink_by_kind: ClassVar[bool] = True

    def __init__(self, settings: MassToolSettings, state: Mapping[str, np.ndarray]) -> None:
        """`state`: weights and buffers by the names of model.Heads. Raises KeyError where one is missing."""
        self.settings, self.state = settings, dict(state)
        for name, shape in self.expected_shapes(settings, state).items():
            if state[name].shape != shape:
                raise ValueError(f"{name} has the shape {state[name].shape}, not {shape}")
        self.has_sink = settings.modules.sink and self.has_sink_by_kind
        self.vote_scale = float(2 if settings.modules.score == "joint" else self.num_cosines)
        self.word_weights = state["word_weights"]
        self._scales: dict[str, float] = dict(zip(SCALES, map(float, state["scales"]), strict=True))
        self._adapter = np.float32(self._scales["adapter"]) * state["adapter"]

    @classmethod
    def expected_shapes(cls, settings: MassToolSettings, state: Mapping[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
        """Shapes of the whole state by name."""
        d, views = len(state["attention"]), range(len(VIEWS))
        width, outputs = (2 * d if settings.modules.transfer == "concatenation" else d), cls.detection_outputs()
        square = ["adapter", "attention", "tower.weight", "info.weight", *(f"mixing.{view}" for view in views)]
        square += ["scene_attention"] if settings.modules.attention == "graph" else []
        single = {name: () for name in ("sink", "neighbour_weight", "graph_weight", "threshold")}
        layers = {f"transfer.{view}.weight": (d, width) for view in views} | {"needs_tool.weight": (outputs, d)}
        biases = {name: (d,) for name in ("tower.bias", "info.bias", *(f"transfer.{view}.bias" for view in views))}
        rows = {"vote_weights": (2 * len(VIEWS),), "scales": (len(SCALES),), "detection_mix": (2,)}
        catalogue = {name: (len(state[name]), d) for name in ("residual", "queries")}
        words = {"word_weights": (len(state["word_weights"]),), "needs_tool.bias": (outputs,)}
        return {**{name: (d, d) for name in square}, **single, **layers, **biases, **rows, **catalogue, **words}

    @staticmethod
    def detection_outputs() -> int:
        """Numbers that the detector computes per query."""
        return 1

    def transfer_strength(self) -> float:
        """Share of trained tools' shifts that similar tools get."""
        return self._scales["transfer"]

    def query_vectors(self, x: np.ndarray, near: PoolNeighbours, keys: np.ndarray, graph: PoolGraph) -> np.ndarray:
        """u(q) of queries. `keys`: vectors of the pool's queries."""
        text = unit_rows(x + x @ self._adapter) if self.settings.train else x
        searched = self.search_neighbours(x, near, keys, graph)
        joint: list[np.ndarray] = []
        if self.settings.modules.transfer != "none":
            info = np.maximum(self._layer("info", self._hidden(x)), 0)
            joint = [self._joint_vectors(info, vectors, index) for index, vectors in enumerate(searched)]
        if self.settings.modules.score == "joint":
            return joint_vectors(text, searched, joint)
        vectors: np.ndarray = text + self._scales["votes"] * self.votes(searched, joint)
        return vectors

    def text_vectors(self, x: np.ndarray) -> np.ndarray | None:
        """u(q) without the neighbours; None if they are not an addition to it."""
        if not self.adds_votes:
            return None
        return unit_rows(x + x @ self._adapter) if self.settings.train else x

    @property
    def adds_votes(self) -> bool:
        """False if neighbours are more than an addition to the vectors."""
        return self.settings.modules.score != "joint"

    @property
    def uses_votes(self) -> bool:
        """False if neighbours change no vector."""
        return self.settings.modules.intent and self._scales["votes"] != 0

    def voters(self, near: PoolNeighbours) -> np.ndarray:
        """True for each neighbour that is similar enough to vote."""
        if not self.settings.modules.filter:
            return near.valid
        similar: np.ndarray = near.valid & (near.cosines >= self.state["threshold"])
        return similar

    def votes(self, searched: Sequence[np.ndarray], joint: Sequence[np.ndarray] = ()) -> np.ndarray:
        """Weighted sum of the neighbours' terms; `joint`: the terms by way of the detection tower."""
        intent, weights = self.settings.modules.intent, self.state["vote_weights"]
        terms = [*(searched if intent else ()), *joint]
        kept = weights if len(terms) == len(weights) else weights[:2] if intent else weights[2:]
        total = np.zeros_like(searched[0])
        for weight, term in zip(kept, terms, strict=False):
            total += weight * term
        return total

    def search_neighbours(
        self, x: np.ndarray, near: PoolNeighbours, keys: np.ndarray, graph: PoolGraph
    ) -> tuple[np.ndarray, np.ndarray]:
        """Contribution of the neighbours, by tool view and by scene view."""
        modules = self.settings.modules
        if not modules.intent:
            return x, x
        if not len(keys):
            return np.zeros_like(x), np.zeros_like(x)
        vectors, weight = keys[near.rows], self.state["neighbour_weight"]
        both: list[np.ndarray] = []
        if modules.attention == "graph":
            for name in VIEWS:
                values = weight * vectors
                if modules.graph:
                    values = values + graph.to_queries(near.rows, name == "scene", modules.scene_view)
                both.append(weighted_sum(self._attend(x, near, values, name), values))
        else:
            attention = self._attend(x, near, vectors)
            both = [weight * weighted_sum(attention, vectors)] * len(VIEWS)
            if modules.graph:
                both = list(graph.to_neighbours(near.rows, attention, modules.scene_view) + both[0])
        return both[0] @ self.state["mixing.0"], both[1] @ self.state["mixing.1"]

    def _attend(self, x: np.ndarray, near: PoolNeighbours, vectors: np.ndarray, view: str = "tool") -> np.ndarray:
        """(queries, neighbours) attention; what is missing to 1 goes to the sink, where there is one."""
        modules, sharpness = self.settings.modules, np.float32(self._scales["sharpness"])
        valid = self.voters(near)
        by_scene = view == "scene" and modules.attention == "graph"
        matrix = self.state["scene_attention" if by_scene else "attention"]
        logits = np.matmul(vectors, (x @ matrix)[:, :, None])[:, :, 0]
        logits = sharpness * logits + np.float32(MASKED) * ~valid
        if not self.has_sink:
            shares: np.ndarray = softmax(logits) * valid
            return shares
        sink = np.full((len(x), 1), sharpness * self.state["sink"], np.float32)
        return softmax(np.concatenate([sink, logits], axis=1))[:, 1:]

    def _joint_vectors(self, info: np.ndarray, searched: np.ndarray, index: int) -> np.ndarray:
        """Bring the detection tower's state into the searched vector of one view (detection_transfer.py)."""
        name = f"transfer.{index}"
        match self.settings.modules.transfer:
            case "gating":
                gated: np.ndarray = sigmoid(self._layer(name, info)) * searched
                return gated
            case "addition":
                added: np.ndarray = self._layer(name, info) + searched
                return added
            case "concatenation":
                return self._layer(name, np.concatenate([info, searched], axis=-1))
            case _:
                known = self._layer(name, info)
                scores = np.stack([(searched * searched).sum(-1), (searched * known).sum(-1)], axis=-1)
                shares = softmax(scores / np.float32(searched.shape[-1] ** 0.5))
                attended: np.ndarray = shares[:, :1] * searched + shares[:, 1:] * known
                return attended

    def _layer(self, name: str, values: np.ndarray) -> np.ndarray:
        outputs: np.ndarray = values @ self.state[f"{name}.weight"].T + self.state[f"{name}.bias"]
        return outputs

    def _hidden(self, x: np.ndarray) -> np.ndarray:
        """Hidden state of the detection tower."""
        hidden: np.ndarray = np.maximum(self._layer("tower", x), 0)
        return hidden

    def detect(self, x: np.ndarray, texts: Sequence[str]) -> np.ndarray:
        """Probability that each query needs a tool, by its vector and, where dev chose so, by its words."""
        mix = self.state["detection_mix"]
        logits = mix[0] * self._layer("needs_tool", self._hidden(x))
        if len(self.word_weights):
            logits = logits + mix[1] * word_logits(self.word_weights, texts)[:, None]
        return self._probabilities(logits)

    def _probabilities(self, logits: np.ndarray) -> np.ndarray:
        return sigmoid(logits[:, 0])


def untrained_heads(settings: MassToolSettings, dimensions: int) -> ServingHeads:
    """Heads as they are before training, for votes of confirmed queries."""
    d, views = dimensions, range(len(VIEWS))
    square, sizes = np.eye(d, dtype=np.float32), {"needs_tool": 1}
    layers = [(name, sizes.get(name, d)) for name in ("tower", "needs_tool", "info", *(f"transfer.{v}" for v in views))]
    state: dict[str, np.ndarray] = {f"{name}.weight": np.zeros((outputs, d), np.float32) for name, outputs in layers}
    state |= {f"{name}.bias": np.zeros(outputs, np.float32) for name, outputs in layers}
    state |= {f"mixing.{view}": square for view in views} | {"attention": square / np.float32(TEMPERATURE)}
    state |= {name: np.zeros((0, d), np.float32) for name in ("residual", "queries")} | {"adapter": 0 * square}
    single = {"sink": settings.threshold / TEMPERATURE, "neighbour_weight": 0.2, "graph_weight": 0.2}
    rows = {"vote_weights": [0.3] * 4, "scales": [1.0, 1.0, 1.0, 1.0, 0.5], "detection_mix": [1.0, 0.0]}
    numbers = {**single, **rows, "threshold": settings.threshold, "word_weights": list[float]()}
    return ServingHeads(settings, {**state, **{name: np.array(value, np.float32) for name, value in numbers.items()}})


def weighted_sum(attention: np.ndarray, values: np.ndarray) -> np.ndarray:
    """(queries, dimensions) sum of each query's values."""
    sums: np.ndarray = np.matmul(attention[:, None], values)[:, 0]
    return sums


def joint_vectors(text: np.ndarray, searched: Sequence[np.ndarray], joint: Sequence[np.ndarray]) -> np.ndarray:
    """Sum of the unit vectors of `joint`; the text where no neighbour counts."""
    alone = ~np.any(np.stack(list(searched)), axis=2).any(axis=0)
    return np.where(alone[:, None], text, unit_rows(joint[0]) + unit_rows(joint[1]))
