"""Calibrations that ship, for retrievers that need no training.

Fitted by `benchmarks/nothing_fits.py` and, for encoders that were tuned, `benchmarks/left_out_calibration.py`;
docs/notes/2026-11-18-nothing-fits.md has data and figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from retrievers.calibration.logistic import Calibration

WEIGHTS: dict[tuple[str, ...], tuple[float, tuple[tuple[float, ...], ...], float, float]] = {
    ("bm25",): (-3.7336, ((1.9767, 3.8167, -1.6025),), 1.2264, 0.21),
    ("bundled:minilm",): (-3.1889, ((11.2939, -9.1277),), 1.2559, 0.2),
    ("bundled:tools",): (-3.8626, ((10.6804, -7.1891),), 0.8185, 0.19),
    ("bundled:multilingual",): (-2.9342, ((10.3577, -8.2614),), 1.1921, 0.2),
    ("bundled:tools-multilingual",): (-3.0027, ((9.2501, -6.9564),), 1.2695, 0.2),
    ("bm25", "bundled:tools-multilingual"): (
        -2.7052,
        ((0.4147, 1.2546, -0.2337), (7.0115, -6.9064)),
        1.3035,
        0.19,
    ),
    ("bm25", "bundled:multilingual"): (-2.5589, ((0.5025, 1.5988, -0.3088), (7.2718, -7.9308)), 1.256, 0.18),
    ("bm25", "bundled:tools"): (-3.7502, ((0.5481, 1.1864, 0.0139), (7.0864, -6.9547)), 0.9089, 0.17),
    ("bm25", "bundled:minilm"): (-3.1076, ((0.6077, 1.6035, -0.4276), (9.3123, -9.1458)), 1.1277, 0.17),
}
"""The retriever, or a hybrid's parts -> intercept, weights of the evidence of each, weight of the rank, and the
threshold that loses 5 % of the right answers, in the mean over the catalogues."""


def shipped_calibration(parts: Sequence[Mapping[str, Any]]) -> Calibration | None:
    """The calibration of a retriever, or of a hybrid of several, by their settings; None: none ships."""
    labels = [_label(settings) for settings in parts]
    known = WEIGHTS.get(tuple(sorted(labels)))
    if known is None:
        return None
    intercept, weights, rank, min_score = known
    by_label = dict(zip(sorted(labels), weights, strict=True))
    return Calibration(intercept, (*(weight for label in labels for weight in by_label[label]), rank), min_score)


def _label(settings: Mapping[str, Any]) -> str:
    """`bm25`, or the encoder of a dense retriever; "" for all that are trained."""
    if settings["kind"] in ("dense", "milvus") and not settings.get("train"):
        return str(settings["model"])
    return "bm25" if settings["kind"] == "bm25" else ""
