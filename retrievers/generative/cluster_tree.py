"""Hierarchical k-means: a tree with ten branches per node, split until a leaf holds ten vectors at most."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np

BRANCHES = 10
KMEANS_ITERATIONS = 25
NO_CENTRES = np.zeros((0, 0), np.float32)


class ClusterTree:
    """Centres of every inner node, by its path from the root: "" is the root, "31" the second child of its fourth."""

    def __init__(self, state: Mapping[str, np.ndarray]) -> None:
        self.state = {name: np.asarray(array) for name, array in state.items()}
        paths = self.state["nodes"].tobytes().decode().split("\n")
        starts = self.state["starts"]
        self._centres = {
            path: self.state["centres"][start:end]
            for path, start, end in zip(paths, starts[:-1], starts[1:], strict=True)
        }

    @classmethod
    def fit(cls, vectors: np.ndarray) -> ClusterTree:
        """Build the tree of (rows, dimensions) vectors."""
        nodes: dict[str, np.ndarray] = {}
        _split("", vectors, nodes)
        paths = list(nodes) or [""]
        centres = list(nodes.values()) or [np.zeros((0, vectors.shape[1]), np.float32)]
        return cls(
            {
                "nodes": np.frombuffer("\n".join(paths).encode(), np.uint8),
                "starts": np.cumsum([0, *map(len, centres)]).astype(np.int64),
                "centres": np.concatenate(centres).astype(np.float32),
            }
        )

    def paths(self, vectors: np.ndarray) -> list[str]:
        """The path to each vector's leaf: the nearest centre at every node."""
        return [self._path(vector) for vector in vectors]

    def _path(self, vector: np.ndarray) -> str:
        path = ""
        while len(centres := self._centres.get(path, NO_CENTRES)):
            path += str(_nearest(vector[None], centres)[0])
        return path


def _split(path: str, vectors: np.ndarray, nodes: dict[str, np.ndarray]) -> None:
    if len(vectors) <= BRANCHES:
        return
    centres = _centres(np.unique(vectors, axis=0))
    if len(centres) < 2:
        return  # equal vectors: their tools are distinguished by a number
    # Assign by the same rule that later tools use, and drop centres that are nearest to no vector.
    used = sorted(set(_nearest(vectors, centres)))
    if len(used) < 2:
        return
    nodes[path] = centres = centres[used]
    nearest = np.array(_nearest(vectors, centres))
    for branch in range(len(used)):
        _split(f"{path}{branch}", vectors[nearest == branch], nodes)


def _nearest(vectors: np.ndarray, centres: np.ndarray) -> list[int]:
    return [int(np.square(centres - vector).sum(axis=1).argmin()) for vector in vectors]


def _centres(distinct: np.ndarray) -> np.ndarray:
    """Ten k-means centres, or the vectors themselves where there are ten or fewer."""
    if len(distinct) <= BRANCHES:
        few: np.ndarray = distinct.astype(np.float32)
        return few
    from scipy.cluster.vq import kmeans2

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # empty clusters are dropped below
        centres = kmeans2(distinct.astype(np.float64), BRANCHES, iter=KMEANS_ITERATIONS, minit="++", seed=0)[0]
    finite: np.ndarray = centres[np.isfinite(centres).all(axis=1)].astype(np.float32)
    return finite
