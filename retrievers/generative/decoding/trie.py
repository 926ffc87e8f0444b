"""The trie of all codes that may be generated: those of the live tools.

A code ends with the end token, so that one tool's code may be a prefix of another's. Removed tools are not in the trie.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from retrievers.generative.token_schemes import Code


class Trie:
    """Nodes by number, 0 being the root; the edges of a node are adjacent in the arrays."""

    def __init__(self, codes: Sequence[Code], rows: Sequence[int], end: int) -> None:
        """`rows[i]` is the row of the tool with `codes[i]`; several rows may share a code."""
        edges: list[dict[int, int]] = [{}]
        self.rows: dict[int, list[int]] = {}
        """Rows by terminal node."""
        for code, row in zip(codes, rows, strict=True):
            node = 0
            for token in (*code, end):
                if token not in edges[node]:
                    edges[node][token] = len(edges)
                    edges.append({})
                node = edges[node][token]
            self.rows.setdefault(node, []).append(row)
        self.starts = np.cumsum([0, *map(len, edges)])
        self.tokens = np.array([token for children in edges for token in children], dtype=np.int64)
        self.nodes = np.array([node for children in edges for node in children.values()], dtype=np.int64)
        self.only_end = np.full(len(edges), -1, dtype=np.int64)
        """The one terminal node that can be reached from a node; -1 where there are several."""
        self.end_is_next = np.zeros(len(edges), dtype=bool)
        """True where nothing but the end token can follow."""
        for node in range(len(edges) - 1, -1, -1):  # children have larger numbers than their parents
            if node in self.rows:
                self.only_end[node], self.end_is_next[node] = node, True
            elif len(edges[node]) == 1:
                token, child = next(iter(edges[node].items()))
                self.only_end[node], self.end_is_next[node] = self.only_end[child], token == end

    def children(self, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(starts, tokens, nodes) of the edges of these nodes, one node after the other."""
        counts = self.starts[nodes + 1] - self.starts[nodes]
        starts = np.concatenate([[0], np.cumsum(counts)])
        edges = np.arange(starts[-1]) - np.repeat(starts[:-1], counts) + np.repeat(self.starts[nodes], counts)
        return starts, self.tokens[edges], self.nodes[edges]
