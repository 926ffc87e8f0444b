"""A generative retriever behind the server: the same rankings, and a catalogue that changes while it answers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from generative_toys import TOOLS, save_toy_model, toolgen
from serving import Running

from pipelines.context import make_context
from retrievers.index import Index, build


def test_it_answers_as_in_process_and_follows_the_catalogue(serve: Callable[..., Running], tmp_path: Path) -> None:
    context = make_context("cpu")
    build(tmp_path / "said", TOOLS, {"toolgen": toolgen(save_toy_model(tmp_path / "toy"))}, context)
    server = serve(index=str(tmp_path / "said"), retriever="toolgen")
    asked = ["please blorp", "a zindle", "now frum"]
    with ThreadPoolExecutor(3) as callers:
        found = list(callers.map(lambda text: _ids(server, text), asked * 3))
    theirs = Index(tmp_path / "said", context).retriever("toolgen").search(asked, 20)
    assert found == [list(ranking.ids) for ranking in theirs] * 3
    assert server.client.delete("/v1/tools/t0").json()["removed"] == 1
    assert server.client.put("/v1/tools/new", json={"name": "mimsy", "description": "Mimsy."}).json()["added"] == 1
    assert sorted(_ids(server, asked[0])) == sorted(["new", *(tool.id for tool in TOOLS[1:])])


def _ids(server: Running, text: str) -> list[str]:
    return [tool["id"] for tool in server.search(text, k=20)["results"][0]["tools"]]
