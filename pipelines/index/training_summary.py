"""Summary of a build's training in a line or two: a training that changed nothing must not look like success."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from retrievers.index import manifest as manifests


def training_lines(folder: Path) -> Iterator[str]:
    """Lines about every trained retriever of an index, from its `training.json`."""
    for name, part in manifests.read(folder)[0].retrievers.items():
        path = folder / part.model / "training.json"
        if part.model and path.exists():
            yield from (f"  {name}{line}" for line in summary_lines(json.loads(path.read_text(encoding="utf-8"))))


def summary_lines(training: Mapping[str, Any]) -> Iterator[str]:
    """Summary of one training.json."""
    if codes := training.get("codes"):
        yield ", codes: " + ", ".join(f"{key} {value}" for key, value in codes.items())
    for stage, facts in training.get("stages", {}).items():
        last = (
            ", ".join(f"{key} {value:.4g}" for key, value in facts["history"][-1].items()) if facts != "skipped" else ""
        )
        yield f", {stage}: " + (f"{facts['steps']} steps, {facts['tokens']} tokens, {last}" if last else "skipped")
    before, after = _recall(training.get("plain", training.get("before"))), _recall(training.get("after"))
    if before is None or after is None:
        return
    kept = ""
    if "blend" in training:  # an encoder; a MassTool's `plain` is its encoder alone
        share = float(training["blend"])
        kept = f"{share:.0%} of the tuned weights" if share else "the original model, since tuning did not help dev"
    yield f": dev recall@5 {before:.3f} -> {after:.3f}" + (f"; kept is {kept}" if kept else "")


def _recall(figures: object) -> float | None:
    value = figures.get("recall@5") if isinstance(figures, dict) else figures
    return value if isinstance(value, float) else None
