"""metrics.jsonl and samples.md: what a run tells as it goes. A resumed run cuts both back to where it goes on from."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FIGURES, SAMPLES = "metrics.jsonl", "samples.md"
_SECTION = re.compile(r"^## step (\d+):", re.MULTILINE)


class Journal:
    """Appends figures and samples, with the seconds that the run has taken so far, earlier legs included."""

    def __init__(self, folder: Path, step: int) -> None:
        """Goes on after `step`: what stands there of later ones, which will be done again, is removed."""
        self._figures, self._samples = folder / FIGURES, folder / SAMPLES
        kept = [row for row in _rows(self._figures) if row["step"] <= step]
        self._before = max((float(row["seconds"]) for row in kept), default=0.0)
        # The library sums up every leg when it ends; only the last one's sum is the run's.
        _write(self._figures, "".join(_line(row) for row in kept if "train_runtime" not in row))
        _write(self._samples, _upto(self._samples, step))
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the run began, without the time between its legs."""
        return round(self._before + time.monotonic() - self._started, 1)

    @property
    def here(self) -> float:
        """Of these seconds those since the run was started or resumed."""
        return self.seconds - self._before

    def figures(self, step: int, figures: Mapping[str, Any]) -> None:
        """One line of JSON."""
        with self._figures.open("a", encoding="utf-8") as stream:
            stream.write(_line({"step": step, "seconds": self.seconds, **figures}))

    def samples(self, step: int, text: str) -> None:
        """One section: its first line names the step."""
        with self._samples.open("a", encoding="utf-8") as stream:
            stream.write(f"## step {step}: {text}\n")


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row) + "\n"


def _rows(path: Path) -> list[dict[str, Any]]:
    """The whole lines; the last one may have been torn by a kill."""
    rows = []
    for line in path.read_text(encoding="utf-8").split("\n") if path.is_file() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and {"step", "seconds"} <= row.keys():
            rows.append(row)
    return rows


def _upto(path: Path, step: int) -> str:
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    later = next((found.start() for found in _SECTION.finditer(text) if int(found[1]) > step), None)
    return text[:later]


def _write(path: Path, text: str) -> None:
    part = path.with_name(f".part-{path.name}")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)
