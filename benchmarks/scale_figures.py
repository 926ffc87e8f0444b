"""A table of figures: median, spread, how many, and whether a target was met."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median


@dataclass(slots=True)
class Figures:
    """Values under a name, printed as they come and kept for the JSON file."""

    rows: list[dict[str, object]] = field(default_factory=list)

    def note(
        self, what: str, unit: str, values: Sequence[float], target: str = "", met: bool | None = None, digits: int = 3
    ) -> float:
        """One line of the table: median, spread, how many. Returns the median."""
        middle = median(values)
        spread = f"{min(values):,.{digits}f} - {max(values):,.{digits}f}" if len(values) > 1 else ""
        verdict = "" if met is None else f"{target} {'met' if met else 'MISSED'}"
        print(f"{what:<58} {middle:>12,.{digits}f} {unit:<6} {spread:<25} {len(values):>4} {verdict}", flush=True)
        self.rows.append(
            {"what": what, "unit": unit, "median": middle, "min": min(values), "max": max(values), "n": len(values)}
            | ({} if met is None else {"target": target, "met": met})
        )
        return middle

    def title(self, text: str) -> None:
        """A heading."""
        print(f"\n{text}\n{'what':<58} {'median':>12} {'unit':<6} {'min - max':<25} {'n':>4}", flush=True)


@contextmanager
def clocked(into: list[float]) -> Iterator[None]:
    """Appends the seconds its block took."""
    start = time.perf_counter()
    yield
    into.append(time.perf_counter() - start)
