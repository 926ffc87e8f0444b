"""Group rows of similar length, so that little of what a model reads is padding."""

from __future__ import annotations

from collections.abc import Sequence

MIN_ROWS = {"cpu": 8}
GPU_MIN_ROWS = 64
"""Rows of a group even if their lengths differ: each group is one pass, and a GPU needs as long for a few rows."""
MIN_SHARE = 0.7
"""Length of the shortest row of a group, as a share of its longest."""


def groups_by_length(lengths: Sequence[int], max_rows: int, device: str) -> list[list[int]]:
    """Rows in groups of similar length, the longest first."""
    min_rows = MIN_ROWS.get(device, GPU_MIN_ROWS)
    groups: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        group = groups[-1] if groups else []
        is_similar = bool(group) and lengths[row] >= MIN_SHARE * lengths[group[0]]
        if group and len(group) < max_rows and (is_similar or len(group) < min_rows):
            group.append(row)
        else:
            groups.append([row])
    return groups
