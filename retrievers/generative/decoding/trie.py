"""All that may be said: the codes of the tools that can be found, as a tree of tokens.

A code ends with the end token, so that one tool's name may begin another's. Removed tools are simply not in it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from retrievers.generative.token_schemes import Code


class Trie:
    """Nodes by number, 0 being the root; edges of a node lie side by side."""

    def __init__(self, codes: Sequence[Code], rows: Sequence[int], end: int) -> None:
        """`rows[i]` is the row of the tool that `codes[i]` spells; tools of one code are told apart by nobody."""
        edges: list[dict[int, int]] = [{}]
        holders: dict[int, list[int]] = {}
        for code, row in zip(codes, rows, strict=True):
            node = 0
            for token in (*code, end):
                if token not in edges[node]:
                    edges[node][token] = len(edges)
                    edges.append({})
                node = edges[node][token]
            holders.setdefault(node, []).append(row)
        self.starts = np.cumsum([0, *map(len, edges)])
        self.tokens = np.array([token for each in edges for token in each], dtype=np.int64)
        self.nodes = np.array([node for each in edges for node in each.values()], dtype=np.int64)
        self.rows = holders
        """Terminal node -> rows."""
        only = np.full(len(edges), -1, dtype=np.int64)
        last = np.zeros(len(edges), dtype=bool)
        for node in range(len(edges) - 1, -1, -1):  # children have larger numbers than their parents
            below = edges[node]
            if node in holders:
                only[node], last[node] = node, True
            elif len(below) == 1:
                token, child = next(iter(below.items()))
                only[node], last[node] = only[child], token == end
        self.only = only
        """The one terminal node that can still be reached from a node; -1 where there are several."""
        self.last = last
        """Nothing but the end can follow."""

    def children(self, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(starts, tokens, nodes) of the edges of these nodes, one after the other."""
        counts = self.starts[nodes + 1] - self.starts[nodes]
        starts = np.concatenate([[0], np.cumsum(counts)])
        places = np.arange(starts[-1]) - np.repeat(starts[:-1], counts) + np.repeat(self.starts[nodes], counts)
        return starts, self.tokens[places], self.nodes[places]
