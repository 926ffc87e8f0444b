"""Opens an index in a process of its own and prints, as JSON, what that took. Run by index_scale.py.

python benchmarks/scale_load.py INDEX [--model]     --model: also search, which loads torch and the encoder
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path


def resident() -> float:
    """Memory this process holds, in MB."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    except OSError:  # no /proc (macOS): the most it ever held
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def main(folder: Path, with_model: bool) -> dict[str, float]:
    """Seconds of each step and megabytes before and after."""
    facts: dict[str, float] = {}
    last = time.perf_counter()

    def stage(name: str) -> None:
        nonlocal last
        now = time.perf_counter()
        facts[name] = now - last
        last = time.perf_counter()

    from pipelines.context import make_context
    from pipelines.search import ToolSearch
    from retrievers.index import Index

    stage("import")
    facts["MB before"] = resident()
    last = time.perf_counter()
    index = Index(folder, make_context())
    stage("Index()")
    for name in index.names:
        index.retriever(name)
        stage(f"open {name}")
    ToolSearch(index, "bm25")
    stage("ToolSearch")
    facts["MB ready"] = resident()
    facts["torch imported"] = float("torch" in sys.modules)
    last = time.perf_counter()
    index.retriever("bm25").search(["find a flight to Athens"], 10)
    stage("first bm25 search")
    if with_model:
        index.retriever("dense").search(["find a flight to Athens"], 10)
        stage("first dense search")
        facts["MB after dense search"] = resident()
    return facts


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), "--model" in sys.argv)))
