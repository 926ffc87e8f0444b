"""metrics.jsonl and samples.md of a run. A resumed run cuts both back to the step that it resumes from."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

METRICS_FILE, SAMPLES_FILE = "metrics.jsonl", "samples.md"
_SECTION = re.compile(r"^## step (\d+):", re.MULTILINE)


class MetricsLog:
    """Appends metrics and samples, with the run's seconds so far, earlier legs included."""

    def __init__(self, folder: Path, step: int) -> None:
        """Resumes after `step`: entries of later steps, which will be done again, are removed."""
        self._metrics, self._samples = folder / METRICS_FILE, folder / SAMPLES_FILE
        rows = [row for row in _read_rows(self._metrics) if row["step"] <= step]
        self._seconds_before = max((float(row["seconds"]) for row in rows), default=0.0)
        # The library writes a summary at the end of every leg; only the last one is the run's.
        _replace(self._metrics, "".join(_to_line(row) for row in rows if "train_runtime" not in row))
        text = self._samples.read_text(encoding="utf-8", errors="replace") if self._samples.is_file() else ""
        later = next((match.start() for match in _SECTION.finditer(text) if int(match[1]) > step), None)
        _replace(self._samples, text[:later])
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the run began, without the time between its legs."""
        return round(self._seconds_before + time.monotonic() - self._started, 1)

    @property
    def seconds_of_leg(self) -> float:
        """Seconds since the run was started or resumed."""
        return self.seconds - self._seconds_before

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Appends a line of JSON."""
        with self._metrics.open("a", encoding="utf-8") as stream:
            stream.write(_to_line({"step": step, "seconds": self.seconds, **metrics}))

    def write_samples(self, step: int, text: str) -> None:
        """Appends a section; its first line names the step."""
        with self._samples.open("a", encoding="utf-8") as stream:
            stream.write(f"## step {step}: {text}\n")


def read_start_metrics(folder: Path, metric: str) -> dict[str, float]:
    """Dev metrics before the first step, where the run has them already; else empty."""
    for row in _read_rows(folder / METRICS_FILE):
        if row["step"] == 0 and f"eval_{metric}" in row:
            return {name: value for name, value in row.items() if name.startswith("eval_")}
    return {}


def _to_line(row: Mapping[str, Any]) -> str:
    return json.dumps(row) + "\n"


def _read_rows(path: Path) -> list[dict[str, Any]]:
    """Complete lines; a kill may have torn the last one."""
    rows = []
    for line in path.read_text(encoding="utf-8").split("\n") if path.is_file() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and {"step", "seconds"} <= row.keys():
            rows.append(row)
    return rows


def _replace(path: Path, text: str) -> None:
    part = path.with_name(f".part-{path.name}")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)
