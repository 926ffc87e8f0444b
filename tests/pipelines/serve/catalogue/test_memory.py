"""Memory of a server whose catalogue changes all the time, from outside: what is mapped does not grow."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest
from doubles import BM25_ONLY, plain_context, varied_tools
from serving import Running, running

from pipelines.context import make_context
from pipelines.models import find_model
from retrievers.index import build
from retrievers.settings import BM25Settings, DenseSettings

MAPS = Path("/proc/self/smaps")
pytestmark = pytest.mark.skipif(not MAPS.exists(), reason="needs Linux")
CHANGES = 8


def resident(part: str) -> dict[str, int]:
    """Resident kilobytes of mapped files by path, of those whose path contains this."""
    sizes, path = dict[str, int](), ""
    for line in MAPS.read_text().splitlines():
        if mapped := re.match(r"[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \d+\s*(.*)", line):
            path = mapped[1]
        elif line.startswith("Rss:") and part in path:
            sizes[path] = sizes.get(path, 0) + int(line.split()[1])
    return sizes


def change(server: Running, description: str) -> None:
    tools = [{"id": "new", "name": "new", "description": description}]
    assert server.client.put("/v1/tools", json={"tools": tools}).status_code == 200


def test_new_words_do_not_add_pages_of_the_encoder(tmp_path: Path) -> None:
    model = find_model("bundled:minilm")
    words = [word for word in json.loads((model / "tokenizer.json").read_text())["model"]["vocab"] if word.isalpha()]
    random.Random(0).shuffle(words)
    retrievers = {"bm25": BM25Settings(), "dense": DenseSettings(model=str(model))}
    build(tmp_path / "index", varied_tools(20), retrievers, make_context("cpu"))
    with running({"index": str(tmp_path / "index"), "retriever": "bm25"}) as server:
        change(server, "Mends umbrellas.")  # loads the encoder
        before = sum(resident(str(model)).values())
        for number in range(CHANGES):
            change(server, " ".join(words[150 * number : 150 * (number + 1)]))
        assert sum(resident(str(model)).values()) - before < 1_000  # else 64 kB per word that was not there before


def test_changes_map_no_files_that_have_to_be_freed(tmp_path: Path) -> None:
    build(tmp_path / "index", varied_tools(20), BM25_ONLY, plain_context())
    with running({"index": str(tmp_path / "index"), "retriever": "bm25"}) as server:
        for number in range(CHANGES):
            change(server, f"Mends umbrella {number}.")
        assert resident(str(tmp_path)) == {}
        assert server.search("umbrella 7")["results"][0]["tools"][0]["id"] == "new"
