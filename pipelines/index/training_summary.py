"""What a build has learned, in a line or two: a training that kept the model as it was must not look like success."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from retrievers.index import manifest as manifests


def learned(folder: Path) -> Iterator[str]:
    """Lines about every trained retriever of an index, from the `training.json` sealed with it."""
    for name, part in manifests.read(folder)[0].retrievers.items():
        path = folder / part.model / "training.json"
        if part.model and path.exists():
            yield from (f"  {name}{line}" for line in lines(json.loads(path.read_text(encoding="utf-8"))))


def lines(told: Mapping[str, Any]) -> Iterator[str]:
    """What one training came to."""
    if codes := told.get("codes"):
        yield ", codes: " + ", ".join(f"{key} {value}" for key, value in codes.items())
    for stage, facts in told.get("stages", {}).items():
        last = (
            ", ".join(f"{key} {value:.4g}" for key, value in facts["history"][-1].items()) if facts != "skipped" else ""
        )
        yield f", {stage}: " + (f"{facts['steps']} steps, {facts['tokens']} tokens, {last}" if last else "skipped")
    before, after = _recall(told.get("plain", told.get("before"))), _recall(told.get("after"))
    if before is None or after is None:
        return
    kept = ""
    if "blend" in told:  # an encoder; a MassTool's `plain` is its encoder alone
        share = float(told["blend"])
        kept = f"{share:.0%} of the tuned weights" if share else "the model as it was, since tuning did not help dev"
    yield f": dev recall@5 {before:.3f} -> {after:.3f}" + (f"; kept is {kept}" if kept else "")


def _recall(figures: object) -> float | None:
    value = figures.get("recall@5") if isinstance(figures, dict) else figures
    return value if isinstance(value, float) else None
