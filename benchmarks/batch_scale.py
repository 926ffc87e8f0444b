"""Measure a batch job without its model: rows per second and peak memory at 10,000 and at 1,000,000 rows.

    python benchmarks/batch_scale.py [--rows 1000000] [--small 10000]

The model is scripted and answers at once, so that reading, looking up and writing are measured. All rows differ.
Each size runs in a process of its own.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import make_parser, write_json

CHUNK = 512


class Scripted:
    """A backend that answers every prompt with two queries."""

    context = None
    rejects_long_prompts = True

    def __init__(self, *parts: object) -> None:
        pass

    def count(self, prompts: Sequence[Any]) -> None:
        return None

    def generate(self, prompts: Sequence[Any], sampling: Any, show_progress: bool = False) -> list[Any]:
        from rewrite.types import Answer

        texts = [prompt[-1]["content"] for prompt in prompts]
        return [[Answer(f"- {text[:40]}\n- something else", 12)] for text in texts]


def run_job(rows: str, out: str) -> dict[str, float]:
    """Run one job in this process."""
    from pipelines.batch.api import run
    from pipelines.batch.settings import BatchConfig
    from pipelines.rewriters import RewriterSettings
    from rewrite.backends import base
    from rewrite.settings import RulesSettings

    base.BACKENDS["rules"] = "batch_scale:Scripted"
    config = BatchConfig(rewriter=RewriterSettings(template="needs", backend=RulesSettings()), chunk_size=CHUNK)
    started = time.monotonic()
    summary = run(rows, out, config, show=False)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"rows": summary.rows, "seconds": time.monotonic() - started, "peak_mb": peak}


def measure(count: int, folder: Path) -> dict[str, float]:
    """Run a job of `count` rows in a new process."""
    path, out = folder / f"{count}.jsonl", folder / f"{count}.out.jsonl"
    with path.open("w") as stream:
        for number in range(count):
            row = {"_id": str(number), "text": f"please find parcel {number} and book a hotel"}
            stream.write(json.dumps(row) + "\n")
    code = "import json, sys, batch_scale; print(json.dumps(batch_scale.run_job(*sys.argv[1:])))"
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here), str(here.parent)])}
    command = [sys.executable, "-c", code, str(path), str(out)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    facts: dict[str, float] = json.loads(done.stdout)
    assert sum(1 for _ in out.open("rb")) == count == facts["rows"], "a row is missing"
    return facts


def main() -> None:
    """Run both sizes, one after the other."""
    parser = make_parser(__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--small", type=int, default=10_000)
    options = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; chunks of {CHUNK} rows")
    with tempfile.TemporaryDirectory() as folder:
        small, large = (measure(count, Path(folder)) for count in (options.small, options.rows))
    for facts in (small, large):
        rate = facts["rows"] / facts["seconds"]
        print(f"{facts['rows']:>9,.0f} rows: {rate:>8,.0f} rows/s, peak {facts['peak_mb']:,.1f} MB")
    print(f"peak memory: {large['peak_mb'] / small['peak_mb']:.3f} times that of the small job")
    write_json(options.out, {"small": small, "large": large})


if __name__ == "__main__":
    main()
