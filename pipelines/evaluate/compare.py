"""Compare systems with a baseline: differences and their significance; recall curves; groups of queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pipelines.data.dataset import DataSet
from pipelines.evaluate.significance import bootstrap_intervals, holm, randomisation_test
from pipelines.report.data import ComparisonRow
from retrievers.errors import BadInput
from reward.metrics import Judged, recall_at_k


def compare(
    values: Mapping[str, Mapping[str, np.ndarray]], against: Mapping[str, str], metrics: Sequence[str], seed: int
) -> tuple[ComparisonRow, ...]:
    """Compare each system of `against` with its counterpart, in every metric."""
    pairs = [(name, metric) for name in against for metric in metrics]
    if not pairs:
        return ()
    differences = np.stack([values[name][metric] - values[against[name]][metric] for name, metric in pairs], axis=1)
    p_values = randomisation_test(differences, seed).tolist()
    bounds = bootstrap_intervals(differences, seed).tolist()
    return tuple(
        ComparisonRow(
            name,
            against[name],
            metric,
            round(float(column.mean()), 6),
            rounded_interval(bound),
            p_value,
            p_holm,
            int((column > 1e-12).sum()),
            int((column < -1e-12).sum()),
            int((np.abs(column) <= 1e-12).sum()),
        )
        for (name, metric), column, bound, p_value, p_holm in zip(
            pairs, differences.T, bounds, p_values, holm(p_values), strict=True
        )
    )


def compare_groups(
    values: Mapping[str, Mapping[str, np.ndarray]],
    against: Mapping[str, str],
    metrics: Sequence[str],
    groups: Mapping[str, np.ndarray],
    seed: int,
) -> dict[str, tuple[ComparisonRow, ...]]:
    """Compare within each group of queries, corrected for the systems of one group and metric."""
    rows: dict[str, tuple[ComparisonRow, ...]] = {}
    for group, mask in groups.items():
        own = {name: {metric: v[metric][mask] for metric in metrics} for name, v in values.items()}
        rows[group] = tuple(row for metric in metrics for row in compare(own, against, (metric,), seed))
    return rows


def rounded_interval(bound: Sequence[float]) -> tuple[float, float]:
    """An interval, rounded for metrics.json."""
    return round(bound[0], 6), round(bound[1], 6)


def recall_curve(judged: Judged, depth: int = 20) -> tuple[float, ...]:
    """Recall at 1, 2, …, depth."""
    return tuple(float(recall_at_k(judged, k).mean()) for k in range(1, depth + 1))


def group_masks(data: DataSet, order: Sequence[str], key: str | None) -> dict[str, np.ndarray]:
    """Value of a metadata key -> mask of the queries that have it."""
    if key is None:
        return {}
    labels = [data.queries[query].metadata.get(key) for query in order]
    if all(label is None for label in labels):
        raise BadInput(f"no query of {data.name} has {key!r} in its metadata to group by")
    names = sorted({str(label) for label in labels})
    return {name: np.array([str(label) == name for label in labels]) for name in names}
