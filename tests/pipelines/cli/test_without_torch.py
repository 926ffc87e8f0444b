"""Building, searching and serving an index where PyTorch is not installed."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from pipelines.data.sample_data import sample_folder

BLOCKED = """
import sys
for name in ("torch", "transformers", "sentence_transformers"):
    sys.modules[name] = None  # as if it were not installed
from pipelines.cli.main import PARSERS, run
sys.exit(run(PARSERS[sys.argv[1]](), sys.argv[2:]))
"""
MAX_MEMORY = 400 * 2**20  # bytes; with PyTorch a server has twice as much


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", BLOCKED, *words], capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index that was built without PyTorch."""
    folder = tmp_path_factory.mktemp("light")
    titles = {
        "weather": "weather forecast for a city",
        "table": "book a table in a restaurant",
        "tax": "file a tax form",
    }
    lines = [json.dumps({"_id": name, "title": name, "text": text}) for name, text in titles.items()]
    (folder / "corpus.jsonl").write_text("\n".join(lines))
    kinds = "dense: {kind: dense, model: 'bundled:tools'}, bm25: {kind: bm25}, both: {kind: hybrid, of: [bm25, dense]}"
    config = folder / "index.yaml"
    config.write_text(f"index: {folder / 'index'}\ncatalogue: {folder / 'corpus.jsonl'}\nretrievers: {{{kinds}}}\n")
    done = command("rewrite-index", "build", str(config))
    assert done.returncode == 0, done.stderr
    return folder / "index"


def test_an_index_is_searched(index: Path) -> None:
    done = command("rewrite-index", "search", str(index), "will it rain in Paris", "--json")
    assert done.returncode == 0, done.stderr
    assert '"weather"' in done.stdout.partition("tax")[0].partition("table")[0]


def test_an_index_is_served(index: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["rewrite-serve", str(index), "--set", f"port={port}"]
    server = subprocess.Popen([sys.executable, "-c", BLOCKED, *words], stderr=subprocess.PIPE, text=True)
    try:
        for _ in range(600):
            try:
                body = {"utterance": "reserve seats for dinner", "k": 1}
                answer = httpx.post(f"http://127.0.0.1:{port}/v1/search", json=body, timeout=60)
                break
            except httpx.ConnectError:
                assert server.poll() is None, server.communicate()[1]
                time.sleep(0.1)
        assert answer.json()["results"][0]["tools"][0]["id"] == "table"
        if sys.platform == "linux":
            pages = int(Path(f"/proc/{server.pid}/statm").read_text().split()[1])
            assert pages * os.sysconf("SC_PAGE_SIZE") < MAX_MEMORY
    finally:
        server.terminate()
        server.communicate()


def test_retrievers_that_need_torch_say_so() -> None:
    done = command("rewrite-index", "search", str(sample_folder() / "index"), "x", "--retriever", "masstool")
    assert done.returncode == 2
    assert "kind masstool needs torch; run `pip install 'toolrewrite[torch]'`" in done.stderr
    assert done.stderr.count("\n") == 1
