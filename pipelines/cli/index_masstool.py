"""`rewrite-index detect` and `ablate`, for indexes with a MassTool."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence

from pipelines import config as configs
from pipelines.context import make_context
from pipelines.data.labels import load_labels
from pipelines.detection import DetectionScores, detect, find_detector, score_detections
from pipelines.index.build import IndexConfig
from retrievers.errors import BadInput
from retrievers.index import Index


def run_detect(arguments: argparse.Namespace) -> int:
    labels = load_labels(arguments.data).split(arguments.split)
    index = Index(arguments.index, make_context(arguments.device))
    detector = find_detector(index, arguments.retriever)
    if detector is None:
        raise BadInput(f"the retriever {arguments.retriever!r} has no detector; build one of kind masstool with labels")
    if arguments.threshold is not None and not 0 <= arguments.threshold <= 1:
        raise BadInput(f"--threshold must be between 0 and 1, got {arguments.threshold:g}")
    scores = score_detections(labels, detect(detector, [label.text for label in labels], arguments.threshold))
    threshold = detector.threshold if arguments.threshold is None else arguments.threshold
    if arguments.json:
        rows = [{**dataclasses.asdict(source), "balanced": source.balanced} for source in scores]
        print(json.dumps({"threshold": threshold, "fingerprint": index.fingerprint, "sources": rows}, indent=1))
        return 0
    print(f"{arguments.data}, {arguments.split}, threshold {threshold:.3f}")
    print(_table(scores))
    return 0


def _table(scores: Sequence[DetectionScores]) -> str:
    width = max(len(row.source) for row in scores)
    lines = [f"{'source':<{width}}  need a tool  kept   need none  refused  balanced"]
    for row in scores:
        values = (row.kept, row.refused, row.balanced)
        kept, refused, balanced = ("" if value is None else f"{value:.3f}" for value in values)
        cells = f"{row.source:<{width}}  {row.needing:>11}  {kept:<5}  {row.others:>9}  {refused:<7}  {balanced}"
        lines.append(cells.rstrip())
    return "\n".join(lines)


def run_ablate(arguments: argparse.Namespace) -> int:
    config = configs.load_from_args(arguments, IndexConfig)
    if config is None:
        return 0
    from pipelines.evaluate.ablation import ablation, format_table

    context = make_context(arguments.device, sys.stderr.isatty())
    rows = ablation(config, context, arguments.split, tuple(arguments.without or ()))
    print(format_table(rows))
    if arguments.output:
        arguments.output.write_text(json.dumps(rows, indent=1) + "\n")
    return 0
