"""Prompts of a job that only the server finds too long: asked with fewer tools in sight, else left with a clear end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from doubles import BM25_ONLY, ModelServer, Reply, plain_context, varied_tools

from pipelines.batch.api import run
from pipelines.batch.settings import BatchConfig
from pipelines.rewriters import RewriterSettings, make_rewriter
from pipelines.search import ToolSearch
from retrievers.index import Index, build
from retrievers.settings import RewriteFusion
from rewrite.settings import ServerSettings

TOO_LONG = (400, {"error": {"message": "This model's maximum context length is 64 tokens, you asked for 99"}})
UTTERANCES = ["book a flight", "an epic of a flight to book", "track my parcel", "book a flight", "cancel the order"]
MOST = 3
"""Tools in a prompt that the server has room for."""


@pytest.fixture
def server() -> Iterator[ModelServer]:
    """It says nothing of its room, counts for nobody, and has room for a few tools and for no epic."""

    def manners(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> Reply | None:
        said = body["messages"][-1]["content"]
        return TOO_LONG if said.count("\n- ") > MOST or "epic" in said else None

    made = ModelServer(lambda prompt: f"- {prompt.rpartition('User: ')[2]}")
    made.context, made.manners = 0, manners
    yield made
    made.stop()


@pytest.fixture
def config(tmp_path: Path, server: ModelServer) -> BatchConfig:
    build(tmp_path / "index", varied_tools(60), BM25_ONLY, plain_context())
    rewriter = RewriterSettings(template="candidates", backend=ServerSettings(server.url, server.name, concurrency=2))
    return BatchConfig(rewriter=rewriter, index=str(tmp_path / "index"), retriever="bm25", chunk_size=2)


def test_a_job_answers_what_the_rewriter_answers_and_gives_every_other_row_its_end(
    tmp_path: Path, config: BatchConfig, server: ModelServer
) -> None:
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(text) + "\n" for text in UTTERANCES))
    summary = run(str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"), config, show=False)
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["text"] for row in found] == UTTERANCES
    assert [row["status"] for row in found] == ["echo", "too-long", "echo", "echo", "echo"]
    assert (summary.rows, summary.bad, summary.fallbacks) == (5, 0, 1)
    assert summary.statuses == {"echo": 4, "too-long": 1}

    assert config.rewriter is not None
    index = Index(tmp_path / "index", plain_context())
    search = ToolSearch(index, "bm25", make_rewriter(config.rewriter)[0], RewriteFusion())
    assert [[tool["id"] for tool in row["tools"]] for row in found] == [
        list(ranking.ids) for ranking in search.search(UTTERANCES, config.k)
    ]
    assert found[1]["queries"] == []
    raw = ToolSearch(index, "bm25").search([UTTERANCES[1]], config.k)[0]
    assert [tool["id"] for tool in found[1]["tools"]] == list(raw.ids)


def test_a_prompt_is_asked_with_half_of_the_tools_until_it_fits(
    tmp_path: Path, config: BatchConfig, server: ModelServer
) -> None:
    (tmp_path / "in.jsonl").write_text('"book an epic flight hotel"\n"book a hotel"\n')
    run(str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"), config, show=False)
    said = [body["messages"][-1]["content"].rpartition("\n\nUser: ") for body in server.asked]
    assert [tools.count("\n- ") for tools, _, user in said if user == "book a hotel"] == [10, 5, 2]
    assert [tools.count("\n- ") for tools, _, user in said if user != "book a hotel"] == [10, 5, 2, 1, 0]
