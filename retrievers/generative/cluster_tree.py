"""Clusters of clusters: a tree of ten branches over vectors, as deep as it takes for a leaf to hold ten at the most."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np

BRANCHES = 10
ROUNDS = 25
NOTHING = np.zeros((0, 0), np.float32)


class Clusters:
    """Centres of every inner node, by its path from the root: "" is the root, "31" the second child of its fourth."""

    def __init__(self, state: Mapping[str, np.ndarray]) -> None:
        self.state = {name: np.asarray(array) for name, array in state.items()}
        names = self.state["nodes"].tobytes().decode().split("\n")
        starts = self.state["starts"]
        self._centres = {
            name: self.state["centres"][start:end]
            for name, start, end in zip(names, starts[:-1], starts[1:], strict=True)
        }

    @classmethod
    def of(cls, vectors: np.ndarray) -> Clusters:
        """The tree of these vectors (rows, dimensions)."""
        nodes: dict[str, np.ndarray] = {}
        _split("", vectors, nodes)
        names = list(nodes) or [""]
        centres = [nodes[name] for name in nodes] or [np.zeros((0, vectors.shape[1]), np.float32)]
        return cls(
            {
                "nodes": np.frombuffer("\n".join(names).encode(), np.uint8),
                "starts": np.cumsum([0, *map(len, centres)]).astype(np.int64),
                "centres": np.concatenate(centres).astype(np.float32),
            }
        )

    def paths(self, vectors: np.ndarray) -> list[str]:
        """The leaf of each vector: at every node the nearest centre."""
        return [self._path(vector) for vector in vectors]

    def _path(self, vector: np.ndarray) -> str:
        path = ""
        while len(centres := self._centres.get(path, NOTHING)):
            path += str(_nearest(vector[None], centres)[0])
        return path


def _split(path: str, vectors: np.ndarray, nodes: dict[str, np.ndarray]) -> None:
    if len(vectors) <= BRANCHES:
        return
    centres = _centres(np.unique(vectors, axis=0))
    if len(centres) < 2:
        return  # all alike: told apart by their numbers
    # By the same rule that a later tool is placed with; a centre that nobody is nearest to is none.
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
    """Ten centres, or the vectors themselves where they are no more."""
    if len(distinct) <= BRANCHES:
        few: np.ndarray = distinct.astype(np.float32)
        return few
    from scipy.cluster.vq import kmeans2

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # an empty cluster, which is left out
        found: np.ndarray = kmeans2(distinct.astype(np.float64), BRANCHES, iter=ROUNDS, minit="++", seed=0)[0]
    whole: np.ndarray = found[np.isfinite(found).all(axis=1)].astype(np.float32)
    return whole
