"""`rewrite-serve` as a process."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from killing import started

CODE = "import sys; from pipelines.cli.main import serve; sys.exit(serve(sys.argv[1:]))"


@contextmanager
def served(
    folder: Path, config: dict[str, Any], prefix: Sequence[str] = ()
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and its URL, on any port that is free; it ends with the block. `prefix`: words before the command."""
    path = folder / f"serve-{time.monotonic_ns()}.yaml"
    path.write_text(yaml.safe_dump({"retriever": "bm25", "port": 0, **config}, sort_keys=False))
    with started([*prefix, sys.executable, "-c", CODE, str(path)], text=True, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("rewrite-serve: http://127.0.0.1:"), line
        yield process, line.split()[1].strip(",")
