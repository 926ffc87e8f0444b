"""The requests in the docs, sent to a real server before the tutorial's catalogue."""

from __future__ import annotations

from pathlib import Path

import pytest
from doc_blocks import ROOT, blocks, commands
from doubles import BM25_ONLY, plain_context
from serving import running

from pipelines.index.build import read_tools
from retrievers.index import build

REQUESTS = [(block.name, words) for block in blocks() for words in commands(block) if words[0] == "curl"]


@pytest.mark.parametrize(("name", "words"), REQUESTS, ids=[f"{name}-{words[1]}" for name, words in REQUESTS])
def test_a_request_of_the_docs_is_answered(name: str, words: list[str], tmp_path: Path) -> None:
    tools = read_tools((str(ROOT / "docs/examples/leisure-openapi.yaml"),))
    build(tmp_path / "index", tools, BM25_ONLY, plain_context())
    config = {"index": str(tmp_path / "index"), "retriever": "bm25", "feedback": str(tmp_path / "feedback")}
    path = words[1].removeprefix("localhost:8080")
    assert path.startswith("/v1/")
    headers = dict(words[at + 1].split(": ", 1) for at, word in enumerate(words) if word == "-H")
    with running(config) as server:
        known = {key: value for key, value in headers.items() if key != "Authorization"}  # nobody has that key
        body = words[words.index("-d") + 1]
        answer = server.client.post(path, content=body.encode(), headers=known)
        assert answer.status_code in (200, 201, 204), answer.text


def test_there_are_some() -> None:
    assert len(REQUESTS) >= 3
