"""A batch job's own machinery: rows a second and peak memory at 10,000 and at 1,000,000 rows.

    python benchmarks/batch_scale.py [--rows 1000000] [--small 10000]

The model is scripted and answers at once, so what is measured is reading, looking up, writing and making safe. All rows
are different: nothing is saved by knowing an answer already. Each size runs in a process of its own.
"""

from __future__ import annotations

import argparse
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

HERE = Path(__file__).parent
CHUNK = 512


class Scripted:
    """Answers every prompt with two queries, at once."""

    context = None
    tells_too_long = True

    def __init__(self, *parts: object) -> None:
        pass

    def count(self, prompts: Sequence[Any]) -> None:
        return None

    def generate(self, prompts: Sequence[Any], sampling: Any, show_progress: bool = False) -> list[Any]:
        from rewrite.types import Answer

        said = [prompt[-1]["content"] for prompt in prompts]
        return [[Answer(f"- {text[:40]}\n- something else", 12)] for text in said]


def child(rows: str, out: str) -> None:
    """One job; tells its figures."""
    from pipelines.batch.api import run
    from pipelines.batch.settings import BatchConfig
    from pipelines.rewriters import RewriterSettings
    from rewrite.backends import base
    from rewrite.settings import RulesSettings

    base.KINDS["rules"] = "batch_scale:Scripted"
    config = BatchConfig(rewriter=RewriterSettings(template="needs", backend=RulesSettings()), chunk=CHUNK)
    started = time.monotonic()
    summary = run(rows, out, config, show=False)
    seconds = time.monotonic() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    facts = {"rows": summary.rows, "seconds": seconds, "expanding": summary.seconds, "peak_mb": peak}
    sys.stdout.write(json.dumps(facts))


def measure(count: int, folder: Path) -> dict[str, float]:
    """A job of that many rows."""
    path = folder / f"{count}.jsonl"
    with path.open("w") as stream:
        for number in range(count):
            stream.write(
                json.dumps({"_id": str(number), "text": f"please find parcel {number} and book a hotel"}) + "\n"
            )
    code = "import sys; sys.path.insert(0, sys.argv[3]); import batch_scale; batch_scale.child(*sys.argv[1:3])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent)])}
    words = [sys.executable, "-c", code, str(path), str(folder / f"{count}.out.jsonl"), str(HERE)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    facts: dict[str, float] = json.loads(done.stdout)
    lines = sum(1 for _ in (folder / f"{count}.out.jsonl").open("rb"))
    assert lines == count == facts["rows"], "a row is missing"
    return facts


def main() -> None:
    """Both sizes, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--small", type=int, default=10_000)
    parser.add_argument("--folder", type=Path, help="where files go (a temporary folder)")
    arguments = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; chunks of {CHUNK} rows")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        found = [measure(count, Path(folder)) for count in (arguments.small, arguments.rows)]
    for facts in found:
        print(
            f"{facts['rows']:>9,.0f} rows: {facts['rows'] / facts['seconds']:>8,.0f} rows/s from start to end "
            f"({facts['rows'] / facts['expanding']:,.0f} while expanding), peak {facts['peak_mb']:,.1f} MB"
        )
    print(f"peak memory: {found[1]['peak_mb'] / found[0]['peak_mb']:.3f} times that of the small job")


if __name__ == "__main__":
    main()
